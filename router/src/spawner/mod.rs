//! The spawner: one worker process per connection, connected with the agents, reaped and accounted for.
//!
//! It reads no byte of the network and holds no key. A few workers are kept started and idle ([`pool`]); every connection
//! that the listener hands over holds a place in the [`registry`] until its worker is reaped. When this process ends, every
//! worker sees its channel end and ends too.

mod account;
mod agents;
mod events;
mod life;
mod pool;
mod process;
mod registry;
mod rewire;
mod scarcity;
mod settings;
mod show;
mod tally;
mod verdict;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory_config::RouterConfig;
use memory_ipc::packets::{ListenerToSpawner, SpawnerToListener};
use memory_ipc::{Channel, ChannelError, NamedListener, WorkerOutcome};
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use rustix::process::geteuid;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, spawn_local, yield_now};
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::exit::Failure;
use crate::listener::SPAWNER_SOCKET;
use crate::reload::Changes;
use crate::signals::StopSignals;
use crate::throttle::Throttle;

use agents::{Agent, Agents};
use life::{Handle, Job};
use pool::{Pool, WorkerNumber};
use process::WorkerProcess;
use registry::{Order, Registry};
use scarcity::{DESCRIPTOR_SETTING, scarcity};
use settings::Settings;
use tally::Tally;

/// Workers that may be starting at once.
const MAX_STARTING: usize = 16;

/// Pauses after a worker did not start.
const FIRST_START_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_START_PAUSE: Duration = Duration::from_secs(5);

/// Pause after the system could not accept a connection on the named socket.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// How often connections that wait for a worker are looked at.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the spawner until a signal asks to stop and the workers have drained.
///
/// # Errors
/// When its named socket cannot be made.
pub(crate) async fn run(mut changes: Changes) -> Result<(), Failure> {
    let config = Arc::clone(&changes.borrow_and_update());
    let mut signals = StopSignals::new()?;
    let socket = NamedListener::bind(&config.ipc_dir.join(SPAWNER_SOCKET), &[geteuid().as_raw()])
        .map_err(|error| Failure::channel("cannot listen for the listener", error))?;
    let spawner = Rc::new(Spawner::new(config));
    for agent in Agent::ALL {
        spawn_local(agents::follow(Rc::clone(&spawner), agent));
    }
    spawn_local(Rc::clone(&spawner).keep_pool());
    spawn_local(Rc::clone(&spawner).expire_waiting());
    spawn_local(Rc::clone(&spawner).accept_listeners(socket));
    spawn_local(Rc::clone(&spawner).follow_config(changes));
    spawn_local(show::show(Rc::clone(&spawner)));

    signals.next().await;
    spawner.stop(&mut signals).await;
    Ok(())
}

/// What the tasks of the process share. Borrows never live across an await.
pub(crate) struct Spawner {
    config: RefCell<Arc<RouterConfig>>,
    agents: RefCell<Agents>,
    pool: RefCell<Pool<Handle, Job>>,
    registry: RefCell<Registry>,
    /// What new workers are told; there since the key agent's first announcement.
    settings: RefCell<Option<Rc<Settings>>>,
    /// Where packets to the present listener go.
    listener: RefCell<Option<mpsc::UnboundedSender<SpawnerToListener>>>,
    /// What the present listener was told last, if anything.
    told_accepting: Cell<Option<bool>>,
    /// This process is stopping.
    stopping: Cell<bool>,
    /// Woken when workers may be missing from the pool.
    wanted: Notify,
    /// Woken when a connection has gone.
    gone: Notify,
    start_backoff: RefCell<Backoff>,
    /// Workers failed to start: none is started before then.
    start_after: Cell<Option<Instant>>,
    start_failures: RefCell<Throttle>,
    /// Refused connections, by reason: one does not hide another.
    refusals: RefCell<HashMap<Reason, Throttle>>,
    tally: Rc<Tally>,
}

impl Spawner {
    fn new(config: Arc<RouterConfig>) -> Self {
        Self {
            agents: RefCell::default(),
            pool: RefCell::new(Pool::new(keep_idle(&config), MAX_STARTING)),
            registry: RefCell::new(Registry::new(config.limits.max_workers)),
            settings: RefCell::default(),
            listener: RefCell::default(),
            told_accepting: Cell::new(None),
            stopping: Cell::new(false),
            wanted: Notify::new(),
            gone: Notify::new(),
            start_backoff: RefCell::new(Backoff::new(FIRST_START_PAUSE, LONGEST_START_PAUSE)),
            start_after: Cell::new(None),
            start_failures: RefCell::default(),
            refusals: RefCell::default(),
            tally: Rc::default(),
            config: RefCell::new(config),
        }
    }

    /// The configuration in force.
    fn config(&self) -> Arc<RouterConfig> {
        Arc::clone(&self.config.borrow())
    }

    /// Takes the configuration as it becomes. Connections that are served keep what they were given.
    async fn follow_config(self: Rc<Self>, mut changes: Changes) {
        while changes.changed().await.is_ok() {
            let config = Arc::clone(&changes.borrow_and_update());
            self.config.replace(Arc::clone(&config));
            self.registry.borrow().set_max(config.limits.max_workers);
            self.pool.borrow_mut().keep(keep_idle(&config));
            let present = self.settings.borrow().clone();
            match present.map(|present| present.configured(&config)) {
                Some(Ok(settings)) => self.use_settings(settings),
                // They are made when the key agent announces its certificate.
                None => {}
                Some(Err(error)) => tracing::error!(
                    reason = Reason::Internal.as_str(),
                    error = &error as &dyn std::error::Error,
                    "cannot write settings for workers; those before stay"
                ),
            }
            self.wanted.notify_one();
        }
    }

    /// Serves one listener at a time; a new one takes the place of the one before, which cannot be alive any more. The
    /// connections of the one before go on.
    async fn accept_listeners(self: Rc<Self>, socket: NamedListener) {
        let mut serving: Option<JoinHandle<()>> = None;
        let mut failures = Throttle::default();
        loop {
            match socket.accept().await {
                Ok(channel) => {
                    if let Some(former) = serving.take() {
                        former.abort();
                    }
                    serving = Some(spawn_local(
                        Rc::clone(&self).serve_listener(Rc::new(channel)),
                    ));
                }
                Err(error) => {
                    if let Some(count) = failures.note(Instant::now()) {
                        let (reason, setting) = scarcity(&error)
                            .map_or((error.reason(), None), |(reason, setting)| {
                                (reason.as_str(), Some(setting))
                            });
                        tracing::error!(
                            reason,
                            count,
                            setting,
                            error = &error as &dyn std::error::Error,
                            "cannot accept on {SPAWNER_SOCKET}"
                        );
                    }
                    if !error.is_violation() {
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
    }

    async fn serve_listener(self: Rc<Self>, channel: Rc<Channel>) {
        tracing::info!(reason = "listener-connected", "the listener is connected");
        // Unbounded, but never longer than the connections are many: each leaves two packets here at most, and a listener
        // that does not read its packets hands over no connections either once they count as live.
        let (outbox, mut packets) = mpsc::unbounded_channel();
        self.listener.replace(Some(outbox));
        self.told_accepting.set(None);
        self.tell_ready();
        let sending = async {
            while let Some(packet) = packets.recv().await {
                channel.send_packet(&packet, &[]).await?;
            }
            Ok::<(), ChannelError>(())
        };
        let receiving = async {
            while let Some((packet, descriptors)) =
                channel.recv_packet_or_loss::<ListenerToSpawner>().await?
            {
                self.act_on(packet, descriptors);
            }
            Ok::<(), ChannelError>(())
        };
        let end = tokio::select! {
            end = sending => end,
            end = receiving => end,
        };
        self.listener.replace(None);
        match end {
            Ok(()) => tracing::info!(reason = "listener-gone", "the listener closed its channel"),
            Err(error) => {
                let reason = error.reason();
                tracing::error!(
                    reason,
                    error = &error as &dyn std::error::Error,
                    "the listener's channel ends"
                );
            }
        }
    }

    /// Acts on a packet; `None` for descriptors that were lost in passing.
    fn act_on(&self, packet: ListenerToSpawner, descriptors: Option<Vec<OwnedFd>>) {
        match packet {
            ListenerToSpawner::NewConnection {
                connection,
                peer,
                accepted_unix_ms,
            } => match descriptors {
                Some(descriptors) => {
                    for socket in descriptors {
                        self.take(connection, peer, accepted_unix_ms, socket);
                    }
                }
                // This process has none left. The listener holds a place for it and must hear of its end.
                None => self.tell_refused(connection, peer, Reason::DescriptorLimit),
            },
            ListenerToSpawner::Drain => {
                let connections = self.registry.borrow().len();
                tracing::info!(
                    reason = Reason::Drain.as_str(),
                    connections,
                    "the listener stops: draining"
                );
                self.dismiss(Reason::Drain);
                self.registry
                    .borrow()
                    .order_all(Order::Drain(self.config().timeouts.drain));
            }
        }
    }

    /// Takes a connection from the listener.
    fn take(
        &self,
        connection: ConnectionId,
        peer: SocketAddr,
        accepted_unix_ms: u64,
        socket: OwnedFd,
    ) {
        let ready = match self.agents.borrow().all() {
            Ok(_) if self.stopping.get() => Err(Reason::Drain),
            Ok(_) => Ok(()),
            Err(missing) => Err(missing),
        };
        match ready.and_then(|()| self.registry.borrow_mut().admit(connection)) {
            Ok(orders) => self.place(Job {
                connection,
                peer,
                accepted_unix_ms,
                socket,
                orders,
            }),
            Err(reason) => self.tell_refused(connection, peer, reason),
        }
    }

    /// Finds a worker for a connection, or lets it wait for one.
    fn place(&self, job: Job) {
        let pair = self.pool.borrow_mut().submit(job, Instant::now());
        if let Some((handle, job)) = pair {
            self.give(handle, job);
        }
        self.wanted.notify_one();
    }

    /// A worker is idle.
    fn offer(&self, number: WorkerNumber, handle: Handle) {
        let pair = self.pool.borrow_mut().offer(number, handle);
        if let Some((handle, job)) = pair {
            self.give(handle, job);
        }
        self.wanted.notify_one();
    }

    fn give(&self, handle: Handle, job: Job) {
        if let Err(job) = handle.send(job) {
            // That worker has just died; its task has yet to say so.
            self.place(job);
        }
    }

    /// Refuses a connection that has its place in the registry, and gives the place back.
    fn refuse(&self, job: &Job, reason: Reason) {
        if self.registry.borrow_mut().release(&job.connection) {
            self.tell_refused(job.connection, job.peer, reason);
            self.gone.notify_one();
        }
    }

    /// Refuses every connection that waits for a worker.
    fn dismiss(&self, reason: Reason) {
        let dismissed = self.pool.borrow_mut().dismiss();
        dismissed.iter().for_each(|job| self.refuse(job, reason));
    }

    /// A connection's worker is gone.
    fn end(&self, connection: ConnectionId, outcome: WorkerOutcome) {
        if self.registry.borrow_mut().release(&connection) {
            self.tell(SpawnerToListener::Ended {
                connection,
                outcome,
            });
            self.gone.notify_one();
        }
    }

    /// A connection has authenticated.
    fn authenticated(&self, connection: ConnectionId) {
        if self.registry.borrow_mut().authenticated(&connection) {
            self.tell(SpawnerToListener::Authenticated { connection });
        }
    }

    /// Tells the listener whether connections can be served, if that has changed.
    fn tell_ready(&self) {
        let accepting = !self.stopping.get() && self.agents.borrow().all().is_ok();
        if self.told_accepting.replace(Some(accepting)) != Some(accepting) {
            self.tell(SpawnerToListener::Ready { accepting });
        }
    }

    fn tell_refused(&self, connection: ConnectionId, peer: SocketAddr, reason: Reason) {
        self.tell(SpawnerToListener::Refused {
            connection,
            reason: reason.code(),
        });
        self.tally.refused.add(reason, 1);
        let mut refusals = self.refusals.borrow_mut();
        let throttle = refusals.entry(reason).or_default();
        if let Some(count) = throttle.note(Instant::now()) {
            let setting = (reason == Reason::DescriptorLimit).then_some(DESCRIPTOR_SETTING);
            tracing::warn!(reason = reason.as_str(), count, setting, %connection, %peer, "refused connections");
        }
    }

    fn tell(&self, packet: SpawnerToListener) {
        if let Some(outbox) = &*self.listener.borrow() {
            // Nobody receives any more: the listener is going, and counts none of its connections then.
            drop(outbox.send(packet));
        }
    }

    /// Takes new settings. Idle workers with other ones are ended; those that serve had their handshake.
    fn use_settings(&self, settings: Settings) {
        let unchanged = self
            .settings
            .borrow()
            .as_ref()
            .is_some_and(|present| present.same_as(&settings));
        if !unchanged {
            self.settings.replace(Some(Rc::new(settings)));
            let retired = self.pool.borrow_mut().retire();
            tracing::info!(
                reason = "settings",
                retired,
                "new workers get other settings"
            );
        }
        self.wanted.notify_one();
    }

    fn is_current(&self, settings: &Rc<Settings>) -> bool {
        self.settings
            .borrow()
            .as_ref()
            .is_some_and(|present| Rc::ptr_eq(present, settings))
    }

    /// Starts workers as long as some are missing.
    async fn keep_pool(self: Rc<Self>) {
        loop {
            self.wanted.notified().await;
            loop {
                let settings = self.settings.borrow().clone();
                let Some(settings) =
                    settings.filter(|_| !self.stopping.get() && self.pool.borrow().missing() > 0)
                else {
                    break;
                };
                match self.start_after.get().filter(|at| Instant::now() < *at) {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => self.start_worker(settings),
                }
                // Starting takes half a millisecond of this thread: others get theirs in between.
                yield_now().await;
            }
        }
    }

    fn start_worker(self: &Rc<Self>, settings: Rc<Settings>) {
        let Some(starting) = self.pool.borrow().start() else {
            return;
        };
        match WorkerProcess::start() {
            Ok(process) => {
                self.tally.started.add(1);
                let number = WorkerNumber(self.tally.started.get());
                let life = life::live(Rc::clone(self), number, process, settings, starting);
                spawn_local(life);
            }
            Err(error) => {
                self.note_start(false);
                self.report_start_failure(&error);
            }
        }
    }

    /// Notes whether a worker started and stays. While they do not there are pauses, longer and longer until one was of use:
    /// workers that start and then die idle would otherwise be started without end. Failures within one pause are one: a
    /// pool that dies at once is started again as soon as a single worker would be.
    fn note_start(&self, started: bool) {
        let now = Instant::now();
        let pausing = self.start_after.get().is_some_and(|until| now < until);
        if !started {
            self.tally.start_failures.add(1);
        }
        if !started && !pausing {
            let pause = self.start_backoff.borrow_mut().pause();
            self.start_after.set(Some(now + pause));
        }
        self.wanted.notify_one();
    }

    /// Notes that a worker was of use.
    fn note_use(&self) {
        self.start_backoff.borrow_mut().reset();
    }

    fn report_start_failure(&self, error: &ChannelError) {
        let Some(count) = self.start_failures.borrow_mut().note(Instant::now()) else {
            return;
        };
        let (reason, setting) = scarcity(error)
            .map_or((Reason::Internal, None), |(reason, setting)| {
                (reason, Some(setting))
            });
        let error = error as &dyn std::error::Error;
        tracing::error!(
            reason = reason.as_str(),
            count,
            setting,
            error,
            "cannot start workers"
        );
    }

    /// Refuses connections that have waited for a worker as long as a handshake may take.
    async fn expire_waiting(self: Rc<Self>) {
        loop {
            sleep(EXPIRY_INTERVAL).await;
            let Some(limit) = Instant::now().checked_sub(self.config().timeouts.handshake) else {
                continue;
            };
            let late = self.pool.borrow_mut().expire(limit);
            late.iter()
                .for_each(|job| self.refuse(job, Reason::Capacity));
        }
    }

    /// Drains: no new connections, idle workers end, the others get their time. A further signal ends them at once.
    async fn stop(&self, signals: &mut StopSignals) {
        self.stopping.set(true);
        self.tell_ready();
        self.dismiss(Reason::Drain);
        self.pool.borrow_mut().retire();
        let connections = self.registry.borrow().len();
        tracing::info!(reason = "stop", connections, "stopping");
        self.registry
            .borrow()
            .order_all(Order::Drain(self.config().timeouts.drain));
        while self.registry.borrow().len() > 0 {
            tokio::select! {
                () = self.gone.notified() => {}
                () = signals.next() => self.registry.borrow().order_all(Order::End(Duration::ZERO, Reason::Drain)),
            }
        }
    }
}

/// Idle workers to keep.
fn keep_idle(config: &RouterConfig) -> usize {
    let keep_idle = config.isolation.worker_pool.min(config.limits.max_workers);
    usize::try_from(keep_idle).unwrap_or(MAX_STARTING)
}

#[cfg(test)]
mod life_tests;
#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn spawner() -> Spawner {
        let text = "version = 1\nlisten = [\"127.0.0.1:8443\"]\nhost = \"router.test\"\norigins = []\n\
             directory = \"directory.json\"\npublic_certificate = \"chain.pem\"\ntls_key = \"key.pem\"\nrouter_seed = \"seed\"\n";
        let config = RouterConfig::parse(text, std::path::Path::new("/nowhere/router.toml"));
        Spawner::new(Arc::new(config.unwrap()))
    }

    /// The pause after a worker that did not start, or did not stay.
    fn pause(spawner: &Spawner) -> Duration {
        // As after the pause before it.
        spawner.start_after.take();
        let before = Instant::now();
        spawner.note_start(false);
        spawner.start_after.get().unwrap() - before
    }

    #[test]
    fn workers_that_start_and_die_idle_are_started_less_and_less_often() {
        let spawner = spawner();
        for _ in 0..10 {
            pause(&spawner);
            spawner.note_start(true);
        }
        assert!(pause(&spawner) >= LONGEST_START_PAUSE);
        spawner.note_use();
        assert!(pause(&spawner) < FIRST_START_PAUSE * 2);
    }

    #[test]
    fn a_pool_that_dies_at_once_counts_once() {
        let spawner = spawner();
        for _ in 0..8 {
            spawner.note_start(false);
        }
        assert!(pause(&spawner) < FIRST_START_PAUSE * 3);
    }
}
