//! The spawner's channel: which workers there are.

use std::rc::Rc;
use std::time::Duration;

use memory_ipc::packets::SpawnerToBroker;
use memory_ipc::{Channel, ChannelError, NamedListener};
use memory_wire::Reason;

use crate::worker::{self, Shared};

/// Name of the role's socket in the folder of the role sockets.
pub const SOCKET_NAME: &str = "directory-broker.sock";

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
    loop {
        match receive(&channel, &shared).await {
            Ok(true) => {}
            Ok(false) => break tracing::info!("spawner gone"),
            // The connection that the descriptors were for cannot be served; its worker sees its channel close.
            Err(ChannelError::DescriptorsLost) => {
                tracing::error!(reason = %Reason::DescriptorLost, "a worker's channel was lost in passing");
            }
            Err(error) => {
                break tracing::error!(reason = error.reason(), detail = %error, "spawner's channel ended");
            }
        }
    }
}

/// Takes one packet; `false` at end of file.
async fn receive(channel: &Channel, shared: &Rc<Shared>) -> Result<bool, ChannelError> {
    let Some((packet, descriptors)) = channel.recv_packet::<SpawnerToBroker>().await? else {
        return Ok(false);
    };
    let SpawnerToBroker::Register { connection } = packet;
    let mut channels = descriptors.into_iter().map(Channel::from_fd);
    match (channels.next(), channels.next()) {
        (Some(Ok(worker)), Some(Ok(link))) => {
            tokio::task::spawn_local(worker::serve(Rc::clone(shared), connection, worker, link));
        }
        (Some(Err(error)), _) | (_, Some(Err(error))) => {
            tracing::error!(reason = error.reason(), %connection, detail = %error, "a worker's channel is unusable");
        }
        // The packet's tag calls for two.
        _ => {}
    }
    Ok(true)
}
