//! The exercise's argument file.

use std::path::Path;

use memory_config::{Fixture, FixtureSeed};

use crate::{did, lines};

fn text() -> String {
    format!(
        "{{\"port\":8444,\"seed\":11,\"certificate\":\"c.pem\",\"key\":\"k.pem\",\"directory\":\"d.json\",\"store\":\"store\",\
        \"router\":\"{}\",\"space\":\"{}\",\"principals\":[\"{}\"],\"modernCellRep\":true}}",
        did(21),
        did(31),
        did(41)
    )
}

fn parse(text: &str) -> Result<Fixture, Vec<String>> {
    Fixture::parse(text, Path::new("/f/x")).map_err(|errors| lines(&errors))
}

#[test]
fn reads_a_fixture() {
    let fixture = parse(&text()).unwrap();
    assert_eq!(fixture.port, 8444);
    assert_eq!(fixture.seed, FixtureSeed::Byte(11));
    assert_eq!(fixture.seed.identity().unwrap().did().as_str(), did(11));
    assert_eq!(fixture.certificate, Path::new("/f/c.pem"));
    assert_eq!(fixture.store, Path::new("/f/store"));
    assert_eq!(fixture.router.as_str(), did(21));
    assert_eq!(fixture.space.unwrap().as_str(), did(31));
    assert_eq!(fixture.principals.len(), 1);
    assert!(fixture.modern_cell_rep);
}

#[test]
fn takes_a_seed_file_and_no_optional_members() {
    let folder = tempfile::tempdir().unwrap();
    let seed = folder.path().join("seed");
    std::fs::write(&seed, [12; 32]).unwrap();
    let text = text();
    let required = text
        .split_once(",\"space\"")
        .unwrap()
        .0
        .replace(":11,", &format!(":{:?},", seed.display().to_string()));
    let fixture = parse(&format!("{required}}}")).unwrap();
    assert_eq!(fixture.seed.identity().unwrap().did().as_str(), did(12));
    assert_eq!(
        (
            fixture.space,
            fixture.principals.len(),
            fixture.modern_cell_rep
        ),
        (None, 0, false)
    );
    assert_eq!(
        parse(&format!("{required},\"space\":null}}"))
            .unwrap()
            .space,
        None
    );
}

#[test]
fn names_each_fault_exactly() {
    let table = [
        (
            ":8444",
            ":80000",
            "/f/x:1:9: port: found 80000, allowed 1..=65535",
        ),
        (
            "\"seed\":11",
            "\"seed\":256",
            "/f/x:1:21: seed: found 256, allowed 0..=255",
        ),
        (
            "\"seed\":11",
            "\"seed\":true",
            "/f/x:1:21: seed: found true, allowed a path",
        ),
        (
            "\"port\":8444,",
            "",
            "/f/x:1:1: port: found nothing, allowed this member, it is required",
        ),
        (
            "\"store\"",
            "\"stor\"",
            "/f/x:1:1: store: found nothing, allowed this member, it is required",
        ),
        (
            "\"modernCellRep\":true",
            "\"modernCellRep\":1",
            "/f/x:1:322: modernCellRep: found 1, allowed true or false",
        ),
        (
            "\"principals\":[",
            "\"principals\":[1,",
            "/f/x:1:246: principals[0]: found 1, allowed a canonical did:key of an Ed25519 key",
        ),
        (
            "\"port\":8444,",
            "\"port\":8444;",
            "/f/x:1:13: found \";\", allowed \",\"",
        ),
    ];
    for (from, to, expected) in table {
        let faults = parse(&text().replacen(from, to, 1)).unwrap_err();
        assert_eq!(faults.first().unwrap(), expected, "{to}");
    }
}
