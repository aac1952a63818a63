//! Strict JSON: what every text of the protocol passes before anything looks at its values (protocol section 2).
//!
//! The grammar itself is serde_json's. On top of it come the rules on which two readers of the same text could otherwise
//! disagree: the whole input is UTF-8, no object repeats a key once escapes are undone, no string holds a lone surrogate,
//! none of the keys that change meaning in a JavaScript reader occurs, every number is finite, nesting and the number of
//! values are bounded, and nothing but white space follows the root.
//!
//! Memory stays in proportion to the bytes that were received: validation keeps the keys of the objects that are open,
//! [`parse`] keeps the tree.

mod error;
mod keys;
mod walk;

pub use error::{JsonError, JsonFault};
pub(crate) use keys::{KeySeed, Keys};
pub(crate) use walk::{Account, Scalar, Scope, Sink, Skip, Tree, Walk};

use serde::de::DeserializeSeed;
use serde_json::Value;

/// Bytes of a text that is parsed by default, and the most that a message may expand to: 16 MiB (protocol section 2).
pub const DEFAULT_MAX_BYTES: usize = 16 << 20;

/// Nesting allowed by default; the root is at depth 0, and a value inside a container is one deeper than it.
pub const DEFAULT_MAX_DEPTH: u32 = 64;

/// Values allowed by default, the root included (`max_frame_slots`, limits section 1).
pub const DEFAULT_MAX_SLOTS: u64 = 150_000;

/// The bounds a text is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// Length of the text, in bytes.
    pub max_bytes: usize,
    /// Depth of the deepest value; the root is at depth 0. Past 127 the grammar's own recursion bound ends first.
    pub max_depth: u32,
    /// Values in the text: every scalar, array and object is one, the root included, keys are free. `None` counts nothing.
    pub max_slots: Option<u64>,
}

impl Default for JsonLimits {
    fn default() -> Self {
        Self {
            max_bytes: DEFAULT_MAX_BYTES,
            max_depth: DEFAULT_MAX_DEPTH,
            max_slots: Some(DEFAULT_MAX_SLOTS),
        }
    }
}

/// Parses `text` into a tree.
///
/// # Errors
///
/// The first rule of this module that the text breaks, with the offset at which it was noticed.
pub fn parse(text: &[u8], limits: &JsonLimits) -> Result<Value, JsonError> {
    let source = Source::open(text, limits)?;
    source.read(Walk(Tree(source.root())))
}

/// Checks `text` against every rule of this module without keeping its values.
///
/// # Errors
///
/// As [`parse`].
pub fn validate(text: &[u8], limits: &JsonLimits) -> Result<(), JsonError> {
    let source = Source::open(text, limits)?;
    source.read(Walk(Skip(source.root())))
}

/// A text whose length and encoding were checked, with the running account of one walk through it.
pub(crate) struct Source<'de> {
    text: &'de str,
    account: Account,
}

impl<'de> Source<'de> {
    /// Checks the length and the encoding of the whole text, before any of it is read as JSON.
    pub(crate) fn open(text: &'de [u8], limits: &JsonLimits) -> Result<Self, JsonError> {
        if text.len() > limits.max_bytes {
            return Err(JsonError::new(JsonFault::TooLong, limits.max_bytes));
        }
        let text = std::str::from_utf8(text)
            .map_err(|error| JsonError::new(JsonFault::InvalidUtf8, error.valid_up_to()))?;
        Ok(Self {
            text,
            account: Account::new(limits),
        })
    }

    /// The scope of the root value.
    pub(crate) fn root(&self) -> Scope<'_> {
        Scope::root(&self.account)
    }

    /// Reads the one value of the text with `seed` and proves that nothing is left behind it.
    pub(crate) fn read<S: DeserializeSeed<'de>>(&self, seed: S) -> Result<S::Value, JsonError> {
        let mut grammar = serde_json::Deserializer::from_str(self.text);
        let value = seed
            .deserialize(&mut grammar)
            .map_err(|error| self.judge(&error))?;
        match grammar.end() {
            Ok(()) => Ok(value),
            Err(error) => Err(JsonError::new(
                JsonFault::Trailing,
                error::offset(self.text, &error),
            )),
        }
    }

    /// Our own finding when there is one, else the grammar's.
    fn judge(&self, error: &serde_json::Error) -> JsonError {
        let fault = self
            .account
            .fault()
            .unwrap_or_else(|| error::grammar_fault(error));
        JsonError::new(fault, error::offset(self.text, error))
    }
}

#[cfg(test)]
mod tests;
