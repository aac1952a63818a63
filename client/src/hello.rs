//! What the router says of itself in `hello.ok`.

use memory_wire::credit::{MAX_UPLOAD_WINDOW, MIN_UPLOAD_WINDOW};
use memory_wire::did::Did;
use memory_wire::flags::Flags;
use memory_wire::ids::Challenge;
use serde_json::Value;

use crate::ClientError;

/// JSON values in a frame where the router does not say.
const DEFAULT_FRAME_SLOTS: u64 = 150_000;

/// A challenge and when it ends, Unix seconds of the router's clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Issued {
    pub(crate) value: Challenge,
    pub(crate) expires: u64,
}

impl Issued {
    pub(crate) fn from_value(value: &Value) -> Result<Self, ClientError> {
        let text = value
            .get("value")
            .and_then(Value::as_str)
            .ok_or(ClientError::Protocol("challenge"))?;
        Ok(Self {
            value: Challenge::from_hex(text).map_err(|_| ClientError::Protocol("challenge"))?,
            expires: value
                .get("expiresAt")
                .and_then(Value::as_u64)
                .ok_or(ClientError::Protocol("challenge"))?,
        })
    }
}

/// The connection values, fixed for its life.
#[derive(Debug, Clone)]
pub struct Hello {
    /// The router's identity: the audience of every statement.
    pub audience: Did,
    /// The deployment's name.
    pub deployment: String,
    /// The public offer.
    pub flags: Flags,
    /// JSON values per frame; `None` when they are not counted.
    pub frame_slots: Option<u64>,
    /// Bytes of unacknowledged records, where the router streams uploads.
    pub upload_window: Option<u32>,
    /// Limits the router advertises.
    pub limits: Limits,
    /// The router's clock when it answered, Unix seconds, if it told.
    pub server_time: Option<u64>,
    /// The connection's name in the router's log.
    pub connection: Option<String>,
    pub(crate) challenge: Issued,
    pub(crate) streams: bool,
}

/// `routerLimits`: what a client can budget against; `None` is not limited, or not told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Sessions open at once.
    pub sessions: Option<u64>,
    /// Requests unanswered at once.
    pub requests: Option<u64>,
    /// Principals active at once.
    pub principals: Option<u64>,
    /// Watches of one session.
    pub watches_per_session: Option<u64>,
    /// Holdings of one session.
    pub holdings_per_session: Option<u64>,
    /// Bytes of one request.
    pub request_bytes: Option<u64>,
    /// Messages per second.
    pub messages_per_second: Option<u64>,
}

impl Hello {
    pub(crate) fn from_value(value: &Value) -> Result<Self, ClientError> {
        let wrong = ClientError::Protocol("hello.ok");
        if value.get("type").and_then(Value::as_str) != Some("hello.ok") {
            return Err(wrong);
        }
        let open = value
            .get("sessionOpen")
            .ok_or(ClientError::Protocol("hello.ok"))?;
        let text =
            |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        let flags = value
            .get("flags")
            .and_then(|flags| Flags::from_value(flags).ok())
            .ok_or(wrong)?;
        if !flags.is_true("connectionAuth") || !flags.is_true("routedAuthV1") {
            return Err(ClientError::Protocol(
                "router without routed authentication",
            ));
        }
        let frame_slots = match value.get("routerFrameSlots") {
            None => Some(DEFAULT_FRAME_SLOTS),
            Some(Value::Null) => None,
            Some(slots) => Some(
                slots
                    .as_u64()
                    .filter(|slots| *slots > 0)
                    .ok_or(ClientError::Protocol("routerFrameSlots"))?,
            ),
        };
        let window = value
            .get("routerUploadWindow")
            .and_then(Value::as_u64)
            .and_then(|window| u32::try_from(window).ok());
        let limits = value.get("routerLimits");
        let limit = |name: &str| {
            limits
                .and_then(|limits| limits.get(name))
                .and_then(Value::as_u64)
        };
        Ok(Self {
            audience: text(open, "audience")
                .and_then(|did| Did::parse(&did).ok())
                .ok_or(ClientError::Protocol("audience"))?,
            deployment: text(open, "deployment").ok_or(ClientError::Protocol("deployment"))?,
            challenge: Issued::from_value(open.get("challenge").unwrap_or(&Value::Null))?,
            flags,
            frame_slots,
            upload_window: window
                .filter(|window| (MIN_UPLOAD_WINDOW..=MAX_UPLOAD_WINDOW).contains(window)),
            limits: Limits {
                sessions: limit("sessions"),
                requests: limit("requests"),
                principals: limit("principals"),
                watches_per_session: limit("watchesPerSession"),
                holdings_per_session: limit("holdingsPerSession"),
                request_bytes: limit("requestBytes"),
                messages_per_second: limit("messagesPerSecond"),
            },
            server_time: value.get("serverTime").and_then(Value::as_u64),
            connection: text(value, "connection"),
            streams: value.get("routerTransport").and_then(Value::as_u64) == Some(1),
        })
    }
}
