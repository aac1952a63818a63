//! What can go wrong, by whose fault it is.

use memory_wire::reason::close;
use serde_json::Value;
use thiserror::Error;

/// Why a call failed.
#[derive(Debug, Clone, Error)]
pub enum ClientError {
    /// The router could not be reached: the step, and the system's words.
    #[error("{step}: {cause}")]
    Dial {
        /// `connect`, `tls` or `upgrade`.
        step: &'static str,
        /// What the system said.
        cause: String,
    },
    /// The router answered the upgrade with another status than 101.
    #[error("the router refused the upgrade with HTTP status {status}")]
    Refused {
        /// The HTTP status.
        status: u16,
    },
    /// The router, or a toolshed behind it, broke the protocol.
    #[error("protocol error: {0}")]
    Protocol(&'static str),
    /// The connection ended while the call was in flight, or before. What became of a mutation is unknown.
    #[error("{0}")]
    Closed(Closed),
    /// The request was answered with an error.
    #[error("{0}")]
    Denied(Denied),
    /// The call makes no sense as made.
    #[error("not possible: {0}")]
    Usage(&'static str),
    /// The durable session is over. What became of a mutation that had no answer is unknown.
    #[error("session over: {0}")]
    Ended(Ended),
}

/// Why a durable session is over.
#[derive(Debug, Clone, Error)]
pub enum Ended {
    /// It, or its client, was closed by this side.
    #[error("closed")]
    Closed,
    /// Another connection has it now.
    #[error("taken over")]
    TakenOver,
    /// Its key may not read the space any more.
    #[error("access lost")]
    AccessLost,
    /// Its key or its open was refused for good.
    #[error("refused: {0}")]
    Refused(Denied),
    /// Its connection failed in a way that a new one would not help.
    #[error("{0}")]
    Failed(Box<ClientError>),
}

impl ClientError {
    /// Whether the same call can succeed later on the same connection.
    pub fn is_retriable(&self) -> bool {
        matches!(
            self,
            Self::Denied(Denied {
                retriable: true,
                ..
            })
        )
    }
}

impl From<memory_config::IdentityError> for ClientError {
    fn from(_: memory_config::IdentityError) -> Self {
        Self::Usage("identity")
    }
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("connection closed: code {code:?}, {reason:?}")]
pub struct Closed {
    /// The close code; `None` when the transport ended without a close frame.
    pub code: Option<u16>,
    /// The router's reason, followed by the connection's name.
    pub reason: String,
}

impl Closed {
    /// Whether doing the same again on a new connection can go better (`docs/protocol.md`, close codes).
    pub fn may_retry(&self) -> bool {
        !matches!(
            self.code,
            Some(close::POLICY_VIOLATION | close::MESSAGE_TOO_BIG)
        )
    }
}

/// An error answer.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{name}: {message}")]
pub struct Denied {
    /// `AuthorizationError`, `ConflictError`, ...
    pub name: String,
    /// For people.
    pub message: String,
    /// Whether it passes.
    pub retriable: bool,
    /// The whole error object.
    pub error: Value,
}

impl Denied {
    /// Reads an error object.
    pub(crate) fn from_value(error: Value) -> Self {
        let text = |name: &str| {
            error
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        Self {
            name: text("name"),
            message: text("message"),
            retriable: error.get("retriable") == Some(&Value::Bool(true)),
            error,
        }
    }
}
