//! Named sockets, for roles that do not descend from one another.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, accept_with};

use crate::credentials::peer_credentials;
use crate::named::{NamedPath, address_of, try_connect};
use crate::registration::Registered;
use crate::{Channel, ChannelError};

/// A socket with a path, on which channels are accepted from the users that are allowed to. The path is removed on drop.
#[derive(Debug)]
pub struct NamedListener {
    socket: Registered,
    named: NamedPath,
    allowed_uids: Vec<u32>,
}

impl NamedListener {
    /// Listens at `path` with mode 0600. The directory is made with mode 0700 if it is not there (its parent has to be), and
    /// has to be a directory of this user with mode 0700 otherwise. A socket left at the path by a process that died is
    /// replaced; nothing else is.
    ///
    /// # Errors
    /// [`ChannelError::DirectoryNotPrivate`], [`ChannelError::PathInvalid`], [`ChannelError::PathInUse`], and
    /// [`ChannelError::Bind`] for what the system refuses or outside of a tokio runtime.
    pub fn bind(path: &Path, allowed_uids: &[u32]) -> Result<Self, ChannelError> {
        let (named, socket) = NamedPath::listen(path, SocketType::SEQPACKET)?;
        let socket = Registered::new(socket).map_err(|source| ChannelError::Bind {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            socket,
            named,
            allowed_uids: allowed_uids.to_vec(),
        })
    }

    /// Waits for the next connection of an allowed user. Cancel-safe.
    ///
    /// # Errors
    /// [`ChannelError::PeerRefused`] after closing the connection of somebody else: go on accepting.
    /// [`ChannelError::Accept`] when the system refuses: out of descriptors mostly, so wait a moment before going on.
    pub async fn accept(&self) -> Result<Channel, ChannelError> {
        loop {
            let mut ready = self
                .socket
                .get()
                .readable()
                .await
                .map_err(ChannelError::Accept)?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(self.socket.get().get_ref(), flags) {
                Ok(socket) => return self.admit(socket),
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(ChannelError::Accept(errno.into())),
            }
        }
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.named.path()
    }

    fn admit(&self, socket: OwnedFd) -> Result<Channel, ChannelError> {
        let peer = peer_credentials(socket.as_fd()).map_err(ChannelError::Accept)?;
        if !self.allowed_uids.contains(&peer.uid) {
            return Err(ChannelError::PeerRefused { uid: peer.uid });
        }
        Channel::from_fd(socket)
    }
}

/// Connects to a [`NamedListener`]. Does not wait and does not retry: whether and for how long to is the caller's affair.
///
/// # Errors
/// [`ChannelError::Connect`] when nobody listens there (not found or refused), when the listener does not keep up (would
/// block), or when it is not allowed; [`ChannelError::PathInvalid`]; otherwise as [`Channel::from_fd`].
pub fn connect(path: &Path) -> Result<Channel, ChannelError> {
    let address = address_of(path)?;
    let socket =
        try_connect(&address, SocketType::SEQPACKET).map_err(|errno| ChannelError::Connect {
            path: path.to_owned(),
            source: errno.into(),
        })?;
    Channel::from_fd(socket)
}
