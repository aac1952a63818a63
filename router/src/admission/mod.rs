//! Who may connect: counts and rates per source and over all, decided before a byte is read (limits.md section 1).
//!
//! Nothing here does IO or reads a clock. A connection's place is reserved by [`Admission::admit`] and given back by
//! [`Admission::release`]; both name it by its connection ID, so it is counted once and released once.

mod bucket;
mod drops;
mod source;

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Instant;

use memory_wire::Reason;
use memory_wire::ids::ConnectionId;

pub(crate) use drops::{DropLog, DropReport};
pub(crate) use source::Prefixes;

use bucket::TokenBucket;
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
}

impl Refusal {
    /// In the order of [`Refusal::index`].
    pub(crate) const ALL: [Self; 6] = [
        Self::Capacity,
        Self::Unauthenticated,
        Self::Source,
        Self::SourceUnauthenticated,
        Self::Rate,
        Self::SourceRate,
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
        }
    }

    /// The setting that an operator would raise.
    pub(crate) const fn setting(self) -> &'static str {
        match self {
            Self::Capacity => "limits.max_workers",
            Self::Unauthenticated => "limits.max_unauthenticated",
            Self::Source => "limits.max_per_source",
            Self::SourceUnauthenticated => "limits.max_unauthenticated_per_source",
            Self::Rate => "limits.max_new_connections_per_second",
            Self::SourceRate => "limits.max_new_connections_per_source_per_second",
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
    /// Live connections; their number is what `workers` bounds.
    connections: HashMap<ConnectionId, Entry>,
    /// Connections of `connections` that have not authenticated.
    unauthenticated: u64,
    /// Networks with a live connection or a bucket that is not full again. Entries are made by admitted connections alone,
    /// so refused traffic from any number of addresses cannot grow the table: it holds at most the live connections plus
    /// what the overall rate admits while a bucket refills (one second).
    sources: HashMap<Source, SourceEntry>,
    /// `sources` is swept when it reaches this size.
    sweep_at: usize,
}

#[derive(Debug)]
struct Entry {
    source: Source,
    authenticated: bool,
}

#[derive(Debug)]
struct SourceEntry {
    live: u64,
    unauthenticated: u64,
    rate: TokenBucket,
}

/// The table of sources is not swept below this size.
const SWEEP_MINIMUM: usize = 1024;

impl Admission {
    pub(crate) fn new(limits: AdmissionLimits, now: Instant) -> Self {
        Self {
            limits,
            rate: TokenBucket::new(limits.per_second, now),
            connections: HashMap::new(),
            unauthenticated: 0,
            sources: HashMap::new(),
            sweep_at: SWEEP_MINIMUM,
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

    /// Reserves a place for a new connection, or says why there is none and changes nothing.
    ///
    /// What the source itself has used up is looked at first: its own flood is then reported as its own, and takes no
    /// token from anybody. A connection ID that is in use is refused as capacity; the caller draws another first.
    pub(crate) fn admit(
        &mut self,
        connection: ConnectionId,
        peer: IpAddr,
        now: Instant,
    ) -> Result<(), Refusal> {
        let limits = self.limits;
        let source = Source::of(peer, limits.prefixes);
        if self.sources.len() >= self.sweep_at {
            self.sweep(now);
        }
        if let Some(entry) = self.sources.get_mut(&source) {
            if entry.live >= limits.per_source {
                return Err(Refusal::Source);
            }
            if entry.unauthenticated >= limits.unauthenticated_per_source {
                return Err(Refusal::SourceUnauthenticated);
            }
            if !entry.rate.has_token(now) {
                return Err(Refusal::SourceRate);
            }
        }
        let live = u64::try_from(self.connections.len()).unwrap_or(u64::MAX);
        if live >= limits.workers || self.knows(&connection) {
            return Err(Refusal::Capacity);
        }
        if self.unauthenticated >= limits.unauthenticated {
            return Err(Refusal::Unauthenticated);
        }
        if !self.rate.take(now) {
            return Err(Refusal::Rate);
        }

        let entry = self.sources.entry(source).or_insert_with(|| SourceEntry {
            live: 0,
            unauthenticated: 0,
            rate: TokenBucket::new(limits.per_source_per_second, now),
        });
        entry.rate.take(now);
        entry.live += 1;
        entry.unauthenticated += 1;
        self.unauthenticated += 1;
        self.connections.insert(
            connection,
            Entry {
                source,
                authenticated: false,
            },
        );
        Ok(())
    }

    /// Notes that a connection has authenticated. Unknown or repeated: nothing happens, false.
    pub(crate) fn authenticated(&mut self, connection: &ConnectionId) -> bool {
        let Some(entry) = self
            .connections
            .get_mut(connection)
            .filter(|entry| !entry.authenticated)
        else {
            return false;
        };
        entry.authenticated = true;
        let source = entry.source;
        self.unauthenticated = self.unauthenticated.saturating_sub(1);
        if let Some(entry) = self.sources.get_mut(&source) {
            entry.unauthenticated = entry.unauthenticated.saturating_sub(1);
        }
        true
    }

    /// Gives the place of a connection that ended back. Unknown or repeated: nothing happens, false.
    pub(crate) fn release(&mut self, connection: &ConnectionId, now: Instant) -> bool {
        let Some(entry) = self.connections.remove(connection) else {
            return false;
        };
        if !entry.authenticated {
            self.unauthenticated = self.unauthenticated.saturating_sub(1);
        }
        if let Some(source) = self.sources.get_mut(&entry.source) {
            source.live = source.live.saturating_sub(1);
            if !entry.authenticated {
                source.unauthenticated = source.unauthenticated.saturating_sub(1);
            }
            if source.live == 0 && source.rate.is_full(now) {
                self.sources.remove(&entry.source);
            }
        }
        true
    }

    /// Gives every place back: the spawner, and with it every worker, is gone. Rates go on as they were.
    pub(crate) fn release_all(&mut self, now: Instant) -> usize {
        let released = self.connections.len();
        self.connections.clear();
        self.unauthenticated = 0;
        for entry in self.sources.values_mut() {
            entry.live = 0;
            entry.unauthenticated = 0;
        }
        self.sweep(now);
        released
    }

    /// Forgets the sources about which there is nothing to remember.
    fn sweep(&mut self, now: Instant) {
        self.sources
            .retain(|_, entry| entry.live > 0 || !entry.rate.is_full(now));
        // Twice what is left: a sweep is paid for by as many admissions as it looks at entries.
        self.sweep_at = self.sources.len().saturating_mul(2).max(SWEEP_MINIMUM);
    }
}

#[cfg(test)]
mod tests;
