//! Messages through reader and writer: every size, every cut, every cancellation.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation is the verdict

mod common;

use memory_transport::{Buffer, Incoming, ReadLimits, WsReadError, WsReader, WsWriter};
use memory_wire::frame::{self, FrameFault, FrameHeader, Opcode, Role};
use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncWrite, duplex};

use common::{Pieces, poll_once, tls_pair};

const LIMITS: ReadLimits = ReadLimits::new(1 << 20);

/// What a reader delivered, payload included.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<u16>, String),
}

fn event<R: AsyncRead + Unpin>(reader: &mut WsReader<R>, incoming: Incoming) -> Event {
    match incoming {
        Incoming::Text => Event::Text(reader.buffer().payload().to_vec()),
        Incoming::Binary => Event::Binary(reader.buffer().payload().to_vec()),
        Incoming::Ping => Event::Ping(reader.control().to_vec()),
        Incoming::Pong => Event::Pong(reader.control().to_vec()),
        Incoming::Close { code, reason } => Event::Close(code, reason),
    }
}

/// Reads to the end, dropping the future at every point where it waits.
fn read_all_cancelling(mut reader: WsReader<Pieces>) -> (Vec<Event>, WsReadError) {
    let mut events = Vec::new();
    loop {
        match poll_once(reader.next()) {
            None => {}
            Some(Ok(incoming)) => events.push(event(&mut reader, incoming)),
            Some(Err(error)) => return (events, error),
        }
    }
}

fn raw(role: Role, opcode: Opcode, fin: bool, payload: &[u8]) -> Vec<u8> {
    let mask = (role == Role::Client).then_some([0x12, 0x34, 0x56, 0x78]);
    let header = FrameHeader {
        fin,
        opcode,
        length: payload.len() as u64,
        mask,
    };
    let mut body = payload.to_vec();
    if let Some(mask) = mask {
        frame::apply_mask(&mut body, mask, 0);
    }
    [frame::encode_header(&header).as_slice(), &body].concat()
}

fn peer(role: Role) -> Role {
    match role {
        Role::Client => Role::Server,
        Role::Server => Role::Client,
    }
}

/// Messages of every kind, with controls between the fragments, and what must be read.
fn script(sender: Role) -> (Vec<u8>, Vec<Event>) {
    let text = "fvj1:{\"grün\":\"\u{1f980}\"}".as_bytes();
    let large = pattern(5000);
    let (large_1, large_2) = large.split_at(2100);
    let bytes = [
        raw(sender, Opcode::Text, false, &text[..8]), // inside the two bytes of ü
        raw(sender, Opcode::Ping, true, b"are you there"),
        raw(sender, Opcode::Continuation, false, b""),
        raw(sender, Opcode::Pong, true, &[7; 125]),
        raw(sender, Opcode::Continuation, true, &text[8..]),
        raw(sender, Opcode::Binary, true, &pattern(126)),
        raw(sender, Opcode::Binary, true, b""),
        raw(sender, Opcode::Binary, false, large_1),
        raw(sender, Opcode::Ping, true, b""),
        raw(sender, Opcode::Continuation, true, large_2),
        raw(sender, Opcode::Text, true, b"plain"),
        raw(sender, Opcode::Close, true, b"\x03\xe9going"),
    ]
    .concat();
    let events = vec![
        Event::Ping(b"are you there".to_vec()),
        Event::Pong(vec![7; 125]),
        Event::Text(text.to_vec()),
        Event::Binary(pattern(126)),
        Event::Binary(Vec::new()),
        Event::Ping(Vec::new()),
        Event::Binary(large),
        Event::Text(b"plain".to_vec()),
        Event::Close(Some(1001), "going".to_owned()),
    ];
    (bytes, events)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 % 251) as u8).collect()
}

#[test]
fn reads_frames_cut_at_every_offset_and_cancelled_there() {
    for sender in [Role::Client, Role::Server] {
        let (bytes, expected) = script(sender);
        for cut in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            let pieces = Pieces::new([head.to_vec(), tail.to_vec()]);
            let (events, error) =
                read_all_cancelling(WsReader::new(pieces, peer(sender), LIMITS, b""));
            assert!(events == expected, "cut at {cut}");
            assert!(matches!(error, WsReadError::Ended));
            // The same cut between the HTTP head's leftover and the socket.
            let reader = WsReader::new(Pieces::new([tail.to_vec()]), peer(sender), LIMITS, head);
            assert!(
                read_all_cancelling(reader).0 == expected,
                "leftover of {cut}"
            );
        }
        let single = bytes.iter().map(|&byte| vec![byte]);
        let (events, _) = read_all_cancelling(WsReader::new(
            Pieces::new(single),
            peer(sender),
            LIMITS,
            b"",
        ));
        assert!(events == expected, "byte by byte");
    }
}

#[test]
fn every_truncation_is_an_error() {
    let (bytes, expected) = script(Role::Client);
    for end in 0..bytes.len() {
        let pieces = Pieces::new([bytes[..end].to_vec()]);
        let (events, error) = read_all_cancelling(WsReader::new(pieces, Role::Server, LIMITS, b""));
        assert!(events == expected[..events.len()], "truncated at {end}");
        assert!(
            matches!(error, WsReadError::Truncated | WsReadError::EndOfStream),
            "{error:?}"
        );
    }
    let (_, error) = read_all_cancelling(WsReader::new(Pieces::new([]), Role::Server, LIMITS, b""));
    assert!(matches!(error, WsReadError::EndOfStream));
    let half = raw(Role::Client, Opcode::Text, false, b"half a message");
    let (_, error) = read_all_cancelling(WsReader::new(
        Pieces::new([half]),
        Role::Server,
        LIMITS,
        b"",
    ));
    assert!(matches!(error, WsReadError::Truncated));
}

const SIZES: [usize; 14] = [
    0,
    1,
    125,
    126,
    127,
    2047,
    2048,
    2049,
    32_773,
    65_535,
    65_536,
    65_537,
    128 * 1024,
    1 << 20,
];

async fn carries_every_size<S: AsyncRead + AsyncWrite + Unpin>(client: S, server: S) {
    let (client_read, client_write) = tokio::io::split(client);
    let (server_read, server_write) = tokio::io::split(server);
    for (role, read, write) in [
        (Role::Client, server_read, client_write),
        (Role::Server, client_read, server_write),
    ] {
        let mut reader = WsReader::new(read, peer(role), LIMITS, b"");
        let mut writer = WsWriter::new(write, role);
        let send = async {
            let mut buffer = Buffer::new();
            for size in SIZES {
                buffer.extend(b"12345");
                buffer.extend(&pattern(size));
                buffer.drop_front(5);
                writer
                    .frame(Opcode::Binary, true, &mut buffer)
                    .await
                    .unwrap();
                assert!(buffer.is_empty());
                writer
                    .send_slice(Opcode::Binary, &pattern(size))
                    .await
                    .unwrap();
            }
            writer.close(1001, "done").await.unwrap();
        };
        let receive = async {
            let mut mine = Buffer::new();
            for size in SIZES {
                assert_eq!(reader.next().await.unwrap(), Incoming::Binary);
                reader.swap_buffer(&mut mine);
                assert!(mine.payload() == pattern(size), "size {size}");
                assert!(reader.buffer().is_empty());
                assert_eq!(reader.next().await.unwrap(), Incoming::Binary);
                assert!(reader.buffer().payload() == pattern(size), "size {size}");
            }
            let close = Incoming::Close {
                code: Some(1001),
                reason: "done".to_owned(),
            };
            assert_eq!(reader.next().await.unwrap(), close);
            assert!(matches!(reader.next().await, Err(WsReadError::Ended)));
        };
        tokio::join!(send, receive);
        assert_eq!(reader.received(), writer.sent());
    }
}

#[tokio::test]
async fn carries_every_size_in_memory() {
    let (client, server) = duplex(3000);
    carries_every_size(client, server).await;
}

#[tokio::test]
async fn carries_every_size_over_tls() {
    let (client, server) = tls_pair().await;
    let (client, server) = (
        tokio_rustls::TlsStream::from(client),
        tokio_rustls::TlsStream::from(server),
    );
    carries_every_size(client, server).await;
}

/// Reads `frames` to the first error.
fn fault(role: Role, limits: ReadLimits, frames: &[Vec<u8>]) -> (Vec<Event>, WsReadError) {
    let pieces = Pieces::new(frames.iter().cloned());
    read_all_cancelling(WsReader::new(pieces, role, limits, b""))
}

#[test]
fn refuses_oversize_before_allocating() {
    let limits = ReadLimits::new(1000);
    let fits = raw(Role::Client, Opcode::Binary, true, &pattern(1000));
    assert_eq!(
        fault(Role::Server, limits, &[fits]).0,
        [Event::Binary(pattern(1000))]
    );
    for length in [1001, 1 << 20, (1 << 63) - 1] {
        let header = FrameHeader {
            fin: true,
            opcode: Opcode::Binary,
            length,
            mask: Some([1; 4]),
        };
        let bytes = frame::encode_header(&header).as_slice().to_vec();
        let mut reader = WsReader::new(Pieces::new([bytes]), Role::Server, limits, b"");
        assert!(poll_once(reader.next()).is_none());
        let error = poll_once(reader.next()).unwrap().unwrap_err();
        assert!(matches!(error, WsReadError::TooLarge { limit: 1000 }));
        assert_eq!(error.close_code(), Some(1009));
        assert_eq!(reader.memory(), 0);
    }
}

#[test]
fn fragments_share_one_limit() {
    let limits = ReadLimits::new(1000);
    let part = |opcode, fin, len| raw(Role::Client, opcode, fin, &pattern(len));
    let fits = [
        part(Opcode::Binary, false, 600),
        part(Opcode::Continuation, true, 400),
    ];
    assert_eq!(fault(Role::Server, limits, &fits).0.len(), 1);
    let over = [
        part(Opcode::Binary, false, 600),
        part(Opcode::Continuation, false, 401),
    ];
    let (events, error) = fault(Role::Server, limits, &over);
    assert!(events.is_empty() && matches!(error, WsReadError::TooLarge { .. }));
}

#[test]
fn memory_follows_received_bytes() {
    // A peer declares 8 MiB and then trickles.
    let header = FrameHeader {
        fin: true,
        opcode: Opcode::Binary,
        length: 8 << 20,
        mask: Some([0; 4]),
    };
    let mut pieces = vec![frame::encode_header(&header).as_slice().to_vec()];
    pieces.extend((0..200).map(|_| vec![1; 500]));
    let pieces = Pieces::new(pieces).then_hang();
    let mut reader = WsReader::new(pieces, Role::Server, ReadLimits::new(8 << 20), b"");
    while !reader.get_ref().is_drained() {
        assert!(poll_once(reader.next()).is_none());
        let received = usize::try_from(reader.received()).unwrap();
        assert!(
            reader.memory() <= 2 * received + 6 * 1024,
            "{} for {received}",
            reader.memory()
        );
    }
    assert!(reader.is_mid_message());
}

#[test]
fn idle_reader_holds_no_buffer() {
    let message = raw(Role::Client, Opcode::Binary, true, &pattern(128 * 1024));
    let mut reader = WsReader::new(
        Pieces::new([message]).then_hang(),
        Role::Server,
        LIMITS,
        b"",
    );
    while poll_once(reader.next()).is_none() {}
    assert!(reader.memory() >= 128 * 1024);
    for _ in 0..3 {
        assert!(poll_once(reader.next()).is_none());
    }
    assert!(reader.memory() <= 1024, "{}", reader.memory());
}

#[test]
fn refuses_fragmented_binary_where_records_are_expected() {
    let limits = LIMITS.with_unfragmented_binary();
    let binary = [raw(Role::Client, Opcode::Binary, false, b"mrt")];
    assert!(matches!(
        fault(Role::Server, limits, &binary).1,
        WsReadError::FragmentedBinary
    ));
    let text = [
        raw(Role::Client, Opcode::Text, false, b"a"),
        raw(Role::Client, Opcode::Continuation, true, b"b"),
    ];
    assert_eq!(
        fault(Role::Server, limits, &text).0,
        [Event::Text(b"ab".to_vec())]
    );
}

#[test]
fn refuses_text_that_is_not_utf8_at_its_first_bad_byte() {
    let whole = [raw(Role::Client, Opcode::Text, true, b"abc\xff")];
    assert!(matches!(
        fault(Role::Server, LIMITS, &whole).1,
        WsReadError::Frame(FrameFault::InvalidUtf8)
    ));
    let early = [raw(Role::Client, Opcode::Text, false, b"\xed\xa0\x80")]; // a surrogate, and no last fragment yet
    assert!(matches!(
        fault(Role::Server, LIMITS, &early).1,
        WsReadError::Frame(FrameFault::InvalidUtf8)
    ));
    let open = [raw(Role::Client, Opcode::Text, true, b"abc\xc3")];
    assert!(matches!(
        fault(Role::Server, LIMITS, &open).1,
        WsReadError::Frame(FrameFault::InvalidUtf8)
    ));
    // The check starts afresh with each message.
    let next = [
        raw(Role::Client, Opcode::Binary, true, b"\xc3"),
        raw(Role::Client, Opcode::Text, true, b"\xbc"),
    ];
    assert!(matches!(
        fault(Role::Server, LIMITS, &next).1,
        WsReadError::Frame(FrameFault::InvalidUtf8)
    ));
}

#[test]
fn refuses_frames_against_the_rules() {
    let client = |opcode, fin, payload: &[u8]| raw(Role::Client, opcode, fin, payload);
    for (what, role, frames) in [
        (
            "unmasked from a client",
            Role::Server,
            vec![raw(Role::Server, Opcode::Text, true, b"x")],
        ),
        (
            "masked from a server",
            Role::Client,
            vec![client(Opcode::Text, true, b"x")],
        ),
        (
            "continuation of nothing",
            Role::Server,
            vec![client(Opcode::Continuation, true, b"x")],
        ),
        (
            "new message inside another",
            Role::Server,
            vec![
                client(Opcode::Text, false, b"x"),
                client(Opcode::Text, true, b"x"),
            ],
        ),
        (
            "fragmented control",
            Role::Server,
            vec![client(Opcode::Ping, false, b"x")],
        ),
        (
            "long control",
            Role::Server,
            vec![client(Opcode::Ping, true, &[0; 126])],
        ),
        (
            "reserved bit",
            Role::Server,
            vec![vec![0xc1, 0x80, 0, 0, 0, 0]],
        ),
        (
            "reserved opcode",
            Role::Server,
            vec![vec![0x83, 0x80, 0, 0, 0, 0]],
        ),
        (
            "half a close code",
            Role::Server,
            vec![client(Opcode::Close, true, b"\x03")],
        ),
        (
            "close code out of range",
            Role::Server,
            vec![client(Opcode::Close, true, b"\x03\xed")],
        ),
        (
            "close reason not UTF-8",
            Role::Server,
            vec![client(Opcode::Close, true, b"\x03\xe8\xff")],
        ),
    ] {
        let (events, error) = fault(role, LIMITS, &frames);
        assert!(events.is_empty(), "{what}");
        assert!(matches!(error, WsReadError::Frame(_)), "{what}: {error:?}");
        assert_eq!(error.close_code(), Some(1008), "{what}");
    }
}

#[test]
fn a_control_between_fragments_does_not_show_the_message() {
    let frames = [
        raw(Role::Client, Opcode::Binary, false, b"first "),
        raw(Role::Client, Opcode::Ping, true, b"p"),
        raw(Role::Client, Opcode::Continuation, true, b"second"),
    ];
    let mut reader = WsReader::new(Pieces::new([frames.concat()]), Role::Server, LIMITS, b"");
    let mut buffer = Buffer::from(b"old".as_slice());
    while poll_once(reader.next()).is_none() {}
    reader.swap_buffer(&mut buffer);
    assert!(buffer.is_empty() && reader.is_mid_message());
    assert_eq!(poll_once(reader.next()).unwrap().unwrap(), Incoming::Binary);
    assert_eq!(reader.buffer().payload(), b"first second");
    assert!(reader.control().is_empty());
}

/// Seed of the random test below; printed, and fixed again by `TRANSPORT_SEED`.
fn seed() -> u64 {
    let seed = std::env::var("TRANSPORT_SEED")
        .ok()
        .and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| getrandom::u64().unwrap());
    println!("TRANSPORT_SEED={seed}");
    seed
}

#[test]
fn any_message_survives_any_fragmentation_and_any_cut() {
    let message = (
        any::<bool>(),
        prop::collection::vec((0..6000usize, 0..4u8), 1..5), // fragments: length, and what comes between
    );
    let strategy = (
        any::<bool>(),
        prop::collection::vec(message, 1..6),
        prop::collection::vec(1..5000usize, 1..20),
    );
    let config = ProptestConfig {
        cases: 200,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(seed()),
        ..ProptestConfig::default()
    };
    proptest!(config, |((from_client, messages, cuts) in strategy)| {
        let sender = if from_client { Role::Client } else { Role::Server };
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (text, fragments) in messages {
            let mut whole = Vec::new();
            let last = fragments.len() - 1;
            for (index, (len, control)) in fragments.into_iter().enumerate() {
                let payload = if text { vec![b'x'; len] } else { pattern(len) };
                let opcode = match (index, text) {
                    (0, true) => Opcode::Text,
                    (0, false) => Opcode::Binary,
                    _ => Opcode::Continuation,
                };
                match control {
                    0 => {
                        bytes.extend(raw(sender, Opcode::Ping, true, b"between"));
                        expected.push(Event::Ping(b"between".to_vec()));
                    }
                    1 => {
                        bytes.extend(raw(sender, Opcode::Pong, true, b""));
                        expected.push(Event::Pong(Vec::new()));
                    }
                    _ => {}
                }
                bytes.extend(raw(sender, opcode, index == last, &payload));
                whole.extend(payload);
            }
            expected.push(if text { Event::Text(whole) } else { Event::Binary(whole) });
        }
        let mut pieces = Vec::new();
        let mut rest = &bytes[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, more) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece.to_vec());
            rest = more;
        }
        let (events, error) = read_all_cancelling(WsReader::new(Pieces::new(pieces), peer(sender), LIMITS, b""));
        prop_assert!(events == expected);
        prop_assert!(matches!(error, WsReadError::EndOfStream));
    });
}

#[test]
fn a_reader_that_keeps_its_memory_gives_it_back_when_told() {
    let payload = vec![7; 32 * 1024];
    let frame = raw(Role::Client, Opcode::Binary, true, &payload);
    for keeps in [false, true] {
        // Comes to its end, and not before the reader has waited.
        let (mut far, near) = duplex(64 * 1024);
        let mut reader = WsReader::new(near, Role::Server, LIMITS, b"");
        if keeps {
            reader.keep_memory();
        }
        let write = std::pin::pin!(tokio::io::AsyncWriteExt::write_all(&mut far, &frame));
        assert!(poll_once(write).is_some());
        let read = poll_once(reader.next());
        assert!(matches!(read, Some(Ok(Incoming::Binary))));
        assert!(poll_once(reader.next()).is_none());
        assert_eq!(reader.memory() >= payload.len(), keeps);
        reader.shrink();
        assert!(reader.memory() < 1024);
    }
}

#[test]
fn what_broke_the_rules_can_be_read_away() {
    let bad = raw(Role::Server, Opcode::Binary, true, b"not masked");
    let pieces = Pieces::new(vec![bad, vec![0; 5000]]);
    let mut reader = WsReader::new(pieces, Role::Server, LIMITS, b"");
    let read = std::iter::repeat_with(|| poll_once(reader.next())).find_map(|read| read);
    assert!(matches!(read, Some(Err(WsReadError::Frame(_)))));
    // Only the end of the stream ends it.
    while poll_once(reader.discard(1 << 20)).is_none() {}
    let after = poll_once(reader.next());
    assert!(matches!(after, Some(Err(WsReadError::Ended))));
}
