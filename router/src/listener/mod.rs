//! The listener: accepts public connections, admits them by source, and hands them to the spawner. It reads no byte of them.
//!
//! Connections are accepted only while the spawner says that they can be served; until then they wait in the kernel's queue.
//! Every admitted connection holds a place in [`Admission`] until the spawner says that it ended, or until the spawner
//! itself is gone, for then its workers are gone too.

mod announce;
mod socket;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use memory_config::{ProxyProtocol, RouterConfig};
use memory_ipc::packets::{ListenerToSpawner, SpawnerToListener};
use memory_ipc::{Channel, ChannelError, connect};
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use rustix::net::sockopt::{set_tcp_nodelay, set_tcp_user_timeout};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};

use crate::admission::{Admission, AdmissionLimits, DropLog, DropReport, Prefixes};
use crate::backoff::Backoff;
use crate::exit::{Exit, Failure};
use crate::signals::StopSignals;
use crate::throttle::{LOG_INTERVAL, Throttle};

pub(crate) use announce::Announcement;
use socket::{AcceptFailure, Acceptor, Spare, bind_all};

/// The name of the spawner's socket in `ipc_dir`.
pub(crate) const SPAWNER_SOCKET: &str = "spawner.sock";

/// How long the spawner may leave its channel full before a connection is given up instead of handed over.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Pauses between attempts to reach the spawner.
const FIRST_CONNECT_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_CONNECT_PAUSE: Duration = Duration::from_secs(1);

/// What the spawner gets beyond the drain to kill and reap what did not end.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// Runs the listener until a signal asks to stop and the connections have ended, or the drain is over. `supervised` says
/// that standard output is a pipe to a parent that wants to know whether clients are served.
///
/// # Errors
/// When an address cannot be had, or the configuration asks for something that is not implemented.
pub(crate) async fn run(config: &RouterConfig, supervised: bool) -> Result<(), Failure> {
    if config.proxy_protocol != ProxyProtocol::Off {
        // Its header would be taken for the client's first bytes, and every client counted as one source.
        return Err(Failure::new(
            Exit::Configuration,
            "proxy_protocol: only \"off\" is available in this version",
        ));
    }
    let mut signals = StopSignals::new()?;
    let sockets = bind_all(&config.listen)?;
    for socket in &sockets {
        let address = socket
            .local_addr()
            .map_err(|error| Failure::io("cannot read a listening address", error))?;
        tracing::info!(reason = "listening", %address, "listening");
    }
    let listener = Rc::new(Listener::new(config)?);

    spawn_local(Rc::clone(&listener).follow_spawner(config.ipc_dir.join(SPAWNER_SOCKET)));
    spawn_local(Rc::clone(&listener).report_drops());
    if supervised {
        spawn_local(announce(listener.accepting.subscribe()));
    }
    let acceptors: Vec<JoinHandle<()>> = sockets
        .into_iter()
        .map(|socket| spawn_local(Rc::clone(&listener).accept_on(Acceptor::new(socket))))
        .collect();

    signals.next().await;
    tracing::info!(
        reason = "stop",
        connections = listener.admission.borrow().live(),
        "stopping"
    );
    tokio::select! {
        () = sleep(config.timeouts.pre_drain) => {}
        () = signals.next() => {}
    }
    for acceptor in acceptors {
        acceptor.abort();
        // The socket is closed when the task is gone, and only then are clients sent elsewhere.
        drop(acceptor.await);
    }
    listener.drain(config.timeouts.drain + DRAIN_GRACE).await;
    Ok(())
}

/// Tells the parent of every change.
async fn announce(mut accepting: watch::Receiver<bool>) {
    let mut announced = false;
    while let Ok(now) = accepting
        .wait_for(|accepting| *accepting != announced)
        .await
        .map(|accepting| *accepting)
    {
        announced = now;
        if now {
            Announcement::Serving
        } else {
            Announcement::Waiting
        }
        .write();
    }
}

/// What the tasks of the process share. Borrows never live across an await.
#[derive(Debug)]
struct Listener {
    admission: RefCell<Admission>,
    drops: RefCell<DropLog>,
    /// Accepting failed: descriptors, or something else.
    failures: RefCell<Throttle>,
    spare: Spare,
    spawner: RefCell<Option<Rc<Channel>>>,
    /// Whether the spawner can serve connections.
    accepting: watch::Sender<bool>,
    /// Woken when a connection has ended or the spawner is gone.
    ended: Notify,
    /// `TCP_USER_TIMEOUT` of every connection, in milliseconds.
    user_timeout: u32,
}

impl Listener {
    fn new(config: &RouterConfig) -> Result<Self, Failure> {
        Ok(Self {
            admission: RefCell::new(Admission::new(admission_limits(config), Instant::now())),
            drops: RefCell::default(),
            failures: RefCell::default(),
            spare: Spare::new()?,
            spawner: RefCell::default(),
            accepting: watch::channel(false).0,
            ended: Notify::new(),
            user_timeout: u32::try_from(config.timeouts.tcp_user.as_millis()).unwrap_or(u32::MAX),
        })
    }

    /// Accepts on one socket for ever.
    async fn accept_on(self: Rc<Self>, mut acceptor: Acceptor) {
        let mut accepting = self.accepting.subscribe();
        loop {
            // The sender lives in `self`.
            drop(accepting.wait_for(|accepting| *accepting).await);
            let accepted = tokio::select! {
                _ = accepting.wait_for(|accepting| !*accepting) => continue,
                accepted = acceptor.accept(&self.spare) => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.take(stream, peer).await,
                Err(failure) => {
                    self.report_failure(failure);
                    acceptor.pause().await;
                }
            }
        }
    }

    /// Admits an accepted connection and hands it over, or drops it.
    async fn take(&self, stream: TcpStream, peer: SocketAddr) {
        let now = Instant::now();
        let Some(connection) = self.draw_id() else {
            tracing::error!(reason = Reason::Internal.as_str(), %peer, "no random bytes for a connection ID");
            return;
        };
        let admitted = self
            .admission
            .borrow_mut()
            .admit(connection, peer.ip(), now);
        if let Err(refusal) = admitted {
            drop(stream);
            if let Some(report) = self.drops.borrow_mut().note(refusal, peer, now) {
                log_drops(&report);
            }
            return;
        }
        if let Err(error) = self.hand_over(connection, stream, peer).await {
            self.admission
                .borrow_mut()
                .release(&connection, Instant::now());
            self.ended.notify_one();
            tracing::warn!(
                reason = error.reason(),
                %connection,
                %peer,
                error = &error as &dyn std::error::Error,
                "could not hand a connection to the spawner; it is dropped"
            );
        }
    }

    /// Passes the socket to the spawner. This process's copy is closed on return, in any case.
    async fn hand_over(
        &self,
        connection: ConnectionId,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Result<(), ChannelError> {
        let spawner = self.spawner.borrow().clone().ok_or(ChannelError::Closed)?;
        let socket = OwnedFd::from(stream.into_std().map_err(ChannelError::Setup)?);
        // Set here because a worker may not. A connection that was reset meanwhile refuses them, which its worker finds out.
        let _ = set_tcp_nodelay(&socket, true);
        let _ = set_tcp_user_timeout(&socket, self.user_timeout);
        let packet = ListenerToSpawner::NewConnection {
            connection,
            peer,
            accepted_unix_ms: connection.unix_millis(),
        };
        let descriptors = [socket.as_fd()];
        let sent = timeout(
            HAND_OVER_TIMEOUT,
            spawner.send_packet(&packet, &descriptors),
        )
        .await;
        sent.unwrap_or(Err(ChannelError::WouldBlock))?;
        tracing::debug!(reason = "accepted", %connection, %peer, "handed a connection to the spawner");
        Ok(())
    }

    /// An ID that is not in use. 32 random bits a millisecond: more than a second attempt is not needed in practice.
    fn draw_id(&self) -> Option<ConnectionId> {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let unix_millis = u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX);
        for _ in 0..4 {
            let mut entropy = [0; 4];
            getrandom::fill(&mut entropy).ok()?;
            let connection = ConnectionId::new(unix_millis, entropy);
            if !self.admission.borrow().knows(&connection) {
                return Some(connection);
            }
        }
        None
    }

    /// Keeps a channel to the spawner for ever.
    async fn follow_spawner(self: Rc<Self>, path: PathBuf) {
        let mut backoff = Backoff::new(FIRST_CONNECT_PAUSE, LONGEST_CONNECT_PAUSE);
        let mut unreachable = Throttle::default();
        loop {
            match connect(&path) {
                Ok(channel) => {
                    backoff.reset();
                    self.serve_spawner(Rc::new(channel)).await;
                }
                Err(error) => {
                    if let Some(attempts) = unreachable.note(Instant::now()) {
                        let error = &error as &dyn std::error::Error;
                        tracing::info!(
                            reason = "spawner-unreachable",
                            attempts,
                            error,
                            "waiting for the spawner"
                        );
                    }
                }
            }
            sleep(backoff.pause()).await;
        }
    }

    /// Follows what the spawner says until it is gone.
    async fn serve_spawner(&self, channel: Rc<Channel>) {
        tracing::info!(reason = "spawner-connected", "connected to the spawner");
        self.spawner.replace(Some(Rc::clone(&channel)));
        let end = loop {
            match channel.recv_packet::<SpawnerToListener>().await {
                Ok(Some((packet, _))) => self.act_on(&packet),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        self.spawner.replace(None);
        self.accepting.send_replace(false);
        let connections = self.admission.borrow_mut().release_all(Instant::now());
        self.ended.notify_one();
        let error = end.as_ref().map(|error| error as &dyn std::error::Error);
        tracing::error!(
            reason = Reason::SpawnerLost.as_str(),
            connections,
            error,
            "the spawner is gone"
        );
    }

    fn act_on(&self, packet: &SpawnerToListener) {
        match packet {
            SpawnerToListener::Ready { accepting } => {
                let changed = self.accepting.send_replace(*accepting) != *accepting;
                if changed {
                    tracing::info!(reason = "ready", accepting, "the spawner changed state");
                }
            }
            SpawnerToListener::Authenticated { connection } => {
                self.admission.borrow_mut().authenticated(connection);
            }
            SpawnerToListener::Ended {
                connection,
                outcome,
            } => {
                self.admission
                    .borrow_mut()
                    .release(connection, Instant::now());
                self.ended.notify_one();
                tracing::debug!(reason = outcome.as_str(), %connection, "a connection ended");
            }
            SpawnerToListener::Refused { connection, reason } => {
                self.admission
                    .borrow_mut()
                    .release(connection, Instant::now());
                self.ended.notify_one();
                let reason = Reason::from_code(*reason).unwrap_or(Reason::Internal);
                tracing::debug!(reason = reason.as_str(), %connection, "the spawner refused a connection");
            }
        }
    }

    /// Tells the spawner to drain, and waits until every connection has ended, the spawner is gone, or `patience` is over.
    async fn drain(&self, patience: Duration) {
        let Some(spawner) = self.spawner.borrow().clone() else {
            return;
        };
        let drained = async {
            if spawner
                .send_packet(&ListenerToSpawner::Drain, &[])
                .await
                .is_err()
            {
                return;
            }
            while self.admission.borrow().live() > 0 {
                self.ended.notified().await;
            }
        };
        if timeout(patience, drained).await.is_err() {
            let connections = self.admission.borrow().live();
            tracing::warn!(
                reason = Reason::Drain.as_str(),
                connections,
                "connections are left after the drain"
            );
        }
    }

    /// Reports what was dropped last, now and then.
    async fn report_drops(self: Rc<Self>) {
        loop {
            sleep(LOG_INTERVAL).await;
            self.drops
                .borrow_mut()
                .due(Instant::now())
                .iter()
                .for_each(log_drops);
        }
    }

    fn report_failure(&self, failure: AcceptFailure) {
        let Some(count) = self.failures.borrow_mut().note(Instant::now()) else {
            return;
        };
        match failure {
            AcceptFailure::Descriptors(errno) => tracing::error!(
                reason = Reason::DescriptorLimit.as_str(),
                count,
                error = %errno,
                setting = "RLIMIT_NOFILE (LimitNOFILE= of the unit, ulimit -n)",
                "out of file descriptors: connections are dropped, and accepting pauses"
            ),
            AcceptFailure::Other(errno) => {
                tracing::error!(reason = Reason::Internal.as_str(), count, error = %errno, "cannot accept; accepting pauses");
            }
        }
    }
}

fn log_drops(report: &DropReport) {
    let DropReport {
        refusal,
        count,
        peer,
    } = report;
    let (reason, setting) = (refusal.reason().as_str(), refusal.setting());
    tracing::warn!(reason, count, %peer, setting, "dropped connections before reading from them");
}

fn admission_limits(config: &RouterConfig) -> AdmissionLimits {
    let limits = &config.limits;
    AdmissionLimits {
        workers: limits.max_workers,
        unauthenticated: limits.max_unauthenticated,
        per_source: limits.max_per_source,
        unauthenticated_per_source: limits.max_unauthenticated_per_source,
        per_second: limits.max_new_connections_per_second,
        per_source_per_second: limits.max_new_connections_per_source_per_second,
        prefixes: Prefixes {
            ipv4: limits.ipv4_prefix,
            ipv6: limits.ipv6_prefix,
        },
    }
}
