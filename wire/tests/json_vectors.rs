//! Strict JSON against the files of JSONTestSuite (`shared/vectors/json`).
//!
//! `y_*` files must parse, `n_*` files must be refused. The `i_*` files are left to the implementation; what this one does
//! with each is written down here, so that a change of mind shows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::PathBuf;

use memory_wire::json::{JsonFault, JsonLimits, parse, validate};

/// `y_*` files that strict JSON refuses on purpose: an object repeats a key.
const REPEATED_KEYS: [&str; 2] = [
    "y_object_duplicated_key.json",
    "y_object_duplicated_key_and_value.json",
];

/// `i_*` files that are accepted: numbers that lose precision or vanish, but stay finite.
const ACCEPTED: [&str; 4] = [
    "i_number_double_huge_neg_exp.json",
    "i_number_real_underflow.json",
    "i_number_too_big_pos_int.json",
    "i_number_very_big_negative_int.json",
];

#[test]
fn every_file_is_judged_as_its_name_says() {
    let Some(folder) = vectors() else {
        return;
    };
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = fs::read(&path).unwrap();
        let limits = JsonLimits::default();
        let fault = parse(&text, &limits).err().map(|error| error.fault);
        assert_eq!(
            validate(&text, &limits).err().map(|error| error.fault),
            fault,
            "{name}"
        );
        match name.get(..2) {
            Some("y_") if REPEATED_KEYS.contains(&name.as_str()) => {
                assert_eq!(fault, Some(JsonFault::DuplicateKey), "{name}");
            }
            Some("y_") => assert_eq!(fault, None, "{name}"),
            Some("n_") => assert!(fault.is_some(), "{name}"),
            Some("i_") => {
                let accepted = ACCEPTED.contains(&name.as_str());
                assert_eq!(fault.is_none(), accepted, "{name}: {fault:?}");
                check_reason(&name, &text, fault);
            }
            _ => panic!("unexpected file {name}"),
        }
        if std::str::from_utf8(&text).is_err() {
            assert_eq!(fault, Some(JsonFault::InvalidUtf8), "{name}");
        }
        seen += 1;
    }
    assert!(seen > 150, "only {seen} files");
}

/// The refused `i_*` files are refused for the reason that their names tell.
fn check_reason(name: &str, text: &[u8], fault: Option<JsonFault>) {
    let Some(fault) = fault else {
        return;
    };
    let expected = if std::str::from_utf8(text).is_err() {
        JsonFault::InvalidUtf8
    } else if name.contains("nested_arrays") {
        JsonFault::Depth
    } else if name.contains("number") {
        JsonFault::NumberRange
    } else if name.contains("surrogate") {
        JsonFault::LoneSurrogate
    } else {
        return;
    };
    assert_eq!(fault, expected, "{name}");
}

/// The folder of the vectors; without it the test passes with a note, except in CI.
fn vectors() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/vectors/json");
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(std::env::var_os("CI").is_none(), "no vectors in CI");
    println!("skipped: no vectors at {}", folder.display());
    None
}
