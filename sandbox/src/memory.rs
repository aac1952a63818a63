//! How much memory a process takes.

use std::fs;
use std::io;

use crate::SandboxError;

/// Memory of one process in KiB (1024 bytes), as the kernel accounts its pages at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Pages that no other process has: what is won when this process ends.
    pub private_kib: u64,
    /// Private pages, and of each shared page the share of this process: sums up over processes.
    pub pss_kib: u64,
    /// All pages in memory, shared ones in full.
    pub rss_kib: u64,
}

/// Reads the memory of a process from `/proc/PID/smaps_rollup`. For another user's process, or one that called
/// [`crate::protect_secrets`], that takes CAP_SYS_PTRACE.
///
/// # Errors
/// [`SandboxError::Memory`] when there is no such process, when it may not be read, or when the kernel's table lacks a line.
pub fn memory_of(pid: u32) -> Result<Memory, SandboxError> {
    fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))
        .and_then(|table| parse(&table).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData)))
        .map_err(|source| SandboxError::Memory { pid, source })
}

fn parse(table: &str) -> Option<Memory> {
    let (mut rss, mut pss, mut clean, mut dirty, mut huge) = (None, None, None, None, None);
    for line in table.lines() {
        let mut words = line.split_ascii_whitespace();
        let place = match words.next() {
            Some("Rss:") => &mut rss,
            Some("Pss:") => &mut pss,
            Some("Private_Clean:") => &mut clean,
            Some("Private_Dirty:") => &mut dirty,
            Some("Private_Hugetlb:") => &mut huge,
            _ => continue,
        };
        *place = Some(words.next()?.parse::<u64>().ok()?);
    }
    Some(Memory {
        private_kib: clean?.checked_add(dirty?)?.checked_add(huge.unwrap_or(0))?,
        pss_kib: pss?,
        rss_kib: rss?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_table_of_the_kernel() {
        let table = "55d0c8a00000-7ffd1c5f1000 ---p 00000000 00:00 0      [rollup]\n\
            Rss:                1320 kB\nPss:                 118 kB\nPss_Dirty:            92 kB\n\
            Shared_Clean:       1228 kB\nShared_Dirty:          0 kB\nPrivate_Clean:         8 kB\n\
            Private_Dirty:        84 kB\nReferenced:         1320 kB\nPrivate_Hugetlb:       4 kB\n";
        let memory = Memory {
            private_kib: 96,
            pss_kib: 118,
            rss_kib: 1320,
        };
        assert_eq!(parse(table), Some(memory));
    }

    #[test]
    fn refuses_a_table_without_a_line_or_a_number() {
        let whole = "Rss: 1 kB\nPss: 1 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: 1 kB\n";
        assert!(parse(whole).is_some());
        for missing in ["Rss", "Pss", "Private_Clean", "Private_Dirty"] {
            let table = whole.replace(missing, "Other");
            assert_eq!(parse(&table), None);
            let table = whole.replace(&format!("{missing}: 1"), &format!("{missing}: x"));
            assert_eq!(parse(&table), None);
        }
        let table = whole.replace("Private_Clean: 1", &format!("Private_Clean: {}", u64::MAX));
        assert_eq!(parse(&table), None);
    }
}
