//! The executable as the exercise starts it.
#![allow(clippy::unwrap_used, clippy::panic)]

use memory_config::Identity;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn did(byte: u8) -> String {
    Identity::from_seed([byte; 32]).unwrap().did().to_string()
}

#[test]
fn says_ready_obeys_and_ends_with_its_input() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(at("tls.pem"), made.cert.pem()).unwrap();
    std::fs::write(at("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let directory = json!({"version": 1, "deployment": "local-mode-a",
        "toolsheds": [{"name": "one", "did": did(11), "address": "127.0.0.1:9001",
            "server_name": "localhost", "certificate": "tls.pem"}],
        "spaces": {did(31): {"toolshed": 0, "epoch": 1}}});
    std::fs::write(at("directory.json"), directory.to_string()).unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let fixture = json!({"port": port, "seed": 11, "certificate": "tls.pem", "key": "tls.key",
        "directory": "directory.json", "store": "store", "router": did(21), "space": did(31),
        "principals": [did(41)], "modernCellRep": false});
    std::fs::write(at("fixture.json"), fixture.to_string()).unwrap();
    let (reader, pipe) = std::io::pipe().unwrap();
    drop(reader);
    let full = File::options().write(true).open("/dev/full").unwrap();
    // Twice: the second run finds the store, the ledger and its revocation. Neither can write its log: a full disk, and a
    // pipe that nobody reads.
    for (round, log) in [OwnedFd::from(full), OwnedFd::from(pipe)]
        .iter()
        .enumerate()
    {
        let mut child = Command::new(env!("CARGO_BIN_EXE_memory-toolshed"))
            .arg("fixture")
            .arg(at("fixture.json"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.try_clone().unwrap())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next().unwrap().unwrap();
        assert!(ready.contains("\"ready\":true"), "{ready}");
        assert_eq!(serde_json::from_str::<Value>(&ready).unwrap()["port"], port);
        for command in [
            json!({"fence": true}),
            json!({"revoke": did(21)}),
            json!({"other": 1}),
        ] {
            writeln!(input, "{command}").unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), "{\"acknowledged\":true}");
        }
        drop(input);
        assert!(lines.next().is_none(), "nothing else is said");
        assert!(child.wait().unwrap().success());
        let ledger = std::fs::read_to_string(at("store/router-epochs.jsonl")).unwrap();
        assert_eq!(ledger.matches("permanent").count(), 1, "round {round}");
    }
}
