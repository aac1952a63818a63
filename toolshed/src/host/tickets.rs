//! Single-use tickets (`docs/protocol.md` section 6.2): who may bind a data socket to a context, for a moment.

use super::state::LinkId;
use memory_wire::ids::{ContextId, Ticket};
use std::collections::HashMap;

/// Seconds a ticket lives, by this host's whole-second clock.
pub(crate) const TICKET_LIFETIME: u64 = 15;

/// A ticket that was issued and not bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Issued {
    /// The link that owns it.
    pub(crate) link: LinkId,
    /// The context it is for.
    pub(crate) context: ContextId,
    /// Unix second from which it is void.
    pub(crate) expires: u64,
}

/// The live tickets of all links.
#[derive(Debug)]
pub(crate) struct Tickets {
    limit: Option<u64>,
    live: HashMap<Ticket, Issued>,
}

impl Tickets {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            limit,
            live: HashMap::new(),
        }
    }

    /// Whether one more may be issued at `now`.
    pub(crate) fn has_room(&mut self, now: u64) -> bool {
        self.live.retain(|_, issued| now < issued.expires);
        let held = u64::try_from(self.live.len()).unwrap_or(u64::MAX);
        self.limit.is_none_or(|limit| held < limit)
    }

    /// Issues a ticket; `ticket` is random.
    pub(crate) fn issue(&mut self, ticket: Ticket, link: LinkId, context: ContextId, now: u64) {
        let expires = now.saturating_add(TICKET_LIFETIME);
        let issued = Issued {
            link,
            context,
            expires,
        };
        self.live.insert(ticket, issued);
    }

    /// A ticket that could be bound at `now`.
    pub(crate) fn look_up(&self, ticket: &Ticket, now: u64) -> Option<Issued> {
        self.live
            .get(ticket)
            .copied()
            .filter(|issued| now < issued.expires)
    }

    /// Spends a ticket; `None` when there is none to spend.
    pub(crate) fn consume(&mut self, ticket: &Ticket, now: u64) -> Option<Issued> {
        self.live
            .remove(ticket)
            .filter(|issued| now < issued.expires)
    }

    /// Voids a context's tickets.
    pub(crate) fn forget(&mut self, link: LinkId, context: &ContextId) {
        self.live
            .retain(|_, issued| issued.link != link || issued.context != *context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: ContextId = ContextId::new([1; 16]);

    fn ticket(byte: u8) -> Ticket {
        Ticket::new([byte; 32])
    }

    #[test]
    fn is_spent_once_and_only_in_time() {
        let mut tickets = Tickets::new(None);
        let link = LinkId::new(1);
        tickets.issue(ticket(1), link, CONTEXT, 100);
        tickets.issue(ticket(2), link, CONTEXT, 100);
        assert!(tickets.look_up(&ticket(1), 114).is_some());
        assert!(tickets.consume(&ticket(1), 114).is_some());
        assert!(tickets.consume(&ticket(1), 114).is_none());
        assert!(tickets.look_up(&ticket(1), 114).is_none());
        assert!(tickets.look_up(&ticket(2), 115).is_none());
        assert!(tickets.consume(&ticket(2), 115).is_none());
    }

    #[test]
    fn admits_exactly_its_bound_and_counts_the_living() {
        let mut tickets = Tickets::new(Some(2));
        let link = LinkId::new(1);
        for byte in 0..2 {
            assert!(tickets.has_room(100));
            tickets.issue(ticket(byte), link, CONTEXT, 100);
        }
        assert!(!tickets.has_room(114));
        assert!(tickets.has_room(115));
        tickets.issue(ticket(3), link, CONTEXT, 115);
        tickets.issue(ticket(4), LinkId::new(2), CONTEXT, 115);
        tickets.forget(link, &CONTEXT);
        assert!(tickets.look_up(&ticket(3), 115).is_none());
        assert!(tickets.look_up(&ticket(4), 115).is_some());
    }
}
