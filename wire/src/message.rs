//! Text messages: `fvj1:` and one JSON object, projected to the members that routing needs (protocol section 2).
//!
//! [`project`] walks a text once. Every byte passes the strict checks of [`crate::json`], and only the members below are
//! kept: no tree of the application's documents is ever built.

mod project;

use serde_json::Value;

use crate::json::{JsonError, JsonFault, JsonLimits};

/// What every text message starts with.
pub const TEXT_PREFIX: &[u8] = b"fvj1:";

/// Bytes of a message as it is sent, prefix included: 8 MiB.
pub const MAX_RAW_LEN: usize = 8 << 20;

/// Bytes of a message after expansion, prefix included: 16 MiB.
pub const MAX_EXPANDED_LEN: usize = 16 << 20;

/// Characters of an identifier.
pub const MAX_IDENTIFIER_LEN: usize = 128;

/// Characters of a message type.
pub const MAX_TYPE_LEN: usize = 64;

/// Characters of a statement's base64url text: 1,024 bytes without padding (protocol section 4.4).
pub const MAX_STATEMENT_TEXT_LEN: usize = 1366;

/// Capabilities of a `flags` member (protocol section 4.2).
pub const MAX_FLAGS: usize = 64;

/// Names of one capability of a `flags` member (protocol section 4.2).
pub const MAX_FLAG_NAMES: usize = 16;

/// The routing members of one message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// `type`; always present and well formed.
    pub kind: String,
    /// `requestId`, an identifier.
    pub request_id: Option<String>,
    /// `space`, a canonical DID.
    pub space: Option<String>,
    /// `sessionId`, an identifier.
    pub session_id: Option<String>,
    /// `principal`, a canonical DID.
    pub principal: Option<String>,
    /// Whether there is an `error` member, whatever it holds.
    pub error: bool,
    /// `ok.sessionId` where it is an identifier. Only the answer to a `session.open` assigns a session with it.
    pub assigned_session_id: Option<String>,
    /// Whether there is an `ok` member, whatever it holds.
    pub ok_present: bool,
    /// `session`, when it is an object.
    pub session: Option<SessionPart>,
    /// `flags`, when it has the shape of a capability descriptor: at most [`MAX_FLAGS`] members, each a scalar or an
    /// array of at most [`MAX_FLAG_NAMES`] scalars.
    pub flags: Option<Value>,
    /// `statement`, when it is a string of at most [`MAX_STATEMENT_TEXT_LEN`] characters.
    pub statement: Option<String>,
    /// `enabled`, when it is a boolean.
    pub enabled: Option<bool>,
    /// `version`, when it is an unsigned integer.
    pub version: Option<u64>,
    /// `uploadCredits`, when it is a boolean.
    pub upload_credits: Option<bool>,
    /// `protocol`, when it is a string of at most [`MAX_TYPE_LEN`] characters.
    pub protocol: Option<String>,
    /// `watches`, with the identifiers of its elements.
    pub watches: Option<Collection>,
    /// `views`, with the identifiers of its elements.
    pub views: Option<Collection>,
    /// `holdings`; only its count.
    pub holdings: Option<Collection>,
    /// The first top-level member found that a client may not send in a session open (protocol section 4.5).
    pub smuggled: Option<&'static str>,
}

/// What is kept of a `session` object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionPart {
    /// `session.sessionId`, an identifier.
    pub session_id: Option<String>,
    /// Whether there is a `session.actingAs`.
    pub acting_as: bool,
    /// Whether a key starts with `/`, as the Fabric codec's tagged forms do.
    pub tagged: bool,
}

/// What is kept of a member that should be an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collection {
    /// It is something else.
    NotArray,
    /// An array.
    Array {
        /// How many elements it has.
        count: u64,
        /// The `id` of each element that has a valid one, in order; empty for `holdings`.
        ids: Vec<String>,
    },
}

impl Collection {
    /// Elements of the array; `None` when it is not one.
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::NotArray => None,
            Self::Array { count, .. } => Some(*count),
        }
    }
}

/// Why a text is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// It does not start with [`TEXT_PREFIX`].
    #[error("message-prefix")]
    Prefix,
    /// It is not strict JSON; the offset counts from the start of the message, prefix included.
    #[error("{0}")]
    Json(JsonError),
    /// The root is not an object.
    #[error("message-not-object")]
    NotObject,
    /// `type` is missing or malformed.
    #[error("message-type")]
    Type,
    /// A top-level key or a flag starts with `/`, as the Fabric codec's tagged forms do.
    #[error("message-tagged")]
    Tagged,
    /// The named member is not a valid identifier.
    #[error("message-identifier: {0}")]
    Identifier(&'static str),
    /// The named member is not a canonical DID.
    #[error("message-did: {0}")]
    Did(&'static str),
    /// The named member of a control message has the wrong shape.
    #[error("message-member: {0}")]
    Member(&'static str),
}

impl MessageError {
    /// The fixed reason of this error, the same in log, metric and test.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Prefix => "message-prefix",
            Self::Json(error) => error.reason(),
            Self::NotObject => "message-not-object",
            Self::Type => "message-type",
            Self::Tagged => "message-tagged",
            Self::Identifier(_) => "message-identifier",
            Self::Did(_) => "message-did",
            Self::Member(_) => "message-member",
        }
    }

    /// Offset in bytes from the start of the message, where one is known.
    pub const fn offset(&self) -> Option<usize> {
        match self {
            Self::Json(error) => Some(error.offset),
            _ => None,
        }
    }
}

/// Checks a whole message, prefix included, and keeps what routing needs of it.
///
/// `limits.max_bytes` bounds the message with its prefix. Of the members that only one type of message gives a meaning, the
/// shape is checked in that type alone: an operation this router does not know may use the same names for its own data.
///
/// # Errors
///
/// The first rule that the message breaks. Strict JSON is judged for the whole text before any member is.
pub fn project(text: &[u8], limits: &JsonLimits) -> Result<Message, MessageError> {
    let Some(json) = text.strip_prefix(TEXT_PREFIX) else {
        return Err(MessageError::Prefix);
    };
    if text.len() > limits.max_bytes {
        let error = JsonError::new(JsonFault::TooLong, limits.max_bytes);
        return Err(MessageError::Json(error));
    }
    project::project(json, limits).map_err(|error| match error {
        MessageError::Json(JsonError { fault, offset }) => {
            let offset = offset.saturating_add(TEXT_PREFIX.len());
            MessageError::Json(JsonError::new(fault, offset))
        }
        other => other,
    })
}

/// Whether `text` is an identifier: `[A-Za-z0-9_:.@-]{1,128}`.
pub fn is_identifier(text: &str) -> bool {
    (1..=MAX_IDENTIFIER_LEN).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_:.@-".contains(&byte))
}

/// Whether `text` is a message type: `[A-Za-z0-9./_:-]{1,64}`.
pub fn is_type(text: &str) -> bool {
    (1..=MAX_TYPE_LEN).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"./_:-".contains(&byte))
}

#[cfg(test)]
mod tests;
