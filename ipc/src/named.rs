//! Paths of named sockets: private, taken over from the dead, given up at the end.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::ChannelError;

/// A path that a socket of this process listens at. It is removed on drop.
#[derive(Debug)]
pub(crate) struct NamedPath {
    path: PathBuf,
    /// Device and inode of the path, so that a successor's socket is not removed.
    identity: (u64, u64),
}

impl NamedPath {
    /// Listens at `path` with mode 0600. The directory is made with mode 0700 if it is not there (its parent has to be), and
    /// has to be a directory of this user with mode 0700 otherwise. A socket left at the path by a process that died is
    /// replaced; nothing else is.
    pub(crate) fn listen(path: &Path, kind: SocketType) -> Result<(Self, OwnedFd), ChannelError> {
        let address = address_of(path)?;
        prepare_directory(path)?;
        remove_stale(path, &address, kind)?;
        let failed = |source: io::Error| ChannelError::Bind {
            path: path.to_owned(),
            source,
        };
        let socket = listen_at(&address, kind).map_err(|errno| match errno {
            Errno::ADDRINUSE => ChannelError::PathInUse {
                path: path.to_owned(),
            },
            errno => failed(errno.into()),
        })?;
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        let named = Self {
            path: path.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
        };
        Ok((named, socket))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for NamedPath {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if ours {
            // A path that stays is found stale by the next listener.
            let _ = fs::remove_file(&self.path);
        }
    }
}

pub(crate) fn address_of(path: &Path) -> Result<SocketAddrUnix, ChannelError> {
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
fn remove_stale(
    path: &Path,
    address: &SocketAddrUnix,
    kind: SocketType,
) -> Result<(), ChannelError> {
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
    match try_connect(address, kind) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        Err(Errno::NOENT) => Ok(()),
        // Answered, too busy to answer, or a socket of another type.
        _ => Err(in_use()),
    }
}

fn listen_at(address: &SocketAddrUnix, kind: SocketType) -> rustix::io::Result<OwnedFd> {
    let socket = new_socket(kind)?;
    // The path gets the mode of the socket, less the umask, so that it never exists with a wider one.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

pub(crate) fn try_connect(
    address: &SocketAddrUnix,
    kind: SocketType,
) -> rustix::io::Result<OwnedFd> {
    let socket = new_socket(kind)?;
    loop {
        return match rustix::net::connect(&socket, address) {
            Ok(()) => Ok(socket),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno),
        };
    }
}

fn new_socket(kind: SocketType) -> rustix::io::Result<OwnedFd> {
    socket_with(
        AddressFamily::UNIX,
        kind,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Connections waiting to be accepted. A handful of roles connect, once each.
const BACKLOG: i32 = 16;
