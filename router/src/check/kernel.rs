//! What the kernel has to offer.

use std::fs;

use super::cgroup;
use super::finding::Finding;

/// The oldest kernel with every call that is made: close_range(2) came last.
const OLDEST: (u32, u32) = (5, 9);

const UNUSED: &str = "nothing in this version; the isolation of the roles will need it";

pub(super) fn check(findings: &mut Vec<Finding>) {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    if version(&release).is_some_and(|version| version < OLDEST) {
        findings.push(
            Finding::error("the kernel is too old")
                .found(format!("Linux {release}"))
                .allowed(format!("Linux {}.{} or newer", OLDEST.0, OLDEST.1))
                .mend("run a newer kernel"),
        );
    }
    let mut lacks = |what: &str, found: &str, allowed: &str| {
        findings.push(
            Finding::warning(what)
                .found(found)
                .allowed(allowed)
                .mend(UNUSED),
        );
    };
    if memory_sandbox::landlock_abi().is_none() {
        lacks(
            "the kernel has no Landlock",
            "landlock_create_ruleset(2) is not available",
            "CONFIG_SECURITY_LANDLOCK, and landlock among lsm=",
        );
    }
    if memory_sandbox::has_seccomp_filter().is_ok_and(|has| !has) {
        lacks(
            "the kernel has no seccomp filters",
            "no Seccomp_filters in /proc/self/status",
            "CONFIG_SECCOMP_FILTER",
        );
    }
    let Some(root) = cgroup::unified() else {
        lacks(
            "there is no cgroup v2",
            "no mount of cgroup2",
            "cgroup2 on /sys/fs/cgroup",
        );
        return;
    };
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    let missing: Vec<&str> = ["memory", "pids"]
        .into_iter()
        .filter(|name| {
            !controllers
                .split_ascii_whitespace()
                .any(|known| known == *name)
        })
        .collect();
    if !missing.is_empty() {
        lacks(
            "cgroup v2 lacks controllers",
            &format!("{} without {}", root.display(), missing.join(" and ")),
            "the controllers memory and pids, not taken by version 1",
        );
    }
}

/// Major and minor number of a release such as `6.1.0-13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_releases() {
        assert_eq!(version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(version("5.9-rc1"), Some((5, 9)));
        assert_eq!(version("odd"), None);
        assert!(version("5.10.1") > Some(OLDEST));
        assert!(version("4.19.0") < Some(OLDEST));
    }
}
