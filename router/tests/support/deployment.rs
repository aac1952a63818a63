//! A whole deployment of real processes: the router with all its roles, two toolsheds, and a gate before the second.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use memory_client::{ClientError, Connection, Endpoint, OpenOptions, Options, Session};
use memory_config::Identity;
use memory_wire::Did;
use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{EXECUTABLE, Fixture, PATIENCE, Process, free_address, pair, signal_process};

/// Bytes that no message of a client's side has on a new data socket but `router.hello`, which follows the binding.
const HELLO_LEN: usize = 800;

/// Pause between attempts of what only the passing of time brings about.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

pub struct Deployment {
    pub fixture: Fixture,
    pub run: Process,
    pub gate: Gate,
    pub alice: Arc<Identity>,
    /// Alice's space at each toolshed.
    pub spaces: [Did; 2],
    toolsheds: Vec<Child>,
}

impl Deployment {
    /// Everything up, and clients served. `extra` as for [`Fixture::new`].
    pub async fn start(extra: &str) -> Self {
        let fixture = Fixture::new(extra);
        let path = |name: &str| fixture.folder.path().join(name);
        let identity = |seed: u8| Identity::from_seed([seed; 32]).unwrap();
        let spaces = [identity(30), identity(31)].map(|identity| identity.did());
        let own = [free_address(), free_address()];
        let gate = Gate::new(own[1]).await;
        let directory = |addresses: [SocketAddr; 2]| {
            let toolsheds: Vec<Value> = (0..2)
                .map(|index: usize| {
                    json!({
                        "name": format!("toolshed-{index}"),
                        "did": identity(20 + u8::try_from(index).unwrap()).did(),
                        "address": addresses[index].to_string(),
                        "server_name": "localhost",
                        "certificate": format!("toolshed-{index}.pem"),
                    })
                })
                .collect();
            let listed: Map<String, Value> = (0..2)
                .map(|index| {
                    let place = json!({ "toolshed": index, "epoch": 1 });
                    (spaces[index].to_string(), place)
                })
                .collect();
            let unlisted: Map<String, Value> =
                "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
                    .chars()
                    .map(|character| (character.to_string(), json!(1)))
                    .collect();
            json!({
                "version": 1,
                "deployment": "test",
                "toolsheds": toolsheds,
                "spaces": listed,
                "unlisted": { "epoch": 1, "last_character": unlisted },
            })
        };
        // Routers reach the second toolshed through the gate.
        std::fs::write(
            path("directory.json"),
            directory([own[0], gate.address]).to_string(),
        )
        .unwrap();
        std::fs::write(path("toolsheds.json"), directory(own).to_string()).unwrap();
        let mut toolsheds = Vec::new();
        for index in 0..2 {
            let name = |suffix: &str| path(&format!("toolshed-{index}{suffix}"));
            pair(&name(".pem"), &name(".key"));
            identity(20 + u8::try_from(index).unwrap())
                .write_seed_file(&name(".seed"))
                .unwrap();
            let arguments = json!({
                "port": own[index].port(),
                "seed": name(".seed"),
                "certificate": name(".pem"),
                "key": name(".key"),
                "directory": path("toolsheds.json"),
                "store": name("-store"),
                "router": identity(1).did(),
                "space": spaces[index],
                "principals": [identity(10).did()],
                "modernCellRep": false,
            });
            std::fs::write(name(".json"), arguments.to_string()).unwrap();
        }
        // Each reads the directory, which names the certificates of both.
        for index in 0..2 {
            toolsheds.push(start_toolshed(&path(&format!("toolshed-{index}.json"))).await);
        }
        let mut run = fixture.start("run");
        run.line(|line| line == "memory-router-ready").await;
        Self {
            fixture,
            run,
            gate,
            alice: Arc::new(identity(10)),
            spaces,
            toolsheds,
        }
    }

    /// How to reach the router while it shows this certificate.
    pub fn endpoint(&self, host: &str, certificate: &[u8]) -> Endpoint {
        Endpoint::new(host, self.fixture.public, vec![certificate.to_vec()]).unwrap()
    }

    pub async fn connect(&self) -> Result<Connection, ClientError> {
        let endpoint = self.endpoint("localhost", &self.fixture.certificate);
        Connection::connect(&endpoint, Options::default()).await
    }

    /// A connection on which Alice has signed in.
    pub async fn connect_alice(&self) -> Connection {
        let connection = self.connect().await.unwrap();
        connection.authenticate(&self.alice).await.unwrap();
        connection
    }

    pub async fn open(
        &self,
        connection: &Connection,
        index: usize,
    ) -> Result<Session, ClientError> {
        connection
            .open(self.spaces[index], self.alice.did(), OpenOptions::default())
            .await
    }

    /// As [`Self::open`], beside what happens next.
    pub fn begin_open(
        &self,
        connection: &Connection,
        index: usize,
    ) -> JoinHandle<Result<Session, ClientError>> {
        let (connection, space, alice) = (connection.clone(), self.spaces[index], self.alice.did());
        tokio::spawn(async move {
            let open = connection.open(space, alice, OpenOptions::default());
            open.await
        })
    }

    /// As [`Self::create`], beside what happens next, and until it is not refused for now any more.
    pub fn begin_create(&self, connection: &Connection, seed: u8) -> JoinHandle<Session> {
        let connection = connection.clone();
        tokio::spawn(async move { eventually(|| create(&connection, seed)).await })
    }

    /// Creates a space, which lives at the second toolshed, with a key of its own.
    pub async fn create(&self, connection: &Connection, seed: u8) -> Result<Session, ClientError> {
        create(connection, seed).await
    }

    /// The process of a role, by its command line, among the children of `run`.
    pub fn role(&self, role: &str) -> u32 {
        let run = self.run.child.id().unwrap();
        let children = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let parent = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?;
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let is_role = command.split(|byte| *byte == 0).nth(1) == Some(role.as_bytes());
            (parent == run.to_string() && is_role).then_some(pid)
        });
        let found: Vec<_> = children.collect();
        assert_eq!(found.len(), 1, "{role}: {found:?}");
        found[0]
    }

    /// Kills a role and keeps `run` from starting it again until [`Self::let_restart`]. Returns when its loss was noticed.
    pub async fn kill(&mut self, role: &str, lost: &str) {
        let pid = self.role(role);
        self.run.signal(Signal::STOP);
        signal_process(pid, Signal::KILL);
        self.run.reason(lost).await;
    }

    pub fn let_restart(&self) {
        self.run.signal(Signal::CONT);
    }

    /// Has `run` reload.
    pub fn reload(&self) {
        self.run.signal(Signal::HUP);
    }

    /// Stops the router, and the toolsheds after it.
    pub async fn stop(mut self) {
        self.run.signal(Signal::TERM);
        let status = self.run.ended().await;
        assert_eq!(status.code(), Some(0), "{:#?}", self.run.log());
        for toolshed in &mut self.toolsheds {
            drop(toolshed.stdin.take());
            timeout(PATIENCE, toolshed.wait()).await.unwrap().unwrap();
        }
    }
}

async fn create(connection: &Connection, seed: u8) -> Result<Session, ClientError> {
    let key = Arc::new(Identity::from_seed([seed; 32]).unwrap());
    connection.authenticate(&key).await?;
    connection
        .open(key.did(), key.did(), OpenOptions::default())
        .await
}

async fn start_toolshed(arguments: &std::path::Path) -> Child {
    let mut toolshed = Command::new(EXECUTABLE)
        .arg("demo-toolshed")
        .arg(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(toolshed.stdout.take().unwrap()).lines();
    let ready = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("\"ready\":true") {
                return;
            }
        }
        panic!("the toolshed ended");
    };
    timeout(PATIENCE, ready).await.unwrap();
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    toolshed
}

/// Whether it is refused, and may be tried again on the same connection.
pub fn is_refused_for_now<T>(result: &Result<T, ClientError>) -> bool {
    result.as_ref().err().is_some_and(ClientError::is_retriable)
}

/// Tries until it is not refused for now any more.
pub async fn eventually<T, F: Future<Output = Result<T, ClientError>>>(
    attempt: impl Fn() -> F,
) -> T {
    let tries = async {
        loop {
            match attempt().await {
                Ok(value) => return value,
                Err(error) => assert!(error.is_retriable(), "{error}"),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    timeout(PATIENCE, tries).await.expect("refused for ever")
}

/// Tries until a connection is as expected.
pub async fn until<T>(attempt: impl AsyncFn() -> Option<T>) -> T {
    let tries = async {
        loop {
            if let Some(value) = attempt().await {
                return value;
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    timeout(PATIENCE, tries).await.expect("never so")
}

/// What passes through a [`Gate`] to the toolshed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    Everything,
    /// Nothing of new connections.
    Nothing,
    /// Of new connections what comes before the binding is used, so that it has been issued when the gate holds.
    UntilBound,
}

/// A proxy before a toolshed that can hold a data socket in the middle of its setup.
pub struct Gate {
    pub address: SocketAddr,
    pass: watch::Sender<Pass>,
    /// Connections that are held.
    held: watch::Sender<usize>,
}

impl Gate {
    async fn new(toolshed: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (pass, held) = (watch::Sender::new(Pass::Everything), watch::Sender::new(0));
        let gate = Self {
            address,
            pass: pass.clone(),
            held: held.clone(),
        };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (pass, held) = (pass.subscribe(), held.clone());
                tokio::spawn(relay(client, toolshed, pass, held));
            }
        });
        gate
    }

    pub fn set(&self, pass: Pass) {
        self.pass.send_replace(pass);
    }

    /// Waits until a connection is held.
    pub async fn holds(&self) {
        let mut held = self.held.subscribe();
        timeout(PATIENCE, held.wait_for(|held| *held > 0))
            .await
            .unwrap()
            .unwrap();
    }
}

async fn relay(
    client: TcpStream,
    toolshed: SocketAddr,
    mut pass: watch::Receiver<Pass>,
    held: watch::Sender<usize>,
) {
    let Ok(toolshed) = TcpStream::connect(toolshed).await else {
        return;
    };
    let limit = match *pass.borrow() {
        Pass::Everything => usize::MAX,
        Pass::Nothing => 0,
        Pass::UntilBound => HELLO_LEN,
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_toolshed, mut to_toolshed) = toolshed.into_split();
    tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_toolshed, &mut to_client).await;
        let _ = to_client.shutdown().await;
    });
    let mut buffer = vec![0; 65_536];
    // The first bytes are a TLS hello, which may be long.
    let mut is_first = limit > 0;
    while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
        if !std::mem::take(&mut is_first) && length > limit {
            held.send_modify(|held| *held += 1);
            let _ = pass.wait_for(|pass| *pass == Pass::Everything).await;
            held.send_modify(|held| *held -= 1);
            if to_toolshed.write_all(&buffer[..length]).await.is_err() {
                return;
            }
            let _ = tokio::io::copy(&mut from_client, &mut to_toolshed).await;
            break;
        }
        if to_toolshed.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
    let _ = to_toolshed.shutdown().await;
}
