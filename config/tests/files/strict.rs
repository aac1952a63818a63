//! The JSON reader is strict: compared with a general one on mutations of good files, and on rules of its own.

use std::path::Path;

use memory_config::Fixture;

use crate::{did, lines};

/// A fixture is wrapped around a value under an unknown member: reading must go through it strictly.
fn around(value: &str) -> String {
    format!("{{\"extra\":{value},\"router\":\"{}\"}}", did(1))
}

/// Whether the reader got to the end of the text: it then reports members that are missing.
fn reads_through(text: &str) -> bool {
    let errors = Fixture::parse(text, Path::new("x")).unwrap_err();
    let lines = lines(&errors);
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    has("port: found nothing") && !has("found text after the end")
}

#[test]
fn agrees_with_a_general_reader() {
    let good = [
        "0",
        "-0",
        "10",
        "-1.5e+10",
        "1E5",
        "0.0",
        "\"\"",
        "\"\\u00e9\\n\\/\"",
        "\"\\ud83d\\ude00\"",
        "[]",
        "[1,[2],{}]",
        " { } ",
        "{\"a\":{\"b\":null}}",
        "true",
        "false",
        "null",
        "\t\n\r [ 1 , 2 ] ",
    ];
    let bad = [
        "",
        "01",
        "-",
        "1.",
        ".5",
        "+1",
        "1e",
        "0x1",
        "NaN",
        "Infinity",
        "tru",
        "True",
        "nul",
        "'a'",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\n\"",
        "\"\\",
        "[",
        "[1",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{",
        "{a:1}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{,}",
        "1 1",
        "/*c*/1",
        "\u{a0}1",
        "\u{feff}1",
        "]",
        "}",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "\"\\ud800x\"",
    ];
    for value in good {
        assert!(serde_json::from_str::<serde_json::Value>(&around(value)).is_ok());
        assert!(reads_through(&around(value)), "{value}");
    }
    for value in bad {
        assert!(
            serde_json::from_str::<serde_json::Value>(&around(value)).is_err(),
            "{value}"
        );
        assert!(!reads_through(&around(value)), "{value}");
    }
}

#[test]
fn agrees_with_a_general_reader_on_every_single_change() {
    let sample = around("{\"k\":[1,-2.5e3,true,null,\"t\\u0041\\\\\"],\"l\":{}}");
    for at in 0..sample.len() {
        for put in [
            "", "\"", "\\", "{", "}", "[", "]", ",", ":", "0", "e", "-", ".", " ", "\n", "x",
            "\u{1}",
        ] {
            let text = format!("{}{put}{}", &sample[..at], &sample[at + 1..]);
            let general = serde_json::from_str::<serde_json::Value>(&text);
            let is_object = general.as_ref().is_ok_and(serde_json::Value::is_object);
            assert_eq!(reads_through(&text), is_object, "{text}: {general:?}");
        }
    }
}

#[test]
fn refuses_every_truncation() {
    let whole = around("[1]");
    for end in 0..whole.len() {
        assert!(!reads_through(&whole[..end]), "{}", &whole[..end]);
    }
}

#[test]
fn bounds_nesting() {
    let nested = |depth: usize| around(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    // The root is level 0, the value of its member level 1, and an empty array has no level below.
    assert!(reads_through(&nested(64)));
    assert!(!reads_through(&around(&format!(
        "{}1{}",
        "[".repeat(64),
        "]".repeat(64)
    ))));
    let errors = Fixture::parse(&nested(100_000), Path::new("x")).unwrap_err();
    assert!(
        lines(&errors)
            .iter()
            .any(|line| line.ends_with("found nesting that is too deep, allowed 64 levels"))
    );
}

#[test]
fn refuses_duplicates_after_unescaping_at_any_depth() {
    for value in [
        "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}",
        "[{\"b\":{\"a\":1,\"a\":2}}]",
    ] {
        let errors = Fixture::parse(&around(value), Path::new("x")).unwrap_err();
        assert!(
            lines(&errors)
                .iter()
                .any(|line| line.ends_with("found a duplicate member, allowed each member once")),
            "{value}"
        );
    }
}
