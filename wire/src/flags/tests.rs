//! Compiled under `#[cfg(test)]` alone.
use super::*;
use proptest::prelude::*;
use serde_json::json;

fn flags(value: Value) -> Flags {
    Flags::from_value(&value).expect("descriptor")
}

#[test]
fn writes_keys_sorted_and_arrays_in_their_order() {
    let flags = flags(json!({"b": ["z", "a"], "a": true, "B": false, "c": []}));
    let canonical = br#"{"B":false,"a":true,"b":["z","a"],"c":[]}"#;
    assert_eq!(flags.canonical(), canonical);
    assert_eq!(Flags::from_canonical(canonical), Ok(flags.clone()));
    assert_eq!(Flags::from_value(&flags.to_value()), Ok(flags.clone()));
    assert_eq!(flags.digest(), Digest::of(canonical));
    assert_eq!(Flags::new().canonical(), b"{}");
}

#[test]
fn reads_only_the_canonical_form() {
    for bytes in [
        &br#"{"b":true,"a":true}"#[..],
        br#"{"a": true}"#,
        br#"{"a":true} "#,
        br#"{"a":true,"a":true}"#,
        br#"{"\u0061":true}"#,
    ] {
        assert_eq!(
            Flags::from_canonical(bytes),
            Err(FlagsError::NotCanonical),
            "{}",
            String::from_utf8_lossy(bytes)
        );
    }
    for bytes in [&b""[..], b"{", b"{}{}", b"\xff"] {
        assert_eq!(Flags::from_canonical(bytes), Err(FlagsError::Syntax));
    }
}

#[test]
fn refuses_what_is_not_a_descriptor() {
    let many = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
    let object = |count: usize| {
        Value::Object(Map::from_iter(
            many(count).into_iter().map(|name| (name, json!(true))),
        ))
    };
    assert!(Flags::from_value(&object(MAX_CAPABILITIES)).is_ok());
    assert!(Flags::from_value(&json!({"a": many(MAX_NAMES)})).is_ok());
    assert!(Flags::from_value(&json!({"a".repeat(64): ["/", "b".repeat(64)]})).is_ok());
    for (value, fault) in [
        (json!([]), FlagsError::Kind),
        (json!({"a": null}), FlagsError::Kind),
        (json!({"a": 1}), FlagsError::Kind),
        (json!({"a": "b"}), FlagsError::Kind),
        (json!({"a": {}}), FlagsError::Kind),
        (json!({"a": ["b", 1]}), FlagsError::Kind),
        (json!({"modernCellRep": []}), FlagsError::Kind),
        (json!({"": true}), FlagsError::Name),
        (json!({"a b": true}), FlagsError::Name),
        (json!({"ä": true}), FlagsError::Name),
        (json!({"/a": true}), FlagsError::Name),
        (json!({"__proto__": true}), FlagsError::Name),
        (json!({"a".repeat(65): true}), FlagsError::Name),
        (json!({"a": ["b\""]}), FlagsError::Name),
        (json!({"a": [""]}), FlagsError::Name),
        (json!({"a": ["b", "b"]}), FlagsError::DuplicateName),
        (json!({"a": many(MAX_NAMES + 1)}), FlagsError::TooManyNames),
        (
            object(MAX_CAPABILITIES + 1),
            FlagsError::TooManyCapabilities,
        ),
    ] {
        assert_eq!(Flags::from_value(&value), Err(fault), "{value}");
    }
}

#[test]
fn bounds_the_canonical_form_exactly() {
    let mut flags = Flags::new();
    // {"a00":["x...x"],...}: each capability takes 75 bytes with its comma.
    for index in 0..27 {
        let names = Capability::Names(vec!["x".repeat(64)]);
        flags.insert(&format!("a{index:02}"), names).expect("room");
    }
    let left = MAX_CANONICAL_LEN - flags.canonical().len();
    assert_eq!(left, 2047 - 27 * 75);
    // ,"n":true
    let name = "n".repeat(left - 8);
    flags.insert(&name, Capability::Flag(true)).expect("fits");
    assert_eq!(flags.canonical().len(), MAX_CANONICAL_LEN);
    let before = flags.clone();
    let result = flags.insert(&name, Capability::Flag(false));
    assert_eq!(result, Err(FlagsError::TooLong));
    assert_eq!(flags, before);
    assert!(Flags::from_canonical(&flags.canonical()).is_ok());
}

#[test]
fn offers_what_every_endpoint_supports() {
    let a = flags(json!({
        "x": true, "y": true, "z": false, "only": true, "kind": true, "set": ["c", "b", "a"],
        "none": ["p"], "serverExecution": true, "routerEncodingNegotiation": true,
        "routerRequestCredit": true,
    }));
    let b = flags(json!({
        "x": true, "y": false, "z": true, "kind": [], "set": ["a", "c", "d"], "none": ["q"],
        "serverExecution": true, "routerEncodingNegotiation": true, "routerRequestCredit": true,
    }));
    let offer = Flags::public_offer(&[&a, &b]);
    let expected = json!({"x": true, "y": false, "z": false, "set": ["c", "a"], "none": []});
    assert_eq!(offer, flags(expected));
    assert!(offer.is_supported_by(&a) && offer.is_supported_by(&b));
    assert!(a.has_private_names() && !offer.has_private_names());
    assert_eq!(Flags::public_offer(&[]), Flags::new());
    assert!(!Flags::public_offer(&[&a]).has_private_names());
}

#[test]
fn negotiates_in_the_order_of_the_offer() {
    let offer = flags(json!({
        "x": true, "y": false, "absent": true, "kind": true, "set": ["c", "b", "a"], "none": ["p"],
        "routerRequestCredit": true,
    }));
    let client = flags(json!({
        "x": true, "y": true, "kind": ["k"], "set": ["a", "c"], "none": [], "future": true,
        "routerRequestCredit": true,
    }));
    let negotiated = Flags::negotiate(&client, &offer);
    let expected = flags(json!({"x": true, "y": false, "set": ["c", "a"], "none": []}));
    assert_eq!(negotiated, expected);
}

#[test]
fn judges_support_by_what_is_claimed() {
    let offer = flags(json!({"x": true, "y": false, "set": ["a"], "none": []}));
    let supports = |value| offer.is_supported_by(&flags(value));
    assert!(supports(
        json!({"x": true, "set": ["b", "a"], "more": true})
    ));
    assert!(!supports(json!({"x": false, "set": ["a"]})));
    assert!(!supports(json!({"set": ["a"]})));
    assert!(!supports(json!({"x": ["x"], "set": ["a"]})));
    assert!(!supports(json!({"x": true, "set": ["b"]})));
    assert!(!supports(json!({"x": true, "set": true})));
    // The cell mode must be the same, not only supported.
    assert!(supports(
        json!({"x": true, "set": ["a"], "modernCellRep": false})
    ));
    assert!(!supports(
        json!({"x": true, "set": ["a"], "modernCellRep": true})
    ));
    let modern = flags(json!({"modernCellRep": true}));
    assert!(modern.modern_cell_rep() && !modern.is_supported_by(&Flags::new()));
}

fn descriptor() -> impl Strategy<Value = Flags> {
    let name = "[a-f]{1,2}|serverExecution|routerRequestCredit|modernCellRep";
    let names = proptest::collection::btree_set("[a-h]", 0..5).prop_shuffle_names();
    let capability = prop_oneof![any::<bool>().prop_map(Capability::Flag), names];
    proptest::collection::vec((name, capability), 0..8).prop_map(|members| {
        let mut flags = Flags::new();
        for (name, capability) in members {
            // A set where only a boolean may stand is left out.
            let _ = flags.insert(&name, capability);
        }
        flags
    })
}

trait ShuffleNames: Strategy<Value = std::collections::BTreeSet<String>> + Sized + 'static {
    fn prop_shuffle_names(self) -> BoxedStrategy<Capability> {
        self.prop_map(Vec::from_iter)
            .prop_shuffle()
            .prop_map(Capability::Names)
            .boxed()
    }
}

impl<S: Strategy<Value = std::collections::BTreeSet<String>> + 'static> ShuffleNames for S {}

proptest! {
    #[test]
    fn descriptors_round_trip(flags in descriptor()) {
        prop_assert_eq!(Flags::from_canonical(&flags.canonical()), Ok(flags.clone()));
        prop_assert_eq!(Flags::from_value(&flags.to_value()), Ok(flags));
    }

    #[test]
    fn negotiated_flags_are_supported_by_all_sides(
        client in descriptor(),
        a in descriptor(),
        b in descriptor(),
    ) {
        let offer = Flags::public_offer(&[&a, &b]);
        prop_assert!(offer.subset_of(&a) && offer.subset_of(&b));
        let negotiated = Flags::negotiate(&client, &offer);
        prop_assert!(negotiated.subset_of(&client) && negotiated.subset_of(&offer));
        prop_assert!(negotiated.subset_of(&a) && negotiated.subset_of(&b));
        prop_assert!(!negotiated.has_private_names());
        prop_assert_eq!(Flags::negotiate(&negotiated, &offer), negotiated);
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes: Vec<u8>, text in "\\{(\"[a-c/]\":(true|\\[\"a\"\\]),?){0,3}\\}") {
        let _ = Flags::from_canonical(&bytes);
        if let Ok(flags) = Flags::from_canonical(text.as_bytes()) {
            prop_assert_eq!(flags.canonical(), text.as_bytes());
        }
    }
}
