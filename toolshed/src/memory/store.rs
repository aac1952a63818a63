//! The store: one database file per space, a bounded number of them open.

use super::acl::{Acl, AclState};
use super::schema;
use super::sql;
use memory_wire::Did;
use rusqlite::Connection;
use serde_json::Value;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// When SQLite waits for the disk. With either, a killed process loses nothing that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// At checkpoints: a power failure may lose the newest commits, never consistency.
    #[default]
    Normal,
    /// At every commit.
    Full,
}

/// Why the store failed. None of it is the client's fault.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The store directory cannot be made or read.
    #[error("{}: store directory: {source}", directory.display())]
    Directory {
        /// Which.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// SQLite failed.
    #[error("database: {0}")]
    Database(#[from] rusqlite::Error),
    /// What is stored is not what this program writes.
    #[error("stored content is damaged: {0}")]
    Damaged(&'static str),
    /// The database was written by another version of this program.
    #[error("database has version {0}")]
    Version(i64),
    /// The operating system gave no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

fn unusable(directory: &Path) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::Directory {
        directory: directory.to_owned(),
        source,
    }
}

/// All spaces of one toolshed.
#[derive(Debug)]
pub(super) struct Store {
    directory: PathBuf,
    synchronous: Synchronous,
    max_open: usize,
    open: HashMap<Did, (Space, u64)>,
    /// Counts uses, to find the least recently used space.
    tick: u64,
}

impl Store {
    pub(super) fn open(
        directory: &Path,
        synchronous: Synchronous,
        max_open: usize,
    ) -> Result<Self, StoreError> {
        std::fs::create_dir_all(directory).map_err(unusable(directory))?;
        Ok(Self {
            directory: directory.to_owned(),
            synchronous,
            max_open: max_open.max(1),
            open: HashMap::new(),
            tick: 0,
        })
    }

    /// The space, or `None` when it has no store. Never makes one.
    pub(super) fn space(&mut self, did: &Did) -> Result<Option<&mut Space>, StoreError> {
        if !self.open.contains_key(did) {
            let path = self.path(did);
            if !path.try_exists().map_err(unusable(&self.directory))? {
                return Ok(None);
            }
            self.load(did, &path, false)?;
        }
        Ok(self.used(did))
    }

    /// The space; made when it has no store.
    pub(super) fn space_or_new(&mut self, did: &Did) -> Result<&mut Space, StoreError> {
        if !self.open.contains_key(did) {
            let path = self.path(did);
            self.load(did, &path, true)?;
        }
        self.used(did)
            .ok_or(StoreError::Damaged("space vanished while it was opened"))
    }

    /// Closes the space's database; the next use opens it again.
    pub(super) fn close(&mut self, did: &Did) {
        self.open.remove(did);
    }

    /// Closes the databases of every space that `keep` says no to.
    pub(super) fn close_unless(&mut self, keep: impl Fn(&Did) -> bool) {
        self.open.retain(|did, _| keep(did));
    }

    fn used(&mut self, did: &Did) -> Option<&mut Space> {
        self.tick += 1;
        let (space, tick) = self.open.get_mut(did)?;
        *tick = self.tick;
        Some(space)
    }

    fn load(&mut self, did: &Did, path: &Path, create: bool) -> Result<(), StoreError> {
        let connection = schema::open(path, create, self.synchronous)?;
        let space = Space::load(did, connection)?;
        if self.open.len() >= self.max_open {
            let oldest = self.open.iter().min_by_key(|(_, (_, tick))| *tick);
            if let Some(oldest) = oldest.map(|(did, _)| *did) {
                self.open.remove(&oldest);
            }
        }
        self.open.insert(*did, (space, self.tick));
        Ok(())
    }

    /// The key part of the DID is a file name: base58 letters and digits.
    fn path(&self, did: &Did) -> PathBuf {
        let name = did.as_str().rsplit(':').next().unwrap_or_default();
        self.directory.join(format!("{name}.sqlite"))
    }
}

/// One open space.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) connection: Connection,
    /// Number of the newest commit; 0 before genesis.
    pub(super) server_seq: u64,
    /// As of `server_seq`.
    pub(super) acl: AclState,
    pub(super) genesis_root: Option<Value>,
    pub(super) space_kind: Option<String>,
}

impl Space {
    fn load(did: &Did, connection: Connection) -> Result<Self, StoreError> {
        let server_seq = sql::server_seq(&connection)?;
        let genesis_root = sql::fact(&connection, GENESIS_ROOT)?
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|_| StoreError::Damaged("genesis root"))?;
        let space_kind = sql::fact(&connection, SPACE_KIND)?;
        let mut space = Self {
            connection,
            server_seq,
            acl: AclState::Unclaimed,
            genesis_root,
            space_kind,
        };
        space.reload_acl(did)?;
        Ok(space)
    }

    /// Reads the ACL document again, after a commit that touched it.
    pub(super) fn reload_acl(&mut self, did: &Did) -> Result<(), StoreError> {
        self.acl = if self.server_seq == 0 {
            AclState::Unclaimed
        } else {
            sql::head(&self.connection, &Acl::key(did))?
                .and_then(|head| head.document)
                .and_then(|document| Acl::parse(&document))
                .map_or(AclState::Invalid, AclState::Valid)
        };
        Ok(())
    }
}

/// Name of the stored genesis root.
pub(super) const GENESIS_ROOT: &str = "genesisRoot";
/// Name of the stored space kind.
pub(super) const SPACE_KIND: &str = "spaceKind";
