//! The text messages this router makes itself. Everything else a client receives comes from a toolshed unchanged.

use memory_config::WorkerSettings;
use memory_wire::did::Did;
use memory_wire::flags::{Capability, Flags};
use memory_wire::ids::ConnectionId;
use serde_json::{Value, json};

use crate::agents::{IssuedChallenge, Offer};

fn text(message: &Value) -> String {
    format!("fvj1:{message}")
}

/// `hello.ok` (`docs/protocol.md` 4.2). `requests`: how many may be unanswered.
pub(crate) fn hello_ok(
    settings: &WorkerSettings,
    connection: ConnectionId,
    offer: &Offer,
    flags: &Flags,
    requests: Option<u64>,
) -> String {
    let mut flags = flags.clone();
    for name in ["connectionAuth", "routedAuthV1"] {
        // Three more names on an offer of at most 64: a full offer states them already.
        let _ = flags.insert(name, Capability::Flag(true));
    }
    let _ = flags.insert("modernCellRep", Capability::Flag(settings.modern_cell_rep));
    text(&json!({
        "type": "hello.ok",
        "protocol": "memory",
        "flags": flags.to_value(),
        "sessionOpen": {
            "audience": offer.router,
            "deployment": offer.deployment,
            "challenge": challenge_value(&offer.challenge),
        },
        "routerFrameSlots": settings.max_frame_slots,
        "routerTransport": 1,
        "routerUploadWindow": settings.upload_window,
        "serverTime": offer.challenge.now,
        "connection": connection.to_string(),
        "routerLimits": {
            "sessions": settings.max_sessions_per_connection,
            "requests": requests,
            "principals": settings.max_principals_per_connection,
            "watchesPerSession": settings.max_watches_per_session,
            "viewsPerSession": crate::table::MAX_VIEWS_PER_SESSION,
            "holdingsPerSession": crate::table::MAX_HOLDINGS_PER_FRAME,
            "messageBytes": memory_wire::message::MAX_RAW_LEN,
            "requestBytes": memory_wire::credit::REQUEST_WINDOW,
            "messagesPerSecond": settings.max_messages_per_second,
        },
    }))
}

fn challenge_value(challenge: &IssuedChallenge) -> Value {
    json!({ "value": challenge.value.to_hex(), "expiresAt": challenge.expires })
}

/// The answer to `connection.challenge`.
pub(crate) fn challenge(request_id: &str, issued: &IssuedChallenge) -> String {
    ok(
        request_id,
        &json!({ "challenge": challenge_value(issued), "serverTime": issued.now }),
    )
}

/// The pushed `connection/challenge`.
pub(crate) fn pushed_challenge(principal: &Did, issued: &IssuedChallenge) -> String {
    text(
        &json!({ "type": "connection/challenge", "principal": principal, "challenge": challenge_value(issued) }),
    )
}

/// The answer to `connection.auth`.
pub(crate) fn authenticated(request_id: &str, principal: &Did, expires: u64) -> String {
    ok(
        request_id,
        &json!({ "principal": principal, "expiresAt": expires }),
    )
}

/// The answer to `memory.compression`: the same message back.
pub(crate) fn compression(request_id: &str, enabled: bool) -> String {
    text(&json!({ "type": "memory.compression", "requestId": request_id, "enabled": enabled }))
}

/// A successful response.
pub(crate) fn ok(request_id: &str, value: &Value) -> String {
    text(&json!({ "type": "response", "requestId": request_id, "ok": value }))
}

/// The one denial; the wire never tells more than whether trying again can help.
pub(crate) fn denied(request_id: &str, retriable: bool) -> String {
    let mut error =
        json!({ "name": "AuthorizationError", "message": "Routed memory request denied" });
    if let (true, Some(members)) = (retriable, error.as_object_mut()) {
        members.insert("retriable".to_owned(), Value::Bool(true));
    }
    text(&json!({ "type": "response", "requestId": request_id, "error": error }))
}
