//! Dialling a toolshed. Nothing is ever sent or read on the socket here.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use memory_wire::Reason;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown, sockopt};
use tokio::net::TcpStream;

/// Connects to `address` within `deadline`, without waiting for anything else. A dead peer is found by keep-alive probes and
/// by sent data that stays unacknowledged for `user_timeout` (`docs/protocol.md` section 6.1).
///
/// # Errors
/// [`Reason::DialFailed`], [`Reason::DescriptorLimit`].
pub(crate) async fn dial(
    address: SocketAddr,
    deadline: Duration,
    user_timeout: Duration,
) -> Result<OwnedFd, Reason> {
    let connected = tokio::time::timeout(deadline, TcpStream::connect(address)).await;
    let stream = connected
        .map_err(|_| Reason::DialFailed)?
        .map_err(|error| fault(&error))?;
    tune(&stream, user_timeout).map_err(|_| Reason::DialFailed)?;
    Ok(stream.into_std().map_err(|_| Reason::DialFailed)?.into())
}

/// Whether it is the toolshed that cannot be reached, or this process that has no descriptor to reach it with.
fn fault(error: &io::Error) -> Reason {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE) => Reason::DescriptorLimit,
        _ => Reason::DialFailed,
    }
}

/// Ends a data socket in both directions, for whoever else holds it too.
pub(crate) fn end(socket: &OwnedFd) {
    // It may have ended by itself.
    let _ = shutdown(socket, Shutdown::Both);
}

fn tune(stream: &TcpStream, user_timeout: Duration) -> io::Result<()> {
    let user_timeout = u32::try_from(user_timeout.as_millis()).unwrap_or(u32::MAX);
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, user_timeout)?;
    Ok(())
}

/// Quiet time before the first probe.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between probes.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Unanswered probes that end the connection.
const KEEP_ALIVE_PROBES: u32 = 4;
