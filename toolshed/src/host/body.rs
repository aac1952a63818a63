//! From the body of a request to its message: expansion, strict JSON, and the comparison with its header
//! (`docs/protocol.md` sections 2, 3 and 5).

use memory_wire::Did;
use memory_wire::credit::REQUEST_WINDOW;
use memory_wire::envelope::{self, ENVELOPE_MAGIC, EnvelopeFault};
use memory_wire::json::{self, JsonLimits};
use memory_wire::message::{self, Collection, Message, TEXT_PREFIX};
use memory_wire::stream::Header;
use serde_json::Value;

/// Bytes of a request, expanded: the pending-input budget.
const MAX_REQUEST_LEN: usize = REQUEST_WINDOW as usize;

/// A request that is well formed as far as the host looks.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) value: Value,
    pub(crate) message: Message,
    pub(crate) request_id: String,
    pub(crate) space: Did,
    pub(crate) kind: Kind,
}

/// What the host has to know of a request.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `session.open`.
    Open {
        principal: Did,
        /// `session.sessionId`.
        resumes: Option<String>,
    },
    /// Anything else.
    InSession(String),
}

impl Request {
    /// Decodes a body.
    ///
    /// # Errors
    /// The fixed reason for which the data socket closes.
    pub(crate) fn decode(
        header: &Header<'_>,
        body: Vec<u8>,
        expand: bool,
        frame_slots: Option<u64>,
    ) -> Result<Self, &'static str> {
        let limits = JsonLimits {
            max_bytes: MAX_REQUEST_LEN,
            max_slots: frame_slots,
            ..JsonLimits::default()
        };
        let (text, message) = if header.binary {
            if !expand {
                return Err("compression-not-negotiated");
            }
            if declares_too_much(&body) {
                return Err("data-queue-limit");
            }
            let opened = envelope::decode(&body, MAX_REQUEST_LEN).map_err(EnvelopeFault::reason)?;
            let message =
                message::project(&opened.text, &limits).map_err(|error| error.reason())?;
            envelope::check_hint(&opened, &message).map_err(EnvelopeFault::reason)?;
            (opened.text, message)
        } else {
            let message = message::project(&body, &limits).map_err(|error| error.reason())?;
            (body, message)
        };
        if !header.route.matches(&message) || header.route.assigned_session_id.is_some() {
            return Err("route-mismatch");
        }
        let json = text.strip_prefix(TEXT_PREFIX).ok_or("message-prefix")?;
        let value = json::parse(json, &limits).map_err(|error| error.reason())?;
        Self::judge(value, message)
    }

    /// Members that must be there, and those that no client of a router may send.
    fn judge(value: Value, message: Message) -> Result<Self, &'static str> {
        let forged = message.smuggled.is_some() || value.get("statement").is_some();
        let acts_as = message
            .session
            .as_ref()
            .is_some_and(|session| session.acting_as);
        if forged || acts_as {
            return Err("forged-field");
        }
        if is_connection_message(&message.kind) {
            return Err("data-message");
        }
        let lists = [&message.watches, &message.views, &message.holdings];
        if lists
            .into_iter()
            .any(|list| *list == Some(Collection::NotArray))
        {
            return Err("list-malformed");
        }
        let did = |text: &Option<String>| text.as_deref().and_then(|text| Did::parse(text).ok());
        let request_id = message.request_id.clone().ok_or("data-message")?;
        let space = did(&message.space).ok_or("data-message")?;
        let kind = if message.kind == "session.open" {
            let session = message.session.as_ref().filter(|session| !session.tagged);
            Kind::Open {
                principal: did(&message.principal).ok_or("data-message")?,
                resumes: session.ok_or("data-message")?.session_id.clone(),
            }
        } else {
            Kind::InSession(message.session_id.clone().ok_or("data-message")?)
        };
        Ok(Self {
            value,
            request_id,
            space,
            kind,
            message,
        })
    }
}

/// Whether an envelope declares more than the budget for expanded bodies.
fn declares_too_much(body: &[u8]) -> bool {
    let declared = body
        .strip_prefix(&ENVELOPE_MAGIC)
        .and_then(|rest| rest.first_chunk::<4>())
        .map(|length| u32::from_be_bytes(*length));
    declared.is_some_and(|declared| declared > REQUEST_WINDOW)
}

/// Messages between client and router, or between router and toolshed: never a client's request of a toolshed.
fn is_connection_message(kind: &str) -> bool {
    kind == "hello"
        || kind == "response"
        || kind == "memory.compression"
        || kind.starts_with("router.")
        || kind.starts_with("connection.")
}
