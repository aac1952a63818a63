//! Compiled under `#[cfg(test)]` alone.
use proptest::prelude::*;

use super::*;

fn opcodes() -> impl Strategy<Value = Opcode> {
    prop_oneof![
        Just(Opcode::Continuation),
        Just(Opcode::Text),
        Just(Opcode::Binary),
        Just(Opcode::Close),
        Just(Opcode::Ping),
        Just(Opcode::Pong),
    ]
}

fn headers() -> impl Strategy<Value = FrameHeader> {
    let lengths = prop_oneof![
        0..=130u64,
        0xfff0..=0x1_0010u64,
        0..=0x7fff_ffff_ffff_ffffu64,
    ];
    (any::<bool>(), opcodes(), lengths, any::<Option<[u8; 4]>>()).prop_map(
        |(fin, opcode, length, mask)| FrameHeader {
            fin: fin || opcode.is_control(),
            opcode,
            length: if opcode.is_control() {
                length % 126
            } else {
                length
            },
            mask,
        },
    )
}

fn reader_of(header: &FrameHeader) -> Role {
    match header.mask {
        Some(_) => Role::Server,
        None => Role::Client,
    }
}

#[test]
fn rejects_lengths_that_are_not_minimal() {
    for bytes in [&[0x82, 126, 0, 125][..], &[0x82, 126, 0, 0]] {
        assert_eq!(decode_header(bytes, Role::Client), Err(FrameFault::Length));
    }
    let mut long = vec![0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    assert_eq!(decode_header(&long, Role::Client), Err(FrameFault::Length));
    long[2] = 0x80;
    assert_eq!(decode_header(&long, Role::Client), Err(FrameFault::Length));
}

#[test]
fn rejects_reserved_bits_and_unknown_opcodes_on_the_first_byte() {
    for first in 0..=u8::MAX {
        let expected = if first & 0x70 != 0 {
            Err(FrameFault::ReservedBit)
        } else if !matches!(first & 0x0f, 0..=2 | 8..=10) {
            Err(FrameFault::Opcode)
        } else if first & 0x88 == 0x08 {
            Err(FrameFault::Control)
        } else {
            Ok(None)
        };
        assert_eq!(decode_header(&[first], Role::Server), expected);
    }
}

#[test]
fn rejects_the_wrong_mask_and_long_control_frames() {
    assert_eq!(
        decode_header(&[0x82, 0x05], Role::Server),
        Err(FrameFault::Mask)
    );
    assert_eq!(
        decode_header(&[0x82, 0x85], Role::Client),
        Err(FrameFault::Mask)
    );
    assert_eq!(
        decode_header(&[0x89, 126], Role::Client),
        Err(FrameFault::Control)
    );
    assert_eq!(
        decode_header(&[0x89, 127], Role::Client),
        Err(FrameFault::Control)
    );
}

#[test]
fn keeps_the_open_message_across_control_frames() {
    let frame = |opcode, fin| FrameHeader {
        fin,
        opcode,
        length: 0,
        mask: None,
    };
    let mut state = FragmentState::default();
    assert_eq!(
        state.accept(&frame(Opcode::Continuation, true)),
        Err(FrameFault::Fragment)
    );
    state.accept(&frame(Opcode::Text, false)).unwrap();
    assert_eq!(state.accept(&frame(Opcode::Ping, true)), Ok(Step::Control));
    assert_eq!(
        state.accept(&frame(Opcode::Binary, true)),
        Err(FrameFault::Fragment)
    );
    assert_eq!(
        state.accept(&frame(Opcode::Continuation, true)),
        Ok(Step::Data {
            kind: Opcode::Text,
            first: false,
            last: true
        })
    );
    assert!(!state.is_open());
}

proptest! {
    #[test]
    fn round_trips_and_waits_on_every_prefix(header in headers()) {
        let encoded = encode_header(&header);
        let bytes = encoded.as_slice();
        let role = reader_of(&header);
        prop_assert_eq!(decode_header(bytes, role), Ok(Some((header, bytes.len()))));
        for end in 0..bytes.len() {
            prop_assert_eq!(decode_header(&bytes[..end], role), Ok(None));
        }
        let mut more = bytes.to_vec();
        more.extend([0xff; 3]);
        prop_assert_eq!(decode_header(&more, role), Ok(Some((header, bytes.len()))));
    }

    #[test]
    fn what_decodes_encodes_to_the_same_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..16), server: bool) {
        let role = if server { Role::Server } else { Role::Client };
        if let Ok(Some((header, used))) = decode_header(&bytes, role) {
            let encoded = encode_header(&header);
            prop_assert_eq!(encoded.as_slice(), &bytes[..used]);
        }
    }

    #[test]
    fn masks_as_byte_by_byte_does(
        payload in proptest::collection::vec(any::<u8>(), 0..70),
        mask: [u8; 4],
        cut in 0..70usize,
        offset in 0..9usize,
    ) {
        let expected: Vec<u8> = payload.iter().enumerate().map(|(at, byte)| byte ^ mask[(at + offset) % 4]).collect();
        let mut masked = payload;
        let cut = cut.min(masked.len());
        apply_mask(&mut masked[..cut], mask, offset);
        apply_mask(&mut masked[cut..], mask, offset + cut);
        prop_assert_eq!(masked, expected);
    }

    #[test]
    fn checks_text_in_parts_as_in_one(
        text in prop_oneof![".{0,12}".prop_map(String::into_bytes), proptest::collection::vec(any::<u8>(), 0..12)],
        cuts in proptest::collection::vec(0..12usize, 0..4),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.sort_unstable();
        cuts.push(text.len());
        let mut check = Utf8Check::new();
        let mut start = 0;
        let mut result = Ok(());
        for cut in cuts {
            result = result.and_then(|()| check.feed(&text[start..cut]));
            start = cut;
        }
        let result = result.and_then(|()| check.finish());
        prop_assert_eq!(result.is_ok(), std::str::from_utf8(&text).is_ok());
    }
}
