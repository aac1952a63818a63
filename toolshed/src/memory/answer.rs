//! Answers and pushes: the response envelope, refusals and the list a turn fills (facts of the public protocol: exactly one
//! of `ok` and `error`, never both).

use memory_wire::Did;
use serde_json::{Map, Value, json};

/// One routed data socket, as the engine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(pub(super) u64);

/// One message for the client behind one backend.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Whose socket carries it.
    pub backend: BackendId,
    /// The message, without the `fvj1:` prefix.
    pub message: Value,
}

/// Outputs of one turn, in the order in which they are sent.
#[derive(Debug, Default)]
pub(super) struct Outbox(Vec<Output>);

impl Outbox {
    pub(super) fn push(&mut self, backend: BackendId, message: Value) {
        self.0.push(Output { backend, message });
    }

    pub(super) fn answer(
        &mut self,
        backend: BackendId,
        request_id: &str,
        result: Result<Value, Refusal>,
    ) {
        let message = match result {
            Ok(ok) => json!({"type": "response", "requestId": request_id, "ok": ok}),
            Err(refusal) => {
                json!({"type": "response", "requestId": request_id, "error": refusal.into_value()})
            }
        };
        self.push(backend, message);
    }

    pub(super) fn revoked(
        &mut self,
        backend: BackendId,
        space: &Did,
        session_id: &str,
        reason: Revocation,
    ) {
        let message = json!({
            "type": "session/revoked",
            "space": space.as_str(),
            "sessionId": session_id,
            "reason": reason.as_str(),
        });
        self.push(backend, message);
    }

    pub(super) fn into_outputs(self) -> Vec<Output> {
        self.0
    }
}

/// Why a session ended without its client asking: the closed set of the public protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Revocation {
    /// Another connection resumed the session.
    TakenOver,
    /// The principal may no longer read: its lease, this toolshed's ownership or its READ is gone.
    Unauthorized,
}

impl Revocation {
    fn as_str(self) -> &'static str {
        match self {
            Self::TakenOver => "taken-over",
            Self::Unauthorized => "unauthorized",
        }
    }
}

/// An error answer. Carries no document content.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    name: &'static str,
    message: String,
    extra: Map<String, Value>,
}

impl Refusal {
    pub(super) fn new(name: &'static str, message: impl Into<String>) -> Self {
        Self {
            name,
            message: message.into(),
            extra: Map::new(),
        }
    }

    pub(super) fn protocol(message: impl Into<String>) -> Self {
        Self::new("ProtocolError", message)
    }

    pub(super) fn transaction(message: impl Into<String>) -> Self {
        Self::new("TransactionError", message)
    }

    pub(super) fn query(message: impl Into<String>) -> Self {
        Self::new("QueryError", message)
    }

    pub(super) fn authorization(message: impl Into<String>) -> Self {
        Self::new("AuthorizationError", message)
    }

    pub(super) fn session(message: impl Into<String>) -> Self {
        Self::new("SessionError", message)
    }

    /// The denial that tells nothing more (`docs/protocol.md` section 4.4).
    pub(super) fn denied() -> Self {
        Self::authorization("Routed memory request denied")
    }

    pub(super) fn unparsable() -> Self {
        Self::new("InvalidMessageError", "Unable to parse memory message")
    }

    pub(super) fn revoked_in_flight() -> Self {
        Self::new(
            "SessionRevokedError",
            "Session was revoked while the request was in flight",
        )
    }

    pub(super) fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(member.to_owned(), value.into());
        self
    }

    pub(super) fn retriable(self) -> Self {
        self.with("retriable", true)
    }

    fn into_value(self) -> Value {
        let mut error = self.extra;
        error.insert("name".to_owned(), self.name.into());
        error.insert("message".to_owned(), self.message.into());
        Value::Object(error)
    }
}
