//! Tests of the engine as its host uses it.
//!
//! Compiled under `#[cfg(test)]` alone.

mod documented;
mod model;
mod open;
pub(super) mod support;
mod transact;
mod watch;
