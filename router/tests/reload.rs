//! SIGHUP to `run`: what takes effect while connections live, and what is refused. Real processes throughout.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use memory_client::{Connection, Options};
use rustix::process::Signal;
use serde_json::Value;
use support::deployment::{Deployment, until};
use support::{Fixture, json_of, pair, signal_process};

/// Clients come as quickly as these tests make them.
const QUICK: &str =
    "max_new_connections_per_source_per_second = 1000\nmax_new_connections_per_second = 1000\n";

/// `[limits]` that let this many connections in, from one address.
fn at_most(workers: u32) -> String {
    format!(
        "[limits]\nmax_workers = {workers}\nmax_unauthenticated = {workers}\nmax_per_source = {workers}\n\
         max_unauthenticated_per_source = {workers}\n{QUICK}"
    )
}

/// A new certificate and key in place of those that the configuration names.
fn replace_pair(deployment: &Deployment) -> Vec<u8> {
    let path = |name: &str| deployment.fixture.folder.path().join(name);
    pair(&path("public.pem"), &path("tls.pem"))
}

/// Whether a client that trusts this certificate alone is served.
async fn is_shown(deployment: &Deployment, certificate: &[u8]) -> bool {
    let endpoint = deployment.endpoint("localhost", certificate);
    Connection::connect(&endpoint, Options::default())
        .await
        .is_ok()
}

/// Whether a line says that the listener has read the configuration again.
fn listener_reloaded(line: &str) -> bool {
    let line = json_of(line);
    line["reason"] == "reloaded" && line["role"] == "listener"
}

/// The lines with a reason that were read so far.
fn lines(deployment: &Deployment, reason: &str) -> Vec<Value> {
    let log = deployment.run.log().iter().map(|line| json_of(line));
    log.filter(|line| line["reason"] == reason).collect()
}

#[tokio::test]
async fn another_certificate_is_shown_to_new_clients_while_the_others_stay() {
    let mut deployment = Deployment::start(&format!("[limits]\n{QUICK}")).await;
    let connection = deployment.connect_alice().await;
    let session = deployment.open(&connection, 0).await.unwrap();
    // A signal to every process of this name reaches its worker too, which has nothing to reload.
    let serving = deployment
        .run
        .line(|line| {
            let line = json_of(line);
            line["reason"] == "serving" && line["role"] == "worker"
        })
        .await;
    let worker = json_of(&serving)["pid"].as_u64().unwrap();
    signal_process(u32::try_from(worker).unwrap(), Signal::HUP);
    let mut current = deployment.fixture.certificate.clone();
    // More clients than idle workers are kept, so that none of the old ones is left; and more than one reload.
    for _ in 0..2 {
        let next = replace_pair(&deployment);
        deployment.reload();
        deployment.run.reason("settings").await;
        for _ in 0..10 {
            assert!(is_shown(&deployment, &next).await);
        }
        assert!(!is_shown(&deployment, &current).await);
        current = next;
    }
    // The connection of the first certificate lives, also for new data sockets.
    session.query(&["of:fixture-data"]).await.unwrap();
    deployment.open(&connection, 1).await.unwrap();
    deployment.stop().await;
}

#[tokio::test]
async fn a_key_of_another_certificate_is_refused_and_the_pair_before_stays() {
    let mut deployment = Deployment::start("").await;
    let before = deployment.fixture.certificate.clone();
    let folder = deployment.fixture.folder.path().to_path_buf();
    let certificate = std::fs::read(folder.join("public.pem")).unwrap();

    // Replaced one after the other, as careless tools do, with a reload in between.
    let after = replace_pair(&deployment);
    let key = std::fs::read(folder.join("tls.pem")).unwrap();
    std::fs::write(folder.join("public.pem"), certificate).unwrap();
    deployment.reload();
    let line = deployment.run.reason("certificate-refused").await;
    assert_eq!(line["role"], "key-agent");
    assert!(
        line["error"]
            .as_str()
            .unwrap()
            .contains("do not belong together"),
        "{line}"
    );
    assert!(is_shown(&deployment, &before).await);

    // Unreadable.
    std::fs::remove_file(folder.join("tls.pem")).unwrap();
    deployment.reload();
    let line = deployment.run.reason("certificate-refused").await;
    assert!(
        line["error"].as_str().unwrap().contains("tls_key"),
        "{line}"
    );
    assert!(is_shown(&deployment, &before).await);
    assert!(!is_shown(&deployment, &after).await);

    // Mended.
    std::fs::write(folder.join("tls.pem"), key).unwrap();
    let mended = replace_pair(&deployment);
    deployment.reload();
    deployment.run.reason("settings").await;
    assert!(is_shown(&deployment, &mended).await);
    deployment.stop().await;
}

#[tokio::test]
async fn an_invalid_file_is_refused_with_every_fault_and_changes_nothing() {
    let mut deployment = Deployment::start("").await;
    let connection = deployment.connect_alice().await;
    let before = deployment.fixture.certificate.clone();
    // The certificate is new and good: it is not taken all the same.
    let after = replace_pair(&deployment);
    deployment
        .fixture
        .configure("[limits]\nmax_workers = 0\nmax_worker = 5\n");
    deployment.reload();
    let place = |line: &Value| {
        ["role", "line", "column", "key", "found"].map(|name| line[name].to_string())
    };
    let first = deployment.run.reason("reload-refused").await;
    let second = deployment.run.reason("reload-refused").await;
    assert_eq!(
        place(&first),
        ["\"run\"", "13", "15", "\"limits.max_workers\"", "\"0\""]
    );
    assert_eq!(second["key"], "limits.max_worker");
    assert!(
        second["allowed"].as_str().unwrap().contains("max_workers"),
        "{second}"
    );
    assert_eq!(
        first["file"].as_str().unwrap(),
        deployment.fixture.config().display().to_string()
    );
    assert!(is_shown(&deployment, &before).await);
    assert!(!is_shown(&deployment, &after).await);
    deployment.open(&connection, 0).await.unwrap();

    // A role that is asked by itself is as strict.
    signal_process(deployment.role("spawner"), Signal::HUP);
    let line = deployment.run.reason("reload-refused").await;
    assert_eq!(line["role"], "spawner");

    // And a good file is taken after it.
    deployment.fixture.configure("");
    deployment.reload();
    deployment.run.reason("settings").await;
    assert!(is_shown(&deployment, &after).await);
    assert!(lines(&deployment, "role-died").is_empty());
    deployment.stop().await;
}

#[tokio::test]
async fn caps_are_raised_and_lowered_under_live_connections() {
    let mut deployment = Deployment::start(&at_most(2)).await;
    let mut live = vec![
        deployment.connect_alice().await,
        deployment.connect_alice().await,
    ];
    assert!(deployment.connect().await.is_err());

    deployment.fixture.configure(&at_most(4));
    deployment.reload();
    for _ in 0..2 {
        live.push(until(async || deployment.connect().await.ok()).await);
    }
    assert!(deployment.connect().await.is_err());

    // Below what is there: all of them go on, and nobody comes until there are fewer.
    deployment.fixture.configure(&at_most(3));
    deployment.reload();
    deployment.run.line(listener_reloaded).await;
    deployment.run.line(listener_reloaded).await;
    assert!(deployment.connect().await.is_err());
    for connection in &live[..2] {
        deployment.open(connection, 0).await.unwrap();
    }
    live.pop().unwrap().close().await;
    deployment.run.reason("client-closed").await;
    assert!(deployment.connect().await.is_err());
    live.pop().unwrap().close().await;
    live.push(until(async || deployment.connect().await.ok()).await);
    assert!(deployment.connect().await.is_err());
    drop(live);
    deployment.stop().await;
}

#[tokio::test]
async fn new_workers_get_the_new_settings_and_live_ones_keep_theirs() {
    let deployment = Deployment::start(&format!("[limits]\n{QUICK}")).await;
    let connection = deployment.connect_alice().await;
    let certificate = deployment.fixture.certificate.clone();
    let text = std::fs::read_to_string(deployment.fixture.config()).unwrap();
    let is_host = async |host: &str| {
        let endpoint = deployment.endpoint(host, &certificate);
        let options = Options::default();
        Connection::connect(&endpoint, options).await.is_ok()
    };
    assert!(is_host("localhost").await);
    // Twice, quickly: the last state of the file wins, however the signals fall together.
    for host in ["localhost:8001", "localhost:8002"] {
        let text = text.replace("\"localhost\"", &format!("\"{host}\""));
        let file = deployment.fixture.folder.path().join("next.toml");
        std::fs::write(&file, text).unwrap();
        std::fs::rename(file, deployment.fixture.config()).unwrap();
        deployment.reload();
    }
    until(async || is_host("localhost:8002").await.then_some(())).await;
    until(async || (!is_host("localhost:8001").await).then_some(())).await;
    for _ in 0..10 {
        assert!(is_host("localhost:8002").await);
        assert!(!is_host("localhost").await);
    }
    deployment.open(&connection, 0).await.unwrap();
    deployment.stop().await;
}

#[tokio::test]
async fn settings_that_need_a_restart_are_named_once_each_and_change_nothing() {
    let mut deployment = Deployment::start("").await;
    let text = std::fs::read_to_string(deployment.fixture.config()).unwrap();
    let other = support::free_address().to_string();
    let text = text
        .replace(&deployment.fixture.public.to_string(), &other)
        .replace("modern_cell_rep", "")
        .replace("\"ipc\"", "\"elsewhere\"")
        .replace("\"router.seed\"", "\"other.seed\"");
    let text = format!("{text}modern_cell_rep = true\n[isolation]\nworker_pool = 2\n");
    std::fs::write(deployment.fixture.config(), text).unwrap();
    deployment.reload();
    deployment
        .run
        .line(|line| {
            let line = json_of(line);
            line["reason"] == "reloaded" && line["role"] == "spawner"
        })
        .await;
    // Every role tells; wait for the last.
    while lines(&deployment, "reloaded").len() < 6 {
        deployment.run.reason("reloaded").await;
    }
    let mut named: Vec<_> = lines(&deployment, "restart-needed")
        .iter()
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap().to_owned();
            (text("role"), text("key"))
        })
        .collect();
    named.sort();
    let expected = [
        ("link-agent", "modern_cell_rep"),
        ("link-agent", "router_seed"),
        ("listener", "listen"),
        ("spawner", "ipc_dir"),
    ];
    let expected = expected.map(|(role, key)| (role.to_owned(), key.to_owned()));
    assert_eq!(named, expected);
    let changed = lines(&deployment, "reloaded");
    assert!(
        changed
            .iter()
            .all(|line| line["changed"] == "[\"isolation.worker_pool\"]"),
        "{changed:#?}"
    );
    let connection = deployment.connect_alice().await;
    deployment.open(&connection, 0).await.unwrap();
    deployment.stop().await;
}

#[tokio::test]
async fn a_hangup_during_the_start_kills_no_role() {
    let fixture = Fixture::new("");
    let mut run = fixture.start("run");
    run.reason("role-started").await;
    for _ in 0..20 {
        run.signal(Signal::HUP);
        tokio::task::yield_now().await;
    }
    run.reason("listener-connected").await;
    run.signal(Signal::HUP);
    run.line(listener_reloaded).await;
    run.signal(Signal::TERM);
    assert_eq!(run.ended().await.code(), Some(0), "{:#?}", run.log());
    let died = run
        .log()
        .iter()
        .any(|line| json_of(line)["reason"] == "role-died");
    assert!(!died, "{:#?}", run.log());
}
