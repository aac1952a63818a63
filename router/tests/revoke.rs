//! `revoke`: what it does to the list, and what the list does to connections. Real processes throughout.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory_client::{ClientError, Connection, Did, Identity};
use serde_json::{Value, json};
use support::deployment::{Deployment, eventually, until};
use support::{EXECUTABLE, Fixture, PATIENCE, json_of};
use tokio::process::Command;
use tokio::time::timeout;

/// From the command to the client's close frame.
const PROMPTLY: Duration = Duration::from_secs(1);

async fn revoke(config: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(EXECUTABLE);
    command.arg("revoke").arg("--config").arg(config);
    command.args(arguments).stdin(Stdio::null());
    command.output().await.unwrap()
}

/// Runs it, and demands success; gives what it printed.
async fn revoked(config: &Path, arguments: &[&str]) -> String {
    let output = revoke(config, arguments).await;
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    said
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn identity(seed: u8) -> Arc<Identity> {
    Arc::new(Identity::from_seed([seed; 32]).unwrap())
}

fn list_of(fixture: &Fixture) -> PathBuf {
    fixture.folder.path().join("state/revoked")
}

async fn listed(config: &Path) -> Vec<Value> {
    let text = revoked(config, &["--list", "--json"]).await;
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["version"], 1);
    value["revoked"].as_array().unwrap().clone()
}

/// Whether signing in was refused, and whether for good.
fn is_refused(result: &Result<(), ClientError>) -> Option<bool> {
    result.as_ref().err().map(|error| !error.is_retriable())
}

async fn sign_in(connection: &Connection, key: &Arc<Identity>) -> Result<(), ClientError> {
    connection.authenticate(key).await.map(drop)
}

/// Waits until a key is refused, or not any more; and demands that it is refused for good.
async fn until_refused(deployment: &Deployment, key: &Arc<Identity>, wanted: bool) {
    until(async || {
        let connection = deployment.connect().await.ok()?;
        let signed = sign_in(&connection, key).await;
        connection.close().await;
        match is_refused(&signed) {
            None => (!wanted).then_some(()),
            Some(for_good) => {
                assert!(for_good, "{signed:?}");
                wanted.then_some(())
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_revoked_principal_is_closed_at_once_and_refused_for_good() {
    let mut deployment = Deployment::start("").await;
    let config = deployment.fixture.config();
    let alice = deployment.alice.did();
    let connection = deployment.connect_alice().await;
    deployment.open(&connection, 0).await.unwrap();
    let name = connection.hello().connection.clone().unwrap();
    // Beside a key of another: the connection is closed all the same.
    sign_in(&connection, &identity(60)).await.unwrap();
    let elsewhere = deployment.connect().await.unwrap();
    let other = eventually(|| deployment.create(&elsewhere, 61)).await;
    let waiting = deployment.connect().await.unwrap();

    let began = Instant::now();
    let said = revoked(&config, &[alice.as_str(), "--reason", "stolen \"laptop\""]).await;
    assert!(said.starts_with(&format!("revoked {alice}\n")), "{said}");
    assert!(said.contains("500 ms"), "{said}");
    let closed = timeout(PATIENCE, connection.closed()).await.unwrap();
    let took = began.elapsed();
    assert!(took < PROMPTLY, "{took:?}");
    assert_eq!(closed.code, Some(1008));
    assert_eq!(closed.reason, format!("principal-revoked {name}"));

    // The last line about it says so too, and its source is not to blame.
    let line = deployment
        .run
        .line(|line| {
            let line = json_of(line);
            line["connection"] == *name && line["message"] == "connection ended"
        })
        .await;
    let line = json_of(&line);
    assert_eq!(
        (&line["reason"], &line["outcome"]),
        (&json!("principal-revoked"), &json!("clean"))
    );

    // On a connection that was there, and on a new one.
    assert_eq!(
        is_refused(&sign_in(&waiting, &deployment.alice).await),
        Some(true)
    );
    sign_in(&waiting, &identity(60)).await.unwrap();
    let connection = deployment.connect().await.unwrap();
    assert_eq!(
        is_refused(&sign_in(&connection, &deployment.alice).await),
        Some(true)
    );

    // Nobody else notices.
    other.query(&["of:anything"]).await.unwrap();

    // Admitted again, on the same connection.
    let said = revoked(&config, &["--remove", alice.as_str()]).await;
    assert!(said.contains("stolen \"laptop\""), "{said}");
    until_refused(&deployment, &deployment.alice, false).await;
    sign_in(&connection, &deployment.alice).await.unwrap();
    deployment.open(&connection, 0).await.unwrap();
    deployment.stop().await;
}

#[tokio::test]
async fn the_list_survives_a_restart_of_the_link_agent() {
    let mut deployment = Deployment::start("").await;
    let config = deployment.fixture.config();
    let (alice, bob) = (deployment.alice.clone(), identity(60));
    let said = revoked(&config, &[bob.did().as_str()]).await;
    assert!(said.starts_with("revoked "), "{said}");
    until_refused(&deployment, &bob, true).await;
    deployment.kill("link-agent", "link-agent-lost").await;
    // While it is down.
    revoked(&config, &[alice.did().as_str()]).await;
    deployment.let_restart();
    for key in [&alice, &bob] {
        let refused = until(async || {
            let connection = deployment.connect().await.ok()?;
            is_refused(&sign_in(&connection, key).await)
        })
        .await;
        assert!(refused, "for good, from the first statement on");
    }
    deployment.stop().await;
}

#[tokio::test]
async fn a_broken_list_admits_nobody_and_says_where_it_is_broken() {
    let mut deployment = Deployment::start("").await;
    let config = deployment.fixture.config();
    let file = list_of(&deployment.fixture);
    let bob = identity(60);
    revoked(&config, &[bob.did().as_str()]).await;
    until_refused(&deployment, &bob, true).await;
    let good = std::fs::read(&file).unwrap();
    let connection = deployment.connect_alice().await;
    let session = deployment.open(&connection, 0).await.unwrap();

    let broken = format!(
        "{{\"version\":1,\"revoked\":[\n{{\"principal\":\"{}\"}}]}}",
        bob.did()
    );
    std::fs::write(&file, &broken).unwrap();
    let line = deployment.run.reason("revocation-unreadable").await;
    let place = ["role", "level", "line", "column", "key"].map(|name| line[name].to_string());
    assert_eq!(
        place,
        [
            "\"link-agent\"",
            "\"error\"",
            "2",
            "1",
            "\"revoked[0].since\""
        ]
    );
    assert_eq!(line["file"], file.display().to_string());

    // For now, and also who renews; for good whom the last good list names. What is open goes on.
    let newcomer = deployment.connect().await.unwrap();
    assert_eq!(
        is_refused(&sign_in(&newcomer, &identity(61)).await),
        Some(false)
    );
    assert_eq!(
        is_refused(&sign_in(&connection, &deployment.alice).await),
        Some(false)
    );
    assert_eq!(is_refused(&sign_in(&newcomer, &bob).await), Some(true));
    session.query(&["of:fixture-data"]).await.unwrap();
    deployment.open(&connection, 1).await.unwrap();

    // The command neither writes over it nor reads it.
    for arguments in [
        &[bob.did().as_str()][..],
        &["--remove", bob.did().as_str()],
        &["--list"],
    ] {
        let output = revoke(&config, arguments).await;
        assert_eq!(output.status.code(), Some(78), "{arguments:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains("revoked:2:1: revoked[0].since"), "{stderr}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), broken);

    // Mended, in place.
    std::fs::write(&file, good).unwrap();
    eventually(|| sign_in(&newcomer, &deployment.alice)).await;
    session.query(&["of:fixture-data"]).await.unwrap();
    deployment.stop().await;
}

#[tokio::test]
async fn a_list_that_is_broken_at_the_start_admits_nobody_until_it_is_mended() {
    let mut deployment = Deployment::start("").await;
    let file = list_of(&deployment.fixture);
    deployment.kill("link-agent", "link-agent-lost").await;
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "").unwrap();
    deployment.let_restart();
    deployment.run.reason("revocation-unreadable").await;
    let connection = until(async || deployment.connect().await.ok()).await;
    assert_eq!(
        is_refused(&sign_in(&connection, &deployment.alice).await),
        Some(false)
    );
    std::fs::remove_file(&file).unwrap();
    eventually(|| sign_in(&connection, &deployment.alice)).await;
    deployment.stop().await;
}

#[tokio::test]
async fn concurrent_commands_lose_nothing() {
    let fixture = Fixture::new("");
    let config = fixture.config();
    let keys: Vec<Did> = (60..84).map(|seed| identity(seed).did()).collect();
    let commands = keys.iter().map(|did| {
        let (config, did) = (config.clone(), did.to_string());
        tokio::spawn(async move { revoked(&config, &[&did]).await })
    });
    for command in commands.collect::<Vec<_>>() {
        command.await.unwrap();
    }
    let mut found: Vec<String> = listed(&config)
        .await
        .iter()
        .map(|entry| entry["principal"].as_str().unwrap().to_owned())
        .collect();
    let mut expected: Vec<String> = keys.iter().map(Did::to_string).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn it_is_idempotent_and_says_what_it_did() {
    let fixture = Fixture::new("");
    let config = fixture.config();
    let did = identity(60).did();
    let did = did.as_str();
    let said = revoked(&config, &["--list"]).await;
    assert!(said.starts_with("nobody is revoked in "), "{said}");
    assert_eq!(listed(&config).await, [] as [Value; 0]);
    let said = revoked(&config, &["--remove", did]).await;
    assert!(said.starts_with(&format!("not revoked {did}\n")), "{said}");

    revoked(&config, &[did, "--reason", "first"]).await;
    let [entry] = &listed(&config).await[..] else {
        panic!("not one entry");
    };
    assert_eq!(
        (&entry["principal"], &entry["reason"]),
        (&json!(did), &json!("first"))
    );
    assert!(entry["since"].as_u64().unwrap() > 1_700_000_000);
    let file = list_of(&fixture);
    let before = std::fs::metadata(&file).unwrap();
    assert_eq!(before.permissions().mode() & 0o777, 0o600);
    let said = revoked(&config, &[did, "--reason", "second"]).await;
    assert!(
        said.starts_with(&format!("already revoked {did} since 20")),
        "{said}"
    );
    assert!(said.contains(": first\n"), "{said}");
    assert_eq!(
        std::fs::metadata(&file).unwrap().modified().unwrap(),
        before.modified().unwrap()
    );
    let said = revoked(&config, &["--list"]).await;
    assert!(said.starts_with(&format!("{did} since 20")), "{said}");
    assert!(said.ends_with("Z: first\n"), "{said}");
    let said = revoked(&config, &["--remove", did]).await;
    assert!(
        said.starts_with(&format!("no longer revoked {did}")),
        "{said}"
    );
    assert_eq!(listed(&config).await, [] as [Value; 0]);
}

#[tokio::test]
async fn what_it_does_not_take_has_its_status() {
    let fixture = Fixture::new("");
    let config = fixture.config();
    let (own, did) = (identity(1).did(), identity(60).did());
    let (own, did) = (own.as_str(), did.as_str());
    let long = "x".repeat(257);
    for (arguments, status) in [
        (&[][..], 2),
        (&["did:key:z6Mk"], 2),
        (&["--remove", "did:web:example"], 2),
        (&[did, "--list"], 2),
        (&[did, "--remove", did], 2),
        (&[did, "--json"], 2),
        (&["--list", "--reason", "x"], 2),
        (&["--remove", did, "--reason", "x"], 2),
        (&[did, "--reason", ""], 2),
        (&[did, "--reason", "a\nb"], 2),
        (&[did, "--reason", &long], 2),
        (&[own], 2),
    ] {
        let output = revoke(&config, arguments).await;
        let stderr = text(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {stderr}"
        );
        assert!(
            !stderr.is_empty() && output.stdout.is_empty(),
            "{arguments:?}"
        );
    }
    assert!(!list_of(&fixture).exists());
    let output = revoke(&config.with_file_name("none.toml"), &["--list"]).await;
    assert_eq!(output.status.code(), Some(78));

    // A seed that only the link agent may read does not keep an operator from revoking.
    std::fs::remove_file(fixture.folder.path().join("router.seed")).unwrap();
    let output = revoke(&config, &[did]).await;
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("router_seed cannot be read"));

    // A folder that is no folder.
    let fixture = Fixture::new("");
    std::fs::write(fixture.folder.path().join("state"), "").unwrap();
    let output = revoke(&fixture.config(), &[did]).await;
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("folder"));
}
