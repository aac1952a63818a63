//! The broker's requests for one connection. Admissions run beside each other.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use memory_ipc::packets::{BrokerToLinkAgent, LinkAgentToBroker};
use memory_ipc::{Channel, ChannelError};
use memory_wire::Reason;
use memory_wire::ids::{ConnectionId, ContextId, Ticket};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Ended;
use crate::Shared;
use crate::clock::Moment;
use crate::refusals::Refusals;
use crate::upstream::{Open, Step};

/// Steps that one open may take: ticket, proof, renewal, space, and again where something changed meanwhile.
const MAX_STEPS: usize = 12;

/// The number in a refusal of a rollback, which has none of its own.
const ROLLBACK: u32 = 0;

/// Requests to one toolshed that the opens of one connection may have waiting or unanswered beside each other. The queue of a
/// link is everybody's: whoever opens a thousand spaces at once waits here, and not in the way of others.
const MAX_BESIDE: usize = 8;

/// For each toolshed, the turns of one connection's opens.
type Gates = RefCell<HashMap<u16, Gate>>;

#[derive(Debug, Clone)]
struct Gate {
    /// Whoever takes a step that only one open may take.
    alone: Arc<Mutex<()>>,
    /// Whoever takes a step that others may take too.
    beside: Arc<Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            alone: Arc::default(),
            beside: Arc::new(Semaphore::new(MAX_BESIDE)),
        }
    }
}

/// Serves the broker until it is gone. That it is gone is not the connection's fault, also where an answer finds it so.
pub(super) async fn serve(
    shared: Rc<Shared>,
    channel: Channel,
    id: ContextId,
    connection: ConnectionId,
) -> Result<(), Ended> {
    match receive(shared, channel, id, connection).await {
        Err(Ended::Channel(ChannelError::Closed)) => Ok(()),
        ended => ended,
    }
}

async fn receive(
    shared: Rc<Shared>,
    channel: Channel,
    id: ContextId,
    connection: ConnectionId,
) -> Result<(), Ended> {
    let channel = Rc::new(channel);
    let gates = Rc::new(Gates::default());
    let refusals = Rc::new(Refusals::new(connection, &shared.refusals));
    let mut admissions = JoinSet::new();
    loop {
        let received = tokio::select! {
            received = channel.recv_packet::<BrokerToLinkAgent>() => received?,
            Some(answered) = admissions.join_next() => {
                if let Ok(answered) = answered {
                    answered?;
                }
                continue;
            }
        };
        let Some((packet, _)) = received else {
            return Ok(());
        };
        match packet {
            BrokerToLinkAgent::Admit {
                sequence,
                index,
                space,
                epoch,
                principal,
            } => {
                // Those that are answered do not count, also where nobody has looked yet.
                while let Some(answered) = admissions.try_join_next() {
                    if let Ok(answered) = answered {
                        answered?;
                    }
                }
                // The broker has the same bound, but not at the same moment when it is changed.
                if admissions.len() >= shared.max_admissions() {
                    let full = Err(Reason::RequestLimit);
                    answer(&channel, sequence, full, &refusals, index).await?;
                    continue;
                }
                let open = Open {
                    index,
                    principal,
                    space,
                    epoch,
                };
                let (shared, channel, gates, refusals) = (
                    Rc::clone(&shared),
                    Rc::clone(&channel),
                    Rc::clone(&gates),
                    Rc::clone(&refusals),
                );
                admissions.spawn_local(async move {
                    let admitted = admit(&shared, &gates, &id, &open).await;
                    answer(&channel, sequence, admitted, &refusals, index).await
                });
            }
            BrokerToLinkAgent::Rollback { index, ticket } => {
                let may = shared.agent.borrow().roll_back(&id, index, ticket);
                let reply = if may {
                    LinkAgentToBroker::Confirmed
                } else {
                    LinkAgentToBroker::Refused {
                        sequence: ROLLBACK,
                        reason: Reason::UpstreamLost.code(),
                    }
                };
                channel.send_packet(&reply, &[]).await?;
            }
        }
    }
}

async fn answer(
    channel: &Channel,
    sequence: u32,
    admitted: Result<Option<Ticket>, Reason>,
    refusals: &Refusals,
    index: u16,
) -> Result<(), ChannelError> {
    let reply = match admitted {
        Ok(ticket) => LinkAgentToBroker::Admitted { sequence, ticket },
        Err(reason) => {
            refusals.note(reason, Some(index));
            LinkAgentToBroker::Refused {
                sequence,
                reason: reason.code(),
            }
        }
    };
    channel.send_packet(&reply, &[]).await
}

/// Takes an open's steps until the toolshed knows what it must.
async fn admit(
    shared: &Shared,
    gates: &Gates,
    id: &ContextId,
    open: &Open,
) -> Result<Option<Ticket>, Reason> {
    let mut turn = None;
    let mut place = None;
    for _ in 0..MAX_STEPS {
        let step = shared.agent.borrow().plan(id, open, Moment::now());
        let task = match step {
            Step::Admitted(ticket) => return Ok(ticket),
            Step::Refuse(reason) => return Err(reason),
            Step::Pending | Step::Alone(_) if turn.is_none() => {
                let gate = gates.borrow_mut().entry(open.index).or_default().clone();
                place = None;
                let waited = timeout(shared.times().control_wait, gate.alone.lock_owned()).await;
                turn = Some(waited.map_err(|_| Reason::AdmissionTimeout)?);
                // Whoever was before may have done what was missing.
                continue;
            }
            // Its own turn, and the request of an earlier one, refused meanwhile, is still unanswered.
            Step::Pending => return Err(Reason::ControlTimeout),
            Step::Alone(task) => task,
            Step::Beside(_) if place.is_none() => {
                turn = None;
                let gate = gates.borrow_mut().entry(open.index).or_default().clone();
                let waited = timeout(shared.times().control_wait, gate.beside.acquire_owned());
                // The semaphore is never closed.
                place = waited.await.map_err(|_| Reason::AdmissionTimeout)?.ok();
                continue;
            }
            Step::Beside(task) => {
                turn = None;
                task
            }
        };
        let asked = shared
            .agent
            .borrow_mut()
            .ask(id, open.index, task, Moment::now().monotonic)?;
        // Dropped unanswered, the link is gone.
        asked.await.unwrap_or(Err(Reason::UpstreamUnavailable))?;
    }
    Err(Reason::Internal)
}
