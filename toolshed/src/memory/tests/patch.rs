//! Every patch operation, its errors and its bounds.
//!
//! Compiled under `#[cfg(test)]` alone.

use super::*;
use proptest::prelude::*;
use serde_json::json;

fn patched(document: Value, patches: Value) -> Result<Value, String> {
    let Value::Array(patches) = patches else {
        panic!("a list of patches");
    };
    let ops = patches
        .iter()
        .map(PatchOp::parse)
        .collect::<Result<Vec<_>, _>>()?;
    let mut document = document;
    apply(&mut document, &ops, &mut Budget::new())?;
    Ok(document)
}

fn value_after(value: Value, op: Value) -> Result<Value, String> {
    patched(json!({"value": value}), json!([op])).map(|mut document| document["value"].take())
}

#[test]
fn replace_sets_a_key_but_not_an_array_element_that_is_missing() {
    let op = |path: &str| json!({"op": "replace", "path": path, "value": 9});
    assert_eq!(
        value_after(json!({"a": 1}), op("/value/a")),
        Ok(json!({"a": 9}))
    );
    assert_eq!(value_after(json!({}), op("/value/b")), Ok(json!({"b": 9})));
    assert_eq!(
        value_after(json!([1, 2]), op("/value/1")),
        Ok(json!([1, 9]))
    );
    assert_eq!(value_after(json!(1), op("/value")), Ok(json!(9)));
    for (value, path, error) in [
        (json!([1]), "/value/1", "array index out of bounds: 1"),
        (json!([1]), "/value/01", "invalid array index: 01"),
        (json!({}), "/value/a/b", "missing path /value/a"),
        (
            json!(1),
            "/value/a/b",
            "path is not traversable at /value/a",
        ),
    ] {
        assert_eq!(value_after(value, op(path)), Err(error.to_owned()));
    }
}

#[test]
fn the_root_stays_an_entity_document() {
    let root = |value: Value| {
        patched(
            json!({}),
            json!([{"op": "replace", "path": "", "value": value}]),
        )
    };
    assert_eq!(root(json!({"value": 1})), Ok(json!({"value": 1})));
    for bad in [json!([]), json!("x"), json!(null), json!({"/Bytes@1": ""})] {
        assert_eq!(
            root(bad),
            Err("patched root is not an entity document".to_owned())
        );
    }
    assert!(patched(json!({}), json!([{"op": "remove", "path": ""}])).is_err());
    assert!(
        patched(
            json!({}),
            json!([{"op": "move", "path": "", "from": "/value"}])
        )
        .is_err()
    );
}

#[test]
fn add_makes_objects_and_inserts_into_arrays() {
    let op = |path: &str| json!({"op": "add", "path": path, "value": 9});
    assert_eq!(
        patched(json!({}), json!([op("/value/a/b")])),
        Ok(json!({"value": {"a": {"b": 9}}}))
    );
    assert_eq!(
        value_after(json!([1, 2]), op("/value/1")),
        Ok(json!([1, 9, 2]))
    );
    assert_eq!(value_after(json!([1]), op("/value/1")), Ok(json!([1, 9])));
    assert_eq!(value_after(json!([1]), op("/value/-")), Ok(json!([1, 9])));
    assert!(value_after(json!([1]), op("/value/2")).is_err());
    assert!(value_after(json!([1]), op("/value/1/a")).is_err());
}

#[test]
fn remove_and_move_want_something_to_take() {
    let remove = |path: &str| json!({"op": "remove", "path": path});
    assert_eq!(
        value_after(json!({"a": 1, "b": 2}), remove("/value/a")),
        Ok(json!({"b": 2}))
    );
    assert_eq!(
        value_after(json!([1, 2]), remove("/value/0")),
        Ok(json!([2]))
    );
    assert_eq!(
        value_after(json!({}), remove("/value/a")),
        Err("missing object key at /value/a".to_owned())
    );
    let shift = |from: &str, path: &str| json!({"op": "move", "from": from, "path": path});
    assert_eq!(
        value_after(json!({"a": {"x": 1}}), shift("/value/a", "/value/b/c")),
        Ok(json!({"b": {"c": {"x": 1}}}))
    );
    assert_eq!(
        value_after(json!([1, 2, 3]), shift("/value/0", "/value/2")),
        Ok(json!([2, 3, 1]))
    );
    assert_eq!(
        value_after(json!({"a": 1}), shift("/value/a", "/value/a")),
        Ok(json!({"a": 1}))
    );
    assert!(value_after(json!({"a": {}}), shift("/value/a", "/value/a/b")).is_err());
    assert!(value_after(json!({"a": {}}), shift("/value/c", "/value/d")).is_err());
}

#[test]
fn splice_replaces_a_run() {
    let op = |index: i64, remove: i64| json!({"op": "splice", "path": "/value", "index": index, "remove": remove, "add": ["x"]});
    assert_eq!(
        value_after(json!([1, 2, 3]), op(1, 1)),
        Ok(json!([1, "x", 3]))
    );
    assert_eq!(value_after(json!([1]), op(1, 0)), Ok(json!([1, "x"])));
    assert_eq!(value_after(json!([1]), op(0, 9)), Ok(json!(["x"])));
    assert_eq!(
        value_after(json!([1]), op(2, 0)),
        Err("invalid splice at /value".to_owned())
    );
    assert_eq!(
        value_after(json!([1]), op(-1, 0)),
        Err("invalid splice at /value".to_owned())
    );
    assert_eq!(
        value_after(json!({}), op(0, 0)),
        Err("splice target is not an array at /value".to_owned())
    );
}

#[test]
fn append_and_add_unique_make_the_array() {
    let op = |op: &str, path: &str| json!({"op": op, "path": path, "values": [1.0, 2, 2], "createsKey": true});
    assert_eq!(
        value_after(json!({}), op("append", "/value/l")),
        Ok(json!({"l": [1.0, 2, 2]}))
    );
    assert_eq!(
        value_after(json!([1]), op("append", "/value")),
        Ok(json!([1, 1.0, 2, 2]))
    );
    assert_eq!(
        value_after(json!([1]), op("add-unique", "/value")),
        Ok(json!([1, 2]))
    );
    assert_eq!(
        value_after(json!({}), op("add-unique", "/value/a/b")),
        Ok(json!({"a": {"b": [1.0, 2]}}))
    );
    assert_eq!(
        value_after(json!({"l": 1}), op("append", "/value/l")),
        Err("append target is not an array at /value/l".to_owned())
    );
}

#[test]
fn remove_by_value_takes_all_equal_elements() {
    let op = |path: &str| json!({"op": "remove-by-value", "path": path, "value": {"a": 1}});
    assert_eq!(
        value_after(json!([{"a": 1.0}, 2, {"a": 1}]), op("/value")),
        Ok(json!([2]))
    );
    assert_eq!(value_after(json!({}), op("/value/x")), Ok(json!({})));
    assert_eq!(
        value_after(json!({"x": 1}), op("/value/x")),
        Ok(json!({"x": 1}))
    );
}

#[test]
fn increment_counts_from_nothing() {
    let op = |path: &str, by: Value| json!({"op": "increment", "path": path, "by": by});
    assert_eq!(
        value_after(json!({}), op("/value/n", json!(2))),
        Ok(json!({"n": 2}))
    );
    assert_eq!(
        value_after(json!({"n": 2}), op("/value/n", json!(-0.5))),
        Ok(json!({"n": 1.5}))
    );
    assert_eq!(
        value_after(json!([4]), op("/value/0", json!(1))),
        Ok(json!([5]))
    );
    assert_eq!(
        value_after(json!({"n": "2"}), op("/value/n", json!(1))),
        Err("increment target is not a number at /value/n".to_owned())
    );
    assert!(value_after(json!({}), op("/value/n", json!(0))).is_err());
    assert!(value_after(json!({}), op("/value/n", json!("1"))).is_err());
}

#[test]
fn malformed_operations_are_refused() {
    for bad in [
        json!(1),
        json!({"op": "test", "path": "/value", "value": 1}),
        json!({"op": "copy", "path": "/value", "from": "/value"}),
        json!({"op": "add", "path": "/value"}),
        json!({"op": "add", "path": "value", "value": 1}),
        json!({"op": "add", "path": "/value/__proto__", "value": 1}),
        json!({"op": "append", "path": "/value", "values": 1}),
        json!({"op": "append", "path": "/value", "values": [], "createsKey": 1}),
        json!({"op": "splice", "path": "/value", "index": 0, "remove": 0}),
    ] {
        assert!(PatchOp::parse(&bad).is_err(), "{bad}");
    }
}

#[test]
fn documents_do_not_grow_deeper_than_a_message() {
    let mut nested = json!(1);
    for _ in 0..40 {
        nested = json!({"a": nested});
    }
    let path = "/a".repeat(19);
    let add = |path: &str| json!([{"op": "add", "path": path, "value": nested}]);
    assert!(patched(json!({}), add(&path)).is_ok());
    assert!(patched(json!({}), add(&format!("{path}/b"))).is_err());
    // Moving below itself step by step is caught as well.
    let mut document = patched(json!({}), add("/x")).expect("fits");
    let mut failed = false;
    for step in 0..40 {
        let from = if step % 2 == 0 { "/x" } else { "/y" };
        let to = if step % 2 == 0 { "/y/x" } else { "/x/y" };
        match patched(
            document.clone(),
            json!([{"op": "move", "from": from, "path": to}]),
        ) {
            Ok(moved) => document = moved,
            Err(error) => {
                assert_eq!(error, "patched document is too deep");
                failed = true;
                break;
            }
        }
    }
    assert!(failed);
}

#[test]
fn work_is_bounded() {
    let many: Vec<Value> = (0..20_000).map(|n| json!(n)).collect();
    assert!(
        value_after(
            json!([]),
            json!({"op": "append", "path": "/value", "values": many})
        )
        .is_ok()
    );
    let unique = value_after(
        json!([]),
        json!({"op": "add-unique", "path": "/value", "values": many}),
    );
    assert_eq!(
        unique,
        Err("patches of one commit cost too much work".to_owned())
    );
    let inserts: Vec<Value> = (0..2_000)
        .map(|_| json!({"op": "add", "path": "/value/0", "value": 0}))
        .collect();
    assert!(patched(json!({"value": many}), Value::Array(inserts)).is_err());
}

#[test]
fn touching_is_judged_by_ancestry() {
    let touches = |op: Value, read: &[&str], shallow: bool| {
        let read: Vec<String> = read.iter().map(|segment| (*segment).to_owned()).collect();
        PatchOp::parse(&op).expect("op").touches(&read, shallow)
    };
    let replace = json!({"op": "replace", "path": "/value/a/b", "value": 1});
    for (read, deep, shallow) in [
        (&[][..], true, false),
        (&["value"], true, false),
        (&["value", "a"], true, true),
        (&["value", "a", "b"], true, true),
        (&["value", "a", "b", "c"], true, true),
        (&["value", "b"], false, false),
    ] {
        assert_eq!(touches(replace.clone(), read, false), deep, "{read:?}");
        assert_eq!(touches(replace.clone(), read, true), shallow, "{read:?}");
    }
    let add = json!({"op": "add", "path": "/value/a/b", "value": 1});
    assert!(touches(add, &["value"], true), "may make a");
    let insert = json!({"op": "add", "path": "/value/list/0", "value": 1});
    assert!(
        touches(insert, &["value", "list", "1"], false),
        "moves the second element"
    );
    let shift = json!({"op": "move", "from": "/value/x", "path": "/value/y"});
    assert!(touches(shift.clone(), &["value", "x"], false));
    assert!(touches(shift.clone(), &["value", "y", "z"], false));
    assert!(!touches(shift, &["value", "w"], false));
    let count = json!({"op": "increment", "path": "/value/a/n", "by": 1, "createsKey": true});
    assert!(touches(count, &["value"], true));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        (-3..4_i32).prop_map(Value::from),
        "[ab]".prop_map(Value::String),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            prop::collection::btree_map("[abc]", inner, 0..3)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn any_path() -> impl Strategy<Value = String> {
    prop::collection::vec("[abc012-]", 0..4).prop_map(|segments| {
        segments
            .iter()
            .map(|segment| format!("/{segment}"))
            .collect()
    })
}

fn any_op() -> impl Strategy<Value = Value> {
    let kind = prop::sample::select(vec![
        "replace",
        "add",
        "remove",
        "move",
        "splice",
        "append",
        "add-unique",
        "remove-by-value",
        "increment",
    ]);
    (kind, any_path(), any_path(), any_value(), 0..4_u32).prop_map(|(op, path, from, value, number)| {
        json!({
            "op": op, "path": path, "from": from, "value": value, "values": [value], "add": [value],
            "index": number, "remove": number, "by": i64::from(number) + 1,
        })
    })
}

fn at<'v>(document: &'v Value, path: &[String]) -> Option<&'v Value> {
    path.iter()
        .try_fold(document, |value, segment| match value {
            Value::Object(members) => members.get(segment),
            Value::Array(items) => items.get(parse_index(segment)?),
            _ => None,
        })
}

proptest! {
    #[test]
    fn what_an_operation_does_not_touch_stays_as_it_was(
        members in prop::collection::btree_map("[abc]", any_value(), 0..4),
        op in any_op(),
        read in prop::collection::vec("[abc012]", 0..4),
    ) {
        let before = Value::Object(members.into_iter().collect());
        let parsed = PatchOp::parse(&op).expect("well-formed");
        let mut after = before.clone();
        if apply(&mut after, std::slice::from_ref(&parsed), &mut Budget::new()).is_ok()
            && !parsed.touches(&read, false)
        {
            prop_assert_eq!(at(&before, &read), at(&after, &read));
        }
    }
}
