//! The challenges of one context.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use memory_wire::Did;
use memory_wire::admission::CHALLENGE_LIFETIME;
use memory_wire::ids::{Challenge, Digest, EpochId};

use crate::clock::Moment;

/// Challenges that one context may have unanswered. A client that asks for more gives up its oldest: a key of 16 that renew
/// at once, each with a challenge of its own and one pushed to it, stay within this.
pub(crate) const MAX_CHALLENGES: usize = 48;

/// What was said when a challenge was issued. An issuance (`mrc1`) states exactly this for one of the epochs, whenever it
/// is signed.
#[derive(Debug)]
pub(crate) struct Issue {
    pub(crate) value: Challenge,
    /// Unix seconds.
    pub(crate) issued: u64,
    /// Unix seconds; the first at which it is no longer good.
    pub(crate) expires: u64,
    /// The links that stood then, by toolshed index. A statement reaches no other link.
    epochs: Box<[(u16, EpochId)]>,
}

impl Issue {
    /// Whether a statement for this challenge reaches the link `epoch` of toolshed `index`.
    pub(crate) fn covers(&self, index: u16, epoch: &EpochId) -> bool {
        self.epochs
            .iter()
            .any(|(known, live)| *known == index && live == epoch)
    }
}

/// A challenge that may still be signed.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub(crate) issue: Rc<Issue>,
    at: Instant,
    signers: Vec<Signer>,
}

/// A principal that has signed a challenge, and what exactly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signer {
    pub(crate) principal: Did,
    pub(crate) statement: Digest,
    /// End of the lease that the statement asks for, Unix seconds.
    pub(crate) expires: u64,
}

impl Outstanding {
    /// What `principal` has signed for this challenge.
    pub(crate) fn signer(&self, principal: &Did) -> Option<&Signer> {
        self.signers
            .iter()
            .find(|signer| signer.principal == *principal)
    }

    /// Principals that have signed.
    pub(crate) fn signers(&self) -> usize {
        self.signers.len()
    }

    pub(crate) fn sign(&mut self, signer: Signer) {
        self.signers.push(signer);
    }

    /// Whether a statement received now is in time. The monotonic clock decides. The wall clock must agree with it, since
    /// the receipt will state it beside the issuance's: when it was stepped between the two, a toolshed would refuse what
    /// this router signed, and close the context.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        now.since(self.at) < LIFETIME && (self.issue.issued..self.issue.expires).contains(&now.unix)
    }
}

/// The challenges that one context may still sign, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ChallengeBook {
    challenges: VecDeque<Outstanding>,
}

impl ChallengeBook {
    /// Issues a challenge. Those that are over are forgotten, and the oldest if there are too many.
    pub(crate) fn issue(
        &mut self,
        value: Challenge,
        epochs: Box<[(u16, EpochId)]>,
        now: Moment,
    ) -> Rc<Issue> {
        self.challenges
            .retain(|challenge| now.since(challenge.at) < LIFETIME);
        if self.challenges.len() >= MAX_CHALLENGES {
            self.challenges.pop_front();
        }
        let issue = Rc::new(Issue {
            value,
            issued: now.unix,
            expires: now.unix + CHALLENGE_LIFETIME,
            epochs,
        });
        self.challenges.push_back(Outstanding {
            issue: Rc::clone(&issue),
            at: now.monotonic,
            signers: Vec::new(),
        });
        issue
    }

    /// A challenge of this context that has not been forgotten; whether it is fresh is another question.
    pub(crate) fn find(&mut self, value: &Challenge) -> Option<&mut Outstanding> {
        self.challenges
            .iter_mut()
            .find(|challenge| challenge.issue.value == *value)
    }
}

const LIFETIME: Duration = Duration::from_secs(CHALLENGE_LIFETIME);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::moment;

    fn value(byte: u8) -> Challenge {
        Challenge::new([byte; 32])
    }

    #[test]
    fn is_fresh_for_sixty_seconds_by_the_monotonic_clock() {
        let start = moment();
        let mut book = ChallengeBook::default();
        let issue = book.issue(value(1), Box::default(), start);
        assert_eq!((issue.issued, issue.expires), (start.unix, start.unix + 60));
        let challenge = book.find(&value(1)).unwrap();
        assert!(challenge.is_fresh(start));
        assert!(challenge.is_fresh(start.after(Duration::from_secs(59))));
        assert!(!challenge.is_fresh(start.after(Duration::from_secs(60))));
        assert!(book.find(&value(2)).is_none());
    }

    #[test]
    fn a_stepped_wall_clock_makes_it_stale_rather_than_inconsistent() {
        let start = moment();
        let mut book = ChallengeBook::default();
        book.issue(value(1), Box::default(), start);
        let challenge = book.find(&value(1)).unwrap();
        assert!(!challenge.is_fresh(Moment {
            unix: start.unix - 200,
            ..start
        }));
        assert!(!challenge.is_fresh(Moment {
            unix: start.unix + 200,
            ..start
        }));
    }

    #[test]
    fn forgets_the_oldest_of_too_many_and_all_that_are_over() {
        let start = moment();
        let mut book = ChallengeBook::default();
        for byte in 0..=u8::try_from(MAX_CHALLENGES).unwrap() {
            book.issue(value(byte), Box::default(), start);
        }
        assert!(book.find(&value(0)).is_none());
        assert!(book.find(&value(1)).is_some());
        book.issue(value(200), Box::default(), start.after(LIFETIME));
        assert_eq!(book.challenges.len(), 1);
    }

    #[test]
    fn covers_the_links_that_stood_when_it_was_issued() {
        let epoch = EpochId::new([3; 16]);
        let mut book = ChallengeBook::default();
        let issue = book.issue(value(1), Box::new([(4, epoch)]), moment());
        assert!(issue.covers(4, &epoch));
        assert!(!issue.covers(4, &EpochId::new([4; 16])));
        assert!(!issue.covers(5, &epoch));
    }
}
