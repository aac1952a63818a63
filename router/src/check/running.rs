//! Whether a router runs with an `ipc_dir`, found by looking only: nothing is locked and nobody is connected to.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{major, minor};

/// Whether `run` holds its lock on the folder, or a role listens in it. Processes of another PID namespace are not seen.
pub(super) fn is_running(ipc_dir: &Path) -> bool {
    let Ok(folder) = fs::metadata(ipc_dir) else {
        return false;
    };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    is_locked(&locks, folder.dev(), folder.ino()) || is_listened_in(&sockets, ipc_dir)
}

/// Whether the table of `/proc/locks` has a lock of flock(2) on this file.
fn is_locked(table: &str, device: u64, inode: u64) -> bool {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    table.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        words.any(|word| word == "FLOCK") && words.any(|word| word == file)
    })
}

/// Whether the table of `/proc/net/unix` has a listening socket in this folder.
fn is_listened_in(table: &str, folder: &Path) -> bool {
    /// `__SO_ACCEPTCON`, the flag of a socket that listens.
    const LISTENS: &str = "00010000";
    table.lines().skip(1).any(|line| {
        let mut words = line.split_ascii_whitespace().skip(3);
        let listens = words.next() == Some(LISTENS);
        let path = words.nth(3).map(Path::new);
        listens && path.and_then(Path::parent) == Some(folder)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_found_by_its_file() {
        let table = "1: POSIX  ADVISORY  WRITE 100 08:01:77 0 EOF\n2: FLOCK  ADVISORY  WRITE 101 00:2a:1234 0 EOF\n";
        let device = rustix::fs::makedev(0, 0x2a);
        assert!(is_locked(table, device, 1234));
        assert!(!is_locked(table, device, 77));
        assert!(!is_locked(table, rustix::fs::makedev(8, 1), 77));
    }

    #[test]
    fn a_listening_socket_is_found_by_its_folder() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 11 /run/memory-router/spawner.sock\n\
            0000000000000000: 00000003 00000000 00000000 0005 03 12 /run/other/key-agent.sock\n";
        assert!(is_listened_in(table, Path::new("/run/memory-router")));
        assert!(!is_listened_in(table, Path::new("/run/other")));
        assert!(!is_listened_in(table, Path::new("/run")));
    }

    #[test]
    fn a_held_lock_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_running(folder.path()));
        let lock = fs::File::open(folder.path()).unwrap();
        lock.try_lock().unwrap();
        assert!(is_running(folder.path()));
        // Not by closing it: a process that another test is just starting may have it too.
        lock.unlock().unwrap();
        assert!(!is_running(folder.path()));
    }
}
