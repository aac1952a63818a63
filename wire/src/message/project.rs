//! The single walk through a message.

use serde::de::{MapAccess, SeqAccess};
use serde_json::{Map, Value};

use super::{
    Collection, MAX_FLAG_NAMES, MAX_FLAGS, MAX_IDENTIFIER_LEN, MAX_STATEMENT_TEXT_LEN,
    MAX_TYPE_LEN, Message, MessageError, SessionPart, is_identifier, is_type,
};
use crate::Did;
use crate::json::{JsonLimits, KeySeed, Keys, Scalar, Scope, Sink, Skip, Source, Tree, Walk};

/// Top-level members that a client may not send in a session open, `statement` aside (protocol section 4.5).
const SMUGGLED: [&str; 9] = [
    "routerTicket",
    "routerBinding",
    "forwarded",
    "contextId",
    "upstream",
    "host",
    "authorization",
    "invocation",
    "actingAs",
];

/// Length of every canonical DID; longer texts are not kept.
const MAX_DID_LEN: usize = 56;

/// Projects the JSON behind the prefix.
pub(super) fn project(json: &[u8], limits: &JsonLimits) -> Result<Message, MessageError> {
    let source = Source::open(json, limits).map_err(MessageError::Json)?;
    let parts = source
        .read(Walk(Root(source.root())))
        .map_err(MessageError::Json)?
        .ok_or(MessageError::NotObject)?;
    parts.judge()
}

/// Everything kept of the walk, not yet judged: the type that gives the members their meaning may come last.
#[derive(Default)]
struct Parts {
    tagged: bool,
    kind: Leaf,
    request_id: Leaf,
    space: Leaf,
    session_id: Leaf,
    principal: Leaf,
    error: bool,
    ok: Option<Leaf>,
    session: Option<Option<Session>>,
    flags: Option<Descriptor>,
    statement: Leaf,
    enabled: Leaf,
    version: Leaf,
    upload_credits: Leaf,
    protocol: Leaf,
    watches: Option<Collection>,
    views: Option<Collection>,
    holdings: Option<Collection>,
    smuggled: Option<&'static str>,
}

impl Parts {
    fn judge(self) -> Result<Message, MessageError> {
        if self.tagged {
            return Err(MessageError::Tagged);
        }
        let kind = match self.kind {
            Leaf::Text(text) if is_type(&text) => text,
            _ => return Err(MessageError::Type),
        };
        // Members that only this type of message gives a meaning have to be well formed in it.
        let malformed = match kind.as_str() {
            "hello" | "hello.ok" => {
                if matches!(self.flags, Some(Descriptor::Tagged)) {
                    return Err(MessageError::Tagged);
                }
                (matches!(self.flags, Some(Descriptor::Malformed)).then_some("flags"))
                    .or_else(|| self.protocol.not_text().then_some("protocol"))
            }
            "router.transport" => (self.version.not_unsigned().then_some("version"))
                .or_else(|| self.upload_credits.not_bool().then_some("uploadCredits")),
            "connection.auth" => self.statement.not_text().then_some("statement"),
            "memory.compression" => self.enabled.not_bool().then_some("enabled"),
            "session.open" => match &self.session {
                Some(None) => Some("session"),
                Some(Some(session)) if session.session_id.not_identifier() => {
                    return Err(MessageError::Identifier("session.sessionId"));
                }
                _ => None,
            },
            _ => None,
        };
        if let Some(member) = malformed {
            return Err(MessageError::Member(member));
        }
        let statement_smuggled = kind == "session.open" && !matches!(self.statement, Leaf::Absent);
        Ok(Message {
            request_id: self.request_id.identifier("requestId")?,
            space: self.space.did("space")?,
            session_id: self.session_id.identifier("sessionId")?,
            principal: self.principal.did("principal")?,
            error: self.error,
            ok_present: self.ok.is_some(),
            assigned_session_id: self.ok.and_then(Leaf::valid_identifier),
            session: self.session.flatten().map(|session| SessionPart {
                session_id: session.session_id.valid_identifier(),
                acting_as: session.acting_as,
                tagged: session.tagged,
            }),
            flags: match self.flags {
                Some(Descriptor::Well(value)) => Some(value),
                _ => None,
            },
            statement: self.statement.text(),
            enabled: self.enabled.boolean(),
            version: self.version.unsigned(),
            upload_credits: self.upload_credits.boolean(),
            protocol: self.protocol.text(),
            watches: self.watches,
            views: self.views,
            holdings: self.holdings,
            smuggled: self
                .smuggled
                .or_else(|| statement_smuggled.then_some("statement")),
            kind,
        })
    }
}

/// The root; `None` when it is not an object.
struct Root<'s>(Scope<'s>);

impl<'de> Sink<'de> for Root<'_> {
    type Out = Option<Parts>;

    fn scope(&self) -> Scope<'_> {
        self.0
    }

    fn scalar(self, _: Scalar<'_>) -> Option<Parts> {
        None
    }

    fn other(self) -> Option<Parts> {
        None
    }

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<Parts>, A::Error> {
        let scope = self.0;
        let inner = scope.child();
        let leaf = |max_len| {
            Walk(LeafSink {
                scope: inner,
                max_len,
            })
        };
        let array = |with_ids| {
            Walk(CollectionSink {
                scope: inner,
                with_ids,
            })
        };
        let mut parts = Parts::default();
        let mut keys = Keys::new();
        while let Some(key) = map.next_key_seed(KeySeed)? {
            parts.tagged |= key.starts_with('/');
            match key.as_ref() {
                "type" => parts.kind = map.next_value_seed(leaf(MAX_TYPE_LEN))?,
                "requestId" => parts.request_id = map.next_value_seed(leaf(MAX_IDENTIFIER_LEN))?,
                "space" => parts.space = map.next_value_seed(leaf(MAX_DID_LEN))?,
                "sessionId" => parts.session_id = map.next_value_seed(leaf(MAX_IDENTIFIER_LEN))?,
                "principal" => parts.principal = map.next_value_seed(leaf(MAX_DID_LEN))?,
                "statement" => {
                    parts.statement = map.next_value_seed(leaf(MAX_STATEMENT_TEXT_LEN))?;
                }
                "enabled" => parts.enabled = map.next_value_seed(leaf(0))?,
                "version" => parts.version = map.next_value_seed(leaf(0))?,
                "uploadCredits" => parts.upload_credits = map.next_value_seed(leaf(0))?,
                "protocol" => parts.protocol = map.next_value_seed(leaf(MAX_TYPE_LEN))?,
                "ok" => parts.ok = Some(map.next_value_seed(Walk(OkSink(inner)))?),
                "session" => parts.session = Some(map.next_value_seed(Walk(SessionSink(inner)))?),
                "flags" => parts.flags = Some(map.next_value_seed(Walk(FlagsSink(inner)))?),
                "watches" => parts.watches = Some(map.next_value_seed(array(true))?),
                "views" => parts.views = Some(map.next_value_seed(array(true))?),
                "holdings" => parts.holdings = Some(map.next_value_seed(array(false))?),
                other => {
                    parts.error |= other == "error";
                    if let Some(name) = SMUGGLED.iter().copied().find(|name| *name == other) {
                        parts.smuggled.get_or_insert(name);
                    }
                    map.next_value_seed(Walk(Skip(inner)))?;
                }
            }
            // After the value: a repeated key has then overwritten a part, but the whole text is refused for it.
            scope.admit_key(&mut keys, key)?;
        }
        Ok(Some(parts))
    }
}

/// A member that should be a scalar.
#[derive(Default)]
enum Leaf {
    #[default]
    Absent,
    Text(String),
    Bool(bool),
    Unsigned(u64),
    /// Anything else, also a text longer than is kept.
    Other,
}

impl Leaf {
    fn text(self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn boolean(self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    fn unsigned(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            _ => None,
        }
    }

    fn valid_identifier(self) -> Option<String> {
        self.text().filter(|text| is_identifier(text))
    }

    fn identifier(self, member: &'static str) -> Result<Option<String>, MessageError> {
        match self {
            Self::Absent => Ok(None),
            present => match present.valid_identifier() {
                Some(text) => Ok(Some(text)),
                None => Err(MessageError::Identifier(member)),
            },
        }
    }

    fn did(self, member: &'static str) -> Result<Option<String>, MessageError> {
        match self {
            Self::Absent => Ok(None),
            Self::Text(text) if Did::parse(&text).is_ok() => Ok(Some(text)),
            _ => Err(MessageError::Did(member)),
        }
    }

    /// Present, but not a text.
    fn not_text(&self) -> bool {
        !matches!(self, Self::Absent | Self::Text(_))
    }

    /// Present, but not a boolean.
    fn not_bool(&self) -> bool {
        !matches!(self, Self::Absent | Self::Bool(_))
    }

    /// Present, but not an unsigned integer.
    fn not_unsigned(&self) -> bool {
        !matches!(self, Self::Absent | Self::Unsigned(_))
    }

    /// Present, but not an identifier.
    fn not_identifier(&self) -> bool {
        match self {
            Self::Absent => false,
            Self::Text(text) => !is_identifier(text),
            _ => true,
        }
    }
}

struct LeafSink<'s> {
    scope: Scope<'s>,
    /// Longest text that is kept, in bytes.
    max_len: usize,
}

impl Sink<'_> for LeafSink<'_> {
    type Out = Leaf;

    fn scope(&self) -> Scope<'_> {
        self.scope
    }

    fn scalar(self, scalar: Scalar<'_>) -> Leaf {
        match scalar {
            Scalar::Text(text) if text.len() <= self.max_len => Leaf::Text(text.to_owned()),
            Scalar::Bool(value) => Leaf::Bool(value),
            Scalar::Unsigned(value) => Leaf::Unsigned(value),
            _ => Leaf::Other,
        }
    }

    fn other(self) -> Leaf {
        Leaf::Other
    }
}

/// `ok`: only its `sessionId`.
struct OkSink<'s>(Scope<'s>);

impl<'de> Sink<'de> for OkSink<'_> {
    type Out = Leaf;

    fn scope(&self) -> Scope<'_> {
        self.0
    }

    fn scalar(self, _: Scalar<'_>) -> Leaf {
        Leaf::Other
    }

    fn other(self) -> Leaf {
        Leaf::Other
    }

    fn object<A: MapAccess<'de>>(self, map: A) -> Result<Leaf, A::Error> {
        let mut session_id = Leaf::Absent;
        members(self.0, map, |key, inner, map| {
            if key == "sessionId" {
                session_id = map.next_value_seed(Walk(LeafSink {
                    scope: inner,
                    max_len: MAX_IDENTIFIER_LEN,
                }))?;
                return Ok(());
            }
            map.next_value_seed(Walk(Skip(inner)))
        })?;
        Ok(session_id)
    }
}

#[derive(Default)]
struct Session {
    session_id: Leaf,
    acting_as: bool,
    tagged: bool,
}

/// `session`; `None` when it is not an object.
struct SessionSink<'s>(Scope<'s>);

impl<'de> Sink<'de> for SessionSink<'_> {
    type Out = Option<Session>;

    fn scope(&self) -> Scope<'_> {
        self.0
    }

    fn scalar(self, _: Scalar<'_>) -> Option<Session> {
        None
    }

    fn other(self) -> Option<Session> {
        None
    }

    fn object<A: MapAccess<'de>>(self, map: A) -> Result<Option<Session>, A::Error> {
        let mut session = Session::default();
        members(self.0, map, |key, inner, map| {
            session.tagged |= key.starts_with('/');
            session.acting_as |= key == "actingAs";
            if key == "sessionId" {
                session.session_id = map.next_value_seed(Walk(LeafSink {
                    scope: inner,
                    max_len: MAX_IDENTIFIER_LEN,
                }))?;
                return Ok(());
            }
            map.next_value_seed(Walk(Skip(inner)))
        })?;
        Ok(Some(session))
    }
}

/// `watches`, `views` and `holdings`.
struct CollectionSink<'s> {
    scope: Scope<'s>,
    with_ids: bool,
}

impl<'de> Sink<'de> for CollectionSink<'_> {
    type Out = Collection;

    fn scope(&self) -> Scope<'_> {
        self.scope
    }

    fn scalar(self, _: Scalar<'_>) -> Collection {
        Collection::NotArray
    }

    fn other(self) -> Collection {
        Collection::NotArray
    }

    fn array<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Collection, A::Error> {
        let mut ids = Vec::new();
        if !self.with_ids {
            let count = self.scope.skip_elements(seq)?;
            return Ok(Collection::Array { count, ids });
        }
        let mut count = 0u64;
        while let Some(id) = seq.next_element_seed(Walk(ElementSink(self.scope.child())))? {
            count = count.saturating_add(1);
            ids.extend(id.valid_identifier());
        }
        Ok(Collection::Array { count, ids })
    }
}

/// One element of a collection: only its `id`.
struct ElementSink<'s>(Scope<'s>);

impl<'de> Sink<'de> for ElementSink<'_> {
    type Out = Leaf;

    fn scope(&self) -> Scope<'_> {
        self.0
    }

    fn scalar(self, _: Scalar<'_>) -> Leaf {
        Leaf::Other
    }

    fn other(self) -> Leaf {
        Leaf::Other
    }

    fn object<A: MapAccess<'de>>(self, map: A) -> Result<Leaf, A::Error> {
        let mut id = Leaf::Absent;
        members(self.0, map, |key, inner, map| {
            if key == "id" {
                id = map.next_value_seed(Walk(LeafSink {
                    scope: inner,
                    max_len: MAX_IDENTIFIER_LEN,
                }))?;
                return Ok(());
            }
            map.next_value_seed(Walk(Skip(inner)))
        })?;
        Ok(id)
    }
}

/// `flags`.
enum Descriptor {
    Well(Value),
    Tagged,
    Malformed,
}

struct FlagsSink<'s>(Scope<'s>);

impl<'de> Sink<'de> for FlagsSink<'_> {
    type Out = Descriptor;

    fn scope(&self) -> Scope<'_> {
        self.0
    }

    fn scalar(self, _: Scalar<'_>) -> Descriptor {
        Descriptor::Malformed
    }

    fn other(self) -> Descriptor {
        Descriptor::Malformed
    }

    fn object<A: MapAccess<'de>>(self, map: A) -> Result<Descriptor, A::Error> {
        let mut kept = Some(Map::new());
        let mut tagged = false;
        members(self.0, map, |key, inner, map| {
            tagged |= key.starts_with('/');
            let value = map.next_value_seed(Walk(FlagSink(inner)))?;
            kept = match (kept.take(), value) {
                (Some(mut flags), Some(value)) if flags.len() < MAX_FLAGS => {
                    flags.insert(key.to_owned(), value);
                    Some(flags)
                }
                _ => None,
            };
            Ok(())
        })?;
        Ok(match kept {
            _ if tagged => Descriptor::Tagged,
            Some(flags) => Descriptor::Well(Value::Object(flags)),
            None => Descriptor::Malformed,
        })
    }
}

/// One capability; `None` when it is neither a scalar nor a short array of scalars.
struct FlagSink<'s>(Scope<'s>);

impl<'de> Sink<'de> for FlagSink<'_> {
    type Out = Option<Value>;

    fn scope(&self) -> Scope<'_> {
        self.0
    }

    fn scalar(self, scalar: Scalar<'_>) -> Option<Value> {
        Some(Tree(self.0).scalar(scalar))
    }

    fn other(self) -> Option<Value> {
        None
    }

    fn array<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<Value>, A::Error> {
        let mut kept = Some(Vec::new());
        while let Some(name) = seq.next_element_seed(Walk(NameSink(self.0.child())))? {
            kept = match (kept.take(), name) {
                (Some(mut names), Some(name)) if names.len() < MAX_FLAG_NAMES => {
                    names.push(name);
                    Some(names)
                }
                _ => None,
            };
        }
        Ok(kept.map(Value::Array))
    }
}

/// One name of a capability; `None` when it is a container.
struct NameSink<'s>(Scope<'s>);

impl Sink<'_> for NameSink<'_> {
    type Out = Option<Value>;

    fn scope(&self) -> Scope<'_> {
        self.0
    }

    fn scalar(self, scalar: Scalar<'_>) -> Option<Value> {
        Some(Tree(self.0).scalar(scalar))
    }

    fn other(self) -> Option<Value> {
        None
    }
}

/// Walks the members of an object; `member` reads each value.
fn members<'de, 's, A: MapAccess<'de>>(
    scope: Scope<'s>,
    mut map: A,
    mut member: impl FnMut(&str, Scope<'s>, &mut A) -> Result<(), A::Error>,
) -> Result<(), A::Error> {
    let mut keys = Keys::new();
    while let Some(key) = map.next_key_seed(KeySeed)? {
        member(&key, scope.child(), &mut map)?;
        scope.admit_key(&mut keys, key)?;
    }
    Ok(())
}
