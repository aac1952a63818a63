//! Compiled under `#[cfg(test)]` alone.
use std::io::Write;

use proptest::prelude::*;

use super::*;
use crate::json::JsonLimits;
use crate::message::project;

const SPACE: &str = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK";

/// An envelope built from its parts, without any of the checks of [`encode`].
fn envelope(expanded: usize, hint: &str, member: &[u8]) -> Vec<u8> {
    let mut bytes = ENVELOPE_MAGIC.to_vec();
    bytes.extend((expanded as u32).to_be_bytes());
    bytes.extend((hint.len() as u16).to_be_bytes());
    bytes.extend(hint.as_bytes());
    bytes.extend(member);
    bytes
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn text(len: usize) -> Vec<u8> {
    let mut text =
        format!("fvj1:{{\"type\":\"transact\",\"space\":\"{SPACE}\",\"v\":\"").into_bytes();
    let mut state = 1u32;
    while text.len() + 2 < len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        text.push(b'a' + ((state >> 24) % 16) as u8);
    }
    text.extend(b"\"}");
    text
}

fn opened(bytes: &[u8]) -> Result<Vec<u8>, EnvelopeFault> {
    decode(bytes, MAX_EXPANDED_LEN).map(|opened| opened.text)
}

#[test]
fn writes_what_a_gzip_reader_reads() {
    let text = text(50_000);
    let bytes = encode(&text, Some(SPACE)).unwrap();
    assert!(bytes.len() < text.len());
    assert_eq!(&bytes[..5], b"mcmp\x02");
    let mut expanded = Vec::new();
    let member = &bytes[ENVELOPE_HEADER_LEN + SPACE.len()..];
    std::io::copy(&mut flate2::bufread::GzDecoder::new(member), &mut expanded).unwrap();
    assert_eq!(expanded, text);
    let opened = decode(&bytes, MAX_EXPANDED_LEN).unwrap();
    let message = project(&opened.text, &JsonLimits::default()).unwrap();
    check_hint(&opened, &message).unwrap();
}

#[test]
fn keeps_as_text_what_is_not_worth_it_or_out_of_bounds() {
    assert_eq!(encode(&text(1023), None), None);
    assert!(encode(&text(1024), None).is_some());
    // Expands more than 32 times.
    assert_eq!(encode(&vec![b'a'; 1 << 20], None), None);
    // Not made smaller.
    let mut state = 7u64;
    let noise: Vec<u8> = (0..4096)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    assert_eq!(encode(&noise, None), None);
    assert_eq!(encode(&text(2000), Some("did:web:example")), None);
    assert_eq!(encode(&vec![b'a'; MAX_EXPANDED_LEN + 1], None), None);
}

#[test]
fn refuses_a_hint_that_differs_from_the_message() {
    let message = project(&text(100), &JsonLimits::default()).unwrap();
    for (hint, expected) in [
        (Some(SPACE.to_owned()), Ok(())),
        (None, Err(EnvelopeFault::Hint)),
    ] {
        let text = Vec::new();
        assert_eq!(check_hint(&Opened { text, hint }, &message), expected);
    }
    let silent = project(b"fvj1:{\"type\":\"x\"}", &JsonLimits::default()).unwrap();
    let hint = Some(SPACE.to_owned());
    let named = Opened {
        text: Vec::new(),
        hint,
    };
    assert_eq!(check_hint(&named, &silent), Err(EnvelopeFault::Hint));
}

#[test]
fn names_the_part_that_is_wrong() {
    let plain = text(300);
    let member = gzip(&plain);
    assert_eq!(opened(&envelope(300, SPACE, &member)), Ok(plain.clone()));
    assert_eq!(opened(b"mcm"), Err(EnvelopeFault::Magic));
    assert_eq!(opened(b"fvj1:{}"), Err(EnvelopeFault::Magic));
    assert_eq!(opened(b"mcmp\x01"), Err(EnvelopeFault::Version));
    assert_eq!(
        opened(&envelope(300, "did:key:z6Mk", &member)),
        Err(EnvelopeFault::Hint)
    );
    assert_eq!(
        opened(&envelope(300, &"x".repeat(65), &member)),
        Err(EnvelopeFault::Hint)
    );
    assert_eq!(
        opened(&envelope(299, SPACE, &member)),
        Err(EnvelopeFault::Length)
    );
    assert_eq!(
        opened(&envelope(301, SPACE, &member)),
        Err(EnvelopeFault::Length)
    );
    let too_long = member.len() * MAX_EXPANSION + 1;
    assert_eq!(
        opened(&envelope(too_long, SPACE, &member)),
        Err(EnvelopeFault::Expansion)
    );
    assert_eq!(
        decode(&envelope(300, SPACE, &member), 299),
        Err(EnvelopeFault::Expansion)
    );
    let mut trailing = member.clone();
    trailing.push(0);
    assert_eq!(
        opened(&envelope(300, SPACE, &trailing)),
        Err(EnvelopeFault::Member)
    );
    let mut twice = member.clone();
    twice.extend(&member);
    assert_eq!(
        opened(&envelope(300, SPACE, &twice)),
        Err(EnvelopeFault::Member)
    );
    for (at, expected) in [
        (0, EnvelopeFault::Member),
        (2, EnvelopeFault::Member),
        (3, EnvelopeFault::Member),
        (member.len() - 8, EnvelopeFault::Crc),
        (member.len() - 1, EnvelopeFault::Crc),
    ] {
        let mut bent = member.clone();
        bent[at] ^= 4;
        assert_eq!(
            opened(&envelope(300, SPACE, &bent)),
            Err(expected),
            "at {at}"
        );
    }
}

#[test]
fn stops_a_bomb_at_the_declared_length() {
    let bomb = gzip(&vec![0; 64 << 20]);
    assert_eq!(
        opened(&envelope(1000, "", &bomb)),
        Err(EnvelopeFault::Length)
    );
    assert_eq!(
        opened(&envelope(64 << 20, "", &bomb)),
        Err(EnvelopeFault::Expansion)
    );
}

#[test]
fn expands_nothing_to_nothing() {
    assert_eq!(opened(&envelope(0, "", &gzip(b""))), Ok(Vec::new()));
}

#[test]
fn every_prefix_is_refused() {
    let bytes = encode(&text(3000), Some(SPACE)).unwrap();
    for end in 0..bytes.len() {
        assert!(opened(&bytes[..end]).is_err(), "{end}");
    }
}

proptest! {
    #[test]
    fn round_trips(len in 1024..200_000usize, named: bool) {
        let text = text(len);
        let space = named.then_some(SPACE);
        let bytes = encode(&text, space).unwrap();
        prop_assert_eq!(decode(&bytes, MAX_EXPANDED_LEN), Ok(Opened { text, hint: space.map(str::to_owned) }));
    }

    #[test]
    fn never_panics_on_bent_bytes(bends in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = encode(&text(1500), Some(SPACE)).unwrap();
        for (at, byte) in bends {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode(&bytes, MAX_EXPANDED_LEN);
    }

    #[test]
    fn never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80), expanded in 0..100u32) {
        let _ = decode(&bytes, MAX_EXPANDED_LEN);
        let mut member = GZIP_HEADER.to_vec();
        member.extend(bytes);
        let _ = decode(&envelope(expanded as usize, "", &member), MAX_EXPANDED_LEN);
    }
}
