//! A router with a toolshed behind it, in one task and over real TLS, that does what a test plans for each message.
#![allow(dead_code)] // each test file uses its part
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on fails

mod world;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use memory_client::{
    Client, ClientOptions, DurableSession, Endpoint, Event, Identity, SessionOptions, Topology,
};
use memory_transport::{Incoming, ReadLimits, tls, upgrade};
use memory_wire::frame::Opcode;
use memory_wire::upgrade::{Endpoint as Asked, UpgradePolicy};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

pub(crate) use world::World;

/// Longer than any wait that succeeds.
const PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// It is served.
    Serve,
    /// The transport is lost before it is served.
    LoseRequest,
    /// It is served, and the transport is lost before the answer.
    LoseAnswer,
    /// The same, and the toolshed does not notice: the session stays open there.
    LoseAnswerUnnoticed,
    /// The router closes with a code instead.
    Close(u16),
    /// It is refused: error name, whether for now.
    Refuse(&'static str, bool),
    /// It waits for [`Fake::release`].
    Park,
}

type Plan = Box<dyn FnMut(usize, &Value) -> Act + Send>;

pub(crate) struct State {
    pub(crate) world: World,
    /// Every message, with the number of its connection.
    pub(crate) log: Vec<(usize, Value)>,
    /// The space of each connection that was dedicated.
    pub(crate) dedicated: Vec<Option<String>>,
    /// Connections that ended.
    pub(crate) ended: usize,
    parked: Vec<(usize, Value)>,
    plan: Plan,
    lines: Vec<mpsc::UnboundedSender<Line>>,
}

enum Line {
    Text(Value),
    Close(u16),
    Lose,
    Vanish,
}

/// The fake.
#[derive(Clone)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<usize>,
    pub(crate) endpoint: Endpoint,
    pub(crate) address: SocketAddr,
    pub(crate) certificate: Vec<u8>,
}

impl Fake {
    /// Starts one whose `hello.ok` has these `routerLimits`.
    pub(crate) async fn start(
        limits: Value,
        plan: impl FnMut(usize, &Value) -> Act + Send + 'static,
    ) -> Self {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let config = tls::server_config_from_key(vec![certificate.clone()], key.into()).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let host = format!("localhost:{}", address.port());
        let fake = Self {
            state: Arc::new(Mutex::new(State {
                world: World::new(limits),
                log: Vec::new(),
                dedicated: Vec::new(),
                ended: 0,
                parked: Vec::new(),
                plan: Box::new(plan),
                lines: Vec::new(),
            })),
            changed: watch::Sender::new(0),
            endpoint: Endpoint::new(&host, address, vec![certificate.to_vec()]).unwrap(),
            address,
            certificate: certificate.to_vec(),
        };
        tokio::spawn({
            let fake = fake.clone();
            async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let (fake, config, host) = (fake.clone(), config.clone(), host.clone());
                    tokio::spawn(async move {
                        // A client that gives up is nothing to fail for.
                        let _ = fake.serve(stream, config, host).await;
                    });
                }
            }
        });
        fake
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A client of it.
    pub(crate) fn client(&self, topology: Topology) -> Client {
        let options = ClientOptions {
            topology,
            ..ClientOptions::default()
        };
        Client::new(self.endpoint.clone(), options)
    }

    /// A client of it, with a session of `identity(41)` in the space of `identity(31)`.
    pub(crate) async fn entered(&self) -> (Client, DurableSession) {
        let client = self.client(Topology::Shared);
        let (space, owner) = (identity(31).did(), identity(41));
        let opening = client.open(space, &owner, SessionOptions::default());
        let session = opening.await.unwrap();
        (client, session)
    }

    /// Waits until the state is as wanted.
    pub(crate) async fn until(&self, what: &str, mut wanted: impl FnMut(&mut State) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            loop {
                changed.borrow_and_update();
                if wanted(&mut self.state()) {
                    return;
                }
                changed.changed().await.unwrap();
            }
        };
        if timeout(PATIENCE, waiting).await.is_err() {
            panic!("waited in vain for {what}");
        }
    }

    /// Serves up to `count` parked messages.
    pub(crate) fn release(&self, count: usize) {
        for _ in 0..count {
            let mut state = self.state();
            if state.parked.is_empty() {
                break;
            }
            let (connection, message) = state.parked.remove(0);
            state.answer(connection, &message);
        }
        self.tell();
    }

    /// Loses the transport of a connection.
    pub(crate) fn lose(&self, connection: usize) {
        let _ = self.state().lines[connection].send(Line::Lose);
    }

    /// Ends a session as the toolshed does.
    pub(crate) fn revoke(&self, session: &DurableSession, reason: &str) {
        let id = session.save().unwrap().session_id;
        let mut state = self.state();
        let space = session.space().to_string();
        let connection = state.world.forget(&space, &id).unwrap();
        let push =
            json!({"type": "session/revoked", "space": space, "sessionId": id, "reason": reason});
        let _ = state.lines[connection].send(Line::Text(push));
    }

    /// Writes a document from outside.
    pub(crate) fn write(&self, space: &str, id: &str, value: u64) {
        let mut state = self.state();
        for (connection, push) in state.world.write(space, id, value) {
            let _ = state.lines[connection].send(Line::Text(push));
        }
    }

    fn tell(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    async fn serve(
        &self,
        stream: TcpStream,
        config: Arc<rustls::ServerConfig>,
        host: String,
    ) -> Option<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let stream = tls::accept(stream, config, deadline).await.ok()?;
        let policy = UpgradePolicy::Public {
            host,
            origins: Vec::new(),
            require_origin: false,
        };
        let limits = ReadLimits::new(8 << 20);
        let (mut socket, request) = upgrade::accept(stream, &policy, limits, deadline)
            .await
            .ok()?;
        let (line, mut lines) = mpsc::unbounded_channel();
        let connection = {
            let mut state = self.state();
            state.lines.push(line);
            state.dedicated.push(match request.endpoint {
                Asked::Public { space } => space.map(|space| space.to_string()),
                _ => None,
            });
            state.lines.len() - 1
        };
        loop {
            tokio::select! {
                biased;
                line = lines.recv() => match line? {
                    Line::Text(message) => {
                        let text = format!("fvj1:{message}");
                        socket.writer.send_slice(Opcode::Text, text.as_bytes()).await.ok()?;
                    }
                    Line::Close(code) => {
                        socket.writer.close(code, "planned").await.ok()?;
                        self.gone(connection);
                    }
                    Line::Lose => {
                        self.gone(connection);
                        return None;
                    }
                    Line::Vanish => return None,
                },
                incoming = socket.reader.next() => match incoming {
                    Ok(Incoming::Text) => {
                        let payload = &socket.reader.buffer().payload()[5..];
                        let message: Value = serde_json::from_slice(payload).unwrap();
                        self.receive(connection, message);
                    }
                    Ok(Incoming::Ping | Incoming::Pong) => {}
                    Ok(Incoming::Close { .. }) => {
                        let _ = socket.writer.close(1000, "").await;
                        self.gone(connection);
                        return None;
                    }
                    _ => {
                        self.gone(connection);
                        return None;
                    }
                },
            }
        }
    }

    fn gone(&self, connection: usize) {
        let mut state = self.state();
        state.world.disconnect(connection);
        state.ended += 1;
        drop(state);
        self.tell();
    }

    fn receive(&self, connection: usize, message: Value) {
        let mut state = self.state();
        state.log.push((connection, message.clone()));
        let act = (state.plan)(connection, &message);
        let line = state.lines[connection].clone();
        match act {
            Act::Serve => state.answer(connection, &message),
            Act::LoseRequest => drop(line.send(Line::Lose)),
            Act::LoseAnswer | Act::LoseAnswerUnnoticed => {
                state.world.serve(connection, &message);
                let end = match act {
                    Act::LoseAnswer => Line::Lose,
                    _ => Line::Vanish,
                };
                let _ = line.send(end);
            }
            Act::Close(code) => drop(line.send(Line::Close(code))),
            Act::Refuse(name, retriable) => {
                let mut error = json!({"name": name, "message": "planned"});
                if retriable {
                    error["retriable"] = true.into();
                }
                let id = &message["requestId"];
                let answer = json!({"type": "response", "requestId": id, "error": error});
                let _ = line.send(Line::Text(answer));
            }
            Act::Park => state.parked.push((connection, message)),
        }
        drop(state);
        self.tell();
    }
}

impl State {
    fn answer(&mut self, connection: usize, message: &Value) {
        for (to, message) in self.world.serve(connection, message) {
            let _ = self.lines[to].send(Line::Text(message));
        }
    }

    /// Plans anew.
    pub(crate) fn set_plan(&mut self, plan: impl FnMut(usize, &Value) -> Act + Send + 'static) {
        self.plan = Box::new(plan);
    }

    /// Messages of a kind so far.
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.log
            .iter()
            .filter(|(_, message)| message["type"] == kind)
            .count()
    }
}

/// A key made of 32 equal bytes.
pub(crate) fn identity(seed: u8) -> Arc<Identity> {
    Arc::new(Identity::from_seed([seed; 32]).unwrap())
}

/// Does what a plan says the first `n` times a message of a kind comes, and serves everything else.
pub(crate) fn first(kind: &'static str, acts: Vec<Act>) -> impl FnMut(usize, &Value) -> Act + Send {
    let mut acts = acts.into_iter();
    move |_, message| {
        if message["type"] == kind {
            acts.next().unwrap_or(Act::Serve)
        } else {
            Act::Serve
        }
    }
}

/// The next event, in time.
pub(crate) async fn event(session: &DurableSession) -> Event {
    timeout(PATIENCE, session.event())
        .await
        .expect("an event in time")
        .expect("an event")
}

/// Reads events until one is as wanted.
pub(crate) async fn event_like(
    session: &DurableSession,
    wanted: impl Fn(&Event) -> bool,
) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        let event = event(session).await;
        let found = wanted(&event);
        events.push(event);
        if found {
            return events;
        }
    }
}

/// Operations that write one document.
pub(crate) fn set(id: &str, value: u64) -> Value {
    json!([{"op": "set", "id": id, "value": {"value": value}}])
}

/// What an application that follows the events holds.
#[derive(Debug, Default)]
pub(crate) struct Copy(pub(crate) BTreeMap<String, u64>);

impl Copy {
    pub(crate) fn follow(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Sync(sync) = event {
                for upsert in sync["upserts"].as_array().unwrap() {
                    let id = upsert["id"].as_str().unwrap().to_owned();
                    self.0
                        .insert(id, upsert["doc"]["value"].as_u64().unwrap_or(0));
                }
                for remove in sync["removes"].as_array().unwrap() {
                    self.0.remove(remove["id"].as_str().unwrap());
                }
            }
        }
    }
}

/// The application is up to date again.
pub(crate) fn is_rebuilt(event: &Event) -> bool {
    matches!(event, Event::Rebuilt { .. })
}
