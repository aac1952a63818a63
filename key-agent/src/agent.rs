//! The process: its named socket, the spawner's channel, and a task for each worker.

use std::cell::Cell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use memory_admin::{Count, CountBy, Family, Snapshot, socket_path};
use memory_budget::{Budget, Limit};
use memory_config::{CredentialError, PemError, RouterConfig};
use memory_ipc::memfd::MemfdError;
use memory_ipc::packets::{KeyAgentToSpawner, SpawnerToKeyAgent};
use memory_ipc::{Channel, ChannelError, NamedListener, memfd};
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use rustix::process::geteuid;
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};
use tracing::Instrument as _;

use crate::keys::TlsKey;
use crate::worker_channel::serve;

/// The name of the key agent's socket in `ipc_dir`.
pub const SOCKET_NAME: &str = "key-agent.sock";

const ROLE: &str = "key-agent";

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

/// Runs the key agent with the configuration as it is and becomes; returns on failure only. To be called inside a
/// current-thread tokio runtime.
///
/// Whenever the configuration is sent, changed or not, certificate and key are read again as a pair. A pair that cannot be
/// used is logged, and the one before stays in force.
///
/// # Errors
/// [`KeyAgentError`], before anything is served. What goes wrong afterwards ends a channel, not the agent.
pub async fn run(mut config: watch::Receiver<Arc<RouterConfig>>) -> Result<(), KeyAgentError> {
    // Before the key is there to be read.
    memory_sandbox::protect_secrets().map_err(KeyAgentError::Protect)?;
    let first = Arc::clone(&config.borrow_and_update());
    let key = TlsKey::load(&first.public_certificate, &first.tls_key)?;
    let agent = Rc::new(Agent::new(key, &first)?);
    let socket = NamedListener::bind(&first.ipc_dir.join(SOCKET_NAME), &[geteuid().as_raw()])
        .map_err(KeyAgentError::Listen)?;
    let ipc_dir = first.ipc_dir.clone();
    drop(first);
    tracing::info!(reason = "started", schemes = ?agent.announced.borrow().schemes, "the key agent is ready");
    let tasks = LocalSet::new();
    tasks.spawn_local(Rc::clone(&agent).show(ipc_dir));
    tasks.spawn_local({
        let agent = Rc::clone(&agent);
        async move {
            while config.changed().await.is_ok() {
                let config = Arc::clone(&config.borrow_and_update());
                agent.reload(&config);
            }
        }
    });
    tasks.run_until(agent.accept(socket)).await
}

/// A certificate with its key, as announced to spawners.
#[derive(Debug)]
struct Announced {
    /// Larger than that of the one before.
    number: u32,
    key: Rc<TlsKey>,
    schemes: Vec<u16>,
    /// The chain as it is announced.
    chain: Vec<u8>,
}

impl Announced {
    fn new(number: u32, key: TlsKey) -> Result<Rc<Self>, KeyAgentError> {
        Ok(Rc::new(Self {
            number,
            schemes: key.scheme_numbers(),
            chain: key.encoded_chain()?,
            key: Rc::new(key),
        }))
    }
}

/// What there has been.
#[derive(Debug, Default)]
struct Tally {
    signatures: Count,
    /// Channels that were ended for what their worker asked or did.
    refused: CountBy<&'static str>,
}

/// What every task of the process shares.
pub(crate) struct Agent {
    /// The pair in force.
    announced: watch::Sender<Rc<Announced>>,
    /// How long a worker has for its handshake, and so its channel to live.
    patience: Cell<Duration>,
    /// Worker channels that are open. They live as long as a handshake at most, so the bound is reached only by a spawner that
    /// does not keep to `max_workers` itself.
    channels: Budget,
    tally: Rc<Tally>,
}

impl Agent {
    pub(crate) fn new(key: TlsKey, config: &RouterConfig) -> Result<Self, KeyAgentError> {
        Ok(Self {
            announced: watch::Sender::new(Announced::new(1, key)?),
            patience: Cell::new(config.timeouts.handshake),
            channels: Budget::new("signing_channels", max_channels(config)),
            tally: Rc::default(),
        })
    }

    /// Shows the role for ever, to its own user and to root.
    async fn show(self: Rc<Self>, ipc_dir: PathBuf) {
        let started = SystemTime::now();
        let allowed = [geteuid().as_raw(), 0];
        memory_admin::serve(&socket_path(&ipc_dir, ROLE), &allowed, || {
            Snapshot::new(ROLE, started)
                .budget(&self.channels)
                .family(
                    Family::counter("signatures_total", "Handshakes that were signed")
                        .value(self.tally.signatures.get()),
                )
                .family(
                    Family::counter(
                        "signing_refusals_total",
                        "Channels of workers that were ended for what they asked, by reason",
                    )
                    .by("reason", &self.tally.refused),
                )
                .family(
                    Family::counter("certificates_total", "Certificates that have been in force")
                        .value(u64::from(self.announced.borrow().number)),
                )
        })
        .await;
    }

    /// Takes a configuration, and the certificate and key that it names if both can be used.
    pub(crate) fn reload(&self, config: &RouterConfig) {
        self.patience.set(config.timeouts.handshake);
        self.channels.set_limit(max_channels(config));
        let present = Rc::clone(&self.announced.borrow());
        let next = TlsKey::load(&config.public_certificate, &config.tls_key)
            .and_then(|key| Announced::new(present.number.saturating_add(1), key));
        match next {
            // The chain names the public key, so that its private key is the same too.
            Ok(next) if next.chain == present.chain => {
                tracing::info!(
                    reason = "certificate-unchanged",
                    "the certificate is the one in force"
                );
            }
            Ok(next) => {
                tracing::info!(
                    reason = "certificate-reloaded",
                    schemes = ?next.schemes,
                    "another certificate is in force for new connections"
                );
                self.announced.send_replace(next);
            }
            Err(error) => {
                tracing::error!(
                    reason = "certificate-refused",
                    error = &error as &dyn std::error::Error,
                    "the certificate and key before stay in force"
                );
            }
        }
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

    async fn follow_spawner(&self, channel: &Channel) -> Result<(), SpawnerEnd> {
        let channel_failed = |error: ChannelError| (error.reason(), error.into());
        let mut news = self.announced.subscribe();
        // Announced on this channel, oldest first. A worker that shows an earlier chain may be registered until the first that
        // shows a later one is.
        let mut announced = VecDeque::new();
        news.mark_changed();
        loop {
            let received = tokio::select! {
                // The sender lives in `self`.
                Ok(()) = news.changed() => {
                    let next = Rc::clone(&news.borrow_and_update());
                    announce(channel, &next).await?;
                    announced.push_back(next);
                    continue;
                }
                received = channel.recv_packet::<SpawnerToKeyAgent>() => received,
            };
            let (packet, descriptors) = match received {
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
            let SpawnerToKeyAgent::Register {
                connection,
                announcement,
            } = packet;
            while announced
                .front()
                .is_some_and(|oldest: &Rc<Announced>| oldest.number < announcement)
            {
                announced.pop_front();
            }
            let Some(shown) = announced
                .front()
                .filter(|oldest| oldest.number == announcement)
            else {
                let what = format!("announcement {announcement} is not in force");
                return Err((Reason::ChannelProtocol.as_str(), what.into()));
            };
            for descriptor in descriptors {
                match Channel::from_fd(descriptor) {
                    Ok(channel) => self.serve_worker(connection, channel, Rc::clone(&shown.key)),
                    // This system has no room for it: one connection lost, and no reason to lose the others.
                    Err(error @ ChannelError::Setup(_)) => tracing::error!(
                        reason = error.reason(),
                        %connection,
                        error = &error as &dyn std::error::Error,
                        "a worker's channel is unusable"
                    ),
                    // The descriptor was made by the spawner: one that is no channel is the spawner's fault.
                    Err(error) => return Err(channel_failed(error)),
                }
            }
        }
    }

    fn serve_worker(&self, connection: ConnectionId, channel: Channel, key: Rc<TlsKey>) {
        let Ok(open) = self.channels.reserve(1) else {
            tracing::error!(reason = Reason::Capacity.as_str(), %connection, "too many workers wait for a signature");
            return;
        };
        let (patience, tally) = (self.patience.get(), Rc::clone(&self.tally));
        let task = async move {
            let end = serve(&channel, &key, patience, &tally.signatures).await;
            drop((channel, open));
            if end.is_regular() {
                tracing::debug!(reason = end.reason(), "a worker's channel ended");
            } else {
                tally.refused.add(end.reason(), 1);
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

/// Why a spawner's channel ended: the word for the log, and the story.
type SpawnerEnd = (&'static str, Box<dyn std::error::Error>);

async fn announce(channel: &Channel, announced: &Announced) -> Result<(), SpawnerEnd> {
    let chain = memfd::sealed("certificate-chain", &announced.chain)
        .map_err(|error| ("announce", error.into()))?;
    let packet = KeyAgentToSpawner::KeyAnnounce {
        announcement: announced.number,
        schemes: announced.schemes.clone(),
    };
    let descriptors = [std::os::fd::AsFd::as_fd(&chain)];
    channel
        .send_packet(&packet, &descriptors)
        .await
        .map_err(|error| (error.reason(), error.into()))
}

/// Twice as many as there may be workers, since the channel of a worker that has ended may still be waiting to be found
/// closed.
fn max_channels(config: &RouterConfig) -> Limit {
    Limit::At(config.limits.max_workers.saturating_mul(2))
}
