//! Logging what may happen very often: the first time at once, then once an interval with the number since.

use std::time::{Duration, Instant};

/// How often, at most, one kind of repeated event is logged.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Counts one kind of event and says when to log it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Throttle {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl Throttle {
    /// Counts one event. `Some` when a line is due: how many events it stands for, this one included.
    pub(crate) fn note(&mut self, now: Instant) -> Option<u64> {
        self.unlogged = self.unlogged.saturating_add(1);
        if self.is_quiet(now) {
            self.take(now)
        } else {
            None
        }
    }

    /// `Some` when events were counted but not logged and the interval is over: to be asked now and then, so that the last
    /// ones are logged although no further one comes.
    pub(crate) fn due(&mut self, now: Instant) -> Option<u64> {
        if !self.is_quiet(now) {
            return None;
        }
        if self.unlogged == 0 {
            self.logged_at = None;
            return None;
        }
        self.take(now)
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.logged_at
            .is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL)
    }

    fn take(&mut self, now: Instant) -> Option<u64> {
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_the_first_and_then_one_an_interval_with_the_count() {
        let start = Instant::now();
        let mut throttle = Throttle::default();
        assert_eq!(throttle.note(start), Some(1));
        for step in 1..1000 {
            assert_eq!(throttle.note(start + Duration::from_millis(step)), None);
        }
        assert_eq!(throttle.note(start + LOG_INTERVAL), Some(1000));
    }

    #[test]
    fn the_last_ones_are_logged_without_a_further_one() {
        let start = Instant::now();
        let mut throttle = Throttle::default();
        assert_eq!(throttle.note(start), Some(1));
        assert_eq!(throttle.note(start), None);
        assert_eq!(throttle.note(start), None);
        assert_eq!(
            throttle.due(start + LOG_INTERVAL - Duration::from_nanos(1)),
            None
        );
        assert_eq!(throttle.due(start + LOG_INTERVAL), Some(2));
        assert_eq!(throttle.due(start + LOG_INTERVAL * 2), None);
        // Forgotten by now: the next one is logged at once.
        assert_eq!(throttle.note(start + LOG_INTERVAL * 2), Some(1));
    }
}
