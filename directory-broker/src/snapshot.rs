//! The directory as it was last good, and whether its newest version still is.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory_admin::Count;
use memory_config::{ConfigErrors, Directory, FileIdentity, Placement, Toolshed};
use memory_wire::{Did, Reason};
use tokio::sync::Notify;

/// How often the file is looked at. A change is to be followed within 500 ms (`docs/protocol.md` section 6.5).
const INTERVAL: Duration = Duration::from_millis(200);

/// How often an invalid file that has not changed is read again: what it refers to may have been repaired.
const RETRY: Duration = Duration::from_secs(2);

/// Bytes up to which a file is read in between; a longer one is read beside, since that may take a second.
const MAX_INLINE_LEN: u64 = 1 << 20;

/// What opens are placed by.
#[derive(Debug)]
pub(crate) struct Snapshot {
    directory: Arc<Directory>,
    newest: Newest,
    /// Since when the directory is the one that opens are placed by.
    since: Instant,
    /// Versions that could not be used.
    failures: Count,
    /// Woken whenever a version has been read.
    read: Rc<Notify>,
}

/// The newest version of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Newest {
    /// It is the snapshot.
    Current,
    /// It cannot be read, or is invalid.
    Unreadable,
    /// Its toolsheds or its rule for unlisted spaces are not those this process started with.
    OtherTopology,
}

impl Snapshot {
    pub(crate) fn new(directory: Directory) -> Self {
        Self {
            directory: Arc::new(directory),
            newest: Newest::Current,
            since: Instant::now(),
            failures: Count::default(),
            read: Rc::default(),
        }
    }

    /// Where a new open of `space` goes.
    ///
    /// # Errors
    /// [`Reason::DirectoryUnreadable`], [`Reason::RestartNeeded`], [`Reason::Unplaced`].
    pub(crate) fn place(&self, space: &Did) -> Result<Placement, Reason> {
        match self.newest {
            Newest::Current => self.directory.place(space).ok_or(Reason::Unplaced),
            Newest::Unreadable => Err(Reason::DirectoryUnreadable),
            Newest::OtherTopology => Err(Reason::RestartNeeded),
        }
    }

    /// What it is, for whoever looks: whether opens are placed, spaces listed, its age, and versions that could not be used.
    pub(crate) fn shown(&self) -> (bool, usize, Duration, u64) {
        (
            self.newest == Newest::Current,
            self.directory.space_count(),
            self.since.elapsed(),
            self.failures.get(),
        )
    }

    /// A toolshed by its index.
    pub(crate) fn toolshed(&self, index: u16) -> Option<&Toolshed> {
        self.directory.toolshed(index)
    }

    /// Takes the outcome of reading the newest version; `Ok(None)` means that it is the snapshot. Returns the reason that new
    /// opens are refused for from now on, if there is one.
    pub(crate) fn apply(&mut self, read: Result<Option<Directory>, ()>) -> Option<Reason> {
        let (newest, reason) = match read {
            Ok(Some(directory)) if !is_followable(&directory, &self.directory) => {
                (Newest::OtherTopology, Some(Reason::RestartNeeded))
            }
            Ok(Some(directory)) => {
                self.directory = Arc::new(directory);
                self.since = Instant::now();
                (Newest::Current, None)
            }
            Ok(None) => (Newest::Current, None),
            Err(()) => (Newest::Unreadable, Some(Reason::DirectoryUnreadable)),
        };
        if self.newest != newest && newest != Newest::Current {
            self.failures.add(1);
        }
        self.newest = newest;
        self.read.notify_waiters();
        reason
    }
}

/// Whether a running process may go on with `next`: the toolsheds and the rule for unlisted spaces are read once.
fn is_followable(next: &Directory, now: &Directory) -> bool {
    next.same_topology(now) && next.same_unlisted_rule(now)
}

/// When to read the file again.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// The version that the snapshot is of.
    good: FileIdentity,
    /// The version read last, and whether it became the snapshot; `None` when there was no file.
    last: Option<FileIdentity>,
    /// When an unchanged version is read again all the same. `None` when it is good.
    retry: Option<Instant>,
}

impl Schedule {
    pub(crate) fn new(good: FileIdentity) -> Self {
        Self {
            good,
            last: Some(good),
            retry: None,
        }
    }

    /// Whether the file, whose identity is `found`, is to be read now.
    pub(crate) fn is_due(&self, found: Option<&FileIdentity>, now: Instant) -> bool {
        found != self.last.as_ref() || self.retry.is_some_and(|retry| retry <= now)
    }

    /// Notes that the version `found` was read and became the snapshot.
    pub(crate) fn succeeded(&mut self, found: FileIdentity) {
        *self = Self::new(found);
    }

    /// Notes that the version `found` was read and did not become the snapshot.
    pub(crate) fn failed(&mut self, found: Option<FileIdentity>, now: Instant) {
        self.last = found;
        self.retry = Some(now + RETRY);
    }
}

/// Follows the file for ever.
pub(crate) async fn watch(path: PathBuf, snapshot: Rc<RefCell<Snapshot>>, good: FileIdentity) {
    let mut schedule = Schedule::new(good);
    let mut refused = None;
    loop {
        tokio::time::sleep(INTERVAL).await;
        let found = FileIdentity::of(&path).ok();
        if !schedule.is_due(found.as_ref(), Instant::now()) {
            continue;
        }
        let directory = Arc::clone(&snapshot.borrow().directory);
        let read = read(&path, directory, schedule.good, found.as_ref()).await;
        let was_refused = refused;
        let detail = match read {
            Ok(read) => {
                let identity = read
                    .as_ref()
                    .map_or(schedule.good, |(_, identity)| *identity);
                refused = snapshot
                    .borrow_mut()
                    .apply(Ok(read.map(|(directory, _)| directory)));
                match refused {
                    None => schedule.succeeded(identity),
                    Some(_) => schedule.failed(Some(identity), Instant::now()),
                }
                None
            }
            Err(errors) => {
                refused = snapshot.borrow_mut().apply(Err(()));
                schedule.failed(found, Instant::now());
                Some(errors)
            }
        };
        report(was_refused, refused, detail.as_ref());
    }
}

async fn read(
    path: &Path,
    directory: Arc<Directory>,
    good: FileIdentity,
    found: Option<&FileIdentity>,
) -> Result<Option<(Directory, FileIdentity)>, ConfigErrors> {
    if found.is_none_or(|found| found.len <= MAX_INLINE_LEN) {
        return directory.read_if_changed(path, &good);
    }
    let owned = path.to_owned();
    let again = Arc::clone(&directory);
    match tokio::task::spawn_blocking(move || again.read_if_changed(&owned, &good)).await {
        Ok(read) => read,
        // No thread could be had, or it died: here then.
        Err(_) => directory.read_if_changed(path, &good),
    }
}

/// Logs what changed for new opens; a failure that goes on is not repeated.
fn report(before: Option<Reason>, now: Option<Reason>, errors: Option<&ConfigErrors>) {
    match (before, now) {
        (before, Some(reason)) if before != Some(reason) => {
            let detail = errors.map(ToString::to_string).unwrap_or_default();
            tracing::error!(%reason, detail, "the directory cannot be used: new opens are refused for now");
        }
        (Some(_), None) => tracing::info!("the directory is good again"),
        (None, None) => tracing::info!("the directory has been read again"),
        _ => {}
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
