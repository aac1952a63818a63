//! The showing side.

use std::path::{Path, PathBuf};
use std::time::Duration;

use memory_ipc::{ChannelError, StreamListener};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::Snapshot;

/// Peers that are written to at once; the next waits in the kernel's queue.
const MAX_PEERS: usize = 4;

/// How long a peer may take to read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often a fault is logged at most.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Pause after the socket could not be made, or nothing accepted on it.
const PAUSE: Duration = Duration::from_secs(1);

/// Where a role shows itself.
#[must_use]
pub fn socket_path(ipc_dir: &Path, role: &str) -> PathBuf {
    ipc_dir.join("admin").join(format!("{role}.sock"))
}

/// Shows a role at `path` (see [`socket_path`]) to peers of these users, for ever. `snapshot` is called on this thread each
/// time somebody connects.
///
/// Nothing that goes wrong here is the role's affair: it is logged, and tried again. The directory above that of the socket
/// is waited for.
pub async fn serve(path: &Path, allowed_uids: &[u32], snapshot: impl Fn() -> Snapshot) {
    let mut log = Log::default();
    let listener = listen(path, allowed_uids, &mut log).await;
    let mut peers = JoinSet::new();
    loop {
        while peers.len() >= MAX_PEERS {
            peers.join_next().await;
        }
        let accepted = tokio::select! {
            Some(_) = peers.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => match serde_json::to_vec(&snapshot()) {
                Ok(document) => {
                    peers.spawn(write(stream, document));
                }
                Err(error) => tracing::error!(
                    reason = "admin-socket",
                    error = &error as &dyn std::error::Error,
                    "cannot write what this role shows"
                ),
            },
            Err(error) => {
                log.note(&error);
                if !matches!(error, ChannelError::PeerRefused { .. }) {
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

async fn listen(path: &Path, allowed_uids: &[u32], log: &mut Log) -> StreamListener {
    loop {
        match StreamListener::bind(path, allowed_uids) {
            Ok(listener) => return listener,
            Err(error) if is_early(&error) => {}
            Err(error) => log.note(&error),
        }
        sleep(PAUSE).await;
    }
}

/// Whether the role that makes the directory has not come so far yet.
fn is_early(error: &ChannelError) -> bool {
    matches!(error, ChannelError::Bind { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

/// One line for what goes wrong over and over.
#[derive(Debug, Default)]
struct Log {
    written: Option<Instant>,
}

impl Log {
    fn note(&mut self, error: &ChannelError) {
        let now = Instant::now();
        if self.written.is_some_and(|at| now - at < LOG_INTERVAL) {
            return;
        }
        self.written = Some(now);
        tracing::warn!(
            reason = "admin-socket",
            error = error as &dyn std::error::Error,
            "cannot show this role"
        );
    }
}

/// A peer that does not read, or has gone, has itself to blame.
async fn write(mut stream: UnixStream, document: Vec<u8>) {
    let _ = timeout(WRITE_TIMEOUT, async {
        stream.write_all(&document).await?;
        stream.shutdown().await
    })
    .await;
}
