//! Bounds of the control groups that this process is in.

use std::fs;
use std::path::{Path, PathBuf};

/// The smallest value of a file in the groups of this process, its own and those above, as far as they can be seen here:
/// of version 2, and of version 1 with this controller. `None` when nothing bounds it.
pub(super) fn smallest(controller: &str, files: &[&str]) -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let chains = places(&groups, &mounts, controller);
    let bounds = chains.iter().flat_map(|(root, group)| {
        group
            .ancestors()
            .take_while(move |folder| folder.starts_with(root))
            .flat_map(|folder| files.iter().map(move |file| folder.join(file)))
    });
    bounds
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

/// Where version 2 is mounted, and whether it has the controllers.
pub(super) fn unified() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts
        .lines()
        .filter_map(Mount::parse)
        .find(|mount| mount.kind == "cgroup2")
        .map(|mount| mount.point)
}

struct Mount {
    /// Folder of the hierarchy that is mounted.
    root: PathBuf,
    point: PathBuf,
    kind: String,
    options: String,
}

impl Mount {
    /// A line of `/proc/self/mountinfo`, proc(5).
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, _source, options) = (after.next()?, after.next()?, after.next()?);
        Some(Self {
            root: root.into(),
            point: point.into(),
            kind: kind.to_owned(),
            options: options.to_owned(),
        })
    }
}

/// The mounts with this controller, and the folder of this process's group in each.
fn places(groups: &str, mounts: &str, controller: &str) -> Vec<(PathBuf, PathBuf)> {
    let has = |list: &str| list.split(',').any(|name| name == controller);
    let mut places = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let group = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let mine = match mount.kind.as_str() {
                "cgroup2" => controllers.is_empty(),
                "cgroup" => has(controllers) && has(&mount.options),
                _ => false,
            };
            mine.then_some(path)
        });
        let Some(group) = group else { continue };
        // Inside a container the mount shows a part of the hierarchy only.
        let inside = Path::new(group)
            .strip_prefix(&mount.root)
            .or_else(|_| Path::new(group).strip_prefix("/"));
        if let Ok(inside) = inside {
            places.push((mount.point.clone(), mount.point.join(inside)));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_both_versions() {
        let groups = "4:pids:/a/b\n3:cpu,cpuacct:/c\n0::/system.slice/x.service\n";
        let mounts = "30 20 0:26 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
            31 20 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
            32 20 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n\
            33 20 0:29 / /proc rw - proc proc rw\n";
        let paths = |root: &str, group: &str| (PathBuf::from(root), PathBuf::from(group));
        assert_eq!(
            places(groups, mounts, "pids"),
            [
                paths("/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids/a/b"),
                paths("/sys/fs/cgroup", "/sys/fs/cgroup/system.slice/x.service"),
            ]
        );
        assert_eq!(places(groups, "", "pids"), []);
    }

    #[test]
    fn a_container_sees_its_own_part() {
        let mounts = "30 20 0:26 /docker/1 /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let expected = [(
            PathBuf::from("/sys/fs/cgroup/pids"),
            PathBuf::from("/sys/fs/cgroup/pids/x"),
        )];
        assert_eq!(places("4:pids:/docker/1/x\n", mounts, "pids"), expected);
    }
}
