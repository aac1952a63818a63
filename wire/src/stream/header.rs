//! The JSON header of a streamed message and its route.

use std::borrow::Cow;
use std::cell::Cell;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::{KIND_HEADER, MAX_BODY_LEN, MAX_HEADER_RECORD_LEN, StreamFault, prefix};
use crate::codec::MAX_SAFE_INTEGER;
use crate::json::KeySeed;
use crate::message::{Message, is_identifier, is_type};

/// Which of the three places a header stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Client to router: no ordinal.
    PublicUpload,
    /// Router to toolshed: an ordinal is required.
    PrivateRequest,
    /// Toolshed to router: no ordinal; the only one that can carry a response.
    PrivateResponse,
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Length of the body, 1 to [`MAX_BODY_LEN`].
    pub bytes: u32,
    /// Whether the body is a compression envelope rather than text.
    pub binary: bool,
    /// Number of the request on its data socket, from 1, in private requests alone.
    pub request_ordinal: Option<u64>,
    /// What the body is, as far as routing needs to know.
    pub route: Route<'a>,
}

/// The projection of a message that its header carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route<'a> {
    /// `type` of the message.
    pub kind: Cow<'a, str>,
    /// `requestId`.
    pub request_id: Option<Cow<'a, str>>,
    /// `space`; of the shape of a DID, its key is not checked here.
    pub space: Option<Cow<'a, str>>,
    /// `sessionId`.
    pub session_id: Option<Cow<'a, str>>,
    /// `principal`; of the shape of a DID, its key is not checked here.
    pub principal: Option<Cow<'a, str>>,
    /// Whether the message is a response that carries `error`.
    pub error: bool,
    /// `ok.sessionId` of a successful answer to `session.open`, and of nothing else.
    pub assigned_session_id: Option<Cow<'a, str>>,
}

impl<'a> Header<'a> {
    /// Parses the JSON of a header record.
    ///
    /// Allocates only for members that are written with escapes. DIDs are checked by shape: the caller compares them with
    /// canonical ones that it already holds.
    ///
    /// # Errors
    ///
    /// [`StreamFault::HeaderSyntax`], [`StreamFault::DuplicateKey`], [`StreamFault::Member`],
    /// [`StreamFault::Incomplete`], [`StreamFault::Value`], [`StreamFault::BodyLength`].
    pub fn parse(json: &'a [u8], direction: Direction) -> Result<Self, StreamFault> {
        let text = std::str::from_utf8(json).map_err(|_| StreamFault::HeaderSyntax)?;
        let fault = Cell::new(None);
        let mut grammar = serde_json::Deserializer::from_str(text);
        let parts = HeaderSeed { fault: &fault }
            .deserialize(&mut grammar)
            .map_err(|_| fault.get().unwrap_or(StreamFault::HeaderSyntax))?;
        grammar.end().map_err(|_| StreamFault::HeaderSyntax)?;
        let header = parts.complete()?;
        header.check_direction(direction)?;
        Ok(header)
    }

    /// Appends the whole record, prefix included, to `out`.
    ///
    /// # Errors
    ///
    /// [`StreamFault::RecordLength`] when the record would be longer than its bound, which no header of valid members is;
    /// `out` is then as before.
    pub fn encode_record(&self, out: &mut Vec<u8>) -> Result<(), StreamFault> {
        let start = out.len();
        out.extend_from_slice(&prefix(KIND_HEADER));
        out.extend_from_slice(b"{\"bytes\":");
        push_number(out, u64::from(self.bytes));
        out.extend_from_slice(if self.binary {
            b",\"binary\":true"
        } else {
            b",\"binary\":false"
        });
        if let Some(ordinal) = self.request_ordinal {
            out.extend_from_slice(b",\"requestOrdinal\":");
            push_number(out, ordinal);
        }
        out.extend_from_slice(b",\"route\":{\"type\":");
        push_text(out, &self.route.kind);
        let texts = [
            (&b",\"requestId\":"[..], &self.route.request_id),
            (b",\"space\":", &self.route.space),
            (b",\"sessionId\":", &self.route.session_id),
            (b",\"principal\":", &self.route.principal),
            (b",\"assignedSessionId\":", &self.route.assigned_session_id),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                out.extend_from_slice(key);
                push_text(out, text);
            }
        }
        if self.route.error {
            out.extend_from_slice(b",\"error\":true");
        }
        out.extend_from_slice(b"}}");
        if out.len().saturating_sub(start) > MAX_HEADER_RECORD_LEN {
            out.truncate(start);
            return Err(StreamFault::RecordLength);
        }
        Ok(())
    }

    /// Which members may stand in which direction.
    fn check_direction(&self, direction: Direction) -> Result<(), StreamFault> {
        match (direction, self.request_ordinal) {
            (Direction::PrivateRequest, None) => return Err(StreamFault::Incomplete),
            (Direction::PublicUpload | Direction::PrivateResponse, Some(_)) => {
                return Err(StreamFault::Member);
            }
            _ => {}
        }
        let is_response = direction == Direction::PrivateResponse && self.route.kind == "response";
        let assigns = self.route.assigned_session_id.is_some();
        if ((self.route.error || assigns) && !is_response) || (self.route.error && assigns) {
            return Err(StreamFault::Member);
        }
        Ok(())
    }
}

impl<'a> Route<'a> {
    /// The route of a message.
    ///
    /// A message does not tell which request it answers: the sender of an answer to anything but `session.open` clears
    /// `assigned_session_id`.
    pub fn of(message: &'a Message) -> Self {
        let is_response = message.kind == "response";
        let borrow = |text: &'a Option<String>| text.as_deref().map(Cow::Borrowed);
        Self {
            kind: Cow::Borrowed(&message.kind),
            request_id: borrow(&message.request_id),
            space: borrow(&message.space),
            session_id: borrow(&message.session_id),
            principal: borrow(&message.principal),
            error: is_response && message.error,
            assigned_session_id: if is_response && !message.error {
                borrow(&message.assigned_session_id)
            } else {
                None
            },
        }
    }

    /// Whether the decoded `message` is what this route announced.
    ///
    /// An assigned session has to be the message's. Its absence is accepted: only who knows the request can tell whether
    /// one was due, and compares `assigned_session_id` itself.
    pub fn matches(&self, message: &Message) -> bool {
        let actual = Route::of(message);
        self.kind == actual.kind
            && self.request_id == actual.request_id
            && self.space == actual.space
            && self.session_id == actual.session_id
            && self.principal == actual.principal
            && self.error == actual.error
            && (self.assigned_session_id.is_none()
                || self.assigned_session_id == actual.assigned_session_id)
    }

    /// The same route, with texts of its own.
    pub fn into_owned(self) -> Route<'static> {
        let own = |text: Option<Cow<'a, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        Route {
            kind: Cow::Owned(self.kind.into_owned()),
            request_id: own(self.request_id),
            space: own(self.space),
            session_id: own(self.session_id),
            principal: own(self.principal),
            error: self.error,
            assigned_session_id: own(self.assigned_session_id),
        }
    }
}

/// Whether `text` looks like an Ed25519 DID: 56 characters, `did:key:z6Mk`, base58btc behind the `z`. No key is decoded.
pub fn has_did_shape(text: &str) -> bool {
    const LEN: usize = 56;
    text.len() == LEN
        && text
            .strip_prefix("did:key:z6Mk")
            .is_some_and(|key| key.bytes().all(is_base58))
}

const fn is_base58(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() && !matches!(byte, b'0' | b'O' | b'I' | b'l')
}

/// Members of a header as they are found.
#[derive(Default)]
struct Parts<'a> {
    bytes: Option<u32>,
    binary: Option<bool>,
    request_ordinal: Option<u64>,
    route: Option<Route<'a>>,
}

impl<'a> Parts<'a> {
    fn complete(self) -> Result<Header<'a>, StreamFault> {
        Ok(Header {
            bytes: self.bytes.ok_or(StreamFault::Incomplete)?,
            binary: self.binary.ok_or(StreamFault::Incomplete)?,
            request_ordinal: self.request_ordinal,
            route: self.route.ok_or(StreamFault::Incomplete)?,
        })
    }
}

/// Notes the fault where the caller finds it: serde_json's error has no room for it.
fn fail<E: Error>(fault: &Cell<Option<StreamFault>>, found: StreamFault) -> E {
    fault.set(Some(found));
    E::custom(found.reason())
}

/// Fills a member that must not have been filled before.
fn fill<T, E: Error>(
    fault: &Cell<Option<StreamFault>>,
    member: &mut Option<T>,
    value: T,
) -> Result<(), E> {
    match member.replace(value) {
        None => Ok(()),
        Some(_) => Err(fail(fault, StreamFault::DuplicateKey)),
    }
}

struct HeaderSeed<'f> {
    fault: &'f Cell<Option<StreamFault>>,
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = Parts<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = Parts<'de>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a header")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let fault = self.fault;
        let mut parts = Parts::default();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            match key.as_ref() {
                "bytes" => {
                    let bytes = map.next_value_seed(IntegerSeed { fault })?;
                    match u32::try_from(bytes) {
                        Ok(bytes @ 1..=MAX_BODY_LEN) => fill(fault, &mut parts.bytes, bytes)?,
                        _ => return Err(fail(fault, StreamFault::BodyLength)),
                    }
                }
                "binary" => {
                    let binary = map.next_value_seed(BoolSeed { fault })?;
                    fill(fault, &mut parts.binary, binary)?;
                }
                "requestOrdinal" => {
                    let ordinal = map.next_value_seed(IntegerSeed { fault })?;
                    if !(1..=MAX_SAFE_INTEGER).contains(&ordinal) {
                        return Err(fail(fault, StreamFault::Value));
                    }
                    fill(fault, &mut parts.request_ordinal, ordinal)?;
                }
                "route" => {
                    let route = map.next_value_seed(RouteSeed { fault })?;
                    fill(fault, &mut parts.route, route)?;
                }
                _ => return Err(fail(fault, StreamFault::Member)),
            }
        }
        Ok(parts)
    }
}

struct RouteSeed<'f> {
    fault: &'f Cell<Option<StreamFault>>,
}

impl<'de> DeserializeSeed<'de> for RouteSeed<'_> {
    type Value = Route<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for RouteSeed<'_> {
    type Value = Route<'de>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a route")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let fault = self.fault;
        let mut kind = None;
        let mut error = None;
        let mut route = Route::default();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            let (member, is_valid): (_, fn(&str) -> bool) = match key.as_ref() {
                "type" => (&mut kind, is_type),
                "requestId" => (&mut route.request_id, is_identifier),
                "space" => (&mut route.space, has_did_shape),
                "sessionId" => (&mut route.session_id, is_identifier),
                "principal" => (&mut route.principal, has_did_shape),
                "assignedSessionId" => (&mut route.assigned_session_id, is_identifier),
                "error" => {
                    if !map.next_value_seed(BoolSeed { fault })? {
                        return Err(fail(fault, StreamFault::Value));
                    }
                    fill(fault, &mut error, ())?;
                    continue;
                }
                _ => return Err(fail(fault, StreamFault::Member)),
            };
            let text = map.next_value_seed(KeySeed)?;
            if !is_valid(&text) {
                return Err(fail(fault, StreamFault::Value));
            }
            fill(fault, member, text)?;
        }
        route.kind = kind.ok_or_else(|| fail(fault, StreamFault::Incomplete))?;
        route.error = error.is_some();
        Ok(route)
    }
}

struct IntegerSeed<'f> {
    fault: &'f Cell<Option<StreamFault>>,
}

impl<'de> DeserializeSeed<'de> for IntegerSeed<'_> {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_u64(self)
    }
}

impl Visitor<'_> for IntegerSeed<'_> {
    type Value = u64;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an unsigned integer")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
        Ok(value)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<u64, E> {
        Err(fail(self.fault, StreamFault::Value))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<u64, E> {
        Err(fail(self.fault, StreamFault::Value))
    }
}

struct BoolSeed<'f> {
    fault: &'f Cell<Option<StreamFault>>,
}

impl<'de> DeserializeSeed<'de> for BoolSeed<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        let fault = self.fault;
        deserializer
            .deserialize_bool(self)
            .inspect_err(|_| fault.set(Some(StreamFault::Value)))
    }
}

impl Visitor<'_> for BoolSeed<'_> {
    type Value = bool;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a boolean")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }
}

/// Appends `number` in decimal without allocating.
fn push_number(out: &mut Vec<u8>, number: u64) {
    // Writing to a vector cannot fail.
    let _ = std::io::Write::write_fmt(out, format_args!("{number}"));
}

/// Appends `text` as a JSON string.
fn push_text(out: &mut Vec<u8>, text: &str) {
    let plain = |byte: u8| matches!(byte, 0x20..=0x7e) && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // A string always serialises, and writing to a vector cannot fail.
        let _ = serde_json::to_writer(out, text);
    }
}

#[cfg(test)]
mod tests;
