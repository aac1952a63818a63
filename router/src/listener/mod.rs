//! The listener: accepts public connections, admits them by source, and hands them to the spawner. It reads no byte of a
//! client, only the header that a balancer puts before them where the configuration says so ([`proxy`]).
//!
//! Connections are accepted only while the spawner says that they can be served; until then they wait in the kernel's queue.
//! Every admitted connection holds a place in [`Admission`] until the spawner says that it ended, or until the spawner
//! itself is gone, for then its workers are gone too.

mod announce;
mod proxy;
mod show;
mod socket;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use memory_budget::Permit;
use memory_config::{Network, ProxyProtocol, RouterConfig};
use memory_ipc::packets::{ListenerToSpawner, SpawnerToListener};
use memory_ipc::{Channel, ChannelError, connect};
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use rustix::net::sockopt::{set_tcp_nodelay, set_tcp_user_timeout};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::admission::{Admission, AdmissionLimits, DropLog, DropReport, Prefixes, Refusal};
use crate::backoff::Backoff;
use crate::exit::Failure;
use crate::reload::Changes;
use crate::signals::StopSignals;
use crate::throttle::{LOG_INTERVAL, Throttle};

pub(crate) use announce::Announcement;
use proxy::{HeaderFault, Origin};
use show::Counts;
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
/// When an address cannot be had.
pub(crate) async fn run(mut changes: Changes, supervised: bool) -> Result<(), Failure> {
    let config = Arc::clone(&changes.borrow_and_update());
    let mut signals = StopSignals::new()?;
    let sockets = bind_all(&config.listen)?;
    for socket in &sockets {
        let address = socket
            .local_addr()
            .map_err(|error| Failure::io("cannot read a listening address", error))?;
        tracing::info!(reason = "listening", %address, "listening");
    }
    let listener = Rc::new(Listener::new(&config)?);

    spawn_local(Rc::clone(&listener).follow_spawner(config.ipc_dir.join(SPAWNER_SOCKET)));
    spawn_local(Rc::clone(&listener).report_drops());
    spawn_local(Rc::clone(&listener).follow_config(changes.clone()));
    spawn_local(show::show(Rc::clone(&listener), config.ipc_dir.clone()));
    if supervised {
        spawn_local(announce(listener.accepting.subscribe()));
    }
    let acceptors: Vec<JoinHandle<()>> = sockets
        .into_iter()
        .map(|socket| spawn_local(Rc::clone(&listener).accept_on(Acceptor::new(socket))))
        .collect();

    signals.next().await;
    let timeouts = changes.borrow().timeouts.clone();
    tracing::info!(
        reason = "stop",
        connections = listener.admission.borrow().live(),
        "stopping"
    );
    tokio::select! {
        () = sleep(timeouts.pre_drain) => {}
        () = signals.next() => {}
    }
    for acceptor in acceptors {
        acceptor.abort();
        // The socket is closed when the task is gone, and only then are clients sent elsewhere.
        drop(acceptor.await);
    }
    listener.drain(timeouts.drain + DRAIN_GRACE).await;
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
    user_timeout: Cell<u32>,
    balancers: RefCell<Balancers>,
    counts: Counts,
}

/// Who stands between clients and this listener.
#[derive(Debug)]
struct Balancers {
    /// The networks that a header is taken from; `None` when nobody sends one.
    trusted: Option<Vec<Network>>,
    /// By when a header must have come, from accept.
    patience: Duration,
}

/// An accepted connection.
#[derive(Debug)]
struct Arrival {
    stream: TcpStream,
    /// The TCP peer.
    peer: SocketAddr,
    /// Deadlines count from here.
    unix_millis: u64,
}

/// The place of an admitted connection until the spawner has it: given back otherwise, also when the task is stopped.
#[derive(Debug)]
struct Place<'a> {
    listener: &'a Listener,
    connection: ConnectionId,
    is_handed_over: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_handed_over {
            let mut admission = self.listener.admission.borrow_mut();
            admission.release(&self.connection, Instant::now());
            self.listener.ended.notify_one();
        }
    }
}

impl Listener {
    fn new(config: &RouterConfig) -> Result<Self, Failure> {
        Ok(Self {
            admission: RefCell::new(Admission::new(
                admission_limits(config),
                config.penalties.clone(),
                Instant::now(),
            )),
            drops: RefCell::default(),
            failures: RefCell::default(),
            spare: Spare::new()?,
            spawner: RefCell::default(),
            accepting: watch::channel(false).0,
            ended: Notify::new(),
            user_timeout: Cell::new(user_timeout(config)),
            balancers: RefCell::new(balancers(config)),
            counts: Counts::default(),
        })
    }

    /// Takes other bounds as they come. What is counted stays counted.
    async fn follow_config(self: Rc<Self>, mut changes: Changes) {
        while changes.changed().await.is_ok() {
            let config = Arc::clone(&changes.borrow_and_update());
            self.user_timeout.set(user_timeout(&config));
            self.balancers.replace(balancers(&config));
            self.admission.borrow_mut().set_limits(
                admission_limits(&config),
                config.penalties.clone(),
                Instant::now(),
            );
        }
    }

    /// Accepts on one socket for ever. Connections that wait for their header end with this.
    async fn accept_on(self: Rc<Self>, mut acceptor: Acceptor) {
        let mut accepting = self.accepting.subscribe();
        let mut waiting = JoinSet::new();
        loop {
            // The sender lives in `self`.
            drop(accepting.wait_for(|accepting| *accepting).await);
            let accepted = tokio::select! {
                _ = accepting.wait_for(|accepting| !*accepting) => continue,
                Some(_) = waiting.join_next() => continue,
                accepted = acceptor.accept(&self.spare) => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    self.counts.accepted();
                    let unix_millis = unix_millis();
                    let arrival = Arrival {
                        stream,
                        peer,
                        unix_millis,
                    };
                    match self.expected_header(peer) {
                        Ok(None) => self.take(arrival, peer).await,
                        Ok(Some((place, patience))) => {
                            let take = Rc::clone(&self).take_proxied(arrival, place, patience);
                            waiting.spawn_local(take);
                        }
                        Err(refusal) => self.note_drop(refusal, peer),
                    }
                }
                Err(failure) => {
                    self.report_failure(failure);
                    acceptor.pause().await;
                }
            }
        }
    }

    /// Whether a header is to come before anything else: then a place to wait for it, and for how long. Refused when there
    /// is none, or the peer is no balancer.
    fn expected_header(&self, peer: SocketAddr) -> Result<Option<(Permit, Duration)>, Refusal> {
        let balancers = self.balancers.borrow();
        let Some(trusted) = &balancers.trusted else {
            return Ok(None);
        };
        if !trusted.iter().any(|network| network.contains(peer.ip())) {
            return Err(Refusal::ProxyHeader);
        }
        let place = self.admission.borrow().expect_header()?;
        Ok(Some((place, balancers.patience)))
    }

    /// Takes a connection of a balancer as soon as it is known whose it is.
    async fn take_proxied(self: Rc<Self>, arrival: Arrival, place: Permit, patience: Duration) {
        let Arrival {
            mut stream, peer, ..
        } = arrival;
        let header = timeout(patience, proxy::read(&mut stream)).await;
        drop(place);
        let arrival = Arrival { stream, ..arrival };
        match header.unwrap_or(Err(HeaderFault::Late)) {
            Ok(Origin::Client(client)) => self.take(arrival, client).await,
            Ok(Origin::Unspecified) => self.take(arrival, peer).await,
            // Balancers look often, and nobody is to be told.
            Ok(Origin::Balancer) | Err(HeaderFault::Nothing) => {
                self.counts.health_check();
                tracing::debug!(reason = "health-check", %peer, "a balancer looked whether clients are accepted");
            }
            Err(fault) => {
                tracing::debug!(
                    reason = Reason::ProxyHeader.as_str(),
                    %peer,
                    error = &fault as &dyn std::error::Error,
                    "no usable header"
                );
                self.note_drop(Refusal::ProxyHeader, peer);
            }
        }
    }

    fn note_drop(&self, refusal: Refusal, peer: SocketAddr) {
        let report = self.drops.borrow_mut().note(refusal, peer, Instant::now());
        if let Some(report) = report {
            log_drops(&report);
        }
    }

    /// Admits a connection of this peer and hands it over, or drops it.
    async fn take(&self, arrival: Arrival, peer: SocketAddr) {
        let Arrival {
            stream,
            unix_millis,
            ..
        } = arrival;
        let now = Instant::now();
        let Some(connection) = self.draw_id(unix_millis) else {
            tracing::error!(reason = Reason::Internal.as_str(), %peer, "no random bytes for a connection ID");
            return;
        };
        let admitted = self
            .admission
            .borrow_mut()
            .admit(connection, peer.ip(), now);
        if let Err(refusal) = admitted {
            drop(stream);
            self.note_drop(refusal, peer);
            return;
        }
        let mut place = Place {
            listener: self,
            connection,
            is_handed_over: false,
        };
        match self.hand_over(connection, stream, peer).await {
            Ok(()) => place.is_handed_over = true,
            Err(error) => {
                self.counts.not_handed_over();
                tracing::warn!(
                    reason = error.reason(),
                    %connection,
                    %peer,
                    error = &error as &dyn std::error::Error,
                    "could not hand a connection to the spawner; it is dropped"
                );
            }
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
        let _ = set_tcp_user_timeout(&socket, self.user_timeout.get());
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
    fn draw_id(&self, unix_millis: u64) -> Option<ConnectionId> {
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
                    .end(connection, *outcome, Instant::now());
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
        self.counts.accept_failed(failure);
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
            AcceptFailure::Memory(errno) => tracing::error!(
                reason = Reason::Internal.as_str(),
                count,
                error = %errno,
                setting = "MemoryMax= of the unit, net.ipv4.tcp_mem",
                "out of memory: accepting pauses"
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
    tracing::warn!(reason, count, %peer, setting, "dropped connections before reading from their clients");
}

/// Now, in milliseconds of Unix time.
fn unix_millis() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

fn balancers(config: &RouterConfig) -> Balancers {
    Balancers {
        trusted: match config.proxy_protocol {
            ProxyProtocol::Off => None,
            ProxyProtocol::V2 => Some(config.proxy_trusted.clone()),
        },
        patience: config.timeouts.handshake,
    }
}

/// `TCP_USER_TIMEOUT`, in milliseconds.
fn user_timeout(config: &RouterConfig) -> u32 {
    u32::try_from(config.timeouts.tcp_user.as_millis()).unwrap_or(u32::MAX)
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
