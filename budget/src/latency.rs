//! How long things take: counts in fixed buckets, without allocation.
//!
//! ```
//! use std::time::Duration;
//! use memory_budget::latency::Histogram;
//!
//! let opens = Histogram::default();
//! opens.observe(Duration::from_micros(700));
//! assert_eq!(opens.totals().count(), 1);
//! assert_eq!(opens.totals().counts[3], 1);
//! ```

use std::cell::Cell;
use std::time::Duration;

/// The upper bounds of the buckets in microseconds, each included in its bucket: 100 µs to 60 s. What is above the last goes
/// to one more bucket.
pub const LATENCY_BUCKETS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 5_000_000, 15_000_000, 60_000_000,
];

/// Counts of one histogram: a bucket for each bound, and the one above them last.
pub const LATENCY_COUNTS: usize = LATENCY_BUCKETS.len() + 1;

/// A latency that is being measured. For one thread, like everything here.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [Cell<u64>; LATENCY_COUNTS],
    sum_micros: Cell<u64>,
}

impl Histogram {
    /// Counts one observation. One beyond 2^64 µs counts as that.
    pub fn observe(&self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BUCKETS.partition_point(|bound| *bound < micros);
        if let Some(count) = self.counts.get(bucket) {
            count.set(count.get().saturating_add(1));
        }
        self.sum_micros
            .set(self.sum_micros.get().saturating_add(micros));
    }

    /// Adds what somebody else has observed.
    pub fn add(&self, more: &Totals) {
        for (count, more) in self.counts.iter().zip(more.counts) {
            count.set(count.get().saturating_add(more));
        }
        self.sum_micros
            .set(self.sum_micros.get().saturating_add(more.sum_micros));
    }

    /// What has been observed so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            counts: self.counts.each_ref().map(Cell::get),
            sum_micros: self.sum_micros.get(),
        }
    }
}

/// The numbers of a [`Histogram`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Observations by bucket, not cumulative, those above the last bound at the end.
    pub counts: [u64; LATENCY_COUNTS],
    /// The sum of all observations, microseconds.
    pub sum_micros: u64,
}

impl Totals {
    /// How many observations there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts
            .iter()
            .fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// What came since `former` was told of the same histogram. What has become less counts as nothing.
    #[must_use]
    pub fn since(&self, former: &Self) -> Self {
        let mut more = *self;
        for (count, former) in more.counts.iter_mut().zip(former.counts) {
            *count = count.saturating_sub(former);
        }
        more.sum_micros = self.sum_micros.saturating_sub(former.sum_micros);
        more
    }
}

/// The latency that a part `quantile` (0 to 1) of the observations does not exceed, in microseconds: interpolated within its
/// bucket. `None` without observations, and the last bound for what lies above it.
#[must_use]
pub fn quantile(counts: &[u64], quantile: f64) -> Option<f64> {
    let total: f64 = counts.iter().map(|count| as_f64(*count)).sum();
    if total <= 0.0 {
        return None;
    }
    let rank = total * quantile.clamp(0.0, 1.0);
    let mut below = 0.0;
    let mut lower = 0.0;
    for (count, bound) in counts.iter().zip(LATENCY_BUCKETS) {
        let (count, upper) = (as_f64(*count), as_f64(bound));
        if count > 0.0 && below + count >= rank {
            return Some(lower + (upper - lower) * ((rank - below) / count));
        }
        below += count;
        lower = upper;
    }
    Some(lower)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a quantile is an estimate anyway"
)]
const fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_ascend_and_are_included_in_their_bucket() {
        assert!(LATENCY_BUCKETS.is_sorted_by(|one, next| one < next));
        for (bucket, bound) in LATENCY_BUCKETS.into_iter().enumerate() {
            let histogram = Histogram::default();
            histogram.observe(Duration::from_micros(bound));
            histogram.observe(Duration::from_micros(bound + 1));
            let totals = histogram.totals();
            assert_eq!((totals.counts[bucket], totals.counts[bucket + 1]), (1, 1));
            assert_eq!((totals.count(), totals.sum_micros), (2, 2 * bound + 1));
        }
    }

    #[test]
    fn extremes_neither_wrap_nor_get_lost() {
        let histogram = Histogram::default();
        histogram.observe(Duration::ZERO);
        histogram.observe(Duration::MAX);
        histogram.observe(Duration::MAX);
        let totals = histogram.totals();
        assert_eq!(totals.counts[0], 1);
        assert_eq!(totals.counts[LATENCY_COUNTS - 1], 2);
        assert_eq!(totals.sum_micros, u64::MAX);
    }

    #[test]
    fn totals_are_added_and_told_apart() {
        let worker = Histogram::default();
        let all = Histogram::default();
        worker.observe(Duration::from_millis(3));
        let first = worker.totals();
        all.add(&first.since(&Totals::default()));
        worker.observe(Duration::from_secs(2));
        all.add(&worker.totals().since(&first));
        assert_eq!(all.totals(), worker.totals());
        // A total that went down is no observation.
        assert_eq!(first.since(&worker.totals()), Totals::default());
    }

    #[test]
    fn quantiles_lie_in_their_bucket() {
        assert_eq!(quantile(&[0; LATENCY_COUNTS], 0.5), None);
        let mut counts = [0; LATENCY_COUNTS];
        counts[1] = 100;
        assert_eq!(quantile(&counts, 0.5), Some(175.0));
        assert_eq!(quantile(&counts, 1.0), Some(250.0));
        counts[LATENCY_COUNTS - 1] = 100;
        assert_eq!(quantile(&counts, 0.99), Some(60_000_000.0));
    }
}
