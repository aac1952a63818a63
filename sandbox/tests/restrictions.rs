//! Each restriction in a process of its own, because none can be taken back: a test runs this executable again for itself
//! alone, with a variable set that makes it do the real thing.

// The lint lets test functions alone, but not the helpers around them.
#![allow(clippy::expect_used)]

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use memory_sandbox::{
    SandboxError, close_inherited, die_with_parent, memory_of, prepare_agent, prepare_key_holder,
    prepare_worker, protect_secrets, restrict, set_oom_score_adj,
};
use rustix::process::{DumpableBehavior, Resource, dumpable_behavior, getrlimit};
use rustix::thread::no_new_privs;

#[test]
fn inherited_descriptors_are_closed_but_those_kept() {
    in_child("inherited_descriptors_are_closed_but_those_kept", || {
        let kept = File::open("/dev/null").expect("open");
        for _ in 0..20 {
            // Left open on purpose, as by a careless parent.
            let _ = File::open("/dev/zero").expect("open").into_raw_fd();
        }
        let kept_too = File::open("/dev/null").expect("open");
        let before = descriptors();
        assert!(
            before
                .iter()
                .filter(|(_, path)| path == "/dev/zero")
                .count()
                >= 20
        );
        close_inherited(&[kept_too.as_fd(), kept.as_fd(), std::io::stderr().as_fd()])
            .expect("close");
        let mut expected = vec![0, 1, 2, kept.as_raw_fd(), kept_too.as_raw_fd()];
        expected.sort_unstable();
        let mut left: Vec<i32> = descriptors()
            .into_iter()
            .map(|(number, _)| number)
            .collect();
        left.sort_unstable();
        assert_eq!(left, expected);
        kept.metadata().expect("still open");
    });
}

#[test]
fn every_role_is_restricted() {
    in_child("every_role_is_restricted", || {
        assert!(!no_new_privs().expect("prctl"));
        restrict().expect("restrict");
        assert_restricted();
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("file");
        let mut options = fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o666);
        options
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("file");
        let mode = path.metadata().expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn a_crash_leaves_no_core() {
    const CRASH: &str = "MEMORY_SANDBOX_CRASH";
    let name = "a_crash_leaves_no_core";
    if env::var_os(CRASH).is_some() {
        restrict().expect("restrict");
        std::process::abort();
    }
    let status = again(name).env(CRASH, "1").output().expect("run").status;
    assert!(status.signal().is_some());
    assert!(!status.core_dumped());
}

#[test]
fn key_holders_are_not_dumpable() {
    in_child("key_holders_are_not_dumpable", || {
        assert_eq!(dumpable(), DumpableBehavior::Dumpable);
        protect_secrets().expect("prctl");
        assert_eq!(dumpable(), DumpableBehavior::NotDumpable);
        // The entries of such a process belong to root, whoever it runs as.
        assert_eq!(fs::metadata("/proc/self/environ").expect("proc").uid(), 0);
    });
}

#[test]
fn prepares_a_worker() {
    in_child("prepares_a_worker", || {
        let _ = File::open("/dev/zero").expect("open").into_raw_fd();
        prepare_worker().expect("prepare");
        assert_restricted();
        assert_eq!(descriptors().len(), 3);
    });
}

#[test]
fn prepares_an_agent() {
    in_child("prepares_an_agent", || {
        let kept = File::open("/dev/null").expect("open");
        let _ = File::open("/dev/zero").expect("open").into_raw_fd();
        prepare_agent(&[kept.as_fd()]).expect("prepare");
        assert_restricted();
        assert_eq!(descriptors().len(), 4);
        assert_eq!(dumpable(), DumpableBehavior::Dumpable);
    });
}

#[test]
fn prepares_a_key_holder() {
    in_child("prepares_a_key_holder", || {
        let _ = File::open("/dev/zero").expect("open").into_raw_fd();
        prepare_key_holder(&[]).expect("prepare");
        assert_restricted();
        assert_eq!(descriptors().len(), 3);
        assert_eq!(dumpable(), DumpableBehavior::NotDumpable);
    });
}

#[test]
fn out_of_memory_score_can_be_raised() {
    in_child("out_of_memory_score_can_be_raised", || {
        set_oom_score_adj(700).expect("raise");
        let score = fs::read_to_string("/proc/self/oom_score_adj").expect("proc");
        assert_eq!(score.trim(), "700");
        assert!(matches!(
            set_oom_score_adj(1001),
            Err(SandboxError::OomScore { value: 1001, .. })
        ));
    });
}

#[test]
fn a_child_ends_with_its_parent() {
    const PART: &str = "MEMORY_SANDBOX_PART";
    const PARENT: &str = "MEMORY_SANDBOX_PARENT";
    let name = "a_child_ends_with_its_parent";
    match env::var(PART).as_deref() {
        // Started by the parent below: tells that it is ready, then stays for as long as it is let.
        Ok("child") => {
            let parent = env::var(PARENT).expect("set").parse().expect("number");
            die_with_parent(Some(parent)).expect("prctl");
            eprintln!("ready");
            loop {
                thread::park();
            }
        }
        // Started by the test: ends when its child is ready, without waiting for it.
        Ok("parent") => {
            let mut child = again(name)
                .env(PART, "child")
                .env(PARENT, std::process::id().to_string())
                .stdin(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("spawn");
            let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
            let ready = lines
                .map_while(Result::ok)
                .any(|line| line.contains("ready"));
            std::process::exit(i32::from(!ready));
        }
        _ => {
            // The child holds the writing end as its output; the end of file shows that it has ended.
            let (mut reader, writer) = std::io::pipe().expect("pipe");
            let mut parent = again(name)
                .env(PART, "parent")
                .stdin(Stdio::null())
                .stdout(writer)
                .spawn()
                .expect("spawn");
            assert!(parent.wait().expect("wait").success());
            let (sender, receiver) = mpsc::channel();
            thread::spawn(move || {
                let result = reader.read_to_end(&mut Vec::new());
                sender.send(result.is_ok()).expect("the test waits");
            });
            assert_eq!(receiver.recv_timeout(Duration::from_secs(30)), Ok(true));
        }
    }
}

#[test]
fn a_parent_that_is_gone_is_noticed() {
    in_child("a_parent_that_is_gone_is_noticed", || {
        assert!(matches!(
            die_with_parent(Some(u32::MAX)),
            Err(SandboxError::ParentGone)
        ));
        die_with_parent(None).expect("prctl");
    });
}

#[test]
fn memory_of_a_process_is_told() {
    in_child("memory_of_a_process_is_told", || {
        let before = memory_of(std::process::id()).expect("own memory");
        assert!(before.private_kib > 0);
        assert!(before.private_kib <= before.pss_kib && before.pss_kib <= before.rss_kib);
        let taken = vec![7_u8; 8 << 20];
        let after = memory_of(std::process::id()).expect("own memory");
        assert!(after.private_kib >= before.private_kib + 8000);
        assert_eq!(taken.last(), Some(&7));
        assert!(matches!(
            memory_of(u32::MAX),
            Err(SandboxError::Memory { pid: u32::MAX, .. })
        ));
    });
}

/// Runs `body` in a process of its own, started from this executable for the test `name` alone.
fn in_child(name: &str, body: fn()) {
    const CHILD: &str = "MEMORY_SANDBOX_CHILD";
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

fn again(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("own path"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command
}

fn assert_restricted() {
    assert!(no_new_privs().expect("prctl"));
    let limit = getrlimit(Resource::Core);
    assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
    // The umask can be read only by setting it.
    let mask = rustix::process::umask(rustix::fs::Mode::RWXO);
    assert_eq!(mask.as_raw_mode(), 0o077);
    rustix::process::umask(mask);
}

fn dumpable() -> DumpableBehavior {
    dumpable_behavior().expect("prctl")
}

/// Open descriptors and what they are, without the one that lists them.
fn descriptors() -> Vec<(i32, String)> {
    let numbers: Vec<i32> = fs::read_dir("/proc/self/fd")
        .expect("proc")
        .map(|entry| entry.expect("entry").file_name())
        .map(|name| name.to_str().expect("number").parse().expect("number"))
        .collect();
    numbers
        .into_iter()
        .filter_map(|number| {
            let path = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
            Some((number, path.display().to_string()))
        })
        .collect()
}
