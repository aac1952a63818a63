//! Documents: which one a request names, how large it is, when two values are equal.

use serde_json::{Number, Value};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// Levels below a document's root. A document stands at depth 5 of the deepest message that carries it, and a message has
/// at most 64 levels (`docs/protocol.md` section 2); a deeper one could be stored but never be read.
pub(super) const MAX_DOCUMENT_DEPTH: u32 = 59;

/// Bytes of a document's JSON text: it must fit one 8 MiB message with its envelope.
pub(super) const MAX_DOCUMENT_LEN: usize = 7 << 20;

/// Bytes of a document identifier, which is opaque otherwise.
pub(super) const MAX_ID_LEN: usize = 1024;

/// Whose instance of a document: everybody's, one principal's or one session's. The text is the database key.
///
/// Variants are in the order of their names, so that keys sort as syncs are sorted.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ScopeKey {
    Session(Arc<str>),
    Space,
    User(Arc<str>),
}

impl ScopeKey {
    /// The scope's name on the wire.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Session(_) => "session",
            Self::Space => "space",
            Self::User(_) => "user",
        }
    }

    /// The key in the database.
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Session(key) | Self::User(key) => key,
            Self::Space => "space",
        }
    }
}

/// One document of a space.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct DocumentKey {
    pub(super) scope: ScopeKey,
    pub(super) id: Arc<str>,
}

impl DocumentKey {
    pub(super) fn in_space(id: &str) -> Self {
        Self {
            scope: ScopeKey::Space,
            id: id.into(),
        }
    }
}

/// The scope instances one session sees.
#[derive(Debug, Clone)]
pub(super) struct Scopes {
    user: ScopeKey,
    session: ScopeKey,
}

impl Scopes {
    pub(super) fn new(principal: &str, session_id: &str) -> Self {
        let principal = encode_uri_component(principal);
        let session = encode_uri_component(session_id);
        Self {
            user: ScopeKey::User(format!("user:{principal}").into()),
            session: ScopeKey::Session(format!("session:{principal}:{session}").into()),
        }
    }

    /// The instance a request's `scope` member names; `None` when it names no scope.
    pub(super) fn resolve(&self, scope: Option<&Value>) -> Option<ScopeKey> {
        match scope {
            None => Some(ScopeKey::Space),
            Some(Value::String(name)) => match name.as_str() {
                "space" => Some(ScopeKey::Space),
                "user" => Some(self.user.clone()),
                "session" => Some(self.session.clone()),
                _ => None,
            },
            Some(_) => None,
        }
    }
}

fn encode_uri_component(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => encoded.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'!' | b'~' | b'*' | b'\'' | b'(' | b')' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The identifier of a document, or `None` when `value` is none.
pub(super) fn document_id(value: Option<&Value>) -> Option<&str> {
    value
        .and_then(Value::as_str)
        .filter(|id| !id.is_empty() && id.len() <= MAX_ID_LEN)
}

/// A whole number that JSON and JavaScript both keep exactly.
pub(super) fn safe_integer(value: &Value) -> Option<u64> {
    const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;
    let number = value.as_number()?;
    let integer = number.as_u64().or_else(|| {
        let float = number.as_f64()?;
        // A sender may write 7.0 for 7; -0 is no sequence number.
        (float.fract() == 0.0 && float.is_sign_positive() && float <= MAX_SAFE_INTEGER as f64)
            .then_some(float as u64)
    })?;
    (integer <= MAX_SAFE_INTEGER).then_some(integer)
}

/// Whether `value` is an object that is not a tagged Fabric form, which is what a document's root must be.
pub(super) fn is_plain_object(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            members.len() != 1 || members.keys().all(|key| !key.starts_with('/'))
        }
        _ => false,
    }
}

/// Size of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Measure {
    /// Values, the root included, keys free: what a frame slot counts.
    pub(super) slots: u64,
    /// Levels below the root.
    pub(super) depth: u32,
}

impl Measure {
    pub(super) fn of(value: &Value) -> Self {
        let mut measure = Self { slots: 1, depth: 0 };
        let mut add = |child: &Value| {
            let child = Self::of(child);
            measure.slots += child.slots;
            measure.depth = measure.depth.max(child.depth + 1);
        };
        match value {
            Value::Array(items) => items.iter().for_each(&mut add),
            Value::Object(members) => members.values().for_each(&mut add),
            _ => {}
        }
        measure
    }
}

/// Equality as JavaScript sees it: numbers by value, not by how they were written.
pub(super) fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            left == right || left.as_f64() == right.as_f64()
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(l, r)| equal(l, r))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .all(|(key, value)| right.get(key).is_some_and(|other| equal(value, other)))
        }
        _ => left == right,
    }
}

/// `left + right` as JavaScript adds; `None` when the sum is not finite.
pub(super) fn add_numbers(left: &Number, right: &Number) -> Option<Number> {
    const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;
    if let (Some(left), Some(right)) = (left.as_i64(), right.as_i64())
        && let Some(sum) = left.checked_add(right)
        && sum.abs() <= MAX_SAFE_INTEGER
    {
        return Some(sum.into());
    }
    let sum = left.as_f64()? + right.as_f64()?;
    if sum.fract() == 0.0 && sum.abs() <= MAX_SAFE_INTEGER as f64 {
        return Some((sum as i64).into());
    }
    Number::from_f64(sum)
}

/// SHA-256 of a value's compact JSON with sorted keys: two contents are the same content when it is equal.
pub(super) fn content_digest(value: &Value) -> [u8; 32] {
    let mut hash = Sha256::new();
    absorb(&mut hash, value);
    hash.finalize().into()
}

fn absorb(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Array(items) => {
            hash.update(b"[");
            for item in items {
                absorb(hash, item);
                hash.update(b",");
            }
            hash.update(b"]");
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_unstable_by_key(|(key, _)| *key);
            hash.update(b"{");
            for (key, value) in members {
                // The length keeps a key that looks like JSON from being read as JSON.
                hash.update((key.len() as u64).to_be_bytes());
                hash.update(key.as_bytes());
                absorb(hash, value);
            }
            hash.update(b"}");
        }
        Value::String(text) => {
            hash.update(b"\"");
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
        Value::Number(number) => hash.update(format!("#{number};")),
        Value::Bool(true) => hash.update(b"t"),
        Value::Bool(false) => hash.update(b"f"),
        Value::Null => hash.update(b"n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scope_keys_follow_from_the_session() {
        let scopes = Scopes::new("did:key:zA", "s:1@x");
        let key = |scope: &str| scopes.resolve(Some(&json!(scope)));
        assert_eq!(scopes.resolve(None), Some(ScopeKey::Space));
        assert_eq!(key("user").expect("user").as_str(), "user:did%3Akey%3AzA");
        assert_eq!(
            key("session").expect("session").as_str(),
            "session:did%3Akey%3AzA:s%3A1%40x"
        );
        assert_eq!(key("galaxy"), None);
        assert_eq!(scopes.resolve(Some(&json!(1))), None);
    }

    #[test]
    fn numbers_are_equal_by_value_and_add_as_in_javascript() {
        assert!(equal(&json!({"a": [1, 2.0]}), &json!({"a": [1.0, 2]})));
        assert!(!equal(&json!([1]), &json!([1, 2])));
        let add = |left: Value, right: Value| {
            let (Value::Number(left), Value::Number(right)) = (left, right) else {
                panic!("numbers");
            };
            add_numbers(&left, &right).map(Value::Number)
        };
        assert_eq!(add(json!(1), json!(2)), Some(json!(3)));
        assert_eq!(add(json!(0.5), json!(0.5)), Some(json!(1)));
        assert_eq!(add(json!(1e308), json!(1e308)), None);
        assert_eq!(
            add(json!(9_007_199_254_740_991_i64), json!(1)),
            Some(json!(9_007_199_254_740_992.0))
        );
    }

    #[test]
    fn integers_are_safe_ones() {
        assert_eq!(safe_integer(&json!(7)), Some(7));
        assert_eq!(safe_integer(&json!(7.0)), Some(7));
        for bad in [
            json!(-1),
            json!(-0.0),
            json!(0.5),
            json!("1"),
            json!(1u64 << 53),
        ] {
            assert_eq!(safe_integer(&bad), None, "{bad}");
        }
    }

    #[test]
    fn content_is_the_same_whatever_the_order_of_keys() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":[true]}"#).expect("json");
        let two: Value = serde_json::from_str(r#"{"b":[true],"a":1}"#).expect("json");
        assert_eq!(content_digest(&one), content_digest(&two));
        assert_ne!(content_digest(&one), content_digest(&json!({"a": 1})));
        assert_ne!(
            content_digest(&json!(["a", "b"])),
            content_digest(&json!(["ab"]))
        );
    }

    #[test]
    fn slots_count_values_and_not_keys() {
        let measure = Measure::of(&json!({"a": [1, {"b": null}]}));
        assert_eq!(measure, Measure { slots: 5, depth: 3 });
    }
}
