//! End-to-end exercise of the router against real toolsheds.
//!
//! One [`Stage`] is a throw-away deployment in a folder of its own: keys, certificates, a directory file, the router and two
//! toolsheds, each a process as an operator would start it. A [`gates::Gate`] drives it from outside, as clients do and as the
//! kernel sees it, and says in one line of JSON whether what a user would notice holds ([`report`]).
//!
//! Gates speak through `memory-client` where a well-behaved client is meant, and through [`raw::RawClient`] where the bytes
//! themselves matter. Whatever a gate needs from the host (memory, descriptors, children) comes from [`proc`].
//!
//! A further gate is a function in the file of its group under `gates/` and an entry in [`gates::ALL`].
#![forbid(unsafe_code)]

pub mod error;
pub mod gates;
pub mod log;
pub mod proc;
pub mod processes;
pub mod proxy;
pub mod raw;
pub mod report;
pub mod rogue;
pub mod run;
pub mod stage;
pub mod tally;

pub use error::{Context, GateError};
pub use run::run;
pub use stage::{Programs, Stage};
