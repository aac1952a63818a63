//! The directory broker: says where each space lives, has the link agent admit the connection there, dials the data socket
//! and passes it to the worker.
//!
//! It holds the directory and dials. It signs nothing, and never reads or writes a byte on what it dialled.
//!
//! ```text
//!  spawner ── reg1 + 2 descriptors ──┐
//!                                    v
//!  worker  ── wpl1 ──────────> [directory broker] ── bad1 ──> link agent      which toolshed, at which epoch; ticket
//!          <── wps1 + socket ──      │                                        dialled, a duplicate is kept
//!          ── mdc1 ──────────>       │                                        committed: the duplicate is closed
//!          ── mdf1 ──────────>       └── mdf1 ─────────────> link agent       rolled back: shut down for everybody
//! ```
//!
//! One thread, one task per channel and per unanswered placement. What a worker sends is hostile: an unknown packet, a wrong
//! length or a settled assignment named again ends that worker's channels, and nothing else.
#![forbid(unsafe_code)]

mod assignments;
mod attempts;
mod dial;
mod error;
mod link;
mod show;
mod snapshot;
mod spawner;
mod worker;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use memory_config::{Directory, DirectorySource, RouterConfig};
use memory_ipc::NamedListener;
use tokio::sync::watch;
use tokio::task::LocalSet;

pub use error::Error;
pub use spawner::SOCKET_NAME;

use crate::snapshot::Snapshot;
use crate::worker::Shared;

/// Runs the role until the process ends, with the configuration as it is and becomes. To be called on a current-thread runtime with IO and time enabled.
///
/// # Errors
/// [`Error`], at the start only: what fails later is logged and passes.
pub async fn run(mut changes: watch::Receiver<Arc<RouterConfig>>) -> Result<(), Error> {
    let config = Arc::clone(&changes.borrow_and_update());
    let DirectorySource::File(path) = &config.directory else {
        return Err(Error::Source);
    };
    let (directory, identity) = Directory::load(path, None).map_err(Error::Directory)?;
    let snapshot = Rc::new(RefCell::new(Snapshot::new(directory)));
    let socket = config.ipc_dir.join(SOCKET_NAME);
    // The spawner is root, or in development this user.
    let allowed = [0, rustix::process::geteuid().as_raw()];
    let listener = NamedListener::bind(&socket, &allowed).map_err(Error::Listen)?;
    let shared = Rc::new(Shared::new(Rc::clone(&snapshot), &config));
    let tasks = LocalSet::new();
    tasks.spawn_local(show::serve(
        Rc::clone(&shared),
        config.ipc_dir.clone(),
        allowed,
    ));
    tasks.spawn_local(snapshot::watch(path.clone(), snapshot, identity));
    tasks.spawn_local({
        let shared = Rc::clone(&shared);
        async move {
            while changes.changed().await.is_ok() {
                shared.configure(&changes.borrow_and_update());
            }
        }
    });
    tasks.run_until(spawner::serve(listener, shared)).await;
    Ok(())
}
