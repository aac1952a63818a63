//! `Sec-WebSocket-Key` and its answer (RFC 6455 section 4.2.2).

use sha1::{Digest, Sha1};

/// What RFC 6455 section 1.3 appends to a key before hashing.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The `Sec-WebSocket-Accept` that answers `key`.
pub fn accept_key(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(GUID);
    encode(&hash.finalize())
}

/// The `Sec-WebSocket-Key` of 16 random bytes.
pub fn encode_key(random: &[u8; 16]) -> String {
    encode(random)
}

/// Whether `key` is base64 of 16 bytes.
pub(super) fn is_key(key: &str) -> bool {
    key.len() == 24
        && key.strip_suffix("==").is_some_and(|digits| {
            digits.bytes().all(|digit| ALPHABET.contains(&digit))
                && digits.ends_with(['A', 'Q', 'g', 'w'])
        })
}

/// Padded base64 (RFC 4648 section 4).
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut value = 0_u32;
        for position in 0..3 {
            value = (value << 8) | group.get(position).copied().map_or(0, u32::from);
        }
        for position in 0..4 {
            let digit = (value >> (18 - 6 * position)) & 63;
            let digit = usize::try_from(digit)
                .ok()
                .and_then(|digit| ALPHABET.get(digit));
            match digit {
                Some(digit) if position <= group.len() => text.push(char::from(*digit)),
                _ => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_the_example_of_the_rfc() {
        assert_eq!(
            accept_key("dGhlIHNhbXBsZSBub25jZQ=="),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
    }

    #[test]
    fn writes_keys_that_are_keys() {
        for byte in [0, 1, 0x80, 0xff] {
            assert!(is_key(&encode_key(&[byte; 16])));
        }
        for other in [
            "",
            "dGhlIHNhbXBsZSBub25jZQ=",
            "dGhlIHNhbXBsZSBub25jZR==",
            "dGhlIHNhbXBsZSBub25jZ!==",
        ] {
            assert!(!is_key(other), "{other}");
        }
    }
}
