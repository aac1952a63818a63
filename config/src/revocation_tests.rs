//! Tests of `revocation`; compiled under `#[cfg(test)]` alone.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::Identity;

fn did(byte: u8) -> Did {
    Identity::from_seed([byte; 32]).unwrap().did()
}

fn entry(since: u64, reason: Option<&str>) -> Revocation {
    Revocation {
        since,
        reason: reason.map(str::to_owned),
    }
}

fn parse(text: &str) -> Result<RevocationList, String> {
    RevocationList::parse(text, Path::new("revoked")).map_err(|errors| errors.to_string())
}

#[test]
fn reads_what_it_writes() {
    let mut list = RevocationList::default();
    assert_eq!(parse(&list.to_text()).unwrap(), list);
    assert!(list.insert(did(1), entry(0, None)));
    assert!(list.insert(
        did(2),
        entry(MAX_SECOND, Some(r#"he said "no" \ left: ünï"#))
    ));
    let longest = "\"".repeat(MAX_REASON_LEN);
    assert!(list.insert(did(3), entry(MAX_SECOND, Some(&longest))));
    let text = list.to_text();
    assert_eq!(parse(&text).unwrap(), list);
    assert!(
        text.lines().all(|line| line.len() < MAX_ENTRY_LEN),
        "the bound of an entry holds"
    );
    // Any JSON reader understands it.
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["revoked"].as_array().unwrap().len(), 3);
}

#[test]
fn says_where_a_fault_is() {
    let good = format!("{{\"principal\":\"{}\",\"since\":5}}", did(1));
    for (text, faults) in [
        (String::new(), &["revoked:1:1: found the end of the file"][..]),
        ("{\"version\":1,\"revoked\":[\n".to_owned(), &["revoked:2:1:"]),
        ("{\"version\":2,\"revoked\":[]}".to_owned(), &["revoked:1:12: version: found 2"]),
        ("{\"version\":1}".to_owned(), &["revoked:1:1: revoked: found nothing"]),
        (
            format!("{{\"version\":1,\"revoked\":[\n{good},\n{good}\n]}}"),
            &["revoked:3:1: revoked[1]: found a duplicate principal"],
        ),
        (
            "{\"version\":1,\"revoked\":[\n{\"principal\":\"did:key:z6Mk\",\"since\":5},\n{\"principal\":5,\"sinc\":-1,\"reason\":\"\\u0007\"}]}".to_owned(),
            &["revoked:2:14: revoked[0].principal: found \"did:key:z6Mk\"",
              "revoked:3:1: revoked[1].since: found nothing",
              "revoked:3:14: revoked[1].principal: found 5",
              "the nearest is since",
              "revoked[1].reason: found \"\\u{7}\""],
        ),
        (format!("{{\"version\":1,\"revoked\":[{good}]}} x"), &["found text after the end"]),
    ] {
        let found = parse(&text).unwrap_err();
        for fault in faults {
            assert!(found.contains(fault), "{text}: {found}");
        }
    }
}

#[test]
fn its_count_is_bounded() {
    let line = format!("{{\"principal\":\"{}\",\"since\":5}},", did(1));
    let text = format!(
        "{{\"version\":1,\"revoked\":[{}",
        line.repeat(MAX_REVOCATIONS + 1)
    );
    // The duplicates are faults too: the last is not read any more.
    let found = parse(&text).unwrap_err();
    assert!(found.contains("more faults"), "{found}");
    for reason in ["", "a\nb", "\u{1b}[2J", &"x".repeat(257)] {
        assert_eq!(parse_reason(reason), None, "{reason:?}");
    }
}

#[test]
fn a_missing_file_is_an_empty_list_and_an_unreadable_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(REVOCATION_FILE);
    let (list, version) = RevocationList::load(&path).unwrap();
    assert!(list.is_empty());
    assert_eq!(version, RevocationVersion::Missing);
    assert!(RevocationList::load(&folder.path().join("none/revoked")).is_ok());

    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    assert!(RevocationList::load(&path).is_err());
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(RevocationList::load(&path).is_err());
    fs::remove_dir(&path).unwrap();
    fs::write(&path, [b'{', 0xff]).unwrap();
    let found = RevocationList::load(&path).unwrap_err().to_string();
    assert!(found.contains("revoked:1:2:"), "{found}");
    let long = File::create(&path).unwrap();
    long.set_len(MAX_FILE_LEN + 1).unwrap();
    let found = RevocationList::load(&path).unwrap_err().to_string();
    assert!(found.contains("at most 16777216 bytes"), "{found}");
}

#[test]
fn changes_are_idempotent_private_and_change_the_version() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("deep/state");
    let file = RevocationFile::new(&state);
    assert_eq!(file.restore(&did(1)).unwrap(), None);
    assert!(!state.exists(), "nothing is made to take nothing off");
    assert_eq!(file.revoke(did(1), entry(5, Some("first"))).unwrap(), None);
    let before = RevocationVersion::of(&file.path()).unwrap();
    assert_eq!(
        file.revoke(did(1), entry(6, None)).unwrap(),
        Some(entry(5, Some("first")))
    );
    assert_eq!(RevocationVersion::of(&file.path()).unwrap(), before);
    file.revoke(did(2), entry(7, None)).unwrap();
    let (list, version) = RevocationList::load(&file.path()).unwrap();
    assert_ne!(version, before);
    assert_eq!(list.len(), 2);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&file.path())), (0o700, 0o600));
    let mut names: Vec<_> = fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["revoked", "revoked.lock"]);

    assert!(file.restore(&did(1)).unwrap().is_some());
    assert_eq!(file.restore(&did(1)).unwrap(), None);
    assert_eq!(RevocationList::load(&file.path()).unwrap().0.len(), 1);
}

#[test]
fn an_invalid_list_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = RevocationFile::new(folder.path());
    fs::write(file.path(), "{").unwrap();
    let error = file.revoke(did(1), entry(5, None)).unwrap_err();
    assert!(matches!(error, RevocationError::Invalid(_)), "{error}");
    assert!(error.to_string().contains("revoked:1:2:"), "{error}");
    assert!(file.restore(&did(1)).is_err());
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "{");
}

#[test]
fn what_a_writer_left_behind_is_neither_read_nor_followed() {
    let folder = tempfile::tempdir().unwrap();
    let file = RevocationFile::new(folder.path());
    let elsewhere = folder.path().join("elsewhere");
    fs::write(&elsewhere, "kept").unwrap();
    std::os::unix::fs::symlink(&elsewhere, folder.path().join("revoked.next")).unwrap();
    file.revoke(did(1), entry(5, None)).unwrap();
    assert_eq!(fs::read_to_string(elsewhere).unwrap(), "kept");
    assert!(
        RevocationList::load(&file.path())
            .unwrap()
            .0
            .contains(&did(1))
    );
}

#[test]
fn writers_beside_each_other_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = RevocationFile::new(folder.path());
    std::thread::scope(|scope| {
        for byte in 1..=16 {
            let file = &file;
            scope.spawn(move || {
                file.revoke(did(byte), entry(u64::from(byte), None))
                    .unwrap()
            });
        }
    });
    let (list, _) = RevocationList::load(&file.path()).unwrap();
    assert_eq!(list.len(), 16);
}
