//! What the caps promise. Compiled under `#[cfg(test)]` alone.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const GENEROUS: AdmissionLimits = AdmissionLimits {
    workers: 1000,
    unauthenticated: 1000,
    per_source: 1000,
    unauthenticated_per_source: 1000,
    per_second: 100_000,
    per_source_per_second: 100_000,
    prefixes: Prefixes { ipv4: 32, ipv6: 64 },
};

fn id(number: u32) -> ConnectionId {
    ConnectionId::new(1, number.to_be_bytes())
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The `number`th of distinct IPv4 addresses.
fn host(number: u32) -> IpAddr {
    IpAddr::from((0x0a00_0000 + number).to_be_bytes())
}

#[test]
fn total_cap_admits_exactly_that_many() {
    let now = Instant::now();
    let mut admission = Admission::new(
        AdmissionLimits {
            workers: 5,
            ..GENEROUS
        },
        now,
    );
    for number in 0..5 {
        assert_eq!(admission.admit(id(number), host(number), now), Ok(()));
    }
    assert_eq!(admission.admit(id(5), host(5), now), Err(Refusal::Capacity));
    assert!(admission.authenticated(&id(0)));
    assert_eq!(admission.admit(id(5), host(5), now), Err(Refusal::Capacity));
    assert!(admission.release(&id(3), now));
    assert_eq!(admission.admit(id(5), host(5), now), Ok(()));
    assert_eq!(admission.admit(id(6), host(6), now), Err(Refusal::Capacity));
    assert_eq!(admission.live(), 5);
}

#[test]
fn unauthenticated_cap_admits_exactly_that_many_and_frees_on_authentication() {
    let now = Instant::now();
    let mut admission = Admission::new(
        AdmissionLimits {
            unauthenticated: 3,
            ..GENEROUS
        },
        now,
    );
    for number in 0..3 {
        assert_eq!(admission.admit(id(number), host(number), now), Ok(()));
    }
    assert_eq!(
        admission.admit(id(3), host(3), now),
        Err(Refusal::Unauthenticated)
    );
    assert!(admission.authenticated(&id(1)));
    assert_eq!(admission.admit(id(3), host(3), now), Ok(()));
    assert_eq!(
        admission.admit(id(4), host(4), now),
        Err(Refusal::Unauthenticated)
    );
    // Its place among the unauthenticated was given back when it authenticated, not again when it ends.
    assert!(admission.release(&id(1), now));
    assert_eq!(
        admission.admit(id(4), host(4), now),
        Err(Refusal::Unauthenticated)
    );
    assert!(admission.release(&id(0), now));
    assert_eq!(admission.admit(id(4), host(4), now), Ok(()));
}

#[test]
fn source_caps_admit_exactly_that_many_and_leave_others_alone() {
    let now = Instant::now();
    let limits = AdmissionLimits {
        per_source: 4,
        unauthenticated_per_source: 2,
        ..GENEROUS
    };
    let mut admission = Admission::new(limits, now);
    let source = address("192.0.2.1");
    assert_eq!(admission.admit(id(0), source, now), Ok(()));
    assert_eq!(admission.admit(id(1), source, now), Ok(()));
    assert_eq!(
        admission.admit(id(2), source, now),
        Err(Refusal::SourceUnauthenticated)
    );
    assert_eq!(admission.admit(id(2), address("192.0.2.2"), now), Ok(()));
    assert!(admission.authenticated(&id(0)));
    assert!(admission.authenticated(&id(1)));
    assert_eq!(admission.admit(id(3), source, now), Ok(()));
    assert_eq!(admission.admit(id(4), source, now), Ok(()));
    assert_eq!(admission.admit(id(5), source, now), Err(Refusal::Source));
    assert!(admission.release(&id(0), now));
    assert_eq!(
        admission.admit(id(5), source, now),
        Err(Refusal::SourceUnauthenticated)
    );
    assert!(admission.authenticated(&id(3)));
    assert_eq!(admission.admit(id(5), source, now), Ok(()));
    assert_eq!(admission.admit(id(6), source, now), Err(Refusal::Source));
}

#[test]
fn ipv4_mapped_and_ipv4_share_one_allowance() {
    let now = Instant::now();
    let mut admission = Admission::new(
        AdmissionLimits {
            per_source: 2,
            ..GENEROUS
        },
        now,
    );
    assert_eq!(admission.admit(id(0), address("192.0.2.1"), now), Ok(()));
    assert_eq!(
        admission.admit(id(1), address("::ffff:192.0.2.1"), now),
        Ok(())
    );
    assert_eq!(
        admission.admit(id(2), address("::ffff:192.0.2.1"), now),
        Err(Refusal::Source)
    );
    assert_eq!(
        admission.admit(id(2), address("192.0.2.1"), now),
        Err(Refusal::Source)
    );
    assert_eq!(
        admission.admit(id(2), address("::ffff:192.0.2.2"), now),
        Ok(())
    );
}

#[test]
fn a_whole_ipv6_network_shares_one_allowance() {
    let now = Instant::now();
    let mut admission = Admission::new(
        AdmissionLimits {
            per_source: 1,
            ..GENEROUS
        },
        now,
    );
    assert_eq!(admission.admit(id(0), address("2001:db8::1"), now), Ok(()));
    assert_eq!(
        admission.admit(id(1), address("2001:db8::ffff"), now),
        Err(Refusal::Source)
    );
    assert_eq!(
        admission.admit(id(1), address("2001:db8:0:1::1"), now),
        Ok(())
    );
}

#[test]
fn rates_admit_exactly_their_burst_and_refill_with_time() {
    let start = Instant::now();
    let limits = AdmissionLimits {
        per_second: 5,
        per_source_per_second: 2,
        ..GENEROUS
    };
    let mut admission = Admission::new(limits, start);
    let flood = address("192.0.2.1");
    assert_eq!(admission.admit(id(0), flood, start), Ok(()));
    assert_eq!(admission.admit(id(1), flood, start), Ok(()));
    for _ in 0..1000 {
        assert_eq!(
            admission.admit(id(2), flood, start),
            Err(Refusal::SourceRate)
        );
    }
    // The flood took two of the five; its refused attempts took none.
    for number in 2..5 {
        assert_eq!(admission.admit(id(number), host(number), start), Ok(()));
    }
    assert_eq!(admission.admit(id(5), host(5), start), Err(Refusal::Rate));
    let almost = start + Duration::from_nanos(199_999_999);
    assert_eq!(admission.admit(id(5), host(5), almost), Err(Refusal::Rate));
    let there = start + Duration::from_millis(200);
    assert_eq!(admission.admit(id(5), host(5), there), Ok(()));
    assert_eq!(admission.admit(id(6), host(6), there), Err(Refusal::Rate));
}

#[test]
fn reconnecting_does_not_renew_a_sources_rate() {
    let start = Instant::now();
    let mut admission = Admission::new(
        AdmissionLimits {
            per_source_per_second: 2,
            ..GENEROUS
        },
        start,
    );
    let source = address("192.0.2.1");
    for number in 0..2 {
        assert_eq!(admission.admit(id(number), source, start), Ok(()));
        assert!(admission.release(&id(number), start));
    }
    assert_eq!(
        admission.admit(id(2), source, start),
        Err(Refusal::SourceRate)
    );
    assert_eq!(
        admission.admit(id(2), source, start + Duration::from_millis(500)),
        Ok(())
    );
}

#[test]
fn release_and_authentication_count_once() {
    let now = Instant::now();
    let mut admission = Admission::new(
        AdmissionLimits {
            workers: 1,
            ..GENEROUS
        },
        now,
    );
    assert!(!admission.release(&id(9), now));
    assert!(!admission.authenticated(&id(9)));
    assert_eq!(admission.admit(id(0), host(0), now), Ok(()));
    assert!(admission.authenticated(&id(0)));
    assert!(!admission.authenticated(&id(0)));
    assert!(admission.release(&id(0), now));
    assert!(!admission.release(&id(0), now));
    assert!(!admission.authenticated(&id(0)));
    assert_eq!(admission.admit(id(1), host(0), now), Ok(()));
    assert_eq!(admission.admit(id(2), host(0), now), Err(Refusal::Capacity));
}

#[test]
fn losing_the_spawner_frees_every_place_but_not_the_rates() {
    let now = Instant::now();
    let limits = AdmissionLimits {
        workers: 2,
        per_source_per_second: 2,
        ..GENEROUS
    };
    let mut admission = Admission::new(limits, now);
    let source = address("192.0.2.1");
    assert_eq!(admission.admit(id(0), source, now), Ok(()));
    assert_eq!(admission.admit(id(1), source, now), Ok(()));
    assert_eq!(admission.release_all(now), 2);
    assert_eq!(admission.live(), 0);
    assert_eq!(
        admission.admit(id(2), source, now),
        Err(Refusal::SourceRate)
    );
    assert_eq!(admission.admit(id(2), host(1), now), Ok(()));
    assert_eq!(admission.admit(id(3), host(2), now), Ok(()));
    assert_eq!(admission.admit(id(4), host(3), now), Err(Refusal::Capacity));
}

#[test]
fn traffic_from_many_addresses_does_not_grow_the_table() {
    let start = Instant::now();
    let mut admission = Admission::new(
        AdmissionLimits {
            per_second: 2000,
            ..GENEROUS
        },
        start,
    );
    let mut at = start;
    for number in 0..200_000 {
        at += Duration::from_micros(100);
        if admission.admit(id(number), host(number), at).is_ok() {
            admission.release(&id(number), at);
        }
        // What a second admits, and as much again before the next sweep.
        assert!(admission.sources.len() <= 2 * (2000 + 2000) + SWEEP_MINIMUM);
    }
}

proptest! {
    /// Any interleaving: the counts are those of a plain list, and no cap is ever passed or missed.
    #[test]
    fn counts_agree_with_a_plain_list(steps in proptest::collection::vec((0..4_u8, 0..12_u32, 0..3_u32), 1..400)) {
        let now = Instant::now();
        let limits = AdmissionLimits {
            workers: 6,
            unauthenticated: 4,
            per_source: 4,
            unauthenticated_per_source: 2,
            ..GENEROUS
        };
        let mut admission = Admission::new(limits, now);
        let mut model: Vec<(u32, u32, bool)> = Vec::new();
        for (step, number, network) in steps {
            match step {
                0 | 1 => {
                    if model.iter().any(|entry| entry.0 == number) {
                        continue;
                    }
                    let fits = model.len() < 6
                        && model.iter().filter(|entry| !entry.2).count() < 4
                        && model.iter().filter(|entry| entry.1 == network).count() < 4
                        && model.iter().filter(|entry| entry.1 == network && !entry.2).count() < 2;
                    prop_assert_eq!(admission.admit(id(number), host(network), now).is_ok(), fits);
                    if fits {
                        model.push((number, network, false));
                    }
                }
                2 => {
                    let known = model.iter_mut().find(|entry| entry.0 == number && !entry.2);
                    prop_assert_eq!(admission.authenticated(&id(number)), known.is_some());
                    if let Some(entry) = known {
                        entry.2 = true;
                    }
                }
                _ => {
                    let before = model.len();
                    model.retain(|entry| entry.0 != number);
                    prop_assert_eq!(admission.release(&id(number), now), model.len() != before);
                }
            }
            prop_assert_eq!(admission.live(), model.len());
        }
    }
}
