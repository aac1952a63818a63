//! The command as an operator meets it: statuses, both forms of output, and that it changes nothing.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use crate::support::deployment::Deployment;
use crate::support::{EXECUTABLE, Fixture};
use crate::world::{World, findings};

#[test]
fn a_good_deployment_passes() {
    let world = World::good();
    let policy = ["--toolshed-policy", "policy.json"];
    let (status, outcome) = world.check(&[&policy[..], &["--static", "--strict"]].concat());
    assert_eq!(
        outcome,
        json!({"ok": true, "errors": 0, "warnings": 0, "findings": []})
    );
    assert_eq!(status, 0);
    // On this host: there may be warnings about it, but no errors.
    world.edit(
        "router.toml",
        "127.0.0.1:8443",
        &crate::support::free_address().to_string(),
    );
    let (status, outcome) = world.check(&policy);
    assert_eq!((status, &outcome["errors"]), (0, &json!(0)), "{outcome:#}");
    for good in ["chain.pem", "public.pem"] {
        world.take(good, "public.pem");
        assert_eq!(world.check(&["--static", "--strict"]).0, 0, "{good}");
    }
    // An authority vouches for the toolshed's certificate.
    world.take("authority.pem", "one.pem");
    world.take("one-issued.pem", "toolshed.pem");
    world.edit("policy.json", "\"one.pem\"", "\"toolshed.pem\"");
    let (status, outcome) = world.check(&[&policy[..], &["--static", "--strict"]].concat());
    assert_eq!(status, 0, "{outcome:#}");
}

#[test]
fn the_forms_of_output_say_the_same() {
    let world = World::good();
    world.mode("tls.key", 0o644);
    world.take("soon.pem", "public.pem");
    let (status, outcome) = world.check(&["--static"]);
    assert_eq!(status, 78);
    assert_eq!(
        (&outcome["ok"], &outcome["errors"], &outcome["warnings"]),
        (&json!(false), &json!(1), &json!(1))
    );
    let [error, warning] = findings(&outcome) else {
        panic!("{outcome:#}");
    };
    assert_eq!(
        error,
        &json!({
            "severity": "error",
            "what": "a secret is open to other users",
            "file": "router.toml",
            "line": 7,
            "column": 11,
            "key": "tls_key",
            "found": "tls.key with mode 0644",
            "allowed": "no access for group and others",
            "mend": "chmod 600 tls.key; if others could read it until now, replace the secret",
        })
    );
    assert_eq!(warning["severity"], "warning");

    let output = world.run("check", &["--static"]);
    assert_eq!(output.status.code(), Some(78));
    assert!(output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).unwrap();
    let paragraphs: Vec<&str> = text.split("\n\n").collect();
    assert_eq!(
        paragraphs[0],
        "error: a secret is open to other users\n  where    router.toml:7:11, tls_key\n  \
         found    tls.key with mode 0644\n  allowed  no access for group and others\n  \
         mend     chmod 600 tls.key; if others could read it until now, replace the secret"
    );
    assert!(
        paragraphs[1].starts_with("warning: the public certificate expires soon\n"),
        "{text}"
    );
    assert_eq!(paragraphs[2], "not good: 1 error, 1 warning\n");
}

#[test]
fn warnings_matter_with_strict_only() {
    let world = World::good();
    world.take("soon.pem", "public.pem");
    assert_eq!(world.check(&["--static"]).0, 0);
    let (status, outcome) = world.check(&["--static", "--strict"]);
    assert_eq!((status, &outcome["ok"]), (78, &json!(false)));
}

#[test]
fn wrong_usage_is_status_2() {
    let check = |arguments: &[&str]| {
        let output = std::process::Command::new(EXECUTABLE)
            .arg("check")
            .args(arguments)
            .output()
            .unwrap();
        output.status.code().unwrap()
    };
    let config = ["--config", "router.toml"];
    assert_eq!(check(&[]), 2);
    assert_eq!(check(&[&config[..], &["--static", "--live"]].concat()), 2);
    assert_eq!(check(&[&config[..], &["--loud"]].concat()), 2);
    assert_eq!(check(&[&config[..], &["--toolshed-policy"]].concat()), 2);
    // A file that is not there is no matter of usage.
    assert_eq!(check(&["--config", "no-such-file.toml"]), 78);
}

#[test]
fn faults_of_every_kind_come_in_one_run() {
    let world = World::good();
    world.edit(
        "router.toml",
        "max_workers = 64",
        "max_workers = 64\nmax_worker = 1",
    );
    world.take("expired.pem", "public.pem");
    world.mode("router.seed", 0o640);
    world.edit("directory.json", "\"one.pem\"", "\"none.pem\"");
    world.edit("policy.json", "150000", "150001");
    let (_, outcome) = world.check(&["--static", "--toolshed-policy", "policy.json"]);
    let keys: Vec<&str> = findings(&outcome)
        .iter()
        .map(|one| one["key"].as_str().unwrap())
        .collect();
    let expected = [
        "limits.max_worker",
        "public_certificate",
        "router_seed",
        "toolsheds[0].certificate",
        "limits.frameSlots",
    ];
    assert_eq!(keys, expected, "{outcome:#}");
}

#[test]
fn an_address_in_use_is_an_error_unless_it_is_our_own() {
    let world = World::good();
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    world.edit(
        "router.toml",
        "127.0.0.1:8443",
        &held.local_addr().unwrap().to_string(),
    );
    let in_use = |outcome: &serde_json::Value| {
        let of_listen = findings(outcome)
            .iter()
            .filter(|one| one["key"] == "listen[0]");
        let severities: Vec<_> = of_listen
            .map(|one| one["severity"].as_str().unwrap().to_owned())
            .collect();
        severities
    };
    let (status, outcome) = world.check(&[]);
    assert_eq!((status, in_use(&outcome)), (78, vec!["error".to_owned()]));
    // Nobody is asked.
    assert_eq!(world.check(&["--static"]).0, 0);
    // The lock that `run` holds.
    fs::create_dir(world.path("ipc")).unwrap();
    world.mode("ipc", 0o700);
    let lock = fs::File::open(world.path("ipc")).unwrap();
    lock.try_lock().unwrap();
    let (status, outcome) = world.check(&[]);
    assert_eq!((status, in_use(&outcome)), (0, vec!["warning".to_owned()]));
    // Not by closing it: a process that another test is just starting may have it too.
    lock.unlock().unwrap();
    assert_eq!(world.check(&[]).0, 78);
}

/// Everything that can be told of the files below a folder without reading them.
fn state(folder: &Path) -> Vec<(String, u64, i64, i64, u64, u32)> {
    let mut states = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        states.push((
            path.display().to_string(),
            metadata.ino(),
            metadata.mtime_nsec(),
            metadata.ctime_nsec(),
            metadata.len(),
            metadata.mode(),
        ));
        if metadata.is_dir() {
            states.extend(state(&path));
        }
    }
    states.sort();
    states
}

#[tokio::test]
async fn beside_a_router_that_runs_nothing_changes() {
    let mut deployment = Deployment::start("").await;
    let folder = deployment.fixture.folder.path().to_owned();
    // Before the first connection, for a ledger grows with them.
    let ours = |folder: &Path| {
        let mut states = state(folder);
        states.retain(|(path, ..)| !path.contains("-store"));
        states
    };
    let before = ours(&folder);
    let roles = [
        "listener",
        "spawner",
        "key-agent",
        "link-agent",
        "directory-broker",
    ];
    let processes = roles.map(|role| deployment.role(role));
    for arguments in [&[][..], &["--static"], &["--live"], &["--live", "--json"]] {
        // The gate before a toolshed lives in this process.
        let output = tokio::process::Command::new(EXECUTABLE)
            .args(["check", "--config"])
            .arg(deployment.fixture.config())
            .args(arguments)
            .output()
            .await
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        let says = text.contains("by the router that runs here");
        assert_eq!(says, !arguments.contains(&"--static"), "{text}");
    }
    assert_eq!(ours(&folder), before);
    assert_eq!(roles.map(|role| deployment.role(role)), processes);
    // The links live on: a session opens at each toolshed.
    let connection = deployment.connect_alice().await;
    for index in 0..2 {
        deployment.open(&connection, index).await.unwrap();
    }
    drop(connection);
    deployment.run.signal(Signal::TERM);
    assert_eq!(deployment.run.ended().await.code(), Some(0));
    let log = deployment.run.log().join("\n");
    assert!(!log.contains("link-lost"), "{log}");
}

#[test]
fn the_fixture_of_the_other_tests_is_good() {
    let fixture = Fixture::new("");
    let output = std::process::Command::new(EXECUTABLE)
        .args(["check", "--static", "--config"])
        .arg(fixture.config())
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
