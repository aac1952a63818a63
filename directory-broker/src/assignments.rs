//! The data sockets of one worker: which toolsheds it has one to, and the one that is being set up.

use std::collections::BTreeMap;

use memory_wire::ids::Ticket;

/// Data sockets of one worker.
///
/// ```text
///  free ──begin──> pending ──commit───────────────> committed (for good)
///    ^                └─────begin_rollback──> rolling back ──end_rollback──┐
///    └────────────────────────────────────────────────────────────────────┘
///  free ──adopt──> committed
/// ```
///
/// At most one is pending. A toolshed may be committed and pending at once: its earlier socket went with a lost link, and
/// a new one replaces it.
#[derive(Debug, Default)]
pub(crate) struct Assignments {
    /// With the ticket that each was made for; `None` where an earlier broker made it.
    committed: BTreeMap<u16, Option<Ticket>>,
    pending: Option<Pending>,
}

#[derive(Debug, PartialEq, Eq)]
struct Pending {
    index: u16,
    ticket: Ticket,
    is_rolling_back: bool,
}

/// The worker names an assignment that is not the pending one: it never had it, settled it before, or committed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotPending;

impl Assignments {
    /// Whether the worker has a data socket to a toolshed.
    pub(crate) fn is_committed(&self, index: u16) -> bool {
        self.committed.contains_key(&index)
    }

    /// Whether the worker has a data socket to a toolshed that was made for this ticket.
    pub(crate) fn is_committed_with(&self, index: u16, ticket: Ticket) -> bool {
        self.committed.get(&index) == Some(&Some(ticket))
    }

    /// Notes a data socket that an earlier broker made: the link agent says that the connection is bound there.
    pub(crate) fn adopt(&mut self, index: u16) {
        self.committed.entry(index).or_default();
    }

    /// Makes an assignment the pending one. `false` if there is one.
    pub(crate) fn begin(&mut self, index: u16, ticket: Ticket) -> bool {
        if self.pending.is_some() {
            return false;
        }
        self.pending = Some(Pending {
            index,
            ticket,
            is_rolling_back: false,
        });
        true
    }

    /// Keeps the pending assignment.
    ///
    /// # Errors
    /// [`NotPending`].
    pub(crate) fn commit(&mut self, index: u16, ticket: Ticket) -> Result<(), NotPending> {
        self.pending
            .take_if(|pending| pending.is(index, ticket))
            .ok_or(NotPending)?;
        self.committed.insert(index, Some(ticket));
        Ok(())
    }

    /// Marks the pending assignment so that it can no longer be committed, while the link agent is asked.
    ///
    /// # Errors
    /// [`NotPending`].
    pub(crate) fn begin_rollback(&mut self, index: u16, ticket: Ticket) -> Result<(), NotPending> {
        let pending = self
            .pending
            .as_mut()
            .filter(|pending| pending.is(index, ticket))
            .ok_or(NotPending)?;
        pending.is_rolling_back = true;
        Ok(())
    }

    /// Clears the assignment that is being rolled back.
    pub(crate) fn end_rollback(&mut self) {
        self.pending.take_if(|pending| pending.is_rolling_back);
    }

    /// Clears a pending assignment that the worker was never told of.
    pub(crate) fn abandon(&mut self, index: u16, ticket: Ticket) {
        self.pending.take_if(|pending| pending.is(index, ticket));
    }
}

impl Pending {
    fn is(&self, index: u16, ticket: Ticket) -> bool {
        self.index == index && self.ticket == ticket && !self.is_rolling_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKET: Ticket = Ticket::new([1; 32]);
    const OTHER: Ticket = Ticket::new([2; 32]);

    #[test]
    fn holds_at_most_one_pending() {
        let mut assignments = Assignments::default();
        assert!(assignments.begin(0, TICKET));
        assert!(!assignments.begin(1, OTHER));
        assert_eq!(assignments.commit(0, TICKET), Ok(()));
        assert!(assignments.is_committed(0) && !assignments.is_committed(1));
        assert!(assignments.begin(1, OTHER));
    }

    #[test]
    fn settles_only_what_is_pending_with_its_ticket() {
        let mut assignments = Assignments::default();
        assert_eq!(assignments.commit(0, TICKET), Err(NotPending));
        assert!(assignments.begin(0, TICKET));
        for (index, ticket) in [(1, TICKET), (0, OTHER)] {
            assert_eq!(assignments.commit(index, ticket), Err(NotPending));
            assert_eq!(assignments.begin_rollback(index, ticket), Err(NotPending));
        }
    }

    #[test]
    fn a_commit_cannot_be_rolled_back_nor_repeated() {
        let mut assignments = Assignments::default();
        assert!(assignments.begin(0, TICKET));
        assert_eq!(assignments.commit(0, TICKET), Ok(()));
        assert_eq!(assignments.begin_rollback(0, TICKET), Err(NotPending));
        assert_eq!(assignments.commit(0, TICKET), Err(NotPending));
    }

    #[test]
    fn a_rollback_cannot_be_overtaken_by_a_commit() {
        let mut assignments = Assignments::default();
        assert!(assignments.begin(0, TICKET));
        assert_eq!(assignments.begin_rollback(0, TICKET), Ok(()));
        assert_eq!(assignments.commit(0, TICKET), Err(NotPending));
        assert!(!assignments.begin(1, OTHER));
        assignments.end_rollback();
        assert!(!assignments.is_committed(0));
        assert!(assignments.begin(0, OTHER));
    }

    #[test]
    fn a_committed_socket_is_known_by_its_ticket() {
        let mut assignments = Assignments::default();
        assignments.adopt(0);
        assert!(assignments.is_committed(0) && !assignments.is_committed_with(0, TICKET));
        assert!(assignments.begin(0, TICKET));
        assert_eq!(assignments.commit(0, TICKET), Ok(()));
        assignments.adopt(0);
        assert!(assignments.is_committed_with(0, TICKET));
        assert!(!assignments.is_committed_with(0, OTHER));
        assert!(!assignments.is_committed_with(1, TICKET));
    }

    #[test]
    fn a_committed_toolshed_can_get_a_replacement() {
        let mut assignments = Assignments::default();
        assert!(assignments.begin(0, TICKET));
        assert_eq!(assignments.commit(0, TICKET), Ok(()));
        assert!(assignments.begin(0, OTHER));
        assignments.abandon(0, OTHER);
        assert!(assignments.is_committed(0));
        assert!(assignments.begin(1, OTHER));
    }
}
