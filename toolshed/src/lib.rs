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

pub use memory_log::LevelError;

/// Which log lines are written: a level, or directives `target=level`.
pub const LEVEL_VARIABLE: &str = "MEMORY_TOOLSHED_LOG";

/// Sends this process's log to standard error, one JSON object a line. Standard output stays free for the exercise. Lines that
/// cannot be written are dropped and counted.
///
/// # Errors
/// When [`LEVEL_VARIABLE`] cannot be understood.
pub fn log_to_stderr() -> Result<(), LevelError> {
    let filter = memory_log::filter(LEVEL_VARIABLE)?;
    // A second call finds a log in place already, which is as good.
    let _ = tracing_subscriber::fmt()
        .json()
        .with_env_filter(filter)
        .with_writer(memory_log::stderr)
        .log_internal_errors(false)
        .try_init();
    Ok(())
}

/// The one-threaded runtime of a toolshed.
fn runtime() -> Result<tokio::runtime::Runtime, HostError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(HostError::Runtime)
}
