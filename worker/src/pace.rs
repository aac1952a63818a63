//! How long the input may wait, and how fast it may go.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use memory_config::WorkerSettings;
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

/// The token bucket of `max_messages_per_second`: one token for one logical message.
#[derive(Debug)]
pub(crate) struct Pace {
    bucket: Option<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// Nanoseconds that one token takes to come.
    cost: u64,
    /// Nanoseconds worth of tokens at most.
    most: u64,
    saved: u64,
    at: Instant,
}

impl Pace {
    pub(crate) fn new(settings: &WorkerSettings) -> Self {
        let bucket = settings.max_messages_per_second.map(|rate| {
            let cost = 1_000_000_000 / rate.max(1);
            let burst = settings.message_burst.unwrap_or(rate).max(1);
            let most = cost.saturating_mul(burst);
            Bucket {
                cost,
                most,
                saved: most,
                at: Instant::now(),
            }
        });
        Self { bucket }
    }

    /// A message begins.
    pub(crate) fn take(&mut self) {
        if let Some(bucket) = &mut self.bucket {
            bucket.fill();
            bucket.saved = bucket.saved.saturating_sub(bucket.cost);
        }
    }

    /// How long to wait before the next message is read.
    pub(crate) fn wait(&mut self) -> Option<Duration> {
        let bucket = self.bucket.as_mut()?;
        if bucket.saved >= bucket.cost {
            return None;
        }
        bucket.fill();
        let missing = bucket.cost.saturating_sub(bucket.saved);
        (missing > 0).then(|| Duration::from_nanos(missing))
    }
}

impl Bucket {
    fn fill(&mut self) {
        let now = Instant::now();
        let came = now.duration_since(self.at).as_nanos();
        self.at = now;
        let came = u64::try_from(came).unwrap_or(u64::MAX);
        self.saved = self.saved.saturating_add(came).min(self.most);
    }
}

#[cfg(test)]
mod tests;
