//! The frame codec and the upgrade against tungstenite, an implementation that was written by others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::VecDeque;
use std::io::{self, Cursor, Read, Write};

use memory_wire::frame::{
    Close, FragmentState, FrameHeader, MAX_CONTROL_LEN, Opcode, Role, Step, Utf8Check, apply_mask,
    decode_close, decode_header, encode_close, encode_header, is_close_code,
};
use memory_wire::upgrade::{
    Endpoint, PUBLIC_PATH, Parsed, UpgradePolicy, client_request, encode_key, parse_request,
    parse_response, switching_protocols,
};
use proptest::prelude::*;
use tungstenite::protocol::frame::FrameHeader as TheirHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};
use tungstenite::protocol::{CloseFrame, Role as TheirRole};
use tungstenite::{Message, WebSocket};

/// One side's view of a connection: what it reads was prepared, what it writes is kept.
#[derive(Debug, Default)]
struct Memory {
    input: Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Read for Memory {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer)
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A frame with its payload in clear.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    header: FrameHeader,
    payload: Vec<u8>,
}

fn their_opcode(opcode: Opcode) -> OpCode {
    match opcode {
        Opcode::Continuation => OpCode::Data(Data::Continue),
        Opcode::Text => OpCode::Data(Data::Text),
        Opcode::Binary => OpCode::Data(Data::Binary),
        Opcode::Close => OpCode::Control(Control::Close),
        Opcode::Ping => OpCode::Control(Control::Ping),
        Opcode::Pong => OpCode::Control(Control::Pong),
    }
}

/// Reads every frame with our codec, as a reader in `role`.
fn decode_all(mut bytes: &[u8], role: Role) -> Vec<Frame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (header, used) = decode_header(bytes, role)
            .expect("valid")
            .expect("complete");
        let (payload, rest) = bytes[used..].split_at(header.length as usize);
        let mut payload = payload.to_vec();
        if let Some(mask) = header.mask {
            apply_mask(&mut payload, mask, 0);
        }
        frames.push(Frame { header, payload });
        bytes = rest;
    }
    frames
}

fn encode(bytes: &mut Vec<u8>, opcode: Opcode, fin: bool, mask: Option<[u8; 4]>, payload: &[u8]) {
    let header = FrameHeader {
        fin,
        opcode,
        length: payload.len() as u64,
        mask,
    };
    bytes.extend(encode_header(&header).as_slice());
    let start = bytes.len();
    bytes.extend(payload);
    if let Some(mask) = mask {
        apply_mask(&mut bytes[start..], mask, 0);
    }
}

/// Lengths around every change of form, and some others.
fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..=130usize,
        Just(125),
        Just(126),
        Just(127),
        65_530..=65_540usize,
        0..=200_000usize,
    ]
}

fn messages() -> impl Strategy<Value = Message> {
    let payload = |len: usize| -> Vec<u8> { (0..len).map(|at| (at * 7) as u8).collect() };
    prop_oneof![
        lengths().prop_map(move |len| Message::binary(payload(len))),
        ".{0,300}".prop_map(Message::text),
        (0..=125usize).prop_map(move |len| Message::Ping(payload(len).into())),
        (0..=125usize).prop_map(move |len| Message::Pong(payload(len).into())),
    ]
}

proptest! {
    #[test]
    fn headers_are_read_and_written_alike(
        opcode in prop_oneof![
            Just(Opcode::Continuation), Just(Opcode::Text), Just(Opcode::Binary),
            Just(Opcode::Close), Just(Opcode::Ping), Just(Opcode::Pong),
        ],
        fin: bool,
        mask: Option<[u8; 4]>,
        length in prop_oneof![0..=130u64, 65_530..=65_540u64, 0..=(u64::MAX >> 1)],
    ) {
        let length = if opcode.is_control() { length % (MAX_CONTROL_LEN + 1) } else { length };
        let header = FrameHeader { fin: fin || opcode.is_control(), opcode, length, mask };
        let theirs = TheirHeader {
            is_final: header.fin,
            rsv1: false,
            rsv2: false,
            rsv3: false,
            opcode: their_opcode(opcode),
            mask,
        };
        let mut bytes = Vec::new();
        theirs.format(length, &mut bytes).unwrap();
        let encoded = encode_header(&header);
        prop_assert_eq!(encoded.as_slice(), &bytes[..]);
        let role = if mask.is_some() { Role::Server } else { Role::Client };
        prop_assert_eq!(decode_header(&bytes, role), Ok(Some((header, bytes.len()))));
    }

    /// Whatever we take for a header they take for the same one. The other way round they are more generous.
    #[test]
    fn any_header_we_accept_is_theirs(mut bytes in proptest::collection::vec(any::<u8>(), 0..16), server: bool) {
        if let Some(first) = bytes.first_mut() {
            // Most random first bytes are refused for their reserved bits.
            *first &= 0x8f;
        }
        let role = if server { Role::Server } else { Role::Client };
        let mut cursor = Cursor::new(&bytes);
        match decode_header(&bytes, role) {
            Ok(Some((header, used))) => {
                let (theirs, length) = TheirHeader::parse(&mut cursor).unwrap().unwrap();
                prop_assert_eq!(cursor.position(), used as u64);
                prop_assert_eq!(length, header.length);
                prop_assert_eq!(theirs.is_final, header.fin);
                prop_assert_eq!(theirs.opcode, their_opcode(header.opcode));
                prop_assert_eq!(theirs.mask, header.mask);
            }
            Ok(None) => prop_assert!(TheirHeader::parse(&mut cursor).unwrap().is_none()),
            Err(_) => {}
        }
    }

    #[test]
    fn we_read_what_they_write(sent in proptest::collection::vec(messages(), 0..6), client: bool) {
        let (their_role, our_role) = if client {
            (TheirRole::Client, Role::Server)
        } else {
            (TheirRole::Server, Role::Client)
        };
        let mut socket = WebSocket::from_raw_socket(Memory::default(), their_role, None);
        for message in &sent {
            socket.write(message.clone()).unwrap();
        }
        socket.flush().unwrap();
        let frames = decode_all(&socket.get_ref().output, our_role);
        prop_assert_eq!(frames.len(), sent.len());
        let mut state = FragmentState::default();
        for (frame, message) in frames.iter().zip(&sent) {
            let expected = match message {
                Message::Text(_) => Opcode::Text,
                Message::Binary(_) => Opcode::Binary,
                Message::Ping(_) => Opcode::Ping,
                _ => Opcode::Pong,
            };
            prop_assert_eq!(frame.header.opcode, expected);
            let step = state.accept(&frame.header).unwrap();
            let whole = Step::Data { kind: expected, first: true, last: true };
            prop_assert_eq!(step, if expected.is_control() { Step::Control } else { whole });
            let data = message.clone().into_data();
            prop_assert_eq!(&frame.payload[..], &data[..]);
        }
    }

    /// Messages that we cut anywhere, with control frames in between, arrive whole.
    #[test]
    fn they_read_what_we_write(
        sent in proptest::collection::vec((messages(), proptest::collection::vec(any::<prop::sample::Index>(), 0..4)), 1..5),
        mask: [u8; 4],
        client: bool,
    ) {
        let (their_role, mask) = if client {
            (TheirRole::Server, Some(mask))
        } else {
            (TheirRole::Client, None)
        };
        let mut bytes = Vec::new();
        let mut expected = VecDeque::new();
        for (message, cuts) in sent {
            let data = message.clone().into_data();
            let kind = match &message {
                Message::Text(_) => Opcode::Text,
                Message::Binary(_) => Opcode::Binary,
                Message::Ping(_) => Opcode::Ping,
                _ => Opcode::Pong,
            };
            if kind.is_control() {
                encode(&mut bytes, kind, true, mask, &data);
                expected.push_back(message);
                continue;
            }
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(data.len() + 1)).collect();
            ends.sort_unstable();
            ends.push(data.len());
            let mut check = Utf8Check::new();
            let mut start = 0;
            for (part, end) in ends.iter().enumerate() {
                let opcode = if part == 0 { kind } else { Opcode::Continuation };
                let last = part + 1 == ends.len();
                encode(&mut bytes, opcode, last, mask, &data[start..*end]);
                if kind == Opcode::Text {
                    prop_assert!(check.feed(&data[start..*end]).is_ok());
                }
                if !last {
                    encode(&mut bytes, Opcode::Ping, true, mask, b"between");
                    expected.push_back(Message::Ping(b"between".to_vec().into()));
                }
                start = *end;
            }
            prop_assert!(check.finish().is_ok());
            expected.push_back(message);
        }
        encode(&mut bytes, Opcode::Close, true, mask, &encode_close(1012, "drain").unwrap());
        let stream = Memory { input: Cursor::new(bytes), output: Vec::new() };
        let mut socket = WebSocket::from_raw_socket(stream, their_role, None);
        for message in expected {
            prop_assert_eq!(socket.read().unwrap(), message);
        }
        let close = CloseFrame { code: 1012.into(), reason: "drain".into() };
        prop_assert_eq!(socket.read().unwrap(), Message::Close(Some(close)));
    }
}

#[test]
fn close_codes_are_judged_alike() {
    for code in 0..=u16::MAX {
        let theirs = tungstenite::protocol::frame::coding::CloseCode::from(code).is_allowed();
        // They do not know 1014 of the registry, and take a block that it has not given out.
        if code != 1014 && !(1016..3000).contains(&code) {
            assert_eq!(is_close_code(code), theirs, "{code}");
        }
    }
}

#[test]
fn close_frames_are_read_alike() {
    let mut socket = WebSocket::from_raw_socket(Memory::default(), TheirRole::Client, None);
    let frame = CloseFrame {
        code: 1008.into(),
        reason: "client-protocol".into(),
    };
    socket.close(Some(frame)).unwrap();
    let frames = decode_all(&socket.get_ref().output, Role::Server);
    let expected = Close {
        code: 1008,
        reason: "client-protocol",
    };
    assert_eq!(decode_close(&frames[0].payload), Ok(Some(expected)));
}

/// A server that answers the bytes written to it with our half of the upgrade.
struct Answering {
    request: Vec<u8>,
    answer: Option<Cursor<Vec<u8>>>,
}

impl Read for Answering {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let request = &self.request;
        let answer = self.answer.get_or_insert_with(|| {
            let policy = UpgradePolicy::Public {
                host: "router.example:8443".to_owned(),
                origins: Vec::new(),
                require_origin: false,
            };
            match parse_request(request, &policy) {
                Ok(Parsed::Complete { request, .. }) => {
                    assert_eq!(request.endpoint, Endpoint::Public { space: None });
                    Cursor::new(switching_protocols(&request.key))
                }
                other => panic!("{other:?}"),
            }
        });
        answer.read(buffer)
    }
}

impl Write for Answering {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.request.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn their_client_upgrades_with_our_server() {
    let stream = Answering {
        request: Vec::new(),
        answer: None,
    };
    let address = format!("ws://router.example:8443{PUBLIC_PATH}");
    assert!(tungstenite::client(address, stream).is_ok());
}

#[test]
fn our_client_upgrades_with_their_server() {
    let key = encode_key(&[0x5a; 16]);
    let request = client_request("toolshed:1", "/memory/router-data", &key).unwrap();
    let stream = Memory {
        input: Cursor::new(request),
        output: Vec::new(),
    };
    let socket = tungstenite::accept(stream).expect("an upgrade");
    let answer = &socket.get_ref().output;
    assert_eq!(parse_response(answer, &key), Ok(Some(answer.len())));
}
