//! The key in a space's DID, and its last character: what the directory is looked up by.

use std::collections::HashMap;

use memory_wire::Did;

/// The alphabet of base58btc, in the order of the values.
pub(crate) const BASE58: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/// The public key of a space's canonical DID.
///
/// A key that `known` holds is known to be a good point. Base58 decoding is one to one for texts that start with a
/// digit other than zero, so the text needs no other check than its length.
pub(crate) fn space_key<V>(text: &str, known: Option<&HashMap<[u8; 32], V>>) -> Option<[u8; 32]> {
    if let Some(known) = known
        && let Some(key) = decode_key(text)
        && known.contains_key(&key)
    {
        return Some(key);
    }
    Did::parse(text).ok().map(|did| *did.key())
}

fn decode_key(text: &str) -> Option<[u8; 32]> {
    let encoded = text
        .strip_prefix("did:key:z")
        .filter(|_| text.len() == Did::LEN)?;
    let mut bytes = [0; 34];
    let len = bs58::decode(encoded).onto(&mut bytes).ok()?;
    let [0xed, 0x01, key @ ..] = bytes else {
        return None;
    };
    (len == bytes.len()).then_some(key)
}

/// Value of a base58btc character.
pub(crate) fn base58_value(character: char) -> Option<usize> {
    BASE58
        .iter()
        .position(|known| char::from(*known) == character)
}
