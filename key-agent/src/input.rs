//! What the TLS private key may sign: the input of a TLS 1.3 server CertificateVerify, and nothing else.

/// Octets 0x20 at the start of every CertificateVerify input (RFC 8446 section 4.4.3).
const PADDING_LEN: usize = 64;

/// Which of the two peers signs, and that it is TLS 1.3 (RFC 8446 section 4.4.3). A client's input says `client` here.
const CONTEXT: &[u8] = b"TLS 1.3, server CertificateVerify";

/// Lengths of a transcript hash: SHA-256 and SHA-384 are the hashes of TLS 1.3's cipher suites (RFC 8446 appendix B.4).
const HASH_LENGTHS: [usize; 2] = [32, 48];

/// A byte string that is the input of a TLS 1.3 server CertificateVerify: the only thing that
/// [`crate::keys::TlsKey::sign`] takes. Only [`VerifyInput::parse`] makes one.
///
/// ```text
///  64 x 0x20 | "TLS 1.3, server CertificateVerify" | 0x00 | transcript hash (32 or 48)
/// ```
#[derive(Debug)]
pub(crate) struct VerifyInput<'a>(&'a [u8]);

/// The bytes are not the input of a TLS 1.3 server CertificateVerify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the input of a TLS 1.3 server CertificateVerify")]
pub(crate) struct NotVerifyInput;

impl<'a> VerifyInput<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, NotVerifyInput> {
        let (padding, rest) = bytes.split_at_checked(PADDING_LEN).ok_or(NotVerifyInput)?;
        let hash = rest
            .strip_prefix(CONTEXT)
            .and_then(|rest| rest.strip_prefix(&[0]))
            .ok_or(NotVerifyInput)?;
        let padded = padding.iter().all(|&byte| byte == b' ');
        (padded && HASH_LENGTHS.contains(&hash.len()))
            .then_some(Self(bytes))
            .ok_or(NotVerifyInput)
    }

    pub(crate) fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An input as rustls builds it, around a transcript hash of `length` octets.
    pub(crate) fn verify_input(length: usize) -> Vec<u8> {
        let mut input = vec![b' '; 64];
        input.extend_from_slice(b"TLS 1.3, server CertificateVerify\0");
        input.extend((0..length).map(|octet| u8::try_from(octet).unwrap()));
        input
    }

    #[test]
    fn takes_the_two_hash_lengths_of_tls_1_3() {
        for length in [32, 48] {
            let input = verify_input(length);
            assert_eq!(VerifyInput::parse(&input).unwrap().as_bytes(), input);
        }
    }

    #[test]
    fn refuses_every_other_length() {
        for length in (0..200).filter(|length| ![32, 48].contains(length)) {
            assert!(
                VerifyInput::parse(&verify_input(length)).is_err(),
                "{length}"
            );
        }
    }

    #[test]
    fn refuses_a_change_of_any_octet_but_the_hash() {
        let input = verify_input(32);
        for position in 0..98 {
            for bit in 0..8 {
                let mut changed = input.clone();
                changed[position] ^= 1 << bit;
                assert!(
                    VerifyInput::parse(&changed).is_err(),
                    "octet {position}, bit {bit}"
                );
            }
        }
    }

    #[test]
    fn refuses_every_prefix_and_any_octet_more() {
        let input = verify_input(32);
        for length in 0..input.len() {
            assert!(VerifyInput::parse(&input[..length]).is_err(), "{length}");
        }
        let mut longer = input.clone();
        longer.push(0);
        assert!(VerifyInput::parse(&longer).is_err());
        longer.remove(0);
        assert!(VerifyInput::parse(&longer).is_err());
    }

    #[test]
    fn refuses_inputs_of_other_signatures() {
        // A client's CertificateVerify, a TLS 1.2 ServerKeyExchange, a certificate signing request, a document.
        let mut client = vec![b' '; 64];
        client.extend_from_slice(b"TLS 1.3, client CertificateVerify\0");
        client.extend_from_slice(&[7; 32]);
        assert!(VerifyInput::parse(&client).is_err());
        let mut exchange = vec![7; 64];
        exchange.extend_from_slice(&[3, 0, 29, 32]);
        exchange.extend_from_slice(&[9; 32]);
        assert!(VerifyInput::parse(&exchange).is_err());
        assert!(VerifyInput::parse(&[0x30, 0x82, 0x01, 0x00]).is_err());
        assert!(VerifyInput::parse(b"pay to the bearer").is_err());
        assert!(VerifyInput::parse(&[]).is_err());
    }
}
