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

fn penalties() -> Penalties {
    const SECOND: Duration = Duration::from_secs(1);
    Penalties {
        enabled: true,
        threshold: SECOND,
        protocol_error: SECOND,
        failed_authentication: SECOND,
        handshake_timeout: SECOND,
        worker_crash: 60 * SECOND,
        maximum: 60 * SECOND,
        sources: 10,
        exempt: Vec::new(),
    }
}

fn admission_of(limits: AdmissionLimits, now: Instant) -> Admission {
    Admission::new(limits, penalties(), now)
}

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
    let mut admission = admission_of(
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
    let mut admission = admission_of(
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
    let mut admission = admission_of(limits, now);
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
    let mut admission = admission_of(
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
    let mut admission = admission_of(
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
    let mut admission = admission_of(limits, start);
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
    let mut admission = admission_of(
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
    let mut admission = admission_of(
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
    let mut admission = admission_of(limits, now);
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
fn caps_can_be_raised_and_lowered_under_live_connections() {
    let now = Instant::now();
    let mut admission = admission_of(GENEROUS, now);
    let limits = |workers| AdmissionLimits {
        workers,
        ..GENEROUS
    };
    admission.set_limits(limits(2), penalties(), now);
    for number in 1..=2 {
        assert_eq!(admission.admit(id(number), host(number), now), Ok(()));
    }
    assert_eq!(admission.admit(id(3), host(3), now), Err(Refusal::Capacity));
    admission.set_limits(limits(3), penalties(), now);
    assert_eq!(admission.admit(id(3), host(3), now), Ok(()));
    // Below what is there: nobody is dropped, and nobody admitted until it has fallen below.
    admission.set_limits(limits(1), penalties(), now);
    assert_eq!(admission.live(), 3);
    for gone in 1..=3 {
        assert_eq!(admission.admit(id(9), host(9), now), Err(Refusal::Capacity));
        assert!(admission.release(&id(gone), now));
    }
    assert_eq!(admission.admit(id(9), host(9), now), Ok(()));
}

#[test]
fn other_prefixes_count_the_live_connections_anew() {
    let now = Instant::now();
    let narrow = AdmissionLimits {
        per_source: 2,
        unauthenticated_per_source: 2,
        per_source_per_second: 2,
        ..GENEROUS
    };
    let wide = AdmissionLimits {
        prefixes: Prefixes { ipv4: 24, ipv6: 64 },
        ..narrow
    };
    let mut admission = admission_of(narrow, now);
    let peers = ["192.0.2.1", "192.0.2.2", "198.51.100.1"].map(address);
    for (number, peer) in (1..).zip(peers) {
        assert_eq!(admission.admit(id(number), peer, now), Ok(()));
    }
    assert!(admission.authenticated(&id(1)));
    admission.set_limits(wide, penalties(), now);
    // Two of one network, one of them authenticated; one of the other.
    let fourth = address("192.0.2.4");
    assert_eq!(admission.admit(id(4), fourth, now), Err(Refusal::Source));
    let fifth = address("198.51.100.5");
    assert_eq!(admission.admit(id(5), fifth, now), Ok(()));
    // Its rate was not renewed: one of two tokens had been taken.
    admission.release(&id(5), now);
    assert_eq!(admission.admit(id(6), fifth, now), Err(Refusal::SourceRate));
    for number in 1..=3 {
        assert!(admission.release(&id(number), now));
    }
    assert_eq!(admission.live(), 0);
    // And back: nothing is left counted.
    admission.set_limits(narrow, penalties(), now);
    for number in 1..=2 {
        assert_eq!(admission.admit(id(number), fourth, now), Ok(()));
    }
    assert_eq!(admission.admit(id(3), fourth, now), Err(Refusal::Source));
}

#[test]
fn traffic_from_many_addresses_does_not_grow_the_table() {
    let start = Instant::now();
    let mut admission = admission_of(
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

#[test]
fn who_misbehaves_is_dropped_and_who_was_refused_is_not() {
    let now = Instant::now();
    let mut admission = admission_of(GENEROUS, now);
    let [crashing, refused] = ["192.0.2.1", "192.0.2.2"].map(address);
    let mut connect = |peer: IpAddr, outcome| {
        let admitted = admission.admit(id(1), peer, now);
        assert_eq!(admission.end(&id(1), outcome, now), admitted.is_ok());
        assert_eq!(admission.live(), 0);
        admitted
    };
    for _ in 0..100 {
        assert_eq!(connect(refused, WorkerOutcome::Overload), Ok(()));
    }
    assert_eq!(connect(crashing, WorkerOutcome::Crash), Ok(()));
    assert_eq!(
        connect(crashing, WorkerOutcome::Clean),
        Err(Refusal::Penalized)
    );
    assert_eq!(connect(refused, WorkerOutcome::Clean), Ok(()));
    // An end that is told twice counts once, and so does one of a connection that was never there.
    assert!(!admission.end(&id(1), WorkerOutcome::Crash, now));
    assert_eq!(admission.admit(id(1), refused, now), Ok(()));
    // Penalties outlive the spawner and a reload.
    admission.release_all(now);
    admission.set_limits(GENEROUS, penalties(), now);
    let later = now + Duration::from_secs(59);
    assert_eq!(
        admission.admit(id(1), crashing, later),
        Err(Refusal::Penalized)
    );
    let over = now + Duration::from_secs(60);
    assert_eq!(admission.admit(id(1), crashing, over), Ok(()));
}

#[test]
fn waiting_for_headers_is_bounded_and_counts_nowhere_else() {
    let now = Instant::now();
    let limits = AdmissionLimits {
        unauthenticated: 2,
        per_source: 1,
        ..GENEROUS
    };
    let mut admission = admission_of(limits, now);
    let waiting = [(); 2].map(|()| admission.expect_header().unwrap());
    assert_eq!(
        admission.expect_header().unwrap_err(),
        Refusal::Unauthenticated
    );
    for number in 1..=2 {
        assert_eq!(admission.admit(id(number), host(number), now), Ok(()));
    }
    drop(waiting);
    assert!(admission.expect_header().is_ok());
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
        let mut admission = admission_of(limits, now);
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
