//! `run`: all roles of one host as real processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use rustix::process::{Pid, Signal, test_kill_process};
use support::{Fixture, PATIENCE, Process, json_of, signal_process};
use tokio::time::timeout;

const ROLES: [&str; 5] = [
    "directory-broker",
    "key-agent",
    "link-agent",
    "listener",
    "spawner",
];

/// Waits until every role was started; their names and process IDs.
async fn started(run: &mut Process) -> Vec<(String, u32)> {
    let mut roles = Vec::new();
    while roles.len() < ROLES.len() {
        roles.push(role_started(run).await);
    }
    roles.sort();
    let names: Vec<_> = roles.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ROLES);
    roles
}

async fn role_started(run: &mut Process) -> (String, u32) {
    let line = run.reason("role-started").await;
    (
        line["child"].as_str().unwrap().to_owned(),
        u32::try_from(line["pid"].as_u64().unwrap()).unwrap(),
    )
}

fn lives(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()).is_ok()
}

/// Waits until a process that is not a child of this one has gone.
async fn gone(pid: u32) {
    let end = async {
        while lives(pid) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, end).await.unwrap();
}

/// Waits until the spawner has all its agents and the listener its spawner.
async fn connected(run: &mut Process) {
    run.reason("listener-connected").await;
}

#[tokio::test]
async fn stops_cleanly_on_sigterm_and_sigint() {
    for signal in [Signal::TERM, Signal::INT] {
        let fixture = Fixture::new("");
        let mut run = fixture.start("run");
        let roles = started(&mut run).await;
        connected(&mut run).await;
        run.signal(signal);
        let status = run.ended().await;
        assert_eq!(status.code(), Some(0), "{:#?}", run.log());
        for (role, pid) in roles {
            assert!(!lives(pid), "{role}");
        }
        let died = run
            .log()
            .iter()
            .filter(|line| json_of(line)["reason"] == "role-died")
            .count();
        assert_eq!(died, 0, "{:#?}", run.log());
    }
}

#[tokio::test]
async fn starts_a_killed_role_again() {
    let fixture = Fixture::new("");
    let mut run = fixture.start("run");
    let roles = started(&mut run).await;
    connected(&mut run).await;
    for (role, pid) in roles {
        signal_process(pid, Signal::KILL);
        let line = run.reason("role-died").await;
        assert_eq!(
            (line["child"].as_str(), line["signal"].as_i64()),
            (Some(role.as_str()), Some(9))
        );
        assert_eq!(role_started(&mut run).await.0, role);
    }
    run.signal(Signal::TERM);
    assert_eq!(run.ended().await.code(), Some(0), "{:#?}", run.log());
}

#[tokio::test]
async fn leaves_nobody_behind_when_it_is_killed() {
    let fixture = Fixture::new("");
    let mut run = fixture.start("run");
    let roles = started(&mut run).await;
    connected(&mut run).await;
    run.signal(Signal::KILL);
    run.child.wait().await.unwrap();
    for (_, pid) in roles {
        gone(pid).await;
    }
}

#[tokio::test]
async fn ends_with_the_status_of_a_role_whose_configuration_is_wrong() {
    let fixture = Fixture::new("");
    // A key of another certificate: only the key agent can tell.
    std::fs::copy(
        fixture.folder.path().join("toolshed.key"),
        fixture.folder.path().join("tls.pem"),
    )
    .unwrap();
    let mut run = fixture.start("run");
    assert_eq!(run.ended().await.code(), Some(78), "{:#?}", run.log());
    assert!(
        run.log()
            .iter()
            .any(|line| line.contains("do not belong together")),
        "{:#?}",
        run.log()
    );
}

#[tokio::test]
async fn two_of_one_folder_do_not_run_at_once() {
    let fixture = Fixture::new("");
    let mut first = fixture.start("run");
    started(&mut first).await;
    let mut second = fixture.start("run");
    assert_eq!(second.ended().await.code(), Some(75), "{:#?}", second.log());
    first.signal(Signal::TERM);
    assert_eq!(first.ended().await.code(), Some(0));
}
