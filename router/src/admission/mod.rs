//! Who may connect: counts and rates per source and over all, decided before a byte is read (`docs/operations.md`).
//!
//! Nothing here does IO or reads a clock. A connection's place is reserved by [`Admission::admit`] and given back by
//! [`Admission::end`] or [`Admission::release`]; all name it by its connection ID, so it is counted once and released once.

mod bucket;
mod drops;
mod penalties;
mod show;
mod source;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use memory_budget::{Budget, Limit, Permit};
use memory_config::Penalties;
use memory_ipc::WorkerOutcome;
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;

pub(crate) use bucket::TokenBucket;
pub(crate) use drops::{DropLog, DropReport};
pub(crate) use source::Prefixes;

use penalties::PenaltyBook;
use show::MostOfSources;
use source::Source;

/// Why a source's connection is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    /// `max_workers` connections live.
    Capacity,
    /// `max_unauthenticated` live connections have not authenticated.
    Unauthenticated,
    /// `max_per_source` live connections from this network.
    Source,
    /// `max_unauthenticated_per_source` of them have not authenticated.
    SourceUnauthenticated,
    /// `max_new_connections_per_second` over all.
    Rate,
    /// `max_new_connections_per_source_per_second` from this network.
    SourceRate,
    /// This network's penalties passed the threshold and have not decayed.
    Penalized,
    /// No PROXY header from a balancer, a malformed one, or a connection from somebody else.
    ProxyHeader,
}

impl Refusal {
    /// In the order of [`Refusal::index`].
    pub(crate) const ALL: [Self; 8] = [
        Self::Capacity,
        Self::Unauthenticated,
        Self::Source,
        Self::SourceUnauthenticated,
        Self::Rate,
        Self::SourceRate,
        Self::Penalized,
        Self::ProxyHeader,
    ];

    /// Its place in tables kept by reason.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    /// The reason as logged.
    pub(crate) const fn reason(self) -> Reason {
        match self {
            Self::Capacity => Reason::Capacity,
            Self::Unauthenticated => Reason::UnauthenticatedLimit,
            Self::Source => Reason::SourceLimit,
            Self::SourceUnauthenticated => Reason::SourceUnauthenticatedLimit,
            Self::Rate => Reason::Rate,
            Self::SourceRate => Reason::SourceRate,
            Self::Penalized => Reason::Penalized,
            Self::ProxyHeader => Reason::ProxyHeader,
        }
    }

    /// The setting that an operator would look at.
    pub(crate) const fn setting(self) -> &'static str {
        match self {
            Self::Capacity => "limits.max_workers",
            Self::Unauthenticated => "limits.max_unauthenticated",
            Self::Source => "limits.max_per_source",
            Self::SourceUnauthenticated => "limits.max_unauthenticated_per_source",
            Self::Rate => "limits.max_new_connections_per_second",
            Self::SourceRate => "limits.max_new_connections_per_source_per_second",
            Self::Penalized => "penalties.threshold",
            Self::ProxyHeader => "proxy_trusted",
        }
    }
}

/// The bounds; each cap of N admits exactly N.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionLimits {
    /// Live connections over all.
    pub(crate) workers: u64,
    /// Of those, not yet authenticated.
    pub(crate) unauthenticated: u64,
    /// Live connections of one network.
    pub(crate) per_source: u64,
    /// Of those, not yet authenticated.
    pub(crate) unauthenticated_per_source: u64,
    /// New connections a second over all, and the burst.
    pub(crate) per_second: u64,
    /// New connections a second of one network, and the burst.
    pub(crate) per_source_per_second: u64,
    /// What one network is.
    pub(crate) prefixes: Prefixes,
}

/// The listener's tables.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: AdmissionLimits,
    rate: TokenBucket,
    /// Live connections over all.
    workers: Budget,
    /// Of those, not yet authenticated.
    unauthenticated: Budget,
    /// Connections whose PROXY header has not come yet. They belong to no source, and count nowhere else.
    headers: Budget,
    connections: HashMap<ConnectionId, Entry>,
    /// Networks with a live connection or a bucket that is not full again. Entries are made by admitted connections alone,
    /// so refused traffic from any number of addresses cannot grow the table: it holds at most the live connections plus
    /// what the overall rate admits while a bucket refills (one second).
    sources: HashMap<Source, SourceEntry>,
    /// `sources` is swept when it reaches this size.
    sweep_at: usize,
    penalties: PenaltyBook,
    most: MostOfSources,
}

/// A live connection.
#[derive(Debug)]
struct Entry {
    /// Kept for the day that other prefixes are set, and for penalties.
    peer: IpAddr,
    source: Source,
    /// Its places in its source.
    here: Places,
    /// Its places over all.
    overall: Places,
}

/// What a connection holds in one pair of budgets.
#[derive(Debug)]
struct Places {
    _live: Permit,
    /// `None` once it has authenticated.
    unauthenticated: Option<Permit>,
}

#[derive(Debug)]
struct SourceEntry {
    live: Budget,
    unauthenticated: Budget,
    rate: TokenBucket,
}

/// The table of sources is not swept below this size.
const SWEEP_MINIMUM: usize = 1024;

impl Admission {
    pub(crate) fn new(limits: AdmissionLimits, penalties: Penalties, now: Instant) -> Self {
        Self {
            limits,
            rate: TokenBucket::new(limits.per_second, now),
            workers: Budget::new("max_workers", Limit::At(limits.workers)),
            unauthenticated: Budget::new("max_unauthenticated", Limit::At(limits.unauthenticated)),
            headers: Budget::new("proxy_headers", Limit::At(limits.unauthenticated)),
            connections: HashMap::new(),
            sources: HashMap::new(),
            sweep_at: SWEEP_MINIMUM,
            penalties: PenaltyBook::new(penalties, limits.prefixes),
            most: MostOfSources::default(),
        }
    }

    /// Takes other bounds. Connections stay and stay counted: while a lowered cap is reached or passed, nobody is admitted.
    /// What sources have collected in penalties stays too.
    pub(crate) fn set_limits(
        &mut self,
        limits: AdmissionLimits,
        penalties: Penalties,
        now: Instant,
    ) {
        self.rate.set_rate(limits.per_second, now);
        self.workers.set_limit(Limit::At(limits.workers));
        for budget in [&self.unauthenticated, &self.headers] {
            budget.set_limit(Limit::At(limits.unauthenticated));
        }
        for entry in self.sources.values_mut() {
            entry.set_limits(&limits, now);
        }
        self.penalties.set_rules(penalties, limits.prefixes);
        let prefixes = std::mem::replace(&mut self.limits, limits).prefixes;
        if prefixes != limits.prefixes {
            self.recount(now);
        }
    }

    /// Counts every connection for the network that it is of now. A network starts with as few tokens as any that one of its
    /// connections was counted for, so that no source gains by a reload; those without connections start anew.
    fn recount(&mut self, now: Instant) {
        let former = std::mem::take(&mut self.sources);
        for connection in self.connections.values_mut() {
            let source = Source::of(connection.peer, self.limits.prefixes);
            let before = std::mem::replace(&mut connection.source, source);
            let entry = self
                .sources
                .entry(source)
                .or_insert_with(|| SourceEntry::new(&self.limits, now));
            connection.here = entry.adopt(connection.here.unauthenticated.is_none());
            if let Some(before) = former.get(&before) {
                entry.rate.lower_to(&before.rate);
            }
        }
    }

    /// Whether this ID is in use.
    pub(crate) fn knows(&self, connection: &ConnectionId) -> bool {
        self.connections.contains_key(connection)
    }

    /// Live connections.
    pub(crate) fn live(&self) -> usize {
        self.connections.len()
    }

    /// Reserves the wait for a PROXY header: as many as may be unauthenticated, all balancers together.
    pub(crate) fn expect_header(&self) -> Result<Permit, Refusal> {
        self.headers
            .reserve(1)
            .map_err(|_| Refusal::Unauthenticated)
    }

    /// Reserves a place for a new connection, or says why there is none and changes nothing.
    ///
    /// What the source itself has done or used up is looked at first: its own flood is then reported as its own, and takes no
    /// token from anybody. A connection ID that is in use is refused as capacity; the caller draws another first.
    pub(crate) fn admit(
        &mut self,
        connection: ConnectionId,
        peer: IpAddr,
        now: Instant,
    ) -> Result<(), Refusal> {
        let admitted = self.try_admit(connection, peer, now);
        self.most.note(&admitted);
        admitted
    }

    fn try_admit(
        &mut self,
        connection: ConnectionId,
        peer: IpAddr,
        now: Instant,
    ) -> Result<(), Refusal> {
        let source = Source::of(peer, self.limits.prefixes);
        if self.penalties.is_penalized(peer, now) {
            return Err(Refusal::Penalized);
        }
        if self.sources.len() >= self.sweep_at {
            self.sweep(now);
        }
        // Whatever is reserved on the way to a refusal is given back by it.
        let here = match self.sources.get_mut(&source) {
            Some(entry) => {
                let here = entry.reserve()?;
                if !entry.rate.has_token(now) {
                    return Err(Refusal::SourceRate);
                }
                Some(here)
            }
            None => None,
        };
        if self.knows(&connection) {
            return Err(Refusal::Capacity);
        }
        let overall = Places {
            _live: self.workers.reserve(1).map_err(|_| Refusal::Capacity)?,
            unauthenticated: Some(
                self.unauthenticated
                    .reserve(1)
                    .map_err(|_| Refusal::Unauthenticated)?,
            ),
        };
        if !self.rate.take(now) {
            return Err(Refusal::Rate);
        }

        let entry = self
            .sources
            .entry(source)
            .or_insert_with(|| SourceEntry::new(&self.limits, now));
        let here = match here {
            Some(here) => here,
            None => entry.reserve()?,
        };
        entry.rate.take(now);
        self.most.rose(entry, self.rate.taken(now), now);
        let entry = Entry {
            peer,
            source,
            here,
            overall,
        };
        self.connections.insert(connection, entry);
        Ok(())
    }

    /// Notes that a connection has authenticated. Unknown or repeated: nothing happens, false.
    pub(crate) fn authenticated(&mut self, connection: &ConnectionId) -> bool {
        let Some(entry) = self.connections.get_mut(connection) else {
            return false;
        };
        entry.overall.unauthenticated = None;
        entry.here.unauthenticated.take().is_some()
    }

    /// Gives the place of a connection back that ended like this, and has its source pay for it. Unknown or repeated: nothing
    /// happens, false.
    pub(crate) fn end(
        &mut self,
        connection: &ConnectionId,
        outcome: WorkerOutcome,
        now: Instant,
    ) -> bool {
        let Some(entry) = self.connections.get(connection) else {
            return false;
        };
        self.penalties.penalize(entry.peer, outcome, now);
        self.release(connection, now)
    }

    /// Gives the place of a connection back that nobody is to blame for. Unknown or repeated: nothing happens, false.
    pub(crate) fn release(&mut self, connection: &ConnectionId, now: Instant) -> bool {
        let Some(Entry { source, .. }) = self.connections.remove(connection) else {
            return false;
        };
        if let Some(entry) = self.sources.get_mut(&source)
            && entry.is_forgettable(now)
        {
            self.sources.remove(&source);
        }
        true
    }

    /// Gives every place back: the spawner, and with it every worker, is gone. Rates and penalties go on as they were.
    pub(crate) fn release_all(&mut self, now: Instant) -> usize {
        let released = self.connections.len();
        self.connections.clear();
        self.sweep(now);
        released
    }

    /// Forgets the sources about which there is nothing to remember.
    fn sweep(&mut self, now: Instant) {
        self.sources.retain(|_, entry| !entry.is_forgettable(now));
        // Twice what is left: a sweep is paid for by as many admissions as it looks at entries.
        self.sweep_at = self.sources.len().saturating_mul(2).max(SWEEP_MINIMUM);
    }
}

impl SourceEntry {
    fn new(limits: &AdmissionLimits, now: Instant) -> Self {
        Self {
            live: Budget::new("max_per_source", Limit::At(limits.per_source)),
            unauthenticated: Budget::new(
                "max_unauthenticated_per_source",
                Limit::At(limits.unauthenticated_per_source),
            ),
            rate: TokenBucket::new(limits.per_source_per_second, now),
        }
    }

    fn set_limits(&mut self, limits: &AdmissionLimits, now: Instant) {
        self.live.set_limit(Limit::At(limits.per_source));
        self.unauthenticated
            .set_limit(Limit::At(limits.unauthenticated_per_source));
        self.rate.set_rate(limits.per_source_per_second, now);
    }

    fn reserve(&self) -> Result<Places, Refusal> {
        let live = self.live.reserve(1).map_err(|_| Refusal::Source)?;
        let unauthenticated = self
            .unauthenticated
            .reserve(1)
            .map_err(|_| Refusal::SourceUnauthenticated)?;
        Ok(Places {
            _live: live,
            unauthenticated: Some(unauthenticated),
        })
    }

    /// Counts a connection that is there already.
    fn adopt(&self, is_authenticated: bool) -> Places {
        Places {
            _live: self.live.adopt(1),
            unauthenticated: (!is_authenticated).then(|| self.unauthenticated.adopt(1)),
        }
    }

    fn is_forgettable(&mut self, now: Instant) -> bool {
        self.live.current() == 0 && self.rate.is_full(now)
    }
}

#[cfg(test)]
mod tests;
