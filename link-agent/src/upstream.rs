//! What one toolshed knows of one context, as far as this side can tell.
//!
//! Everything here ends with the link: a new epoch starts from nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use memory_wire::ids::{Digest, Ticket};
use memory_wire::records::Operation;
use memory_wire::{Did, Reason};
use std::time::Instant;

use crate::ticket::{BindFault, TicketState, TicketUse};

/// Something to tell a toolshed about a context. It becomes bytes when it is sent, with what is true then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Operation 1.
    Ticket { space: Did, epoch: u64 },
    /// Operation 2.
    Proof { principal: Did },
    /// Operation 3.
    Close,
    /// Operation 4.
    Release { principal: Did },
    /// Operation 5.
    Space { space: Did, epoch: u64 },
    /// Operation 6.
    Verified { principal: Did },
    /// Operation 4 for a principal that an operator revoked: said also when the context is gone here, as it is.
    Revoke { principal: Did },
}

impl Task {
    pub(crate) const fn operation(&self) -> Operation {
        match self {
            Self::Ticket { .. } => Operation::Ticket,
            Self::Proof { .. } => Operation::Proof,
            Self::Close => Operation::Close,
            Self::Release { .. } | Self::Revoke { .. } => Operation::Release,
            Self::Space { .. } => Operation::Space,
            Self::Verified { .. } => Operation::VerifiedProof,
        }
    }

    /// Whose proof it carries.
    pub(crate) const fn proves(&self) -> Option<&Did> {
        match self {
            Self::Proof { principal } | Self::Verified { principal } => Some(principal),
            _ => None,
        }
    }

    /// The space that it has admitted.
    const fn space(&self) -> Option<&Did> {
        match self {
            Self::Ticket { space, .. } | Self::Space { space, .. } => Some(space),
            _ => None,
        }
    }
}

/// An open, as the broker asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Open {
    /// The toolshed.
    pub(crate) index: u16,
    /// Who opens.
    pub(crate) principal: Did,
    /// What.
    pub(crate) space: Did,
    /// Placement epoch of the space.
    pub(crate) epoch: u64,
}

/// The next step of an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Everything the toolshed must know it knows. The ticket is for a new data socket; `None`: there is one.
    Admitted(Option<Ticket>),
    /// Ask the toolshed this, while no other open of this context at this toolshed takes such a step: two would ask for two
    /// tickets, or prove the same principal twice.
    Alone(Task),
    /// Ask the toolshed this; others may do the same.
    Beside(Task),
    /// A ticket was asked for and has not come: wait until whoever takes that step has taken it. Who finds this when it is
    /// its own turn is refused for now.
    Pending,
    /// Refuse for this reason.
    Refuse(Reason),
}

/// One context at one toolshed.
#[derive(Debug, Default)]
pub(crate) struct Upstream {
    /// Whether the toolshed may have heard of the context, so that it must hear of its end.
    known: bool,
    ticket: TicketState,
    /// Whether operation 2 has succeeded for the current ticket.
    proved: bool,
    proofs: HashMap<Did, HeldProof>,
    /// Placement epoch at which each space was admitted, by the space's key: half the size of its DID.
    spaces: HashMap<[u8; 32], u64>,
    /// Requests to admit each space that the toolshed has yet to answer, or to get.
    asked: HashMap<[u8; 32], usize>,
    /// The ticket whose binding was signed last, whatever the toolshed refused since.
    signed: Option<Ticket>,
}

#[derive(Debug)]
struct HeldProof {
    /// The statement sent last.
    sent: Digest,
    /// The statement that the toolshed accepted last.
    confirmed: Option<Digest>,
    /// Whether a renewal waits for its turn. It will carry the newest statement, so one is enough however many are signed.
    renewal_waits: bool,
    /// Whether a release waits for its turn.
    release_waits: bool,
}

impl Upstream {
    /// The next step of `open`, whose principal's newest statement is `newest`.
    pub(crate) fn plan(&self, open: &Open, newest: &Digest, now: Instant) -> Step {
        let ticket = match self.ticket.judge(now) {
            TicketUse::Request => {
                return Step::Alone(Task::Ticket {
                    space: open.space,
                    epoch: open.epoch,
                });
            }
            TicketUse::Window => return Step::Refuse(Reason::TicketWindow),
            TicketUse::Unanswered => return Step::Pending,
            TicketUse::Reuse(ticket) => Some(ticket),
            TicketUse::Bound => None,
        };
        if ticket.is_some() && !self.proved {
            return Step::Alone(Task::Proof {
                principal: open.principal,
            });
        }
        if self
            .proofs
            .get(&open.principal)
            .and_then(|held| held.confirmed.as_ref())
            != Some(newest)
        {
            return Step::Alone(Task::Verified {
                principal: open.principal,
            });
        }
        if !self.has_space(open) {
            return Step::Beside(Task::Space {
                space: open.space,
                epoch: open.epoch,
            });
        }
        Step::Admitted(ticket)
    }

    /// Whether the space is admitted at this placement epoch.
    pub(crate) fn has_space(&self, open: &Open) -> bool {
        self.spaces.get(open.space.key()) == Some(&open.epoch)
    }

    /// Spaces admitted here, and those that are asked for.
    pub(crate) fn spaces(&self) -> usize {
        let asked = self.asked.keys();
        self.spaces.len() + asked.filter(|key| !self.spaces.contains_key(*key)).count()
    }

    /// Whether the space counts among [`Self::spaces`].
    pub(crate) fn counts(&self, space: &Did) -> bool {
        self.spaces.contains_key(space.key()) || self.asked.contains_key(space.key())
    }

    /// Whether the toolshed may have heard of the context.
    pub(crate) const fn is_known(&self) -> bool {
        self.known
    }

    /// Whether the toolshed may hold a proof of `principal`.
    pub(crate) fn holds(&self, principal: &Did) -> bool {
        self.proofs.contains_key(principal)
    }

    /// Whether `statement` is the last that was sent for `principal`.
    pub(crate) fn was_sent(&self, principal: &Did, statement: &Digest) -> bool {
        self.proofs
            .get(principal)
            .is_some_and(|held| held.sent == *statement)
    }

    /// The ticket, bound or not, and its rules.
    pub(crate) const fn ticket(&self) -> &TicketState {
        &self.ticket
    }

    /// Binds the ticket, if it is this one and young enough.
    ///
    /// # Errors
    /// [`BindFault`].
    pub(crate) fn bind(&mut self, ticket: Ticket, now: Instant) -> Result<(), BindFault> {
        self.ticket.bind(ticket, now)?;
        self.signed = Some(ticket);
        Ok(())
    }

    /// Whether this ticket's binding has been signed. A refusal by the toolshed does not undo that.
    pub(crate) fn was_bound(&self, ticket: Ticket) -> bool {
        self.signed == Some(ticket)
    }

    /// Forgets a principal whose lease is over here and at the toolshed.
    pub(crate) fn forget(&mut self, principal: &Did) {
        self.proofs.remove(principal);
    }

    /// Whether the toolshed, holding a proof of its principal, is to be told `task` (a renewal or a release) and does not wait
    /// to be told already. After `true` it does.
    pub(crate) fn announce(&mut self, task: &Task) -> bool {
        let waits = match task {
            Task::Verified { principal } => self
                .proofs
                .get_mut(principal)
                .map(|held| &mut held.renewal_waits),
            Task::Release { principal } => self
                .proofs
                .get_mut(principal)
                .map(|held| &mut held.release_waits),
            _ => None,
        };
        waits.is_some_and(|waits| !std::mem::replace(waits, true))
    }

    /// Notes that `task` waits for its turn.
    pub(crate) fn queued(&mut self, task: &Task) {
        if matches!(task, Task::Ticket { .. }) {
            self.ticket = TicketState::Queued;
        }
        if let Some(space) = task.space() {
            *self.asked.entry(*space.key()).or_default() += 1;
        }
    }

    /// Notes that a request to admit a space is over, if `task` is one.
    fn settle(&mut self, task: &Task) {
        let Some(space) = task.space() else { return };
        if let Entry::Occupied(mut asked) = self.asked.entry(*space.key()) {
            match *asked.get() {
                0 | 1 => drop(asked.remove()),
                more => *asked.get_mut() = more - 1,
            }
        }
    }

    /// Notes that `task` will not be sent.
    pub(crate) fn unsent(&mut self, task: &Task) {
        self.settle(task);
        match task {
            Task::Ticket { .. } if matches!(self.ticket, TicketState::Queued) => {
                self.ticket = TicketState::Absent
            }
            Task::Verified { principal } => {
                if let Some(held) = self.proofs.get_mut(principal) {
                    held.renewal_waits = false;
                }
            }
            _ => {}
        }
    }

    /// Notes that `task` was sent, with this statement if it is a proof.
    pub(crate) fn sent(&mut self, task: &Task, statement: Option<Digest>, now: Instant) {
        match (task, statement) {
            (Task::Ticket { .. }, _) => {
                self.known = true;
                self.ticket = TicketState::Requested {
                    began: now,
                    given_up: false,
                };
            }
            (Task::Proof { principal } | Task::Verified { principal }, Some(sent)) => {
                self.known = true;
                self.proofs
                    .entry(*principal)
                    .and_modify(|held| {
                        held.sent = sent;
                        held.renewal_waits = false;
                    })
                    .or_insert(HeldProof {
                        sent,
                        confirmed: None,
                        renewal_waits: false,
                        release_waits: false,
                    });
            }
            (Task::Release { principal }, _) => {
                self.proofs.remove(principal);
            }
            _ => {}
        }
    }

    /// Notes that whoever asked for `task` has been refused before the answer came.
    pub(crate) fn given_up(&mut self, task: &Task) {
        if matches!(task, Task::Ticket { .. }) {
            self.ticket.give_up();
        }
    }

    /// Takes the toolshed's consent to `task`; a ticket's with the ticket.
    pub(crate) fn granted(
        &mut self,
        task: &Task,
        statement: Option<Digest>,
        ticket: Option<Ticket>,
        now: Instant,
    ) {
        self.settle(task);
        match *task {
            Task::Ticket { space, epoch } => {
                self.ticket.answer(ticket, now);
                // Here and not when it was sent: until now a late answer may have proved the ticket before this one.
                self.proved = false;
                self.spaces.insert(*space.key(), epoch);
            }
            Task::Proof { principal } | Task::Verified { principal } => {
                if matches!(task, Task::Proof { .. }) {
                    self.proved = true;
                }
                // Gone when the principal was released after this was sent.
                if let Some(held) = self.proofs.get_mut(&principal) {
                    held.confirmed = statement;
                }
            }
            Task::Space { space, epoch } => {
                self.spaces.insert(*space.key(), epoch);
            }
            Task::Close | Task::Release { .. } | Task::Revoke { .. } => {}
        }
    }

    /// Takes the toolshed's refusal of `task`. Returns the reason for whoever asked.
    pub(crate) fn refused(&mut self, task: &Task, now: Instant) -> Reason {
        self.settle(task);
        match task {
            // The toolshed does not own the space at that epoch, or is full: it says no more than no.
            Task::Ticket { .. } => {
                self.ticket.answer(None, now);
                Reason::PlacementChanged
            }
            Task::Space { .. } => Reason::PlacementChanged,
            // It closes the context of a proof that it refuses. What it knew is gone; that it once knew is kept, so that it
            // hears of the end in any case.
            Task::Proof { .. } | Task::Verified { .. } => {
                let ticket = match std::mem::take(&mut self.ticket) {
                    // Its answer is still to come, and must not be taken for that of a later request.
                    pending @ (TicketState::Queued | TicketState::Requested { .. }) => pending,
                    _ => TicketState::Absent,
                };
                *self = Self {
                    known: self.known,
                    ticket,
                    // So are theirs.
                    asked: std::mem::take(&mut self.asked),
                    signed: self.signed,
                    ..Self::default()
                };
                Reason::UpstreamUnavailable
            }
            Task::Close | Task::Release { .. } | Task::Revoke { .. } => Reason::UpstreamUnavailable,
        }
    }
}

#[cfg(test)]
#[path = "upstream_tests.rs"]
mod tests;
