//! Messages for the client: what the host says itself, and how any message becomes a body with its header.

use super::context::SessionKey;
use super::outlet::Body;
use memory_wire::Did;
use memory_wire::envelope;
use memory_wire::message::TEXT_PREFIX;
use memory_wire::stream::{Header, Route};
use serde_json::{Value, json};
use std::borrow::Cow;

/// The request that a message answers.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    pub(crate) request_id: String,
    /// Whether it was a `session.open`: only then is `ok.sessionId` an assignment.
    pub(crate) open: bool,
}

/// The denial that tells nothing more (`docs/protocol.md` section 4.4).
pub(crate) fn denial(request_id: &str, retriable: bool) -> Value {
    let mut error = json!({
        "name": "AuthorizationError",
        "message": "Routed memory request denied",
    });
    if let (true, Some(error)) = (retriable, error.as_object_mut()) {
        error.insert("retriable".to_owned(), true.into());
    }
    json!({"type": "response", "requestId": request_id, "error": error})
}

/// Makes a message the body of a private response. The header comes from the same structured value as the body.
///
/// # Errors
/// A fixed reason: the engine made a message that has no header.
pub(crate) fn encode(
    message: &Value,
    compress: bool,
    answers: Option<Answers>,
) -> Result<Body, &'static str> {
    let text = |name: &str| message.get(name).and_then(Value::as_str);
    let kind = text("type").ok_or("output-malformed")?;
    let is_open = answers.as_ref().is_some_and(|answers| answers.open);
    let assigned = message
        .get("ok")
        .and_then(|ok| ok.get("sessionId"))
        .and_then(Value::as_str);
    let route = Route {
        kind: Cow::Borrowed(kind),
        request_id: text("requestId").map(Cow::Borrowed),
        space: text("space").map(Cow::Borrowed),
        session_id: text("sessionId").map(Cow::Borrowed),
        principal: text("principal").map(Cow::Borrowed),
        error: kind == "response" && message.get("error").is_some(),
        assigned_session_id: assigned.filter(|_| is_open).map(Cow::Borrowed),
    };
    let mut bytes = TEXT_PREFIX.to_vec();
    serde_json::to_writer(&mut bytes, message).map_err(|_| "output-malformed")?;
    let envelope = if compress {
        envelope::encode(&bytes, text("space"))
    } else {
        None
    };
    let binary = envelope.is_some();
    if let Some(envelope) = envelope {
        bytes = envelope;
    }
    let mut header = Vec::new();
    Header {
        // A body of more than u32 or 8 MiB is refused by its length, before any header is written.
        bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        binary,
        request_ordinal: None,
        route,
    }
    .encode_record(&mut header)
    .map_err(|_| "output-malformed")?;
    Ok(Body {
        header,
        bytes,
        answers: answers.map(|answers| answers.request_id),
        kind: kind.to_owned(),
    })
}

/// The session that a push ends.
pub(crate) fn revoked_session(message: &Value) -> Option<SessionKey> {
    let text = |name: &str| message.get(name).and_then(Value::as_str);
    if text("type") != Some("session/revoked") {
        return None;
    }
    let space = Did::parse(text("space")?).ok()?;
    Some((space, text("sessionId")?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_wire::stream::{Direction, Record, decode_record};

    fn header(body: &Body) -> Header<'_> {
        match decode_record(&body.header).unwrap() {
            Record::Header(json) => Header::parse(json, Direction::PrivateResponse).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_an_open_assigns_a_session() {
        let message = json!({"type": "response", "requestId": "r1", "ok": {"sessionId": "s1"}});
        for open in [true, false] {
            let answers = Answers {
                request_id: "r1".to_owned(),
                open,
            };
            let body = encode(&message, false, Some(answers)).unwrap();
            let assigned = header(&body).route.assigned_session_id.map(Cow::into_owned);
            assert_eq!(assigned, open.then(|| "s1".to_owned()));
            assert_eq!(body.answers.as_deref(), Some("r1"));
        }
    }

    #[test]
    fn compresses_what_is_worth_it() {
        // Text that compresses, but not past 32 times.
        let words: Vec<String> = (0..500).map(|n| format!("word{n}")).collect();
        let long = json!({"type": "session/effect", "effect": words});
        let body = encode(&long, true, None).unwrap();
        assert!(header(&body).binary);
        let opened = envelope::decode(&body.bytes, 1 << 20).unwrap();
        let plain = encode(&long, false, None).unwrap();
        assert_eq!(opened.text, plain.bytes);
        assert!(!header(&plain).binary);
        let short = json!({"type": "session/effect"});
        assert!(!header(&encode(&short, true, None).unwrap()).binary);
    }

    #[test]
    fn denials_tell_only_whether_to_retry() {
        assert_eq!(denial("r", true)["error"]["retriable"], true);
        assert!(denial("r", false)["error"].get("retriable").is_none());
        let body = encode(&denial("r", false), true, None).unwrap();
        assert!(header(&body).route.error);
    }
}
