//! The named socket: spawners, and the contexts that they register.

mod broker;
mod worker;

use std::rc::Rc;
use std::time::Duration;

use memory_ipc::packets::{LinkAgentToSpawner, SpawnerToLinkAgent};
use memory_ipc::{Channel, ChannelError, NamedListener};
use memory_wire::Reason;
use memory_wire::ids::{ConnectionId, ContextId};
use tokio::sync::mpsc;

use crate::Shared;
use crate::clock::Moment;
use crate::entropy::random;

/// Name of the role's socket in the folder of the role sockets.
pub const SOCKET_NAME: &str = "link-agent.sock";

/// How long to pause when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts spawners for ever: a new one comes when the last has died.
pub(crate) async fn serve(listener: NamedListener, shared: Rc<Shared>) {
    loop {
        match listener.accept().await {
            Ok(channel) => {
                tokio::task::spawn_local(spawner(channel, Rc::clone(&shared)));
            }
            Err(error @ ChannelError::PeerRefused { .. }) => {
                tracing::warn!(reason = error.reason(), detail = %error, "a stranger connected");
            }
            Err(error) => {
                tracing::error!(reason = error.reason(), detail = %error, "cannot accept the spawner");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn spawner(channel: Channel, shared: Rc<Shared>) {
    tracing::info!("spawner connected");
    // At most one message for each context, of which the spawner bounds the number.
    let (news, to_send) = mpsc::unbounded_channel();
    // Apart, so that neither side can wait for the other to read.
    let ended = tokio::select! {
        ended = receive(&channel, &shared, news) => ended,
        ended = send(&channel, &shared, to_send) => ended,
    };
    match ended {
        Ok(()) => tracing::info!("spawner gone"),
        Err(error) => {
            tracing::error!(reason = error.reason(), detail = %error, "spawner's channel ended")
        }
    }
}

async fn receive(
    channel: &Channel,
    shared: &Rc<Shared>,
    news: mpsc::UnboundedSender<ConnectionId>,
) -> Result<(), ChannelError> {
    loop {
        let received = channel.recv_packet::<SpawnerToLinkAgent>().await;
        if let Err(ChannelError::DescriptorsLost) = received {
            // The connection that they were for cannot be served; its worker sees its channel close.
            tracing::error!(reason = %Reason::DescriptorLost, "a worker's channel was lost in passing");
            continue;
        }
        let Some((packet, descriptors)) = received? else {
            return Ok(());
        };
        let SpawnerToLinkAgent::Register { connection } = packet;
        let mut channels = descriptors.into_iter().map(Channel::from_fd);
        match (channels.next(), channels.next()) {
            (Some(Ok(worker)), Some(Ok(broker))) => {
                tokio::task::spawn_local(context(
                    Rc::clone(shared),
                    connection,
                    worker,
                    broker,
                    news.clone(),
                ));
            }
            (Some(Err(error)), _) | (_, Some(Err(error))) => {
                tracing::error!(reason = error.reason(), %connection, detail = %error, "a worker's channel is unusable");
            }
            // The packet's tag calls for two.
            _ => {}
        }
    }
}

async fn send(
    channel: &Channel,
    shared: &Shared,
    mut news: mpsc::UnboundedReceiver<ConnectionId>,
) -> Result<(), ChannelError> {
    let mut ready = shared.ready.subscribe();
    // Fails only when the sender is gone, which `shared` holds.
    if ready.wait_for(|ready| *ready).await.is_ok() {
        channel
            .send_packet(&LinkAgentToSpawner::Ready { accepting: true }, &[])
            .await?;
    }
    while let Some(connection) = news.recv().await {
        channel
            .send_packet(&LinkAgentToSpawner::Authenticated { connection }, &[])
            .await?;
    }
    // The receiving side, which holds the sender, ends first.
    std::future::pending().await
}

/// Serves one context: both channels belong to it, whatever is said on them.
///
/// It ends with its worker. The broker's end alone does not end it: open data sockets go on without a broker, and closing the
/// context at the toolsheds would take them down (architecture.md section 4).
async fn context(
    shared: Rc<Shared>,
    connection: ConnectionId,
    worker: Channel,
    broker: Channel,
    news: mpsc::UnboundedSender<ConnectionId>,
) {
    let Some((id, wake)) = open(&shared, connection) else {
        tracing::error!(reason = %Reason::Internal, %connection, "no random bytes for a context");
        return;
    };
    let ended = tokio::select! {
        ended = worker::serve(&shared, &worker, id, connection, &wake, news) => ended,
        Err(ended) = broker::serve(Rc::clone(&shared), broker, id, connection) => Err(ended),
    };
    shared.agent.borrow_mut().close(&id, Moment::now());
    match ended {
        Ok(()) => tracing::debug!(%connection, "worker gone"),
        Err(ended) => tracing::warn!(
            reason = %Reason::ChannelProtocol,
            %connection,
            detail = %ended,
            "context ended"
        ),
    }
}

fn open(shared: &Shared, connection: ConnectionId) -> Option<(ContextId, Rc<tokio::sync::Notify>)> {
    loop {
        let id = ContextId::new(random()?);
        // A repetition among 128 random bits will not be seen; drawing again costs nothing.
        if let Some(wake) = shared.agent.borrow_mut().open(connection, id) {
            return Some((id, wake));
        }
    }
}

/// Why a context ended before its worker did.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// A channel broke, or something else than a packet came.
    #[error("{0}")]
    Channel(#[from] ChannelError),
    /// What no honest peer asks for.
    #[error("{0}")]
    Violation(&'static str),
}
