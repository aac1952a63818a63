//! The users that the isolation of the roles is to take.

use std::fs;
use std::ops::Range;

use super::finding::Finding;
use super::subject::{Reach, Subject};

/// The workers' UIDs belong to nobody else: neither an account nor the subordinate IDs of one.
pub(super) fn check(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    let config = subject.config;
    let keys = [
        "isolation.worker_uid_base",
        "limits.max_workers",
        "development",
    ];
    // Development takes no users.
    if subject.reach == Reach::Files || config.development || !subject.is_sound(&keys) {
        return;
    }
    let base = u64::from(config.isolation.worker_uid_base);
    let range = base..base + config.limits.max_workers;
    let shown = format!("{}..={}", range.start, range.end.saturating_sub(1));
    let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Some((name, uid)) = account_in(&accounts, &range) {
        findings.push(
            subject
                .at(
                    "isolation.worker_uid_base",
                    Finding::error("a worker would have the UID of an account"),
                )
                .found(format!("{shown}, where {name} is {uid}"))
                .allowed(
                    "limits.max_workers UIDs from isolation.worker_uid_base on that no account has",
                )
                .mend("choose another isolation.worker_uid_base"),
        );
    }
    let subordinates = fs::read_to_string("/etc/subuid").unwrap_or_default();
    if let Some((name, theirs)) = subordinate_in(&subordinates, &range) {
        findings.push(
            subject
                .at(
                    "isolation.worker_uid_base",
                    Finding::warning("a worker would have a subordinate UID of a user"),
                )
                .found(format!(
                    "{shown}, of which /etc/subuid gives {}..={} to {name}",
                    theirs.start,
                    theirs.end.saturating_sub(1)
                ))
                .allowed("UIDs that no container of a user can take")
                .mend("choose another isolation.worker_uid_base, or change /etc/subuid"),
        );
    }
}

/// The first account of the password database, passwd(5), with a UID in the range.
fn account_in(table: &str, range: &Range<u64>) -> Option<(String, u64)> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next()?, fields.nth(1)?.parse().ok()?);
        range.contains(&uid).then(|| (name.to_owned(), uid))
    })
}

/// The first entry of the table of subordinate IDs, subuid(5), that shares UIDs with the range.
fn subordinate_in(table: &str, range: &Range<u64>) -> Option<(String, Range<u64>)> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let start: u64 = fields.next()?.parse().ok()?;
        let count: u64 = fields.next()?.parse().ok()?;
        let theirs = start..start.checked_add(count)?;
        let shared = theirs.start < range.end && range.start < theirs.end;
        shared.then(|| (name.to_owned(), theirs))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_who_has_a_uid() {
        let table =
            "root:x:0:0:root:/root:/bin/sh\n# comment\nnobody:x:65534:65534::/:/bin/false\n";
        assert_eq!(
            account_in(table, &(60_000..70_000)),
            Some(("nobody".to_owned(), 65_534))
        );
        assert_eq!(account_in(table, &(1..65_534)), None);
        assert_eq!(account_in(table, &(65_535..70_000)), None);
    }

    #[test]
    fn finds_who_has_subordinate_uids() {
        let table = "alice:100000:65536\nbroken:1\n";
        let alice = Some(("alice".to_owned(), 100_000..165_536));
        assert_eq!(subordinate_in(table, &(100_000..100_512)), alice);
        assert_eq!(subordinate_in(table, &(165_535..165_540)), alice);
        assert_eq!(subordinate_in(table, &(165_536..165_540)), None);
        assert_eq!(subordinate_in(table, &(99_000..100_000)), None);
    }
}
