//! `--live`: a real toolshed, one that is somebody else, one of another mode, and impostors that no honest toolshed would be.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memory_config::{Identity, load_certificates, load_private_key};
use memory_transport::{Incoming, PendingUpgrade, ReadLimits, tls};
use memory_wire::flags::{Capability, Flags};
use memory_wire::frame::Opcode;
use memory_wire::ids::Nonce;
use memory_wire::records::{ToolshedHello, attach};
use memory_wire::upgrade::UpgradePolicy;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

use crate::support::{EXECUTABLE, PATIENCE, free_address};
use crate::world::{World, findings};

/// A deployment whose toolshed is at this address, and has the key of its certificate at hand.
fn world(address: SocketAddr) -> World {
    let world = World::good();
    world.edit("directory.json", "127.0.0.1:8100", &address.to_string());
    world.edit("router.toml", "127.0.0.1:8443", &free_address().to_string());
    world.edit(
        "router.toml",
        "[timeouts]",
        "[timeouts]\nlink_handshake = \"2s\"",
    );
    world.take("one.key", "one.key");
    world
}

/// Starts a real toolshed with this seed and mode.
async fn toolshed(world: &World, address: SocketAddr, seed: u8, modern: bool) -> Child {
    // The toolshed finds itself in a directory of its own, whatever the router's says.
    let directory = std::fs::read_to_string(world.path("directory.json")).unwrap();
    let mut directory: Value = serde_json::from_str(&directory).unwrap();
    directory["toolsheds"][0]["did"] = json!(Identity::from_seed([seed; 32]).unwrap().did());
    world.write("toolshed-directory.json", directory.to_string());
    let arguments = json!({
        "port": address.port(),
        "seed": seed,
        "certificate": world.path("one.pem"),
        "key": world.path("one.key"),
        "directory": world.path("toolshed-directory.json"),
        "store": world.path("store"),
        "router": Identity::from_seed([1; 32]).unwrap().did(),
        "modernCellRep": modern,
    });
    world.write("toolshed.json", arguments.to_string());
    let mut child = Command::new(EXECUTABLE)
        .arg("demo-toolshed")
        .arg(world.path("toolshed.json"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("\"ready\":true") {
                return;
            }
        }
        panic!("the toolshed ended");
    };
    timeout(PATIENCE, ready).await.unwrap();
    child
}

/// What `check --live` finds about toolsheds; the status, the findings, and what it saw.
async fn live(world: &World) -> (i32, Vec<Value>, Value) {
    let output = Command::new(EXECUTABLE)
        .args(["check", "--config", "router.toml", "--live", "--json"])
        .current_dir(world.folder.path())
        .output();
    let output = timeout(PATIENCE, output).await.unwrap().unwrap();
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    // Warnings about the host are another matter.
    let about = findings(&outcome)
        .iter()
        .filter(|one| one["file"] == "directory.json" || one["key"] == "modern_cell_rep");
    let about = about.cloned().collect();
    (
        output.status.code().unwrap(),
        about,
        outcome["toolsheds"].clone(),
    )
}

/// The one finding, in short.
fn only(findings: &[Value]) -> (&str, &str, &str) {
    let [one] = findings else {
        panic!("{findings:#?}");
    };
    let text = |part: &str| one[part].as_str().unwrap();
    (text("severity"), text("key"), text("found"))
}

#[tokio::test]
async fn a_real_toolshed_tells_who_it_is() {
    let address = free_address();
    let world = world(address);
    let _toolshed = toolshed(&world, address, 2, false).await;
    let (status, found, seen) = live(&world).await;
    assert_eq!((status, found.len()), (0, 0), "{found:#?}");
    let [seen] = seen.as_array().unwrap().as_slice() else {
        panic!("{seen:#}");
    };
    assert_eq!(seen["name"], "one");
    assert_eq!(seen["address"], address.to_string());
    assert_eq!(seen["greeted"], true);
    assert_eq!(
        seen["did"],
        Identity::from_seed([2; 32]).unwrap().did().to_string()
    );
    assert_eq!(seen["modernCellRep"], false);
    assert!(seen["clockAhead"].as_i64().unwrap().abs() <= 2);
    assert_eq!(seen["flags"]["routerRequestCredit"], true);

    let output = Command::new(EXECUTABLE)
        .args(["check", "--config", "router.toml", "--live"])
        .current_dir(world.folder.path())
        .output();
    let text = String::from_utf8(output.await.unwrap().stdout).unwrap();
    assert!(
        text.contains(&format!("toolshed one at {address}: did:key:z6Mko9h")),
        "{text}"
    );
    assert!(text.contains("legacy cells"), "{text}");
}

#[tokio::test]
async fn a_toolshed_with_another_key_is_somebody_else() {
    let address = free_address();
    let world = world(address);
    let _toolshed = toolshed(&world, address, 5, false).await;
    let (status, found, seen) = live(&world).await;
    let other = Identity::from_seed([5; 32]).unwrap().did().to_string();
    assert_eq!(status, 78);
    assert_eq!(only(&found), ("error", "toolsheds[0].did", other.as_str()));
    assert_eq!(found[0]["line"], 7);
    assert_eq!(seen[0]["did"], other);
}

#[tokio::test]
async fn a_toolshed_of_another_cell_mode_is_found() {
    let address = free_address();
    let world = world(address);
    let _toolshed = toolshed(&world, address, 2, true).await;
    let (status, found, seen) = live(&world).await;
    assert_eq!(status, 78);
    assert_eq!(only(&found), ("error", "modern_cell_rep", "false"));
    assert_eq!(seen[0]["modernCellRep"], true);
}

#[tokio::test]
async fn nobody_there_and_another_certificate_are_told_apart() {
    let address = free_address();
    let world = world(address);
    let (status, found, seen) = live(&world).await;
    assert_eq!(status, 78);
    assert_eq!(only(&found).1, "toolsheds[0].address");
    assert_eq!(seen[0]["greeted"], false);

    let _toolshed = toolshed(&world, address, 2, false).await;
    // Another pin than what it shows; it is for the same name.
    world.take("one-soon.pem", "one.pem");
    let (_, found, _) = live(&world).await;
    let about: Vec<_> = found
        .iter()
        .filter(|one| one["severity"] == "error")
        .collect();
    assert_eq!(about.len(), 1, "{found:#?}");
    assert_eq!(about[0]["key"], "toolsheds[0].certificate");
}

/// How an impostor greets.
struct Greeting {
    /// Whose DID it names.
    named: u8,
    /// Who signs.
    signer: u8,
    /// Seconds that its clock is ahead.
    ahead: i64,
    credit: bool,
}

const HONEST: Greeting = Greeting {
    named: 2,
    signer: 2,
    ahead: 0,
    credit: true,
};

/// Greets one connection, and returns what came in answer to it.
async fn impostor(listener: TcpListener, folder: &Path, greeting: Greeting) -> usize {
    let chain = load_certificates(&folder.join("one.pem")).unwrap();
    let key = load_private_key(&folder.join("one.key")).unwrap();
    let config = tls::server_config_from_key(chain, key).unwrap();
    let deadline = Instant::now() + PATIENCE;
    let (stream, _) = listener.accept().await.unwrap();
    let stream = tls::accept(stream, config, deadline).await.unwrap();
    let pending = PendingUpgrade::receive(stream, &UpgradePolicy::Private, None, deadline)
        .await
        .unwrap();
    let (mut socket, _) = pending.accept(ReadLimits::new(4096)).await.unwrap();

    let mut flags = Flags::new();
    flags
        .insert("routerEncodingNegotiation", Capability::Flag(true))
        .unwrap();
    flags
        .insert("routerRequestCredit", Capability::Flag(greeting.credit))
        .unwrap();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let hello = ToolshedHello {
        toolshed: Identity::from_seed([greeting.named; 32]).unwrap().did(),
        nonce: Nonce::new([3; 32]),
        issued: now.checked_add_signed(greeting.ahead).unwrap(),
        flags: flags.canonical(),
    };
    let input = hello.signing_input().unwrap();
    let signature = Identity::from_seed([greeting.signer; 32])
        .unwrap()
        .sign(&input);
    socket
        .writer
        .send_slice(Opcode::Binary, &attach(input, signature))
        .await
        .unwrap();
    let mut answers = 0;
    while let Ok(incoming) = socket.reader.next().await {
        match incoming {
            Incoming::Close { .. } => break,
            _ => answers += 1,
        }
    }
    answers
}

/// What is found of an impostor. It gets no answer to its greeting: no router is made known to it.
async fn found_of(greeting: Greeting) -> (i32, Vec<Value>, Value) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = world(listener.local_addr().unwrap());
    let answers = impostor(listener, world.folder.path(), greeting);
    let (outcome, answers) = tokio::join!(live(&world), timeout(PATIENCE, answers));
    assert_eq!(answers.unwrap(), 0);
    outcome
}

#[tokio::test]
async fn an_honest_greeting_is_good_enough() {
    let (status, found, _) = found_of(HONEST).await;
    assert_eq!((status, found.len()), (0, 0), "{found:#?}");
}

#[tokio::test]
async fn clocks_apart_are_found() {
    for (ahead, severity, side) in [
        (-90, "error", "behind"),
        (90, "error", "ahead"),
        (30, "warning", "ahead"),
    ] {
        let (status, found, seen) = found_of(Greeting { ahead, ..HONEST }).await;
        let (found_severity, key, text) = only(&found);
        assert_eq!((found_severity, key), (severity, "toolsheds[0].address"));
        assert!(text.ends_with(side), "{text}");
        assert_eq!(status, if severity == "error" { 78 } else { 0 });
        assert!(seen[0]["clockAhead"].as_i64().unwrap().abs_diff(ahead) <= 2);
    }
}

#[tokio::test]
async fn a_greeting_that_another_key_signed_is_nobodys() {
    let (status, found, seen) = found_of(Greeting {
        signer: 9,
        ..HONEST
    })
    .await;
    assert_eq!((status, only(&found).1), (78, "toolsheds[0].did"));
    assert_eq!(seen[0]["did"], Value::Null);
    let (_, found, _) = found_of(Greeting {
        named: 9,
        signer: 9,
        ..HONEST
    })
    .await;
    let nine = Identity::from_seed([9; 32]).unwrap().did().to_string();
    assert_eq!(only(&found).2, nine);
}

#[tokio::test]
async fn a_toolshed_that_serves_no_routers_is_found() {
    let (status, found, _) = found_of(Greeting {
        credit: false,
        ..HONEST
    })
    .await;
    assert_eq!(status, 78);
    assert!(only(&found).2.contains("routerRequestCredit"));
}

#[tokio::test]
async fn who_says_nothing_is_not_waited_for_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = world(listener.local_addr().unwrap());
    let begun = std::time::Instant::now();
    let (status, found, _) = live(&world).await;
    assert_eq!((status, only(&found).1), (78, "toolsheds[0].address"));
    assert!(begun.elapsed() >= Duration::from_secs(2));
    drop(listener);
}
