//! The worker's side of its channel to the link agent, and what it has in common with the one to the directory broker
//! ([`crate::broker`]): numbered requests, answers matched by number, pushes handed on. Both peers are more trusted than this
//! process, yet a packet that does not fit ends it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use memory_ipc::packets::{LinkAgentToWorker, Packet, WorkerToLinkAgent};
use memory_ipc::{Channel, ChannelError};
use memory_wire::did::Did;
use memory_wire::ids::{Challenge, Ticket};
use memory_wire::reason::Reason;
use tokio::sync::oneshot;

use crate::end::End;

/// Why an agent did not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It answered with this reason.
    Reason(Reason),
    /// Its process or its channel is gone.
    Gone,
}

/// Unanswered requests by number.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    next: Cell<u32>,
    by_number: RefCell<HashMap<u32, oneshot::Sender<T>>>,
}

impl<T> Waiting<T> {
    pub(crate) fn new() -> Self {
        Self {
            next: Cell::new(1),
            by_number: RefCell::new(HashMap::new()),
        }
    }

    pub(crate) fn register(&self) -> (u32, oneshot::Receiver<T>) {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let (sender, receiver) = oneshot::channel();
        self.by_number.borrow_mut().insert(number, sender);
        (number, receiver)
    }

    /// Delivers an answer; `false` if nobody asked with that number.
    pub(crate) fn answer(&self, number: u32, value: T) -> bool {
        match self.by_number.borrow_mut().remove(&number) {
            // The asker may have given up meanwhile: its late answer is dropped here.
            Some(waiter) => {
                let _ = waiter.send(value);
                true
            }
            None => false,
        }
    }

    pub(crate) fn clear(&self) {
        self.by_number.borrow_mut().clear();
    }
}

/// What the link agent answered to `hello`.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) deployment: String,
    pub(crate) router: Did,
    /// Canonical JSON of the frozen public offer.
    pub(crate) flags: Vec<u8>,
    pub(crate) challenge: IssuedChallenge,
}

/// A challenge of this context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IssuedChallenge {
    pub(crate) value: Challenge,
    /// Unix seconds.
    pub(crate) expires: u64,
    /// The router's clock when it was issued, Unix seconds.
    pub(crate) now: u64,
}

/// The channel to the link agent.
#[derive(Debug)]
pub(crate) struct LinkAgent {
    channel: Channel,
    waiting: Waiting<LinkAgentToWorker>,
}

impl LinkAgent {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            channel,
            waiting: Waiting::new(),
        }
    }

    async fn ask(
        &self,
        build: impl FnOnce(u32) -> WorkerToLinkAgent,
    ) -> Result<LinkAgentToWorker, Refused> {
        let (number, answer) = self.waiting.register();
        let packet = build(number)
            .encode()
            .map_err(|_| Refused::Reason(Reason::Internal))?;
        self.channel
            .send(&packet, &[])
            .await
            .map_err(|_| Refused::Gone)?;
        match answer.await.map_err(|_| Refused::Gone)? {
            LinkAgentToWorker::Refused { reason, .. } => Err(Refused::Reason(reason_of(reason))),
            other => Ok(other),
        }
    }

    /// Asks for a place among the dedicated sockets of `space`, which the channel holds then. At most once, before
    /// [`Self::hello`].
    pub(crate) async fn dedicate(&self, space: Did) -> Result<(), Refused> {
        let dedicate = WorkerToLinkAgent::Dedicate { sequence: 0, space };
        self.channel
            .send_packet(&dedicate, &[])
            .await
            .map_err(|_| Refused::Gone)?;
        match self.next_early().await? {
            LinkAgentToWorker::Ack { sequence: 0 } => Ok(()),
            _ => Err(Refused::Gone),
        }
    }

    /// Registers the context with the client's canonical flags. The first exchange on the channel, before [`Self::run`]
    /// reads it.
    pub(crate) async fn hello(&self, flags: Vec<u8>) -> Result<Offer, Refused> {
        let hello = WorkerToLinkAgent::Hello { sequence: 0, flags };
        self.channel
            .send_packet(&hello, &[])
            .await
            .map_err(|_| Refused::Gone)?;
        match self.next_early().await? {
            LinkAgentToWorker::HelloOk {
                sequence: 0,
                deployment,
                router,
                offer,
                challenge,
                expires,
                now,
            } => Ok(Offer {
                deployment,
                router,
                flags: offer,
                challenge: IssuedChallenge {
                    value: challenge,
                    expires,
                    now,
                },
            }),
            _ => Err(Refused::Gone),
        }
    }

    /// The answer to what was asked before [`Self::run`] reads the channel: one thing at a time.
    async fn next_early(&self) -> Result<LinkAgentToWorker, Refused> {
        loop {
            let received = self.channel.recv_packet::<LinkAgentToWorker>().await;
            let Ok(Some((packet, _))) = received else {
                return Err(Refused::Gone);
            };
            match packet {
                LinkAgentToWorker::Refused { reason, .. } => {
                    return Err(Refused::Reason(reason_of(reason)));
                }
                // There is nothing to lose yet.
                LinkAgentToWorker::LinkLost { .. } => {}
                answer => return Ok(answer),
            }
        }
    }

    /// A fresh challenge for this context.
    pub(crate) async fn challenge(&self) -> Result<IssuedChallenge, Refused> {
        match self
            .ask(|sequence| WorkerToLinkAgent::ChallengeRequest { sequence })
            .await?
        {
            LinkAgentToWorker::ChallengeIssued {
                challenge,
                expires,
                now,
                ..
            } => Ok(IssuedChallenge {
                value: challenge,
                expires,
                now,
            }),
            _ => Err(Refused::Gone),
        }
    }

    /// Admits a statement that this worker already verified.
    pub(crate) async fn authenticate(&self, statement: Vec<u8>) -> Result<(Did, u64), Refused> {
        match self
            .ask(|sequence| WorkerToLinkAgent::Authenticate {
                sequence,
                statement,
            })
            .await?
        {
            LinkAgentToWorker::Authenticated {
                principal, expires, ..
            } => Ok((principal, expires)),
            _ => Err(Refused::Gone),
        }
    }

    /// Withdraws a principal's authority to open more.
    pub(crate) async fn release(&self, principal: Did) -> Result<(), Refused> {
        match self
            .ask(|sequence| WorkerToLinkAgent::Release {
                sequence,
                principal,
            })
            .await?
        {
            LinkAgentToWorker::Ack { .. } => Ok(()),
            _ => Err(Refused::Gone),
        }
    }

    /// Asks for the signature that binds a data socket; returns `rdb1` and the canonical negotiated flags.
    pub(crate) async fn bind(
        &self,
        index: u16,
        ticket: Ticket,
        hello: Vec<u8>,
    ) -> Result<(Vec<u8>, Vec<u8>), Refused> {
        match self
            .ask(|sequence| WorkerToLinkAgent::Bind {
                sequence,
                index,
                ticket,
                hello,
            })
            .await?
        {
            LinkAgentToWorker::Bound {
                binding,
                negotiated,
                ..
            } => Ok((binding, negotiated)),
            _ => Err(Refused::Gone),
        }
    }

    /// Receives answers and pushes until the agent is gone, which ends the connection: its context is gone with it.
    pub(crate) async fn run(self: Rc<Self>, link_lost: impl Fn(u16)) -> Result<(), End> {
        loop {
            let (packet, _) = match self.channel.recv_packet::<LinkAgentToWorker>().await {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(error) => return Err(broken("link-agent-packet", &error)),
            };
            match packet {
                LinkAgentToWorker::LinkLost { index } => link_lost(index),
                LinkAgentToWorker::Revoked { .. } => {
                    self.waiting.clear();
                    return Err(End::new(Reason::PrincipalRevoked, "operator"));
                }
                answer => {
                    let number = number_of(&answer);
                    if !number.is_some_and(|number| self.waiting.answer(number, answer)) {
                        return Err(End::new(Reason::Internal, "link-agent-answer"));
                    }
                }
            }
        }
        self.waiting.clear();
        Err(End::new(Reason::LinkAgentLost, "link-agent-gone"))
    }
}

/// The reason of a byte on a channel. One this build does not know is a fault, not a verdict.
pub(crate) fn reason_of(code: u8) -> Reason {
    Reason::from_code(code).unwrap_or(Reason::Internal)
}

/// The request that a packet of the link agent answers.
fn number_of(packet: &LinkAgentToWorker) -> Option<u32> {
    match packet {
        LinkAgentToWorker::HelloOk { sequence, .. }
        | LinkAgentToWorker::ChallengeIssued { sequence, .. }
        | LinkAgentToWorker::Refused { sequence, .. }
        | LinkAgentToWorker::Authenticated { sequence, .. }
        | LinkAgentToWorker::Ack { sequence }
        | LinkAgentToWorker::Bound { sequence, .. } => Some(*sequence),
        LinkAgentToWorker::LinkLost { .. } | LinkAgentToWorker::Revoked { .. } => None,
    }
}

pub(crate) fn broken(detail: &'static str, error: &ChannelError) -> End {
    let _ = error;
    End::new(Reason::Internal, detail)
}
