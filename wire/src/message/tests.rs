//! Compiled under `#[cfg(test)]` alone.
use proptest::prelude::*;
use serde_json::json;

use super::*;

const SPACE: &str = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK";

fn read(json: &str) -> Result<Message, MessageError> {
    project(format!("fvj1:{json}").as_bytes(), &JsonLimits::default())
}

fn good(json: &str) -> Message {
    read(json).unwrap_or_else(|error| panic!("{json}: {error}"))
}

#[test]
fn keeps_the_routing_members() {
    let message = good(&format!(
        r#"{{"operations":[{{"a":{{"b":[1,2,{{"type":"x"}}]}}}}],"requestId":"r1","space":"{SPACE}","sessionId":"s:1",
            "principal":"{SPACE}","type":"transact"}}"#
    ));
    let expected = Message {
        kind: "transact".to_owned(),
        request_id: Some("r1".to_owned()),
        space: Some(SPACE.to_owned()),
        session_id: Some("s:1".to_owned()),
        principal: Some(SPACE.to_owned()),
        ..Message::default()
    };
    assert_eq!(message, expected);
}

#[test]
fn reads_responses() {
    let opened = good(r#"{"type":"response","requestId":"r1","ok":{"x":[{}],"sessionId":"s9"}}"#);
    assert!(opened.ok_present && !opened.error);
    assert_eq!(opened.assigned_session_id.as_deref(), Some("s9"));
    let denied = good(r#"{"type":"response","requestId":"r1","error":{"name":"x"}}"#);
    assert!(denied.error && !denied.ok_present);
    // The answer of another operation may hold anything under this name.
    for ok in [
        r#"{"sessionId":7}"#,
        r#"{"sessionId":"a b"}"#,
        "[]",
        "null",
        r#""x""#,
    ] {
        let other = good(&format!(r#"{{"type":"response","ok":{ok}}}"#));
        assert!(other.ok_present && other.assigned_session_id.is_none());
    }
}

#[test]
fn reads_session_opens() {
    let message = good(
        r#"{"type":"session.open","session":{"sessionId":"s1","actingAs":"x","/tag":1},"statement":"x"}"#,
    );
    let session = SessionPart {
        session_id: Some("s1".to_owned()),
        acting_as: true,
        tagged: true,
    };
    assert_eq!(message.session, Some(session));
    assert_eq!(message.smuggled, Some("statement"));
    let member = |json: &str| read(json).unwrap_err();
    assert_eq!(
        member(r#"{"type":"session.open","session":[]}"#),
        MessageError::Member("session")
    );
    assert_eq!(
        member(r#"{"session":{"sessionId":null},"type":"session.open"}"#),
        MessageError::Identifier("session.sessionId")
    );
    assert_eq!(good(r#"{"type":"session.open"}"#).session, None);
    // Another operation's `session` is its own business.
    assert_eq!(
        good(r#"{"type":"x","session":[{"sessionId":null}]}"#).session,
        None
    );
}

#[test]
fn finds_what_a_client_may_not_send() {
    for name in [
        "routerTicket",
        "routerBinding",
        "forwarded",
        "contextId",
        "upstream",
        "host",
        "authorization",
        "invocation",
        "actingAs",
    ] {
        let message = good(&format!(r#"{{"type":"session.open","{name}":{{}}}}"#));
        assert_eq!(message.smuggled, Some(name));
    }
    let escaped = good(r#"{"type":"session.open","\u0068ost":1,"upstream":2}"#);
    assert_eq!(escaped.smuggled, Some("host"));
    assert_eq!(
        good(r#"{"type":"connection.auth","statement":"x"}"#).smuggled,
        None
    );
    assert_eq!(
        good(r#"{"type":"session.open","session":{"host":1}}"#).smuggled,
        None
    );
}

#[test]
fn reads_hellos_and_transport() {
    let hello = good(
        r#"{"type":"hello","protocol":"memory","flags":{"connectionAuth":true,"names":["a","b"]}}"#,
    );
    assert_eq!(hello.protocol.as_deref(), Some("memory"));
    assert_eq!(
        hello.flags,
        Some(json!({"connectionAuth": true, "names": ["a", "b"]}))
    );
    let transport = good(r#"{"type":"router.transport","version":1,"uploadCredits":true}"#);
    assert_eq!(
        (transport.version, transport.upload_credits),
        (Some(1), Some(true))
    );
    let compression = good(r#"{"type":"memory.compression","requestId":"r","enabled":false}"#);
    assert_eq!(compression.enabled, Some(false));
    for (json, expected) in [
        (
            r#"{"type":"hello","flags":[]}"#,
            MessageError::Member("flags"),
        ),
        (
            r#"{"type":"hello","flags":{"a":{}}}"#,
            MessageError::Member("flags"),
        ),
        (
            r#"{"type":"hello","flags":{"a":[[]]}}"#,
            MessageError::Member("flags"),
        ),
        (
            r#"{"type":"hello","flags":{"/a":true}}"#,
            MessageError::Tagged,
        ),
        (
            r#"{"type":"hello","protocol":1}"#,
            MessageError::Member("protocol"),
        ),
        (
            r#"{"type":"router.transport","version":"1"}"#,
            MessageError::Member("version"),
        ),
        (
            r#"{"type":"router.transport","version":1.0}"#,
            MessageError::Member("version"),
        ),
        (
            r#"{"type":"router.transport","uploadCredits":1}"#,
            MessageError::Member("uploadCredits"),
        ),
        (
            r#"{"type":"connection.auth","statement":null}"#,
            MessageError::Member("statement"),
        ),
        (
            r#"{"type":"memory.compression","enabled":"x"}"#,
            MessageError::Member("enabled"),
        ),
    ] {
        assert_eq!(read(json), Err(expected), "{json}");
        // In any other message these names belong to the operation.
        let other = json
            .replace("hello", "other")
            .replace("router.transport", "other")
            .replace("connection.auth", "other")
            .replace("memory.compression", "other");
        assert!(read(&other).is_ok(), "{other}");
    }
}

#[test]
fn bounds_the_flags() {
    let flags = |count: usize| {
        let flags: Vec<String> = (0..count).map(|flag| format!("\"f{flag}\":true")).collect();
        read(&format!(
            r#"{{"flags":{{{}}},"type":"hello"}}"#,
            flags.join(",")
        ))
    };
    let kept = flags(MAX_FLAGS).unwrap().flags.unwrap();
    assert_eq!(kept.as_object().unwrap().len(), MAX_FLAGS);
    assert_eq!(flags(MAX_FLAGS + 1), Err(MessageError::Member("flags")));
    let names = |count: usize| {
        let names: Vec<String> = (0..count).map(|name| format!("\"n{name}\"")).collect();
        read(&format!(
            r#"{{"flags":{{"a":[{}]}},"type":"hello"}}"#,
            names.join(",")
        ))
    };
    assert!(names(MAX_FLAG_NAMES).is_ok());
    assert_eq!(
        names(MAX_FLAG_NAMES + 1),
        Err(MessageError::Member("flags"))
    );
}

#[test]
fn bounds_the_statement() {
    let auth = |len| {
        read(&format!(
            r#"{{"type":"connection.auth","statement":"{}"}}"#,
            "a".repeat(len)
        ))
    };
    assert!(auth(MAX_STATEMENT_TEXT_LEN).unwrap().statement.is_some());
    assert_eq!(
        auth(MAX_STATEMENT_TEXT_LEN + 1),
        Err(MessageError::Member("statement"))
    );
}

#[test]
fn counts_collections() {
    let message = good(
        r#"{"type":"session.watch.set","watches":[{"id":"w1","q":{"id":"no"}},{"id":"w 2"},{},5,{"id":"w3"}],
            "views":{},"holdings":[1,[2,3],{"id":"h"}]}"#,
    );
    let watches = Collection::Array {
        count: 5,
        ids: vec!["w1".to_owned(), "w3".to_owned()],
    };
    assert_eq!(message.watches, Some(watches));
    assert_eq!(message.views, Some(Collection::NotArray));
    assert_eq!(
        message.holdings.and_then(|holdings| holdings.count()),
        Some(3)
    );
}

#[test]
fn checks_identifiers_types_and_dids() {
    for (json, expected) in [
        (
            r#"{"type":"x","requestId":""}"#.to_owned(),
            MessageError::Identifier("requestId"),
        ),
        (
            r#"{"type":"x","requestId":7}"#.to_owned(),
            MessageError::Identifier("requestId"),
        ),
        (
            r#"{"type":"x","requestId":null}"#.to_owned(),
            MessageError::Identifier("requestId"),
        ),
        (
            r#"{"type":"x","sessionId":"a b"}"#.to_owned(),
            MessageError::Identifier("sessionId"),
        ),
        (
            format!(r#"{{"type":"x","sessionId":"{}"}}"#, "a".repeat(129)),
            MessageError::Identifier("sessionId"),
        ),
        (
            format!(r#"{{"type":"x","space":"{SPACE}x"}}"#),
            MessageError::Did("space"),
        ),
        (
            r#"{"type":"x","space":["a"]}"#.to_owned(),
            MessageError::Did("space"),
        ),
        (
            r#"{"type":"x","principal":"did:key:z6Mk"}"#.to_owned(),
            MessageError::Did("principal"),
        ),
        (r#"{"requestId":"r"}"#.to_owned(), MessageError::Type),
        (r#"{"type":""}"#.to_owned(), MessageError::Type),
        (r#"{"type":"a b"}"#.to_owned(), MessageError::Type),
        (r#"{"type":null}"#.to_owned(), MessageError::Type),
        (
            format!(r#"{{"type":"{}"}}"#, "a".repeat(65)),
            MessageError::Type,
        ),
        (r#"{"type":"x","/link":1}"#.to_owned(), MessageError::Tagged),
        ("[]".to_owned(), MessageError::NotObject),
        ("null".to_owned(), MessageError::NotObject),
        (r#""type""#.to_owned(), MessageError::NotObject),
    ] {
        assert_eq!(read(&json), Err(expected), "{json}");
    }
    let longest = format!(r#"{{"type":"x","requestId":"{}"}}"#, "a".repeat(128));
    assert!(read(&longest).is_ok());
}

#[test]
fn checks_all_of_the_json() {
    for (json, fault) in [
        (r#"{"type":"x","type":"x"}"#, JsonFault::DuplicateKey),
        (r#"{"type":"x","a":{"b":1,"b":2}}"#, JsonFault::DuplicateKey),
        (
            r#"{"type":"x","ok":{"sessionId":"a","sessionId":"a"}}"#,
            JsonFault::DuplicateKey,
        ),
        (
            r#"{"type":"x","watches":[{"id":"a","\u0069d":"b"}]}"#,
            JsonFault::DuplicateKey,
        ),
        (
            r#"{"type":"x","flags":{"a":true,"a":true}}"#,
            JsonFault::DuplicateKey,
        ),
        (
            r#"{"type":"x","session":{"__proto__":1}}"#,
            JsonFault::ForbiddenKey,
        ),
        (r#"{"type":"x","a":["\udc00"]}"#, JsonFault::LoneSurrogate),
        (r#"{"type":"x","holdings":[1e999]}"#, JsonFault::NumberRange),
        (r#"{"type":"x"}{}"#, JsonFault::Trailing),
        (r#"{"type":"x""#, JsonFault::Syntax),
    ] {
        match read(json) {
            Err(MessageError::Json(error)) => assert_eq!(error.fault, fault, "{json}"),
            other => panic!("{json}: {other:?}"),
        }
    }
    let text = br#"fvj1:{"type":"x",?"#;
    let error = project(text, &JsonLimits::default()).unwrap_err();
    assert_eq!(error.offset(), Some(17));
    assert_eq!(
        project(b"{\"type\":\"x\"}", &JsonLimits::default()),
        Err(MessageError::Prefix)
    );
}

#[test]
fn counts_the_prefix_and_every_slot() {
    let text =
        br#"fvj1:{"type":"x","watches":[{"id":"a"}],"flags":{"f":["n"]},"ok":{"sessionId":"s"}}"#;
    let limits = |max_bytes, max_slots| JsonLimits {
        max_bytes,
        max_slots: Some(max_slots),
        ..JsonLimits::default()
    };
    assert!(project(text, &limits(text.len(), 10)).is_ok());
    for (bytes, slots, fault) in [
        (text.len() - 1, 10, JsonFault::TooLong),
        (text.len(), 9, JsonFault::Slots),
    ] {
        match project(text, &limits(bytes, slots)) {
            Err(MessageError::Json(error)) => assert_eq!(error.fault, fault),
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_the_strict_parser(bends in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3)) {
        let mut json = format!(
            r#"{{"type":"session.open","requestId":"r","space":"{SPACE}","session":{{"sessionId":"s"}},"watches":[{{"id":"a"}}],"ok":{{"a":1}},"flags":{{"a":["b"]}}}}"#
        ).into_bytes();
        for (at, byte) in bends {
            let at = at.index(json.len());
            json[at] = byte;
        }
        let mut text = TEXT_PREFIX.to_vec();
        text.extend(&json);
        let strict = crate::json::validate(&json, &JsonLimits::default());
        match project(&text, &JsonLimits::default()) {
            Ok(_) => prop_assert_eq!(strict, Ok(())),
            Err(MessageError::Json(error)) => prop_assert_eq!(Err(error.fault), strict.map_err(|error| error.fault)),
            Err(_) => prop_assert!(strict.is_ok()),
        }
    }

    #[test]
    fn never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let mut text = TEXT_PREFIX.to_vec();
        text.extend(bytes);
        let _ = project(&text, &JsonLimits::default());
    }
}
