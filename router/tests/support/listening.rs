//! A listener as a real process, with the test in the spawner's place.

use std::os::fd::OwnedFd;

use memory_ipc::packets::{ListenerToSpawner, SpawnerToListener};
use memory_ipc::{Channel, WorkerOutcome};
use memory_wire::ids::ConnectionId;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Fixture, PATIENCE, Process, receive};

/// The spawner's.
pub const SOCKET: &str = "spawner.sock";

/// A listener that the spawner has told to accept.
pub async fn serving(fixture: &Fixture) -> (Process, Channel) {
    let socket = fixture.stand_in(SOCKET);
    let mut listener = fixture.start("listener");
    listener.reason("listening").await;
    let spawner = timeout(PATIENCE, socket.accept()).await.unwrap().unwrap();
    tell(&spawner, SpawnerToListener::Ready { accepting: true }).await;
    listener.reason("ready").await;
    (listener, spawner)
}

pub async fn tell(spawner: &Channel, packet: SpawnerToListener) {
    spawner.send_packet(&packet, &[]).await.unwrap();
}

/// The next connection handed over.
pub async fn taken(spawner: &Channel) -> (ConnectionId, std::net::SocketAddr, OwnedFd) {
    let (packet, descriptors) = receive(spawner).await;
    let ListenerToSpawner::NewConnection {
        connection,
        peer,
        accepted_unix_ms,
    } = packet
    else {
        panic!("drain instead of a connection");
    };
    assert_eq!(accepted_unix_ms, connection.unix_millis());
    let [socket] = <[_; 1]>::try_from(descriptors).unwrap();
    (connection, peer, socket)
}

pub async fn client(fixture: &Fixture) -> TcpStream {
    timeout(PATIENCE, TcpStream::connect(fixture.public))
        .await
        .unwrap()
        .unwrap()
}

/// Waits until the connection is closed from the other side.
pub async fn dropped(mut client: TcpStream) {
    let read = timeout(PATIENCE, client.read(&mut [0; 1])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

/// A connection that ends like this; the listener knows of it when this returns.
pub async fn ends(
    fixture: &Fixture,
    listener: &mut Process,
    spawner: &Channel,
    outcome: WorkerOutcome,
) {
    let _client = client(fixture).await;
    let (connection, ..) = taken(spawner).await;
    let end = SpawnerToListener::Ended {
        connection,
        outcome,
    };
    tell(spawner, end).await;
    listener.reason(outcome.as_str()).await;
}

/// Connects until admitted: what was told to the listener takes effect some time after it was sent.
pub async fn admitted_client(
    fixture: &Fixture,
    spawner: &Channel,
    connections: &mut Vec<ConnectionId>,
) -> TcpStream {
    let attempts = async {
        loop {
            let mut client = client(fixture).await;
            tokio::select! {
                (connection, ..) = taken(spawner) => {
                    connections.push(connection);
                    return client;
                }
                _ = client.read_u8() => {}
            }
        }
    };
    timeout(PATIENCE, attempts).await.unwrap()
}
