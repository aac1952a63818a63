//! One worker: where its opens go, and the data sockets it gets for them.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use memory_admin::{Count, CountBy, Histogram};
use memory_budget::{Budget, Limit};
use memory_config::RouterConfig;
use memory_ipc::packets::{BrokerToWorker, WorkerToBroker};
use memory_ipc::{Channel, ChannelError};
use memory_wire::ids::{ConnectionId, Ticket};
use memory_wire::{Did, Reason};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use crate::assignments::Assignments;
use crate::attempts::{Attempt, Attempts};
use crate::dial::{dial, end};
use crate::link::LinkAgent;
use crate::snapshot::Snapshot;

/// Refused placements of one worker that are logged.
const MAX_LINES: u32 = 64;

/// What all workers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) snapshot: Rc<RefCell<Snapshot>>,
    bounds: Cell<Bounds>,
    /// Data sockets in setup, of all workers.
    pub(crate) dials: Budget,
    pub(crate) tally: Tally,
}

/// What all workers together have asked for, and got.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Placements that were refused.
    pub(crate) refused: CountBy<Reason>,
    /// How long a connection to a toolshed took.
    pub(crate) dialled: Histogram,
    /// Those that did not come about.
    pub(crate) failed: CountBy<Reason>,
    pub(crate) committed: Count,
    pub(crate) rolled_back: Count,
    /// Data sockets that their worker did not settle.
    pub(crate) unsettled: Count,
}

#[derive(Debug, Clone, Copy)]
struct Bounds {
    /// Unanswered placements of one worker.
    placements: usize,
    /// How long the link agent may take to admit. Its own bounds are shorter: a turn and at most three requests.
    admission: Duration,
    /// How long a connection attempt may take.
    dial: Duration,
    /// How long a worker may take to commit or roll back. Its own deadline is shorter; this one is for a worker that does
    /// not keep it.
    settle: Duration,
    /// `TCP_USER_TIMEOUT` of data sockets.
    tcp_user: Duration,
}

impl Shared {
    pub(crate) fn new(snapshot: Rc<RefCell<Snapshot>>, config: &RouterConfig) -> Self {
        Self {
            snapshot,
            bounds: Cell::new(Bounds::of(config)),
            dials: Budget::new("max_pending_dials", dial_limit(config)),
            tally: Tally::default(),
        }
    }

    /// Takes other bounds for what comes from now on.
    pub(crate) fn configure(&self, config: &RouterConfig) {
        self.bounds.set(Bounds::of(config));
        self.dials.set_limit(dial_limit(config));
    }
}

fn dial_limit(config: &RouterConfig) -> Limit {
    Limit::At(config.limits.max_pending_dials)
}

impl Bounds {
    fn of(config: &RouterConfig) -> Self {
        let count = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let timeouts = &config.timeouts;
        Self {
            placements: count(config.limits.max_requests_per_connection),
            admission: (timeouts.control_wait + timeouts.control_request) * 5,
            dial: timeouts.data_handshake,
            settle: timeouts.data_handshake * 2,
            tcp_user: timeouts.tcp_user,
        }
    }
}

/// Serves one worker until it is gone.
pub(crate) async fn serve(
    shared: Rc<Shared>,
    connection: ConnectionId,
    worker: Channel,
    link: Channel,
) {
    let this = Rc::new(Worker {
        connection,
        channel: worker,
        link: LinkAgent::new(link),
        assignments: RefCell::default(),
        pending: RefCell::default(),
        attempts: Rc::default(),
        refusals: Cell::new(0),
        shared,
    });
    let ended = tokio::select! {
        ended = this.receive() => ended,
        // The worker learns of the link agent's end by itself. What it asks here meanwhile is refused.
        Err(error) = this.link.run() => Err(Ended::Channel(error)),
    };
    // Whoever still holds the descriptor is not to go on with a socket that nobody committed.
    if let Some(pending) = this.pending.borrow_mut().take() {
        end(&pending.socket);
    }
    match ended {
        Ok(()) | Err(Ended::Channel(ChannelError::Closed)) => {
            tracing::debug!(%connection, "worker gone");
        }
        Err(ended) => {
            tracing::warn!(reason = %ended.reason(), %connection, detail = %ended, "worker's channel ended");
        }
    }
}

/// The data socket that is being set up.
#[derive(Debug)]
struct PendingSocket {
    socket: OwnedFd,
    /// Over before the worker hears that it is: what it asks then is not to find it.
    attempt: Attempt,
    /// Told when it is committed or rolled back.
    settled: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Worker {
    connection: ConnectionId,
    shared: Rc<Shared>,
    channel: Channel,
    link: LinkAgent,
    assignments: RefCell<Assignments>,
    pending: RefCell<Option<PendingSocket>>,
    /// The placements that are to bring a data socket.
    attempts: Rc<Attempts>,
    /// Refused placements so far.
    refusals: Cell<u32>,
}

/// Why a worker is not served any longer, beside its end.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{0}")]
    Channel(#[from] ChannelError),
    #[error("it settled an assignment that is not pending")]
    NotPending,
    #[error("it took back an assignment whose binding was issued")]
    Bound,
    #[error("the link agent did not confirm a rollback")]
    Unconfirmed,
    #[error("it did not settle its data socket in time")]
    Unsettled,
    #[error("it does not read what it is answered")]
    Unread,
}

impl Ended {
    const fn reason(&self) -> Reason {
        match self {
            Self::Channel(_) | Self::NotPending | Self::Bound | Self::Unread => {
                Reason::ChannelProtocol
            }
            Self::Unconfirmed => Reason::LinkAgentLost,
            Self::Unsettled => Reason::DataHandshake,
        }
    }
}

impl Worker {
    async fn receive(self: &Rc<Self>) -> Result<(), Ended> {
        let mut placements = JoinSet::new();
        loop {
            let packet = tokio::select! {
                received = self.channel.recv_packet::<WorkerToBroker>() => received?,
                Some(placed) = placements.join_next() => {
                    settled(placed)?;
                    continue;
                }
            };
            let Some((packet, _)) = packet else {
                return Ok(());
            };
            match packet {
                WorkerToBroker::Place {
                    sequence,
                    space,
                    principal,
                } => {
                    // Those that are over do not count, also where nobody has looked yet.
                    while let Some(placed) = placements.try_join_next() {
                        settled(placed)?;
                    }
                    if placements.len() >= self.shared.bounds.get().placements {
                        self.refuse(sequence, Reason::RequestLimit).await?;
                        continue;
                    }
                    placements.spawn_local(Rc::clone(self).place(sequence, space, principal));
                }
                WorkerToBroker::Commit { index, ticket } => self.commit(index, ticket).await?,
                WorkerToBroker::Rollback { index, ticket } => self.roll_back(index, ticket).await?,
            }
        }
    }

    /// Answers one placement, and stays until the data socket that it may have got is settled.
    async fn place(self: Rc<Self>, sequence: u32, space: Did, principal: Did) -> Result<(), Ended> {
        match self.find(sequence, &space, principal).await {
            Ok(Found::Existing(index)) => {
                self.send(&BrokerToWorker::Existing { sequence, index }, &[])
                    .await
            }
            Ok(Found::Ticket(ticket, attempt)) => self.set_up(sequence, ticket, attempt).await,
            Ok(Found::Behind { index, ahead }) => {
                let behind = BrokerToWorker::Behind {
                    sequence,
                    index,
                    ahead,
                };
                self.send(&behind, &[]).await
            }
            Err(reason) => self.refuse(sequence, reason).await,
        }
    }

    /// Finds the data socket of a space, or the right to make one.
    ///
    /// Opens at a toolshed with a data socket run beside each other. Without one the first sets it up, and the others are
    /// refused meanwhile: this role keeps nothing that waits. Attempts at different toolsheds ask the link agent beside each
    /// other, and only the setup itself is one at a time: a slow toolshed must not hold up another's.
    async fn find(&self, sequence: u32, space: &Did, principal: Did) -> Result<Found, Reason> {
        let placement = self.shared.snapshot.borrow().place(space)?;
        let index = placement.toolshed;
        let admit = || {
            let patience = self.shared.bounds.get().admission;
            self.link.admit(placement, *space, principal, patience)
        };
        // Asked in an attempt at this toolshed, or where a socket is committed: none is pending then. So a connection that is
        // bound, as the link agent says, has its data socket; one that this broker did not make is from the time of an earlier
        // one.
        let unused = |ticket: Option<Ticket>| {
            let mut assignments = self.assignments.borrow_mut();
            if ticket.is_none() {
                assignments.adopt(index);
            }
            ticket
                .filter(|ticket| !assignments.is_committed_with(index, *ticket))
                .ok_or(Found::Existing(index))
        };
        let is_committed = self.assignments.borrow().is_committed(index);
        if is_committed && let Err(found) = unused(admit().await?) {
            return Ok(found);
        }
        // Either there is no data socket, or a ticket for another: then its link was lost, and a new one is to replace it. The
        // ticket of a socket that was committed unbound is for no other: a worker could have them without end.
        let attempt = match self.attempts.begin(index, sequence) {
            Ok(attempt) => attempt,
            Err(ahead) => return Ok(Found::Behind { index, ahead }),
        };
        let ticket = match unused(admit().await?) {
            Ok(ticket) => ticket,
            Err(found) => return Ok(found),
        };
        // An attempt at another toolshed may have got this far meanwhile.
        Ok(match attempt.set_up() {
            Ok(()) => Found::Ticket(ticket, attempt),
            Err(ahead) => Found::Behind { index, ahead },
        })
    }

    /// Dials, hands the descriptor over and waits until the worker has settled what it got.
    async fn set_up(&self, sequence: u32, ticket: Ticket, attempt: Attempt) -> Result<(), Ended> {
        let index = attempt.index();
        let Ok(reserved) = self.shared.dials.reserve(1) else {
            drop(attempt);
            return self.refuse(sequence, Reason::DialLimit).await;
        };
        let toolshed = self.shared.snapshot.borrow().toolshed(index).cloned();
        let Some(toolshed) = toolshed else {
            drop(attempt);
            return self.refuse(sequence, Reason::RestartNeeded).await;
        };
        let Bounds {
            dial: deadline,
            tcp_user,
            settle,
            ..
        } = self.shared.bounds.get();
        let (tally, begun) = (&self.shared.tally, Instant::now());
        let dialled = dial(toolshed.address, deadline, tcp_user)
            .await
            .and_then(|socket| {
                let copy = socket.try_clone().map_err(|_| Reason::DescriptorLimit)?;
                Ok((socket, copy))
            });
        let (socket, copy) = match dialled {
            Ok(sockets) => {
                tally.dialled.observe(begun.elapsed());
                sockets
            }
            Err(reason) => {
                tally.failed.add(reason, 1);
                drop(attempt);
                if self.is_to_be_logged() {
                    tracing::warn!(%reason, connection = %self.connection, toolshed = toolshed.name, "no data socket");
                }
                return self.refuse(sequence, Reason::UpstreamUnavailable).await;
            }
        };
        // Before the worker hears of it, which may settle it at once.
        if !self.assignments.borrow_mut().begin(index, ticket) {
            drop(attempt);
            return self.refuse(sequence, Reason::Internal).await;
        }
        let (settled, until_settled) = oneshot::channel();
        *self.pending.borrow_mut() = Some(PendingSocket {
            socket: copy,
            attempt,
            settled,
        });
        let packet = BrokerToWorker::Socket {
            sequence,
            index,
            ticket,
            toolshed: toolshed.did,
            server_name: toolshed.server_name,
            certificate: toolshed
                .certificate
                .first()
                .map(|pin| pin.to_vec())
                .unwrap_or_default(),
        };
        if let Err(ended) = self.send(&packet, &[socket.as_fd()]).await {
            self.assignments.borrow_mut().abandon(index, ticket);
            self.pending.borrow_mut().take();
            return match ended {
                // Nothing was sent: the entry of the directory does not fit a packet.
                Ended::Channel(ChannelError::Packet(_)) => {
                    self.refuse(sequence, Reason::UpstreamUnavailable).await
                }
                ended => Err(ended),
            };
        }
        drop(socket);
        let settled = timeout(settle, until_settled).await;
        drop(reserved);
        tally.unsettled.add(u64::from(settled.is_err()));
        settled.map(|_| ()).map_err(|_| Ended::Unsettled)
    }

    /// Keeps the pending data socket: only the worker holds it from here on.
    async fn commit(&self, index: u16, ticket: Ticket) -> Result<(), Ended> {
        self.assignments
            .borrow_mut()
            .commit(index, ticket)
            .map_err(|_| Ended::NotPending)?;
        self.shared.tally.committed.add(1);
        let pending = self.pending.borrow_mut().take();
        if let Some(PendingSocket {
            socket,
            attempt,
            settled,
        }) = pending
        {
            drop((socket, attempt));
            // Whoever waited may have run out of patience just now.
            let _ = settled.send(());
        }
        self.send(&BrokerToWorker::Confirmed, &[]).await
    }

    /// Takes the pending data socket back, after the link agent has confirmed that no binding was issued for it.
    async fn roll_back(&self, index: u16, ticket: Ticket) -> Result<(), Ended> {
        self.assignments
            .borrow_mut()
            .begin_rollback(index, ticket)
            .map_err(|_| Ended::NotPending)?;
        if !self
            .link
            .roll_back(index, ticket, self.shared.bounds.get().admission)
            .await
            .map_err(|_| Ended::Unconfirmed)?
        {
            return Err(Ended::Bound);
        }
        let pending = self.pending.borrow_mut().take();
        if let Some(PendingSocket {
            socket,
            attempt,
            settled,
        }) = pending
        {
            end(&socket);
            drop(attempt);
            // As in commit.
            let _ = settled.send(());
        }
        self.assignments.borrow_mut().end_rollback();
        self.shared.tally.rolled_back.add(1);
        self.send(&BrokerToWorker::Confirmed, &[]).await
    }

    async fn refuse(&self, sequence: u32, reason: Reason) -> Result<(), Ended> {
        self.shared.tally.refused.add(reason, 1);
        if self.is_to_be_logged() {
            tracing::info!(%reason, connection = %self.connection, "placement refused");
        }
        self.send(
            &BrokerToWorker::Refused {
                sequence,
                reason: reason.code(),
            },
            &[],
        )
        .await
    }

    async fn send(
        &self,
        packet: &BrokerToWorker,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Ended> {
        // Bounded: what a placement holds, such as its part of the dials, is held while its answer is not read.
        let patience = self.shared.bounds.get().settle;
        timeout(patience, self.channel.send_packet(packet, descriptors))
            .await
            .map_err(|_| Ended::Unread)?
            .map_err(Ended::Channel)
    }

    /// Whether one more line about this worker's placements goes to the log: it is not to be filled by them.
    fn is_to_be_logged(&self) -> bool {
        let count = self.refusals.get();
        self.refusals.set(count.saturating_add(1));
        if count == MAX_LINES {
            tracing::info!(connection = %self.connection, "further refusals are not logged");
        }
        count < MAX_LINES
    }
}

/// How a placement's task ended. One that was lost answers nobody, but is no reason to end the others.
fn settled(task: Result<Result<(), Ended>, JoinError>) -> Result<(), Ended> {
    task.unwrap_or(Ok(()))
}

/// Where an open goes.
#[derive(Debug)]
enum Found {
    /// Over a data socket that the worker has.
    Existing(u16),
    /// Over a new one, for this ticket.
    Ticket(Ticket, Attempt),
    /// Nowhere while this other placement is being set up.
    Behind { index: u16, ahead: u32 },
}
