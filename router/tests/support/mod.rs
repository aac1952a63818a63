//! Real processes of the executable, their log lines, and the files that they need.
#![allow(
    dead_code,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub
)]

pub mod deployment;
pub mod listening;

use std::fs::Permissions;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use memory_config::Identity;
use memory_ipc::{Channel, NamedListener, Packet, connect};
use rcgen::{CertificateParams, KeyPair};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::{Value, json};
use std::os::fd::OwnedFd;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::time::timeout;

/// Longer than anything here takes, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The executable under test.
pub const EXECUTABLE: &str = env!("CARGO_BIN_EXE_memory-router");

/// A folder with everything that a configuration names.
pub struct Fixture {
    pub folder: TempDir,
    /// What the listener listens on.
    pub public: SocketAddr,
    /// The public certificate, DER.
    pub certificate: Vec<u8>,
}

impl Fixture {
    /// `extra` follows the top-level keys: further ones, then sections.
    pub fn new(extra: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let public = free_address();
        let path = |name: &str| folder.path().join(name);
        let certificate = pair(&path("public.pem"), &path("tls.pem"));
        pair(&path("toolshed.pem"), &path("toolshed.key"));
        Identity::from_seed([1; 32])
            .unwrap()
            .write_seed_file(&path("router.seed"))
            .unwrap();
        let directory = json!({
            "version": 1,
            "deployment": "test",
            "toolsheds": [{
                "name": "one",
                "did": Identity::from_seed([2; 32]).unwrap().did().to_string(),
                "address": free_address().to_string(),
                "server_name": "localhost",
                "certificate": "toolshed.pem",
            }],
            "spaces": {},
        });
        std::fs::write(path("directory.json"), directory.to_string()).unwrap();
        let fixture = Self {
            folder,
            public,
            certificate,
        };
        fixture.configure(extra);
        fixture
    }

    /// Writes the configuration anew.
    pub fn configure(&self, extra: &str) {
        let text = format!(
            "version = 1\nlisten = [\"{}\"]\nhost = \"localhost\"\norigins = []\n\
             directory = \"directory.json\"\npublic_certificate = \"public.pem\"\n\
             tls_key = \"tls.pem\"\nrouter_seed = \"router.seed\"\nipc_dir = \"ipc\"\n\
             state_dir = \"state\"\ndevelopment = true\n{extra}",
            self.public
        );
        std::fs::write(self.config(), text).unwrap();
    }

    pub fn config(&self) -> PathBuf {
        self.folder.path().join("router.toml")
    }

    pub fn ipc(&self, name: &str) -> PathBuf {
        self.folder.path().join("ipc").join(name)
    }

    /// Starts a role.
    pub fn start(&self, role: &str) -> Process {
        let mut command = Command::new(EXECUTABLE);
        command
            .arg(role)
            .arg("--config")
            .arg(self.config())
            .env("MEMORY_ROUTER_LOG", "debug")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Process {
            child,
            lines: Some(lines),
            seen: Vec::new(),
        }
    }

    /// Listens where a role would.
    pub fn stand_in(&self, socket: &str) -> NamedListener {
        NamedListener::bind(&self.ipc(socket), &[geteuid().as_raw()]).unwrap()
    }

    /// Connects to a role's socket as soon as it is there.
    pub async fn connect(&self, socket: &str) -> Channel {
        let path = self.ipc(socket);
        let attempt = async {
            loop {
                match connect(&path) {
                    Ok(channel) => return channel,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        timeout(PATIENCE, attempt).await.unwrap()
    }
}

/// A certificate for `localhost` and its key; returns the certificate, DER.
pub fn pair(certificate_file: &Path, key_file: &Path) -> Vec<u8> {
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    std::fs::write(certificate_file, certificate.pem()).unwrap();
    std::fs::write(key_file, key.serialize_pem()).unwrap();
    std::fs::set_permissions(key_file, Permissions::from_mode(0o600)).unwrap();
    certificate.der().to_vec()
}

/// An address that nobody listens on.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// A running process.
pub struct Process {
    pub child: Child,
    /// `None` after [`Self::stop_reading`].
    lines: Option<Lines<BufReader<ChildStderr>>>,
    /// Every line so far, for the report of a failing test.
    seen: Vec<String>,
}

impl Process {
    pub fn signal(&self, signal: Signal) {
        signal_process(self.child.id().unwrap(), signal);
    }

    /// Closes the reading end of its standard error.
    pub fn stop_reading(&mut self) {
        self.lines = None;
    }

    /// Waits for a line of its standard error.
    pub async fn line(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let lines = self.lines.as_mut().expect("nobody reads");
            let line = match timeout(PATIENCE, lines.next_line()).await {
                Ok(Ok(Some(line))) => line,
                other => panic!("no such line ({other:?}) among {:#?}", self.seen),
            };
            self.seen.push(line.clone());
            if wanted(&line) {
                return line;
            }
        }
    }

    /// Waits for a log line with this reason.
    pub async fn reason(&mut self, reason: &str) -> Value {
        let line = self.line(|line| json_of(line)["reason"] == reason).await;
        json_of(&line)
    }

    /// Waits for its end, reading its log meanwhile.
    pub async fn ended(&mut self) -> ExitStatus {
        let end = async {
            if let Some(lines) = &mut self.lines {
                while let Ok(Some(line)) = lines.next_line().await {
                    self.seen.push(line);
                }
            }
            self.child.wait().await.unwrap()
        };
        let ended = timeout(PATIENCE, end).await;
        ended.unwrap_or_else(|_| panic!("does not end: {:#?}", self.seen))
    }

    /// Everything it has written that was read.
    pub fn log(&self) -> &[String] {
        &self.seen
    }
}

/// A line as JSON, or null.
pub fn json_of(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_default()
}

pub fn signal_process(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// The next packet of a channel.
pub async fn receive<P: Packet>(channel: &Channel) -> (P, Vec<OwnedFd>) {
    timeout(PATIENCE, channel.recv_packet())
        .await
        .unwrap()
        .unwrap()
        .expect("end of file")
}

/// Waits for a channel's end.
pub async fn end_of_file(channel: &Channel) {
    let mut packet = Vec::new();
    while timeout(PATIENCE, channel.recv(&mut packet))
        .await
        .unwrap()
        .unwrap()
        .is_some()
    {}
}
