//! Placements that are in each other's way. The broker sets up one data socket at a time, and at each toolshed one after the
//! other; it keeps nothing that waits, and tells which placement is ahead. Whoever is told waits here until that one is over.
//!
//! When it has succeeded, everybody asks again: at its toolshed they find its socket, at the others one of them is next. When
//! it has failed, one per toolshed asks again and the rest stay behind that one, so that however many wait, a failure costs
//! a few placements and not as many as there are.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::oneshot;

/// The attempts of one connection with one broker, by the numbers of their requests.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    followers: RefCell<HashMap<u32, Followers>>,
}

/// Who waits for an attempt to be over, in order.
#[derive(Debug, Default)]
pub(crate) struct Followers(Vec<Follower>);

#[derive(Debug)]
struct Follower {
    /// The toolshed that it was placed at.
    index: u16,
    /// Told whom it is ahead of from now on.
    turn: oneshot::Sender<Followers>,
}

/// One placement, from before it is asked for until it is refused, or its data socket is settled. Dropped, it has failed.
#[derive(Debug)]
pub(crate) struct Attempt {
    of: Rc<Attempts>,
    sequence: u32,
}

impl Attempts {
    /// Begins an attempt that `followers` wait for already.
    pub(crate) fn begin(self: &Rc<Self>, sequence: u32, followers: Followers) -> Attempt {
        self.followers.borrow_mut().insert(sequence, followers);
        Attempt {
            of: Rc::clone(self),
            sequence,
        }
    }

    /// Nobody will be served: whoever waits sees its turn fail.
    pub(crate) fn clear(&self) {
        self.followers.borrow_mut().clear();
    }
}

impl Attempt {
    /// There is a data socket now.
    pub(crate) fn succeed(self) {
        for follower in self.take().0 {
            // One that gave up is not behind anybody.
            let _ = follower.turn.send(Followers::default());
        }
    }

    /// This placement, for the toolshed `index`, is behind the one of the number `ahead`, and whoever followed it too. Gives
    /// its turn: those that follow it again. The turn fails when the broker is gone.
    pub(crate) fn fall_behind(self, index: u16, ahead: u32) -> oneshot::Receiver<Followers> {
        let (turn, its_turn) = oneshot::channel();
        let mut followers = self.take();
        match self.of.followers.borrow_mut().get_mut(&ahead) {
            Some(Followers(line)) => {
                line.push(Follower { index, turn });
                line.append(&mut followers.0);
            }
            // Over since the broker said so.
            None => drop(turn.send(followers)),
        }
        its_turn
    }

    fn take(&self) -> Followers {
        let followers = self.of.followers.borrow_mut().remove(&self.sequence);
        followers.unwrap_or_default()
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Followers(mut line) = self.take();
        while let Some(Follower { index, .. }) = line.first() {
            let index = *index;
            let (mut same, others): (Vec<_>, Vec<_>) = line
                .into_iter()
                .partition(|follower| follower.index == index);
            line = others;
            while !same.is_empty() {
                let first = same.remove(0);
                match first.turn.send(Followers(same)) {
                    Ok(()) => break,
                    // It gave up: the next one is first.
                    Err(Followers(rest)) => same = rest,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(attempts: &Rc<Attempts>, sequence: u32, index: u16, ahead: u32) -> Turn {
        let attempt = attempts.begin(sequence, Followers::default());
        attempt.fall_behind(index, ahead)
    }

    type Turn = oneshot::Receiver<Followers>;

    fn is_waiting(turn: &mut Turn) -> bool {
        turn.try_recv() == Err(oneshot::error::TryRecvError::Empty)
    }

    impl PartialEq for Followers {
        fn eq(&self, other: &Self) -> bool {
            self.0.len() == other.0.len()
        }
    }

    #[test]
    fn success_lets_everybody_ask_again() {
        let attempts = Rc::new(Attempts::default());
        let first = attempts.begin(1, Followers::default());
        let mut turns = [
            behind(&attempts, 2, 0, 1),
            behind(&attempts, 3, 1, 1),
            behind(&attempts, 4, 0, 1),
        ];
        assert!(turns.iter_mut().all(is_waiting));
        first.succeed();
        for turn in &mut turns {
            assert!(turn.try_recv().unwrap().0.is_empty());
        }
        assert!(attempts.followers.borrow().is_empty());
    }

    #[test]
    fn failure_lets_one_per_toolshed_ask_again() {
        let attempts = Rc::new(Attempts::default());
        let first = attempts.begin(1, Followers::default());
        let mut at_zero = [2, 3, 4].map(|sequence| behind(&attempts, sequence, 0, 1));
        let mut at_one = [5, 6].map(|sequence| behind(&attempts, sequence, 1, 1));
        drop(first);
        let followers = at_zero[0].try_recv().unwrap();
        assert_eq!(followers.0.len(), 2);
        assert_eq!(at_one[0].try_recv().unwrap().0.len(), 1);
        assert!(is_waiting(&mut at_zero[1]) && is_waiting(&mut at_zero[2]));
        // It asks again, and falls behind another, with those that follow it.
        let other = attempts.begin(7, Followers::default());
        let mut turn = attempts.begin(8, followers).fall_behind(0, 7);
        assert!(is_waiting(&mut turn) && is_waiting(&mut at_zero[1]));
        other.succeed();
        assert!(turn.try_recv().unwrap().0.is_empty());
        assert!(at_zero[1].try_recv().unwrap().0.is_empty());
        assert!(at_zero[2].try_recv().unwrap().0.is_empty());
    }

    #[test]
    fn who_gave_up_holds_up_nobody() {
        let attempts = Rc::new(Attempts::default());
        let first = attempts.begin(1, Followers::default());
        let mut turns: Vec<_> = [2, 3, 4, 5]
            .map(|sequence| behind(&attempts, sequence, 0, 1))
            .into();
        turns.drain(..2);
        drop(first);
        let followers = turns[0].try_recv().unwrap();
        assert_eq!(followers.0.len(), 1);
        assert!(is_waiting(&mut turns[1]));
    }

    #[test]
    fn what_is_over_is_in_nobodys_way() {
        let attempts = Rc::new(Attempts::default());
        drop(attempts.begin(1, Followers::default()));
        let second = attempts.begin(2, Followers::default());
        let mut third = behind(&attempts, 3, 0, 2);
        let mut turn = second.fall_behind(0, 1);
        assert_eq!(turn.try_recv().unwrap().0.len(), 1);
        // It gives up with its followers in hand: they see it.
        assert!(matches!(
            third.try_recv(),
            Err(oneshot::error::TryRecvError::Closed)
        ));
    }

    #[test]
    fn a_broker_that_is_gone_ends_every_wait() {
        let attempts = Rc::new(Attempts::default());
        let first = attempts.begin(1, Followers::default());
        let mut turn = behind(&attempts, 2, 0, 1);
        attempts.clear();
        assert!(turn.try_recv().is_err());
        drop(first);
    }
}
