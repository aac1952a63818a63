//! Canonical unpadded base64url (RFC 4648 section 5): one text for any bytes, and no other is read back.

use thiserror::Error;

/// The text of `bytes`.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(encoded_len(bytes.len()));
    for group in bytes.chunks(3) {
        let mut value = 0_u32;
        for position in 0..3 {
            value = (value << 8) | group.get(position).copied().map_or(0, u32::from);
        }
        for position in 0..=group.len() {
            let digit = (value >> (18 - 6 * position)) & 63;
            text.extend(ALPHABET.get(digit as usize).copied().map(char::from));
        }
    }
    text
}

/// The bytes of `text`, at most `max_len` of them.
///
/// # Errors
/// [`Base64Error`]: also for padding, white space, the `+/` alphabet and last characters whose unused bits are set.
pub fn decode(text: &str, max_len: usize) -> Result<Vec<u8>, Base64Error> {
    if text.len() > encoded_len(max_len) {
        return Err(Base64Error::TooLong);
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut value = 0_u32;
        for character in group {
            value = (value << 6) | digit(*character)?;
        }
        let (value, length) = match group.len() {
            4 => (value, 3),
            3 if value & 0b11 == 0 => (value << 6, 2),
            2 if value & 0b1111 == 0 => (value << 12, 1),
            2 | 3 => return Err(Base64Error::NotCanonical),
            _ => return Err(Base64Error::Length),
        };
        let [_, decoded @ ..] = value.to_be_bytes();
        bytes.extend(decoded.into_iter().take(length));
    }
    Ok(bytes)
}

/// Characters of the text of `length` bytes.
pub const fn encoded_len(length: usize) -> usize {
    (length / 3).saturating_mul(4) + (length % 3 * 4).div_ceil(3)
}

/// Why a text is not canonical base64url.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Base64Error {
    /// The text is longer than the allowed number of bytes needs.
    #[error("base64url text too long")]
    TooLong,
    /// No bytes have a text of this length.
    #[error("base64url text has an impossible length")]
    Length,
    /// A character is outside the alphabet.
    #[error("base64url text has a character outside the alphabet")]
    Character,
    /// Unused bits of the last character are set.
    #[error("base64url text is not canonical")]
    NotCanonical,
}

fn digit(character: u8) -> Result<u32, Base64Error> {
    let value = match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return Err(Base64Error::Character),
    };
    Ok(u32::from(value))
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encodes_the_examples_of_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text, 6).as_deref(), Ok(bytes.as_bytes()));
        }
        assert_eq!(encode(&[0xfb, 0xff]), "-_8");
    }

    #[test]
    fn refuses_every_other_spelling() {
        for (text, fault) in [
            ("Zg==", Base64Error::Character),
            ("Zh", Base64Error::NotCanonical),
            ("Zm9", Base64Error::NotCanonical),
            ("Z", Base64Error::Length),
            ("Zm9vY", Base64Error::Length),
            ("+/8", Base64Error::Character),
            ("Zg\n", Base64Error::Character),
            ("Zm9vYmFyZg", Base64Error::TooLong),
        ] {
            assert_eq!(decode(text, 6), Err(fault), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = encode(&bytes);
            prop_assert_eq!(text.len(), encoded_len(bytes.len()));
            prop_assert_eq!(decode(&text, bytes.len()), Ok(bytes));
        }

        #[test]
        fn whatever_is_read_is_written_the_same_way(text in "[A-Za-z0-9_=+/-]{0,20}") {
            if let Ok(bytes) = decode(&text, 64) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }
}
