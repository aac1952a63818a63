//! Sealed memory files: what is larger than a packet, passed as a descriptor.
//!
//! The receiver reads a file that nobody can change any more, and of which it knows the size before it takes memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use rustix::io::{Errno, pread, write};

/// What can go wrong with a sealed memory file.
#[derive(Debug, thiserror::Error)]
pub enum MemfdError {
    /// The file could not be made, filled or sealed.
    #[error("the memory file could not be made")]
    Create(#[source] io::Error),
    /// The descriptor is not a memory file sealed against every change.
    #[error("the descriptor is not a sealed memory file")]
    NotSealed,
    /// The file is larger than its receiver allows.
    #[error("the memory file has {length} bytes, over the limit of {max}")]
    TooLong {
        /// Bytes of the file.
        length: u64,
        /// Bytes allowed.
        max: usize,
    },
    /// The file could not be read.
    #[error("the memory file could not be read")]
    Read(#[source] io::Error),
}

/// Makes a memory file with these contents, sealed against every change, close-on-exec. The name is for
/// `/proc/PID/fd` alone and has at most 249 bytes.
///
/// # Errors
/// [`MemfdError::Create`].
pub fn sealed(name: &str, contents: &[u8]) -> Result<OwnedFd, MemfdError> {
    create(name, contents).map_err(|errno| MemfdError::Create(errno.into()))
}

/// Reads a sealed memory file of at most `max` bytes to its end, from its beginning.
///
/// # Errors
/// [`MemfdError::NotSealed`] and [`MemfdError::TooLong`] before a byte is read or memory is taken; [`MemfdError::Read`].
pub fn read(file: OwnedFd, max: usize) -> Result<Vec<u8>, MemfdError> {
    let seals = fcntl_get_seals(&file).map_err(|_| MemfdError::NotSealed)?;
    if !seals.contains(SEALS) {
        return Err(MemfdError::NotSealed);
    }
    let failed = |errno: Errno| MemfdError::Read(errno.into());
    let size = fstat(&file).map_err(failed)?.st_size;
    let length = u64::try_from(size).unwrap_or(0);
    let size = match usize::try_from(length) {
        Ok(size) if size <= max => size,
        _ => return Err(MemfdError::TooLong { length, max }),
    };
    let mut contents = vec![0; size];
    let mut filled = 0;
    // By offset, because the position is shared with everybody who has the file.
    while let Some(rest) = contents.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match pread(&file, rest, filled as u64) {
            Ok(0) => return Err(MemfdError::Read(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => filled = filled.saturating_add(count),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(contents)
}

fn create(name: &str, contents: &[u8]) -> rustix::io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag.
        Err(Errno::INVAL) => memfd_create(name, flags)?,
        result => result?,
    };
    let mut rest = contents;
    while !rest.is_empty() {
        match write(file.as_fd(), rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::WRITE)
    .union(SealFlags::SEAL);
