//! Compiled under `#[cfg(test)]` alone.
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn fault(text: &[u8]) -> Option<JsonFault> {
    let limits = JsonLimits::default();
    let parsed = parse(text, &limits);
    assert_eq!(
        parsed.as_ref().err(),
        validate(text, &limits).as_ref().err()
    );
    parsed.err().map(|error| error.fault)
}

fn nested(depth: usize, inside: &str) -> String {
    format!("{}{inside}{}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
fn keeps_every_kind_of_value() {
    let text = br#" {"a":[null,true,-1,18446744073709551615,0.1,"\u00e9\ud83d\ude00"],"b":{}} "#;
    let value = json!({"a": [null, true, -1, u64::MAX, 0.1, "é😀"], "b": {}});
    assert_eq!(parse(text, &JsonLimits::default()), Ok(value));
}

#[test]
fn names_the_rule_and_the_place() {
    for (text, expected, offset) in [
        (&b"{\"a\":1,\"a\":2}"[..], JsonFault::DuplicateKey, None),
        (b"{\"a\":1,\"\\u0061\":2}", JsonFault::DuplicateKey, None),
        (
            b"[{\"b\":{\"a\":1,\"c\":[],\"a\":2}}]",
            JsonFault::DuplicateKey,
            None,
        ),
        (b"\"\\ud800\"", JsonFault::LoneSurrogate, None),
        (b"\"\\udc00\"", JsonFault::LoneSurrogate, None),
        (b"\"\\ud800\\ud800\"", JsonFault::LoneSurrogate, None),
        (b"\"\\ud800\\n\"", JsonFault::LoneSurrogate, None),
        (b"{\"\\udead\":1}", JsonFault::LoneSurrogate, None),
        (b"{\"__proto__\":1}", JsonFault::ForbiddenKey, None),
        (b"[{\"constructor\":1}]", JsonFault::ForbiddenKey, None),
        (
            b"{\"a\":{\"\\u0070rototype\":1}}",
            JsonFault::ForbiddenKey,
            None,
        ),
        (b"[1e400]", JsonFault::NumberRange, None),
        (b"[-1e400]", JsonFault::NumberRange, None),
        (b"1 2", JsonFault::Trailing, Some(2)),
        (b"{}\n\n x", JsonFault::Trailing, Some(5)),
        (b"", JsonFault::Syntax, Some(0)),
        (b"[1,]", JsonFault::Syntax, Some(3)),
        (b"[\n1,\n?]", JsonFault::Syntax, Some(5)),
        (b"\xef\xbb\xbf{}", JsonFault::Syntax, Some(0)),
        (b"[\"\xff\"]", JsonFault::InvalidUtf8, Some(2)),
        (b"[\"\xed\xa0\x80\"]", JsonFault::InvalidUtf8, Some(2)),
    ] {
        assert_eq!(fault(text), Some(expected), "{text:?}");
        if let Some(offset) = offset {
            let error = validate(text, &JsonLimits::default()).unwrap_err();
            assert_eq!(error.offset, offset, "{text:?}");
        }
    }
    // Values, unlike keys, may be called anything.
    assert_eq!(fault(b"[\"__proto__\",\"constructor\"]"), None);
    assert_eq!(fault(b"1e-400"), None);
}

#[test]
fn admits_exactly_the_depth() {
    assert_eq!(fault(nested(65, "").as_bytes()), None);
    assert_eq!(fault(nested(64, "1").as_bytes()), None);
    assert_eq!(fault(nested(65, "1").as_bytes()), Some(JsonFault::Depth));
    assert_eq!(fault(nested(66, "").as_bytes()), Some(JsonFault::Depth));
    assert_eq!(
        fault("[".repeat(100_000).as_bytes()),
        Some(JsonFault::Depth)
    );
    let objects = format!("{}1{}", "{\"a\":".repeat(65), "}".repeat(65));
    assert_eq!(fault(objects.as_bytes()), Some(JsonFault::Depth));
    let deep = JsonLimits {
        max_depth: u32::MAX,
        ..JsonLimits::default()
    };
    let error = validate("[".repeat(1000).as_bytes(), &deep).unwrap_err();
    assert_eq!(error.fault, JsonFault::Depth);
}

#[test]
fn admits_exactly_the_slots() {
    let slots = |max_slots| JsonLimits {
        max_slots: Some(max_slots),
        ..JsonLimits::default()
    };
    let text = br#"{"a":[1,"x",null],"b":{"c":false}}"#;
    assert_eq!(validate(text, &slots(7)), Ok(()));
    let error = validate(text, &slots(6)).unwrap_err();
    assert_eq!(error.fault, JsonFault::Slots);
    assert_eq!(parse(text, &slots(6)).unwrap_err().fault, JsonFault::Slots);
    assert_eq!(
        validate(b"1", &slots(0)).unwrap_err().fault,
        JsonFault::Slots
    );
}

#[test]
fn admits_exactly_the_bytes() {
    let limits = JsonLimits {
        max_bytes: 4,
        ..JsonLimits::default()
    };
    assert_eq!(validate(b"1234", &limits), Ok(()));
    assert_eq!(
        validate(b"1234 ", &limits).unwrap_err().fault,
        JsonFault::TooLong
    );
}

#[test]
fn finds_a_duplicate_among_many_keys() {
    for count in [2, 7, 8, 9, 10, 1000] {
        let keys: Vec<String> = (0..count).map(|key| format!("\"k{key}\":0")).collect();
        assert_eq!(fault(format!("{{{}}}", keys.join(",")).as_bytes()), None);
        for repeated in [0, count - 1] {
            let text = format!("{{{},\"k{repeated}\":0}}", keys.join(","));
            assert_eq!(fault(text.as_bytes()), Some(JsonFault::DuplicateKey));
        }
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        proptest::num::f64::NORMAL.prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 12, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::vec((".{0,4}", inner), 0..12)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn reads_back_what_serde_json_writes(value in values()) {
        let text = value.to_string();
        prop_assert_eq!(parse(text.as_bytes(), &JsonLimits::default()), Ok(value.clone()));
        prop_assert_eq!(validate(text.as_bytes(), &JsonLimits::default()), Ok(()));
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        prop_assert_eq!(parse(pretty.as_bytes(), &JsonLimits::default()), Ok(value));
    }

    #[test]
    fn parsing_and_validating_agree_on_bent_texts(value in values(), at in any::<proptest::sample::Index>(), byte: u8) {
        let mut text = value.to_string().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        let limits = JsonLimits::default();
        let parsed = parse(&text, &limits);
        prop_assert_eq!(parsed.as_ref().err().copied(), validate(&text, &limits).err());
        if parsed.is_ok() {
            prop_assert!(serde_json::from_slice::<Value>(&text).is_ok());
        }
    }

    #[test]
    fn never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let error = parse(&bytes, &JsonLimits::default()).err();
        prop_assert!(error.is_none_or(|error| error.offset <= bytes.len()));
    }
}
