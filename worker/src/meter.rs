//! What a connection has carried, and how long it took: totals for the report to the spawner.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use memory_budget::latency::{Histogram, LATENCY_COUNTS};
use memory_ipc::packets::{
    Latency, MAX_REPORTED_REFUSALS, REPORTED_BUCKETS, REPORTED_LATENCIES, Report,
};
use memory_wire::codec::MAX_SAFE_INTEGER;
use memory_wire::reason::Reason;
use tokio::time::Instant;

use crate::ledger::Ledger;

const _: () = assert!(LATENCY_COUNTS == REPORTED_BUCKETS);

/// Time between two reports, at least.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// What is measured, in the order of [`REPORTED_LATENCIES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measured {
    /// From accept to the answer that opens the WebSocket.
    Upgrade,
    /// From a whole `connection.auth` to its answer.
    Authentication,
    /// From a whole `session.open` to the first byte of its answer.
    Open,
    /// From a whole message, or the header of one in records, to the first byte of its answer.
    Request,
}

/// Something that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timed {
    pub(crate) measured: Measured,
    pub(crate) since: Instant,
}

impl Timed {
    /// It begins now.
    pub(crate) fn start(measured: Measured) -> Self {
        Self {
            measured,
            since: Instant::now(),
        }
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Bytes read from the client.
    pub(crate) bytes_in: Cell<u64>,
    /// Payload bytes written to the client.
    pub(crate) bytes_out: Cell<u64>,
    /// Messages of the client that began.
    pub(crate) messages_in: Cell<u64>,
    /// Messages to the client that began.
    pub(crate) messages_out: Cell<u64>,
    latencies: [Histogram; REPORTED_LATENCIES.len()],
    /// By code, ascending.
    refusals: RefCell<Vec<(u8, u64)>>,
    /// When the last report was made, and what had been carried then.
    last: Cell<Option<(Instant, u64)>>,
}

/// Counts something.
pub(crate) fn count(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get().saturating_add(more).min(MAX_SAFE_INTEGER));
}

impl Meter {
    /// Something is over.
    pub(crate) fn done(&self, timed: Timed) {
        self.took(timed.measured, timed.since.elapsed());
    }

    /// Something is over that took `time`.
    pub(crate) fn took(&self, measured: Measured, time: Duration) {
        if let Some(histogram) = self.latencies.get(measured as usize) {
            histogram.observe(time);
        }
    }

    /// Something was refused. What does not fit the report any more is not counted.
    pub(crate) fn refused(&self, reason: Reason) {
        let mut refusals = self.refusals.borrow_mut();
        match refusals.binary_search_by_key(&reason.code(), |(code, _)| *code) {
            Ok(at) => {
                if let Some((_, times)) = refusals.get_mut(at) {
                    *times = times.saturating_add(1).min(MAX_SAFE_INTEGER);
                }
            }
            Err(at) if refusals.len() < MAX_REPORTED_REFUSALS => {
                refusals.insert(at, (reason.code(), 1));
            }
            Err(_) => {}
        }
    }

    /// How long until a report is due; zero for now, `None` for never, unless something changes.
    pub(crate) fn due(&self) -> Option<Duration> {
        let Some((at, carried)) = self.last.get() else {
            return Some(Duration::ZERO);
        };
        (carried != self.carried()).then(|| REPORT_INTERVAL.saturating_sub(at.elapsed()))
    }

    /// Changes with everything that the report states: nothing happens on a connection without a byte of the client or to it.
    fn carried(&self) -> u64 {
        self.bytes_in.get().saturating_add(self.bytes_out.get())
    }

    /// What the spawner is told.
    pub(crate) fn report(&self, ledger: &Ledger) -> Box<Report> {
        self.last.set(Some((Instant::now(), self.carried())));
        Box::new(Report {
            bytes_in: self.bytes_in.get(),
            bytes_out: self.bytes_out.get(),
            messages_in: self.messages_in.get(),
            messages_out: self.messages_out.get(),
            budgets: ledger.uses(),
            latencies: self.latencies.each_ref().map(|histogram| {
                let totals = histogram.totals();
                Latency {
                    counts: totals.counts,
                    sum_micros: totals.sum_micros.min(MAX_SAFE_INTEGER),
                }
            }),
            refusals: self.refusals.borrow().clone(),
        })
    }
}
