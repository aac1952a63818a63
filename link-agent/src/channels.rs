//! The named socket: spawners, and the contexts that they register.

mod broker;
mod worker;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use memory_ipc::packets::{LinkAgentToSpawner, SpawnerToLinkAgent};
use memory_ipc::{Channel, ChannelError, NamedListener};
use memory_wire::Reason;
use memory_wire::ids::{ConnectionId, ContextId};
use tokio::sync::{Notify, mpsc};

use crate::Shared;
use crate::clock::Moment;
use crate::context::Signals;
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
        let (SpawnerToLinkAgent::Register { connection }
        | SpawnerToLinkAgent::Broker { connection }) = packet;
        let channels: Result<Vec<_>, _> = descriptors.into_iter().map(Channel::from_fd).collect();
        let mut channels = match channels {
            Ok(channels) => channels.into_iter(),
            Err(error) => {
                tracing::error!(reason = error.reason(), %connection, detail = %error, "a connection's channel is unusable");
                continue;
            }
        };
        match (packet, channels.next(), channels.next()) {
            (SpawnerToLinkAgent::Register { .. }, Some(worker), Some(broker)) => {
                let seat = BrokerSeat::new(broker);
                shared
                    .brokers
                    .borrow_mut()
                    .insert(connection, Rc::clone(&seat));
                tokio::task::spawn_local(context(
                    Rc::clone(shared),
                    connection,
                    worker,
                    seat,
                    news.clone(),
                ));
            }
            (SpawnerToLinkAgent::Broker { .. }, Some(broker), None) => {
                match shared.brokers.borrow().get(&connection) {
                    Some(seat) => seat.replace(broker),
                    None => {
                        tracing::debug!(%connection, "a new broker for a context that has ended")
                    }
                }
            }
            // Each packet's tag says how many descriptors it calls for.
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
/// context at the toolsheds would take them down (`docs/design.md`).
async fn context(
    shared: Rc<Shared>,
    connection: ConnectionId,
    worker: Channel,
    seat: Rc<BrokerSeat>,
    news: mpsc::UnboundedSender<ConnectionId>,
) {
    let ended = if let Some((id, signals)) = open(&shared, connection) {
        let ended = tokio::select! {
            biased;
            principal = signals.revoked() => {
                tracing::info!(reason = %Reason::PrincipalRevoked, %connection, "context ended");
                worker::revoke(&worker, principal).await;
                Ok(())
            }
            ended = worker::serve(&shared, &worker, id, connection, &signals, news) => ended,
            ended = brokers(&shared, &seat, id, connection) => Err(ended),
        };
        shared.agent.borrow_mut().close(&id, Moment::now());
        ended
    } else {
        Err(Ended::Entropy)
    };
    let mut seats = shared.brokers.borrow_mut();
    if seats
        .get(&connection)
        .is_some_and(|other| Rc::ptr_eq(other, &seat))
    {
        seats.remove(&connection);
    }
    drop(seats);
    match ended {
        Ok(()) | Err(Ended::Channel(ChannelError::Closed)) => {
            tracing::debug!(%connection, "worker gone")
        }
        Err(Ended::Entropy) => {
            tracing::error!(reason = %Reason::Internal, %connection, detail = %Ended::Entropy, "context ended");
        }
        Err(ended) => tracing::warn!(
            reason = %Reason::ChannelProtocol,
            %connection,
            detail = %ended,
            "context ended"
        ),
    }
}

/// Serves one broker after the other. A new one takes the place of the one before, whose unanswered admissions are dropped:
/// whoever waited for them has gone with it.
async fn brokers(
    shared: &Rc<Shared>,
    seat: &BrokerSeat,
    id: ContextId,
    connection: ConnectionId,
) -> Ended {
    loop {
        let channel = seat.take().await;
        tokio::select! {
            biased;
            () = seat.replaced() => {}
            Err(ended) = broker::serve(Rc::clone(shared), channel, id, connection) => return ended,
        }
        tracing::debug!(%connection, "another broker");
    }
}

/// Where a context's channel to the broker waits to be served: the newest alone.
#[derive(Debug)]
pub(crate) struct BrokerSeat {
    next: RefCell<Option<Channel>>,
    changed: Notify,
}

impl BrokerSeat {
    fn new(broker: Channel) -> Rc<Self> {
        Rc::new(Self {
            next: RefCell::new(Some(broker)),
            changed: Notify::new(),
        })
    }

    fn replace(&self, broker: Channel) {
        *self.next.borrow_mut() = Some(broker);
        self.changed.notify_one();
    }

    /// Waits until a channel is there that is not served yet.
    async fn replaced(&self) {
        while self.next.borrow().is_none() {
            self.changed.notified().await;
        }
    }

    async fn take(&self) -> Channel {
        loop {
            self.replaced().await;
            if let Some(channel) = self.next.borrow_mut().take() {
                return channel;
            }
        }
    }
}

fn open(shared: &Shared, connection: ConnectionId) -> Option<(ContextId, Rc<Signals>)> {
    loop {
        let id = ContextId::new(random()?);
        // A repetition among 128 random bits will not be seen; drawing again costs nothing.
        if let Some(signals) = shared.agent.borrow_mut().open(connection, id) {
            return Some((id, signals));
        }
    }
}

/// Why a context ended before its worker did.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// A channel broke, or something else than a packet came.
    #[error("{0}")]
    Channel(#[from] ChannelError),
    /// The system has no random bytes.
    #[error("no random bytes for a context")]
    Entropy,
    /// What no honest peer asks for.
    #[error("{0}")]
    Violation(&'static str),
}
