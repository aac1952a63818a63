//! A broker that came back knows no connection: each that lives gets fresh channels to it (architecture.md section 4).
//!
//! The new broker starts without assignments. That a connection has a data socket somewhere it learns from the link agent,
//! which remembers every binding, so that nothing of what the worker says is taken for it.

use std::collections::VecDeque;
use std::os::fd::AsFd as _;
use std::time::Duration;

use memory_ipc::packets::{SpawnerToBroker, SpawnerToLinkAgent};
use memory_ipc::{Channel, ChannelError};
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use tokio::time::sleep;

use super::Spawner;

/// Pause when no descriptors could be had, which a moment may mend.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(200);

/// Connects workers that live on with a broker: `connections` is who was served when it came. Takes as long as broker and
/// link agent need to read; new connections go on beside it.
///
/// # Errors
/// When the broker's channel fails.
pub(super) async fn rewire(
    spawner: &Spawner,
    broker: &Channel,
    mut connections: VecDeque<ConnectionId>,
) -> Result<(), ChannelError> {
    let total = connections.len();
    let mut short = false;
    while let Some(connection) = connections.pop_front() {
        match rewire_one(spawner, broker, connection).await {
            Ok(()) => {}
            Err(ChannelError::Setup(error)) => {
                if !std::mem::replace(&mut short, true) {
                    tracing::error!(
                        reason = Reason::DescriptorLimit.as_str(),
                        error = &error as &dyn std::error::Error,
                        "no descriptors to connect workers with the new broker; trying again"
                    );
                }
                connections.push_back(connection);
                sleep(DESCRIPTOR_PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
    if total > 0 {
        tracing::info!(
            reason = "broker-rewired",
            connections = total,
            "connections that live on have the new broker"
        );
    }
    Ok(())
}

async fn rewire_one(
    spawner: &Spawner,
    broker: &Channel,
    connection: ConnectionId,
) -> Result<(), ChannelError> {
    // Without its link agent a connection ends, and one that has ended needs no broker.
    let link_agent = spawner.agents.borrow().link();
    let Some(link_agent) = link_agent.filter(|_| spawner.registry.borrow().is_served(&connection))
    else {
        return Ok(());
    };
    let pair = || Channel::pair().map_err(ChannelError::Setup);
    let (worker_to_broker, broker_to_worker) = pair()?;
    let (broker_to_link, link_to_broker) = pair()?;
    // The link agent goes first: what the new broker asks then finds the context's new channel.
    let told = link_agent
        .send_packet(
            &SpawnerToLinkAgent::Broker { connection },
            &[link_to_broker.as_fd()],
        )
        .await;
    if told.is_err() {
        // Its loss is noticed where it is listened to.
        return Ok(());
    }
    let ends = [broker_to_worker.as_fd(), broker_to_link.as_fd()];
    broker
        .send_packet(&SpawnerToBroker::Register { connection }, &ends)
        .await?;
    spawner
        .registry
        .borrow()
        .rewire(&connection, worker_to_broker);
    Ok(())
}
