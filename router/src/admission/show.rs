//! What admission shows of itself.

use std::time::Instant;

use memory_admin::{BudgetState, Family};

use super::{Admission, Refusal, SourceEntry};

/// What every source has a budget of its own for is shown of the one that uses most, and this is what would be forgotten with
/// a source.
#[derive(Debug, Default)]
pub(super) struct MostOfSources {
    live_peak: u64,
    unauthenticated_peak: u64,
    rate_peak: u64,
    overall_rate_peak: u64,
    /// By [`Refusal::index`].
    refused: [u64; Refusal::ALL.len()],
}

impl MostOfSources {
    /// A source uses more than before.
    pub(super) fn rose(&mut self, source: &mut SourceEntry, overall_rate: u64, now: Instant) {
        self.live_peak = self.live_peak.max(source.live.current());
        self.unauthenticated_peak = self
            .unauthenticated_peak
            .max(source.unauthenticated.current());
        self.rate_peak = self.rate_peak.max(source.rate.taken(now));
        self.overall_rate_peak = self.overall_rate_peak.max(overall_rate);
    }

    pub(super) fn note(&mut self, admitted: &Result<(), Refusal>) {
        if let Err(refusal) = admitted
            && let Some(count) = self.refused.get_mut(refusal.index())
        {
            *count = count.saturating_add(1);
        }
    }

    fn refused(&self, refusal: Refusal) -> u64 {
        self.refused.get(refusal.index()).copied().unwrap_or(0)
    }
}

impl Admission {
    /// Every budget. Those that each source has are told of the source that uses most, with the refusals of all. A token
    /// bucket's use is what was taken and has not come back.
    pub(crate) fn budgets(&mut self, now: Instant) -> Vec<BudgetState> {
        let (mut live, mut unauthenticated, mut rate) = (0, 0, 0);
        for source in self.sources.values_mut() {
            live = live.max(source.live.current());
            unauthenticated = unauthenticated.max(source.unauthenticated.current());
            rate = rate.max(source.rate.taken(now));
        }
        let (limits, most) = (&self.limits, &self.most);
        let state = |refusal: Refusal, limit, current: u64, peak: u64| BudgetState {
            name: refusal
                .setting()
                .rsplit('.')
                .next()
                .unwrap_or_default()
                .to_owned(),
            scope: Vec::new(),
            current,
            peak: peak.max(current),
            limit: Some(limit),
            refused: most.refused(refusal),
        };
        let overall = self.rate.taken(now);
        vec![
            BudgetState::from(&self.workers),
            BudgetState::from(&self.unauthenticated),
            BudgetState::from(&self.headers),
            state(Refusal::Source, limits.per_source, live, most.live_peak),
            state(
                Refusal::SourceUnauthenticated,
                limits.unauthenticated_per_source,
                unauthenticated,
                most.unauthenticated_peak,
            ),
            state(
                Refusal::Rate,
                limits.per_second,
                overall,
                most.overall_rate_peak,
            ),
            state(
                Refusal::SourceRate,
                limits.per_source_per_second,
                rate,
                most.rate_peak,
            ),
        ]
    }

    /// Connections and sources.
    pub(crate) fn families(&self, now: Instant) -> Vec<Family> {
        let unauthenticated = self.unauthenticated.current();
        let authenticated = self.workers.current().saturating_sub(unauthenticated);
        let (remembered, penalized) = self.penalties.counts(now);
        vec![
            Family::gauge("connections", "Live connections, by state")
                .sample(&[("state", "unauthenticated")], unauthenticated)
                .sample(&[("state", "authenticated")], authenticated)
                .sample(&[("state", "proxy-header")], self.headers.current()),
            Family::gauge(
                "sources",
                "Networks with a live connection, or one in the last second",
            )
            .value(self.sources.len()),
            Family::gauge(
                "penalized_sources",
                "Networks that owe a penalty: remembered, and of these past the threshold",
            )
            .sample(&[("state", "remembered")], remembered)
            .sample(&[("state", "enforced")], penalized),
        ]
    }
}
