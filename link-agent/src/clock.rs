//! The two clocks, read together and passed in.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One instant on both clocks. Freshness and waiting are judged by the monotonic one alone; the wall clock enters only
/// where a record carries a time (`docs/protocol.md` section 4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    /// Monotonic.
    pub(crate) monotonic: Instant,
    /// Unix seconds.
    pub(crate) unix: u64,
}

impl Moment {
    /// Reads both clocks.
    pub(crate) fn now() -> Self {
        Self {
            // tokio's, so that timers and rules agree also where a test pauses its clock.
            monotonic: tokio::time::Instant::now().into_std(),
            // A clock before 1970 makes every statement and every hello look far ahead, and so refused.
            unix: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
        }
    }

    /// Time from an earlier instant to this one.
    pub(crate) fn since(&self, earlier: Instant) -> Duration {
        self.monotonic.saturating_duration_since(earlier)
    }

    /// Seconds by which a time that another host states for now is ahead of ours; negative when it is behind.
    pub(crate) fn skew(&self, stated: u64) -> i64 {
        // Both are far below 2^63: a record carries safe integers only.
        stated.cast_signed().saturating_sub(self.unix.cast_signed())
    }

    /// The same moment some time later, on both clocks.
    #[cfg(test)]
    pub(crate) fn after(self, time: Duration) -> Self {
        Self {
            monotonic: self.monotonic + time,
            unix: self.unix + time.as_secs(),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::moment;

    #[test]
    fn tells_how_far_another_clock_is_ahead() {
        let now = moment();
        assert_eq!(now.skew(now.unix + 90), 90);
        assert_eq!(now.skew(now.unix - 90), -90);
        assert!(now.skew(u64::MAX >> 11) > 0);
    }
}
