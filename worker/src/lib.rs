//! One public connection.
//!
//! A worker is a process that serves exactly one client. It parses every byte the client sends, and it holds no key, no
//! file and no way to dial: its client socket, a channel each to key agent, link agent and directory broker, and the data
//! sockets the broker passes to it are all it can reach (`docs/design.md`).
//!
//! Reading order: [`run`] (settings, start, end), `public` (TLS, upgrade, hello), `connection` (what the tasks share),
//! `input` and `controls` (what the client sends), `opener` and `data_socket` (sessions and the sockets they need),
//! `upstream` (requests to a toolshed), `receive` (its responses), `output` (what goes to the client), `table` (routing
//! state and quotas, without sockets), `ledger` (what the connection may use), `meter` (what it has carried).
#![forbid(unsafe_code)]

mod agents;
mod answers;
mod attempts;
mod broker;
mod connection;
mod controls;
mod data_socket;
mod end;
mod input;
mod ledger;
mod listen;
mod meter;
mod opener;
mod output;
mod pace;
mod pong;
mod public;
mod receive;
mod signer;
mod stopwatch;
mod table;
#[cfg(test)]
mod testing;
mod times;
mod turns;
mod upstream;
mod watchdog;

pub use ledger::connection_limits;

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use memory_config::WorkerSettings;
use memory_ipc::packets::{Detail, SpawnerToWorker, WorkerToSpawner};
use memory_ipc::{Channel, ChannelError, WorkerOutcome, memfd, take_stdin};
use memory_wire::ids::ConnectionId;
use memory_wire::reason::Reason;
use thiserror::Error;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Bytes of settings a worker takes from its spawner: certificate chain and origins are the largest parts.
const MAX_SETTINGS_LEN: usize = 1024 * 1024;

type ClientTls = tokio_rustls::server::TlsStream<TcpStream>;
type ClientRead = ReadHalf<ClientTls>;
type ClientWrite = WriteHalf<ClientTls>;
type UpstreamTls = tokio_rustls::client::TlsStream<TcpStream>;
type UpstreamRead = ReadHalf<UpstreamTls>;
type UpstreamWrite = WriteHalf<UpstreamTls>;

/// Why a worker could not even begin.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// Descriptor 0 is not a channel to a spawner.
    #[error("descriptor 0 is not a spawner's channel: {0}")]
    Stdin(#[source] std::io::Error),
    /// The spawner's channel failed or carried something unexpected.
    #[error("spawner channel: {0}")]
    Spawner(#[from] ChannelError),
    /// The spawner sent packets out of order.
    #[error("spawner sent {0} out of order")]
    Order(&'static str),
    /// The settings do not parse.
    #[error("settings: {0}")]
    Settings(String),
}

/// What the spawner gives a worker for its one connection.
struct Assignment {
    connection: ConnectionId,
    accepted_unix_ms: u64,
    client: OwnedFd,
    key_agent: OwnedFd,
    link_agent: OwnedFd,
}

/// The channel to the spawner, and what it said after the start.
#[derive(Debug)]
struct Spawner {
    channel: Channel,
    draining: Cell<bool>,
    changed: Notify,
    /// The channel to the newest broker, until it is taken into use.
    broker: RefCell<Option<OwnedFd>>,
    broker_changed: Notify,
}

impl Spawner {
    /// Listens until the spawner is gone: then nobody accounts for this process any more.
    async fn watch(&self) {
        while let Ok(Some((packet, mut descriptors))) = self.channel.recv_packet().await {
            match packet {
                SpawnerToWorker::Drain => {
                    self.draining.set(true);
                    self.changed.notify_one();
                }
                SpawnerToWorker::Broker => {
                    *self.broker.borrow_mut() = descriptors.pop();
                    self.broker_changed.notify_one();
                }
                SpawnerToWorker::Settings | SpawnerToWorker::Start { .. } => return,
            }
        }
    }

    /// Waits for the channel to another broker than the one before.
    async fn next_broker(&self) -> OwnedFd {
        loop {
            if let Some(broker) = self.broker.borrow_mut().take() {
                return broker;
            }
            self.broker_changed.notified().await;
        }
    }

    /// Waits for the drain notice.
    async fn drain(&self) {
        while !self.draining.get() {
            self.changed.notified().await;
        }
    }
}

/// Serves one connection: waits for it on descriptor 0, and returns when it is over.
///
/// Must run inside a `LocalSet` of a current-thread runtime. Returns `Ok` whatever the client did; the outcome goes to the
/// spawner in the last packet.
///
/// # Errors
/// [`WorkerError`] when the spawner's side of the bargain is broken. A spawner that is gone is a normal end.
pub async fn run() -> Result<(), WorkerError> {
    work(Channel::from_fd(take_stdin().map_err(WorkerError::Stdin)?)?).await
}

/// Serves one connection for the spawner at the other end of `channel`.
async fn work(channel: Channel) -> Result<(), WorkerError> {
    let Some((first, descriptors)) = channel.recv_packet::<SpawnerToWorker>().await? else {
        return Ok(());
    };
    let SpawnerToWorker::Settings = first else {
        return Err(WorkerError::Order("something before its settings"));
    };
    let settings = Rc::new(read_settings(descriptors)?);
    channel.send_packet(&WorkerToSpawner::Idle, &[]).await?;

    let Some((next, descriptors)) = channel.recv_packet::<SpawnerToWorker>().await? else {
        return Ok(());
    };
    let SpawnerToWorker::Start {
        connection,
        accepted_unix_ms,
        ..
    } = next
    else {
        return match next {
            SpawnerToWorker::Drain => Ok(()),
            _ => Err(WorkerError::Order("settings twice")),
        };
    };
    let Ok([client, key_agent, link_agent, broker]) = <[OwnedFd; 4]>::try_from(descriptors) else {
        return Err(WorkerError::Order("a start without its descriptors"));
    };
    let assignment = Assignment {
        connection,
        accepted_unix_ms,
        client,
        key_agent,
        link_agent,
    };

    let spawner = Rc::new(Spawner {
        channel,
        draining: Cell::new(false),
        changed: Notify::new(),
        broker: RefCell::new(Some(broker)),
        broker_changed: Notify::new(),
    });
    let end = tokio::select! {
        end = public::serve(Rc::clone(&settings), assignment, Rc::clone(&spawner)) => end,
        () = spawner.watch() => return Ok(()),
    };
    let detail = Detail::clipped(&end.detail);
    let event = WorkerToSpawner::Event {
        level: connection::level(end.reason),
        reason: end.reason.code(),
        detail,
        bytes_in: end.bytes_in,
        bytes_out: end.bytes_out,
    };
    let _ = spawner.channel.send_packet(&event, &[]).await;
    let report = WorkerToSpawner::Report { report: end.report };
    let _ = spawner.channel.send_packet(&report, &[]).await;
    let finished = WorkerToSpawner::Finished {
        outcome: outcome(end.reason),
        reason: end.reason.code(),
    };
    let _ = spawner.channel.send_packet(&finished, &[]).await;
    Ok(())
}

fn read_settings(mut descriptors: Vec<OwnedFd>) -> Result<WorkerSettings, WorkerError> {
    let file = descriptors
        .pop()
        .ok_or(WorkerError::Order("settings without their file"))?;
    let bytes = memfd::read(file, MAX_SETTINGS_LEN)
        .map_err(|error| WorkerError::Settings(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| WorkerError::Settings(error.to_string()))
}

/// What the listener makes of an end.
fn outcome(reason: Reason) -> WorkerOutcome {
    match reason {
        // Whoever else comes from a revoked client's network has done nothing.
        Reason::ClientClosed | Reason::ClientLost | Reason::PrincipalRevoked => {
            WorkerOutcome::Clean
        }
        Reason::Drain => WorkerOutcome::Drained,
        Reason::HandshakeTimeout => WorkerOutcome::HandshakeTimeout,
        Reason::AuthenticateTimeout | Reason::ChallengeSigners => {
            WorkerOutcome::FailedAuthentication
        }
        Reason::Idle | Reason::PingTimeout | Reason::UploadTimeout => WorkerOutcome::Timeout,
        Reason::AdmissionTimeout => WorkerOutcome::Overload,
        Reason::UpstreamLost | Reason::UpstreamProtocol => WorkerOutcome::UpstreamLost,
        // A client that is too old for TLS 1.3, or does not trust the certificate, is refused as one with another host is.
        Reason::TlsHandshake
        | Reason::UpgradeMalformed
        | Reason::UpgradeOrigin
        | Reason::UpgradePath
        | Reason::UpgradeMethod
        | Reason::UpgradeHost
        | Reason::UpgradeVersion
        | Reason::TenantCap => WorkerOutcome::Refused,
        reason if reason.close_code() == 1008 || reason.close_code() == 1009 => {
            WorkerOutcome::ProtocolError
        }
        _ => WorkerOutcome::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_tls_refuses_is_neither_slow_nor_at_fault() {
        assert_eq!(outcome(Reason::TlsHandshake), WorkerOutcome::Refused);
        assert_eq!(
            outcome(Reason::HandshakeTimeout),
            WorkerOutcome::HandshakeTimeout
        );
    }
}
