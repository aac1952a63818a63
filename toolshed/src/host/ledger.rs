//! The durable ledger: link epochs and revoked router keys (`docs/protocol.md` section 7).
//!
//! One JSON array per line, on the disk before it is acknowledged. It holds only what must outlive a restart: which link
//! epochs may not be used again yet, and which router keys never. The file is bounded; rewriting it is atomic.

mod line;

use line::Line;
use memory_wire::Did;
use memory_wire::ids::EpochId;
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Bytes of the file, at most.
pub const MAX_LEDGER_LEN: u64 = 32 << 20;

/// Epochs recorded for one router, live and retired, at most. Reaching it refuses the router's next link.
pub const MAX_EPOCHS_PER_ROUTER: usize = 1024;

/// Seconds after which a retired epoch is forgotten: the longest lease, the life of a challenge and the clock skew. Every
/// proof bound to it has expired by then.
pub const EPOCH_MEMORY: u64 = 780;

/// Lines appended since the last rewrite that make the next append rewrite first.
const REWRITE_AFTER: usize = 16_384;

/// Why the ledger cannot be used, or refuses.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// Another process holds the lock.
    #[error("{}: held by another process", .0.display())]
    Locked(PathBuf),
    /// The file cannot be read, written or made durable.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line is not one that a toolshed writes. Nothing is guessed: an operator decides.
    #[error("{}: line {line} is damaged: {what}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The file is or would be longer than [`MAX_LEDGER_LEN`].
    #[error("ledger over {MAX_LEDGER_LEN} bytes")]
    TooLong,
    /// An earlier write failed. Until a restart nothing is admitted.
    #[error("ledger failed earlier")]
    Unhealthy,
    /// The router's key was revoked.
    #[error("router key is revoked")]
    Revoked,
    /// The epoch is recorded already.
    #[error("link epoch is in use or was used")]
    EpochReused,
    /// The router has [`MAX_EPOCHS_PER_ROUTER`] recorded epochs.
    #[error("too many link epochs")]
    EpochLimit,
}

impl LedgerError {
    /// The fixed reason of a log line.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Revoked => "router-revoked",
            Self::EpochReused => "epoch-reused",
            Self::EpochLimit => "epoch-limit",
            _ => "ledger-unhealthy",
        }
    }
}

/// The open ledger. Dropping it gives the lock back.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    file: File,
    /// Held for as long as the file is: an inode of its own, because a rewrite replaces the ledger's.
    _lock: File,
    len: u64,
    appended: usize,
    healthy: bool,
    records: Records,
}

/// What the file says.
#[derive(Debug, Default)]
struct Records {
    /// When the epoch was retired; `None` while its link lives.
    epochs: BTreeMap<Did, BTreeMap<EpochId, Option<u64>>>,
    revoked: BTreeSet<Did>,
}

impl Ledger {
    /// Locks and reads the ledger, makes one when there is none, retires every epoch that was live (no link survives a
    /// restart) and rewrites the file to what it holds. `now` is a Unix second.
    ///
    /// # Errors
    /// [`LedgerError`]; nothing was changed when a line is damaged.
    pub fn open(path: &Path, now: u64) -> Result<Self, LedgerError> {
        let lock_path = with_suffix(path, ".lock");
        let failed = |source| LedgerError::Io {
            file: lock_path.clone(),
            source,
        };
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(failed)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(LedgerError::Locked(lock_path)),
            Err(errno) => return Err(failed(errno.into())),
        }
        let mut records = Records::read(path)?;
        records.retire_all(now);
        records.forget(now);
        let (file, len) = records.rewrite(path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            _lock: lock,
            len,
            appended: 0,
            healthy: true,
            records,
        })
    }

    /// Whether every write so far reached the disk.
    pub fn is_healthy(&self) -> bool {
        self.healthy
    }

    /// Whether the router's key was revoked.
    pub fn is_revoked(&self, router: &Did) -> bool {
        self.records.revoked.contains(router)
    }

    /// Whether a link of this router could take this epoch now.
    ///
    /// # Errors
    /// [`LedgerError::Unhealthy`], [`LedgerError::Revoked`], [`LedgerError::EpochReused`], [`LedgerError::EpochLimit`].
    pub fn check_epoch(
        &mut self,
        router: &Did,
        epoch: &EpochId,
        now: u64,
    ) -> Result<(), LedgerError> {
        if !self.healthy {
            return Err(LedgerError::Unhealthy);
        }
        if self.is_revoked(router) {
            return Err(LedgerError::Revoked);
        }
        self.records.forget(now);
        // An epoch is random: another router's is as good a reason to refuse as this one's.
        if self
            .records
            .epochs
            .values()
            .any(|epochs| epochs.contains_key(epoch))
        {
            return Err(LedgerError::EpochReused);
        }
        let count = self.records.epochs.get(router).map_or(0, BTreeMap::len);
        if count >= MAX_EPOCHS_PER_ROUTER {
            return Err(LedgerError::EpochLimit);
        }
        Ok(())
    }

    /// Records the epoch of a new link. When this returns, the record is on the disk.
    ///
    /// # Errors
    /// As [`Self::check_epoch`], or the write that failed.
    pub fn record_epoch(
        &mut self,
        router: &Did,
        epoch: &EpochId,
        now: u64,
    ) -> Result<(), LedgerError> {
        self.check_epoch(router, epoch, now)?;
        self.append(&Line::Epoch(*router, *epoch))?;
        let epochs = self.records.epochs.entry(*router).or_default();
        epochs.insert(*epoch, None);
        Ok(())
    }

    /// Notes that the epoch's link ended at `now`. One that is not live is left alone.
    ///
    /// # Errors
    /// The write that failed; the epoch then counts as live until the next start, which retires it.
    pub fn retire(&mut self, router: &Did, epoch: &EpochId, now: u64) -> Result<(), LedgerError> {
        let state = self
            .records
            .epochs
            .get(router)
            .and_then(|epochs| epochs.get(epoch));
        if state != Some(&None) {
            return Ok(());
        }
        self.append(&Line::Retire(*router, *epoch, now))?;
        if let Some(epochs) = self.records.epochs.get_mut(router) {
            epochs.insert(*epoch, Some(now));
        }
        Ok(())
    }

    /// Revokes a router's key for good.
    ///
    /// # Errors
    /// The write that failed; the key counts as revoked in this process all the same.
    pub fn revoke(&mut self, router: &Did) -> Result<(), LedgerError> {
        if !self.records.revoked.insert(*router) {
            return Ok(());
        }
        self.append(&Line::Revoke(*router))
    }

    /// Writes one line and waits for the disk.
    fn append(&mut self, line: &Line) -> Result<(), LedgerError> {
        if !self.healthy {
            return Err(LedgerError::Unhealthy);
        }
        let text = line.to_text();
        let outcome = self.try_append(text.as_bytes());
        if outcome.is_err() {
            self.healthy = false;
            // Half a line would keep the next start from reading the file. Shortening works on a full disk too.
            let _ = self.file.set_len(self.len);
            let _ = self.file.sync_data();
        }
        outcome
    }

    fn try_append(&mut self, text: &[u8]) -> Result<(), LedgerError> {
        let more = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if self.len.saturating_add(more) > MAX_LEDGER_LEN || self.appended >= REWRITE_AFTER {
            let (file, len) = self.records.rewrite(&self.path)?;
            self.file = file;
            self.len = len;
            self.appended = 0;
        }
        if self.len.saturating_add(more) > MAX_LEDGER_LEN {
            return Err(LedgerError::TooLong);
        }
        let failed = |source| LedgerError::Io {
            file: self.path.clone(),
            source,
        };
        self.file.write_all(text).map_err(failed)?;
        self.file.sync_data().map_err(failed)?;
        self.len = self.len.saturating_add(more);
        self.appended += 1;
        Ok(())
    }
}

impl Records {
    fn read(path: &Path) -> Result<Self, LedgerError> {
        let failed = |source| LedgerError::Io {
            file: path.to_owned(),
            source,
        };
        let mut text = Vec::new();
        match File::open(path) {
            Ok(file) => {
                let mut bounded = file.take(MAX_LEDGER_LEN + 1);
                bounded.read_to_end(&mut text).map_err(failed)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_LEDGER_LEN {
            return Err(LedgerError::TooLong);
        }
        let mut records = Self::default();
        for (index, bytes) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
            Line::parse(bytes)
                .and_then(|line| records.apply(line))
                .map_err(|what| LedgerError::Damaged {
                    file: path.to_owned(),
                    line: index + 1,
                    what,
                })?;
        }
        Ok(records)
    }

    fn apply(&mut self, line: Line) -> Result<(), &'static str> {
        match line {
            Line::Epoch(router, epoch) => {
                let epochs = self.epochs.entry(router).or_default();
                epochs.insert(epoch, None);
            }
            Line::Retire(router, epoch, when) => {
                let state = self
                    .epochs
                    .get_mut(&router)
                    .and_then(|epochs| epochs.get_mut(&epoch));
                *state.ok_or("retires an epoch that is not recorded")? = Some(when);
            }
            Line::Revoke(router) => {
                self.revoked.insert(router);
            }
            Line::Claim => {}
        }
        Ok(())
    }

    fn retire_all(&mut self, now: u64) {
        let states = self.epochs.values_mut().flat_map(BTreeMap::values_mut);
        for state in states.filter(|state| state.is_none()) {
            *state = Some(now);
        }
    }

    /// Drops what no proof can refer to any more. A time that lies in the future (the clock was set back) is kept.
    fn forget(&mut self, now: u64) {
        let remembered = |retired: &Option<u64>| {
            retired.is_none_or(|when| now < when.saturating_add(EPOCH_MEMORY))
        };
        self.epochs.retain(|_, epochs| {
            epochs.retain(|_, retired| remembered(retired));
            !epochs.is_empty()
        });
    }

    /// Replaces the file by one that holds these records alone; returns it, open for appending, and its length.
    fn rewrite(&self, path: &Path) -> Result<(File, u64), LedgerError> {
        let next = with_suffix(path, ".next");
        let text = self.to_text();
        let len = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if len > MAX_LEDGER_LEN {
            return Err(LedgerError::TooLong);
        }
        let replace = || {
            // Left by a rewrite that was interrupted.
            match std::fs::remove_file(&next) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = OpenOptions::new()
                .append(true)
                .create_new(true)
                .mode(0o600)
                .open(&next)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&next, path)?;
            File::open(folder(path))?.sync_all()?;
            Ok(file)
        };
        let file = replace().map_err(|source| LedgerError::Io {
            file: path.to_owned(),
            source,
        })?;
        Ok((file, len))
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for router in &self.revoked {
            text.push_str(&Line::Revoke(*router).to_text());
        }
        for (router, epochs) in &self.epochs {
            for (epoch, retired) in epochs {
                text.push_str(&Line::Epoch(*router, *epoch).to_text());
                if let Some(when) = retired {
                    text.push_str(&Line::Retire(*router, *epoch, *when).to_text());
                }
            }
        }
        text
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests;
