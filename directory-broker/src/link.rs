//! The broker's end of its channel to the link agent for one connection: numbered admissions, one rollback at a time.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use memory_config::Placement;
use memory_ipc::packets::{BrokerToLinkAgent, LinkAgentToBroker};
use memory_ipc::{Channel, ChannelError};
use memory_wire::ids::Ticket;
use memory_wire::{Did, Reason};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// The number in a refusal of a rollback, which has none of its own.
const ROLLBACK: u32 = 0;

/// A ticket, or `None` for a connection that is bound; or why not.
type Admission = Result<Option<Ticket>, Reason>;

/// Questions to the link agent about one connection.
#[derive(Debug)]
pub(crate) struct LinkAgent {
    channel: Channel,
    /// Number of the last admission; the first is 1.
    last: Cell<u32>,
    admissions: RefCell<HashMap<u32, oneshot::Sender<Admission>>>,
    rollback: RefCell<Option<oneshot::Sender<bool>>>,
    is_gone: Cell<bool>,
}

impl LinkAgent {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            channel,
            last: Cell::new(ROLLBACK),
            admissions: RefCell::default(),
            rollback: RefCell::default(),
            is_gone: Cell::new(false),
        }
    }

    /// Has the connection admitted to a space at a toolshed. A ticket is for a new data socket; `None` means that the
    /// connection is bound there. `patience` bounds how long an answer is waited for; the link agent keeps shorter bounds of its
    /// own.
    ///
    /// # Errors
    /// The link agent's reason; [`Reason::UpstreamUnavailable`] when it is gone, [`Reason::AdmissionTimeout`] when it is silent.
    pub(crate) async fn admit(
        &self,
        placement: Placement,
        space: Did,
        principal: Did,
        patience: Duration,
    ) -> Admission {
        let sequence = self.last.get().wrapping_add(1).max(ROLLBACK + 1);
        self.last.set(sequence);
        let packet = BrokerToLinkAgent::Admit {
            sequence,
            index: placement.toolshed,
            space,
            epoch: placement.epoch,
            principal,
        };
        let (sender, answer) = oneshot::channel();
        if self.is_gone.get() {
            return Err(Reason::UpstreamUnavailable);
        }
        self.admissions.borrow_mut().insert(sequence, sender);
        let deadline = Instant::now() + patience;
        match timeout_at(deadline, self.send(&packet)).await {
            Ok(Ok(())) => {}
            // What was not asked is not answered.
            unsent => {
                self.admissions.borrow_mut().remove(&sequence);
                return Err(
                    unsent.map_or(Reason::AdmissionTimeout, |_| Reason::UpstreamUnavailable)
                );
            }
        }
        match timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Reason::UpstreamUnavailable),
            // A late answer finds nobody; the ticket in it stays with the link agent and can be given again.
            Err(_) => Err(Reason::AdmissionTimeout),
        }
    }

    /// Asks whether an assignment may be taken back. `false` when its binding has been issued.
    ///
    /// # Errors
    /// [`Reason::UpstreamUnavailable`] when the link agent is gone or silent: it cannot be told then.
    pub(crate) async fn roll_back(
        &self,
        index: u16,
        ticket: Ticket,
        patience: Duration,
    ) -> Result<bool, Reason> {
        let (sender, answer) = oneshot::channel();
        if self.is_gone.get() || self.rollback.borrow_mut().replace(sender).is_some() {
            return Err(Reason::UpstreamUnavailable);
        }
        self.send(&BrokerToLinkAgent::Rollback { index, ticket })
            .await?;
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok(may)) => Ok(may),
            Ok(Err(_)) | Err(_) => Err(Reason::UpstreamUnavailable),
        }
    }

    /// Takes answers until the link agent is gone.
    ///
    /// # Errors
    /// When the channel breaks, or an answer fits no question.
    pub(crate) async fn run(&self) -> Result<(), ChannelError> {
        let result = self.receive().await;
        self.is_gone.set(true);
        self.admissions.borrow_mut().clear();
        self.rollback.borrow_mut().take();
        result
    }

    async fn receive(&self) -> Result<(), ChannelError> {
        while let Some((packet, _)) = self.channel.recv_packet::<LinkAgentToBroker>().await? {
            let is_expected = match packet {
                LinkAgentToBroker::Admitted { sequence, ticket } => {
                    self.answer(sequence, Ok(ticket))
                }
                LinkAgentToBroker::Refused {
                    sequence: ROLLBACK, ..
                } => self.settle(false),
                LinkAgentToBroker::Refused { sequence, reason } => self.answer(
                    sequence,
                    Err(Reason::from_code(reason).unwrap_or(Reason::UpstreamUnavailable)),
                ),
                LinkAgentToBroker::Confirmed => self.settle(true),
            };
            if !is_expected {
                return Err(memory_ipc::PacketError::UnknownTag.into());
            }
        }
        Ok(())
    }

    fn answer(&self, sequence: u32, answer: Admission) -> bool {
        let Some(asker) = self.admissions.borrow_mut().remove(&sequence) else {
            return false;
        };
        // The asker may have gone.
        let _ = asker.send(answer);
        true
    }

    fn settle(&self, may: bool) -> bool {
        let Some(asker) = self.rollback.borrow_mut().take() else {
            return false;
        };
        // The asker may have gone.
        let _ = asker.send(may);
        true
    }

    async fn send(&self, packet: &BrokerToLinkAgent) -> Result<(), Reason> {
        self.channel
            .send_packet(packet, &[])
            .await
            .map_err(|_| Reason::UpstreamUnavailable)
    }
}
