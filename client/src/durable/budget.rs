//! The budget ledger of one connection, by what the router advertised: what is live, a margin for control, the rest for
//! requests that come and go (`docs/operations.md`).

use crate::{Hello, Limits};

/// Requests in flight where the router does not tell.
const DEFAULT_REQUESTS: u64 = 128;
/// Requests in flight at most, whatever the router allows.
const MAX_REQUESTS: u64 = 4096;
/// Requests kept for signing in, renewal and close.
const CONTROL_MARGIN: u64 = 16;
/// Watches of a session where the router does not tell.
const DEFAULT_WATCHES: u64 = 2048;
/// Watches of a session at most, whatever the router allows: each is kept here.
const MAX_WATCHES: u64 = 65_536;
/// Bytes of watches that one frame aims at.
pub(crate) const FRAME_TARGET_LEN: usize = 32 << 10;
/// Bytes of a frame where the router does not tell.
const DEFAULT_FRAME_LEN: usize = 96 << 10;
/// Bytes of a frame at most, whatever the router allows: holdings fill what the watches leave.
const MAX_FRAME_LEN: usize = 1 << 20;
/// Bytes of a frame beside its watches and holdings.
const FRAME_ENVELOPE_LEN: usize = 1 << 10;
/// JSON values of a frame beside its watches and holdings.
const FRAME_ENVELOPE_SLOTS: u64 = 16;

/// What one watch frame may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameBudget {
    /// Bytes of watches that a frame aims at; a single watch may be longer.
    pub(crate) target_len: usize,
    /// Bytes of watches and holdings.
    pub(crate) max_len: usize,
    /// JSON values of watches and holdings.
    pub(crate) max_slots: Option<u64>,
    /// Holdings, 0 where the toolsheds take none.
    pub(crate) max_holdings: usize,
}

/// What one connection may hold, and what it holds.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// `None`: not limited, or not told.
    max_sessions: Option<u64>,
    sessions: u64,
    peak: u64,
    requests: u64,
    watches: usize,
    frame: FrameBudget,
}

impl Ledger {
    /// A ledger of what the router offers in `hello`.
    pub(crate) fn of(hello: &Hello) -> Self {
        let mut ledger = Self::new(&hello.limits, hello.frame_slots);
        if !hello.flags.is_true("sessionHoldings") {
            ledger.frame.max_holdings = 0;
        }
        ledger
    }

    fn new(limits: &Limits, frame_slots: Option<u64>) -> Self {
        let requests = limits
            .requests
            .unwrap_or(DEFAULT_REQUESTS)
            .min(MAX_REQUESTS);
        // Of a small allowance a quarter, so that both have something.
        let margin = CONTROL_MARGIN.min(requests / 4);
        let watches = limits
            .watches_per_session
            .unwrap_or(DEFAULT_WATCHES)
            .min(MAX_WATCHES);
        let holdings = limits
            .holdings_per_session
            .unwrap_or(super::holdings::MAX_HOLDINGS as u64)
            .min(super::holdings::MAX_HOLDINGS as u64);
        let len = limits.request_bytes.map_or(DEFAULT_FRAME_LEN, |bytes| {
            // A request is streamed through a window of that size: a quarter leaves room for others.
            usize::try_from(bytes / 4).map_or(MAX_FRAME_LEN, |bytes| bytes.min(MAX_FRAME_LEN))
        });
        Self {
            max_sessions: limits.sessions,
            sessions: 0,
            peak: 0,
            requests: (requests - margin).max(1),
            watches: usize::try_from(watches).unwrap_or(usize::MAX),
            frame: FrameBudget {
                target_len: FRAME_TARGET_LEN.min(len),
                max_len: len.saturating_sub(FRAME_ENVELOPE_LEN),
                max_slots: frame_slots.map(|slots| slots.saturating_sub(FRAME_ENVELOPE_SLOTS)),
                max_holdings: usize::try_from(holdings).unwrap_or(usize::MAX),
            },
        }
    }

    /// Requests in flight that are not control.
    pub(crate) fn requests(&self) -> usize {
        usize::try_from(self.requests).unwrap_or(usize::MAX)
    }

    /// Watches of one session.
    pub(crate) fn watches(&self) -> usize {
        self.watches
    }

    pub(crate) fn frame(&self) -> FrameBudget {
        self.frame
    }

    /// Takes a session's place, if there is one.
    pub(crate) fn admit_session(&mut self) -> bool {
        if self.max_sessions.is_some_and(|max| self.sessions >= max) {
            return false;
        }
        self.sessions += 1;
        self.peak = self.peak.max(self.sessions);
        true
    }

    /// Gives a session's place back.
    pub(crate) fn release_session(&mut self) {
        self.sessions = self.sessions.saturating_sub(1);
    }

    /// Sessions now, at most so far, and allowed.
    pub(crate) fn sessions(&self) -> (u64, u64, Option<u64>) {
        (self.sessions, self.peak, self.max_sessions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_of_n_admits_n() {
        let limits = Limits {
            sessions: Some(2),
            ..Limits::default()
        };
        let mut ledger = Ledger::new(&limits, None);
        assert!(ledger.admit_session());
        assert!(ledger.admit_session());
        assert!(!ledger.admit_session());
        ledger.release_session();
        assert!(ledger.admit_session());
        assert_eq!(ledger.sessions(), (2, 2, Some(2)));
    }

    #[test]
    fn control_keeps_its_margin() {
        let requests = |requests| {
            let limits = Limits {
                requests,
                ..Limits::default()
            };
            Ledger::new(&limits, None).requests()
        };
        assert_eq!(requests(Some(1024)), 1008);
        assert_eq!(requests(Some(8)), 6);
        assert_eq!(requests(Some(1)), 1);
        assert_eq!(requests(None), 112);
    }

    #[test]
    fn frames_are_small_unless_the_router_says_what_it_takes() {
        let frame = Ledger::new(&Limits::default(), Some(1000)).frame();
        assert!(frame.max_len <= 96 << 10);
        assert_eq!(frame.max_slots, Some(984));
        let limits = Limits {
            request_bytes: Some(4 << 20),
            holdings_per_session: Some(100),
            ..Limits::default()
        };
        let frame = Ledger::new(&limits, None).frame();
        assert!(frame.max_len > 1000 << 10 && frame.max_len < 1 << 20);
        assert_eq!((frame.max_slots, frame.max_holdings), (None, 100));
    }
}
