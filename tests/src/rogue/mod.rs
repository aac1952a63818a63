//! A toolshed that misbehaves on order: it has a directory entry's key and certificate, speaks the private protocol, and
//! keeps no data. It lives in the exercise's own process.

mod conduct;
mod data;
mod link;

pub use conduct::{Conduct, LinkConduct};

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memory_client::Identity;
use memory_config::{load_certificates, load_private_key};
use memory_transport::{PendingUpgrade, ReadLimits, WebSocket, tls};
use memory_wire::flags::{Capability, Flags, ROUTER_ENCODING_NEGOTIATION, ROUTER_REQUEST_CREDIT};
use memory_wire::stream::MAX_STREAM_RECORD_LEN;
use memory_wire::upgrade::{Endpoint, UpgradePolicy};
use rustls::ServerConfig;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;

use crate::stage::identity;
use crate::{Context, GateError, Stage};

/// From accept to the end of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 64;

type Socket = WebSocket<TlsStream<TcpStream>>;

/// What the rogue saw of the router.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// Links that stood.
    pub links: u64,
    /// Tickets that were asked for.
    pub tickets: u64,
    /// Data sockets that were dialled.
    pub sockets: u64,
    /// Data sockets that were bound.
    pub bound: u64,
    /// `negotiatedMemoryFlags` of the last `router.hello`.
    pub negotiated: Value,
}

/// A running rogue. Dropped, it and all its sockets are gone.
#[derive(Debug)]
pub struct Rogue {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    identity: Identity,
    config: Arc<ServerConfig>,
    orders: Mutex<Orders>,
    seen: Mutex<Seen>,
    /// Ends the links.
    unlink: Notify,
}

/// How it is to behave from now on.
#[derive(Debug)]
struct Orders {
    /// What it offers, private flags included.
    flags: Flags,
    data: Conduct,
    link: LinkConduct,
    /// How far its clock is ahead, seconds.
    clock: i64,
    /// For unique tickets and session IDs.
    count: u64,
}

impl Rogue {
    /// Takes a toolshed's place that is empty, offering what the router offers to clients: honest at first.
    ///
    /// # Errors
    /// When the place is not free.
    pub async fn start(stage: &Stage, place: usize) -> Result<Self, GateError> {
        let speaker =
            crate::raw::Speaker::connect(stage, crate::raw::Framing::Legacy, false).await?;
        let offer = speaker.hello.get("flags").during("flags in hello.ok")?;
        let mut flags = Flags::from_value(offer).during("flags in hello.ok")?;
        speaker.client.reset()?;
        for name in [ROUTER_ENCODING_NEGOTIATION, ROUTER_REQUEST_CREDIT] {
            flags
                .insert(name, Capability::Flag(true))
                .during("the rogue's flags")?;
        }
        let toolshed = stage.toolsheds.get(place).during("a toolshed's place")?;
        Self::listen(toolshed.fixture(), flags)
    }

    fn listen(fixture: &Path, flags: Flags) -> Result<Self, GateError> {
        let step = "the rogue";
        let fixture = fs::read(fixture).during(step)?;
        let fixture: Value = serde_json::from_slice(&fixture).during(step)?;
        let number = |name: &str| fixture.get(name).and_then(Value::as_u64).during(name);
        let file = |name: &str| {
            let path = fixture.get(name).and_then(Value::as_str).during(name);
            path.map(Path::new)
        };
        let chain = load_certificates(file("certificate")?).during(step)?;
        let key = load_private_key(file("key")?).during(step)?;
        let port = u16::try_from(number("port")?).during(step)?;
        let socket = TcpSocket::new_v4().during(step)?;
        socket.set_reuseaddr(true).during(step)?;
        socket
            .bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
            .during(step)?;
        let listener = socket.listen(BACKLOG).during(step)?;
        let shared = Arc::new(Shared {
            identity: identity(u8::try_from(number("seed")?).during(step)?)?,
            config: tls::server_config_from_key(chain, key).during(step)?,
            orders: Mutex::new(Orders {
                flags,
                data: Conduct::Honest,
                link: LinkConduct::Honest,
                clock: 0,
                count: 0,
            }),
            seen: Mutex::default(),
            unlink: Notify::new(),
        });
        let task = tokio::spawn(accept(Arc::clone(&shared), listener));
        Ok(Self { shared, task })
    }

    /// How data sockets are treated from now on.
    pub fn behave(&self, conduct: Conduct) {
        self.shared.orders().data = conduct;
    }

    /// How links are treated from now on; those that stand end.
    pub fn behave_on_links(&self, conduct: LinkConduct) {
        self.shared.orders().link = conduct;
        self.unlink();
    }

    /// How far its clock is ahead from now on, seconds; links that stand end.
    pub fn set_clock(&self, ahead: i64) {
        self.shared.orders().clock = ahead;
        self.unlink();
    }

    /// Adds a capability, or takes one away (`None`); links that stand end, as with a restart.
    ///
    /// # Errors
    /// When the name is none.
    pub fn set_flag(&self, name: &str, capability: Option<Capability>) -> Result<(), GateError> {
        let mut orders = self.shared.orders();
        match capability {
            Some(capability) => orders.flags.insert(name, capability).during(name)?,
            None => drop(orders.flags.remove(name)),
        }
        drop(orders);
        self.unlink();
        Ok(())
    }

    /// Ends the links that stand.
    pub fn unlink(&self) {
        self.shared.unlink.notify_waiters();
    }

    /// What it saw so far.
    pub fn seen(&self) -> Seen {
        self.shared.seen().clone()
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that it has not used yet.
    fn draw(&self) -> u64 {
        let mut orders = self.orders();
        orders.count += 1;
        orders.count
    }

    /// Thirty-two bytes that it has not used yet. Nobody guesses here.
    fn draw_bytes(&self) -> [u8; 32] {
        let mut bytes = [0x6d; 32];
        for (to, from) in bytes.iter_mut().zip(self.draw().to_be_bytes()) {
            *to = from;
        }
        bytes
    }

    /// Its clock.
    fn now(&self) -> u64 {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        now.as_secs().saturating_add_signed(self.orders().clock)
    }
}

async fn accept(shared: Arc<Shared>, listener: TcpListener) {
    let mut sockets = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    sockets.spawn(serve(Arc::clone(&shared), stream));
                }
            }
            Some(_) = sockets.join_next() => {}
        }
    }
}

/// Serves one connection. Whatever ends it, ends it: the router's side is what is looked at.
async fn serve(shared: Arc<Shared>, stream: TcpStream) -> Option<()> {
    let deadline = Instant::now() + HANDSHAKE;
    stream.set_nodelay(true).ok()?;
    let stream = tls::accept(stream, Arc::clone(&shared.config), deadline)
        .await
        .ok()?;
    let pending = PendingUpgrade::receive(stream, &UpgradePolicy::Private, None, deadline)
        .await
        .ok()?;
    let endpoint = pending.request().endpoint;
    let (socket, _) = pending
        .accept(ReadLimits::new(MAX_STREAM_RECORD_LEN))
        .await
        .ok()?;
    match endpoint {
        Endpoint::RouterLink => link::serve(shared, socket).await,
        Endpoint::RouterData => data::serve(shared, socket).await,
        Endpoint::Public { .. } => None,
    }
}
