//! The private listener: TLS 1.3, allowlisted peers, two paths (`docs/protocol.md` section 6).

use super::shared::{Shared, SocketPermit};
use super::{data, link};
use memory_transport::{KeepAlive, PendingUpgrade, ReadLimits, tls, tune_tcp};
use memory_wire::codec::MAX_RECORD_LEN;
use memory_wire::stream::MAX_STREAM_RECORD_LEN;
use memory_wire::upgrade::{Endpoint, UpgradePolicy};
use rustls::ServerConfig;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

/// From accept to the end of a link's or data socket's handshake (`docs/protocol.md` sections 6.1 and 6.3).
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after an accept that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until it is dropped.
pub(crate) async fn run(shared: Rc<Shared>, listener: TcpListener, config: Arc<ServerConfig>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let IpAddr::V4(peer) = peer.ip().to_canonical() else {
                    continue;
                };
                // Not allowed: nothing is read and nothing said.
                if !shared.state.borrow().settings.knows_peer(peer) {
                    tracing::warn!(reason = "peer-not-allowed", %peer);
                    continue;
                }
                let Some(permit) = shared.admit_socket() else {
                    tracing::warn!(reason = "socket-limit", %peer);
                    continue;
                };
                spawn_local(serve(
                    Rc::clone(&shared),
                    stream,
                    peer,
                    Arc::clone(&config),
                    permit,
                ));
            }
            Err(error) => {
                tracing::error!(reason = "accept-failed", %error);
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(
    shared: Rc<Shared>,
    stream: TcpStream,
    peer: Ipv4Addr,
    config: Arc<ServerConfig>,
    _permit: SocketPermit,
) {
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    if let Err(error) = tune_tcp(&stream, &KeepAlive::default()) {
        tracing::debug!(reason = "socket-options", %error);
    }
    let stream = match tls::accept(stream, config, deadline).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::info!(reason = "tls-handshake", %peer, %error);
            return;
        }
    };
    let pending = PendingUpgrade::receive(stream, &UpgradePolicy::Private, None, deadline).await;
    let pending = match pending {
        Ok(pending) => pending,
        Err(error) => {
            tracing::info!(reason = "upgrade", %peer, %error);
            return;
        }
    };
    let endpoint = pending.request().endpoint;
    let limits = match endpoint {
        Endpoint::RouterLink => ReadLimits::new(MAX_RECORD_LEN),
        _ => ReadLimits::new(MAX_STREAM_RECORD_LEN).with_unfragmented_binary(),
    };
    let socket = match pending.accept(limits).await {
        Ok((socket, _)) => socket,
        Err(error) => {
            tracing::info!(reason = "upgrade", %peer, %error);
            return;
        }
    };
    match endpoint {
        Endpoint::RouterLink => link::run(shared, socket, peer, deadline).await,
        Endpoint::RouterData => data::run(shared, socket, peer, deadline).await,
        // The private policy knows no other.
        Endpoint::Public { .. } => {}
    }
}
