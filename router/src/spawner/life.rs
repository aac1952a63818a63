//! The life of one worker: started, idle, serving one connection, reaped.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use memory_budget::Permit;
use memory_ipc::packets::{
    SpawnerToBroker, SpawnerToKeyAgent, SpawnerToLinkAgent, SpawnerToWorker, WorkerToSpawner,
};
use memory_ipc::{Channel, ChannelError};
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::account::Account;
use super::events::{EventLog, log_end};
use super::pool::WorkerNumber;
use super::process::{Reaped, WorkerProcess, WorkerSign};
use super::registry::Order;
use super::settings::Settings;
use super::verdict::{Finish, Kill, Verdict};
use super::{Spawner, agents::Agents};

/// How long a worker may take from its start until it is idle.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// What the spawner adds to the time in which a worker itself ends a connection that does not authenticate. It holds also
/// for a worker that was taken over and keeps no time.
const AUTHENTICATE_GRACE: Duration = Duration::from_secs(30);

/// A connection on its way to a worker.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) connection: ConnectionId,
    pub(crate) peer: SocketAddr,
    pub(crate) accepted_unix_ms: u64,
    pub(crate) socket: OwnedFd,
    pub(crate) orders: watch::Receiver<Order>,
}

/// Where an idle worker takes its connection from. Dropped, it tells the worker to end.
pub(crate) type Handle = oneshot::Sender<Job>;

/// Lives through one worker, from the start of its process on; `starting` is its place among those that start.
pub(super) async fn live(
    spawner: Rc<Spawner>,
    number: WorkerNumber,
    process: WorkerProcess,
    settings: Rc<Settings>,
    starting: Permit,
) {
    let begun = start(&process, &settings).await;
    drop(starting);
    spawner.note_start(begun.is_ok());
    if let Err(reason) = begun {
        let pid = process.pid();
        let reaped = process.retire().await;
        let (status, signal) = (reaped.code(), reaped.signal());
        tracing::error!(
            role = "worker",
            reason,
            pid,
            status,
            signal,
            "a worker did not start"
        );
        return;
    }
    loop {
        // The key agent may have come back with another certificate meanwhile.
        if !spawner.is_current(&settings) {
            process.retire().await;
            return;
        }
        match idle(&spawner, number, &process).await {
            // Another certificate came in this very moment. A worker that shows the one before would get signatures of the
            // other key: the next is to serve this connection.
            Idle::Given(job) if !spawner.is_current(&settings) => spawner.place(job),
            Idle::Given(job) => {
                let begun = begin(&spawner.agents.borrow(), &process, &job);
                match begun {
                    Ok(()) => {
                        spawner.note_use();
                        return serve(&spawner, process, job, settings.unauthenticated()).await;
                    }
                    Err(error) => spawner.refuse(&job, error.reason()),
                }
            }
            Idle::Retired => {
                process.retire().await;
                return;
            }
            Idle::Died => {
                let pid = process.pid();
                let reaped = process.reap().await;
                let (status, signal) = (reaped.code(), reaped.signal());
                let reason = Reason::WorkerCrash.as_str();
                tracing::error!(
                    role = "worker",
                    reason,
                    pid,
                    status,
                    signal,
                    "an idle worker died"
                );
                spawner.note_start(false);
                return;
            }
        }
    }
}

/// Gives the worker its settings and waits until it is idle.
async fn start(process: &WorkerProcess, settings: &Settings) -> Result<(), &'static str> {
    process
        .send_settings(settings)
        .map_err(|error| error.reason())?;
    match timeout(START_TIMEOUT, process.sign()).await {
        Ok(WorkerSign::Packet(WorkerToSpawner::Idle)) => Ok(()),
        Ok(WorkerSign::Closed) => Err(Reason::WorkerCrash.as_str()),
        Ok(WorkerSign::Packet(_) | WorkerSign::Violation(_)) => {
            Err(Reason::ChannelProtocol.as_str())
        }
        Err(_) => Err("worker-start-timeout"),
    }
}

/// How being idle ended.
enum Idle {
    Given(Job),
    Retired,
    Died,
}

async fn idle(spawner: &Spawner, number: WorkerNumber, process: &WorkerProcess) -> Idle {
    let (handle, mut job) = oneshot::channel();
    spawner.offer(number, handle);
    tokio::select! {
        biased;
        given = &mut job => return given.map_or(Idle::Retired, Idle::Given),
        // An idle worker has nothing to say, so that whatever it says ends it.
        _ = process.sign() => {}
    }
    spawner.pool.borrow_mut().withdraw(number);
    // A connection that was given to it in this very moment gets another.
    if let Ok(job) = job.try_recv() {
        spawner.place(job);
    }
    spawner.wanted.notify_one();
    Idle::Died
}

/// Why a connection could not be given to a worker.
#[derive(Debug)]
enum BeginError {
    /// This agent is not there.
    Missing(Reason),
    Channel(ChannelError),
}

impl BeginError {
    fn reason(&self) -> Reason {
        match self {
            Self::Missing(reason) => *reason,
            Self::Channel(ChannelError::Setup(_)) => Reason::DescriptorLimit,
            Self::Channel(_) => Reason::Internal,
        }
    }
}

impl From<ChannelError> for BeginError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

/// Connects the worker with the agents and gives it the connection. Nothing here waits: an agent that does not keep up costs
/// this connection, and no other.
fn begin(agents: &Agents, process: &WorkerProcess, job: &Job) -> Result<(), BeginError> {
    let pair = || Channel::pair().map_err(ChannelError::Setup);
    let connection = job.connection;
    let present = agents.all().map_err(BeginError::Missing)?;

    let (worker_to_key, key_to_worker) = pair()?;
    let (worker_to_link, link_to_worker) = pair()?;
    let (worker_to_broker, broker_to_worker) = pair()?;
    // The broker, not the worker, tells the link agent which space is placed where.
    let (broker_to_link, link_to_broker) = pair()?;

    let register = SpawnerToKeyAgent::Register {
        connection,
        announcement: present.announcement,
    };
    present
        .key
        .try_send_packet(&register, &[key_to_worker.as_fd()])?;
    let ends = [link_to_worker.as_fd(), link_to_broker.as_fd()];
    present
        .link
        .try_send_packet(&SpawnerToLinkAgent::Register { connection }, &ends)?;
    let ends = [broker_to_worker.as_fd(), broker_to_link.as_fd()];
    present
        .broker
        .try_send_packet(&SpawnerToBroker::Register { connection }, &ends)?;

    let start = SpawnerToWorker::Start {
        connection,
        peer: job.peer,
        accepted_unix_ms: job.accepted_unix_ms,
    };
    let ends = [
        job.socket.as_fd(),
        worker_to_key.as_fd(),
        worker_to_link.as_fd(),
        worker_to_broker.as_fd(),
    ];
    process.channel().try_send_packet(&start, &ends)?;
    Ok(())
}

/// Follows a worker while it serves its connection, until it is reaped. `unauthenticated` is how long it lets a connection
/// be unauthenticated.
pub(super) async fn serve(
    spawner: &Spawner,
    mut process: WorkerProcess,
    job: Job,
    unauthenticated: Duration,
) {
    let Job {
        connection,
        peer,
        accepted_unix_ms: _,
        socket,
        mut orders,
    } = job;
    // The worker has its own copy; while this one is open the client would not see the worker close.
    drop(socket);
    let started = Instant::now();
    let serving = spawner.tally.serving.adopt(1);
    let mut events = EventLog::new(connection, peer);
    let mut account = Account::new(&spawner.tally, started.into_std());
    let mut finish = None;
    let mut kill = None;
    // When it is killed, and why; and until when it has to have authenticated.
    let mut deadline: Option<(Instant, Kill)> = None;
    let mut authenticate_by = Some(started + unauthenticated + AUTHENTICATE_GRACE);
    let mut brokers = spawner.registry.borrow_mut().serve(&connection);
    tracing::debug!(role = "worker", reason = "serving", %connection, %peer, pid = process.pid(), "a worker serves");

    while kill.is_none() {
        tokio::select! {
            sign = process.sign() => match sign {
                WorkerSign::Packet(WorkerToSpawner::Event { level, reason, detail, bytes_in, bytes_out }) => {
                    if !events.note(level, Reason::from_code(reason), &detail, bytes_in, bytes_out) {
                        kill = Some(Kill::Violation);
                    }
                }
                WorkerSign::Packet(WorkerToSpawner::Report { report }) if finish.is_none() => {
                    match account.take(&report, std::time::Instant::now()) {
                        Ok(()) => events.carried(account.bytes()),
                        Err(breach) => {
                            events.violation(&breach);
                            kill = Some(Kill::Violation);
                        }
                    }
                }
                WorkerSign::Packet(WorkerToSpawner::Finished { outcome, reason }) if finish.is_none() => {
                    finish = Some(Finish { outcome, reason: Reason::from_code(reason) });
                }
                WorkerSign::Closed => break,
                WorkerSign::Packet(_) => kill = Some(Kill::Violation),
                WorkerSign::Violation(error) => {
                    events.violation(&error);
                    kill = Some(Kill::Violation);
                }
            },
            Ok(()) = orders.changed() => {
                let order = *orders.borrow_and_update();
                if let Order::Drain(_) = order {
                    // One that does not read has its deadline all the same.
                    drop(process.channel().try_send_packet(&SpawnerToWorker::Drain, &[]));
                }
                deadline = match order {
                    Order::Serve => None,
                    Order::Drain(within) => Some((Instant::now() + within, Kill::Ordered(Reason::Drain))),
                    Order::End(within, reason) => Some((Instant::now() + within, Kill::Ordered(reason))),
                };
            }
            Some(end) = brokers.recv() => {
                let sent = process.channel().try_send_packet(&SpawnerToWorker::Broker, &[end.as_fd()]);
                // One that does not read has itself to blame that its opens stay refused; one that ends needs none.
                if let Err(error @ ChannelError::WouldBlock) = sent {
                    events.violation(&error);
                }
            }
            Some(due) = passed(deadline) => kill = Some(due),
            Some(due) = passed(authenticate_by.map(|at| (at, Kill::Unauthenticated))) => {
                if spawner.registry.borrow().is_authenticated(&connection) {
                    authenticate_by = None;
                } else {
                    kill = Some(due);
                }
            }
        }
    }

    drop(serving);
    let _ending = spawner.tally.ending.adopt(1);
    if kill == Some(Kill::Violation) {
        spawner.tally.breaches.add(1);
    }
    let reaped: Reaped = match kill {
        Some(_) => process.kill().await,
        None => process.reap().await,
    };
    let verdict = Verdict::of(finish, kill, &reaped);
    log_end(&events, verdict, &reaped, started.elapsed());
    spawner.tally.end(verdict);
    spawner.end(connection, verdict.outcome);
}

/// Waits for a deadline and gives what is due then; for ever when there is none.
async fn passed(deadline: Option<(Instant, Kill)>) -> Option<Kill> {
    match deadline {
        Some((at, kill)) => {
            sleep_until(at).await;
            Some(kill)
        }
        None => std::future::pending().await,
    }
}
