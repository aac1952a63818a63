//! Which drops are worth a log line.

use std::net::SocketAddr;
use std::time::Instant;

use super::Refusal;
use crate::throttle::Throttle;

/// A log line that is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DropReport {
    pub(crate) refusal: Refusal,
    /// Drops for this reason since the last report, this one included.
    pub(crate) count: u64,
    /// Who was dropped last.
    pub(crate) peer: SocketAddr,
}

/// Counts drops by reason and says when to report them: one reason does not hide another.
#[derive(Debug, Default)]
pub(crate) struct DropLog {
    entries: [Entry; Refusal::ALL.len()],
}

#[derive(Debug, Default)]
struct Entry {
    throttle: Throttle,
    last: Option<SocketAddr>,
    total: u64,
}

impl DropLog {
    /// Counts one drop; returns the line to log when one is due.
    pub(crate) fn note(
        &mut self,
        refusal: Refusal,
        peer: SocketAddr,
        now: Instant,
    ) -> Option<DropReport> {
        let entry = self.entries.get_mut(refusal.index())?;
        entry.last = Some(peer);
        entry.total = entry.total.saturating_add(1);
        let count = entry.throttle.note(now)?;
        Some(DropReport {
            refusal,
            count,
            peer,
        })
    }

    /// All drops since the start, by reason: every reason once.
    pub(crate) fn totals(&self) -> impl Iterator<Item = (Refusal, u64)> {
        Refusal::ALL
            .into_iter()
            .zip(self.entries.iter().map(|entry| entry.total))
    }

    /// The lines of drops that were counted only, and have waited long enough.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<DropReport> {
        let report = |(refusal, entry): (Refusal, &mut Entry)| {
            let (count, peer) = (entry.throttle.due(now)?, entry.last?);
            Some(DropReport {
                refusal,
                count,
                peer,
            })
        };
        Refusal::ALL
            .into_iter()
            .zip(&mut self.entries)
            .filter_map(report)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::LOG_INTERVAL;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn one_reason_does_not_hide_another() {
        let start = Instant::now();
        let mut log = DropLog::default();
        for refusal in Refusal::ALL {
            let report = log.note(refusal, peer(1), start);
            assert_eq!(
                report,
                Some(DropReport {
                    refusal,
                    count: 1,
                    peer: peer(1)
                })
            );
            assert_eq!(log.note(refusal, peer(2), start), None, "{refusal:?}");
        }
        assert!(log.totals().all(|(_, total)| total == 2));
        assert_eq!(log.due(start), Vec::new());
        let due = log.due(start + LOG_INTERVAL);
        assert_eq!(due.len(), Refusal::ALL.len());
        for (refusal, report) in Refusal::ALL.into_iter().zip(due) {
            assert_eq!(
                report,
                DropReport {
                    refusal,
                    count: 1,
                    peer: peer(2)
                }
            );
        }
    }
}
