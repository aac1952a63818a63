//! The link agent: holds the router's key and the control links, and decides who is admitted where.
//!
//! It parses no Memory value: everything that comes to it is a packet or a record of fixed format. It signs only what it
//! built itself, four kinds of records (`signer`).
//!
//! ```text
//!  spawner ── reg1 + 2 descriptors ──> a context, its random ID bound to the two channels
//!  worker  ── whl1 wch1 wau1 wrl1 wbd1 ──┐
//!                                        ├──> [agent: contexts, offer, links] ──> control queue ──> link ── mlq1 ──> toolshed
//!  broker  ── bad1 mdf1 ─────────────────┘
//! ```
//!
//! | without a socket | with one |
//! | --- | --- |
//! | `agent`, `control`: everything that happens | `link`, `handshake`: one task per toolshed |
//! | `context`, `challenge`, `principal`, `registry`: who authenticated | `channels`: one task per context |
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
mod queue;
mod registry;
mod signer;
#[cfg(test)]
mod testing;
mod ticket;
mod upstream;

use std::cell::RefCell;
use std::rc::Rc;

use memory_config::{Directory, DirectorySource, Identity, RouterConfig, Timeouts};
use memory_ipc::NamedListener;
use memory_sandbox::protect_secrets;
use memory_transport::tls;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{Instant, timeout_at};

pub use channels::SOCKET_NAME;
pub use error::Error;

use crate::agent::Agent;
use crate::signer::Signer;

/// What every task shares. The state is borrowed for one step at a time, never over an await.
#[derive(Debug)]
pub(crate) struct Shared {
    agent: RefCell<Agent>,
    times: Timeouts,
    /// Unanswered admissions of one connection.
    max_admissions: usize,
    /// Whether the offer is frozen.
    ready: watch::Sender<bool>,
}

/// Runs the role until the process ends. To be called on a current-thread runtime with IO and time enabled.
///
/// # Errors
/// [`Error`], at the start only: what fails later is logged and passes.
pub async fn run(config: RouterConfig) -> Result<(), Error> {
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
        times: config.timeouts.clone(),
        max_admissions: usize::try_from(config.limits.max_requests_per_connection)
            .unwrap_or(usize::MAX),
        ready: watch::Sender::new(false),
    });
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
    tasks.run_until(channels::serve(listener, shared)).await;
    Ok(())
}

/// Freezes the public offer when it is time, and tells the spawner.
async fn freeze(shared: Rc<Shared>) {
    let start = Instant::now();
    let grace = start + shared.times.startup_grace;
    let changed = Rc::clone(&shared.agent.borrow().links.changed);
    while !shared.agent.borrow_mut().links.freeze(start.elapsed()) {
        if start.elapsed() < shared.times.startup_grace {
            // Either way it is looked at again.
            let _ = timeout_at(grace, changed.notified()).await;
        } else {
            changed.notified().await;
        }
    }
    tracing::info!("public offer frozen");
    shared.ready.send_replace(true);
}
