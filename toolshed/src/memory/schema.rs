//! The tables of one space's database and how it is opened.

use super::store::{StoreError, Synchronous};
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// Version of the tables, kept in `user_version`.
const SCHEMA_VERSION: i64 = 1;

/// `commits` and `revisions` are history; `heads` is what it adds up to; `sessions` holds resume tokens, so that a session
/// keeps its identity over a restart. `facts` holds what genesis declared.
const TABLES: &str = "
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE commits (
  seq INTEGER PRIMARY KEY,
  principal TEXT NOT NULL,
  session TEXT NOT NULL,
  local_seq INTEGER NOT NULL,
  digest BLOB NOT NULL,
  UNIQUE (principal, session, local_seq)
);
CREATE TABLE revisions (
  seq INTEGER NOT NULL,
  op_index INTEGER NOT NULL,
  scope TEXT NOT NULL,
  id TEXT NOT NULL,
  op TEXT NOT NULL,
  content TEXT,
  PRIMARY KEY (seq, op_index)
);
CREATE INDEX revisions_of_document ON revisions (scope, id, seq);
CREATE TABLE heads (
  scope TEXT NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  document TEXT,
  slots INTEGER NOT NULL,
  PRIMARY KEY (scope, id)
);
CREATE TABLE sessions (
  opening INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  principal TEXT NOT NULL,
  token TEXT NOT NULL,
  earlier_token TEXT
);
CREATE INDEX sessions_of_principal ON sessions (principal, opening);
";

/// Opens a space's database; makes it when `create` says so, and fails on a missing one otherwise.
pub(super) fn open(
    path: &Path,
    create: bool,
    synchronous: Synchronous,
) -> Result<Connection, StoreError> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let mut connection = Connection::open_with_flags(path, flags)?;
    // Exclusive before WAL: no shared-memory file, and a second process cannot write behind this one's caches.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = match synchronous {
        Synchronous::Normal => "NORMAL",
        Synchronous::Full => "FULL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    // Many spaces are open at once; each gets half a mebibyte of pages.
    connection.pragma_update(None, "cache_size", -512)?;
    connection.set_prepared_statement_cache_capacity(24);
    let transaction = connection.transaction()?;
    let version: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    match version {
        0 => {
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        }
        SCHEMA_VERSION => {}
        other => return Err(StoreError::Version(other)),
    }
    transaction.commit()?;
    Ok(connection)
}
