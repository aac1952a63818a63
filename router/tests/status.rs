//! What roles show, as `status` and the metrics endpoint of real processes tell it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};
use support::deployment::{Deployment, until};
use support::{EXECUTABLE, Fixture, PATIENCE, free_address, signal_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

/// Roles of a deployment with metrics, in the order in which they are told.
const ROLES: [&str; 7] = [
    "run",
    "listener",
    "spawner",
    "key-agent",
    "link-agent",
    "directory-broker",
    "metrics",
];

#[tokio::test]
async fn every_role_is_told_with_its_numbers() {
    let (deployment, metrics) = start().await;
    let connection = deployment.connect_alice().await;
    let session = deployment.open(&connection, 0).await.unwrap();
    // Workers report at most once a second.
    let status = until(async || {
        let (code, status) = status(&deployment.fixture).await;
        let opens = sample(&status, "open_seconds", &[])?;
        (code == 0 && opens["counts"].as_array()?.iter().any(|count| *count != 0)).then_some(status)
    })
    .await;

    let roles = status["roles"].as_array().unwrap();
    let told: Vec<&str> = roles
        .iter()
        .map(|role| role["role"].as_str().unwrap())
        .collect();
    assert_eq!(told, ROLES);
    for role in roles.iter().skip(1) {
        let name = role["role"].as_str().unwrap();
        assert_eq!(role["up"], true, "{role}");
        assert_eq!(role["pid"], deployment.role(name), "{role}");
    }
    for (name, labels, expected) in [
        ("connections", [("state", "authenticated")], 1),
        ("connections", [("state", "unauthenticated")], 0),
        ("workers", [("state", "serving")], 1),
        ("connection_budget_current", [("budget", "sessions")], 1),
        ("connection_budget_current", [("budget", "principals")], 1),
        ("connection_budget_limit", [("budget", "sessions")], 1200),
        ("role_restarts_total", [("child", "spawner")], 0),
        ("agent_ready", [("agent", "link-agent")], 1),
    ] {
        let found = sample(&status, name, &labels);
        assert_eq!(found, Some(&Value::from(expected)), "{name} {labels:?}");
    }
    // The agents' own: one connection, one key, one space at the first toolshed.
    for (name, labels, expected) in [
        (
            "link_state",
            &[("toolshed", "0"), ("state", "up")][..],
            json!(1),
        ),
        (
            "link_state",
            &[("toolshed", "0"), ("state", "down")],
            json!(0),
        ),
        ("link_epochs_total", &[("toolshed", "0")], json!(1)),
        ("link_unanswered_requests", &[("toolshed", "0")], json!(0)),
        ("contexts", &[], json!(1)),
        ("statements_total", &[], json!(1)),
        ("directory_usable", &[], json!(1)),
        ("directory_failures_total", &[], json!(0)),
        ("data_sockets_total", &[("outcome", "committed")], json!(1)),
        (
            "data_sockets_total",
            &[("outcome", "rolled-back")],
            json!(0),
        ),
        ("signatures_total", &[], json!(1)),
    ] {
        let found = sample(&status, name, labels);
        assert_eq!(found, Some(&expected), "{name} {labels:?}");
    }
    // Both read whole seconds, one after the other.
    let skew = sample(&status, "toolshed_clock_skew_seconds", &[("toolshed", "0")]);
    let skew = skew.and_then(Value::as_f64).unwrap();
    assert!(skew.abs() <= 1.0, "{skew}");
    for (name, labels) in [
        ("control_request_seconds", &[("toolshed", "0")][..]),
        ("dial_seconds", &[]),
    ] {
        let counts = &sample(&status, name, labels).unwrap()["counts"];
        let all: u64 = counts
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .sum();
        assert!(all > 0, "{name}");
    }
    let budget = |role: &str, name: &str| {
        let budgets = status["budgets"].as_array().unwrap();
        let mut found = budgets
            .iter()
            .filter(|budget| budget["role"] == role && budget["name"] == name);
        found.next().unwrap().clone()
    };
    for role in ["listener", "spawner"] {
        let workers = budget(role, "max_workers");
        assert_eq!(workers["current"], 1, "{role}");
        assert_eq!(workers["limit"], 512, "{role}");
        assert_eq!(workers["full"], false, "{role}");
    }
    let keys = budget("link-agent", "max_connections_per_principal");
    assert_eq!(
        (&keys["current"], &keys["limit"]),
        (&json!(1), &json!(1000))
    );
    let waiters = budget("link-agent", "max_link_waiters");
    assert_eq!(
        (&waiters["current"], &waiters["limit"]),
        (&json!(0), &json!(1024))
    );
    assert_eq!(budget("directory-broker", "max_pending_dials")["peak"], 1);
    assert_eq!(budget("key-agent", "signing_channels")["peak"], 1);
    let tokens = budget("listener", "max_new_connections_per_source_per_second");
    assert!(tokens["peak"].as_u64() >= Some(1), "{tokens}");

    let text = scrape(metrics).await;
    for line in [
        "memory_router_up{role=\"link-agent\"} 1",
        "memory_router_connections{role=\"listener\",state=\"authenticated\"} 1",
        "memory_router_budget_current{role=\"spawner\",budget=\"max_workers\"} 1",
        "memory_router_open_seconds_count{role=\"spawner\"} 1",
        "# TYPE memory_router_client_bytes_total counter",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    // Numbers only: no principal, space or address.
    assert!(!text.contains("did:key"), "{text}");
    assert!(!text.contains("127.0.0.1"), "{text}");

    // Everything the connection held is given back when it is over.
    session.close().await.unwrap();
    connection.close().await;
    until(async || {
        let (_, status) = self::status(&deployment.fixture).await;
        let left = sample(
            &status,
            "connection_budget_current",
            &[("budget", "principals")],
        )?;
        let ended = sample(&status, "connections_ended_total", &[("outcome", "clean")])?;
        (*left == 0 && *ended == 1).then_some(())
    })
    .await;
    deployment.stop().await;
}

#[tokio::test]
async fn a_role_that_hangs_is_down_and_the_rest_is_served() {
    let (deployment, metrics) = start().await;
    let pid = deployment.role("spawner");
    signal_process(pid, Signal::STOP);
    let (code, status) = status(&deployment.fixture).await;
    assert_eq!(code, 75);
    let spawner = &status["roles"][2];
    assert_eq!(
        (&spawner["up"], &spawner["fault"]),
        (&false.into(), &"late".into())
    );
    let text = scrape(metrics).await;
    assert!(
        text.contains("memory_router_up{role=\"spawner\"} 0\n"),
        "{text}"
    );
    assert!(
        text.contains("memory_router_up{role=\"listener\"} 1\n"),
        "{text}"
    );
    assert!(!text.contains("memory_router_workers{"), "{text}");
    assert!(text.contains("memory_router_accepting{"), "{text}");
    signal_process(pid, Signal::CONT);

    // One that died is counted when it is back.
    signal_process(deployment.role("directory-broker"), Signal::KILL);
    until(async || {
        let (code, status) = self::status(&deployment.fixture).await;
        let restarts = sample(
            &status,
            "role_restarts_total",
            &[("child", "directory-broker")],
        )?;
        (code == 0 && *restarts == 1).then_some(())
    })
    .await;
    deployment.stop().await;
}

#[tokio::test]
async fn every_metric_is_documented_and_every_documented_one_is_there() {
    let (deployment, metrics) = start().await;
    let text = scrape(metrics).await;
    deployment.stop().await;
    let exposed: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|rest| Some(rest.split(' ').next()?.to_owned()))
        .collect();
    assert!(exposed.len() > 30, "{exposed:?}");

    let operations = document("operations.md");
    let documented: BTreeSet<String> = operations
        .lines()
        .filter_map(|line| line.strip_prefix("| `memory_router_")?.split_once('`'))
        .map(|(name, _)| format!("memory_router_{name}"))
        .collect();
    let undocumented: Vec<_> = exposed.difference(&documented).collect();
    assert!(
        undocumented.is_empty(),
        "not in the table: {undocumented:?}"
    );
    let gone: Vec<_> = documented.difference(&exposed).collect();
    assert!(gone.is_empty(), "not exposed: {gone:?}");
    for name in names(&operations) {
        assert!(exposed.contains(&name), "operations.md names {name}");
    }

    let dashboard = document("grafana-dashboard.json");
    let shown: BTreeSet<String> = names(&dashboard).into_iter().collect();
    for name in &shown {
        assert!(exposed.contains(name), "the dashboard names {name}");
    }
    let missing: Vec<_> = exposed.difference(&shown).collect();
    assert!(missing.is_empty(), "not on the dashboard: {missing:?}");
    check_dashboard(&serde_json::from_str(&dashboard).unwrap());
}

#[tokio::test]
async fn only_a_scrape_is_answered_and_a_slow_peer_holds_up_nobody() {
    let address = free_address();
    let fixture = Fixture::new(&listening(address));
    // Whoever starts the roles makes their folder.
    drop(fixture.stand_in("unused.sock"));
    let mut metrics = fixture.start("metrics");
    metrics.reason("listening").await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HT").await.unwrap();
        silent.push(stream);
    }
    for (request, status) in [
        ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK"),
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404 Not Found"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        ("GET\r\n\r\n", "400 Bad Request"),
    ] {
        let answer = ask(address, request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{answer}"
        );
    }
    // Without any other role it still answers, and says so.
    let text = scrape(address).await;
    assert!(
        text.contains("memory_router_up{role=\"listener\"} 0\n"),
        "{text}"
    );
    assert!(
        text.contains("memory_router_up{role=\"metrics\"} 1\n"),
        "{text}"
    );
    assert!(!text.contains("role=\"run\""), "{text}");
    metrics.signal(Signal::TERM);
    assert_eq!(metrics.ended().await.code(), Some(0));
}

#[tokio::test]
async fn statuses_say_what_was_seen() {
    let fixture = Fixture::new("");
    let (code, nobody) = status(&fixture).await;
    assert_eq!(code, 69);
    let roles = nobody["roles"].as_array().unwrap();
    assert_eq!(
        roles.len(),
        ROLES.len() - 2,
        "neither run nor metrics is missed"
    );
    assert!(roles.iter().all(|role| role["fault"] == "absent"));
    // Without its setting the role has nothing to do.
    let mut metrics = fixture.start("metrics");
    assert_eq!(metrics.ended().await.code(), Some(78));
    for (arguments, expected) in [
        (vec!["--watch", "0"], 2),
        (vec!["--watch", "4000"], 2),
        (vec!["--colour"], 2),
    ] {
        let output = command(&fixture).args(&arguments).output();
        let output = timeout(PATIENCE, output).await.unwrap().unwrap();
        assert_eq!(output.status.code(), Some(expected), "{arguments:?}");
    }
    fixture.configure("nonsense = 1\n");
    assert_eq!(status(&fixture).await.0, 78);
}

#[tokio::test]
async fn watching_appends_blocks_where_there_is_no_terminal_and_ends_when_told() {
    let (deployment, _) = start().await;
    let mut watching = command(&deployment.fixture)
        .args(["--watch", "1"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut looks = 0;
    let mut text = String::new();
    while looks < 3 {
        let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        let line = line.unwrap();
        looks += u32::from(line.starts_with("memory-router at "));
        text += &(line + "\n");
    }
    assert!(!text.contains('\x1b'), "{text}");
    for wanted in [
        "\nRoles\n",
        "\nBudgets\n",
        "max_workers",
        "link-agent",
        "a second",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    signal_process(watching.id().unwrap(), Signal::INT);
    let rest = async { while let Ok(Some(_)) = lines.next_line().await {} };
    timeout(PATIENCE, rest).await.unwrap();
    let ended = timeout(PATIENCE, watching.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(0));
    deployment.stop().await;
}

fn listening(metrics: SocketAddr) -> String {
    format!("metrics_listen = \"{metrics}\"\n")
}

/// A deployment with metrics, as soon as every role shows itself.
async fn start() -> (Deployment, SocketAddr) {
    let metrics = free_address();
    let deployment = Deployment::start(&listening(metrics)).await;
    until(async || (status(&deployment.fixture).await.0 == 0).then_some(())).await;
    (deployment, metrics)
}

fn command(fixture: &Fixture) -> Command {
    let mut command = Command::new(EXECUTABLE);
    command.arg("status").arg("--config").arg(fixture.config());
    command.kill_on_drop(true);
    command
}

/// The exit status of `status --json` and what it printed.
async fn status(fixture: &Fixture) -> (i32, Value) {
    let output = command(fixture).arg("--json").output();
    let output = timeout(PATIENCE, output).await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), support::json_of(&text))
}

/// The value of a sample with these labels, of the first role that has it.
fn sample<'a>(status: &'a Value, name: &str, labels: &[(&str, &str)]) -> Option<&'a Value> {
    let families = status["families"].as_array()?.iter();
    let mut samples = families
        .filter(|family| family["name"] == name)
        .flat_map(|family| family["samples"].as_array().into_iter().flatten());
    let found = samples.find(|sample| {
        labels
            .iter()
            .all(|(label, value)| sample["labels"][*label] == *value)
    });
    Some(&found?["value"])
}

#[tokio::test]
async fn a_reader_that_has_seen_enough_is_no_failure() {
    let (deployment, _) = start().await;
    for arguments in [&["--json"][..], &["--json", "--watch", "1"]] {
        let mut command = command(&deployment.fixture);
        command
            .args(arguments)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = timeout(PATIENCE, child.wait_with_output())
            .await
            .unwrap()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.as_ref()), (Some(0), ""));
    }
    deployment.stop().await;
}

/// What an endpoint answers to a request.
async fn ask(address: SocketAddr, request: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    timeout(PATIENCE, exchange).await.unwrap()
}

async fn scrape(address: SocketAddr) -> String {
    let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains("Content-Type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(
        head.contains(&format!("Content-Length: {}\r\n", body.len())),
        "{head}"
    );
    body.to_owned()
}

fn document(name: &str) -> String {
    let docs: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    std::fs::read_to_string(docs.join(name)).unwrap()
}

/// Every metric that a text names, without what a histogram's series add.
fn names(text: &str) -> Vec<String> {
    let is_part = |character: char| character.is_ascii_lowercase() || character == '_';
    text.split("memory_router_")
        .skip(1)
        .map(|rest| {
            let end = rest
                .find(|character| !is_part(character))
                .unwrap_or(rest.len());
            let name = format!("memory_router_{}", &rest[..end]);
            ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| {
                    name.strip_suffix(suffix)
                        .filter(|name| name.ends_with("_seconds"))
                })
                .map_or(name.clone(), ToOwned::to_owned)
        })
        .collect()
}

/// What Grafana needs to import it, and no two panels in one place.
fn check_dashboard(dashboard: &Value) {
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(
        variables
            .iter()
            .any(|variable| variable["type"] == "datasource" && variable["query"] == "prometheus")
    );
    assert!(dashboard["uid"].is_string() && dashboard["title"].is_string());
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && taken.insert((x, y)), "{panel}");
            }
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{panel}");
            assert!(target["expr"].as_str().unwrap().contains("memory_router_"));
        }
    }
}
