//! How long the input may wait, and how fast it may go.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use memory_budget::{Budget, Permit};
use memory_wire::reason::Reason;
use tokio::time::{Instant, timeout_at};

use crate::connection::Shared;
use crate::end::End;
use crate::output::Output;
use crate::times::Times;

/// How soon a bound is looked at again that moves while it is waited for.
const RECHECK: Duration = Duration::from_millis(50);

/// Waits for `event`, for at most `admission`. Time in which the client does not take what is sent to it does not count: an
/// answer of megabytes on a slow link holds up the others, and is nobody's fault.
pub(crate) async fn patiently<T>(
    shared: &Shared,
    what: &'static str,
    event: impl Future<Output = T>,
) -> Result<T, End> {
    let mut event = pin!(event);
    let by = Instant::now() + shared.settings.admission();
    let blocked = shared.output.blocked();
    let excused = || shared.output.blocked().saturating_sub(blocked);
    let mut until = by;
    loop {
        match timeout_at(until, event.as_mut()).await {
            Ok(value) => return Ok(value),
            Err(_) if by + excused() > until => until = moved(by + excused()),
            Err(_) => return Err(End::new(Reason::AdmissionTimeout, what)),
        }
    }
}

/// A bound that has moved to `at`.
fn moved(at: Instant) -> Instant {
    at.max(Instant::now() + RECHECK)
}

/// When an upload has to be complete. Time in which the router was not reading, or owed credit that it could not send, does
/// not count.
#[derive(Debug)]
pub(crate) struct UploadClock {
    by: Instant,
    withheld: Duration,
}

impl UploadClock {
    pub(crate) fn start(output: &Output, allowance: Duration) -> Self {
        Self {
            by: Instant::now() + allowance,
            withheld: output.withheld(),
        }
    }

    /// The router did not read for `time`.
    pub(crate) fn excuse(&mut self, time: Duration) {
        self.by += time;
    }

    /// Waits for `event` within the bound.
    pub(crate) async fn bound<T>(
        &self,
        output: &Output,
        event: impl Future<Output = T>,
    ) -> Result<T, End> {
        let mut event = pin!(event);
        let excused = || output.withheld().saturating_sub(self.withheld);
        let mut until = self.by + excused();
        loop {
            match timeout_at(until, event.as_mut()).await {
                Ok(value) => return Ok(value),
                Err(_) if self.by + excused() > until => until = moved(self.by + excused()),
                Err(_) => return Err(End::new(Reason::UploadTimeout, "upload")),
            }
        }
    }
}

/// The bucket of `max_messages_per_second`: each logical message is counted in the ledger until the rate has made up for it.
#[derive(Debug)]
pub(crate) struct Pace {
    messages: Budget,
    bucket: Option<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// Nanoseconds that make up for one message.
    cost: u64,
    /// Messages that nothing has made up for yet.
    spent: Permit,
    /// Nanoseconds that count towards the next of them.
    carry: u64,
    at: Instant,
}

impl Pace {
    /// `messages` bounds the burst.
    pub(crate) fn new(rate: Option<u64>, messages: &Budget) -> Self {
        let bucket = rate.map(|rate| Bucket {
            cost: 1_000_000_000 / rate.max(1),
            spent: messages.adopt(0),
            carry: 0,
            at: Instant::now(),
        });
        Self {
            messages: messages.clone(),
            bucket,
        }
    }

    /// A message begins.
    pub(crate) fn take(&mut self) {
        if let Some(bucket) = &mut self.bucket {
            bucket.drain();
            // Whoever did not wait for room is counted as refused, and owes no more than a burst.
            let _ = bucket.spent.grow(1);
        }
    }

    /// How long to wait before the next message is read.
    pub(crate) fn wait(&mut self) -> Option<Duration> {
        let bucket = self.bucket.as_mut()?;
        if self.messages.has_room(1) {
            return None;
        }
        bucket.drain();
        match self.messages.reserve(1) {
            Ok(_) => None,
            Err(_) => Some(Duration::from_nanos(
                bucket.cost.saturating_sub(bucket.carry),
            )),
        }
    }
}

impl Bucket {
    fn drain(&mut self) {
        let now = Instant::now();
        let came = now.duration_since(self.at).as_nanos();
        self.at = now;
        let came = u64::try_from(came).unwrap_or(u64::MAX);
        let time = self.carry.saturating_add(came);
        // At least a nanosecond: a rate is at most a million.
        let cost = self.cost.max(1);
        self.spent.shrink(time / cost);
        self.carry = match self.spent.amount() {
            0 => 0,
            _ => time % cost,
        };
    }
}

#[cfg(test)]
mod tests;
