//! When to try again: reconnects by close code, and refusals that pass (`docs/protocol.md` section 4.6). Time and randomness
//! are passed in.

use std::time::{Duration, Instant};

use memory_wire::reason::close;

use crate::ClientError;

/// The first reconnect waits less than this.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// No retry waits longer than this, and a schedule grows no further.
const MAX_DELAY: Duration = Duration::from_secs(30);
/// Retries of a refused request are at least this far apart (seed, "a second or more apart").
const MIN_HOLD: Duration = Duration::from_secs(1);
/// What works for this long starts the schedule anew.
const RESET_AFTER: Duration = Duration::from_secs(60);

/// A schedule of retries: full jitter below a bound that doubles, started anew by a minute that worked.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempt: u32,
    working_since: Option<Instant>,
}

impl Backoff {
    /// It works, since now.
    pub(crate) fn works(&mut self, now: Instant) {
        self.working_since.get_or_insert(now);
    }

    /// It failed, or stopped to work: how long to wait.
    pub(crate) fn next_delay(&mut self, now: Instant, random: u64) -> Duration {
        self.delay_from(0, now, random)
    }

    /// The same for a request that was refused for now, on a connection that goes on.
    pub(crate) fn next_hold(&mut self, now: Instant, random: u64) -> Duration {
        self.next_delay(now, random).max(MIN_HOLD)
    }

    /// The same, but not earlier in the schedule than its step `least`.
    fn delay_from(&mut self, least: u32, now: Instant, random: u64) -> Duration {
        if let Some(since) = self.working_since.take()
            && now.saturating_duration_since(since) >= RESET_AFTER
        {
            self.attempt = 0;
        }
        self.attempt = self.attempt.max(least);
        let bound = FIRST_DELAY
            .saturating_mul(1 << self.attempt.min(8))
            .min(MAX_DELAY);
        self.attempt = self.attempt.saturating_add(1);
        fraction(bound, random)
    }
}

/// What to do about a connection that is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Dial again after this long.
    Retry(Duration),
    /// Doing the same again is useless.
    GiveUp,
}

/// The reconnect schedule of one connection.
#[derive(Debug, Default)]
pub(crate) struct Reconnect {
    backoff: Backoff,
    /// The endpoint was right once.
    has_connected: bool,
}

impl Reconnect {
    /// The hello was answered.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.has_connected = true;
        self.backoff.works(now);
    }

    /// The attempt failed, or the connection ended, with `error`.
    pub(crate) fn lost(&mut self, error: &ClientError, now: Instant, random: u64) -> Verdict {
        let least = match cause(error) {
            // What was trusted once is so again when somebody has mended its certificate; what never was is misconfigured.
            Cause::Untrusted if self.has_connected => 1,
            Cause::Final | Cause::Untrusted => return Verdict::GiveUp,
            Cause::Passing => 0,
            // A router that says it is full is not asked again at once.
            Cause::Full => 1,
        };
        Verdict::Retry(self.backoff.delay_from(least, now, random))
    }
}

enum Cause {
    Passing,
    Full,
    Untrusted,
    Final,
}

fn cause(error: &ClientError) -> Cause {
    match error {
        ClientError::Closed(closed) => match closed.code {
            Some(close::POLICY_VIOLATION | close::MESSAGE_TOO_BIG) => Cause::Final,
            Some(close::TRY_AGAIN_LATER) => Cause::Full,
            _ => Cause::Passing,
        },
        ClientError::Dial { .. } => Cause::Passing,
        ClientError::Untrusted { .. } => Cause::Untrusted,
        ClientError::Refused {
            status: 429 | 503, ..
        } => Cause::Full,
        ClientError::Refused { status, .. } if *status >= 500 => Cause::Passing,
        ClientError::Denied(denied) if denied.retriable => Cause::Passing,
        ClientError::Refused { .. }
        | ClientError::Protocol(_)
        | ClientError::Usage(_)
        | ClientError::Denied(_)
        | ClientError::Ended(_) => Cause::Final,
    }
}

/// A part of `bound`, by `random` as a fraction of its range.
fn fraction(bound: Duration, random: u64) -> Duration {
    let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
    let part = (u128::from(nanos) * u128::from(random)) >> 64;
    Duration::from_nanos(u64::try_from(part).unwrap_or(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Closed;

    fn closed(code: Option<u16>) -> ClientError {
        ClientError::Closed(Closed {
            code,
            reason: String::new(),
        })
    }

    fn delay(verdict: Verdict) -> Duration {
        match verdict {
            Verdict::Retry(delay) => delay,
            Verdict::GiveUp => panic!("gave up"),
        }
    }

    #[test]
    fn the_first_reconnect_is_within_a_second_and_then_the_bound_doubles_to_thirty() {
        let mut reconnect = Reconnect::default();
        let now = Instant::now();
        let bounds: Vec<u64> = (0..7)
            .map(|_| delay(reconnect.lost(&closed(None), now, u64::MAX)).as_millis() as u64)
            .map(|millis| millis.div_ceil(1000))
            .collect();
        assert_eq!(bounds, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(delay(reconnect.lost(&closed(None), now, 0)), Duration::ZERO);
    }

    #[test]
    fn only_a_minute_that_worked_starts_anew() {
        let start = Instant::now();
        let mut reconnect = Reconnect::default();
        for _ in 0..4 {
            reconnect.lost(&closed(None), start, 1);
        }
        reconnect.connected(start);
        let almost = start + Duration::from_secs(59);
        assert!(delay(reconnect.lost(&closed(None), almost, u64::MAX)) > FIRST_DELAY);
        reconnect.connected(almost);
        let later = almost + RESET_AFTER;
        assert!(delay(reconnect.lost(&closed(None), later, u64::MAX)) <= FIRST_DELAY);
    }

    #[test]
    fn close_codes_carry_the_policy() {
        let now = Instant::now();
        for code in [1008, 1009] {
            let verdict = Reconnect::default().lost(&closed(Some(code)), now, 0);
            assert_eq!(verdict, Verdict::GiveUp, "{code}");
        }
        for code in [1000, 1001, 1006, 1011, 1012] {
            let verdict = Reconnect::default().lost(&closed(Some(code)), now, u64::MAX);
            assert!(delay(verdict) <= FIRST_DELAY, "{code}");
        }
        let full = Reconnect::default().lost(&closed(Some(1013)), now, u64::MAX);
        assert!(delay(full) > FIRST_DELAY);
        let refused = ClientError::refused(403, b"");
        let verdict = Reconnect::default().lost(&refused, now, 0);
        assert_eq!(verdict, Verdict::GiveUp);
        let full = ClientError::refused(503, b"");
        assert_ne!(Reconnect::default().lost(&full, now, 0), Verdict::GiveUp);
    }

    #[test]
    fn an_untrusted_certificate_is_final_unless_it_was_trusted_before() {
        let now = Instant::now();
        let mut reconnect = Reconnect::default();
        let error = ClientError::Untrusted { cause: "" };
        assert_eq!(reconnect.lost(&error, now, 0), Verdict::GiveUp);
        reconnect.connected(now);
        assert_ne!(reconnect.lost(&error, now, 0), Verdict::GiveUp);
    }

    #[test]
    fn refused_requests_wait_a_second_at_least() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        for _ in 0..20 {
            assert_eq!(backoff.next_hold(now, 0), MIN_HOLD);
        }
        assert!(backoff.next_hold(now, u64::MAX) > MIN_HOLD);
    }
}
