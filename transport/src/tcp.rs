//! Options of a TCP socket that carries a long-lived WebSocket.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// How a dead peer is found on an otherwise quiet socket: half-open peers after sleep or NAT expiry send neither FIN nor
/// RST, only silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// Quiet time before the first probe. Whole seconds, 1 s at least.
    pub idle: Duration,
    /// Time between probes. Whole seconds, 1 s at least.
    pub interval: Duration,
    /// Unanswered probes that end the connection.
    pub probes: u32,
    /// Time for which sent data or probes may stay unacknowledged (`TCP_USER_TIMEOUT`), in whole milliseconds.
    pub user_timeout: Duration,
}

impl Default for KeepAlive {
    /// Probe after 60 s, every 15 s, four times; give up after 120 s (`docs/protocol.md` section 6.1).
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(15),
            probes: 4,
            user_timeout: Duration::from_secs(120),
        }
    }
}

/// Sets TCP_NODELAY (a frame is written whole, so waiting for more only delays it), SO_KEEPALIVE with `keep_alive`'s times,
/// and TCP_USER_TIMEOUT.
///
/// # Errors
/// The system call that failed. A socket whose peer is already gone may fail so too.
pub fn tune_tcp(socket: impl AsFd, keep_alive: &KeepAlive) -> io::Result<()> {
    let socket = socket.as_fd();
    let user_timeout = u32::try_from(keep_alive.user_timeout.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, keep_alive.idle.max(Duration::from_secs(1)))?;
    sockopt::set_tcp_keepintvl(socket, keep_alive.interval.max(Duration::from_secs(1)))?;
    sockopt::set_tcp_keepcnt(socket, keep_alive.probes.max(1))?;
    sockopt::set_tcp_user_timeout(socket, user_timeout)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_every_option() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        tune_tcp(&socket, &KeepAlive::default()).unwrap();
        assert!(socket.nodelay().unwrap());
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(
            sockopt::tcp_keepidle(&socket).unwrap(),
            Duration::from_secs(60)
        );
        assert_eq!(
            sockopt::tcp_keepintvl(&socket).unwrap(),
            Duration::from_secs(15)
        );
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 4);
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 120_000);
    }
}
