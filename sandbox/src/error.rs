//! Which restriction could not be put in place.

use std::io;

/// A restriction that the kernel refused, or a fact that it did not tell.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// close_range(2) failed: before Linux 5.9, or denied by a filter.
    #[error("inherited descriptors could not be closed")]
    CloseInherited(#[source] io::Error),
    /// setrlimit(2) failed.
    #[error("core files could not be forbidden")]
    CoreLimit(#[source] io::Error),
    /// prctl(PR_SET_NO_NEW_PRIVS) failed.
    #[error("new privileges could not be given up")]
    NoNewPrivileges(#[source] io::Error),
    /// prctl(PR_SET_DUMPABLE) failed.
    #[error("the process could not be made unreadable for others")]
    Dumpable(#[source] io::Error),
    /// prctl(PR_SET_PDEATHSIG) failed.
    #[error("the death of the parent could not be tied to this process")]
    ParentDeathSignal(#[source] io::Error),
    /// The parent was gone before its death could be tied to this process, which has to end by itself.
    #[error("the parent process is gone")]
    ParentGone,
    /// `/proc/self/oom_score_adj` could not be written: below the present value without CAP_SYS_RESOURCE, mostly.
    #[error("the out-of-memory score could not be set to {value}")]
    OomScore {
        /// The value asked for.
        value: i16,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// `/proc/PID/smaps_rollup` could not be read: no such process, or not ours to look into.
    #[error("the memory of process {pid} could not be read")]
    Memory {
        /// The process.
        pid: u32,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
