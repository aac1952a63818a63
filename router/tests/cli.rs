//! What an operator meets first: usage, exit statuses, `keygen` and `did`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

const EXECUTABLE: &str = env!("CARGO_BIN_EXE_memory-router");

fn router(arguments: &[&str]) -> Output {
    Command::new(EXECUTABLE).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap()
}

#[test]
fn help_and_version_succeed() {
    let help = router(&["--help"]);
    assert_eq!(status(&help), 0);
    for command in [
        "run",
        "check",
        "listener",
        "spawner",
        "worker",
        "key-agent",
        "link-agent",
        "directory-broker",
        "keygen",
        "did",
        "revoke",
    ] {
        assert!(
            text(&help.stdout).contains(&format!("\n  {command} ")),
            "{command}"
        );
        let help = router(&[command, "--help"]);
        assert_eq!(status(&help), 0);
        assert!(text(&help.stdout).contains("Usage:"), "{command}");
    }
    let version = router(&["--version"]);
    assert_eq!(status(&version), 0);
    assert_eq!(
        text(&version.stdout),
        format!("memory-router {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn wrong_usage_is_status_2() {
    for arguments in [
        &[][..],
        &["walk"],
        &["run"],
        &["run", "--config"],
        &["listener", "router.toml"],
        &["worker", "--config", "router.toml"],
        &["keygen"],
        &["did"],
        &["did", "--seed", "a", "--seed", "b"],
    ] {
        let output = router(arguments);
        assert_eq!(status(&output), 2, "{arguments:?}");
        assert!(text(&output.stderr).contains("--help"), "{arguments:?}");
    }
}

#[test]
fn a_bad_configuration_is_status_78_and_every_fault_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("router.toml");
    std::fs::write(
        &file,
        "version = 1\nlissen = [\"127.0.0.1:1\"]\n[limits]\nmax_workers = 0\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    for role in [
        "run",
        "listener",
        "spawner",
        "key-agent",
        "link-agent",
        "directory-broker",
    ] {
        let output = router(&[role, "--config", file]);
        assert_eq!(status(&output), 78, "{role}");
        let stderr = text(&output.stderr);
        for part in [
            "router.toml:2:",
            "lissen",
            "router.toml:4:",
            "limits.max_workers",
        ] {
            assert!(stderr.contains(part), "{role}: {part} in {stderr}");
        }
        let output = router(&[role, "--config", "no-such-file.toml"]);
        assert_eq!(status(&output), 78, "{role}");
        assert!(text(&output.stderr).contains("no-such-file.toml"), "{role}");
    }
}

#[test]
fn a_bad_log_level_is_status_78() {
    let folder = tempfile::tempdir().unwrap();
    let config = minimal_config(folder.path());
    for level in ["loud", "info,loud", "memory_router=loud=very"] {
        let output = Command::new(EXECUTABLE)
            .args(["listener", "--config", &config])
            .env("MEMORY_ROUTER_LOG", level)
            .output()
            .unwrap();
        assert_eq!(status(&output), 78);
        let told = text(&output.stderr);
        for part in ["MEMORY_ROUTER_LOG", "warn, info, debug"] {
            assert!(told.contains(part), "{level}: {told}");
        }
    }
}

#[test]
fn a_worker_started_by_hand_fails() {
    let output = router(&["worker"]);
    assert_eq!(status(&output), 2);
    let told = text(&output.stderr);
    assert!(told.contains("started by the spawner"), "{told}");
}

#[test]
fn keygen_says_that_the_seed_is_there_when_it_cannot_tell_its_did() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seed");
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = Command::new(EXECUTABLE)
        .args(["keygen", "--out", path.to_str().unwrap()])
        .stdout(full)
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(status(&output), 75);
    let told = text(&output.stderr);
    assert!(
        told.contains("seed is made") && told.contains("did --seed"),
        "{told}"
    );
    assert!(path.exists());
}

#[test]
fn keygen_makes_a_private_seed_and_did_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seed");
    let name = path.to_str().unwrap();
    let made = router(&["keygen", "--out", name]);
    assert_eq!(status(&made), 0);
    let did = text(&made.stdout).trim_end();
    assert!(did.starts_with("did:key:z6Mk"), "{did}");
    let seed = std::fs::read(&path).unwrap();
    assert_eq!(seed.len(), 32);
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let named = router(&["did", "--seed", name]);
    assert_eq!(
        (status(&named), text(&named.stdout)),
        (0, text(&made.stdout))
    );

    // A second one would take the identity away.
    let again = router(&["keygen", "--out", name]);
    assert_eq!(status(&again), 1);
    assert!(
        text(&again.stderr).contains(name),
        "{}",
        text(&again.stderr)
    );
    assert_eq!(std::fs::read(&path).unwrap(), seed);

    let other = folder.path().join("other");
    let other = router(&["keygen", "--out", other.to_str().unwrap()]);
    assert_ne!(text(&other.stdout), text(&made.stdout));
}

#[test]
fn did_refuses_what_is_not_a_seed() {
    let folder = tempfile::tempdir().unwrap();
    for length in [0, 31, 33, 64] {
        let path = folder.path().join("seed");
        std::fs::write(&path, vec![7; length]).unwrap();
        let output = router(&["did", "--seed", path.to_str().unwrap()]);
        assert_eq!(status(&output), 78, "{length}");
        assert!(output.stdout.is_empty());
        assert!(
            text(&output.stderr).contains("32"),
            "{}",
            text(&output.stderr)
        );
    }
    let missing = folder.path().join("missing");
    assert_eq!(
        status(&router(&["did", "--seed", missing.to_str().unwrap()])),
        78
    );
}

/// A valid configuration whose files are not there.
fn minimal_config(folder: &Path) -> String {
    let file = folder.join("router.toml");
    let text = "version = 1\nlisten = [\"127.0.0.1:1\"]\nhost = \"localhost\"\norigins = []\n\
                directory = \"directory.json\"\npublic_certificate = \"public.pem\"\n\
                tls_key = \"tls.pem\"\nrouter_seed = \"router.seed\"\nipc_dir = \"ipc\"\ndevelopment = true\n";
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn agents_name_the_file_that_they_miss() {
    let folder = tempfile::tempdir().unwrap();
    let config = minimal_config(folder.path());
    for (role, file) in [
        ("key-agent", "public.pem"),
        ("directory-broker", "directory.json"),
    ] {
        let output = router(&[role, "--config", &config]);
        assert_eq!(status(&output), 78, "{role}");
        assert!(
            text(&output.stderr).contains(file),
            "{role}: {}",
            text(&output.stderr)
        );
    }
}
