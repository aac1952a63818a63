//! What sources owe for how their connections ended: added up, decaying with time (`docs/operations.md`, `[penalties]`).
//!
//! A sum decays by a second each second. Once it has passed the threshold the source is penalized until nothing is left of it,
//! so that it waits as long as it has collected; further penalties meanwhile (of connections that it had) prolong that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use memory_config::Penalties;
use memory_ipc::WorkerOutcome;

use super::source::{Prefixes, Source};

/// Entries without a sum that are looked for when one is added: more than one, so that they do not pile up.
const FORGET_AT_ONCE: usize = 4;

/// The sums of the sources that owe something.
#[derive(Debug)]
pub(super) struct PenaltyBook {
    rules: Penalties,
    prefixes: Prefixes,
    /// At most `rules.sources`.
    entries: HashMap<Source, Entry>,
    /// Who was penalized longest ago comes first.
    by_age: BTreeMap<u64, Source>,
    /// Whose sum is gone first comes first, with its age.
    by_end: BTreeSet<(Instant, u64)>,
    last_age: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Who was penalized last, for the day that other prefixes are set.
    peer: IpAddr,
    /// When nothing is left of the sum.
    until: Instant,
    /// The threshold was passed.
    is_enforced: bool,
    age: u64,
}

impl PenaltyBook {
    pub(super) fn new(rules: Penalties, prefixes: Prefixes) -> Self {
        Self {
            rules,
            prefixes,
            entries: HashMap::new(),
            by_age: BTreeMap::new(),
            by_end: BTreeSet::new(),
            last_age: 0,
        }
    }

    /// Takes other rules. Sums stay; where networks become one, the largest of theirs.
    pub(super) fn set_rules(&mut self, rules: Penalties, prefixes: Prefixes) {
        self.rules = rules;
        if std::mem::replace(&mut self.prefixes, prefixes) != prefixes {
            let former = std::mem::take(&mut self.entries);
            let ages = std::mem::take(&mut self.by_age);
            self.by_end.clear();
            for entry in ages.values().filter_map(|source| former.get(source)) {
                let source = Source::of(entry.peer, prefixes);
                let mut entry = *entry;
                if let Some(other) = self.take(&source) {
                    entry.until = entry.until.max(other.until);
                    entry.is_enforced |= other.is_enforced;
                }
                self.put(source, entry);
            }
        }
        self.make_room(0);
    }

    /// Whether connections of this peer's network are to be dropped.
    pub(super) fn is_penalized(&self, peer: IpAddr, now: Instant) -> bool {
        if !self.applies_to(peer) {
            return false;
        }
        let entry = self.entries.get(&Source::of(peer, self.prefixes));
        entry.is_some_and(|entry| entry.is_enforced && entry.until > now)
    }

    /// Adds what an end of a connection costs its source.
    pub(super) fn penalize(&mut self, peer: IpAddr, outcome: WorkerOutcome, now: Instant) {
        let Some(penalty) = penalty(&self.rules, outcome).filter(|_| self.applies_to(peer)) else {
            return;
        };
        self.forget_over(now);
        let source = Source::of(peer, self.prefixes);
        let owing = self.take(&source).filter(|entry| entry.until > now);
        let owed = owing.map_or(Duration::ZERO, |entry| entry.until.duration_since(now));
        let sum = owed.saturating_add(penalty);
        self.make_room(1);
        let entry = Entry {
            peer,
            until: now + sum.min(self.rules.maximum),
            is_enforced: owing.is_some_and(|entry| entry.is_enforced) || sum > self.rules.threshold,
            age: 0,
        };
        self.put(source, entry);
    }

    /// Sources that owe something, and those of them that are past the threshold.
    pub(super) fn counts(&self, now: Instant) -> (usize, usize) {
        let owing = self.entries.values().filter(|entry| entry.until > now);
        owing.fold((0, 0), |(all, enforced), entry| {
            (all + 1, enforced + usize::from(entry.is_enforced))
        })
    }

    fn applies_to(&self, peer: IpAddr) -> bool {
        let rules = &self.rules;
        rules.enabled && !rules.exempt.iter().any(|network| network.contains(peer))
    }

    /// Forgets a few of those that owe nothing any more.
    fn forget_over(&mut self, now: Instant) {
        for _ in 0..FORGET_AT_ONCE {
            let over = self.by_end.first().filter(|(until, _)| *until <= now);
            let Some(source) = over.and_then(|(_, age)| self.by_age.get(age).copied()) else {
                return;
            };
            self.take(&source);
        }
    }

    /// Forgets the oldest until there is room for `more`.
    fn make_room(&mut self, more: usize) {
        let max = usize::try_from(self.rules.sources).unwrap_or(usize::MAX);
        while self.entries.len().saturating_add(more) > max {
            let Some(oldest) = self.by_age.values().next().copied() else {
                return;
            };
            self.take(&oldest);
        }
    }

    fn take(&mut self, source: &Source) -> Option<Entry> {
        let entry = self.entries.remove(source)?;
        self.by_age.remove(&entry.age);
        self.by_end.remove(&(entry.until, entry.age));
        Some(entry)
    }

    /// Puts an entry in that is not there, as the youngest.
    fn put(&mut self, source: Source, entry: Entry) {
        self.last_age += 1;
        let age = self.last_age;
        self.by_age.insert(age, source);
        self.by_end.insert((entry.until, age));
        self.entries.insert(source, Entry { age, ..entry });
    }
}

/// What an end costs. What passes by itself, what the router is to blame for and what is nobody's fault costs nothing.
fn penalty(rules: &Penalties, outcome: WorkerOutcome) -> Option<Duration> {
    match outcome {
        WorkerOutcome::ProtocolError => Some(rules.protocol_error),
        WorkerOutcome::FailedAuthentication => Some(rules.failed_authentication),
        WorkerOutcome::HandshakeTimeout => Some(rules.handshake_timeout),
        WorkerOutcome::Crash => Some(rules.worker_crash),
        WorkerOutcome::Clean
        | WorkerOutcome::Refused
        | WorkerOutcome::UpstreamLost
        | WorkerOutcome::Timeout
        | WorkerOutcome::Overload
        | WorkerOutcome::Drained
        | WorkerOutcome::Internal => None,
    }
}

#[cfg(test)]
mod tests {
    use memory_config::Network;
    use proptest::prelude::*;

    use super::*;

    const PREFIXES: Prefixes = Prefixes { ipv4: 32, ipv6: 64 };

    /// The defaults of the configuration, as documented.
    fn rules() -> Penalties {
        Penalties {
            enabled: true,
            threshold: seconds(15),
            protocol_error: seconds(5),
            failed_authentication: seconds(5),
            handshake_timeout: seconds(10),
            worker_crash: seconds(60),
            maximum: seconds(600),
            sources: 65_536,
            exempt: Vec::new(),
        }
    }

    const fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn host(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    fn book(rules: Penalties) -> PenaltyBook {
        PenaltyBook::new(rules, PREFIXES)
    }

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    #[test]
    fn sums_are_added_up_and_enforced_past_the_threshold() {
        let now = Instant::now();
        let mut book = book(rules());
        for _ in 0..3 {
            book.penalize(PEER, WorkerOutcome::ProtocolError, now);
            assert!(!book.is_penalized(PEER, now));
        }
        // 15 s is the threshold, and not past it.
        book.penalize(PEER, WorkerOutcome::FailedAuthentication, now);
        assert!(book.is_penalized(PEER, now));
        assert!(!book.is_penalized(address("192.0.2.2"), now));
        // It waits for all that it has collected.
        assert!(book.is_penalized(PEER, now + Duration::from_millis(19_999)));
        assert!(!book.is_penalized(PEER, now + seconds(20)));
    }

    #[test]
    fn sums_decay_with_time() {
        let mut now = Instant::now();
        let mut book = book(rules());
        for _ in 0..100 {
            book.penalize(PEER, WorkerOutcome::HandshakeTimeout, now);
            assert!(!book.is_penalized(PEER, now));
            now += seconds(6);
            book.penalize(PEER, WorkerOutcome::ProtocolError, now);
            assert!(!book.is_penalized(PEER, now));
            now += seconds(9);
        }
        book.penalize(PEER, WorkerOutcome::HandshakeTimeout, now);
        now += seconds(4);
        book.penalize(PEER, WorkerOutcome::HandshakeTimeout, now);
        assert!(book.is_penalized(PEER, now));
    }

    #[test]
    fn one_crash_is_enough_and_the_maximum_bounds_the_wait() {
        let now = Instant::now();
        let mut book = book(rules());
        book.penalize(PEER, WorkerOutcome::Crash, now);
        assert!(book.is_penalized(PEER, now + Duration::from_millis(59_999)));
        assert!(!book.is_penalized(PEER, now + seconds(60)));
        for _ in 0..1000 {
            book.penalize(PEER, WorkerOutcome::Crash, now);
        }
        assert!(book.is_penalized(PEER, now + Duration::from_millis(599_999)));
        assert!(!book.is_penalized(PEER, now + seconds(600)));
        // Afterwards it starts over.
        book.penalize(PEER, WorkerOutcome::ProtocolError, now + seconds(600));
        assert!(!book.is_penalized(PEER, now + seconds(600)));
    }

    #[test]
    fn a_maximum_that_equals_the_threshold_is_enforced() {
        let now = Instant::now();
        let mut book = book(Penalties {
            maximum: seconds(15),
            ..rules()
        });
        book.penalize(PEER, WorkerOutcome::Crash, now);
        assert!(book.is_penalized(PEER, now));
        assert!(!book.is_penalized(PEER, now + seconds(15)));
    }

    #[test]
    fn only_misbehaviour_counts() {
        let now = Instant::now();
        let counted = [
            WorkerOutcome::ProtocolError,
            WorkerOutcome::FailedAuthentication,
            WorkerOutcome::HandshakeTimeout,
            WorkerOutcome::Crash,
        ];
        for outcome in WorkerOutcome::ALL {
            let mut book = book(rules());
            for _ in 0..1000 {
                book.penalize(PEER, outcome, now);
            }
            assert_eq!(
                book.is_penalized(PEER, now),
                counted.contains(&outcome),
                "{outcome:?}"
            );
            assert_eq!(book.entries.is_empty(), !counted.contains(&outcome));
        }
    }

    #[test]
    fn a_network_is_one_source() {
        let now = Instant::now();
        let mut book = book(rules());
        for peer in ["2001:db8::1", "2001:db8::2", "::ffff:192.0.2.1"] {
            book.penalize(address(peer), WorkerOutcome::Crash, now);
        }
        for (peer, penalized) in [
            ("2001:db8::ffff", true),
            ("2001:db8:0:1::1", false),
            ("192.0.2.1", true),
            ("192.0.2.2", false),
        ] {
            assert_eq!(book.is_penalized(address(peer), now), penalized, "{peer}");
        }
    }

    #[test]
    fn exempt_networks_and_the_switch_hold_at_once_and_sums_stay() {
        let now = Instant::now();
        let network = Network::parse("192.0.2.0/24").unwrap();
        let exempt = Penalties {
            exempt: vec![network],
            ..rules()
        };
        let off = Penalties {
            enabled: false,
            ..rules()
        };
        let mut book = book(rules());
        book.penalize(PEER, WorkerOutcome::Crash, now);
        for other in [exempt, off] {
            book.set_rules(other, PREFIXES);
            assert!(!book.is_penalized(PEER, now));
            book.penalize(address("192.0.2.9"), WorkerOutcome::Crash, now);
            assert_eq!(book.entries.len(), 1);
            book.set_rules(rules(), PREFIXES);
            assert!(book.is_penalized(PEER, now + seconds(59)));
        }
    }

    #[test]
    fn other_prefixes_keep_the_sums() {
        let now = Instant::now();
        let mut book = book(rules());
        book.penalize(address("192.0.2.1"), WorkerOutcome::ProtocolError, now);
        book.penalize(address("192.0.2.2"), WorkerOutcome::Crash, now);
        book.penalize(address("192.0.2.3"), WorkerOutcome::ProtocolError, now);
        let wide = Prefixes { ipv4: 24, ipv6: 64 };
        book.set_rules(rules(), wide);
        assert_eq!(
            (book.entries.len(), book.by_age.len(), book.by_end.len()),
            (1, 1, 1)
        );
        assert!(book.is_penalized(address("192.0.2.200"), now + seconds(59)));
        assert!(!book.is_penalized(address("192.0.2.200"), now + seconds(60)));
    }

    #[test]
    fn the_oldest_is_forgotten_when_there_are_too_many() {
        let now = Instant::now();
        let mut book = book(Penalties {
            sources: 3,
            ..rules()
        });
        for number in 0..3 {
            book.penalize(host(number), WorkerOutcome::Crash, now);
        }
        // Penalized again, it is not the oldest any more.
        book.penalize(host(0), WorkerOutcome::ProtocolError, now);
        book.penalize(host(3), WorkerOutcome::Crash, now);
        let penalized = |book: &PenaltyBook| {
            (0..4)
                .filter(|number| book.is_penalized(host(*number), now))
                .collect::<Vec<_>>()
        };
        assert_eq!(penalized(&book), [0, 2, 3]);
        book.set_rules(
            Penalties {
                sources: 1,
                ..rules()
            },
            PREFIXES,
        );
        assert_eq!(penalized(&book), [3]);
    }

    #[test]
    fn those_that_owe_nothing_any_more_make_room_first() {
        let now = Instant::now();
        let mut book = book(Penalties {
            sources: 3,
            ..rules()
        });
        book.penalize(host(0), WorkerOutcome::Crash, now);
        book.penalize(host(1), WorkerOutcome::ProtocolError, now);
        book.penalize(host(2), WorkerOutcome::Crash, now);
        let later = now + seconds(5);
        book.penalize(host(3), WorkerOutcome::Crash, later);
        for number in [0, 2, 3] {
            assert!(book.is_penalized(host(number), later), "{number}");
        }
    }

    proptest! {
        /// Any history: sums are those of a plain list, and the three tables agree.
        #[test]
        fn sums_agree_with_a_plain_list(
            steps in proptest::collection::vec((0..6_u32, 0..5_u64, 0..11_usize), 1..200),
        ) {
            let start = Instant::now();
            let mut now = start;
            let mut book = book(rules());
            // Of each host: when its sum is gone, and whether it is enforced.
            let mut model = [(start, false); 6];
            for (number, pause, outcome) in steps {
                now += seconds(pause);
                let outcome = WorkerOutcome::ALL[outcome];
                book.penalize(host(number), outcome, now);
                let entry = &mut model[number as usize];
                if let Some(penalty) = penalty(&rules(), outcome) {
                    let owed = entry.0.saturating_duration_since(now);
                    let enforced = entry.1 && !owed.is_zero();
                    entry.1 = enforced || owed + penalty > seconds(15);
                    entry.0 = now + (owed + penalty).min(seconds(600));
                }
                for (number, (until, enforced)) in (0..).zip(model) {
                    prop_assert_eq!(book.is_penalized(host(number), now), enforced && until > now);
                }
                prop_assert_eq!(book.entries.len(), book.by_age.len());
                prop_assert_eq!(book.entries.len(), book.by_end.len());
            }
        }
    }
}
