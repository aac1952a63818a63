//! A token bucket without a clock of its own.

use std::time::{Duration, Instant};

/// Parts of one token. Counting in these keeps the bucket exact: one nanosecond at one token a second refills one part.
const PARTS: u64 = 1_000_000_000;

/// Fills by `rate` tokens a second up to its burst, which equals the rate unless it is said otherwise, and starts full.
#[derive(Debug, Clone)]
pub(crate) struct TokenBucket {
    /// Tokens a second.
    rate: u64,
    /// The most the bucket holds.
    burst: u64,
    /// What is in it now, in parts of a token; never above `burst * PARTS`.
    parts: u64,
    /// When `parts` was brought up to date.
    filled_at: Instant,
}

impl TokenBucket {
    pub(crate) fn new(rate: u64, now: Instant) -> Self {
        Self::with_burst(rate, rate, now)
    }

    pub(crate) fn with_burst(rate: u64, burst: u64, now: Instant) -> Self {
        Self {
            rate,
            burst,
            parts: burst.saturating_mul(PARTS),
            filled_at: now,
        }
    }

    /// Fills at another rate from now on, up to a burst equal to it. What was taken stays taken.
    pub(crate) fn set_rate(&mut self, rate: u64, now: Instant) {
        self.fill(now);
        self.rate = rate;
        self.burst = rate;
        self.parts = self.parts.min(self.capacity());
    }

    /// Takes out what the other, brought up to date, holds less than this one.
    pub(crate) fn lower_to(&mut self, other: &Self) {
        self.parts = self.parts.min(other.parts);
    }

    /// Whether a whole token is there.
    pub(crate) fn has_token(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.parts >= PARTS
    }

    /// Takes one token; false, and nothing taken, when there is none.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        if !self.has_token(now) {
            return false;
        }
        self.parts -= PARTS;
        true
    }

    /// Whether forgetting the bucket and making a new one would change nothing.
    pub(crate) fn is_full(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.parts == self.capacity()
    }

    /// Tokens that were taken and have not come back, the part of one as a whole one.
    pub(crate) fn taken(&mut self, now: Instant) -> u64 {
        self.fill(now);
        self.burst.saturating_sub(self.parts / PARTS)
    }

    fn capacity(&self) -> u64 {
        self.burst.saturating_mul(PARTS)
    }

    fn fill(&mut self, now: Instant) {
        // An instant before the last one adds nothing and does not turn the bucket's clock back.
        let elapsed = now.saturating_duration_since(self.filled_at);
        if elapsed == Duration::ZERO {
            return;
        }
        let nanoseconds = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let gained = nanoseconds.saturating_mul(self.rate);
        self.parts = self.parts.saturating_add(gained).min(self.capacity());
        self.filled_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_its_burst_and_then_one_token_per_interval() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(20, start);
        assert_eq!((0..100).filter(|_| bucket.take(start)).count(), 20);

        let almost = start + Duration::from_nanos(49_999_999);
        assert!(!bucket.take(almost));
        let there = start + Duration::from_millis(50);
        assert!(bucket.take(there));
        assert!(!bucket.take(there));
    }

    #[test]
    fn a_burst_of_its_own_is_given_once_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::with_burst(2, 10, start);
        assert_eq!((0..100).filter(|_| bucket.take(start)).count(), 10);
        assert_eq!(bucket.taken(start), 10);
        let later = start + Duration::from_secs(3);
        assert_eq!(bucket.taken(later), 4);
        assert_eq!((0..100).filter(|_| bucket.take(later)).count(), 6);
        let full = later + Duration::from_secs(100);
        assert!(bucket.is_full(full));
        assert_eq!(bucket.taken(full), 0);
    }

    #[test]
    fn loses_no_fraction_however_often_it_is_asked() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(3, start);
        while bucket.take(start) {}
        // 3 tokens a second for 10 s, asked at an interval that divides nothing evenly.
        let mut taken = 0;
        let mut at = start;
        while at < start + Duration::from_secs(10) {
            at += Duration::from_nanos(7_654_321);
            let now = at.min(start + Duration::from_secs(10));
            while bucket.take(now) {
                taken += 1;
            }
        }
        assert_eq!(taken, 30);
    }

    #[test]
    fn holds_no_more_than_its_burst_after_a_long_pause() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(5, start);
        let later = start + Duration::from_secs(1_000_000);
        assert_eq!((0..100).filter(|_| bucket.take(later)).count(), 5);
    }

    #[test]
    fn time_that_runs_backwards_adds_nothing() {
        let start = Instant::now() + Duration::from_secs(100);
        let mut bucket = TokenBucket::new(1, start);
        assert!(bucket.take(start));
        assert!(!bucket.take(start - Duration::from_secs(50)));
        assert!(!bucket.take(start + Duration::from_millis(999)));
        assert!(bucket.take(start + Duration::from_secs(1)));
    }

    #[test]
    fn another_rate_gives_no_tokens_at_once() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(2, start);
        assert!(bucket.take(start) && bucket.take(start));
        bucket.set_rate(1000, start);
        assert!(!bucket.take(start));
        let later = start + Duration::from_millis(10);
        assert_eq!((0..100).filter(|_| bucket.take(later)).count(), 10);
        let full = start + Duration::from_secs(10);
        bucket.set_rate(3, full);
        assert_eq!((0..100).filter(|_| bucket.take(full)).count(), 3);
    }

    #[test]
    fn knows_when_it_is_full() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(2, start);
        assert!(bucket.is_full(start));
        assert!(bucket.take(start));
        assert!(!bucket.is_full(start + Duration::from_millis(499)));
        assert!(bucket.is_full(start + Duration::from_millis(500)));
    }
}
