//! Budgets: what is used is reserved first, and given back exactly once.
//!
//! - [`Budget::reserve`] checks and reserves in one step: a limit of N admits exactly N. It never waits.
//! - A [`Permit`] is the reservation. It has one owner and gives back what it holds when it is dropped, on whatever path
//!   that happens.
//! - A [`Budget::nested`] budget counts in every budget around it too, in all or in none.
//! - [`latency`] counts how long things take, in fixed buckets.
//!
//! Everything is for one thread, as every role and the toolshed has one: no lock, no atomic.
//!
//! ```
//! use memory_budget::{Budget, Limit};
//!
//! let toolshed = Budget::new("sessions", Limit::At(3));
//! let router = Budget::nested("sessions-of-router", Limit::At(2), &[&toolshed]);
//! let two = router.reserve(2).unwrap();
//! assert_eq!(router.reserve(1).unwrap_err().budget, "sessions-of-router");
//! assert_eq!(toolshed.snapshot().current, 2);
//! drop(two);
//! assert_eq!(toolshed.snapshot().current, 0);
//! ```
#![forbid(unsafe_code)]

pub mod latency;

mod permit;

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

pub use permit::Permit;

/// How much a budget has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// This much and no more.
    At(u64),
    /// No bound; it is counted all the same.
    Unlimited,
}

impl Limit {
    /// The bound, if there is one.
    #[must_use]
    pub const fn get(self) -> Option<u64> {
        match self {
            Self::At(limit) => Some(limit),
            Self::Unlimited => None,
        }
    }
}

impl From<Option<u64>> for Limit {
    /// `None` is no bound.
    fn from(limit: Option<u64>) -> Self {
        limit.map_or(Self::Unlimited, Self::At)
    }
}

/// A reservation that was not made. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{budget} has no room for {wanted} more")]
pub struct Refused {
    /// The name of the budget without room: the innermost, if several are.
    pub budget: &'static str,
    /// What was asked for.
    pub wanted: u64,
    /// More was asked for than the whole limit, so that asking again is of no use while the limit stays.
    pub is_over_limit: bool,
}

/// A budget at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// The budget's name.
    pub name: &'static str,
    /// What is reserved.
    pub current: u64,
    /// The most that has ever been reserved.
    pub peak: u64,
    /// The bound in force. Below `current` when it was lowered.
    pub limit: Limit,
    /// Requests that were refused for want of room here.
    pub refused: u64,
}

/// A budget. Clones are the same budget.
#[derive(Clone)]
pub struct Budget {
    node: Rc<Node>,
}

impl Budget {
    /// A budget of its own. `name` goes into snapshots and refusals.
    #[must_use]
    pub fn new(name: &'static str, limit: Limit) -> Self {
        Self::nested(name, limit, &[])
    }

    /// A budget that is part of others: what is reserved here is reserved there and around them too, once each however many
    /// ways lead there.
    #[must_use]
    pub fn nested(name: &'static str, limit: Limit, within: &[&Self]) -> Self {
        let mut around: Vec<Rc<Node>> = Vec::new();
        for outer in within {
            for node in std::iter::once(&outer.node).chain(&outer.node.around) {
                if !around.iter().any(|known| Rc::ptr_eq(known, node)) {
                    around.push(Rc::clone(node));
                }
            }
        }
        Self {
            node: Rc::new(Node {
                name,
                limit: Cell::new(limit),
                current: Cell::new(0),
                peak: Cell::new(0),
                refused: Cell::new(0),
                around: around.into(),
            }),
        }
    }

    /// Reserves `amount` here and in every budget around, at once.
    ///
    /// # Errors
    /// [`Refused`] by the first budget without room, from here outwards. It counts as refused there, and nothing is reserved
    /// anywhere.
    pub fn reserve(&self, amount: u64) -> Result<Permit, Refused> {
        self.node.add(amount)?;
        Ok(Permit::new(Rc::clone(&self.node), amount))
    }

    /// Whether [`Self::reserve`] would give `amount` now: for whoever waits until it does, since being refused counts.
    #[must_use]
    pub fn has_room(&self, amount: u64) -> bool {
        self.node.first_without_room(amount).is_none()
    }

    /// Counts what is there already, past the limit if need be: for what came to belong here by another configuration.
    /// Nothing else is admitted until the count has fallen below the limit.
    pub fn adopt(&self, amount: u64) -> Permit {
        self.node.force(amount);
        Permit::new(Rc::clone(&self.node), amount)
    }

    /// Bounds it differently from now on. What is reserved stays; while it is as much as the limit or more, nothing is
    /// admitted.
    pub fn set_limit(&self, limit: Limit) {
        self.node.limit.set(limit);
    }

    /// What is reserved.
    #[must_use]
    pub fn current(&self) -> u64 {
        self.node.current.get()
    }

    /// Its numbers.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let node = &self.node;
        Snapshot {
            name: node.name,
            current: node.current.get(),
            peak: node.peak.get(),
            limit: node.limit.get(),
            refused: node.refused.get(),
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.snapshot(), formatter)
    }
}

/// The counters of one budget.
struct Node {
    name: &'static str,
    limit: Cell<Limit>,
    current: Cell<u64>,
    peak: Cell<u64>,
    refused: Cell<u64>,
    /// Every budget that this one is part of, nearest first, each once.
    around: Box<[Rc<Node>]>,
}

impl Node {
    fn and_around(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.around.iter().map(Rc::as_ref))
    }

    /// Reserves in this one and all around, or in none.
    fn add(&self, amount: u64) -> Result<(), Refused> {
        match self.first_without_room(amount) {
            Some(node) => Err(node.refuse(amount)),
            None => {
                self.force(amount);
                Ok(())
            }
        }
    }

    fn first_without_room(&self, amount: u64) -> Option<&Self> {
        self.and_around().find(|node| !node.has_room(amount))
    }

    /// Whether `amount` fits beside what is reserved here.
    fn has_room(&self, amount: u64) -> bool {
        match (self.limit.get(), self.current.get().checked_add(amount)) {
            (Limit::At(limit), Some(sum)) => sum <= limit,
            (Limit::Unlimited, Some(_)) => true,
            (_, None) => false,
        }
    }

    fn force(&self, amount: u64) {
        for node in self.and_around() {
            let sum = node.current.get().saturating_add(amount);
            node.current.set(sum);
            node.peak.set(node.peak.get().max(sum));
        }
    }

    /// Gives back, here and all around.
    fn subtract(&self, amount: u64) {
        for node in self.and_around() {
            node.current.set(node.current.get().saturating_sub(amount));
        }
    }

    fn refuse(&self, wanted: u64) -> Refused {
        self.refused.set(self.refused.get().saturating_add(1));
        Refused {
            budget: self.name,
            wanted,
            is_over_limit: self.is_over_limit(wanted),
        }
    }

    fn is_over_limit(&self, amount: u64) -> bool {
        self.limit.get().get().is_some_and(|limit| amount > limit)
    }
}
