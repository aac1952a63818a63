//! Named sockets, for roles that do not descend from one another.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};

use crate::credentials::peer_credentials;
use crate::registration::Registered;
use crate::{Channel, ChannelError};

/// A socket with a path, on which channels are accepted from the users that are allowed to. The path is removed on drop.
#[derive(Debug)]
pub struct NamedListener {
    socket: Registered,
    path: PathBuf,
    /// Device and inode of the path, so that a successor's socket is not removed.
    identity: (u64, u64),
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
        let address = address_of(path)?;
        prepare_directory(path)?;
        remove_stale(path, &address)?;
        let failed = |source: io::Error| ChannelError::Bind {
            path: path.to_owned(),
            source,
        };
        let socket = listen_at(&address).map_err(|errno| match errno {
            Errno::ADDRINUSE => ChannelError::PathInUse {
                path: path.to_owned(),
            },
            errno => failed(errno.into()),
        })?;
        let socket = Registered::new(socket).map_err(failed)?;
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
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
        &self.path
    }

    fn admit(&self, socket: OwnedFd) -> Result<Channel, ChannelError> {
        let peer = peer_credentials(socket.as_fd()).map_err(ChannelError::Accept)?;
        if !self.allowed_uids.contains(&peer.uid) {
            return Err(ChannelError::PeerRefused { uid: peer.uid });
        }
        Channel::from_fd(socket)
    }
}

impl Drop for NamedListener {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if ours {
            // A path that stays is found stale by the next listener.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Connects to a [`NamedListener`]. Does not wait and does not retry: whether and for how long to is the caller's affair.
///
/// # Errors
/// [`ChannelError::Connect`] when nobody listens there (not found or refused), when the listener does not keep up (would
/// block), or when it is not allowed; [`ChannelError::PathInvalid`]; otherwise as [`Channel::from_fd`].
pub fn connect(path: &Path) -> Result<Channel, ChannelError> {
    let address = address_of(path)?;
    let socket = try_connect(&address).map_err(|errno| ChannelError::Connect {
        path: path.to_owned(),
        source: errno.into(),
    })?;
    Channel::from_fd(socket)
}

fn address_of(path: &Path) -> Result<SocketAddrUnix, ChannelError> {
    let invalid = || ChannelError::PathInvalid {
        path: path.to_owned(),
    };
    // The empty path would be an unnamed address.
    if path.file_name().is_none() {
        return Err(invalid());
    }
    SocketAddrUnix::new(path).map_err(|_| invalid())
}

fn prepare_directory(path: &Path) -> Result<(), ChannelError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => {
            return Err(ChannelError::Bind {
                path: path.to_owned(),
                source,
            });
        }
    }
    let own = rustix::process::geteuid().as_raw();
    // Not followed: a link could be turned elsewhere between this look and the bind.
    let private = fs::symlink_metadata(directory).is_ok_and(|metadata| {
        metadata.is_dir() && metadata.uid() == own && metadata.mode() & 0o077 == 0
    });
    if private {
        Ok(())
    } else {
        Err(ChannelError::DirectoryNotPrivate {
            path: directory.to_owned(),
        })
    }
}

/// Removes what a dead process left at the path: a socket on which nobody listens.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ChannelError> {
    let in_use = || ChannelError::PathInUse {
        path: path.to_owned(),
    };
    let failed = |source: io::Error| ChannelError::Bind {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err(in_use()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    }
    match try_connect(address) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        Err(Errno::NOENT) => Ok(()),
        // Answered, too busy to answer, or a socket of another type.
        _ => Err(in_use()),
    }
}

fn listen_at(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let socket = new_socket()?;
    // The path gets the mode of the socket, less the umask, so that it never exists with a wider one.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn try_connect(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let socket = new_socket()?;
    loop {
        return match rustix::net::connect(&socket, address) {
            Ok(()) => Ok(socket),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno),
        };
    }
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Connections waiting to be accepted. A handful of roles connect, once each.
const BACKLOG: i32 = 16;
