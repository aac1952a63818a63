//! Descriptors, tasks and memory that the configuration needs, against what this process may have.
//!
//! The needs are upper bounds, counted from what each role holds (`docs/operations.md`, descriptors and tasks).

use std::fs;
use std::path::Path;

use memory_config::{ProxyProtocol, RouterConfig};
use rustix::process::{Resource, getrlimit, getuid};

use super::Part;
use super::cgroup;
use super::finding::Finding;
use super::subject::{Reach, Subject};

/// What a role holds whatever it serves: standard streams, runtime, signals, its named socket and its channels.
const BASE: u64 = 32;
/// Workers that may be starting at once, each with its channel, its process and the client's socket.
const STARTING: u64 = 16 * 3;
/// What the spawner needs for a moment to connect a worker with the agents.
const CONNECTING: u64 = 8;
/// Toolsheds of a directory at most.
const TOOLSHEDS: u64 = memory_config::MAX_TOOLSHEDS as u64;
/// Scrapes at once, the roles that are asked for them at once, and those that look at this role.
const METRICS: u64 = 16;
/// Tasks beside the workers: the other roles with their helper threads, and the workers that are starting.
const OTHER_TASKS: u64 = 64;

/// What a role needs, and how that is counted.
pub(super) struct Need {
    role: &'static str,
    count: u64,
    formula: &'static str,
}

/// Descriptors that the role of a part needs at most.
pub(super) fn descriptors(part: Part, config: &RouterConfig) -> Need {
    let limits = &config.limits;
    let workers = limits.max_workers;
    let idle = config.isolation.worker_pool.min(workers);
    let listeners = u64::try_from(config.listen.len()).unwrap_or(u64::MAX);
    let (role, count, formula) = match part {
        Part::Listener if config.proxy_protocol == ProxyProtocol::Off => {
            ("listener", 2 * listeners, "2 for each address of listen")
        }
        Part::Listener => (
            "listener",
            2 * listeners + limits.max_unauthenticated,
            "2 for each address of listen, limits.max_unauthenticated for connections whose PROXY header is awaited",
        ),
        Part::Spawner => (
            "spawner",
            2 * (workers + idle) + STARTING + CONNECTING,
            "2 for each of limits.max_workers and isolation.worker_pool, 56 for workers that are starting",
        ),
        Part::KeyAgent => (
            "key-agent",
            limits.max_unauthenticated,
            "limits.max_unauthenticated",
        ),
        Part::LinkAgent => (
            "link-agent",
            2 * workers + TOOLSHEDS,
            "2 for each of limits.max_workers, 32 for links",
        ),
        Part::DirectoryBroker => (
            "directory-broker",
            2 * workers + limits.max_pending_dials,
            "2 for each of limits.max_workers, limits.max_pending_dials",
        ),
        Part::Metrics => (
            "metrics",
            METRICS,
            "16 for scrapes and the roles that they ask",
        ),
    };
    Need {
        role,
        count: count + BASE,
        formula,
    }
}

/// Tasks of all roles together.
fn tasks(config: &RouterConfig) -> u64 {
    let workers = config.limits.max_workers;
    workers + config.isolation.worker_pool.min(workers) + OTHER_TASKS
}

/// Descriptors of these roles, against the hard limit of this process: a role raises its soft limit to it.
pub(super) fn check_descriptors(
    subject: &Subject<'_>,
    parts: &[Part],
    findings: &mut Vec<Finding>,
) {
    let keys = [
        "listen",
        "limits.max_workers",
        "limits.max_unauthenticated",
        "limits.max_pending_dials",
        "isolation.worker_pool",
    ];
    if subject.reach == Reach::Files || !subject.is_sound(&keys) {
        return;
    }
    let Some(hard) = getrlimit(Resource::Nofile).maximum else {
        return;
    };
    for part in parts {
        let need = descriptors(*part, subject.config);
        if need.count <= hard {
            continue;
        }
        findings.push(
            subject
                .at("limits.max_workers", Finding::error(format!("too few file descriptors for the {}", need.role)))
                .found(format!("a hard limit of {hard} for this process"))
                .allowed(format!("at least {}: {}, and {BASE}", need.count, need.formula))
                .mend("raise the hard limit (LimitNOFILE= of the service, ulimit -Hn), or lower limits.max_workers"),
        );
    }
}

/// Tasks, against every bound that this process is under.
pub(super) fn check_tasks(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    let keys = ["limits.max_workers", "isolation.worker_pool"];
    if subject.reach == Reach::Files || !subject.is_sound(&keys) {
        return;
    }
    let need = tasks(subject.config);
    // The kernel holds no root to RLIMIT_NPROC (setrlimit(2)).
    let of_user = match getuid().is_root() {
        true => None,
        false => getrlimit(Resource::Nproc).maximum,
    };
    let bounds = [
        (
            "the hard RLIMIT_NPROC of this process",
            of_user,
            "LimitNPROC= of the service, ulimit -Hu",
        ),
        (
            "pids.max of this process's control group",
            cgroup::smallest("pids", &["pids.max"]),
            "TasksMax= of the service",
        ),
        (
            "kernel.pid_max",
            number("/proc/sys/kernel/pid_max"),
            "sysctl kernel.pid_max",
        ),
        (
            "kernel.threads-max",
            number("/proc/sys/kernel/threads-max"),
            "sysctl kernel.threads-max",
        ),
    ];
    for (what, bound, setting) in bounds {
        let Some(bound) = bound.filter(|bound| *bound < need) else {
            continue;
        };
        findings.push(
            subject
                .at(
                    "limits.max_workers",
                    Finding::error("too few processes for the workers"),
                )
                .found(format!("{bound}, {what}"))
                .allowed(format!(
                    "at least {need}: limits.max_workers, isolation.worker_pool, and {OTHER_TASKS}"
                ))
                .mend(format!("raise it ({setting}), or lower limits.max_workers")),
        );
    }
}

/// Memory of all workers, against what there is.
pub(super) fn check_memory(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    let keys = [
        "isolation.workers_memory_max",
        "isolation.worker_memory_max",
        "limits.max_workers",
    ];
    if subject.reach == Reach::Files || !subject.is_sound(&keys) {
        return;
    }
    let config = subject.config;
    let physical = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|table| physical(&table));
    let bound = cgroup::smallest("memory", &["memory.max", "memory.limit_in_bytes"]);
    let Some(available) = physical.into_iter().chain(bound).min() else {
        return;
    };
    let each = config.isolation.worker_memory_max;
    let together = config.limits.max_workers.saturating_mul(each);
    let (key, wanted, what) = match config.isolation.workers_memory_max {
        Some(bound) => (
            "isolation.workers_memory_max",
            bound,
            "the workers may take more memory than there is",
        ),
        None => (
            "isolation.worker_memory_max",
            together,
            "all workers at their most take more memory than there is",
        ),
    };
    if wanted > available {
        findings.push(
            subject
                .at(key, Finding::warning(what))
                .found(format!("{} MiB", wanted >> 20))
                .allowed(format!("at most {} MiB, the memory of this host or control group", available >> 20))
                .mend("lower limits.max_workers or isolation.worker_memory_max, or set isolation.workers_memory_max to what the workers may have"),
        );
    }
}

/// `MemTotal` in bytes.
fn physical(table: &str) -> Option<u64> {
    let line = table
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

fn number(file: &str) -> Option<u64> {
    fs::read_to_string(Path::new(file))
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_memory_of_a_host() {
        assert_eq!(
            physical("MemTotal:       24690000 kB\nMemFree: 1 kB\n"),
            Some(24_690_000 * 1024)
        );
        assert_eq!(physical("MemFree: 1 kB\n"), None);
    }
}
