//! What the kernel offers: asked of it, never assumed from its version.

use std::fs;
use std::io;

/// The ABI version of Landlock, from 1; `None` when the kernel was built without it, or started with it off.
#[allow(
    unsafe_code,
    reason = "the system call has no wrapper that only asks for the version"
)]
pub fn landlock_abi() -> Option<u32> {
    // SAFETY: with LANDLOCK_CREATE_RULESET_VERSION the call takes a null attribute and the length 0, reads no memory and
    // makes no descriptor (landlock_create_ruleset(2)).
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Whether processes can have seccomp filters.
///
/// # Errors
/// When the own status cannot be read from `/proc`.
pub fn has_seccomp_filter() -> io::Result<bool> {
    // The line is there when the kernel was built with filters (proc(5), Seccomp_filters).
    let status = fs::read_to_string("/proc/self/status")?;
    Ok(status
        .lines()
        .any(|line| line.starts_with("Seccomp_filters:")))
}

const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_changes_nothing() {
        assert_eq!(landlock_abi(), landlock_abi());
        has_seccomp_filter().unwrap();
    }
}
