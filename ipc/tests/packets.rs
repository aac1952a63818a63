//! The bytes of every packet.
// The lint lets test functions alone, but not the helpers around them.
#![allow(clippy::expect_used)]

use std::collections::BTreeSet;
use std::fmt::Debug;

use memory_ipc::packets::{
    BrokerToLinkAgent, BrokerToWorker, Detail, KeyAgentToSpawner, KeyAgentToWorker,
    LinkAgentToBroker, LinkAgentToWorker, ListenerToSpawner, MAX_REPORTED_REFUSALS, MAX_SCHEMES,
    REPORTED_BUCKETS, REPORTED_BUDGETS, REPORTED_LATENCIES, Report, SpawnerToListener,
    WorkerToBroker, WorkerToKeyAgent, WorkerToLinkAgent, WorkerToSpawner,
};
use memory_ipc::{MAX_PACKET_LEN, Packet, PacketError, WorkerOutcome};
use memory_wire::codec::{DecodeError, EncodeError, MAX_SAFE_INTEGER};
use proptest::prelude::*;

mod samples;
use samples::{Samples, connection, did, peer, ticket, with_all_samples};

#[test]
fn every_packet_round_trips_with_its_tag_and_descriptors() {
    fn check<P: Packet + PartialEq + Debug>(samples: &Samples<P>) {
        for (packet, tag, descriptors) in samples {
            let bytes = packet.encode().expect("sample");
            assert!(bytes.starts_with(tag) && bytes.len() <= MAX_PACKET_LEN);
            assert!(P::decode(&bytes).as_ref() == Ok(packet), "{packet:?}");
            assert_eq!(packet.expected_descriptors(), *descriptors, "{packet:?}");
        }
    }
    with_all_samples!(check);
}

#[test]
fn every_tag_of_a_direction_is_its_own() {
    fn check<P>(samples: &Samples<P>) {
        let tags: BTreeSet<_> = samples.iter().map(|(_, tag, _)| *tag).collect();
        assert_eq!(tags.len(), samples.len());
    }
    with_all_samples!(check);
}

#[test]
fn every_truncation_and_every_tail_is_refused() {
    fn check<P: Packet + Debug>(samples: &Samples<P>) {
        for (packet, ..) in samples {
            let mut bytes = packet.encode().expect("sample");
            for length in 0..bytes.len() {
                assert!(P::decode(&bytes[..length]).is_err(), "{packet:?} {length}");
            }
            bytes.push(0);
            assert!(P::decode(&bytes).is_err(), "{packet:?}");
        }
    }
    with_all_samples!(check);
}

#[test]
fn every_other_tag_is_refused() {
    fn check<P: Packet + Debug>(samples: &Samples<P>) {
        for (packet, tag, _) in samples.iter().filter(|(_, tag, _)| tag.len() == 4) {
            let mut bytes = packet.encode().expect("sample");
            bytes[3] = b'2';
            assert_eq!(
                P::decode(&bytes).err(),
                Some(PacketError::UnknownTag),
                "{tag:?}"
            );
        }
        for bytes in [&b""[..], &b"\x01"[..], &b"\0\0"[..], &b"mra1"[..]] {
            assert_eq!(P::decode(bytes).err(), Some(PacketError::UnknownTag));
        }
    }
    with_all_samples!(check);
}

#[test]
fn the_confirmation_is_known_only_where_it_belongs() {
    assert!(BrokerToWorker::decode(&[0]) == Ok(BrokerToWorker::Confirmed));
    assert!(LinkAgentToBroker::decode(&[0]) == Ok(LinkAgentToBroker::Confirmed));
    assert!(LinkAgentToWorker::decode(&[0]).is_err());
    assert!(WorkerToBroker::decode(&[0]).is_err());
    assert!(BrokerToLinkAgent::decode(&[0]).is_err());
}

#[test]
fn assignments_are_laid_out_as_specified() {
    let mut expected = b"mdf1\x01\x02".to_vec();
    expected.extend([9; 32]);
    let rollback = WorkerToBroker::Rollback {
        index: 0x0102,
        ticket: ticket(9),
    };
    assert_eq!(rollback.encode().as_ref(), Ok(&expected));
    let rollback = BrokerToLinkAgent::Rollback {
        index: 0x0102,
        ticket: ticket(9),
    };
    assert_eq!(rollback.encode().as_ref(), Ok(&expected));
    expected[2] = b'c';
    let commit = WorkerToBroker::Commit {
        index: 0x0102,
        ticket: ticket(9),
    };
    assert_eq!(commit.encode().as_ref(), Ok(&expected));
    assert_eq!(expected.len(), 38);
    assert_eq!(BrokerToWorker::Confirmed.encode(), Ok(vec![0]));
}

#[test]
fn fields_are_laid_out_as_documented() {
    let new = ListenerToSpawner::NewConnection {
        connection: connection(),
        peer: peer(),
        accepted_unix_ms: 0x0001_0203_0405,
    };
    let expected = b"ncn1\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\
        \x00\x12[2001:db8::1]:4433\x00\x00\x00\x01\x02\x03\x04\x05";
    assert_eq!(new.encode().expect("sample"), expected);

    let announce = KeyAgentToSpawner::KeyAnnounce {
        announcement: 258,
        schemes: vec![0x0403, 0x0807],
    };
    assert_eq!(
        announce.encode().expect("sample"),
        b"kal1\x00\x00\x01\x02\x00\x04\x04\x03\x08\x07"
    );

    let finished = WorkerToSpawner::Finished {
        outcome: WorkerOutcome::Crash,
        reason: 7,
    };
    assert_eq!(finished.encode().expect("sample"), b"fin1\x04\x07");

    let signed = KeyAgentToWorker::Signed {
        sequence: 0x0102_0304,
        status: 0,
        signature: b"sig".to_vec(),
    };
    assert_eq!(
        signed.encode().expect("sample"),
        b"ksr1\x01\x02\x03\x04\x00\x00\x03sig"
    );
}

#[test]
fn values_with_several_spellings_are_refused_in_all_but_one() {
    let fields_of_new = |peer: &str| {
        let mut bytes = b"ncn1\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x00".to_vec();
        bytes.push(u8::try_from(peer.len()).expect("short"));
        bytes.extend(peer.as_bytes());
        bytes.extend([0; 8]);
        ListenerToSpawner::decode(&bytes).err()
    };
    assert_eq!(fields_of_new("[::1]:80"), None);
    assert_eq!(fields_of_new("127.0.0.1:80"), None);
    for peer in [
        "[0::1]:80",
        "127.0.0.1:080",
        "localhost:80",
        "127.0.0.1",
        "[::1]",
    ] {
        assert_eq!(
            fields_of_new(peer),
            Some(DecodeError::Value.into()),
            "{peer}"
        );
    }

    assert!(SpawnerToListener::decode(b"rdy1\x00").is_ok());
    assert!(SpawnerToListener::decode(b"rdy1\x01").is_ok());
    let refused = SpawnerToListener::decode(b"rdy1\x02").err();
    assert_eq!(refused, Some(DecodeError::Value.into()));
    let refused = WorkerToSpawner::decode(b"fin1\xff\x00").err();
    assert_eq!(refused, Some(DecodeError::Value.into()));

    let admitted = |has_ticket: u8, byte: u8| {
        let mut bytes = b"bat1\x00\x00\x00\x01".to_vec();
        bytes.push(has_ticket);
        bytes.extend([byte; 32]);
        LinkAgentToBroker::decode(&bytes)
    };
    let none = LinkAgentToBroker::Admitted {
        sequence: 1,
        ticket: None,
    };
    assert!(admitted(0, 0) == Ok(none));
    assert!(admitted(1, 0).is_ok());
    assert_eq!(admitted(0, 1).err(), Some(DecodeError::Value.into()));
    assert_eq!(admitted(2, 1).err(), Some(DecodeError::Value.into()));

    let release = |principal: &str| {
        let mut bytes = b"wrl1\x00\x00\x00\x01\x00".to_vec();
        bytes.push(u8::try_from(principal.len()).expect("short"));
        bytes.extend(principal.as_bytes());
        WorkerToLinkAgent::decode(&bytes).err()
    };
    assert_eq!(release(did().as_str()), None);
    assert_eq!(release("did:key:z6Mk"), Some(DecodeError::Did.into()));
}

#[test]
fn fields_over_their_bounds_are_not_encoded() {
    let sign = |input: Vec<u8>| {
        WorkerToKeyAgent::Sign {
            sequence: 1,
            scheme: 0x0403,
            input,
        }
        .encode()
        .err()
    };
    assert_eq!(sign(vec![0; 4096]), None);
    assert_eq!(sign(vec![0; 4097]), Some(EncodeError::BlobLength.into()));

    let announce = |count: usize| {
        KeyAgentToSpawner::KeyAnnounce {
            announcement: 1,
            schemes: vec![1; count],
        }
        .encode()
        .err()
    };
    assert_eq!(announce(0), Some(EncodeError::BlobLength.into()));
    assert_eq!(announce(MAX_SCHEMES), None);
    assert_eq!(
        announce(MAX_SCHEMES + 1),
        Some(EncodeError::BlobLength.into())
    );
    for bytes in [
        &b"kal1\0\0\0\x01\0\0"[..],
        &b"kal1\0\0\0\x01\0\x01\x04"[..],
        &b"kal1\0\0\0\x01\0\x03\x04\x03\x08"[..],
    ] {
        let refused = KeyAgentToSpawner::decode(bytes).err();
        assert_eq!(refused, Some(DecodeError::BlobLength.into()));
    }

    let event = WorkerToSpawner::Event {
        level: 3,
        reason: 0,
        detail: Detail::default(),
        bytes_in: MAX_SAFE_INTEGER + 1,
        bytes_out: 0,
    };
    assert_eq!(
        event.encode().err(),
        Some(EncodeError::UnsafeInteger.into())
    );
}

#[test]
fn a_report_is_as_long_as_documented() {
    let report = |refusals: Vec<(u8, u64)>| WorkerToSpawner::Report {
        report: Box::new(Report {
            refusals,
            ..Report::default()
        }),
    };
    let empty = report(Vec::new()).encode().expect("sample");
    let numbers =
        4 + 3 * REPORTED_BUDGETS.len() + (REPORTED_BUCKETS + 1) * REPORTED_LATENCIES.len();
    assert_eq!(empty, [b"rpt1", &vec![0; 8 * numbers + 1][..]].concat());
    let refusals = (0..64).map(|code| (code, 1)).collect();
    let full = report(refusals).encode().expect("sample");
    assert_eq!(full.len(), empty.len() + 9 * MAX_REPORTED_REFUSALS);
    assert_eq!(full.len(), 1477);
}

#[test]
fn the_refusals_of_a_report_have_one_spelling() {
    let rest = |refusals: &[(u8, u64)]| {
        let packet = WorkerToSpawner::Report {
            report: Box::default(),
        };
        let mut bytes = packet.encode().expect("sample");
        bytes.pop();
        bytes.push(u8::try_from(refusals.len()).expect("few"));
        for (code, times) in refusals {
            bytes.push(*code);
            bytes.extend(times.to_be_bytes());
        }
        WorkerToSpawner::decode(&bytes).err()
    };
    assert_eq!(rest(&[(0, 1), (7, MAX_SAFE_INTEGER), (255, 2)]), None);
    let value = Some(DecodeError::Value.into());
    assert_eq!(rest(&[(7, 1), (7, 1)]), value);
    assert_eq!(rest(&[(8, 1), (7, 1)]), value);
    assert_eq!(rest(&[(7, 0)]), value);
    let unsafe_integer = Some(DecodeError::UnsafeInteger.into());
    assert_eq!(rest(&[(7, MAX_SAFE_INTEGER + 1)]), unsafe_integer);
    let many: Vec<(u8, u64)> = (0..65).map(|code| (code, 1)).collect();
    assert_eq!(rest(&many), Some(DecodeError::BlobLength.into()));
    for refusals in [many, vec![(2, 1), (1, 1)], vec![(1, 0)]] {
        let report = Box::new(Report {
            refusals,
            ..Report::default()
        });
        let refused = WorkerToSpawner::Report { report }.encode().err();
        assert_eq!(refused, Some(EncodeError::BlobLength.into()));
    }
}

#[test]
fn details_are_clipped_at_a_character_and_escaped() {
    assert_eq!(
        Detail::clipped(&"a".repeat(300)).as_bytes(),
        "a".repeat(256).as_bytes()
    );
    let clipped = Detail::clipped(&format!("{}ä", "a".repeat(255)));
    assert_eq!(clipped.as_bytes(), "a".repeat(255).as_bytes());
    assert_eq!(
        Detail::clipped("a\nä\u{1b}[1m").to_string(),
        "a\\n\\xc3\\xa4\\x1b[1m"
    );
    assert!(Detail::clipped("").is_empty());
    let mut bytes = b"evt1\x03\x00\x01\x01".to_vec();
    bytes.extend([b'a'; 257]);
    bytes.extend([0; 16]);
    let refused = WorkerToSpawner::decode(&bytes).err();
    assert_eq!(refused, Some(DecodeError::BlobLength.into()));
}

#[test]
fn a_packet_prints_its_name_alone() {
    let rollback = WorkerToBroker::Rollback {
        index: 1,
        ticket: ticket(9),
    };
    assert_eq!(format!("{rollback:?}"), "WorkerToBroker::Rollback");
    assert_eq!(
        format!("{:?}", BrokerToWorker::Confirmed),
        "BrokerToWorker::Confirmed"
    );
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_without_panic_and_only_if_canonical(
        bytes in proptest::collection::vec(any::<u8>(), 0..200)
    ) {
        fn check<P: Packet + Debug>(samples: &Samples<P>, rest: &[u8]) {
            is_canonical::<P>(rest);
            for (_, tag, _) in samples {
                is_canonical::<P>(&[*tag, rest].concat());
            }
        }
        with_all_samples!(check, &bytes);
    }

    #[test]
    fn any_changed_packet_is_decoded_without_panic_and_only_if_canonical(
        place in any::<prop::sample::Index>(), byte: u8, insert: bool
    ) {
        fn check<P: Packet + Debug>(
            samples: &Samples<P>,
            place: prop::sample::Index,
            byte: u8,
            insert: bool,
        ) {
            for (packet, ..) in samples {
                let mut bytes = packet.encode().expect("sample");
                let place = place.index(bytes.len());
                if insert {
                    bytes.insert(place, byte);
                } else {
                    bytes[place] = byte;
                }
                is_canonical::<P>(&bytes);
            }
        }
        with_all_samples!(check, place, byte, insert);
    }
}

/// What decodes encodes to the same bytes.
fn is_canonical<P: Packet + Debug>(bytes: &[u8]) {
    if let Ok(packet) = P::decode(bytes) {
        assert_eq!(packet.encode().as_deref(), Ok(bytes), "{packet:?}");
    }
}
