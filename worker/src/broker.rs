//! The worker's side of its channel to the directory broker: where a space lives, and the data socket to it.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use memory_ipc::Channel;
use memory_ipc::packets::{BrokerToWorker, Packet, WorkerToBroker};
use memory_wire::did::Did;
use memory_wire::ids::Ticket;
use memory_wire::reason::Reason;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::agents::{Refused, Waiting, broken, reason_of};
use crate::attempts::{Attempt, Attempts, Followers};
use crate::end::End;

/// Where the broker placed a space.
#[derive(Debug)]
pub(crate) enum Placement {
    /// The connection has a committed data socket to that toolshed.
    Existing(u16),
    /// A connected socket, to be set up and then committed or rolled back; and the attempt, which lasts until then.
    Socket(Box<DialledSocket>, Attempt),
}

/// A data socket that the broker dialled.
#[derive(Debug)]
pub(crate) struct DialledSocket {
    pub(crate) index: u16,
    pub(crate) ticket: Ticket,
    pub(crate) toolshed: Did,
    pub(crate) server_name: String,
    /// The pinned certificate, DER.
    pub(crate) certificate: Vec<u8>,
    pub(crate) descriptor: OwnedFd,
}

enum Answer {
    Existing(u16),
    Socket(Box<DialledSocket>),
    Behind { index: u16, ahead: u32 },
    Refused(Reason),
}

/// The channel to the directory broker.
pub(crate) struct Broker {
    channel: Channel,
    waiting: Waiting<Answer>,
    /// What each unanswered placement, and the data socket that is being set up, are in the way of.
    attempts: Rc<Attempts>,
    /// The unanswered commit or rollback; there is at most one pending data socket.
    settling: RefCell<Option<oneshot::Sender<()>>>,
    gone: Cell<bool>,
    /// Woken when another broker takes its place.
    retired: Notify,
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Broker")
            .field("gone", &self.gone.get())
            .finish_non_exhaustive()
    }
}

impl Broker {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            channel,
            waiting: Waiting::new(),
            attempts: Rc::default(),
            settling: RefCell::new(None),
            gone: Cell::new(false),
            retired: Notify::new(),
        }
    }

    /// Whether it died, or another took its place: it answers nothing any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Another broker takes its place. Whoever waits for an answer of this one gets [`Refused::Gone`].
    pub(crate) fn retire(&self) {
        self.give_up();
        self.retired.notify_one();
    }

    fn give_up(&self) {
        self.gone.set(true);
        self.waiting.clear();
        self.attempts.clear();
        self.settling.borrow_mut().take();
    }

    /// Asks where `space` lives, and for a data socket there if the connection has none. Waits while another data socket of
    /// the connection is being set up, for at most `patience`.
    pub(crate) async fn place(
        &self,
        space: Did,
        principal: Did,
        patience: Duration,
    ) -> Result<Placement, Refused> {
        let give_up = Instant::now() + patience;
        let mut followers = Followers::default();
        loop {
            if self.gone.get() {
                return Err(Refused::Gone);
            }
            let (sequence, answer) = self.waiting.register();
            let attempt = self.attempts.begin(sequence, followers);
            let packet = WorkerToBroker::Place {
                sequence,
                space,
                principal,
            }
            .encode()
            .map_err(|_| Refused::Reason(Reason::Internal))?;
            self.channel
                .send(&packet, &[])
                .await
                .map_err(|_| Refused::Gone)?;
            match answer.await.map_err(|_| Refused::Gone)? {
                Answer::Existing(index) => {
                    attempt.succeed();
                    return Ok(Placement::Existing(index));
                }
                Answer::Socket(socket) => return Ok(Placement::Socket(socket, attempt)),
                Answer::Refused(reason) => return Err(Refused::Reason(reason)),
                Answer::Behind { index, ahead } => {
                    let turn = attempt.fall_behind(index, ahead);
                    followers = timeout_at(give_up, turn)
                        .await
                        .map_err(|_| Refused::Reason(Reason::AdmissionTimeout))?
                        .map_err(|_| Refused::Gone)?;
                }
            }
        }
    }

    /// `mdc1`: the data socket serves now and can no longer be rolled back.
    pub(crate) async fn commit(&self, index: u16, ticket: Ticket) -> Result<(), Refused> {
        self.settle(&WorkerToBroker::Commit { index, ticket }).await
    }

    /// `mdf1`: the data socket failed before its binding; the broker shuts it down.
    pub(crate) async fn roll_back(&self, index: u16, ticket: Ticket) -> Result<(), Refused> {
        self.settle(&WorkerToBroker::Rollback { index, ticket })
            .await
    }

    async fn settle(&self, packet: &WorkerToBroker) -> Result<(), Refused> {
        let (sender, done) = oneshot::channel();
        if self.gone.get() || self.settling.borrow_mut().replace(sender).is_some() {
            return Err(Refused::Gone);
        }
        let packet = packet
            .encode()
            .map_err(|_| Refused::Reason(Reason::Internal))?;
        self.channel
            .send(&packet, &[])
            .await
            .map_err(|_| Refused::Gone)?;
        done.await.map_err(|_| Refused::Gone)
    }

    /// Receives answers. A broker that is gone leaves open sockets alone; later opens are refused for now, until another
    /// takes its place.
    pub(crate) async fn run(self: Rc<Self>) -> Result<(), End> {
        loop {
            let received = tokio::select! {
                biased;
                () = self.retired.notified() => break,
                received = self.channel.recv_packet::<BrokerToWorker>() => received,
            };
            let (packet, mut descriptors) = match received {
                Ok(Some(received)) => received,
                Ok(None) => break,
                // Only the descriptor was lost: the socket it stood for cannot be used, and waiting for it would never end.
                Err(error) => return Err(broken("broker-packet", &error)),
            };
            let known = match packet {
                BrokerToWorker::Existing { sequence, index } => {
                    self.waiting.answer(sequence, Answer::Existing(index))
                }
                BrokerToWorker::Refused { sequence, reason } => self
                    .waiting
                    .answer(sequence, Answer::Refused(reason_of(reason))),
                BrokerToWorker::Socket {
                    sequence,
                    index,
                    ticket,
                    toolshed,
                    server_name,
                    certificate,
                } => {
                    let Some(descriptor) = descriptors.pop() else {
                        return Err(End::new(Reason::Internal, "broker-descriptor"));
                    };
                    let socket = DialledSocket {
                        index,
                        ticket,
                        toolshed,
                        server_name,
                        certificate,
                        descriptor,
                    };
                    self.waiting
                        .answer(sequence, Answer::Socket(Box::new(socket)))
                }
                BrokerToWorker::Behind {
                    sequence,
                    index,
                    ahead,
                } => self
                    .waiting
                    .answer(sequence, Answer::Behind { index, ahead }),
                BrokerToWorker::Confirmed => match self.settling.borrow_mut().take() {
                    Some(waiter) => {
                        let _ = waiter.send(());
                        true
                    }
                    None => false,
                },
            };
            if !known {
                return Err(End::new(Reason::Internal, "broker-answer"));
            }
        }
        self.give_up();
        Ok(())
    }
}
