//! The links as they stand, and the offer made of them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use memory_admin::{Count, Histogram};
use memory_budget::{Budget, Limit};
use memory_config::Toolshed;
use memory_wire::flags::Flags;
use memory_wire::ids::{ContextId, Digest, EpochId};
use memory_wire::{Did, Reason};
use tokio::sync::{Notify, oneshot};

use crate::queue::{Class, ControlQueue, QueueLimits};
use crate::upstream::Task;

/// A control request with whoever asked for it.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) context: ContextId,
    pub(crate) task: Task,
    /// The statement whose proof was sent.
    pub(crate) statement: Option<Digest>,
    /// Told once: `Ok` means that things have changed and are to be looked at again.
    pub(crate) caller: Option<Caller>,
}

pub(crate) type Caller = oneshot::Sender<Result<(), Reason>>;

impl Job {
    /// Tells whoever asked. It may have gone.
    pub(crate) fn tell(&mut self, outcome: Result<(), Reason>) {
        if let Some(caller) = self.caller.take() {
            // An asker that has gone wants to know nothing.
            let _ = caller.send(outcome);
        }
    }
}

/// A link that stands.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) epoch: EpochId,
    since: Instant,
    flags: Flags,
    /// Whether it supports the frozen offer. Before the offer is frozen nothing is.
    is_usable: bool,
    pub(crate) queue: ControlQueue<Job>,
}

#[derive(Debug)]
enum State {
    Down,
    /// Down because the toolshed has another cell mode.
    OtherMode,
    Up(Box<Link>),
}

#[derive(Debug)]
struct Entry {
    toolshed: Rc<Toolshed>,
    state: State,
    wakes: Rc<Wakes>,
    history: History,
}

/// What is known of a toolshed over all its links.
#[derive(Debug)]
pub(crate) struct History {
    /// Requests that wait to be sent (`max_link_waiters`).
    pub(crate) waiters: Budget,
    /// Links that there have been.
    pub(crate) epochs: Count,
    /// How long the toolshed takes to answer a control request.
    pub(crate) answers: Histogram,
    /// The last of them.
    pub(crate) last_answer: Cell<Option<Duration>>,
    /// Control requests that it refused.
    pub(crate) refusals: Count,
    /// Askers who waited too long: for their request to be sent, or for its answer.
    pub(crate) timeouts: Count,
    /// By how many seconds its clock was ahead at the last greeting.
    pub(crate) skew: Cell<Option<i64>>,
}

impl History {
    fn new(limits: QueueLimits) -> Self {
        Self {
            waiters: Budget::new("max_link_waiters", Limit::At(limits.waiters)),
            epochs: Count::default(),
            answers: Histogram::default(),
            last_answer: Cell::default(),
            refusals: Count::default(),
            timeouts: Count::default(),
            skew: Cell::default(),
        }
    }
}

/// A link as it is shown.
#[derive(Debug)]
pub(crate) struct Shown<'a> {
    pub(crate) index: u16,
    /// One of [`LINK_STATES`].
    pub(crate) state: &'static str,
    /// How long it has stood.
    pub(crate) age: Option<Duration>,
    pub(crate) unanswered: usize,
    pub(crate) history: &'a History,
}

/// What a link can be: not there, refused for its toolshed's cell mode, used, there and not used.
pub(crate) const LINK_STATES: [&str; 4] = ["down", "other-cell-mode", "up", "unused"];

/// What wakes the sides of a link.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    /// There may be something to send.
    pub(crate) send: Notify,
    /// There may be a deadline where none was.
    pub(crate) timer: Notify,
}

/// Every toolshed of the directory, in its order, and its link.
#[derive(Debug)]
pub(crate) struct Links {
    entries: Vec<Entry>,
    limits: QueueLimits,
    /// The deployment's cell mode.
    modern_cell_rep: bool,
    startup_grace: Duration,
    /// The public offer: frozen once, for the life of the process.
    offer: Option<Flags>,
    /// Woken when a link comes up.
    pub(crate) changed: Rc<Notify>,
}

/// Why a toolshed that proved its identity gets no link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsuitable {
    /// It lacks what every routed toolshed must have.
    Private,
    /// It has another cell mode than the deployment.
    CellMode,
}

impl Links {
    pub(crate) fn new(
        toolsheds: Vec<Toolshed>,
        limits: QueueLimits,
        modern_cell_rep: bool,
        startup_grace: Duration,
    ) -> Self {
        let entry = |toolshed| Entry {
            toolshed: Rc::new(toolshed),
            state: State::Down,
            wakes: Rc::default(),
            history: History::new(limits),
        };
        Self {
            entries: toolsheds.into_iter().map(entry).collect(),
            limits,
            modern_cell_rep,
            startup_grace,
            offer: None,
            changed: Rc::new(Notify::new()),
        }
    }

    /// Bounds the queues of all links, present and future, differently from now on.
    pub(crate) fn set_limits(&mut self, limits: QueueLimits) {
        self.limits = limits;
        for entry in &mut self.entries {
            entry.history.waiters.set_limit(Limit::At(limits.waiters));
            if let State::Up(link) = &mut entry.state {
                link.queue.set_limits(limits);
            }
        }
    }

    /// Every link as it is now.
    pub(crate) fn shown(&self, now: Instant) -> impl Iterator<Item = Shown<'_>> {
        (0..=u16::MAX)
            .zip(&self.entries)
            .map(move |(index, entry)| {
                let [down, other_mode, up, unused] = LINK_STATES;
                let link = self.link(index);
                let state = match &entry.state {
                    State::Down => down,
                    State::OtherMode => other_mode,
                    State::Up(link) if link.is_usable => up,
                    State::Up(_) => unused,
                };
                Shown {
                    index,
                    state,
                    age: link.map(|link| now.saturating_duration_since(link.since)),
                    unanswered: link.map_or(0, |link| link.queue.unanswered()),
                    history: &entry.history,
                }
            })
    }

    /// What is known of a toolshed.
    pub(crate) fn history(&self, index: u16) -> Option<&History> {
        self.entries
            .get(usize::from(index))
            .map(|entry| &entry.history)
    }

    /// Every toolshed with its index and what wakes its link.
    pub(crate) fn toolsheds(&self) -> impl Iterator<Item = (u16, Rc<Toolshed>, Rc<Wakes>)> {
        let indices = 0..=u16::MAX;
        indices
            .zip(&self.entries)
            .map(|(index, entry)| (index, Rc::clone(&entry.toolshed), Rc::clone(&entry.wakes)))
    }

    /// Who a toolshed must prove to be.
    pub(crate) fn did(&self, index: u16) -> Option<&Did> {
        self.entries
            .get(usize::from(index))
            .map(|entry| &entry.toolshed.did)
    }

    /// Whether a toolshed with these flags may be linked at all.
    pub(crate) fn judge(&self, flags: &Flags) -> Result<(), Unsuitable> {
        if !flags.is_true("routerEncodingNegotiation") || !flags.is_true("routerRequestCredit") {
            return Err(Unsuitable::Private);
        }
        if flags.modern_cell_rep() != self.modern_cell_rep {
            return Err(Unsuitable::CellMode);
        }
        Ok(())
    }

    /// Notes that a link stands. Returns whether it can be used: an endpoint that does not support the frozen offer stays
    /// linked, unused. After a link that was lost, admissions are spread from the first on (`docs/protocol.md` section 6.1).
    pub(crate) fn up(&mut self, index: u16, epoch: EpochId, flags: Flags, now: Instant) -> bool {
        let is_usable = self
            .offer
            .as_ref()
            .is_some_and(|offer| offer.is_supported_by(&flags));
        if let Some(entry) = self.entries.get_mut(usize::from(index)) {
            let mut queue = ControlQueue::new(self.limits, entry.history.waiters.clone());
            if entry.history.epochs.get() > 0 {
                queue.spread(now);
            }
            entry.history.epochs.add(1);
            entry.state = State::Up(Box::new(Link {
                epoch,
                since: now,
                flags,
                is_usable,
                queue,
            }));
        }
        self.changed.notify_one();
        is_usable || self.offer.is_none()
    }

    /// Notes that a link is gone. What waited on it is refused, as its askers find that nobody can tell them any more.
    pub(crate) fn down(&mut self, index: u16) {
        self.set_down(index, State::Down);
    }

    /// Notes that a toolshed was refused a link, for its cell mode or not.
    pub(crate) fn refuse(&mut self, index: u16, unsuitable: Unsuitable) {
        let state = if unsuitable == Unsuitable::CellMode {
            State::OtherMode
        } else {
            State::Down
        };
        self.set_down(index, state);
    }

    fn set_down(&mut self, index: u16, state: State) {
        if let Some(entry) = self.entries.get_mut(usize::from(index)) {
            entry.state = state;
        }
    }

    /// The link to a toolshed, if it stands.
    pub(crate) fn link_mut(&mut self, index: u16) -> Option<&mut Link> {
        match &mut self.entries.get_mut(usize::from(index))?.state {
            State::Up(link) => Some(link),
            State::Down | State::OtherMode => None,
        }
    }

    fn link(&self, index: u16) -> Option<&Link> {
        match &self.entries.get(usize::from(index))?.state {
            State::Up(link) => Some(link),
            State::Down | State::OtherMode => None,
        }
    }

    /// The epoch of a link that admissions may use.
    ///
    /// # Errors
    /// [`Reason::RestartNeeded`] for a toolshed that was not in the directory when this process started,
    /// [`Reason::UpstreamIncompatible`], [`Reason::UpstreamUnavailable`].
    pub(crate) fn usable(&self, index: u16) -> Result<&EpochId, Reason> {
        match self
            .entries
            .get(usize::from(index))
            .map(|entry| &entry.state)
        {
            None => Err(Reason::RestartNeeded),
            Some(State::Up(link)) if link.is_usable => Ok(&link.epoch),
            Some(State::Up(_)) if self.offer.is_some() => Err(Reason::UpstreamIncompatible),
            Some(State::OtherMode) => Err(Reason::UpstreamIncompatible),
            Some(State::Up(_) | State::Down) => Err(Reason::UpstreamUnavailable),
        }
    }

    /// Whether any toolshed can be used.
    pub(crate) fn is_any_usable(&self) -> bool {
        (0..=u16::MAX)
            .zip(&self.entries)
            .any(|(index, _)| self.usable(index).is_ok())
    }

    /// The links that stand now.
    pub(crate) fn epochs(&self) -> Box<[(u16, EpochId)]> {
        let indices = (0..=u16::MAX).zip(&self.entries);
        indices
            .filter_map(|(index, _)| Some((index, self.link(index)?.epoch)))
            .collect()
    }

    /// The frozen offer.
    pub(crate) fn offer(&self) -> Option<&Flags> {
        self.offer.as_ref()
    }

    /// Freezes the offer if it is time, `elapsed` after the start: when every toolshed is linked, or after the grace when one
    /// is. Returns whether it is frozen.
    pub(crate) fn freeze(&mut self, elapsed: Duration) -> bool {
        if self.offer.is_some() {
            return true;
        }
        let up: Vec<&Flags> = self
            .entries
            .iter()
            .filter_map(|entry| match &entry.state {
                State::Up(link) => Some(&link.flags),
                State::Down | State::OtherMode => None,
            })
            .collect();
        let is_time = up.len() == self.entries.len() || elapsed >= self.startup_grace;
        if up.is_empty() || !is_time {
            return false;
        }
        let offer = Flags::public_offer(&up);
        for entry in &mut self.entries {
            if let State::Up(link) = &mut entry.state {
                link.is_usable = offer.is_supported_by(&link.flags);
            }
        }
        self.offer = Some(offer);
        true
    }

    /// How many toolsheds there are, and the names of those that are not linked.
    pub(crate) fn missing(&self) -> (usize, Vec<&str>) {
        let missing = self
            .entries
            .iter()
            .filter(|entry| !matches!(entry.state, State::Up(_)))
            .map(|entry| entry.toolshed.name.as_str())
            .collect();
        (self.entries.len(), missing)
    }

    /// Puts a request in a link's queue and wakes the link. Gives the job back when the link is gone or its queue full.
    pub(crate) fn push(
        &mut self,
        index: u16,
        context: ContextId,
        task: Task,
        class: Class,
        caller: Option<Caller>,
        now: Instant,
    ) -> bool {
        let Some(link) = self.link_mut(index) else {
            return false;
        };
        let is_queued = link
            .queue
            .push(
                Job {
                    context,
                    task,
                    statement: None,
                    caller,
                },
                class,
                now,
            )
            .is_ok();
        if let Some(entry) = self.entries.get(usize::from(index)) {
            entry.wakes.send.notify_one();
            entry.wakes.timer.notify_one();
        }
        is_queued
    }
}

#[cfg(test)]
#[path = "links_tests.rs"]
mod tests;
