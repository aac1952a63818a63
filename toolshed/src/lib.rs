//! Reference toolshed: private listener, routed host and a Memory subset over SQLite.
//!
//! [`host`] is what a router meets, [`memory`] what its clients' requests mean. [`serve()`] runs both by a policy file,
//! [`fixture::run`] as the exercise asks.
#![forbid(unsafe_code)]

pub mod fixture;
pub mod host;
pub mod memory;
mod serve;

pub use host::{Host, HostError, HostOptions, Operator};
pub use serve::serve;

use std::io;
use tracing_subscriber::EnvFilter;

/// Sends this process's log to standard error, one JSON object a line. Standard output stays free for the exercise.
pub fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // A second call finds a log in place already, which is as good.
    let _ = tracing_subscriber::fmt()
        .json()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .try_init();
}

/// The one-threaded runtime of a toolshed.
fn runtime() -> Result<tokio::runtime::Runtime, HostError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(HostError::Runtime)
}
