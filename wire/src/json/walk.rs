//! One walk through a text: every value is counted and every key is checked, whatever is kept of them.

use std::borrow::Cow;
use std::cell::Cell;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{JsonFault, JsonLimits, KeySeed, Keys};

/// Keys that a JavaScript reader does not treat as data (protocol section 2).
const FORBIDDEN_KEYS: [&str; 3] = ["__proto__", "constructor", "prototype"];

/// What a walk has used of its limits, and the rule it found broken.
///
/// The fault is kept here because serde_json's error type has no room for it.
pub(crate) struct Account {
    max_depth: u32,
    slots_left: Cell<Option<u64>>,
    fault: Cell<Option<JsonFault>>,
}

impl Account {
    pub(super) fn new(limits: &JsonLimits) -> Self {
        Self {
            max_depth: limits.max_depth,
            slots_left: Cell::new(limits.max_slots),
            fault: Cell::new(None),
        }
    }

    pub(super) fn fault(&self) -> Option<JsonFault> {
        self.fault.get()
    }

    fn fail<E: Error>(&self, fault: JsonFault) -> E {
        self.fault.set(Some(fault));
        E::custom(fault.reason())
    }
}

/// Where in the tree a value stands.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'s> {
    account: &'s Account,
    depth: u32,
}

impl<'s> Scope<'s> {
    pub(super) fn root(account: &'s Account) -> Self {
        Self { account, depth: 0 }
    }

    /// The scope of the values inside this one.
    pub(crate) fn child(self) -> Self {
        Self {
            account: self.account,
            depth: self.depth.saturating_add(1),
        }
    }

    /// Counts one value, before any of it is read.
    fn enter<E: Error>(self) -> Result<(), E> {
        if self.depth > self.account.max_depth {
            return Err(self.account.fail(JsonFault::Depth));
        }
        if let Some(left) = self.account.slots_left.get() {
            let Some(left) = left.checked_sub(1) else {
                return Err(self.account.fail(JsonFault::Slots));
            };
            self.account.slots_left.set(Some(left));
        }
        Ok(())
    }

    /// Refuses the keys no object may have.
    fn check_key<E: Error>(self, key: &str) -> Result<(), E> {
        if FORBIDDEN_KEYS.contains(&key) {
            return Err(self.account.fail(JsonFault::ForbiddenKey));
        }
        Ok(())
    }

    /// Takes up a key of an object whose earlier keys are `keys`.
    pub(crate) fn admit_key<'de, E: Error>(
        self,
        keys: &mut Keys<'de>,
        key: Cow<'de, str>,
    ) -> Result<(), E> {
        self.check_key(&key)?;
        if keys.insert(key) {
            Ok(())
        } else {
            Err(self.account.fail(JsonFault::DuplicateKey))
        }
    }

    /// Walks the rest of an array without keeping it; returns how many elements it had.
    pub(crate) fn skip_elements<'de, A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let mut count = 0u64;
        while seq.next_element_seed(Walk(Skip(self.child())))?.is_some() {
            count = count.saturating_add(1);
        }
        Ok(count)
    }

    /// Walks the rest of an object without keeping it.
    pub(crate) fn skip_members<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = Keys::new();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            self.admit_key(&mut keys, key)?;
            map.next_value_seed(Walk(Skip(self.child())))?;
        }
        Ok(())
    }
}

/// A value that is not a container.
pub(crate) enum Scalar<'a> {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    /// Always finite.
    Float(f64),
    Text(&'a str),
}

/// Decides what is kept of one value. The checks are made by [`Walk`] and [`Scope`], whatever the sink does.
pub(crate) trait Sink<'de>: Sized {
    type Out;

    fn scope(&self) -> Scope<'_>;

    /// What is kept of a scalar.
    fn scalar(self, scalar: Scalar<'_>) -> Self::Out;

    /// What is kept of a container that the sink does not look into.
    fn other(self) -> Self::Out;

    fn array<A: SeqAccess<'de>>(self, seq: A) -> Result<Self::Out, A::Error> {
        self.scope().skip_elements(seq)?;
        Ok(self.other())
    }

    fn object<A: MapAccess<'de>>(self, map: A) -> Result<Self::Out, A::Error> {
        self.scope().skip_members(map)?;
        Ok(self.other())
    }
}

/// Keeps nothing.
pub(crate) struct Skip<'s>(pub(crate) Scope<'s>);

impl Sink<'_> for Skip<'_> {
    type Out = ();

    fn scope(&self) -> Scope<'_> {
        self.0
    }

    fn scalar(self, _: Scalar<'_>) {}

    fn other(self) {}
}

/// Keeps everything.
pub(crate) struct Tree<'s>(pub(crate) Scope<'s>);

impl<'de> Sink<'de> for Tree<'_> {
    type Out = Value;

    fn scope(&self) -> Scope<'_> {
        self.0
    }

    fn scalar(self, scalar: Scalar<'_>) -> Value {
        match scalar {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(value),
            Scalar::Unsigned(value) => Value::Number(value.into()),
            Scalar::Signed(value) => Value::Number(value.into()),
            Scalar::Float(value) => Number::from_f64(value).map_or(Value::Null, Value::Number),
            Scalar::Text(value) => Value::String(value.to_owned()),
        }
    }

    fn other(self) -> Value {
        Value::Null
    }

    fn array<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element_seed(Walk(Tree(self.0.child())))? {
            elements.push(element);
        }
        Ok(Value::Array(elements))
    }

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            self.0.check_key(&key)?;
            if members.contains_key(key.as_ref()) {
                return Err(self.0.account.fail(JsonFault::DuplicateKey));
            }
            let value = map.next_value_seed(Walk(Tree(self.0.child())))?;
            members.insert(key.into_owned(), value);
        }
        Ok(Value::Object(members))
    }
}

/// Reads one value into a sink.
pub(crate) struct Walk<S>(pub(crate) S);

impl<'de, S: Sink<'de>> DeserializeSeed<'de> for Walk<S> {
    type Value = S::Out;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Out, D::Error> {
        self.0.scope().enter()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de, S: Sink<'de>> Visitor<'de> for Walk<S> {
    type Value = S::Out;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<S::Out, E> {
        Ok(self.0.scalar(Scalar::Null))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<S::Out, E> {
        Ok(self.0.scalar(Scalar::Bool(value)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<S::Out, E> {
        Ok(self.0.scalar(Scalar::Unsigned(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<S::Out, E> {
        Ok(self.0.scalar(Scalar::Signed(value)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<S::Out, E> {
        if value.is_finite() {
            Ok(self.0.scalar(Scalar::Float(value)))
        } else {
            Err(self.0.scope().account.fail(JsonFault::NumberRange))
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<S::Out, E> {
        Ok(self.0.scalar(Scalar::Text(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<S::Out, A::Error> {
        self.0.array(seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<S::Out, A::Error> {
        self.0.object(map)
    }
}
