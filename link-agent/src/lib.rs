//! The link agent: holds the router's key and the control links, and decides who is admitted where.
//!
//! It parses no Memory value: everything that comes to it is a packet or a record of fixed format. It signs only what it
//! built itself, four kinds of records (`signer`).
//!
//! ```text
//!  spawner ── reg1 + 2 descriptors ──> a context, its random ID bound to the two channels
//!          ── bro1 + 1 descriptor ───> the channel to another broker takes the place of the one before
//!  worker  ── whl1 wch1 wau1 wrl1 wbd1 ──┐
//!                                        ├──> [agent: contexts, offer, links] ──> control queue ──> link ── mlq1 ──> toolshed
//!  broker  ── bad1 mdf1 ─────────────────┘
//! ```
//!
//! | without a socket | with one |
//! | --- | --- |
//! | `agent`, `control`: everything that happens | `link`, `handshake`: one task per toolshed |
//! | `context`, `challenge`, `principal`, `registry`: who authenticated | `channels`: one task per context |
//! | `revocation`: whom an operator shut out | the file followed |
//! | `upstream`, `ticket`, `queue`, `bucket`: what a toolshed knows and is asked | |
//! | `links`: links as they stand, the frozen offer | |
//!
//! One thread. A packet that is malformed or out of phase ends its channel's context, and nothing else.
#![forbid(unsafe_code)]

mod agent;
mod backoff;
mod bucket;
mod challenge;
mod channels;
mod clock;
mod context;
mod control;
mod entropy;
mod error;
mod handshake;
mod link;
mod links;
mod principal;
mod probe;
mod queue;
mod refusals;
mod registry;
mod revocation;
mod show;
mod signer;
mod spaces;
#[cfg(test)]
mod testing;
mod ticket;
mod upstream;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use memory_admin::CountBy;
use memory_config::{Directory, DirectorySource, Identity, RouterConfig, Timeouts};
use memory_ipc::NamedListener;
use memory_sandbox::protect_secrets;
use memory_transport::tls;
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout_at};

pub use channels::SOCKET_NAME;
pub use error::Error;
pub use probe::{Greeting, MAX_CLOCK_SKEW, ProbeError, probe};

use crate::agent::Agent;
use crate::channels::BrokerSeat;
use crate::revocation::Watch;
use crate::signer::Signer;

/// What every task shares. The state is borrowed for one step at a time, never over an await.
#[derive(Debug)]
pub(crate) struct Shared {
    agent: RefCell<Agent>,
    config: watch::Receiver<Arc<RouterConfig>>,
    /// Where the channel to a new broker goes, for each context.
    brokers: RefCell<HashMap<ConnectionId, Rc<BrokerSeat>>>,
    /// Whether the offer is frozen.
    ready: watch::Sender<bool>,
    /// Requests of workers and brokers that were refused.
    refusals: Rc<CountBy<Reason>>,
}

impl Shared {
    /// The times in force.
    fn times(&self) -> Timeouts {
        self.config.borrow().timeouts.clone()
    }

    /// Unanswered admissions of one connection.
    fn max_admissions(&self) -> usize {
        let limit = self.config.borrow().limits.max_requests_per_connection;
        usize::try_from(limit).unwrap_or(usize::MAX)
    }
}

/// Runs the role until the process ends, with the configuration as it is and becomes. To be called on a current-thread runtime with IO and time enabled.
///
/// # Errors
/// [`Error`], at the start only: what fails later is logged and passes.
pub async fn run(changes: watch::Receiver<Arc<RouterConfig>>) -> Result<(), Error> {
    let config = Arc::clone(&changes.borrow());
    // Before the key is read.
    protect_secrets().map_err(Error::Sandbox)?;
    let seed = config.router_seed.path().map_err(Error::Credential)?;
    let identity = Identity::from_seed_file(&seed).map_err(Error::Seed)?;
    let DirectorySource::File(path) = &config.directory else {
        return Err(Error::Source);
    };
    let (directory, _) = Directory::load(path, None).map_err(Error::Directory)?;
    let signer = Signer::new(identity, directory.deployment().to_owned());
    let shared = Rc::new(Shared {
        agent: RefCell::new(Agent::new(signer, directory.toolsheds().to_vec(), &config)),
        config: changes.clone(),
        brokers: RefCell::default(),
        ready: watch::Sender::new(false),
        refusals: Rc::default(),
    });
    // Before anybody can be admitted.
    let mut revocations = Watch::new(&config.state_dir);
    revocations.look(&shared).await;
    let socket = config.ipc_dir.join(SOCKET_NAME);
    // The spawner is root, or in development this user.
    let allowed = [0, rustix::process::geteuid().as_raw()];
    let listener = NamedListener::bind(&socket, &allowed).map_err(Error::Listen)?;

    let tasks = LocalSet::new();
    let toolsheds: Vec<_> = shared.agent.borrow().links.toolsheds().collect();
    for (index, toolshed, wakes) in toolsheds {
        let pinned = tls::pinned_client_config(toolshed.certificate.clone());
        let pinned = pinned.map_err(|source| Error::Pin {
            name: toolshed.name.clone(),
            source,
        })?;
        tasks.spawn_local(link::maintain(
            Rc::clone(&shared),
            index,
            toolshed,
            wakes,
            pinned,
        ));
    }
    tasks.spawn_local(freeze(Rc::clone(&shared)));
    tasks.spawn_local(show::serve(Rc::clone(&shared), allowed));
    tasks.spawn_local(revocations.follow(Rc::clone(&shared)));
    tasks.spawn_local(configure(Rc::clone(&shared), changes));
    tasks.run_until(channels::serve(listener, shared)).await;
    Ok(())
}

/// Follows the configuration.
async fn configure(shared: Rc<Shared>, mut changes: watch::Receiver<Arc<RouterConfig>>) {
    while changes.changed().await.is_ok() {
        let config = Arc::clone(&changes.borrow_and_update());
        shared.agent.borrow_mut().configure(&config);
    }
}

/// Freezes the public offer when it is time, and tells the spawner.
async fn freeze(shared: Rc<Shared>) {
    let start = Instant::now();
    let startup_grace = shared.times().startup_grace;
    let grace = start + startup_grace;
    let changed = Rc::clone(&shared.agent.borrow().links.changed);
    let mut is_told = false;
    while !shared.agent.borrow_mut().links.freeze(start.elapsed()) {
        if start.elapsed() < startup_grace {
            // Either way it is looked at again.
            let _ = timeout_at(grace, changed.notified()).await;
            continue;
        }
        if !std::mem::replace(&mut is_told, true) {
            tell_missing(&shared, |total, missing| {
                tracing::warn!(
                    reason = %Reason::UpstreamUnavailable,
                    linked = 0,
                    toolsheds = total,
                    missing,
                    "no toolshed is linked after startup_grace: no client is accepted until one is"
                );
            });
        }
        changed.notified().await;
    }
    tell_missing(&shared, |total, missing| match missing {
        "" => tracing::info!(linked = total, toolsheds = total, "public offer frozen"),
        missing => tracing::warn!(
            reason = %Reason::UpstreamUnavailable,
            linked = total - missing.split(", ").count(),
            toolsheds = total,
            missing,
            "public offer frozen without the toolsheds that are missing: they are linked when they come, and used if they support it"
        ),
    });
    shared.ready.send_replace(true);
}

/// Hands on how many toolsheds there are, and which are not linked, by their names in the directory.
fn tell_missing(shared: &Shared, tell: impl FnOnce(usize, &str)) {
    let agent = shared.agent.borrow();
    let (total, missing) = agent.links.missing();
    tell(total, &missing.join(", "));
}
