//! Public sockets: binding them, and accepting without ever spinning.

use std::cell::RefCell;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::backoff::Backoff;
use crate::exit::Failure;

/// Connections that the kernel completes and holds until they are accepted; it cuts this to `net.core.somaxconn`.
const BACKLOG: u32 = 1024;

/// Pauses after the system could not accept.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Binds every public address.
///
/// # Errors
/// With the address that could not be had.
pub(super) fn bind_all(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, Failure> {
    let ipv4_ports: Vec<u16> = addresses
        .iter()
        .filter(|address| address.is_ipv4())
        .map(SocketAddr::port)
        .collect();
    addresses
        .iter()
        .map(|address| {
            // `[::]` takes IPv4 too, unless the same port is to be had for IPv4 by itself.
            let only_v6 =
                address.is_ipv6() && address.port() != 0 && ipv4_ports.contains(&address.port());
            bind(*address, only_v6)
                .map_err(|error| Failure::io(format!("cannot listen on {address}"), error))
        })
        .collect()
}

fn bind(address: SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // Connections of a listener that was just here must not keep its successor from its address.
    socket.set_reuseaddr(true)?;
    if only_v6 {
        set_ipv6_v6only(&socket, true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts on one socket.
#[derive(Debug)]
pub(super) struct Acceptor {
    socket: TcpListener,
    backoff: Backoff,
}

/// Why nothing was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AcceptFailure {
    /// Out of file descriptors, this process or the system.
    Descriptors(Errno),
    /// Out of memory, this process's group or the kernel.
    Memory(Errno),
    /// Something else.
    Other(Errno),
}

impl Acceptor {
    pub(super) fn new(socket: TcpListener) -> Self {
        Self {
            socket,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
        }
    }

    /// Waits for the next connection. Connections that are gone before they are accepted are passed over. Cancel-safe.
    ///
    /// # Errors
    /// [`AcceptFailure`]: the caller makes [`Acceptor::pause`] before it asks again.
    pub(super) async fn accept(
        &mut self,
        spare: &Spare,
    ) -> Result<(TcpStream, SocketAddr), AcceptFailure> {
        loop {
            let error = match self.socket.accept().await {
                Ok(accepted) => {
                    self.backoff.reset();
                    return Ok(accepted);
                }
                Err(error) => error,
            };
            let errno = error
                .raw_os_error()
                .map_or(Errno::IO, Errno::from_raw_os_error);
            match errno {
                Errno::MFILE | Errno::NFILE => {
                    spare.shed(&self.socket).await;
                    return Err(AcceptFailure::Descriptors(errno));
                }
                Errno::NOMEM | Errno::NOBUFS => return Err(AcceptFailure::Memory(errno)),
                // Errors of the connection, not of the socket: see accept(2), "Error handling".
                Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::INTR
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NONET
                | Errno::OPNOTSUPP
                | Errno::PERM => tokio::task::yield_now().await,
                _ => return Err(AcceptFailure::Other(errno)),
            }
        }
    }

    /// The pause after a failure: longer with each.
    pub(super) async fn pause(&mut self) {
        tokio::time::sleep(self.backoff.pause()).await;
    }
}

/// One descriptor kept in reserve. Without a free one a connection cannot even be turned away: it would stay at the head of
/// the queue, its client waiting for nothing.
#[derive(Debug)]
pub(super) struct Spare(RefCell<Option<File>>);

impl Spare {
    pub(super) fn new() -> Result<Self, Failure> {
        let file =
            File::open("/dev/null").map_err(|error| Failure::io("cannot open /dev/null", error))?;
        Ok(Self(RefCell::new(Some(file))))
    }

    /// Gives the spare descriptor up for as long as it takes to accept one connection and close it.
    async fn shed(&self, socket: &TcpListener) {
        drop(self.0.take());
        let attempt = poll_fn(|context| Poll::Ready(socket.poll_accept(context))).await;
        drop(attempt);
        // None when somebody else was faster; the next time tries again.
        self.0.replace(File::open("/dev/null").ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_families_of_one_port_can_be_listed() {
        let port = bind_all(&["127.0.0.1:0".parse().unwrap()]).unwrap()[0]
            .local_addr()
            .unwrap()
            .port();
        let addresses =
            [format!("0.0.0.0:{port}"), format!("[::]:{port}")].map(|text| text.parse().unwrap());
        let sockets = bind_all(&addresses).unwrap();
        assert_eq!(sockets.len(), 2);
    }

    #[tokio::test]
    async fn an_address_in_use_is_named() {
        let held = bind_all(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = held[0].local_addr().unwrap();
        let failure = bind_all(&[address]).unwrap_err();
        assert_eq!(failure.exit, crate::exit::Exit::TryAgain);
        assert!(
            failure.story().contains(&address.to_string()),
            "{}",
            failure.story()
        );
    }

    #[tokio::test]
    async fn shedding_closes_one_waiting_connection_and_keeps_a_spare() {
        let sockets = bind_all(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = sockets[0].local_addr().unwrap();
        let spare = Spare::new().unwrap();
        let client = TcpStream::connect(address).await.unwrap();
        sockets[0].accept().await.unwrap();
        let waiting = TcpStream::connect(address).await.unwrap();
        // The connection is in the queue as soon as connect has returned, but the runtime learns of it on its own.
        let mut byte = [0];
        loop {
            spare.shed(&sockets[0]).await;
            match waiting.try_read(&mut byte) {
                Ok(0) => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                _ => tokio::task::yield_now().await,
            }
        }
        assert!(spare.0.borrow().is_some());
        drop(client);
    }
}
