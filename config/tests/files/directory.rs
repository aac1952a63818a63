//! The directory file.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use memory_config::{Directory, FileIdentity, Placement};
use memory_wire::Did;
use tempfile::TempDir;

use crate::{certificate, did, lines};

const BASE58: &str = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/// A folder with two certificates.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.pem", "b.pem"] {
        std::fs::write(folder.path().join(name), certificate("localhost")).unwrap();
    }
    folder
}

/// A good file of two toolsheds and two spaces, one member a line.
fn good() -> String {
    format!(
        "{{\"version\":1,\n\"deployment\":\"local-mode-a\",\n\"toolsheds\":[\n\
        {{\"name\":\"a\",\"did\":\"{}\",\"address\":\"127.0.0.1:8444\",\"server_name\":\"localhost\",\"certificate\":\"a.pem\"}},\n\
        {{\"name\":\"b\",\"did\":\"{}\",\"address\":\"127.0.0.1:8445\",\"server_name\":\"localhost\",\"certificate\":\"b.pem\"}}],\n\
        \"spaces\":{{\n\"{}\":{{\"toolshed\":0,\"epoch\":1}},\n\"{}\":{{\"toolshed\":1,\"epoch\":9007199254740991}}}}}}\n",
        did(11),
        did(12),
        did(31),
        did(32)
    )
}

fn with_unlisted(index: impl Fn(char) -> usize) -> String {
    let entries: Vec<_> = BASE58
        .chars()
        .map(|character| format!("\"{character}\":{}", index(character)))
        .collect();
    let rule = format!(
        "}}}},\"unlisted\":{{\"epoch\":7,\"last_character\":{{{}}}}}}}",
        entries.join(",")
    );
    good().replace("}}}", &rule)
}

fn parse(folder: &Path, text: &str) -> Result<Directory, Vec<String>> {
    let parsed = Directory::parse(text, &folder.join("d"), Some("local-mode-a"), None);
    let prefix = format!("{}/d:", folder.display());
    parsed.map_err(|errors| {
        let short = |line: String| {
            line.replace(&prefix, "")
                .replace(&format!("{}/", folder.display()), "")
        };
        lines(&errors).into_iter().map(short).collect()
    })
}

fn parsed_did(byte: u8) -> Did {
    Did::parse(&did(byte)).unwrap()
}

#[test]
fn places_listed_spaces() {
    let folder = folder();
    let directory = parse(folder.path(), &good()).unwrap();
    assert_eq!(directory.deployment(), "local-mode-a");
    assert_eq!(directory.toolsheds().len(), 2);
    assert_eq!(directory.toolshed(1).unwrap().name, "b");
    assert_eq!(directory.toolshed(2), None);
    assert_eq!(directory.toolshed_index(&parsed_did(12)), Some(1));
    assert_eq!(directory.toolshed(0).unwrap().certificate.len(), 1);
    assert_eq!(
        directory.place(&parsed_did(31)),
        Some(Placement {
            toolshed: 0,
            epoch: 1
        })
    );
    assert_eq!(directory.epoch_of(&parsed_did(32)), Some((1 << 53) - 1));
    assert_eq!(directory.place(&parsed_did(99)), None);
    assert_eq!(
        (
            directory.space_count(),
            directory.spaces().count(),
            directory.has_unlisted()
        ),
        (2, 2, false)
    );
}

#[test]
fn places_unlisted_spaces_by_their_last_character() {
    let folder = folder();
    let text = with_unlisted(|character| usize::from(character.is_ascii_digit()));
    let directory = parse(folder.path(), &text).unwrap();
    for byte in 100..200 {
        let space = parsed_did(byte);
        let toolshed = u16::from(space.last_character().is_ascii_digit());
        assert_eq!(
            directory.place(&space),
            Some(Placement { toolshed, epoch: 7 })
        );
    }
    // A listed space keeps its place.
    assert_eq!(directory.epoch_of(&parsed_did(31)), Some(1));
}

#[test]
fn topology_is_all_but_placement() {
    let folder = folder();
    let directory = parse(folder.path(), &good()).unwrap();
    let same = |text: &str| directory.same_topology(&parse(folder.path(), text).unwrap());
    assert!(same(&good().replace("\"epoch\":1}", "\"epoch\":2}")));
    assert!(same(&with_unlisted(|_| 0)));
    assert!(!same(&good().replace("8445", "8446")));
    assert!(!same(&good().replace("\"name\":\"b\"", "\"name\":\"c\"")));
    assert!(!same(&good().replace("b.pem", "a.pem")));
}

#[test]
fn takes_toolsheds_after_what_points_at_them() {
    let folder = folder();
    let text = good();
    let (before, after) = text.split_once("\"toolsheds\"").unwrap();
    let (toolsheds, spaces) = after.split_once("\"spaces\"").unwrap();
    let spaces = spaces.trim_end().strip_suffix('}').unwrap();
    let toolsheds = toolsheds.trim_end().trim_end_matches(',');
    let turned = format!("{before}\"spaces\"{spaces},\"toolsheds\"{toolsheds}}}");
    assert_eq!(
        parse(folder.path(), &turned).unwrap(),
        parse(folder.path(), &good()).unwrap()
    );
}

#[test]
fn names_each_fault_exactly() {
    let folder = folder();
    let did_31 = did(31);
    let table = [
        ("\"version\":1", "\"version\":2", "1:12: version: found 2, allowed 1".to_owned()),
        ("\"version\":1,\n", "", "1:1: version: found nothing, allowed this member, it is required".to_owned()),
        ("local-mode-a", "other", "2:14: deployment: found \"other\", allowed the deployment \"local-mode-a\"".to_owned()),
        ("local-mode-a", "two words", "2:14: deployment: found \"two words\", allowed 1..=256 printable ASCII characters without blanks".to_owned()),
        ("\"name\":\"b\"", "\"name\":\"a\"", "5:9: toolsheds[1].name: found a value that an earlier toolshed has, allowed a distinct one".to_owned()),
        ("8445", "8444", "5:88: toolsheds[1].address: found a value that an earlier toolshed has, allowed a distinct one".to_owned()),
        ("127.0.0.1:8445", "localhost:8445", "5:88: toolsheds[1].address: found \"localhost:8445\", allowed IP:port with a port of 1..=65535, IPv6 in brackets".to_owned()),
        ("\"127.0.0.1:8445\"", "8445", "5:88: toolsheds[1].address: found 8445, allowed IP:port with a port of 1..=65535, IPv6 in brackets".to_owned()),
        ("\"server_name\":\"localhost\",\"certificate\":\"b.pem\"", "\"server_name\":\"a b\",\"certificate\":\"b.pem\"", "5:119: toolsheds[1].server_name: found \"a b\", allowed a host name or an IP address".to_owned()),
        ("b.pem", "c.pem", "5:145: toolsheds[1].certificate: found \"c.pem\", allowed a file of certificates (c.pem: cannot be read: No such file or directory (os error 2))".to_owned()),
        ("\"epoch\":1}", "\"epoch\":0}", format!("7:82: spaces.{did_31}.epoch: found 0, allowed 1..=9007199254740991")),
        ("\"epoch\":1}", "\"epoch\":1.0}", format!("7:82: spaces.{did_31}.epoch: found 1.0, allowed 1..=9007199254740991")),
        ("\"epoch\":1}", "\"epoch\":9007199254740992}", format!("7:82: spaces.{did_31}.epoch: found 9007199254740992, allowed 1..=9007199254740991")),
        ("\"epoch\":1}", "\"epoch\":1,\"epoch\":1}", format!("7:84: spaces.{did_31}.epoch: found a duplicate member, allowed each member once")),
        ("\"epoch\":1}", "\"\\u0065poch\":1}", String::new()),
        ("\"toolshed\":0", "\"toolshed\":2", format!("7:72: spaces.{did_31}.toolshed: found 2, allowed 0..=1, the toolsheds")),
        ("\"toolshed\":0", "\"toolshed\":32", format!("7:72: spaces.{did_31}.toolshed: found 32, allowed 0..=31")),
        ("\"toolshed\":0", "\"toolshed\":null", format!("7:72: spaces.{did_31}.toolshed: found null, allowed 0..=31")),
        ("{\"toolshed\":0,\"epoch\":1}", "[]", format!("7:60: spaces.{did_31}: found an array, allowed an object")),
        (&did(32), &did_31, format!("8:1: spaces.{did_31}: found a duplicate space, allowed each space once")),
        ("\"spaces\":{\n\"did", "\"spaces\":{\n\"DID", format!("7:1: spaces.{}: found a name that is no DID, allowed a canonical did:key of an Ed25519 key", did_31.replace("did:", "DID:"))),
        ("}}}\n", "}}}}", "8:101: found text after the end, allowed nothing more".to_owned()),
        ("}}}\n", "}}", "8:100: found the end of the file, allowed \",\"".to_owned()),
        ("\"epoch\":1}", "\"epoch\":01}", format!("7:82: spaces.{did_31}.epoch: found 01, allowed a JSON number")),
        ("\"epoch\":1}", "\"epoch\":1,}", format!("7:84: spaces.{did_31}: found a comma before the end, allowed no trailing comma")),
    ];
    for (from, to, expected) in table {
        let text = good().replacen(from, to, 1);
        assert_ne!(text, good(), "{from}");
        match parse(folder.path(), &text) {
            Ok(_) => assert_eq!(expected, "", "{to} was taken"),
            Err(faults) => assert_eq!(faults, [expected], "{to}"),
        }
    }
}

#[test]
fn a_misspelt_member_is_unknown_and_missing() {
    let folder = folder();
    let faults = parse(folder.path(), &good().replace("deployment", "deploiment")).unwrap_err();
    let expected = [
        "1:1: deployment: found nothing, allowed this member, it is required",
        "2:1: deploiment: found an unknown member (= \"local-mode-a\"), allowed a known member, the nearest is deployment",
    ];
    assert_eq!(faults, expected);
}

#[test]
fn names_each_fault_of_the_unlisted_rule() {
    let folder = folder();
    let table = [
        (
            "\"z\":0",
            "\"y\":0",
            vec![
                "found a duplicate character, allowed each character once",
                "found no entry for z, allowed all 58 base58btc characters",
            ],
        ),
        (
            ",\"z\":0",
            "",
            vec!["found no entry for z, allowed all 58 base58btc characters"],
        ),
        (
            "\"z\":0",
            "\"z\":5",
            vec!["found 5, allowed 0..=1, the toolsheds"],
        ),
        (
            "\"z\":0",
            "\"z\":0,\"0\":0",
            vec!["found a name that is no base58btc character, allowed one base58btc character"],
        ),
        (
            "\"z\":0",
            "\"z\":0,\"zz\":0",
            vec!["found a name that is no base58btc character, allowed one base58btc character"],
        ),
        (
            "\"epoch\":7",
            "\"epoch\":-7",
            vec!["found -7, allowed 1..=9007199254740991"],
        ),
        (
            "\"epoch\":7,",
            "",
            vec!["found nothing, allowed this member, it is required"],
        ),
    ];
    for (from, to, expected) in table {
        let text = with_unlisted(|_| 0).replacen(from, to, 1);
        let mut faults = parse(folder.path(), &text).unwrap_err();
        faults.sort();
        let found: Vec<_> = faults
            .iter()
            .map(|fault| fault.split_once(": found").unwrap().1)
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|text| text.strip_prefix("found").unwrap())
            .collect();
        let mut found_sorted = found.clone();
        found_sorted.sort_unstable();
        let mut expected_sorted = expected.clone();
        expected_sorted.sort_unstable();
        assert_eq!(found_sorted, expected_sorted, "{to}");
    }
}

#[test]
fn bounds_the_number_of_toolsheds() {
    let folder = folder();
    let text = |count: u8| {
        let entry = |index: u8| {
            format!(
                "{{\"name\":\"t{index}\",\"did\":\"{}\",\"address\":\"127.0.0.1:{}\",\"server_name\":\"localhost\",\"certificate\":\"a.pem\"}}",
                did(index),
                9000 + u16::from(index)
            )
        };
        let entries: Vec<_> = (0..count).map(entry).collect();
        format!(
            "{{\"version\":1,\"deployment\":\"local-mode-a\",\"spaces\":{{}},\"toolsheds\":[{}]}}",
            entries.join(",")
        )
    };
    assert_eq!(
        parse(folder.path(), &text(32)).unwrap().toolsheds().len(),
        32
    );
    assert_eq!(
        parse(folder.path(), &text(0)).unwrap_err(),
        ["1:66: toolsheds: found 0 toolsheds, allowed 1..=32"]
    );
    assert_eq!(
        parse(folder.path(), &text(33)).unwrap_err(),
        ["1:66: toolsheds: found 33 toolsheds, allowed 1..=32"]
    );
}

#[test]
fn lists_a_bounded_number_of_faults() {
    let folder = folder();
    let mut spaces = String::new();
    for index in 0..1000 {
        write!(spaces, ",\n\"{index}\":1").unwrap();
    }
    let faults = parse(
        folder.path(),
        &good().replace("}}}", &format!("}}{spaces}}}}}")),
    )
    .unwrap_err();
    assert_eq!(faults.len(), 201);
    assert!(
        faults
            .last()
            .unwrap()
            .ends_with("found 800 more faults, allowed none")
    );
}

#[test]
fn reads_again_only_what_changed() {
    let folder = folder();
    let path: PathBuf = folder.path().join("directory.json");
    std::fs::write(&path, good()).unwrap();
    let (directory, identity) = Directory::load(&path, None).unwrap();
    assert_eq!(FileIdentity::of(&path).unwrap(), identity);
    assert!(
        directory
            .read_if_changed(&path, &identity)
            .unwrap()
            .is_none()
    );

    // A new file of the same length, by rename as writers do.
    let next = folder.path().join("directory.json.next");
    std::fs::write(&next, good().replace("\"epoch\":1}", "\"epoch\":2}")).unwrap();
    std::fs::rename(&next, &path).unwrap();
    let (moved, moved_identity) = directory
        .read_if_changed(&path, &identity)
        .unwrap()
        .unwrap();
    assert_eq!(moved.epoch_of(&parsed_did(31)), Some(2));
    assert!(moved.same_topology(&directory));
    assert_ne!(moved_identity, identity);

    // Half a file, another deployment, no file: faults, and the old snapshot is still there.
    std::fs::write(&path, &good()[..300]).unwrap();
    assert!(moved.read_if_changed(&path, &moved_identity).is_err());
    std::fs::write(&path, good().replace("local-mode-a", "other")).unwrap();
    let errors = moved.read_if_changed(&path, &moved_identity).unwrap_err();
    let expected = format!(
        "{}:2:14: deployment: found \"other\", allowed the deployment \"local-mode-a\"",
        path.display()
    );
    assert_eq!(lines(&errors), [expected]);
    std::fs::remove_file(&path).unwrap();
    let errors = moved.read_if_changed(&path, &moved_identity).unwrap_err();
    assert_eq!(
        lines(&errors),
        [format!(
            "{}: found no such file, allowed a readable file",
            path.display()
        )]
    );
    assert_eq!(moved.epoch_of(&parsed_did(31)), Some(2));
}

#[test]
fn a_previous_snapshot_does_not_loosen_the_checks() {
    let folder = folder();
    let file = folder.path().join("d");
    let previous = parse(folder.path(), &good()).unwrap();
    let again = Directory::parse(&good(), &file, None, Some(&previous)).unwrap();
    assert_eq!(again, previous);
    let space = did(31);
    let (prefix, last) = space.split_at(space.len() - 1);
    let wrong_last = BASE58
        .chars()
        .find(|character| !last.starts_with(*character))
        .unwrap();
    for wrong in [
        format!("{prefix}{wrong_last}"),
        prefix.to_owned(),
        format!("{space}1"),
        space.replace(":z", ":z1"),
        space.to_uppercase(),
    ] {
        // One wrong last character in two still is a point; it then is another space, never the known one.
        let text = good().replace(&space, &wrong);
        match Directory::parse(&text, &file, None, Some(&previous)) {
            Ok(directory) => assert_eq!(directory.place(&parsed_did(31)), None),
            Err(errors) => assert!(errors.to_string().contains("no DID"), "{errors}"),
        }
    }
}
