//! What one worker says of its connection, taken as a claim of a process that is not trusted.
//!
//! A worker that was taken over can lie about its own connection, and so add to totals and peaks what never was. It cannot take
//! anything off them, hold more than [`MAX_CLAIM`] of each budget, hold anything when it has ended, or keep this process busy.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use memory_budget::Permit;
use memory_budget::latency::Totals;
use memory_ipc::packets::{Latency, REPORTED_BUDGETS, REPORTED_LATENCIES, Report};
use memory_wire::Reason;

use super::tally::Tally;
use crate::admission::TokenBucket;

/// Reports a second that are taken. A worker makes one at most.
const MAX_REPORTS_PER_SECOND: u64 = 4;

/// Reports that are taken at once: as many as wait in a channel when this process was stopped for a while.
const MAX_REPORT_BURST: u64 = 128;

/// The most that one connection counts for in a sum: past every limit that can be configured, and far from where 30,000 of
/// them would overflow.
const MAX_CLAIM: u64 = 1 << 40;

/// The account of one connection.
#[derive(Debug)]
pub(super) struct Account {
    tally: Rc<Tally>,
    /// The highest totals that were stated.
    stated: Stated,
    /// What it counts for in each budget.
    held: [Option<Permit>; REPORTED_BUDGETS.len()],
    pace: TokenBucket,
}

#[derive(Debug, Default)]
struct Stated {
    /// Bytes in, bytes out, messages in, messages out.
    carried: [u64; 4],
    /// How often there was no room, by budget.
    refused: [u64; REPORTED_BUDGETS.len()],
    latencies: [Totals; REPORTED_LATENCIES.len()],
    refusals: BTreeMap<Reason, u64>,
}

/// Why a report ends its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Breach {
    #[error("more reports than a worker makes")]
    TooMany,
    #[error("a report with an unknown reason")]
    Reason,
}

impl Account {
    pub(super) fn new(tally: &Rc<Tally>, now: Instant) -> Self {
        Self {
            tally: Rc::clone(tally),
            stated: Stated::default(),
            held: Default::default(),
            pace: TokenBucket::with_burst(MAX_REPORTS_PER_SECOND, MAX_REPORT_BURST, now),
        }
    }

    /// Bytes from the client and to it, as the reports say.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let [bytes_in, bytes_out, ..] = self.stated.carried;
        (bytes_in, bytes_out)
    }

    /// Takes a report: whatever it states more than any before is added to the sums.
    ///
    /// # Errors
    /// What a worker does not do. Nothing is taken then.
    pub(super) fn take(&mut self, report: &Report, now: Instant) -> Result<(), Breach> {
        if !self.pace.take(now) {
            return Err(Breach::TooMany);
        }
        let known = |(code, count): &(u8, u64)| Some((Reason::from_code(*code)?, *count));
        let refusals: Option<Vec<_>> = report.refusals.iter().map(known).collect();
        let refusals = refusals.ok_or(Breach::Reason)?;

        let (stated, sums) = (&mut self.stated, &self.tally.reported);
        let carried = [
            report.bytes_in,
            report.bytes_out,
            report.messages_in,
            report.messages_out,
        ];
        for ((now, before), sum) in carried.iter().zip(&mut stated.carried).zip(&sums.carried) {
            sum.add(more(*now, before));
        }
        for ((now, before), sum) in report
            .latencies
            .iter()
            .zip(&mut stated.latencies)
            .zip(&sums.latencies)
        {
            sum.add(&more_observed(now, before));
        }
        for (reason, now) in refusals {
            let before = stated.refusals.entry(reason).or_default();
            sums.refusals.add(reason, more(now, before));
        }
        for (((now, before), held), sum) in report
            .budgets
            .iter()
            .zip(&mut stated.refused)
            .zip(&mut self.held)
            .zip(&sums.budgets)
        {
            sum.refused.add(more(now.refused, before));
            sum.peak.set(sum.peak.get().max(now.peak.min(MAX_CLAIM)));
            // First given back, so that the sum does not have both for a moment.
            *held = None;
            *held = Some(sum.held.adopt(now.current.min(MAX_CLAIM)));
        }
        Ok(())
    }
}

/// What `now` is more than the most `before`, which it becomes.
fn more(now: u64, before: &mut u64) -> u64 {
    let more = now.saturating_sub(*before);
    *before = now.max(*before);
    more
}

fn more_observed(now: &Latency, before: &mut Totals) -> Totals {
    let mut added = Totals::default();
    for ((now, before), added) in now
        .counts
        .iter()
        .zip(&mut before.counts)
        .zip(&mut added.counts)
    {
        *added = more(*now, before);
    }
    added.sum_micros = more(now.sum_micros, &mut before.sum_micros);
    added
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use memory_ipc::packets::BudgetUse;

    use super::*;

    fn report(number: u64) -> Report {
        let mut report = Report {
            bytes_in: number,
            bytes_out: 2 * number,
            messages_in: 3 * number,
            messages_out: 4 * number,
            refusals: vec![(Reason::Internal.code(), number)],
            ..Report::default()
        };
        report.budgets[0] = BudgetUse {
            current: number,
            peak: number,
            refused: number,
        };
        report.latencies[3].counts[2] = number;
        report.latencies[3].sum_micros = number;
        report
    }

    /// Carried bytes, refusals, observations, and of the first budget what is held, the peak and the refused.
    fn sums(tally: &Tally) -> [u64; 6] {
        let sums = &tally.reported;
        let budget = &sums.budgets[0];
        [
            sums.carried[0].get(),
            sums.refusals.all().values().sum(),
            sums.latencies[3].totals().count(),
            budget.held.current(),
            budget.peak.get(),
            budget.refused.get(),
        ]
    }

    #[test]
    fn totals_of_several_connections_add_up() {
        let (tally, now) = (Rc::new(Tally::default()), Instant::now());
        let mut one = Account::new(&tally, now);
        let mut other = Account::new(&tally, now);
        one.take(&report(5), now).unwrap();
        other.take(&report(7), now).unwrap();
        one.take(&report(6), now).unwrap();
        assert_eq!(sums(&tally), [13, 13, 13, 13, 7, 13]);
        assert_eq!(one.bytes(), (6, 12));
        drop(one);
        assert_eq!(sums(&tally), [13, 13, 13, 7, 7, 13]);
        drop(other);
        assert_eq!(sums(&tally), [13, 13, 13, 0, 7, 13]);
    }

    #[test]
    fn a_total_that_goes_down_counts_as_nothing_and_is_not_counted_twice() {
        let (tally, now) = (Rc::new(Tally::default()), Instant::now());
        let mut account = Account::new(&tally, now);
        for number in [9, 0, 9, 3, 10] {
            account.take(&report(number), now).unwrap();
        }
        assert_eq!(sums(&tally), [10, 10, 10, 10, 10, 10]);
    }

    #[test]
    fn no_claim_takes_anything_off_the_others() {
        let (tally, now) = (Rc::new(Tally::default()), Instant::now());
        let mut honest = Account::new(&tally, now);
        honest.take(&report(1), now).unwrap();
        let liars: Vec<Account> = (0..30)
            .map(|_| {
                let mut liar = Account::new(&tally, now);
                liar.take(&report((1 << 53) - 1), now).unwrap();
                liar
            })
            .collect();
        assert_eq!(sums(&tally)[3], 30 * MAX_CLAIM + 1);
        drop(liars);
        assert_eq!(sums(&tally)[3], 1);
    }

    #[test]
    fn more_reports_than_a_worker_makes_end_it() {
        let (tally, start) = (Rc::new(Tally::default()), Instant::now());
        let mut account = Account::new(&tally, start);
        // One a second for a day.
        for second in 0..86_400 {
            let now = start + Duration::from_secs(second);
            assert_eq!(account.take(&report(second), now), Ok(()));
        }
        let now = start + Duration::from_secs(86_400);
        let taken = (0..1000).take_while(|_| account.take(&report(1), now).is_ok());
        assert_eq!(taken.count(), 128);
        assert_eq!(account.take(&report(2), now), Err(Breach::TooMany));
    }

    #[test]
    fn an_unknown_reason_is_a_breach_and_changes_nothing() {
        let (tally, now) = (Rc::new(Tally::default()), Instant::now());
        let mut account = Account::new(&tally, now);
        let unknown = (0..=u8::MAX)
            .find(|code| Reason::from_code(*code).is_none())
            .unwrap();
        let mut wrong = report(4);
        wrong.refusals.push((unknown, 1));
        assert_eq!(account.take(&wrong, now), Err(Breach::Reason));
        assert_eq!(sums(&tally), [0; 6]);
    }
}
