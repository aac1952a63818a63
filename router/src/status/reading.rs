//! One look at every role, and what can be asked of it.

use std::time::{Instant, SystemTime};

use memory_admin::{Family, FetchError, Kind, Number, Sample, Snapshot, unix_millis};

use crate::exit::Exit;
use crate::survey::Seen;

/// What was seen, and when.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) unix_ms: u64,
    at: Instant,
    pub(super) seen: Vec<Seen>,
}

fn is_denied(state: &Result<Snapshot, FetchError>) -> bool {
    matches!(state, Err(error) if error.word() == FetchError::DENIED)
}

impl Reading {
    pub(super) fn new(seen: Vec<Seen>) -> Self {
        Self {
            unix_ms: unix_millis(SystemTime::now()),
            at: Instant::now(),
            seen,
        }
    }

    /// Whether everybody, somebody or nobody answered.
    pub(super) fn exit(&self) -> Exit {
        let up = self.seen.iter().filter(|seen| seen.state.is_ok()).count();
        match up {
            0 if self.seen.iter().all(|seen| is_denied(&seen.state)) => Exit::Permission,
            0 => Exit::Unavailable,
            up if up < self.seen.len() => Exit::TryAgain,
            _ => Exit::Success,
        }
    }

    /// Seconds since a former look.
    pub(super) fn seconds_since(&self, former: &Self) -> f64 {
        self.at.saturating_duration_since(former.at).as_secs_f64()
    }

    /// The roles that answered.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &Snapshot> {
        self.seen.iter().filter_map(|seen| seen.state.as_ref().ok())
    }

    /// Every family, with the role that shows it.
    pub(super) fn families(&self) -> impl Iterator<Item = (&str, &Family)> {
        self.snapshots().flat_map(|snapshot| {
            let families = snapshot.families.iter();
            families.map(|family| (snapshot.role.as_str(), family))
        })
    }

    /// The sample of a family that has this label, of the first role that shows it.
    fn sample(&self, name: &str, label: Option<(&str, &str)>) -> Option<&Sample> {
        let mut samples = self
            .families()
            .filter(|(_, family)| family.name == name)
            .flat_map(|(_, family)| &family.samples);
        samples.find(|sample| label.is_none_or(|(name, value)| has(sample, name, value)))
    }

    /// A count.
    pub(super) fn count(&self, name: &str, label: Option<(&str, &str)>) -> Option<u64> {
        match self.sample(name, label)?.value {
            Number::Integer(number) => Some(number),
            _ => None,
        }
    }

    /// The counts of a latency, by bucket.
    pub(super) fn latency(&self, name: &str) -> Option<&[u64]> {
        match &self.sample(name, None)?.value {
            Number::Histogram { counts, .. } => Some(counts),
            _ => None,
        }
    }

    /// A number of one role.
    pub(super) fn of_role(&self, role: &str, name: &str) -> Option<u64> {
        let mut families = self.families();
        let (_, family) = families.find(|(of, family)| *of == role && family.name == name)?;
        match family.samples.first()?.value {
            Number::Integer(number) => Some(number),
            _ => None,
        }
    }

    /// What grew for a reason: family, role, reason and count of each that is not zero.
    pub(super) fn reasons(&self) -> Vec<(&str, &str, &str, u64)> {
        let counters = self
            .families()
            .filter(|(_, family)| family.kind == Kind::Counter);
        let mut reasons = Vec::new();
        for (role, family) in counters {
            for sample in &family.samples {
                if let (Some(reason), Number::Integer(count)) =
                    (value_of(sample, "reason"), &sample.value)
                    && *count > 0
                {
                    reasons.push((family.name.as_str(), role, reason, *count));
                }
            }
        }
        reasons
    }
}

/// The value of a label.
pub(super) fn value_of<'a>(sample: &'a Sample, label: &str) -> Option<&'a str> {
    let mut labels = sample.labels.iter();
    labels
        .find(|(name, _)| name == label)
        .map(|(_, value)| value.as_str())
}

fn has(sample: &Sample, label: &str, value: &str) -> bool {
    value_of(sample, label) == Some(value)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn seen(states: Vec<Result<Snapshot, FetchError>>) -> Reading {
        let seen = |state| Seen {
            role: "listener",
            state,
        };
        Reading::new(states.into_iter().map(seen).collect())
    }

    #[test]
    fn the_status_tells_who_answered() {
        let up = || Ok(Snapshot::new("listener", SystemTime::now()));
        let fault = |kind| Err(FetchError::Connect(io::Error::from(kind)));
        let denied = || fault(io::ErrorKind::PermissionDenied);
        let absent = || fault(io::ErrorKind::NotFound);
        for (states, expected) in [
            (vec![up(), up()], Exit::Success),
            (vec![up(), denied()], Exit::TryAgain),
            (vec![absent(), denied()], Exit::Unavailable),
            (vec![denied(), denied()], Exit::Permission),
        ] {
            assert_eq!(seen(states).exit(), expected);
        }
    }
}
