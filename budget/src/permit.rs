//! A reservation.

use std::fmt;
use std::rc::Rc;

use crate::{Budget, Node, Refused};

/// Something reserved. Dropped, it is given back.
#[must_use = "what is reserved is given back when the permit is dropped"]
pub struct Permit {
    node: Rc<Node>,
    amount: u64,
}

impl Permit {
    /// Takes over what has been counted in `node` just now.
    pub(crate) fn new(node: Rc<Node>, amount: u64) -> Self {
        Self { node, amount }
    }

    /// How much it holds.
    #[must_use]
    pub const fn amount(&self) -> u64 {
        self.amount
    }

    /// Whether it is of this budget.
    #[must_use]
    pub fn is_of(&self, budget: &Budget) -> bool {
        Rc::ptr_eq(&self.node, &budget.node)
    }

    /// Reserves `more` beside what it holds.
    ///
    /// # Errors
    /// As [`Budget::reserve`]; it holds what it held then.
    pub fn grow(&mut self, more: u64) -> Result<(), Refused> {
        self.node.add(more)?;
        self.amount = self.amount.saturating_add(more);
        Ok(())
    }

    /// Gives a part back, all of it at most.
    pub fn shrink(&mut self, less: u64) {
        let less = less.min(self.amount);
        self.amount -= less;
        self.node.subtract(less);
    }

    /// Holds `amount` from now on: reserves what is missing, or gives back what is too much.
    ///
    /// # Errors
    /// As [`Permit::grow`].
    pub fn resize(&mut self, amount: u64) -> Result<(), Refused> {
        match amount.checked_sub(self.amount) {
            Some(more) if more > 0 => self.grow(more),
            _ => {
                self.shrink(self.amount.saturating_sub(amount));
                Ok(())
            }
        }
    }

    /// Takes a part of it out as a permit of its own; `None`, and nothing changed, when it does not hold as much.
    #[must_use = "what is reserved is given back when the permit is dropped"]
    pub fn split(&mut self, amount: u64) -> Option<Self> {
        self.amount = self.amount.checked_sub(amount)?;
        Some(Self::new(Rc::clone(&self.node), amount))
    }

    /// Takes another permit of the same budget in.
    ///
    /// # Errors
    /// The other, unchanged, when it is of another budget.
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        if !Rc::ptr_eq(&self.node, &other.node) {
            return Err(other);
        }
        self.amount = self.amount.saturating_add(other.amount);
        other.amount = 0;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.node.subtract(self.amount);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Permit")
            .field("budget", &self.node.name)
            .field("amount", &self.amount)
            .finish()
    }
}
