//! The revocation list: principals that an operator shut out (`docs/operations.md`, revoking a principal).
//!
//! One strict JSON file, an entry a line, so that a fault is reported where it stands:
//!
//! ```text
//! {"version":1,"revoked":[
//! {"principal":"did:key:z6Mk…","since":1760000000,"reason":"stolen laptop"}
//! ]}
//! ```
//!
//! Writers take turns at a lock and replace the whole file by rename, so that a reader finds one state or the next.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memory_wire::Did;

use crate::error::ConfigErrors;
use crate::json::{Json, Member, Stopped};
use crate::read::{FileIdentity, read_text};
use crate::report::Report;

/// Name of the list in `state_dir`.
pub const REVOCATION_FILE: &str = "revoked";

/// Most principals of one list.
pub const MAX_REVOCATIONS: usize = 16_384;

/// Longest reason, bytes.
pub const MAX_REASON_LEN: usize = 256;

/// Longest list, bytes.
const MAX_FILE_LEN: u64 = 16 << 20;

/// Longest entry: names and number, the DID, and a reason every character of which is escaped.
const MAX_ENTRY_LEN: usize = 128 + Did::LEN + 2 * MAX_REASON_LEN;

const _: () = assert!(MAX_REVOCATIONS * MAX_ENTRY_LEN < MAX_FILE_LEN as usize);

/// Largest second: an integer that every JSON reader keeps exactly.
const MAX_SECOND: u64 = (1 << 53) - 1;

/// How long a writer waits for its turn, and how often it looks.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// When it was revoked, Unix seconds.
    pub since: u64,
    /// Why, for people: 1..=256 bytes without control characters.
    pub reason: Option<String>,
}

/// One good state of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RevocationList {
    entries: BTreeMap<Did, Revocation>,
}

/// Which state of the file a list was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationVersion {
    /// There is no file: nobody is revoked.
    Missing,
    /// This one.
    File(FileIdentity),
}

impl RevocationVersion {
    /// The state of the file now.
    ///
    /// # Errors
    /// When it cannot be examined: then it is not known to be missing.
    pub fn of(path: &Path) -> io::Result<Self> {
        // Not followed here: a link that leads nowhere is not a file that is missing.
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Missing),
            Err(error) => Err(error),
            Ok(_) => FileIdentity::of(path).map(Self::File),
        }
    }
}

impl RevocationList {
    /// Reads and checks the list. A file that does not exist is an empty list.
    ///
    /// # Errors
    /// Every fault of the file; a file that cannot be read.
    pub fn load(path: &Path) -> Result<(Self, RevocationVersion), ConfigErrors> {
        // Looked at before it is read: what changes in between is read again.
        let version = match RevocationVersion::of(path) {
            Ok(RevocationVersion::Missing) => {
                return Ok((Self::default(), RevocationVersion::Missing));
            }
            Ok(version) => version,
            Err(error) => {
                let found = crate::read::describe(&error);
                return Err(ConfigErrors::of_file(path, found, "a readable file"));
            }
        };
        let text = read_text(path, MAX_FILE_LEN)?;
        Ok((Self::parse(&text, path)?, version))
    }

    /// Checks the text of a list; `file` is its name in errors.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigErrors> {
        let mut report = Report::new(file, text);
        let mut list = Self::default();
        // A stop is in the report, which decides below.
        let _ = list.read(&mut Json::new(&mut report, text));
        report.finish(list)
    }

    /// Whether `principal` is revoked.
    pub fn contains(&self, principal: &Did) -> bool {
        self.entries.contains_key(principal)
    }

    /// The entry of a principal.
    pub fn get(&self, principal: &Did) -> Option<&Revocation> {
        self.entries.get(principal)
    }

    /// Every entry, by DID.
    pub fn iter(&self) -> impl Iterator<Item = (&Did, &Revocation)> {
        self.entries.iter()
    }

    /// How many are revoked.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nobody is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a principal in place of its earlier entry, if there is room. The caller keeps the bounds of a reason.
    pub fn insert(&mut self, principal: Did, revocation: Revocation) -> bool {
        let fits = self.contains(&principal) || self.len() < MAX_REVOCATIONS;
        if fits {
            self.entries.insert(principal, revocation);
        }
        fits
    }

    /// Takes a principal off; gives what stood there.
    pub fn remove(&mut self, principal: &Did) -> Option<Revocation> {
        self.entries.remove(principal)
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        let mut text = "{\"version\":1,\"revoked\":[\n".to_owned();
        for (index, (principal, revocation)) in self.entries.iter().enumerate() {
            if index > 0 {
                text.push_str(",\n");
            }
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "{{\"principal\":\"{principal}\",\"since\":{}",
                revocation.since
            );
            if let Some(reason) = &revocation.reason {
                // There are no control characters, which alone need another escape.
                let escaped = reason.replace('\\', "\\\\").replace('"', "\\\"");
                let _ = write!(text, ",\"reason\":\"{escaped}\"");
            }
            text.push('}');
        }
        text.push_str(if self.is_empty() { "]}\n" } else { "\n]}\n" });
        text
    }

    fn read(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        json.members(&TOP, |json, member| match member {
            "version" => json.integer(1, 1).map(drop),
            _ => self.read_entries(json),
        })?;
        json.end()
    }

    fn read_entries(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        json.array("an array of revoked principals", |json, index| {
            let offset = json.place();
            if index >= MAX_REVOCATIONS {
                let found = format!("more than {MAX_REVOCATIONS} principals");
                json.fault_here(offset, &found, &format!("at most {MAX_REVOCATIONS}"));
                return Err(Stopped);
            }
            let (mut principal, mut since, mut reason) = (None, None, None);
            json.members(&ENTRY, |json, member| {
                match member {
                    "principal" => {
                        let allowed = "a canonical did:key of an Ed25519 key";
                        principal = json.string(allowed, |text| Did::parse(text).ok())?;
                    }
                    "since" => since = json.integer(0, MAX_SECOND)?,
                    _ => {
                        let allowed = "1..=256 bytes without control characters";
                        reason = json.string(allowed, parse_reason)?;
                    }
                }
                Ok(())
            })?;
            if let (Some(principal), Some(since)) = (principal, since)
                && self
                    .entries
                    .insert(principal, Revocation { since, reason })
                    .is_some()
            {
                json.fault_here(offset, "a duplicate principal", "each principal once");
            }
            Ok(())
        })
        .map(drop)
    }
}

const TOP: [Member; 2] = [("version", true), ("revoked", true)];
const ENTRY: [Member; 3] = [("principal", true), ("since", true), ("reason", false)];

/// A reason that may stand in a list.
pub fn parse_reason(text: &str) -> Option<String> {
    let fits = matches!(text.len(), 1..=MAX_REASON_LEN) && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
}

/// The list of a `state_dir`, to change it.
#[derive(Clone, Debug)]
pub struct RevocationFile {
    folder: PathBuf,
}

impl RevocationFile {
    /// The list of this `state_dir`.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            folder: state_dir.to_owned(),
        }
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.folder.join(REVOCATION_FILE)
    }

    /// Revokes a principal. One that is revoked already keeps its entry, which is given. When this returns, the change is on
    /// disk.
    ///
    /// # Errors
    /// [`RevocationError`]; nothing has changed then.
    pub fn revoke(
        &self,
        principal: Did,
        revocation: Revocation,
    ) -> Result<Option<Revocation>, RevocationError> {
        self.change(true, |list| {
            if let Some(already) = list.get(&principal) {
                return Ok((Some(already.clone()), false));
            }
            if list.insert(principal, revocation) {
                Ok((None, true))
            } else {
                Err(RevocationError::Full)
            }
        })
    }

    /// Admits a principal again; gives its entry, if it had one. When this returns, the change is on disk.
    ///
    /// # Errors
    /// [`RevocationError`]; nothing has changed then.
    pub fn restore(&self, principal: &Did) -> Result<Option<Revocation>, RevocationError> {
        if !self.folder.exists() {
            return Ok(None);
        }
        self.change(false, |list| {
            let removed = list.remove(principal);
            let is_changed = removed.is_some();
            Ok((removed, is_changed))
        })
    }

    /// Changes the list in its turn. `edit` says whether there is something to write.
    fn change<T>(
        &self,
        may_make_folder: bool,
        edit: impl FnOnce(&mut RevocationList) -> Result<(T, bool), RevocationError>,
    ) -> Result<T, RevocationError> {
        let failed = |step| move |source| RevocationError::System { step, source };
        if may_make_folder {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.folder)
                .map_err(failed("cannot make the folder of the revocation list"))?;
        }
        let folder = File::open(&self.folder)
            .map_err(failed("cannot open the folder of the revocation list"))?;
        let owner = folder
            .metadata()
            .map_err(failed("cannot examine the folder of the revocation list"))?;
        let _turn = self.lock(&owner)?;
        let (mut list, _) = RevocationList::load(&self.path()).map_err(RevocationError::Invalid)?;
        let (value, is_changed) = edit(&mut list)?;
        if is_changed {
            self.replace(&list, &owner)
                .and_then(|()| folder.sync_all())
                .map_err(failed("cannot write the revocation list"))?;
        }
        Ok(value)
    }

    /// Waits for this writer's turn, which lasts as long as the file is open.
    fn lock(&self, owner: &Metadata) -> Result<File, RevocationError> {
        let failed = |source| RevocationError::System {
            step: "cannot lock the revocation list",
            source,
        };
        let path = self.folder.join("revoked.lock");
        let file = match create(&path, owner) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => File::open(&path),
            made => made,
        };
        let file = file.map_err(failed)?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(LOCK_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => return Err(RevocationError::Busy),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }

    fn replace(&self, list: &RevocationList, owner: &Metadata) -> io::Result<()> {
        let next = self.folder.join("revoked.next");
        // Of a writer that died. Never written through: it may be a link.
        match fs::remove_file(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let written = create(&next, owner).and_then(|mut file| {
            file.write_all(list.to_text().as_bytes())?;
            file.sync_all()
        });
        written
            .and_then(|()| fs::rename(&next, self.path()))
            .inspect_err(|_| {
                // The error that matters is the one before.
                let _ = fs::remove_file(&next);
            })
    }
}

/// A new file of mode 0600 that belongs to whom its folder belongs to: the link agent reads what root writes.
fn create(path: &Path, owner: &Metadata) -> io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    if file.metadata()?.uid() != owner.uid() {
        fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(file)
}

/// Why the list was not changed.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// The system's fault or denial.
    #[error("{step}: {source}")]
    System {
        /// What was being done.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Another writer holds the lock for too long.
    #[error("another process is changing the revocation list")]
    Busy,
    /// The list is invalid: it is never written over.
    #[error("invalid revocation list\n{0}")]
    Invalid(#[source] ConfigErrors),
    /// The list is full.
    #[error("the revocation list is full: {MAX_REVOCATIONS} principals")]
    Full,
}

#[cfg(test)]
#[path = "revocation_tests.rs"]
mod tests;
