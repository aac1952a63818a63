//! Keys of one object: read without copying where possible, and never the same one twice.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::de::{DeserializeSeed, Deserializer, Error, Visitor};

/// Keys compared one by one before an ordered set takes over; most objects have fewer and then allocate nothing here.
const INLINE_KEYS: usize = 8;

/// The keys an object has shown so far.
///
/// Past [`INLINE_KEYS`] a key costs about 45 bytes while its object is open; `max_slots` bounds how many there are.
/// An ordered set rather than a hashed one: this crate draws no randomness, and without it a sender could choose keys that
/// all collide.
pub(crate) struct Keys<'de> {
    first: [Cow<'de, str>; INLINE_KEYS],
    count: usize,
    more: BTreeSet<Cow<'de, str>>,
}

impl<'de> Keys<'de> {
    pub(crate) const fn new() -> Self {
        Self {
            first: [const { Cow::Borrowed("") }; INLINE_KEYS],
            count: 0,
            more: BTreeSet::new(),
        }
    }

    /// Adds a key; false when the object had it already.
    pub(crate) fn insert(&mut self, key: Cow<'de, str>) -> bool {
        if self
            .first
            .iter()
            .take(self.count)
            .any(|known| *known == key)
        {
            return false;
        }
        match self.first.get_mut(self.count) {
            Some(slot) => {
                *slot = key;
                self.count += 1;
                true
            }
            None => self.more.insert(key),
        }
    }
}

/// Reads a string, borrowed from the input unless it has escapes.
pub(crate) struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}
