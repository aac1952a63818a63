//! Waiting for a budget: bounded in number and time, first come first served.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::mem::replace;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::time::{Instant, timeout_at};

use crate::{Budget, Limit, Node, Permit, Refused, Snapshot};

/// A budget on which requests may wait for their turn. Clones are the same budget.
///
/// While somebody waits, whoever asks without waiting is refused, however little is asked for: capacity that becomes free
/// belongs to the oldest request. It is part of no other budget, so that nobody waits for one while holding up another.
#[derive(Clone)]
pub struct FairBudget {
    budget: Budget,
}

/// Why a wait ended without a permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// It was refused at once: it never fits, or as many wait as may.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The deadline passed.
    #[error("the time for waiting is over")]
    Deadline,
}

impl FairBudget {
    /// A budget on which at most `max_waiters` requests wait at once.
    #[must_use]
    pub fn new(name: &'static str, limit: Limit, max_waiters: usize) -> Self {
        let budget = Budget::new(name, limit);
        budget.node.queue.borrow_mut().max = max_waiters;
        Self { budget }
    }

    /// As [`Budget::reserve`]; also refused while somebody waits.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn reserve(&self, amount: u64) -> Result<Permit, Refused> {
        self.budget.reserve(amount)
    }

    /// Reserves `amount`, waiting for its turn until `deadline`. Its place is taken in this call, before the future is polled.
    /// Dropped, it waits no longer, and gives back what it may have been given meanwhile. To be polled inside of a tokio
    /// runtime with its clock.
    ///
    /// # Errors
    /// [`WaitError`]. Each counts as refused.
    pub fn wait(
        &self,
        amount: u64,
        deadline: Instant,
    ) -> impl Future<Output = Result<Permit, WaitError>> + use<> {
        let queued = self.queue(amount);
        let node = Rc::clone(&self.budget.node);
        async move {
            match timeout_at(deadline, queued?).await {
                Ok(given) => Ok(given?),
                Err(_) => {
                    node.refuse(amount);
                    Err(WaitError::Deadline)
                }
            }
        }
    }

    /// Takes a place in the queue, for as long as the future lives: [`FairBudget::wait`] for callers with a clock of their own.
    ///
    /// # Errors
    /// [`Refused`] when `amount` is over the limit, or as many wait as may.
    pub fn queue(&self, amount: u64) -> Result<Wait, Refused> {
        let node = &self.budget.node;
        let place = Rc::new(Place {
            amount,
            state: RefCell::new(State::Waiting(None)),
        });
        {
            let mut queue = node.queue.borrow_mut();
            let fits_now = queue.places.is_empty() && node.has_room(amount);
            if node.is_over_limit(amount) || (!fits_now && queue.places.len() >= queue.max) {
                return Err(node.refuse(amount));
            }
            queue.places.push_back(Rc::clone(&place));
        }
        node.settle();
        Ok(Wait {
            node: Rc::clone(node),
            place,
        })
    }

    /// Lets another number of requests wait from now on. Those that wait stay.
    pub fn set_max_waiters(&self, max_waiters: usize) {
        self.budget.node.queue.borrow_mut().max = max_waiters;
    }

    /// As [`Budget::set_limit`]. Requests that wait and are over the new limit are refused when it is their turn.
    pub fn set_limit(&self, limit: Limit) {
        self.budget.set_limit(limit);
    }

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.budget.node.queue.borrow().places.len()
    }

    /// Its numbers.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.budget.snapshot()
    }
}

impl fmt::Debug for FairBudget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FairBudget")
            .field("budget", &self.budget)
            .field("waiting", &self.waiting())
            .finish()
    }
}

/// A place in the queue of a [`FairBudget`], given up when it is dropped.
#[must_use = "a place in the queue is given up when it is dropped"]
pub struct Wait {
    node: Rc<Node>,
    place: Rc<Place>,
}

impl Future for Wait {
    type Output = Result<Permit, Refused>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.place.state.borrow_mut();
        match replace(&mut *state, State::Over) {
            State::Given(permit) => Poll::Ready(Ok(permit)),
            State::Refused(refused) => Poll::Ready(Err(refused)),
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            // Polled again although it was over: it never is anything again.
            State::Over => Poll::Pending,
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        // A permit that nobody fetched is given back at the end of this block, after every borrow.
        let state = replace(&mut *self.place.state.borrow_mut(), State::Over);
        if matches!(state, State::Waiting(_)) {
            self.node
                .queue
                .borrow_mut()
                .places
                .retain(|place| !Rc::ptr_eq(place, &self.place));
            self.node.settle();
        }
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Wait")
            .field("budget", &self.node.name)
            .field("amount", &self.place.amount)
            .finish()
    }
}

/// Who waits, oldest first.
#[derive(Default)]
pub(crate) struct Queue {
    max: usize,
    places: VecDeque<Rc<Place>>,
}

/// What queue and waiter share.
struct Place {
    amount: u64,
    state: RefCell<State>,
}

enum State {
    /// In the queue, with whom to wake.
    Waiting(Option<Waker>),
    Given(Permit),
    Refused(Refused),
    /// Fetched or given up.
    Over,
}

impl Node {
    pub(crate) fn has_waiters(&self) -> bool {
        !self.queue.borrow().places.is_empty()
    }

    /// Gives what is free to those that wait, oldest first, and refuses those that can never have what they want.
    pub(crate) fn settle(self: &Rc<Self>) {
        while let Some(place) = self.next_settled() {
            let state = if self.is_over_limit(place.amount) {
                State::Refused(self.refuse(place.amount))
            } else {
                self.force(place.amount);
                State::Given(Permit::new(Rc::clone(self), place.amount))
            };
            let before = replace(&mut *place.state.borrow_mut(), state);
            if let State::Waiting(Some(waker)) = before {
                waker.wake();
            }
        }
    }

    /// Takes the oldest request out of the queue if it can be answered now.
    fn next_settled(&self) -> Option<Rc<Place>> {
        let mut queue = self.queue.borrow_mut();
        queue.places.pop_front_if(|oldest| {
            self.is_over_limit(oldest.amount) || self.has_room(oldest.amount)
        })
    }
}
