//! Getting rid of descriptors that a parent left open.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::SandboxError;

/// Closes every descriptor above 2 but those in `keep`.
///
/// To be called at the very beginning of `main`, before anything is opened and before any thread or runtime is started: a
/// descriptor that is in use by something in this process and not in `keep` would be closed under its owner.
///
/// # Errors
/// [`SandboxError::CloseInherited`]. Some may have been closed by then.
pub fn close_inherited(keep: &[BorrowedFd<'_>]) -> Result<(), SandboxError> {
    let mut kept: Vec<u32> = keep
        .iter()
        // An open descriptor is never negative.
        .filter_map(|descriptor| u32::try_from(descriptor.as_raw_fd()).ok())
        .filter(|descriptor| *descriptor >= FIRST)
        .collect();
    kept.sort_unstable();
    let mut first = FIRST;
    for descriptor in kept {
        if first < descriptor {
            close_range(first, descriptor.saturating_sub(1))?;
        }
        first = descriptor.saturating_add(1);
    }
    close_range(first, u32::MAX)
}

#[allow(unsafe_code)]
fn close_range(first: u32, last: u32) -> Result<(), SandboxError> {
    // SAFETY: close_range(2) takes two numbers and flags, and reads and writes no memory of this process. That nothing here
    // owns a descriptor of the range is what `close_inherited` demands of its caller: it runs before anything is opened.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(SandboxError::CloseInherited(io::Error::last_os_error()))
    }
}

/// Lower ones are standard input, output and error.
const FIRST: u32 = 3;
