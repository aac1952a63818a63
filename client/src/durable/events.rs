//! What a session tells the application, in order, bounded: an application that does not read loses nothing but time. What
//! it has no room for is dropped, and fetched as a difference once it has read the rest.

use std::collections::VecDeque;

use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use crate::{ClientError, Denied, Ended};

/// Pushes that may wait for the application.
const MAX_EVENTS: usize = 1024;
/// Bytes of them. One larger event is taken when nothing else waits.
const MAX_EVENTS_LEN: usize = 16 << 20;

/// One event of a session, in the order of the toolshed's messages.
#[derive(Debug, Clone)]
pub enum Event {
    /// Documents: the `sync` of a push or of the answer to a watch mutation.
    Sync(Value),
    /// Any other push, such as presence.
    Other(Value),
    /// Changes may be missing from here to [`Event::Rebuilt`]: the session lost its connection, or the application read too
    /// slowly.
    Interrupted,
    /// The syncs before this one have brought the application up to date again.
    Rebuilt {
        /// The toolshed still knew the session; otherwise, as is usual through a router, it began a new life with the same
        /// identity.
        resumed: bool,
        /// Everything watched was sent, not the difference: a document that no sync since `Interrupted` named is gone.
        whole: bool,
    },
    /// The verdict on a commit that no caller waits for any more.
    Answered {
        /// Which.
        local_seq: u64,
        /// As [`crate::DurableSession::commit`] would have returned it.
        outcome: Result<Value, ClientError>,
    },
    /// The toolshed refused to watch on for good after a reconnect; nothing is watched any more.
    WatchesLost(Denied),
    /// The session is over. Nothing follows.
    Ended(Ended),
}

/// The queue of one session.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    events: VecDeque<Queued>,
    len: usize,
    /// Whether the newest marker is [`Event::Interrupted`].
    interrupted: bool,
}

#[derive(Debug)]
struct Queued {
    event: Event,
    len: usize,
    /// What the event takes from another bound until it is read.
    _room: Vec<OwnedSemaphorePermit>,
}

impl EventQueue {
    /// Whether there is room for an event of `len` bytes.
    pub(crate) fn fits(&self, len: usize) -> bool {
        let fits = self.events.len() < MAX_EVENTS && self.len + len <= MAX_EVENTS_LEN;
        fits || self.events.is_empty()
    }

    /// Takes an event that [`Self::fits`], or one that comes seldom.
    pub(crate) fn push(&mut self, event: Event, len: usize) {
        self.push_with(event, len, Vec::new());
    }

    /// Takes an event that is bounded by `room`.
    pub(crate) fn push_with(&mut self, event: Event, len: usize, room: Vec<OwnedSemaphorePermit>) {
        self.len += len;
        self.events.push_back(Queued {
            event,
            len,
            _room: room,
        });
    }

    /// Marks an interruption. One that follows the end of another at once continues it, so that markers nobody reads do not
    /// add up.
    pub(crate) fn interrupt(&mut self) {
        let last = self.events.back().map(|queued| &queued.event);
        if matches!(last, Some(Event::Rebuilt { .. })) {
            self.events.pop_back();
        } else if !self.interrupted {
            self.push(Event::Interrupted, 0);
        }
        self.interrupted = true;
    }

    /// Marks the end of an interruption.
    pub(crate) fn rebuilt(&mut self, resumed: bool, whole: bool) {
        if std::mem::take(&mut self.interrupted) {
            self.push(Event::Rebuilt { resumed, whole }, 0);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        let queued = self.events.pop_front()?;
        self.len -= queued.len;
        Some(queued.event)
    }

    /// Syncs nobody has read yet, in order.
    pub(crate) fn unread(&self) -> impl Iterator<Item = &Value> {
        self.events.iter().filter_map(|queued| match &queued.event {
            Event::Sync(sync) => Some(sync),
            _ => None,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether more may be asked for.
    pub(crate) fn is_roomy(&self) -> bool {
        self.events.len() < MAX_EVENTS / 2 && self.len < MAX_EVENTS_LEN / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_count_are_bounded_and_the_first_always_fits() {
        let mut queue = EventQueue::default();
        assert!(queue.fits(MAX_EVENTS_LEN * 2));
        queue.push(Event::Sync(Value::Null), MAX_EVENTS_LEN * 2);
        assert!(!queue.fits(1));
        assert!(!queue.is_roomy());
        queue.interrupt();
        assert!(matches!(queue.pop(), Some(Event::Sync(_))));
        assert!(matches!(queue.pop(), Some(Event::Interrupted)));
        for _ in 0..MAX_EVENTS {
            assert!(queue.fits(1));
            queue.push(Event::Sync(Value::Null), 1);
        }
        assert!(!queue.fits(1));
        while queue.pop().is_some() {}
        assert!(queue.is_empty() && queue.is_roomy());
    }

    #[test]
    fn interruptions_nobody_reads_do_not_add_up() {
        let mut queue = EventQueue::default();
        queue.rebuilt(true, false);
        assert!(queue.is_empty(), "nothing was interrupted");
        for _ in 0..100 {
            queue.interrupt();
            queue.interrupt();
            queue.rebuilt(true, false);
        }
        assert!(matches!(queue.pop(), Some(Event::Interrupted)));
        assert!(matches!(queue.pop(), Some(Event::Rebuilt { .. })));
        assert!(queue.is_empty());
        queue.interrupt();
        assert!(matches!(queue.pop(), Some(Event::Interrupted)));
    }
}
