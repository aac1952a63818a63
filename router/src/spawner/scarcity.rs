//! What this process has run out of.

use memory_ipc::ChannelError;
use memory_wire::Reason;
use rustix::io::Errno;

/// What to raise when this process is out of descriptors.
pub(super) const DESCRIPTOR_SETTING: &str = "RLIMIT_NOFILE (LimitNOFILE= of the unit)";

/// What this process has run out of, if that is why something failed, and the setting that gives it more.
pub(super) fn scarcity(error: &ChannelError) -> Option<(Reason, &'static str)> {
    let system =
        std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    let errno = system
        .and_then(std::io::Error::raw_os_error)
        .map(Errno::from_raw_os_error);
    match errno? {
        Errno::AGAIN => Some((
            Reason::ProcessLimit,
            "RLIMIT_NPROC or pids.max (TasksMax= of the unit)",
        )),
        Errno::MFILE | Errno::NFILE => Some((Reason::DescriptorLimit, DESCRIPTOR_SETTING)),
        Errno::NOMEM => Some((Reason::Internal, "memory (MemoryMax= of the unit)")),
        _ => None,
    }
}
