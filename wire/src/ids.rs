//! Identifiers: fixed arrays with a type of their own, so that one is never taken for another.

use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Declares an identifier over `[u8; N]` with its lowercase hexadecimal text.
macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $length:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; $length]);

        impl $name {
            /// Bytes of this identifier.
            pub const LEN: usize = $length;

            /// Takes the bytes as they are.
            pub const fn from_bytes(bytes: [u8; $length]) -> Self {
                Self(bytes)
            }

            /// The bytes.
            pub const fn as_bytes(&self) -> &[u8; $length] {
                &self.0
            }

            /// Lowercase hexadecimal, two characters per byte.
            pub fn to_hex(&self) -> String {
                encode_hex(&self.0)
            }

            /// Reads what [`Self::to_hex`] writes: lowercase only, exact length.
            ///
            /// # Errors
            /// [`IdError`].
            pub fn from_hex(text: &str) -> Result<Self, IdError> {
                decode_hex(text).map(Self)
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl From<[u8; $length]> for $name {
            fn from(bytes: [u8; $length]) -> Self {
                Self(bytes)
            }
        }
    };
}

/// Gives identifiers without inner structure their constructor.
macro_rules! opaque {
    ($($name:ident: $length:literal),*) => {$(
        impl $name {
            /// Takes the bytes as they are.
            pub const fn new(bytes: [u8; $length]) -> Self {
                Self(bytes)
            }
        }
    )*};
}

/// Prints the hexadecimal text as `Debug` and `Display`.
macro_rules! prints_hex {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.to_hex())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!(stringify!($name), "({})"), self.to_hex())
            }
        }
    )*};
}

identifier!(
    /// One control link's life, drawn by the router for every connection to a toolshed.
    EpochId,
    16
);
identifier!(
    /// One public connection at the link agent and at every toolshed it reaches.
    ContextId,
    16
);
identifier!(
    /// What a client signs to authenticate; issued for one context, good for [`crate::admission::CHALLENGE_LIFETIME`].
    Challenge,
    32
);
identifier!(
    /// Single-use right to bind one data socket, good for 15 seconds. Printed never: whoever reads it could use it.
    Ticket,
    32
);
identifier!(
    /// Random bytes with which a toolshed makes one handshake its own.
    Nonce,
    32
);
identifier!(
    /// A SHA-256 digest.
    Digest,
    32
);
identifier!(
    /// One public connection in logs, error bodies and close reasons: 48 bits of Unix milliseconds, then 32 random bits,
    /// so that byte order, text order and time order agree. Its text is 16 characters of Crockford's base32.
    ConnectionId,
    10
);

opaque!(EpochId: 16, ContextId: 16, Challenge: 32, Ticket: 32, Nonce: 32, Digest: 32);
prints_hex!(EpochId, ContextId, Challenge, Nonce, Digest);

impl fmt::Debug for Ticket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Ticket(..)")
    }
}

impl Digest {
    /// The SHA-256 digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

impl ConnectionId {
    /// Characters of the text form.
    pub const TEXT_LEN: usize = 16;

    /// Names a connection accepted at `unix_millis` with `entropy` to tell it from others of that millisecond. Only the
    /// low 48 bits of the time are kept (good until the year 10889).
    pub const fn new(unix_millis: u64, entropy: [u8; 4]) -> Self {
        let [_, _, a, b, c, d, e, f] = unix_millis.to_be_bytes();
        let [w, x, y, z] = entropy;
        Self([a, b, c, d, e, f, w, x, y, z])
    }

    /// Unix milliseconds at which the connection was accepted.
    pub const fn unix_millis(&self) -> u64 {
        let [a, b, c, d, e, f, ..] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(Self::TEXT_LEN);
        let (mut pending, mut bits) = (0_u32, 0_u32);
        for byte in self.0 {
            pending = (pending << 8) | u32::from(byte);
            bits += 8;
            while bits >= 5 {
                bits -= 5;
                let digit = (pending >> bits) & 31;
                text.extend(BASE32.get(digit as usize).copied().map(char::from));
            }
        }
        formatter.write_str(&text)
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ConnectionId({self})")
    }
}

impl FromStr for ConnectionId {
    type Err = IdError;

    /// Reads what `Display` writes; the letters Crockford lets stand for digits, and lowercase, are refused.
    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.len() != Self::TEXT_LEN {
            return Err(IdError::Length);
        }
        let mut value = 0_u128;
        for byte in text.bytes() {
            let digit = BASE32
                .iter()
                .position(|known| *known == byte)
                .ok_or(IdError::Character)?;
            value = (value << 5) | digit as u128;
        }
        let [_, _, _, _, _, _, bytes @ ..] = value.to_be_bytes();
        Ok(Self(bytes))
    }
}

/// Why a text is not an identifier of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum IdError {
    /// The text does not have the length of its kind.
    #[error("identifier has the wrong length")]
    Length,
    /// A character is outside the alphabet.
    #[error("identifier has a character outside its alphabet")]
    Character,
}

/// Lowercase hexadecimal of any bytes.
pub fn encode_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().saturating_mul(2));
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    text
}

/// Reads exactly `N` bytes of lowercase hexadecimal.
///
/// # Errors
/// [`IdError`].
pub fn decode_hex<const N: usize>(text: &str) -> Result<[u8; N], IdError> {
    if text.len() != N.saturating_mul(2) {
        return Err(IdError::Length);
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        for character in pair {
            let digit = match character {
                b'0'..=b'9' => character - b'0',
                b'a'..=b'f' => character - b'a' + 10,
                _ => return Err(IdError::Character),
            };
            *byte = (*byte << 4) | digit;
        }
    }
    Ok(bytes)
}

/// Crockford's alphabet: ascending in ASCII, without I, L, O and U.
const BASE32: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prints_and_reads_hex_in_lowercase_only() {
        let id = ContextId::new([0xab; 16]);
        assert_eq!(id.to_hex(), "ab".repeat(16));
        assert_eq!(ContextId::from_hex(&id.to_hex()), Ok(id));
        assert_eq!(
            ContextId::from_hex(&"AB".repeat(16)),
            Err(IdError::Character)
        );
        assert_eq!(ContextId::from_hex(&"ab".repeat(15)), Err(IdError::Length));
        assert_eq!(
            ContextId::from_hex(&"ü".repeat(16)),
            Err(IdError::Character)
        );
    }

    #[test]
    fn never_prints_a_ticket() {
        assert_eq!(format!("{:?}", Ticket::new([7; 32])), "Ticket(..)");
    }

    #[test]
    fn hashes_with_sha256() {
        assert_eq!(
            Digest::of(b"abc").to_hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn connection_ids_keep_their_time() {
        let id = ConnectionId::new(1_700_000_000_123, [0xff, 0, 1, 2]);
        assert_eq!(id.unix_millis(), 1_700_000_000_123);
        assert_eq!(
            ConnectionId::from_bytes([0xff; 10]).to_string(),
            "Z".repeat(16)
        );
        assert_eq!(
            ConnectionId::from_bytes([0; 10]).to_string(),
            "0".repeat(16)
        );
        assert_eq!(
            "I".repeat(16).parse::<ConnectionId>(),
            Err(IdError::Character)
        );
        assert_eq!("0".parse::<ConnectionId>(), Err(IdError::Length));
    }

    proptest! {
        #[test]
        fn connection_texts_round_trip_and_sort_as_their_bytes(a: [u8; 10], b: [u8; 10]) {
            let (a, b) = (ConnectionId::from_bytes(a), ConnectionId::from_bytes(b));
            prop_assert_eq!(a.to_string().parse(), Ok(a));
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        }

        #[test]
        fn any_text_is_read_without_panic(text in ".{0,40}") {
            let _ = text.parse::<ConnectionId>();
            let _ = ContextId::from_hex(&text);
        }
    }
}
