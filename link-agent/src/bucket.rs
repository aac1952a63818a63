//! A token bucket.

use std::time::{Duration, Instant};

/// Admits `rate` things a second, and as many at once after a second of quiet.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// Tokens a second, and the most that are kept. `None` admits everything.
    rate: Option<u32>,
    /// Time already paid for: the bucket is full while this is a second or more ago, empty when it is now.
    level: Option<Instant>,
}

impl TokenBucket {
    pub(crate) const fn new(rate: Option<u32>) -> Self {
        Self { rate, level: None }
    }

    /// Fills at another rate from now on. What was taken stays taken.
    pub(crate) const fn set_rate(&mut self, rate: Option<u32>) {
        self.rate = rate;
    }

    /// Takes every token there is.
    pub(crate) const fn empty(&mut self, now: Instant) {
        self.level = Some(now);
    }

    /// Takes a token if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let Some(step) = self.step() else { return true };
        let full = now.checked_sub(BURST).unwrap_or(now);
        let level = self.level.map_or(full, |level| level.max(full)) + step;
        if level > now {
            return false;
        }
        self.level = Some(level);
        true
    }

    /// When the next token will be there; `None` when one is there now.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        let next = self.level? + self.step()?;
        (next > now).then_some(next)
    }

    fn step(&self) -> Option<Duration> {
        self.rate.map(|rate| BURST / rate.max(1))
    }
}

/// The quiet time that fills a bucket.
const BURST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_a_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(Some(4));
        assert_eq!(bucket.next(start), None);
        assert_eq!((0..10).filter(|_| bucket.take(start)).count(), 4);
        assert_eq!(bucket.next(start), Some(start + Duration::from_millis(250)));
        assert!(!bucket.take(start + Duration::from_millis(249)));
        assert!(bucket.take(start + Duration::from_millis(250)));
        assert!(!bucket.take(start + Duration::from_millis(250)));
        let later = start + Duration::from_secs(60);
        assert_eq!((0..10).filter(|_| bucket.take(later)).count(), 4);
    }

    #[test]
    fn admits_everything_when_switched_off() {
        let mut bucket = TokenBucket::new(None);
        let now = Instant::now();
        assert!((0..1000).all(|_| bucket.take(now)));
        assert_eq!(bucket.next(now), None);
    }
}
