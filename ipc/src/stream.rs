//! Named byte streams, for what is read by more than the roles: an operator's command, a reader of metrics.

use std::path::Path;

use rustix::net::SocketType;
use tokio::net::{UnixListener, UnixStream};

use crate::ChannelError;
use crate::named::NamedPath;

/// As [`crate::NamedListener`], with streams of bytes instead of packets.
#[derive(Debug)]
pub struct StreamListener {
    socket: UnixListener,
    /// Removed on drop.
    _named: NamedPath,
    allowed_uids: Vec<u32>,
}

impl StreamListener {
    /// Listens at `path`, as [`crate::NamedListener::bind`] does.
    ///
    /// # Errors
    /// As [`crate::NamedListener::bind`].
    pub fn bind(path: &Path, allowed_uids: &[u32]) -> Result<Self, ChannelError> {
        let failed = |source| ChannelError::Bind {
            path: path.to_owned(),
            source,
        };
        // Registering outside of a runtime would panic.
        tokio::runtime::Handle::try_current()
            .map_err(|error| failed(std::io::Error::other(error)))?;
        let (named, socket) = NamedPath::listen(path, SocketType::STREAM)?;
        Ok(Self {
            socket: UnixListener::from_std(socket.into()).map_err(failed)?,
            _named: named,
            allowed_uids: allowed_uids.to_vec(),
        })
    }

    /// Waits for the next connection of an allowed user. Cancel-safe.
    ///
    /// # Errors
    /// As [`crate::NamedListener::accept`].
    pub async fn accept(&self) -> Result<UnixStream, ChannelError> {
        let (stream, _) = self.socket.accept().await.map_err(ChannelError::Accept)?;
        let uid = stream.peer_cred().map_err(ChannelError::Accept)?.uid();
        if self.allowed_uids.contains(&uid) {
            Ok(stream)
        } else {
            Err(ChannelError::PeerRefused { uid })
        }
    }
}
