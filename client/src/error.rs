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
    /// Who answers does not prove to be the router: its certificate is not one that the endpoint trusts, is for another name,
    /// or is out of date. Nothing was sent to it.
    #[error("not the router: {cause}")]
    Untrusted {
        /// What is wrong with the certificate.
        cause: &'static str,
    },
    /// The router answered the upgrade with another status than 101.
    #[error("the router refused the upgrade with HTTP status {status}{}", told(.error, .connection))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The router's reason, such as `upgrade-host`; printable ASCII, at most 64 characters. What stands between client and
        /// router may have written it.
        error: Option<String>,
        /// The connection's name in the router's log, likewise.
        connection: Option<String>,
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

/// Characters kept of a member of a refusal's body.
const MAX_REFUSAL_TEXT: usize = 64;

fn told(error: &Option<String>, connection: &Option<String>) -> String {
    match (error, connection) {
        (Some(error), Some(connection)) => format!(": {error}, connection {connection}"),
        (Some(text), None) => format!(": {text}"),
        (None, Some(connection)) => format!(": connection {connection}"),
        (None, None) => String::new(),
    }
}

impl ClientError {
    /// A refusal by its status and body.
    pub(crate) fn refused(status: u16, body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |name: &str| {
            let text = body.get(name)?.as_str()?;
            Some(text.escape_default().take(MAX_REFUSAL_TEXT).collect())
        };
        Self::Refused {
            status,
            error: text("error"),
            connection: text("connection"),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_what_the_router_told_and_no_more() {
        let body = br#"{"error":"upgrade-host","connection":"06CWGB60FC0G40R4"}"#;
        let told = ClientError::refused(421, body).to_string();
        assert!(
            told.ends_with("421: upgrade-host, connection 06CWGB60FC0G40R4"),
            "{told}"
        );
        for (body, expected) in [
            ("".to_owned(), None),
            ("<html>".to_owned(), None),
            (r#"{"error":{}}"#.to_owned(), None),
            (
                r#"{"error":"a\n\u001b[2J"}"#.to_owned(),
                Some(r"a\n\u{1b}[2J".to_owned()),
            ),
            (
                format!(r#"{{"error":"{}"}}"#, "x".repeat(4000)),
                Some("x".repeat(64)),
            ),
        ] {
            let ClientError::Refused { error, .. } = ClientError::refused(400, body.as_bytes())
            else {
                panic!("not a refusal");
            };
            assert_eq!(error, expected);
        }
    }
}
