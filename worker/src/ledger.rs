//! What one connection may use. Everything used holds a permit of its own, and the connection is over when none is left.
//!
//! Places for unanswered requests are spent by three classes, so that a client that is busy with bulk data still keeps its
//! leases, closes its sessions and follows them:
//!
//! ```text
//!   max_requests_per_connection
//!   ├──────────── data-requests ───────────┼─ margin ─┼─ margin ─┤
//!   ├──────────── live-requests ──────────────────────┤          │   opens and watches: ahead of all data
//!   ├──────────── requests ──────────────────────────────────────┤   closes: ahead of both
//! ```
//!
//! The router's own requests (authentication, renewal, release) take no place: there is one at a time, and the signature that
//! others wait for may be it. The same order holds where else requests wait: for a toolshed's request credit
//! ([`CREDIT_MARGIN`]) and for the turn to be sent, to a toolshed and to the client (`turns`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memory_budget::{Budget, Limit, Permit};
use memory_config::WorkerSettings;
use memory_ipc::packets::{BudgetUse, REPORTED_BUDGETS};
use memory_wire::codec::MAX_SAFE_INTEGER;
use memory_wire::credit::REQUEST_WINDOW;
use memory_wire::did::Did;
use memory_wire::reason::Reason;
use tokio::time::Instant;

/// Places that the smaller classes leave to the larger ones, at most: as many as a client can have in flight while it
/// renews a few leases. A limit below eight is too small to be shared.
const MAX_MARGIN: u64 = 16;

/// Bytes of request credit that data leaves to controls. One larger than this counts as data.
pub(crate) const CREDIT_MARGIN: u32 = 64 * 1024;

/// Bytes of opens that may be worked on, or held for a signature, at once. One of the largest fits twice; an ordinary one has
/// a few hundred bytes.
const MAX_OPEN_LEN: u64 = 2 * REQUEST_WINDOW as u64;

/// Bytes of queued answers at which the client's input pauses. A single answer is at most a few hundred bytes.
const MAX_ANSWER_LEN: u64 = 64 * 1024;

/// What a request of a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Ends a session, and frees what it holds.
    Control,
    /// Opens a session, or says what it follows.
    Live,
    /// Everything else.
    Data,
}

/// What the budgets of a connection with these settings are bounded by, in the order of [`REPORTED_BUDGETS`].
#[must_use]
pub fn connection_limits(settings: &WorkerSettings) -> [Option<u64>; REPORTED_BUDGETS.len()] {
    Ledger::new(settings)
        .all()
        .map(|budget| budget.snapshot().limit.get())
}

/// The budgets of one connection.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Open sessions, and those being opened.
    pub(crate) sessions: Budget,
    /// Spaces that were opened, or are being opened.
    pub(crate) spaces: Budget,
    /// Who signed, as the link agent judged it.
    pub(crate) principals: Principals,
    requests: Budget,
    live_requests: Budget,
    data_requests: Budget,
    /// Watches and views, those of unanswered mutations included.
    pub(crate) watches: Budget,
    /// Holdings, likewise.
    pub(crate) holdings: Budget,
    /// Messages that the rate has not made up for yet.
    pub(crate) messages: Budget,
    /// Bytes of opens that are being worked on.
    pub(crate) open_bytes: Budget,
    /// Bytes of answers that wait for the client to read. What has to be said is counted past the limit; the input pauses.
    pub(crate) answer_bytes: Budget,
}

impl Ledger {
    pub(crate) fn new(settings: &WorkerSettings) -> Self {
        let places = settings.max_requests_per_connection;
        let margin = (places / 8).min(MAX_MARGIN);
        let at = |places: u64| Limit::At(places);
        let requests = Budget::new("requests", at(places));
        let live_requests = Budget::nested(
            "live-requests",
            at(places.saturating_sub(margin)),
            &[&requests],
        );
        let data_requests = Budget::nested(
            "data-requests",
            at(places.saturating_sub(2 * margin)),
            &[&live_requests],
        );
        // Without a rate nothing is ever owed.
        let burst = settings
            .max_messages_per_second
            .map(|rate| settings.message_burst.unwrap_or(rate).max(1));
        let new = |name, limit: Option<u64>| Budget::new(name, limit.into());
        Self {
            sessions: new("sessions", settings.max_sessions_per_connection),
            spaces: new("spaces", settings.max_spaces_per_connection),
            principals: Principals {
                active: Budget::new("principals", at(settings.max_principals_per_connection)),
                history: Budget::new("principal-history", at(settings.max_principal_history)),
                entries: RefCell::default(),
            },
            requests,
            live_requests,
            data_requests,
            watches: new("watches", settings.max_watches_per_connection),
            holdings: new("holdings", settings.max_holdings_per_connection),
            messages: new("messages", burst),
            open_bytes: Budget::new("open-bytes", at(MAX_OPEN_LEN)),
            answer_bytes: Budget::new("answer-bytes", at(MAX_ANSWER_LEN)),
        }
    }

    /// Places of unanswered requests as this class may use them.
    pub(crate) fn places(&self, class: Class) -> &Budget {
        match class {
            Class::Control => &self.requests,
            Class::Live => &self.live_requests,
            Class::Data => &self.data_requests,
        }
    }

    /// Unanswered requests that a client can count on, whatever they are.
    pub(crate) fn advertised_requests(&self) -> Option<u64> {
        self.data_requests.snapshot().limit.get()
    }

    /// Every budget in the order of [`REPORTED_BUDGETS`].
    fn all(&self) -> [&Budget; REPORTED_BUDGETS.len()] {
        [
            &self.sessions,
            &self.spaces,
            &self.principals.active,
            &self.principals.history,
            &self.requests,
            &self.watches,
            &self.holdings,
            &self.live_requests,
            &self.data_requests,
            &self.messages,
            &self.open_bytes,
            &self.answer_bytes,
        ]
    }

    /// What the report says of the budgets.
    pub(crate) fn uses(&self) -> [BudgetUse; REPORTED_BUDGETS.len()] {
        self.principals.expire(Now::read());
        self.all().map(|budget| {
            let snapshot = budget.snapshot();
            BudgetUse {
                current: snapshot.current.min(MAX_SAFE_INTEGER),
                peak: snapshot.peak.min(MAX_SAFE_INTEGER),
                refused: snapshot.refused.min(MAX_SAFE_INTEGER),
            }
        })
    }
}

/// Who signed on this connection. The link agent decides; this counts along, so that it can be seen.
#[derive(Debug)]
pub(crate) struct Principals {
    active: Budget,
    history: Budget,
    entries: RefCell<HashMap<Did, Lease>>,
}

#[derive(Debug)]
struct Lease {
    /// While it may open.
    active: Option<Permit>,
    _remembered: Permit,
    /// End of the lease, Unix seconds.
    expires: u64,
    /// The same by the monotonic clock.
    ends: Instant,
}

/// Both clocks, as the link agent judges leases.
#[derive(Debug, Clone, Copy)]
struct Now {
    unix: u64,
    monotonic: Instant,
}

impl Now {
    fn read() -> Self {
        Self {
            unix: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs(),
            monotonic: Instant::now(),
        }
    }
}

impl Lease {
    fn is_over(&self, now: Now) -> bool {
        now.unix >= self.expires || now.monotonic >= self.ends
    }
}

impl Principals {
    /// The link agent accepted a statement.
    pub(crate) fn signed(&self, principal: Did, expires: u64) {
        let now = Now::read();
        self.expire(now);
        let mut entries = self.entries.borrow_mut();
        // The same statement again; its time is the same too.
        if let Some(lease) = entries.get_mut(&principal)
            && lease.active.is_some()
        {
            lease.expires = expires;
            lease.ends = ends(now, expires);
            return;
        }
        entries.remove(&principal);
        if !self.history.has_room(1) {
            // As there, somebody whose lease is over makes room.
            let over = entries.iter().filter(|(_, lease)| lease.is_over(now));
            let oldest = over
                .min_by_key(|(_, lease)| lease.ends)
                .map(|(did, _)| *did);
            if let Some(oldest) = oldest {
                entries.remove(&oldest);
            }
        }
        // Counted past the limit if need be: the link agent has the last word.
        let lease = Lease {
            active: Some(self.active.adopt(1)),
            _remembered: self.history.adopt(1),
            expires,
            ends: ends(now, expires),
        };
        entries.insert(principal, lease);
    }

    /// The link agent took a principal's authority away.
    pub(crate) fn released(&self, principal: &Did) {
        if let Some(lease) = self.entries.borrow_mut().get_mut(principal) {
            lease.active = None;
        }
    }

    /// The link agent refused a statement.
    pub(crate) fn refused(&self, reason: Reason) {
        let full = match reason {
            Reason::PrincipalLimit => &self.active,
            Reason::PrincipalHistoryLimit => &self.history,
            _ => return,
        };
        // Counts there, since here is no room either.
        drop(full.reserve(1));
    }

    /// Leases that are over do not count as active any more.
    fn expire(&self, now: Now) {
        for lease in self.entries.borrow_mut().values_mut() {
            if lease.is_over(now) {
                lease.active = None;
            }
        }
    }

    /// Forgets everybody: the context is over.
    pub(crate) fn clear(&self) {
        self.entries.take();
    }
}

/// The end of a lease by the monotonic clock.
fn ends(now: Now, expires: u64) -> Instant {
    let left = Duration::from_secs(expires.saturating_sub(now.unix));
    now.monotonic.checked_add(left).unwrap_or(now.monotonic)
}
