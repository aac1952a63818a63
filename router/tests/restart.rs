//! What goes on while the directory broker or the key agent is away, and what comes back with it. Real processes throughout.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use rustix::process::Signal;
use support::deployment::{Deployment, Pass, eventually, is_refused_for_now};
use support::signal_process;

#[tokio::test]
async fn a_connection_outlives_its_broker_and_opens_more_with_the_next() {
    let mut deployment = Deployment::start("").await;
    let connection = deployment.connect_alice().await;
    let before = deployment.open(&connection, 1).await.unwrap();

    // Open sessions go on without a broker, and new ones are refused for now, also those of a space that is open.
    deployment.kill("directory-broker", "broker-lost").await;
    before.query(&["of:fixture-data"]).await.unwrap();
    for index in [0, 1] {
        let refused = deployment.open(&connection, index).await;
        assert!(is_refused_for_now(&refused), "{refused:?}");
    }

    // Back again: a data socket to the other toolshed, and another space over the socket that the first broker made.
    deployment.let_restart();
    deployment.run.reason("broker-rewired").await;
    let after = eventually(|| deployment.open(&connection, 0)).await;
    after.query(&["of:fixture-data"]).await.unwrap();
    deployment.create(&connection, 40).await.unwrap();

    // And once more, twice in a row.
    for seed in [41, 42] {
        deployment.kill("directory-broker", "broker-lost").await;
        deployment.let_restart();
        deployment.run.reason("broker-rewired").await;
        eventually(|| deployment.create(&connection, seed)).await;
    }
    before.query(&["of:fixture-data"]).await.unwrap();
    after.query(&["of:fixture-data"]).await.unwrap();
    connection.close().await;
    deployment.stop().await;
}

#[tokio::test]
async fn a_role_comes_back_with_what_was_accepted_and_not_with_what_the_file_says_by_then() {
    let mut deployment = Deployment::start("").await;
    let connection = deployment.connect_alice().await;

    // The file becomes invalid, and nobody asks for it to be read.
    deployment.fixture.configure("nonsense = 1\n");
    for role in ["directory-broker", "key-agent", "listener"] {
        signal_process(deployment.role(role), Signal::KILL);
        deployment.run.reason("role-died").await;
        let started = deployment.run.reason("role-started").await;
        assert_eq!(started["child"], role);
    }
    deployment.run.reason("ready").await;
    eventually(|| deployment.open(&connection, 1)).await;

    // Asked for, it is refused, and a role comes back all the same.
    deployment.reload();
    deployment.run.reason("reload-refused").await;
    signal_process(deployment.role("directory-broker"), Signal::KILL);
    deployment.run.reason("broker-rewired").await;
    eventually(|| deployment.open(&connection, 0)).await;

    // Accepted, with a key that waits for a restart of all: a role that comes back finds the others where they are.
    deployment
        .fixture
        .configure("\n[timeouts]\ndrain = \"2s\"\n");
    let text = std::fs::read_to_string(deployment.fixture.config()).unwrap();
    let moved = text.replace("ipc_dir = \"ipc\"", "ipc_dir = \"elsewhere\"");
    assert_ne!(text, moved);
    std::fs::write(deployment.fixture.config(), moved).unwrap();
    deployment.reload();
    let needed = deployment.run.reason("restart-needed").await;
    assert_eq!(needed["key"], "ipc_dir");
    signal_process(deployment.role("directory-broker"), Signal::KILL);
    deployment.run.reason("broker-rewired").await;
    eventually(|| deployment.create(&connection, 40)).await;
    assert!(!deployment.fixture.folder.path().join("elsewhere").exists());
    connection.close().await;
    deployment.stop().await;
}

/// Loses the broker while a data socket is held by the gate, and has the next one asked for another space at the same
/// toolshed before the gate opens. Returns whether the first open came through; the other always does.
async fn lose_broker_during_setup(pass: Pass) -> bool {
    let mut deployment = Deployment::start("").await;
    let connection = deployment.connect_alice().await;
    let other = deployment.open(&connection, 0).await.unwrap();

    deployment.gate.set(pass);
    let first = deployment.begin_open(&connection, 1);
    deployment.gate.holds().await;
    deployment.kill("directory-broker", "broker-lost").await;
    deployment.let_restart();
    deployment.run.reason("broker-rewired").await;
    let second = deployment.begin_create(&connection, 40);
    deployment.gate.set(Pass::Everything);
    let first = first.await.unwrap();
    assert!(first.is_ok() || is_refused_for_now(&first), "{first:?}");
    second.await.unwrap();

    // Nothing is left behind: the same open goes through now, and what was open is.
    let again = eventually(|| deployment.open(&connection, 1)).await;
    again.query(&["of:fixture-data"]).await.unwrap();
    other.query(&["of:fixture-data"]).await.unwrap();
    connection.close().await;
    deployment.stop().await;
    first.is_ok()
}

#[tokio::test]
async fn a_setup_that_loses_its_broker_before_the_binding_costs_its_open_alone() {
    assert!(!lose_broker_during_setup(Pass::Nothing).await);
}

#[tokio::test]
async fn a_setup_that_loses_its_broker_after_the_binding_goes_on() {
    assert!(lose_broker_during_setup(Pass::UntilBound).await);
}

#[tokio::test]
async fn without_a_key_agent_connections_go_on_and_new_ones_wait_for_the_next() {
    let mut deployment = Deployment::start("").await;
    let connection = deployment.connect_alice().await;
    deployment.kill("key-agent", "key-agent-lost").await;
    let session = deployment.open(&connection, 0).await.unwrap();
    session.query(&["of:fixture-data"]).await.unwrap();
    deployment.let_restart();
    deployment.run.reason("role-started").await;
    // Not accepted until handshakes can be signed: the client waits in the listener's queue.
    let next = deployment.connect_alice().await;
    deployment.open(&next, 0).await.unwrap();
    session.query(&["of:fixture-data"]).await.unwrap();
    deployment.stop().await;
}
