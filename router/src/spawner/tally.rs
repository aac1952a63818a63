//! What the spawner counts: workers and how they ended, and the sum of what they say of their connections.

use std::cell::Cell;

use memory_admin::{Count, CountBy};
use memory_budget::latency::Histogram;
use memory_budget::{Budget, Limit};
use memory_ipc::WorkerOutcome;
use memory_ipc::packets::{REPORTED_BUDGETS, REPORTED_LATENCIES};
use memory_wire::Reason;

use super::verdict::Verdict;

/// Totals since this process started. Nothing here is ever subtracted, the budgets excepted.
#[derive(Debug)]
pub(super) struct Tally {
    /// Workers that serve a connection.
    pub(super) serving: Budget,
    /// Those whose connection is over and that have yet to be reaped.
    pub(super) ending: Budget,
    pub(super) started: Count,
    pub(super) start_failures: Count,
    /// Workers that said what they may not say.
    pub(super) breaches: Count,
    /// Connections that got no worker.
    pub(super) refused: CountBy<Reason>,
    pub(super) ended: CountBy<Reason>,
    outcomes: [Count; WorkerOutcome::ALL.len()],
    pub(super) reported: Reported,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            serving: Budget::new("workers_serving", Limit::Unlimited),
            ending: Budget::new("workers_ending", Limit::Unlimited),
            started: Count::default(),
            start_failures: Count::default(),
            breaches: Count::default(),
            refused: CountBy::default(),
            ended: CountBy::default(),
            outcomes: <[Count; WorkerOutcome::ALL.len()]>::default(),
            reported: Reported::default(),
        }
    }
}

impl Tally {
    /// Counts the end of a connection.
    pub(super) fn end(&self, verdict: Verdict) {
        let place = WorkerOutcome::ALL
            .iter()
            .position(|outcome| *outcome == verdict.outcome);
        if let Some(count) = place.and_then(|place| self.outcomes.get(place)) {
            count.add(1);
        }
        if let Some(reason) = verdict.reason {
            self.ended.add(reason, 1);
        }
    }

    /// Ends by outcome, every outcome once.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (WorkerOutcome, u64)> {
        WorkerOutcome::ALL
            .into_iter()
            .zip(self.outcomes.iter().map(Count::get))
    }
}

/// Sums over all connections of what their workers said.
#[derive(Debug)]
pub(super) struct Reported {
    /// Bytes in, bytes out, messages in, messages out.
    pub(super) carried: [Count; 4],
    /// In the order of [`REPORTED_BUDGETS`].
    pub(super) budgets: [ReportedBudget; REPORTED_BUDGETS.len()],
    /// In the order of [`REPORTED_LATENCIES`].
    pub(super) latencies: [Histogram; REPORTED_LATENCIES.len()],
    pub(super) refusals: CountBy<Reason>,
}

impl Default for Reported {
    fn default() -> Self {
        Self {
            carried: <[Count; 4]>::default(),
            budgets: REPORTED_BUDGETS.map(ReportedBudget::new),
            latencies: <[Histogram; REPORTED_LATENCIES.len()]>::default(),
            refusals: CountBy::default(),
        }
    }
}

/// One budget of every connection.
#[derive(Debug)]
pub(super) struct ReportedBudget {
    /// What all connections hold together.
    pub(super) held: Budget,
    /// The most that any one has held.
    pub(super) peak: Cell<u64>,
    /// How often there was no room, all together.
    pub(super) refused: Count,
}

impl ReportedBudget {
    fn new(name: &'static str) -> Self {
        Self {
            held: Budget::new(name, Limit::Unlimited),
            peak: Cell::new(0),
            refused: Count::default(),
        }
    }
}
