//! Restrictions on the process as a whole.

use std::ffi::CStr;
use std::fs;

use rustix::fs::Mode;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, getppid, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit, umask,
};
use rustix::thread::{set_name, set_no_new_privs};

use crate::SandboxError;

/// What suits every role: files for this user alone (umask 077), no core files, no new privileges by exec.
///
/// The last holds for the calling thread and what it starts, so this is to be called before the first thread is.
///
/// # Errors
/// [`SandboxError::CoreLimit`] or [`SandboxError::NoNewPrivileges`].
pub fn restrict() -> Result<(), SandboxError> {
    umask(Mode::RWXG | Mode::RWXO);
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none).map_err(|errno| SandboxError::CoreLimit(errno.into()))?;
    set_no_new_privs(true).map_err(|errno| SandboxError::NoNewPrivileges(errno.into()))
}

/// Makes the memory of this process unreadable for others of the same user: no core, no tracing, no `/proc/PID/mem`.
/// Also its `/proc` entries belong to root from then on. Lost by exec.
///
/// # Errors
/// [`SandboxError::Dumpable`].
pub fn protect_secrets() -> Result<(), SandboxError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| SandboxError::Dumpable(errno.into()))
}

/// Has the kernel kill this process when its parent dies. `parent` is the process ID of the parent if it is known (from
/// before this process was made): then it is noticed if the parent died before this call.
///
/// The kernel means the thread that started this process: a supervisor has to start its children from a thread that
/// lives as long as it does. Lost when the user ID changes.
///
/// # Errors
/// [`SandboxError::ParentGone`] or [`SandboxError::ParentDeathSignal`].
pub fn die_with_parent(parent: Option<u32>) -> Result<(), SandboxError> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| SandboxError::ParentDeathSignal(errno.into()))?;
    let actual = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    match parent {
        Some(parent) if actual != Some(parent) => Err(SandboxError::ParentGone),
        _ => Ok(()),
    }
}

/// Sets how readily the kernel kills this process when memory runs out, from -1000 (never) to 1000 (first). Without
/// CAP_SYS_RESOURCE it can be raised only. Inherited by children.
///
/// # Errors
/// [`SandboxError::OomScore`].
pub fn set_oom_score_adj(value: i16) -> Result<(), SandboxError> {
    fs::write("/proc/self/oom_score_adj", value.to_string())
        .map_err(|source| SandboxError::OomScore { value, source })
}

/// Names this process for `ps` and `top`, in at most 15 bytes; a process that was started through `/proc/self/exe` would
/// go by `exe`. To be called from the first thread. A name is a convenience: that it cannot be set is not told.
pub fn set_process_name(name: &CStr) {
    // It fails for a name in memory that cannot be read, which this is not.
    let _ = set_name(name);
}
