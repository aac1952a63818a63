//! Tests in a process of their own.

use std::env;
use std::process::Command;

/// Runs `body` in a process of its own, started from this executable for the test `name` alone: for what concerns the
/// process as a whole, such as its descriptors and limits.
pub(crate) fn in_child(name: &str, body: fn()) {
    const CHILD: &str = "MEMORY_IPC_CHILD";
    if env::var_os(CHILD).is_some_and(|child| child == name) {
        body();
        return;
    }
    let output = again(name).env(CHILD, name).output().expect("run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

pub(crate) fn again(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("own path"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command
}

/// Open descriptors of this process, by number, with what they are.
pub(crate) fn open_descriptors() -> Vec<(u32, String)> {
    let numbers: Vec<u32> = std::fs::read_dir("/proc/self/fd")
        .expect("proc")
        .map(|entry| entry.expect("entry").file_name())
        .map(|name| name.to_str().expect("number").parse().expect("number"))
        .collect();
    // The one that was listing them is gone by now.
    let mut open: Vec<(u32, String)> = numbers
        .into_iter()
        .filter_map(|number| {
            let path = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
            Some((number, path.display().to_string()))
        })
        .collect();
    open.sort_unstable();
    open
}
