//! PROXY protocol version 2: who is behind a balancer, in front of the client's first byte.
//!
//! The protocol's text leaves no room here: sixteen fixed bytes that say how much follows, at most 536 bytes in all, and not a
//! byte behind them is read. What has to do with bounds, commands and progress is decided here; the addresses inside are
//! read by a crate. Nothing but [`read`] does IO.

use std::net::SocketAddr;

use proxy_header::{ParseConfig, Protocol, ProxyHeader};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The whole header with its addresses and extensions, at most: it fits the smallest TCP segment by the protocol's text.
const MAX_LEN: usize = 536;

/// The part of fixed length.
const HEAD_LEN: usize = 16;

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Offset of version and command, of family and protocol, and of the length of the rest.
const COMMAND: usize = 12;
const FAMILY: usize = 13;
const LENGTH: usize = 14;

const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const UNSPECIFIED: u8 = 0x00;

/// Whose connection it is, as the balancer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A client with this address.
    Client(SocketAddr),
    /// A client that the balancer cannot name (`UNSPEC`): the TCP peer stands for it.
    Unspecified,
    /// The balancer itself (`LOCAL`): it looks whether this listener is well.
    Balancer,
}

/// Why there is no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeaderFault {
    #[error("it does not begin with the signature of version 2")]
    Signature,
    #[error("neither version 2 nor a command of it")]
    Command,
    #[error("its length is over the bound, or too short for its addresses")]
    Length,
    #[error("it is not about TCP over IPv4 or IPv6")]
    Family,
    #[error("the connection ended inside of it")]
    Ended,
    #[error("the connection ended without a byte")]
    Nothing,
    #[error("it did not come in time")]
    Late,
}

/// Reads a header from the front of a stream, to its last byte and not further. Not cancel-safe: what was read is lost.
///
/// # Errors
/// [`HeaderFault`], but [`HeaderFault::Late`]: how long to wait is the caller's.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Origin, HeaderFault> {
    let mut header = Header::default();
    loop {
        let length = stream.read(header.missing()).await.unwrap_or(0);
        if length == 0 {
            return Err(header.ended());
        }
        if let Some(origin) = header.received(length)? {
            return Ok(origin);
        }
    }
}

/// A header that is coming in.
#[derive(Debug)]
struct Header {
    bytes: [u8; MAX_LEN],
    received: usize,
    /// Length of the part that is awaited: first that of the head, then that of all.
    wanted: usize,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            bytes: [0; MAX_LEN],
            received: 0,
            wanted: HEAD_LEN,
        }
    }
}

impl Header {
    /// Where the next bytes go: as many as are sure to belong to the header, at least one.
    fn missing(&mut self) -> &mut [u8] {
        self.bytes
            .get_mut(self.received..self.wanted)
            .unwrap_or_default()
    }

    /// Takes note of bytes at the front of [`Header::missing`]. `None` while more are missing.
    fn received(&mut self, length: usize) -> Result<Option<Origin>, HeaderFault> {
        self.received = self.received.saturating_add(length).min(self.wanted);
        let received = self.bytes.get(..self.received).unwrap_or_default();
        let signature = received.len().min(SIGNATURE.len());
        if received.get(..signature) != SIGNATURE.get(..signature) {
            return Err(HeaderFault::Signature);
        }
        if received.len() == HEAD_LEN {
            self.wanted = whole_length(received)?;
        }
        if self.received < self.wanted {
            return Ok(None);
        }
        origin(received).map(Some)
    }

    /// What the end of the stream is at this point.
    fn ended(&self) -> HeaderFault {
        match self.received {
            0 => HeaderFault::Nothing,
            _ => HeaderFault::Ended,
        }
    }
}

/// The length of a header with this head.
fn whole_length(head: &[u8]) -> Result<usize, HeaderFault> {
    if !matches!(head.get(COMMAND), Some(&(LOCAL | PROXY))) {
        return Err(HeaderFault::Command);
    }
    let length = head.get(LENGTH..HEAD_LEN).unwrap_or_default();
    let length = length
        .iter()
        .fold(0, |length, byte| length << 8 | usize::from(*byte));
    Some(HEAD_LEN + length)
        .filter(|whole| *whole <= MAX_LEN)
        .ok_or(HeaderFault::Length)
}

/// What a complete header says.
fn origin(header: &[u8]) -> Result<Origin, HeaderFault> {
    // With LOCAL, family and addresses are to be ignored, whatever they are. Parsers get this wrong, so none is asked.
    if header.get(COMMAND) == Some(&LOCAL) {
        return Ok(Origin::Balancer);
    }
    if header.get(FAMILY) == Some(&UNSPECIFIED) {
        return Ok(Origin::Unspecified);
    }
    let config = ParseConfig {
        include_tlvs: false,
        allow_v1: false,
        allow_v2: true,
    };
    let parsed = match ProxyHeader::parse(header, config) {
        Ok((parsed, length)) if length == header.len() => parsed,
        // The header is complete: whatever is missing in it will not come.
        Ok(_) | Err(proxy_header::Error::BufferTooShort) => return Err(HeaderFault::Length),
        Err(_) => return Err(HeaderFault::Family),
    };
    match parsed.proxied_address() {
        Some(address) if address.protocol == Protocol::Stream => Ok(Origin::Client(address.source)),
        // Datagrams and UNIX sockets: no client of this listener.
        _ => Err(HeaderFault::Family),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::pin::pin;

    use ppp::v2::{Addresses, Command};
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// A header with this rest.
    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    const IPV4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 1, 0xc0, 0x01, 0x01, 0xbb];

    fn ipv6() -> Vec<u8> {
        let address = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).octets();
        [&address(1)[..], &address(2), &[0xc0, 0x01, 0x01, 0xbb]].concat()
    }

    fn client() -> Origin {
        Origin::Client(SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 0xc001)))
    }

    /// Gives bytes in pieces of this size; also says how many were read.
    fn feed(bytes: &[u8], piece: usize) -> (Result<Origin, HeaderFault>, usize) {
        let mut header = Header::default();
        let mut left = bytes;
        loop {
            let missing = header.missing();
            let length = missing.len().min(piece).min(left.len());
            if length == 0 {
                return (Err(header.ended()), bytes.len());
            }
            missing[..length].copy_from_slice(&left[..length]);
            left = &left[length..];
            match header.received(length) {
                Ok(None) => {}
                Ok(Some(origin)) => return (Ok(origin), bytes.len() - left.len()),
                Err(fault) => return (Err(fault), bytes.len() - left.len()),
            }
        }
    }

    fn said(bytes: &[u8]) -> Result<Origin, HeaderFault> {
        feed(bytes, usize::MAX).0
    }

    #[test]
    fn names_the_client() {
        assert_eq!(said(&header(PROXY, 0x11, &IPV4)), Ok(client()));
        let expected = "[2001:db8::1]:49153".parse().unwrap();
        assert_eq!(
            said(&header(PROXY, 0x21, &ipv6())),
            Ok(Origin::Client(expected))
        );
    }

    #[test]
    fn reads_to_the_last_byte_and_not_further() {
        let long: Vec<u8> = [&IPV4[..], &[0xee, 0, 10], &[7; 10]].concat();
        for (header, expected) in [
            (header(PROXY, 0x11, &IPV4), client()),
            (header(PROXY, 0x11, &long), client()),
            (header(PROXY, 0x00, &[]), Origin::Unspecified),
            (header(LOCAL, 0x00, &[]), Origin::Balancer),
        ] {
            let sent = [&header[..], b"\x16\x03\x01client hello"].concat();
            for piece in 1..=sent.len() {
                assert_eq!(feed(&sent, piece), (Ok(expected), header.len()), "{piece}");
            }
        }
    }

    #[test]
    fn a_header_cut_anywhere_is_none() {
        let whole = header(PROXY, 0x11, &IPV4);
        for cut in 0..whole.len() {
            for piece in 1..=whole.len() {
                let expected = match cut {
                    0 => HeaderFault::Nothing,
                    _ => HeaderFault::Ended,
                };
                assert_eq!(feed(&whole[..cut], piece).0, Err(expected), "{cut}");
            }
        }
    }

    #[test]
    fn with_local_the_family_and_the_addresses_are_skipped() {
        for family in 0..=u8::MAX {
            for rest in [&[][..], &[1, 2, 3], &IPV4, &ipv6(), &[0xff; 520]] {
                let sent = header(LOCAL, family, rest);
                assert_eq!(feed(&sent, 7), (Ok(Origin::Balancer), sent.len()));
            }
        }
    }

    #[test]
    fn unspecified_has_no_address_whatever_it_carries() {
        for rest in [&[][..], &IPV4, &[0xff; 520]] {
            assert_eq!(said(&header(PROXY, 0, rest)), Ok(Origin::Unspecified));
        }
    }

    #[test]
    fn only_tcp_over_ip_is_taken() {
        for family in 1..=u8::MAX {
            let said = said(&header(PROXY, family, &[1; 300]));
            match family {
                0x11 | 0x21 => assert!(matches!(said, Ok(Origin::Client(_)))),
                _ => assert_eq!(said, Err(HeaderFault::Family), "{family:#x}"),
            }
        }
    }

    #[test]
    fn addresses_have_to_fit_the_length() {
        for (family, needed) in [(0x11, 12), (0x21, 36)] {
            for length in 0..needed {
                let sent = header(PROXY, family, &vec![0; length]);
                assert_eq!(said(&sent), Err(HeaderFault::Length));
            }
        }
    }

    #[test]
    fn the_length_is_bounded_before_anything_is_waited_for() {
        let longest = [&IPV4[..], &[0; 508]].concat();
        assert_eq!(said(&header(PROXY, 0x11, &longest)), Ok(client()));
        for command in [PROXY, LOCAL] {
            for length in [521, 1000, usize::from(u16::MAX)] {
                let sent = header(command, 0x11, &vec![0; length]);
                assert_eq!(feed(&sent, 3000), (Err(HeaderFault::Length), HEAD_LEN));
            }
        }
    }

    #[test]
    fn anything_else_is_refused_at_its_first_wrong_byte() {
        for other in [
            &b"PROXY TCP4 192.0.2.1 198.51.100.1 49153 443\r\n"[..],
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET / HTTP/1.1\r\n",
        ] {
            assert_eq!(feed(other, 1), (Err(HeaderFault::Signature), 1));
        }
        for at in 0..SIGNATURE.len() {
            let mut sent = header(PROXY, 0x11, &IPV4);
            sent[at] ^= 1;
            assert_eq!(feed(&sent, 1), (Err(HeaderFault::Signature), at + 1));
        }
        for command in (0..=u8::MAX).filter(|command| ![LOCAL, PROXY].contains(command)) {
            assert_eq!(
                said(&header(command, 0x11, &IPV4)),
                Err(HeaderFault::Command)
            );
        }
    }

    #[tokio::test]
    async fn a_stream_keeps_what_follows() {
        let (mut near, mut far) = tokio::io::duplex(4096);
        let sent = [&header(PROXY, 0x11, &IPV4)[..], b"rest"].concat();
        far.write_all(&sent).await.unwrap();
        assert_eq!(read(&mut near).await, Ok(client()));
        drop(far);
        let mut rest = Vec::new();
        pin!(near).read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"rest");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Any bytes behind the signature, against another implementation: what is taken here is taken there, with the same
        /// address; how the bytes are cut makes no difference.
        #[test]
        fn agrees_with_another_parser(
            command in prop_oneof![Just(PROXY), Just(LOCAL), any::<u8>()],
            family in prop_oneof![Just(0x11_u8), Just(0x21), Just(0), any::<u8>()],
            rest in proptest::collection::vec(any::<u8>(), 0..600),
            length in prop_oneof![3 => Just(None), 1 => any::<u16>().prop_map(Some)],
            piece in 1..64_usize,
        ) {
            let mut sent = header(command, family, &rest);
            if let Some(length) = length {
                sent[LENGTH..HEAD_LEN].copy_from_slice(&length.to_be_bytes());
            }
            let (mine, read) = feed(&sent, usize::MAX);
            prop_assert_eq!(feed(&sent, piece).0, mine);
            let theirs = ppp::v2::Header::try_from(&sent[..]);
            match mine {
                Ok(Origin::Client(source)) => {
                    let theirs = theirs.unwrap();
                    prop_assert_eq!(theirs.as_bytes().len(), read);
                    let address = match theirs.addresses {
                        Addresses::IPv4(both) => SocketAddr::from((both.source_address, both.source_port)),
                        Addresses::IPv6(both) => SocketAddr::from((both.source_address, both.source_port)),
                        other => panic!("{other:?}"),
                    };
                    prop_assert_eq!(source, address);
                }
                Ok(Origin::Unspecified) => prop_assert_eq!(theirs.unwrap().addresses, Addresses::Unspecified),
                // The other wants addresses to be valid with LOCAL too.
                Ok(Origin::Balancer) => if let Ok(theirs) = theirs {
                    prop_assert_eq!(theirs.command, Command::Local);
                },
                Err(HeaderFault::Ended | HeaderFault::Signature | HeaderFault::Command) => {
                    prop_assert!(theirs.is_err());
                }
                // Stricter here: the bound, and TCP alone.
                Err(_) => {}
            }
        }
    }
}
