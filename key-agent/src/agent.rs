//! The process: its named socket, the spawner's channel, and a task for each worker.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use memory_config::{CredentialError, PemError, RouterConfig};
use memory_ipc::memfd::MemfdError;
use memory_ipc::packets::{KeyAgentToSpawner, SpawnerToKeyAgent};
use memory_ipc::{Channel, ChannelError, NamedListener, memfd};
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use rustix::process::geteuid;
use tokio::sync::Semaphore;
use tokio::task::{LocalSet, spawn_local};
use tracing::Instrument as _;

use crate::keys::TlsKey;
use crate::worker_channel::serve;

/// The name of the key agent's socket in `ipc_dir`.
pub const SOCKET_NAME: &str = "key-agent.sock";

/// Pause after the system refused to accept: out of descriptors, which a moment may mend.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Why the key agent ended. None of it carries a byte of the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyAgentError {
    /// The memory of this process could not be kept from others.
    #[error("cannot protect the memory of this process")]
    Protect(#[source] memory_sandbox::SandboxError),
    /// A credential is named, and the service manager gave this process none.
    #[error("no access to a credential")]
    Credential(#[source] CredentialError),
    /// `public_certificate` cannot be used.
    #[error("public_certificate cannot be used")]
    Certificate(#[source] PemError),
    /// A certificate of the chain is longer than any real one.
    #[error("public_certificate holds a certificate that is too long")]
    CertificateTooLong,
    /// `tls_key` cannot be used.
    #[error("tls_key cannot be used")]
    PrivateKey(#[source] PemError),
    /// `tls_key` holds a key of a kind that is not supported.
    #[error(
        "tls_key holds a key of an unsupported kind; supported are Ed25519, ECDSA P-256 and P-384, RSA of 2048 bits and more"
    )]
    UnsupportedKey(#[source] rustls::Error),
    /// The key signs with no scheme of TLS 1.3.
    #[error("tls_key holds a key that signs with no scheme of TLS 1.3")]
    NoScheme,
    /// The certificate and the key were not made for each other: one of the two was replaced alone.
    #[error("public_certificate and tls_key do not belong together")]
    Mismatch(#[source] rustls::Error),
    /// The named socket could not be made.
    #[error("cannot listen for the spawner")]
    Listen(#[source] ChannelError),
    /// The announcement could not be made.
    #[error("cannot announce the certificate chain")]
    Announce(#[source] MemfdError),
}

impl KeyAgentError {
    /// Whether somebody has to change the configuration, or a file it names, before another start can help.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Credential(_)
            | Self::Certificate(_)
            | Self::CertificateTooLong
            | Self::PrivateKey(_)
            | Self::UnsupportedKey(_)
            | Self::NoScheme
            | Self::Mismatch(_) => true,
            Self::Protect(_) | Self::Listen(_) | Self::Announce(_) => false,
        }
    }
}

/// Runs the key agent; returns on failure only. To be called inside a current-thread tokio runtime.
///
/// # Errors
/// [`KeyAgentError`], before anything is served. What goes wrong afterwards ends a channel, not the agent.
pub async fn run(config: RouterConfig) -> Result<(), KeyAgentError> {
    // Before the key is there to be read.
    memory_sandbox::protect_secrets().map_err(KeyAgentError::Protect)?;
    let key = TlsKey::load(&config.public_certificate, &config.tls_key)?;
    let agent = Agent::new(key, &config)?;
    let socket = NamedListener::bind(&config.ipc_dir.join(SOCKET_NAME), &[geteuid().as_raw()])
        .map_err(KeyAgentError::Listen)?;
    tracing::info!(reason = "started", schemes = ?agent.schemes, "the key agent is ready");
    LocalSet::new()
        .run_until(Rc::new(agent).accept(socket))
        .await
}

/// What every task of the process shares.
pub(crate) struct Agent {
    key: Rc<TlsKey>,
    schemes: Vec<u16>,
    /// The chain as it is announced.
    chain: Vec<u8>,
    /// How long a worker has for its handshake, and so its channel to live.
    patience: Duration,
    /// Bounds the worker channels that are open at once. They live as long as a handshake at most, so this is reached only
    /// by a spawner that does not keep to `max_workers` itself.
    channels: Arc<Semaphore>,
}

impl Agent {
    pub(crate) fn new(key: TlsKey, config: &RouterConfig) -> Result<Self, KeyAgentError> {
        // Twice as many, since the channel of a worker that has ended may still be waiting to be found closed.
        let channels = usize::try_from(config.limits.max_workers.saturating_mul(2))
            .unwrap_or(Semaphore::MAX_PERMITS);
        Ok(Self {
            schemes: key.scheme_numbers(),
            chain: key.encoded_chain()?,
            key: Rc::new(key),
            patience: config.timeouts.handshake,
            channels: Arc::new(Semaphore::new(channels)),
        })
    }

    /// Serves one spawner at a time; a new one takes the place of the one before, which cannot be alive any more.
    async fn accept(self: Rc<Self>, socket: NamedListener) -> Result<(), KeyAgentError> {
        let mut serving: Option<tokio::task::JoinHandle<()>> = None;
        loop {
            match socket.accept().await {
                Ok(channel) => {
                    if let Some(former) = serving.take() {
                        former.abort();
                    }
                    serving = Some(spawn_local(Rc::clone(&self).serve_spawner(channel)));
                }
                Err(error) => {
                    tracing::warn!(
                        reason = error.reason(),
                        error = &error as &dyn std::error::Error,
                        "cannot accept"
                    );
                    if !error.is_violation() {
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    /// Announces the certificate to a spawner, then takes a channel for each worker it makes.
    pub(crate) async fn serve_spawner(self: Rc<Self>, channel: Channel) {
        match self.follow_spawner(&channel).await {
            Ok(()) => tracing::info!(reason = "spawner-gone", "the spawner closed its channel"),
            Err((reason, error)) => {
                tracing::error!(reason, error = &*error, "the spawner's channel ends");
            }
        }
    }

    async fn follow_spawner(
        self: &Rc<Self>,
        channel: &Channel,
    ) -> Result<(), (&'static str, Box<dyn std::error::Error>)> {
        let channel_failed = |error: ChannelError| (error.reason(), error.into());
        let chain = memfd::sealed("certificate-chain", &self.chain)
            .map_err(|error| ("announce", error.into()))?;
        let announcement = KeyAgentToSpawner::KeyAnnounce {
            schemes: self.schemes.clone(),
        };
        let descriptors = [std::os::fd::AsFd::as_fd(&chain)];
        channel
            .send_packet(&announcement, &descriptors)
            .await
            .map_err(channel_failed)?;
        drop(chain);
        loop {
            let (packet, descriptors) = match channel.recv_packet::<SpawnerToKeyAgent>().await {
                Ok(Some(received)) => received,
                Ok(None) => return Ok(()),
                // The worker it was for sees its channel closed, and its client the handshake fail.
                Err(error @ ChannelError::DescriptorsLost) => {
                    tracing::error!(
                        reason = error.reason(),
                        error = &error as &dyn std::error::Error,
                        "lost a worker"
                    );
                    continue;
                }
                Err(error) => return Err(channel_failed(error)),
            };
            let SpawnerToKeyAgent::Register { connection } = packet;
            for descriptor in descriptors {
                // The descriptor was made by the spawner: one that is no channel is the spawner's fault.
                self.serve_worker(
                    connection,
                    Channel::from_fd(descriptor).map_err(channel_failed)?,
                );
            }
        }
    }

    fn serve_worker(self: &Rc<Self>, connection: ConnectionId, channel: Channel) {
        let Ok(permit) = Arc::clone(&self.channels).try_acquire_owned() else {
            tracing::error!(reason = Reason::Capacity.as_str(), %connection, "too many workers wait for a signature");
            return;
        };
        let agent = Rc::clone(self);
        let task = async move {
            let end = serve(&channel, &agent.key, agent.patience).await;
            drop((channel, permit));
            if end.is_regular() {
                tracing::debug!(reason = end.reason(), "a worker's channel ended");
            } else {
                tracing::warn!(
                    reason = end.reason(),
                    error = &end as &dyn std::error::Error,
                    "ended a worker's channel"
                );
            }
        };
        spawn_local(task.instrument(tracing::info_span!("worker", %connection)));
    }
}
