//! Numbers that only grow, for one thread.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// A number that grows, up to 2^64 - 1.
#[derive(Debug, Default)]
pub struct Count(Cell<u64>);

impl Count {
    /// Adds to it.
    pub fn add(&self, more: u64) {
        self.0.set(self.0.get().saturating_add(more));
    }

    /// What it is.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}

/// A number for each word that there was, such as a reason. The words are of a closed set: what is kept is never forgotten.
#[derive(Debug)]
pub struct CountBy<K>(RefCell<BTreeMap<K, u64>>);

impl<K> Default for CountBy<K> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<K: Ord + Copy> CountBy<K> {
    /// Adds to the number of `word`.
    pub fn add(&self, word: K, more: u64) {
        let mut counts = self.0.borrow_mut();
        let count = counts.entry(word).or_default();
        *count = count.saturating_add(more);
    }

    /// Every word so far with its number, in order.
    #[must_use]
    pub fn all(&self) -> BTreeMap<K, u64> {
        self.0.borrow().clone()
    }
}
