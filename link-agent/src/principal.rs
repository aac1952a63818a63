//! Who has authenticated on one connection, and until when.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use memory_wire::ids::Digest;
use memory_wire::{Did, Reason};

use crate::challenge::Issue;
use crate::clock::Moment;
use crate::revocation::Generation;

/// Seconds that a lease must have left, beyond the current one, for its proof to be sent: for the way to the toolshed, and
/// for clocks of whole seconds that do not tick together.
const PROOF_MARGIN: u64 = 1;

/// A statement that was accepted, with the facts that its receipts state.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// The exact signed bytes.
    pub(crate) statement: Box<[u8]>,
    /// SHA-256 of them.
    pub(crate) digest: Digest,
    /// End of the lease, Unix seconds.
    pub(crate) expires: u64,
    /// The same by the monotonic clock, as it looked when the statement was received.
    pub(crate) ends: Instant,
    /// When it was received, Unix seconds.
    pub(crate) received: u64,
    /// The challenge that it answers.
    pub(crate) issue: Rc<Issue>,
    /// The state of the revocation list that it was accepted under.
    pub(crate) granted: Generation,
}

impl Accepted {
    /// Whether the lease is over by either clock. A toolshed on this host goes by the wall clock and would close the context
    /// on a proof that has expired; a wall clock that was set back must not prolong a lease.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        now.unix >= self.expires || now.monotonic >= self.ends
    }

    /// Whether a proof sent now will still be good when the toolshed judges it. One that has expired on the way would make it
    /// close the whole context.
    pub(crate) fn outlasts_the_way(&self, now: Moment) -> bool {
        now.unix.saturating_add(PROOF_MARGIN) < self.expires && !self.is_over(now)
    }
}

/// The principals of one connection.
#[derive(Debug)]
pub(crate) struct Principals {
    /// Principals that may be active at once.
    active_limit: usize,
    /// Principals that may be remembered, released ones included, until their statements expire.
    history_limit: usize,
    entries: HashMap<Did, Entry>,
}

#[derive(Debug)]
struct Entry {
    newest: Rc<Accepted>,
    released: bool,
}

impl Entry {
    fn is_active(&self, now: Moment) -> bool {
        !self.released && !self.newest.is_over(now)
    }
}

impl Principals {
    pub(crate) fn new(active_limit: usize, history_limit: usize) -> Self {
        Self {
            active_limit,
            history_limit,
            entries: HashMap::new(),
        }
    }

    /// Whether `principal` may become active, or stay so.
    pub(crate) fn admits(&self, principal: &Did, now: Moment) -> Result<(), Reason> {
        let others = self
            .entries
            .iter()
            .filter(|(other, entry)| *other != principal && entry.is_active(now));
        if others.count() >= self.active_limit {
            return Err(Reason::PrincipalLimit);
        }
        let is_room = self.entries.contains_key(principal)
            || self.entries.len() < self.history_limit
            || self.entries.values().any(|entry| entry.newest.is_over(now));
        if is_room {
            Ok(())
        } else {
            Err(Reason::PrincipalHistoryLimit)
        }
    }

    /// Remembers a statement as its principal's newest. If there is no room, whoever's lease ended first is forgotten:
    /// [`Self::admits`] has seen that there is such a one. Returns who was forgotten.
    pub(crate) fn accept(
        &mut self,
        principal: Did,
        accepted: Rc<Accepted>,
        now: Moment,
    ) -> Option<Did> {
        let mut forgotten = None;
        if !self.entries.contains_key(&principal) && self.entries.len() >= self.history_limit {
            let over = self
                .entries
                .iter()
                .filter(|(_, entry)| entry.newest.is_over(now));
            // Released ones first: nothing can be asked about them any more.
            forgotten = over
                .min_by_key(|(_, entry)| (!entry.released, entry.newest.ends))
                .map(|(did, _)| *did);
            if let Some(forgotten) = &forgotten {
                self.entries.remove(forgotten);
            }
        }
        self.entries.insert(
            principal,
            Entry {
                newest: accepted,
                released: false,
            },
        );
        forgotten
    }

    /// Takes a principal's authority for new opens away. It stays remembered, as it does at the toolsheds.
    pub(crate) fn release(&mut self, principal: &Did) {
        if let Some(entry) = self.entries.get_mut(principal) {
            entry.released = true;
        }
    }

    /// Whether `principal` has been released and not signed since.
    pub(crate) fn is_released(&self, principal: &Did) -> bool {
        self.entries
            .get(principal)
            .is_some_and(|entry| entry.released)
    }

    /// The newest statement of a principal that may open.
    ///
    /// # Errors
    /// [`Reason::PrincipalUnknown`] for one that never authenticated or was released, [`Reason::PrincipalRenewal`] for one
    /// whose lease is over.
    pub(crate) fn lease(&self, principal: &Did, now: Moment) -> Result<&Rc<Accepted>, Reason> {
        match self.entries.get(principal) {
            None | Some(Entry { released: true, .. }) => Err(Reason::PrincipalUnknown),
            Some(entry) if entry.newest.is_over(now) => Err(Reason::PrincipalRenewal),
            Some(entry) => Ok(&entry.newest),
        }
    }

    /// The newest statement of a principal, whatever became of its lease.
    pub(crate) fn newest(&self, principal: &Did) -> Option<&Rc<Accepted>> {
        self.entries.get(principal).map(|entry| &entry.newest)
    }

    /// Everybody remembered.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = &Did> {
        self.entries.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::challenge::ChallengeBook;
    use crate::testing::{did, moment};
    use memory_wire::ids::Challenge;
    use std::time::Duration;

    fn accepted(now: Moment, lease: u64) -> Rc<Accepted> {
        Rc::new(Accepted {
            statement: Box::default(),
            digest: Digest::of(b""),
            expires: now.unix + lease,
            ends: now.monotonic + Duration::from_secs(lease),
            received: now.unix,
            issue: ChallengeBook::default().issue(Challenge::new([0; 32]), Box::default(), now),
            granted: Generation::default(),
        })
    }

    #[test]
    fn admits_exactly_its_active_limit() {
        let now = moment();
        let mut principals = Principals::new(2, 10);
        for byte in [1, 2] {
            assert_eq!(principals.admits(&did(byte), now), Ok(()));
            principals.accept(did(byte), accepted(now, 100), now);
        }
        assert_eq!(principals.admits(&did(3), now), Err(Reason::PrincipalLimit));
        assert_eq!(principals.admits(&did(2), now), Ok(()));
        principals.release(&did(1));
        assert_eq!(principals.admits(&did(3), now), Ok(()));
        assert_eq!(principals.admits(&did(1), now), Ok(()));
    }

    #[test]
    fn a_lease_that_is_over_frees_its_place_but_is_still_known() {
        let now = moment();
        let mut principals = Principals::new(1, 10);
        principals.accept(did(1), accepted(now, 10), now);
        let later = now.after(Duration::from_secs(10));
        assert_eq!(principals.admits(&did(2), later), Ok(()));
        assert!(principals.lease(&did(1), now).is_ok());
        assert_eq!(
            principals.lease(&did(1), later).err(),
            Some(Reason::PrincipalRenewal)
        );
        assert_eq!(
            principals.lease(&did(2), later).err(),
            Some(Reason::PrincipalUnknown)
        );
    }

    #[test]
    fn history_counts_released_principals_until_they_expire() {
        let now = moment();
        let mut principals = Principals::new(2, 2);
        for byte in [1, 2] {
            principals.accept(did(byte), accepted(now, 10 * u64::from(byte)), now);
            principals.release(&did(byte));
        }
        assert_eq!(
            principals.admits(&did(3), now),
            Err(Reason::PrincipalHistoryLimit)
        );
        assert_eq!(
            principals.lease(&did(1), now).err(),
            Some(Reason::PrincipalUnknown)
        );
        let later = now.after(Duration::from_secs(10));
        assert_eq!(principals.admits(&did(3), later), Ok(()));
        assert_eq!(
            principals.accept(did(3), accepted(later, 10), later),
            Some(did(1))
        );
        let mut remembered: Vec<Did> = principals.remembered().copied().collect();
        let mut expected = vec![did(2), did(3)];
        remembered.sort_unstable();
        expected.sort_unstable();
        assert_eq!(remembered, expected);
    }

    #[test]
    fn a_proof_is_not_sent_in_its_last_second() {
        let now = moment();
        let lease = accepted(now, 3);
        assert!(lease.outlasts_the_way(now.after(Duration::from_secs(1))));
        assert!(!lease.outlasts_the_way(now.after(Duration::from_secs(2))));
        assert!(!lease.is_over(now.after(Duration::from_secs(2))));
    }

    #[test]
    fn either_clock_ends_a_lease() {
        let now = moment();
        let lease = accepted(now, 100);
        assert!(!lease.is_over(now));
        assert!(lease.is_over(Moment {
            unix: now.unix + 100,
            ..now
        }));
        let stepped_back = Moment {
            unix: now.unix,
            ..now.after(Duration::from_secs(100))
        };
        assert!(lease.is_over(stepped_back));
    }
}
