//! The HTTP/1.1 upgrade to a WebSocket, both ends (protocol sections 4.1 and 6, RFC 6455 section 4).
//!
//! One request and one answer, each a head of at most 16 KiB. httparse knows the grammar; the rules here are stricter where
//! two readers could take the same bytes differently: line ends are CRLF, the fields that decide anything appear once, and a
//! body is refused.

mod key;
mod request;
mod response;

pub use key::{accept_key, encode_key};
pub use request::parse_request;
pub use response::{
    RefusalBody, ResponseFault, client_request, client_request_with_origin, parse_response,
    refusal_response, switching_protocols,
};

use crate::Did;
use crate::reason::Reason;

/// Bytes of a request or response head, its empty line included: 16 KiB.
pub const MAX_HEAD_LEN: usize = 16 << 10;

/// Fields of a head; a browser sends about fifteen.
pub const MAX_FIELDS: usize = 64;

/// Path of the public endpoint.
pub const PUBLIC_PATH: &str = "/api/storage/memory";

/// Path of a toolshed's control links.
pub const LINK_PATH: &str = "/memory/router-link";

/// Path of a toolshed's data sockets.
pub const DATA_PATH: &str = "/memory/router-data";

/// What a listener serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpgradePolicy {
    /// The router's public side.
    Public {
        /// Expected `Host`, with its port if clients have to name one; letters in any case.
        host: String,
        /// Allowed values of `Origin`, exactly.
        origins: Vec<String>,
        /// Whether a request without `Origin` is refused.
        require_origin: bool,
    },
    /// A toolshed's private side: no browser, so no `Origin`.
    Private,
}

/// What a request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Public Memory; `space` makes the socket dedicated to it.
    Public {
        /// The canonical DID of the query, if there is one.
        space: Option<Did>,
    },
    /// A control link.
    RouterLink,
    /// A data socket.
    RouterData,
}

/// An acceptable upgrade request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeRequest {
    /// What it asked for.
    pub endpoint: Endpoint,
    /// Its `Sec-WebSocket-Key`, to be answered by [`switching_protocols`].
    pub key: String,
}

/// Result of reading a head that may not be complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// More bytes are needed; nothing so far is wrong.
    Incomplete,
    /// A whole, acceptable request.
    Complete {
        /// The request.
        request: UpgradeRequest,
        /// Bytes of its head. What follows belongs to the WebSocket.
        consumed: usize,
    },
}

/// Why a request is refused, and the status of the answer. Every refusal closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{reason}")]
pub struct UpgradeRefusal {
    /// HTTP status: 400, 403, 404, 405, 421 or 426.
    pub status: u16,
    /// The reason, also the `error` of the answer.
    pub reason: Reason,
    /// Which rule was broken: a fixed word for the log, never a byte of the request.
    pub rule: &'static str,
}

impl UpgradeRefusal {
    const PATH: Self = Self::new(404, Reason::UpgradePath, "path");
    const METHOD: Self = Self::new(405, Reason::UpgradeMethod, "method");
    const VERSION: Self = Self::new(426, Reason::UpgradeVersion, "websocket-version");

    const fn malformed(rule: &'static str) -> Self {
        Self::new(400, Reason::UpgradeMalformed, rule)
    }

    const fn origin(rule: &'static str) -> Self {
        Self::new(403, Reason::UpgradeOrigin, rule)
    }

    const fn host(rule: &'static str) -> Self {
        Self::new(421, Reason::UpgradeHost, rule)
    }

    const fn new(status: u16, reason: Reason, rule: &'static str) -> Self {
        Self {
            status,
            reason,
            rule,
        }
    }
}

/// A field appears twice where it may appear once.
struct Repeated;

/// The value of a field that may appear at most once, without white space around it.
fn single<'b>(fields: &[httparse::Header<'b>], name: &str) -> Result<Option<&'b [u8]>, Repeated> {
    let mut values = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case(name))
        .map(|field| field.value.trim_ascii());
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(Repeated),
    }
}

/// Whether some field of this name lists `token`, in any case.
fn lists(fields: &[httparse::Header<'_>], name: &str, token: &str) -> bool {
    fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case(name))
        .flat_map(|field| field.value.split(|byte| *byte == b','))
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// Whether every line of a head ends in CRLF; httparse would take a bare LF.
fn has_strict_lines(head: &[u8]) -> bool {
    let mut before = 0;
    for byte in head {
        if *byte == b'\n' && before != b'\r' {
            return false;
        }
        before = *byte;
    }
    true
}

#[cfg(test)]
mod tests;
