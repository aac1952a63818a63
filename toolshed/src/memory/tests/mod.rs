//! Tests of the engine as its host uses it.

mod model;
mod open;
pub(super) mod support;
mod transact;
mod watch;
