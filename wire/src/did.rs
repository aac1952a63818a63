//! Identities: canonical Ed25519 `did:key` texts (`docs/protocol.md` section 1).

use ed25519_dalek::{Signature, VerifyingKey};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use thiserror::Error;

/// An Ed25519 public key and its one canonical text. Holding one proves that the key is a canonical curve point and not
/// of small order, so that no signature is ever checked against a key that fits several messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Did {
    /// First, so that DIDs sort as their texts do.
    text: [u8; Self::LEN],
    key: [u8; 32],
}

impl Did {
    /// Bytes of the text: every Ed25519 key has a text of this length.
    pub const LEN: usize = 56;

    /// Reads a canonical text.
    ///
    /// # Errors
    /// [`DidError`].
    pub fn parse(text: &str) -> Result<Self, DidError> {
        if text.len() != Self::LEN {
            return Err(DidError::Form);
        }
        let encoded = text.strip_prefix(PREFIX).ok_or(DidError::Form)?;
        let mut bytes = [0; MULTIKEY_LEN];
        match bs58::decode(encoded).onto(&mut bytes) {
            Ok(MULTIKEY_LEN) => {}
            Ok(_) | Err(_) => return Err(DidError::Form),
        }
        let key = bytes
            .strip_prefix(&MULTICODEC)
            .and_then(|key| <&[u8; 32]>::try_from(key).ok())
            .ok_or(DidError::Form)?;
        let did = Self::from_key(key)?;
        if did.text != text.as_bytes() {
            return Err(DidError::Form);
        }
        Ok(did)
    }

    /// The DID of a compressed public key.
    ///
    /// # Errors
    /// [`DidError::Key`] or [`DidError::WeakKey`].
    pub fn from_key(key: &[u8; 32]) -> Result<Self, DidError> {
        let point = VerifyingKey::from_bytes(key).map_err(|_| DidError::Key)?;
        if point.is_weak() {
            return Err(DidError::WeakKey);
        }
        // Decompression accepts y coordinates past the field's order; only one encoding of a point is its DID.
        if point.to_edwards().compress().as_bytes() != key {
            return Err(DidError::Key);
        }
        let mut bytes = [0; MULTIKEY_LEN];
        let mut text = [0; Self::LEN];
        for (byte, value) in bytes.iter_mut().zip(MULTICODEC.iter().chain(key)) {
            *byte = *value;
        }
        let (prefix, encoded) = text.split_at_mut(PREFIX.len());
        prefix.copy_from_slice(PREFIX.as_bytes());
        match bs58::encode(bytes).onto(encoded) {
            Ok(length) if length == Self::LEN - PREFIX.len() => Ok(Self { text, key: *key }),
            Ok(_) | Err(_) => Err(DidError::Key),
        }
    }

    /// The canonical text.
    pub fn as_str(&self) -> &str {
        // The text is ASCII by construction; the default is never reached.
        std::str::from_utf8(&self.text).unwrap_or_default()
    }

    /// The compressed public key.
    pub const fn key(&self) -> &[u8; 32] {
        &self.key
    }

    /// The last character of the text, by which a directory may place a space that it does not list.
    pub const fn last_character(&self) -> char {
        let [.., last] = self.text;
        last as char
    }

    /// Whether `signature` is this key's over `message`, strictly: S below the group's order, R canonical and not of
    /// small order, cofactorless equation.
    pub fn verify(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        VerifyingKey::from_bytes(&self.key).is_ok_and(|key| {
            key.verify_strict(message, &Signature::from_bytes(signature))
                .is_ok()
        })
    }
}

impl Hash for Did {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The text follows from the key.
        self.key.hash(state);
    }
}

impl fmt::Display for Did {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl fmt::Debug for Did {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl AsRef<str> for Did {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl FromStr for Did {
    type Err = DidError;

    fn from_str(text: &str) -> Result<Self, DidError> {
        Self::parse(text)
    }
}

impl Serialize for Did {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Did {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(DidVisitor)
    }
}

struct DidVisitor;

impl Visitor<'_> for DidVisitor {
    type Value = Did;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a canonical Ed25519 did:key")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Did, E> {
        Did::parse(text).map_err(E::custom)
    }
}

/// Why something is not a canonical DID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum DidError {
    /// The text is not the canonical `did:key` text of an Ed25519 key.
    #[error("not a canonical Ed25519 did:key")]
    Form,
    /// The key is not the canonical encoding of a curve point.
    #[error("public key is not a canonical curve point")]
    Key,
    /// The key is a point of small order, for which anybody can make signatures.
    #[error("public key is of small order")]
    WeakKey,
}

const PREFIX: &str = "did:key:z";

/// The multicodec number of an Ed25519 public key, as the variable-length integer that precedes the key.
const MULTICODEC: [u8; 2] = [0xed, 0x01];

const MULTIKEY_LEN: usize = MULTICODEC.len() + 32;

#[cfg(test)]
mod tests {
    use super::*;
    use ed25519_dalek::{Signer, SigningKey};
    use proptest::prelude::*;

    const TEXT: &str = "did:key:z6Mkon3Necd6NkkyfoGoHxid2znGc59LU3K7mubaRcFbLfLX";

    #[test]
    fn reads_and_prints_a_canonical_text() {
        let did = Did::parse(TEXT).expect("canonical");
        let key = SigningKey::from_bytes(&[1; 32]);
        assert_eq!(did.key(), key.verifying_key().as_bytes());
        assert_eq!(did.to_string(), TEXT);
        assert_eq!(format!("{did:?}"), TEXT);
        assert_eq!(did.last_character(), 'X');
        let json = serde_json::to_string(&did).expect("json");
        assert_eq!(serde_json::from_str::<Did>(&json).expect("json"), did);
        assert!(serde_json::from_str::<Did>("\"did:key:z6Mk\"").is_err());
    }

    #[test]
    fn refuses_every_other_text() {
        let longer = format!("{TEXT}1");
        let padded = TEXT.replace("did:key:z", "did:key:z1");
        for text in [
            "",
            "did:key:z",
            &TEXT[1..],
            &TEXT[..TEXT.len() - 1],
            &longer,
            &padded,
            &padded[..TEXT.len()],
            &TEXT.to_uppercase(),
            &TEXT.replace("did:key:z", "did:key:f"),
            &TEXT.replace("6Mk", "6Nk"),
            &TEXT.replace('X', "0"),
        ] {
            assert!(Did::parse(text).is_err(), "{text}");
        }
        for end in 0..TEXT.len() {
            assert_eq!(Did::parse(&TEXT[..end]), Err(DidError::Form));
        }
    }

    #[test]
    fn refuses_keys_of_small_order_and_other_encodings() {
        let mut identity = [0; 32];
        identity[0] = 1;
        assert_eq!(Did::from_key(&identity), Err(DidError::WeakKey));
        assert_eq!(Did::from_key(&[0; 32]), Err(DidError::WeakKey));
        // y = p + 3 .. p + 18: encodings that a lenient decoder takes for y = 3 .. 18.
        for low in 0xed..=0xff {
            for high in [0x7f, 0xff] {
                let mut key = [0xff; 32];
                key[0] = low;
                key[31] = high;
                assert!(Did::from_key(&key).is_err(), "{low:x} {high:x}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_key_has_one_text_and_verifies(seed: [u8; 32], message: Vec<u8>) {
            let key = SigningKey::from_bytes(&seed);
            let did = Did::from_key(key.verifying_key().as_bytes()).expect("key");
            prop_assert_eq!(Did::parse(did.as_str()), Ok(did));
            let signature = key.sign(&message).to_bytes();
            prop_assert!(did.verify(&message, &signature));
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in ".{0,60}", tail in "[1-9A-HJ-NP-Za-km-z]{47}") {
            let _ = Did::parse(&text);
            if let Ok(did) = Did::parse(&format!("{PREFIX}{tail}")) {
                prop_assert_eq!(did.as_str(), format!("{PREFIX}{tail}"));
            }
        }

        #[test]
        fn any_key_is_judged_without_panic(key: [u8; 32]) {
            if let Ok(did) = Did::from_key(&key) {
                prop_assert_eq!(Did::parse(did.as_str()), Ok(did));
            }
        }
    }
}
