//! A log that cannot be written costs lines, never a process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs::File;
use std::process::Stdio;

use rustix::process::Signal;
use support::deployment::{Deployment, until};
use support::{EXECUTABLE, PATIENCE, signal_process};
use tokio::process::Command;
use tokio::time::timeout;

/// Everything a client does, over a new connection.
async fn converse(deployment: &Deployment) {
    let connection = until(async || deployment.connect().await.ok()).await;
    connection.authenticate(&deployment.alice).await.unwrap();
    for index in [0, 1] {
        let session = deployment.open(&connection, index).await.unwrap();
        session.query(&["of:fixture-data"]).await.unwrap();
    }
    connection.close().await;
}

#[tokio::test]
async fn a_router_whose_log_nobody_reads_any_more_goes_on() {
    let mut deployment = Deployment::start("").await;
    let roles = ["listener", "spawner", "link-agent", "directory-broker"];
    let before = roles.map(|role| deployment.role(role));
    deployment.run.stop_reading();
    // Each role has something to say of this.
    deployment.reload();
    for _ in 0..3 {
        converse(&deployment).await;
    }
    assert_eq!(roles.map(|role| deployment.role(role)), before);
    deployment.stop().await;
}

#[tokio::test]
async fn a_router_whose_log_is_full_serves() {
    let mut deployment = Deployment::start("").await;
    deployment.run.signal(Signal::TERM);
    deployment.run.ended().await;

    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut run = Command::new(EXECUTABLE)
        .arg("run")
        .arg("--config")
        .arg(deployment.fixture.config())
        .env("MEMORY_ROUTER_LOG", "debug")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(full)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    converse(&deployment).await;
    signal_process(run.id().unwrap(), Signal::TERM);
    let status = timeout(PATIENCE, run.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
}
