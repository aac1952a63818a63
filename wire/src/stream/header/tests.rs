//! Compiled under `#[cfg(test)]` alone.
use proptest::prelude::*;

use super::*;
use crate::json::JsonLimits;
use crate::message::project;

const SPACE: &str = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK";

const DIRECTIONS: [Direction; 3] = [
    Direction::PublicUpload,
    Direction::PrivateRequest,
    Direction::PrivateResponse,
];

fn upload(json: &str) -> Result<Header<'_>, StreamFault> {
    Header::parse(json.as_bytes(), Direction::PublicUpload)
}

fn message(json: &str) -> Message {
    project(format!("fvj1:{json}").as_bytes(), &JsonLimits::default()).unwrap()
}

#[test]
fn borrows_from_the_input() {
    let json = format!(
        r#" {{"route":{{"space":"{SPACE}","type":"transact","requestId":"r1","sessionId":"s1"}},"binary":true,"bytes":123}} "#
    );
    let header = upload(&json).unwrap();
    assert_eq!((header.bytes, header.binary), (123, true));
    for text in [
        header.route.request_id,
        header.route.space,
        header.route.session_id,
    ] {
        assert!(matches!(text, Some(Cow::Borrowed(_))));
    }
    assert!(matches!(header.route.kind, Cow::Borrowed("transact")));
    let escaped = upload(r#"{"bytes":1,"binary":false,"route":{"type":"\u0061b"}}"#).unwrap();
    assert_eq!(escaped.route.kind, "ab");
}

#[test]
fn rejects_what_is_not_a_header() {
    for (json, expected) in [
        ("", StreamFault::HeaderSyntax),
        ("[]", StreamFault::HeaderSyntax),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":"x"}} {}"#,
            StreamFault::HeaderSyntax,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":[]}"#,
            StreamFault::HeaderSyntax,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":1}}"#,
            StreamFault::HeaderSyntax,
        ),
        (
            r#"{"binary":true,"route":{"type":"x"}}"#,
            StreamFault::Incomplete,
        ),
        (
            r#"{"bytes":1,"route":{"type":"x"}}"#,
            StreamFault::Incomplete,
        ),
        (r#"{"bytes":1,"binary":true}"#, StreamFault::Incomplete),
        (
            r#"{"bytes":1,"binary":true,"route":{}}"#,
            StreamFault::Incomplete,
        ),
        (
            r#"{"bytes":0,"binary":true,"route":{"type":"x"}}"#,
            StreamFault::BodyLength,
        ),
        (
            r#"{"bytes":8388609,"binary":true,"route":{"type":"x"}}"#,
            StreamFault::BodyLength,
        ),
        (
            r#"{"bytes":1.0,"binary":true,"route":{"type":"x"}}"#,
            StreamFault::Value,
        ),
        (
            r#"{"bytes":-1,"binary":true,"route":{"type":"x"}}"#,
            StreamFault::Value,
        ),
        (
            r#"{"bytes":1,"binary":1,"route":{"type":"x"}}"#,
            StreamFault::Value,
        ),
        (
            r#"{"bytes":1,"bytes":1,"binary":true,"route":{"type":"x"}}"#,
            StreamFault::DuplicateKey,
        ),
        (
            r#"{"bytes":1,"\u0062ytes":1,"binary":true,"route":{"type":"x"}}"#,
            StreamFault::DuplicateKey,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":"x","type":"x"}}"#,
            StreamFault::DuplicateKey,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":"x","requestId":"r","requestId":"r"}}"#,
            StreamFault::DuplicateKey,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":"x"},"a":1}"#,
            StreamFault::Member,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":"x","/a":1}}"#,
            StreamFault::Member,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":"x y"}}"#,
            StreamFault::Value,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":"x","requestId":""}}"#,
            StreamFault::Value,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":"x","space":"did:key:z6Mk"}}"#,
            StreamFault::Value,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":"response","error":false}}"#,
            StreamFault::Value,
        ),
        (
            r#"{"bytes":1,"binary":true,"route":{"type":"x\ud800"}}"#,
            StreamFault::HeaderSyntax,
        ),
    ] {
        for direction in DIRECTIONS {
            assert_eq!(
                Header::parse(json.as_bytes(), direction),
                Err(expected),
                "{json}"
            );
        }
    }
    assert_eq!(
        Header::parse(b"\xff", Direction::PublicUpload),
        Err(StreamFault::HeaderSyntax)
    );
}

#[test]
fn holds_members_to_their_direction() {
    let header = |ordinal: &str, route: &str| {
        format!(r#"{{"bytes":1,"binary":false{ordinal},"route":{{{route}}}}}"#)
    };
    let judge =
        |json: &str| DIRECTIONS.map(|direction| Header::parse(json.as_bytes(), direction).err());
    let ordinal = r#","requestOrdinal":1"#;
    assert_eq!(
        judge(&header("", r#""type":"x""#)),
        [None, Some(StreamFault::Incomplete), None]
    );
    assert_eq!(
        judge(&header(ordinal, r#""type":"x""#)),
        [Some(StreamFault::Member), None, Some(StreamFault::Member)]
    );
    for route in [
        r#""type":"response","error":true"#,
        r#""type":"response","assignedSessionId":"s""#,
    ] {
        assert_eq!(
            judge(&header("", route)),
            [
                Some(StreamFault::Member),
                Some(StreamFault::Incomplete),
                None
            ]
        );
        assert_eq!(
            judge(&header(ordinal, route)),
            [Some(StreamFault::Member); 3]
        );
    }
    for route in [
        r#""type":"x","error":true"#,
        r#""type":"response","error":true,"assignedSessionId":"s""#,
    ] {
        assert_eq!(judge(&header("", route))[2], Some(StreamFault::Member));
    }
    for bad in ["0", "9007199254740992", "1.0", "-1", "\"1\""] {
        let json = header(&format!(r#","requestOrdinal":{bad}"#), r#""type":"x""#);
        assert!(judge(&json)[1].is_some(), "{bad}");
    }
}

#[test]
fn compares_a_route_with_its_message() {
    let open = message(&format!(
        r#"{{"type":"session.open","requestId":"r","space":"{SPACE}","principal":"{SPACE}"}}"#
    ));
    let route = Route::of(&open);
    assert!(route.matches(&open));
    for other in [
        r#"{"type":"session.open","requestId":"r","space":"SPACE"}"#,
        r#"{"type":"session.open","requestId":"q","space":"SPACE","principal":"SPACE"}"#,
        r#"{"type":"x","requestId":"r","space":"SPACE","principal":"SPACE"}"#,
        r#"{"type":"session.open","requestId":"r","space":"SPACE","principal":"SPACE","sessionId":"s"}"#,
    ] {
        assert!(
            !route.matches(&message(&other.replace("SPACE", SPACE))),
            "{other}"
        );
    }
    let answer = message(r#"{"type":"response","requestId":"r","ok":{"sessionId":"s"}}"#);
    let mut route = Route::of(&answer);
    assert_eq!(route.assigned_session_id.as_deref(), Some("s"));
    assert!(route.matches(&answer));
    route.assigned_session_id = None;
    assert!(route.matches(&answer));
    route.assigned_session_id = Some(Cow::Borrowed("t"));
    assert!(!route.matches(&answer));
    let denied = message(r#"{"type":"response","requestId":"r","error":{}}"#);
    assert!(Route::of(&denied).error && !Route::of(&answer).matches(&denied));
    // Only a response has an error as far as routing goes.
    assert!(!Route::of(&message(r#"{"type":"x","error":1}"#)).error);
}

#[test]
fn knows_the_shape_of_a_did() {
    assert!(has_did_shape(SPACE));
    for other in [
        "",
        "did:key:z6Mk",
        &SPACE[..55],
        &SPACE.replace('D', "0"),
        &SPACE.replace("z6Mk", "z6Mj"),
        &SPACE.replace('D', "é"),
    ] {
        assert!(!has_did_shape(other), "{other}");
    }
}

#[test]
fn escapes_what_it_did_not_check() {
    let header = Header {
        bytes: 1,
        binary: false,
        request_ordinal: None,
        route: Route {
            kind: Cow::Borrowed("a\"\\\n"),
            ..Route::default()
        },
    };
    let mut out = b"before".to_vec();
    header.encode_record(&mut out).unwrap();
    assert_eq!(
        &out[11..],
        br#"{"bytes":1,"binary":false,"route":{"type":"a\"\\\n"}}"#
    );
    let long = Header {
        route: Route {
            kind: Cow::Owned("x".repeat(MAX_HEADER_RECORD_LEN)),
            ..Route::default()
        },
        ..header
    };
    let before = out.clone();
    assert_eq!(long.encode_record(&mut out), Err(StreamFault::RecordLength));
    assert_eq!(out, before);
}

fn headers() -> impl Strategy<Value = (Header<'static>, Direction)> {
    let identifier = || proptest::option::of("[A-Za-z0-9_:.@-]{1,128}".prop_map(Cow::from));
    let did = || {
        proptest::option::of(
            "[1-9A-HJ-NP-Za-km-z]{44}".prop_map(|key| Cow::from(format!("did:key:z6Mk{key}"))),
        )
    };
    let outcome = prop_oneof![Just(0u8), Just(1), Just(2)];
    (
        (
            1..=MAX_BODY_LEN,
            any::<bool>(),
            1..=MAX_SAFE_INTEGER,
            0..3usize,
        ),
        (
            "[A-Za-z0-9./_:-]{1,64}",
            identifier(),
            did(),
            identifier(),
            did(),
            outcome,
            "[a-z]{1,128}",
        ),
    )
        .prop_map(
            |(
                (bytes, binary, ordinal, direction),
                (kind, request_id, space, session_id, principal, outcome, assigned),
            )| {
                let direction = DIRECTIONS[direction];
                let answers = direction == Direction::PrivateResponse && outcome != 0;
                let route = Route {
                    kind: Cow::from(if answers { "response".to_owned() } else { kind }),
                    request_id,
                    space,
                    session_id,
                    principal,
                    error: answers && outcome == 1,
                    assigned_session_id: (answers && outcome == 2).then(|| Cow::from(assigned)),
                };
                let request_ordinal = (direction == Direction::PrivateRequest).then_some(ordinal);
                (
                    Header {
                        bytes,
                        binary,
                        request_ordinal,
                        route,
                    },
                    direction,
                )
            },
        )
}

proptest! {
    #[test]
    fn round_trips_and_refuses_every_prefix((header, direction) in headers()) {
        let mut record = Vec::new();
        header.encode_record(&mut record).unwrap();
        prop_assert!(record.len() <= MAX_HEADER_RECORD_LEN);
        let Ok(crate::stream::Record::Header(json)) = crate::stream::decode_record(&record) else {
            return Err(TestCaseError::fail("not a header"));
        };
        prop_assert_eq!(Header::parse(json, direction), Ok(header));
        for end in 0..json.len() {
            prop_assert!(Header::parse(&json[..end], direction).is_err());
        }
    }

    #[test]
    fn never_panics_on_bent_headers((header, direction) in headers(), at in any::<proptest::sample::Index>(), byte: u8) {
        let mut record = Vec::new();
        header.encode_record(&mut record).unwrap();
        let mut json = record.split_off(5);
        let at = at.index(json.len());
        json[at] = byte;
        let _ = Header::parse(&json, direction);
    }
}
