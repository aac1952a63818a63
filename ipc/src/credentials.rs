//! Who is at the other end, according to the kernel.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The process that made or connected the other end of a channel, as it was at that moment (`SO_PEERCRED`).
///
/// For a socket pair this is the process that made the pair, for both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process ID, or 0 when the peer is outside of this process's PID namespace.
    pub pid: u32,
    /// Effective user ID.
    pub uid: u32,
    /// Effective group ID.
    pub gid: u32,
}

/// Reads the credentials of the peer of a connected UNIX socket.
///
/// `rustix` has a call for this, but its process ID type has no zero, and zero is what the kernel reports for a peer in
/// another PID namespace, so the call is made here.
#[allow(unsafe_code)]
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: getsockopt(2) writes at most `length` bytes to the fourth argument, which is a live, exclusively borrowed
    // `ucred` of exactly that size, any bit pattern of which is valid; the fifth is a live, exclusively borrowed
    // `socklen_t`; the descriptor is open for as long as it is borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials {
        pid: u32::try_from(credentials.pid).unwrap_or(0),
        uid: credentials.uid,
        gid: credentials.gid,
    })
}
