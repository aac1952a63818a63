//! Restrictions a role puts on itself, at the very beginning of `main`, and what it may know about other processes.
//!
//! Nothing here grants anything, needs a privilege, or can be undone by the process that asked for it (the umask excepted).
//! The order is fixed and written once per kind of role:
//!
//! | | [`prepare_worker`] | [`prepare_agent`] | [`prepare_key_holder`] |
//! | --- | --- | --- | --- |
//! | close every inherited descriptor above 2 that is not wanted | yes | yes | yes |
//! | umask 077, no core files | yes | yes | yes |
//! | no new privileges by exec | yes | yes | yes |
//! | not readable and not traceable by processes of the same user | | | yes |
//!
//! A supervised role calls [`die_with_parent`] beside these.
#![deny(unsafe_code)]

mod descriptors;
mod error;
mod features;
mod heap;
mod memory;
mod process;

pub use descriptors::close_inherited;
pub use error::SandboxError;
pub use features::{has_seccomp_filter, landlock_abi};
pub use heap::release_free_memory;
pub use memory::{Memory, memory_of};
pub use process::{
    die_with_parent, protect_secrets, restrict, set_oom_score_adj, set_process_name,
};

use std::os::fd::BorrowedFd;

/// Prepares a worker, whose one inherited descriptor is its channel at 0 (1 and 2 are the log).
///
/// # Errors
/// The first step that failed. The process must not go on then.
pub fn prepare_worker() -> Result<(), SandboxError> {
    close_inherited(&[])?;
    restrict()
}

/// Prepares a role that holds no key: listener, spawner, directory broker. `keep` are the descriptors that it was given by
/// its service manager.
///
/// # Errors
/// The first step that failed. The process must not go on then.
pub fn prepare_agent(keep: &[BorrowedFd<'_>]) -> Result<(), SandboxError> {
    close_inherited(keep)?;
    restrict()
}

/// Prepares a role that holds a key: key agent, link agent. To be called before the key is read.
///
/// # Errors
/// The first step that failed. The process must not go on, and not read its key, then.
pub fn prepare_key_holder(keep: &[BorrowedFd<'_>]) -> Result<(), SandboxError> {
    close_inherited(keep)?;
    restrict()?;
    protect_secrets()
}
