//! What a session holds of the connection's quotas, and what a watch mutation makes of it.

use std::collections::HashSet;

use memory_budget::{Budget, Permit};
use memory_wire::reason::Reason;

use crate::ledger::Ledger;

/// Holdings one frame may declare; more is malformed (`docs/protocol.md` 4.5).
pub(crate) const MAX_HOLDINGS_PER_FRAME: u64 = 8192;
/// Views one session may hold.
pub(crate) const MAX_VIEWS_PER_SESSION: u64 = 64;

/// A watch mutation as the router understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchChange {
    /// `session.watch.set` replaces, `session.watch.add` adds.
    pub(crate) replace: bool,
    pub(crate) ids: Vec<String>,
    /// `None` leaves the session's views as they are.
    pub(crate) views: Option<u64>,
    /// `None` leaves the session's holdings as they are.
    pub(crate) holdings: Option<u64>,
}

/// How a space counts: for good once it was opened, for as long as somebody tries before that.
#[derive(Debug)]
pub(super) struct SpaceUse {
    pub(super) opened: bool,
    pub(super) opening: u32,
    _place: Permit,
}

impl SpaceUse {
    /// One that is being opened.
    pub(super) fn new(place: Permit) -> Self {
        Self {
            opened: false,
            opening: 1,
            _place: place,
        }
    }
}

/// What a session holds, or a watch mutation reserves for it.
#[derive(Debug)]
pub(super) struct Usage {
    /// Watches and views.
    pub(super) watches: Permit,
    pub(super) holdings: Permit,
}

/// The same as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Need {
    watches: u64,
    holdings: u64,
}

impl Usage {
    /// Takes in what was reserved, and gives back what is more than needed.
    fn settle(&mut self, reserved: Self, need: Need) {
        for (held, more, need) in [
            (&mut self.watches, reserved.watches, need.watches),
            (&mut self.holdings, reserved.holdings, need.holdings),
        ] {
            // Of one budget both: there is nothing left over.
            let _ = held.merge(more);
            held.shrink(held.amount().saturating_sub(need));
        }
    }
}

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) upstream: u16,
    watches: HashSet<Box<str>>,
    views: u64,
    usage: Usage,
    /// Unanswered watch mutations; later requests of the session wait behind them.
    pub(super) mutations: u32,
    /// Tells this session from an earlier one of the same name, whose answers may still come.
    pub(super) generation: u64,
    _slot: Permit,
}

impl Session {
    /// One that follows nothing yet.
    pub(super) fn new(upstream: u16, generation: u64, slot: Permit, ledger: &Ledger) -> Self {
        Self {
            upstream,
            watches: HashSet::new(),
            views: 0,
            usage: Usage {
                watches: ledger.watches.adopt(0),
                holdings: ledger.holdings.adopt(0),
            },
            mutations: 0,
            generation,
            _slot: slot,
        }
    }

    /// Reserves what the session does not hold yet of what a mutation makes it need. `cap` bounds its watches without views.
    pub(super) fn reserve(
        &self,
        change: &WatchChange,
        cap: Option<u64>,
        ledger: &Ledger,
    ) -> Result<Usage, Reason> {
        let need = self.need_after(change);
        let views = change.views.unwrap_or(self.views);
        let is_over = cap.is_some_and(|cap| need.watches - views > cap);
        if is_over || views > MAX_VIEWS_PER_SESSION {
            return Err(Reason::FrameLimit);
        }
        let watches = need.watches.saturating_sub(self.usage.watches.amount());
        let holdings = need.holdings.saturating_sub(self.usage.holdings.amount());
        Ok(Usage {
            watches: reserve(&ledger.watches, watches, Reason::WatchLimit)?,
            holdings: reserve(&ledger.holdings, holdings, Reason::HoldingsLimit)?,
        })
    }

    /// What it holds.
    #[cfg(test)]
    pub(super) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Applies a mutation that the toolshed has accepted, with what was reserved for it.
    pub(super) fn apply(&mut self, change: WatchChange, reserved: Usage) {
        let need = self.need_after(&change);
        self.usage.settle(reserved, need);
        if change.replace {
            self.watches.clear();
        }
        self.watches
            .extend(change.ids.into_iter().map(String::into_boxed_str));
        self.views = change.views.unwrap_or(self.views);
    }

    /// What it will hold after a watch mutation.
    fn need_after(&self, change: &WatchChange) -> Need {
        let added: HashSet<&str> = change
            .ids
            .iter()
            .map(String::as_str)
            .filter(|id| change.replace || !self.watches.contains(*id))
            .collect();
        let kept = if change.replace {
            0
        } else {
            self.watches.len()
        };
        Need {
            watches: (kept + added.len()) as u64 + change.views.unwrap_or(self.views),
            holdings: change.holdings.unwrap_or(self.usage.holdings.amount()),
        }
    }
}

/// Reserves `amount`, or gives the reason why not.
pub(super) fn reserve(budget: &Budget, amount: u64, full: Reason) -> Result<Permit, Reason> {
    budget.reserve(amount).map_err(|_| full)
}
