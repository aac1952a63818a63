//! A subset of the Memory protocol over SQLite: sessions, commits, queries, watches and access control.
//!
//! The engine is synchronous and has no sockets and no clock. The host gives it one message at a time with what it knows at
//! that moment ([`Turn`]), and carries away what comes out. One database per space; sessions live in memory, their resume
//! tokens and every commit in the database.
//!
//! | module | subject |
//! | --- | --- |
//! | `engine` | the engine's face: turns, authority, publication |
//! | `open`, `watch`, `query`, `transact` | the requests |
//! | `session`, `effect`, `holdings` | live sessions and what they are told |
//! | `commit`, `patch`, `pointer`, `document` | the forms of commits, patches and documents |
//! | `acl`, `genesis`, `token` | who may, what is declared, how a session is resumed |
//! | `store`, `schema`, `sql` | spaces on disk |

mod acl;
mod answer;
mod commit;
mod document;
mod effect;
mod engine;
mod genesis;
mod holdings;
mod open;
mod patch;
mod pointer;
mod query;
mod schema;
mod session;
mod sql;
mod store;
mod token;
mod transact;
mod watch;

#[cfg(test)]
mod tests;

pub use answer::{BackendId, Output};
pub use engine::{Effects, Memory, MemoryError, MemoryOptions, SessionUsage, Turn};
pub use session::WatchLimits;
pub use store::{StoreError, Synchronous};
