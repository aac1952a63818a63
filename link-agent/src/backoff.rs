//! How long to wait before a failed link is dialled again.

use std::time::Duration;

/// Longest wait after the first failure.
const FIRST: Duration = Duration::from_millis(100);

/// Longest wait after any failure.
const LONGEST: Duration = Duration::from_secs(5);

/// Exponential back-off with full jitter, so that many routers do not come back to a toolshed in the same moment.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure; `random` spreads it evenly from nothing to the bound.
    pub(crate) fn next(&mut self, random: u32) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.failures.min(6)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        bound.mul_f64(f64::from(random) / f64::from(u32::MAX))
    }

    /// Starts over, after a link that lasted. One that fails as soon as it stands does not count as lasting.
    pub(crate) fn reset_if_lasted(&mut self, lifetime: Duration) {
        if lifetime >= LONGEST {
            self.failures = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_to_five_seconds_and_spreads_from_zero() {
        let mut backoff = Backoff::default();
        let bounds: Vec<u128> = (0..8).map(|_| backoff.next(u32::MAX).as_millis()).collect();
        assert_eq!(bounds, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.next(0), Duration::ZERO);
    }

    #[test]
    fn starts_over_only_after_a_link_that_lasted() {
        let mut backoff = Backoff::default();
        backoff.next(0);
        backoff.reset_if_lasted(Duration::from_secs(4));
        assert_eq!(backoff.next(u32::MAX).as_millis(), 200);
        backoff.reset_if_lasted(Duration::from_secs(5));
        assert_eq!(backoff.next(u32::MAX).as_millis(), 100);
    }
}
