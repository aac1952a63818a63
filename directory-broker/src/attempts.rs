//! The placements of one worker that are to bring a data socket: at most one per toolshed, and of all of them one that is
//! being set up. Others are told which one is in their way, and are not kept.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The attempts of one worker, by the numbers of their requests.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    at: RefCell<BTreeMap<u16, u32>>,
    /// The one that dials, or whose socket is neither committed nor taken back.
    in_setup: Cell<Option<u32>>,
}

/// The only attempt at its toolshed, until it is dropped.
#[derive(Debug)]
pub(crate) struct Attempt {
    of: Rc<Attempts>,
    index: u16,
    sequence: u32,
    is_in_setup: Cell<bool>,
}

impl Attempts {
    /// Begins an attempt at a toolshed.
    ///
    /// # Errors
    /// The number of the one that has to be over first: at the same toolshed, or being set up.
    pub(crate) fn begin(self: &Rc<Self>, index: u16, sequence: u32) -> Result<Attempt, u32> {
        if let Some(ahead) = self.at.borrow().get(&index) {
            return Err(*ahead);
        }
        if let Some(ahead) = self.in_setup.get() {
            return Err(ahead);
        }
        self.at.borrow_mut().insert(index, sequence);
        Ok(Attempt {
            of: Rc::clone(self),
            index,
            sequence,
            is_in_setup: Cell::new(false),
        })
    }
}

impl Attempt {
    /// The toolshed.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Makes it the one that is being set up.
    ///
    /// # Errors
    /// The number of the one that is.
    pub(crate) fn set_up(&self) -> Result<(), u32> {
        match self.of.in_setup.get() {
            Some(ahead) => Err(ahead),
            None => {
                self.of.in_setup.set(Some(self.sequence));
                self.is_in_setup.set(true);
                Ok(())
            }
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.of.at.borrow_mut().remove(&self.index);
        if self.is_in_setup.get() {
            self.of.in_setup.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_toolshed_and_one_in_setup() {
        let attempts = Rc::new(Attempts::default());
        let first = attempts.begin(0, 1).unwrap();
        assert_eq!(attempts.begin(0, 2).unwrap_err(), 1);
        let second = attempts.begin(1, 3).unwrap();
        assert_eq!(second.set_up(), Ok(()));
        assert_eq!(first.set_up(), Err(3));
        assert_eq!(attempts.begin(2, 4).unwrap_err(), 3);
        drop(first);
        assert_eq!(attempts.begin(0, 5).unwrap_err(), 3);
        drop(second);
        let again = attempts.begin(0, 6).unwrap();
        assert_eq!(again.set_up(), Ok(()));
        assert_eq!(again.index(), 0);
    }

    #[test]
    fn numbers_that_repeat_release_nothing_of_others() {
        let attempts = Rc::new(Attempts::default());
        let first = attempts.begin(0, 7).unwrap();
        let second = attempts.begin(1, 7).unwrap();
        assert_eq!(first.set_up(), Ok(()));
        drop(second);
        assert_eq!(attempts.begin(1, 7).unwrap_err(), 7);
    }
}
