//! The routed host: the private listener, control links, data sockets, and everything that decides what a router may bring
//! to the Memory engine (`docs/protocol.md` sections 5 to 7).
//!
//! | module | subject |
//! | --- | --- |
//! | [`listener`], [`link`], [`data`] | sockets: accept, control links, data sockets |
//! | [`state`] | all that is known, without socket and clock; [`control`], [`bind`], [`request`], [`lifecycle`] act on it |
//! | [`context`], [`principals`], [`tickets`], [`usage`] | one context, its principals, tickets, nested quotas |
//! | [`outlet`], [`closer`], [`message`], [`body`] | output of a socket, its end, messages out and in |
//! | [`ledger`], [`ownership`], [`audit`] | link epochs on disk, the directory, verdicts |

mod audit;
mod bind;
mod body;
mod capabilities;
mod closer;
mod context;
mod control;
mod data;
pub mod ledger;
mod lifecycle;
mod link;
mod listener;
mod message;
mod outlet;
mod ownership;
mod principals;
mod request;
mod shared;
mod state;
mod tickets;
mod usage;

#[cfg(test)]
mod tests;

pub use ledger::LedgerError;
pub use ownership::OwnershipError;

use crate::memory::{Effects, Memory, MemoryError, MemoryOptions};
use audit::Audit;
use closer::Closing;
use ledger::Ledger;
use memory_config::{Identity, PemError, ToolshedPolicy, load_certificates, load_private_key};
use memory_transport::tls;
use memory_wire::Did;
use memory_wire::flags::FlagsError;
use ownership::Ownership;
use rustls::ServerConfig;
use serde_json::Value;
use shared::Shared;
use state::{Settings, State};
use std::future::Future;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// How long commits are collected into one effect.
const EFFECT_DELAY: Duration = Duration::from_millis(5);

/// How often leases and the directory are looked at when nothing else happens. The wall clock may be stepped: nothing waits
/// for a point in it.
const TICK: Duration = Duration::from_millis(200);

/// What a toolshed needs beside its policy.
#[derive(Debug)]
pub struct HostOptions {
    /// Its key.
    pub identity: Identity,
    /// Folder of its spaces.
    pub store: PathBuf,
    /// The deployment's cell mode.
    pub modern_cell_rep: bool,
}

/// Why a toolshed does not start, or stopped.
#[derive(Debug, Error)]
pub enum HostError {
    /// The certificate or key file is not good.
    #[error("{0}")]
    Pem(#[from] PemError),
    /// Certificate and key do not fit.
    #[error("{certificate} and {key}: {what}", certificate = certificate.display(), key = key.display())]
    Tls {
        /// The certificate chain.
        certificate: PathBuf,
        /// The private key.
        key: PathBuf,
        /// What is wrong with them.
        what: String,
    },
    /// The directory is not good.
    #[error("{0}")]
    Ownership(#[from] OwnershipError),
    /// The epoch ledger is not good.
    #[error("epoch ledger: {0}")]
    Ledger(#[from] LedgerError),
    /// The store is not good.
    #[error("{0}")]
    Memory(#[from] MemoryError),
    /// The capabilities are no descriptor.
    #[error("{0}")]
    Flags(#[from] FlagsError),
    /// The listener could not be made.
    #[error("listening on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The runtime could not be made.
    #[error("runtime: {0}")]
    Runtime(#[source] io::Error),
}

/// A toolshed that listens and does not serve yet.
#[derive(Debug)]
pub struct Host {
    shared: Rc<Shared>,
    listener: TcpListener,
    config: Arc<ServerConfig>,
}

impl Host {
    /// Opens ledger, directory and store, and listens. To be called in a Tokio runtime.
    ///
    /// # Errors
    /// [`HostError`].
    pub async fn bind(policy: &ToolshedPolicy, options: HostOptions) -> Result<Self, HostError> {
        let toolshed = options.identity.did();
        Self::bind_with(policy, options, Audit::to_stderr(toolshed)).await
    }

    async fn bind_with(
        policy: &ToolshedPolicy,
        options: HostOptions,
        audit: Audit,
    ) -> Result<Self, HostError> {
        let chain = load_certificates(&policy.certificate)?;
        let config = tls::server_config_from_key(chain, load_private_key(&policy.key)?);
        let config = config.map_err(|error| HostError::Tls {
            certificate: policy.certificate.clone(),
            key: policy.key.clone(),
            what: match error.fault() {
                Some(rustls::Error::InconsistentKeys(_)) => {
                    "certificate and key do not belong together".to_owned()
                }
                _ => error.to_string(),
            },
        })?;
        let deployment = Some(policy.deployment.as_str());
        let ownership = Ownership::load(&policy.directory, deployment, &options.identity.did())?;
        let ledger = Ledger::open(&policy.epoch_ledger, shared::system_clock())?;
        let memory = Memory::open(
            &options.store,
            MemoryOptions {
                modern_cell_rep: options.modern_cell_rep,
                frame_slots: policy.limits.frame_slots,
                effects: Effects::Batched,
                ..MemoryOptions::default()
            },
        )?;
        let settings = Settings {
            flags: capabilities::public(&memory.capabilities())?,
            identity: options.identity,
            deployment: policy.deployment.clone(),
            routers: policy.routers.clone(),
            limits: policy.limits.clone(),
        };
        let address = SocketAddr::V4(SocketAddrV4::new(policy.hostname, policy.port));
        if let Some(listed) = ownership.address().filter(|listed| *listed != address) {
            tracing::warn!(
                reason = "address-differs",
                listens = %address,
                %listed,
                "the directory lists another address for this toolshed than the policy's hostname and port"
            );
        }
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| HostError::Listen { address, source })?;
        let state = State::new(settings, ledger, ownership, memory, audit);
        Ok(Self {
            shared: Shared::new(state, shared::system_clock),
            listener,
            config,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system said.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What an operator may do while it serves.
    pub fn operator(&self) -> Operator {
        Operator {
            shared: Rc::clone(&self.shared),
        }
    }

    /// Writes the first commit of a space that has none; whether it did. A space that the directory places elsewhere is left
    /// alone: its store may be on its way.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn seed(&self, space: &Did, operations: &[Value]) -> Result<bool, MemoryError> {
        let mut state = self.shared.state.borrow_mut();
        if !state.ownership.places_here(space) {
            return Ok(false);
        }
        state.memory.seed(space, operations)
    }

    /// Serves until `stop` completes, then says good-bye to every peer.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self {
            shared,
            listener,
            config,
        } = self;
        let tasks = LocalSet::new();
        tasks.spawn_local(tick(Rc::clone(&shared)));
        tasks.spawn_local(push_effects(Rc::clone(&shared)));
        tasks.spawn_local(listener::run(Rc::clone(&shared), listener, config));
        tasks.run_until(stop).await;
        let farewell = spawn_farewell(shared);
        tasks.run_until(farewell).await;
    }
}

/// Ends every socket and gives their tasks a moment to say so.
async fn spawn_farewell(shared: Rc<Shared>) {
    let now = shared.now();
    shared.state.borrow_mut().close_all(Closing::SHUTDOWN, now);
    // Each ready task gets its turn: close frames are small, and whoever does not take them is not waited for.
    let _ = spawn_local(async {
        for _ in 0..64 {
            yield_now().await;
        }
    })
    .await;
}

/// An operator's hand on a running host.
#[derive(Debug, Clone)]
pub struct Operator {
    shared: Rc<Shared>,
}

impl Operator {
    /// Revokes a router's key for good, and ends its links.
    ///
    /// # Errors
    /// [`LedgerError`] when that is not on the disk; in this process it holds all the same.
    pub fn revoke(&self, router: &Did) -> Result<(), LedgerError> {
        let now = self.shared.now();
        self.shared.state.borrow_mut().revoke_router(router, now)
    }

    /// Looks at the directory now and closes the contexts of spaces that moved.
    pub fn fence(&self) {
        let mut state = self.shared.state.borrow_mut();
        state.look_at_directory();
        state.fence();
    }
}

/// Ends leases and follows the directory when no request does.
async fn tick(shared: Rc<Shared>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = shared.now();
        let mut state = shared.state.borrow_mut();
        state.look_at_directory();
        state.expire(now);
    }
}

/// Gives effects out a moment after the commit that caused them.
async fn push_effects(shared: Rc<Shared>) {
    loop {
        shared.effects.notified().await;
        sleep(EFFECT_DELAY).await;
        while shared.state.borrow_mut().flush(shared.now()) {
            yield_now().await;
        }
    }
}
