//! Compiled under `#[cfg(test)]` alone.
use super::*;
use memory_config::Identity;
use std::fs;
use tempfile::TempDir;

fn did(byte: u8) -> Did {
    Identity::from_seed([byte; 32]).unwrap().did()
}

fn epoch(byte: u8) -> EpochId {
    EpochId::new([byte; 16])
}

fn numbered(number: u32) -> EpochId {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    EpochId::new(bytes)
}

fn place() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("router-epochs.jsonl");
    (folder, path)
}

#[test]
fn an_epoch_cannot_be_used_again_while_it_is_recorded() {
    let (_folder, path) = place();
    let mut ledger = Ledger::open(&path, 1000).unwrap();
    ledger.record_epoch(&did(1), &epoch(1), 1000).unwrap();
    for router in [did(1), did(2)] {
        let again = ledger.record_epoch(&router, &epoch(1), 1000);
        assert!(matches!(again, Err(LedgerError::EpochReused)));
    }
    ledger.retire(&did(1), &epoch(1), 1010).unwrap();
    let early = ledger.record_epoch(&did(1), &epoch(1), 1010 + EPOCH_MEMORY - 1);
    assert!(matches!(early, Err(LedgerError::EpochReused)));
    ledger
        .record_epoch(&did(1), &epoch(1), 1010 + EPOCH_MEMORY)
        .unwrap();
}

#[test]
fn a_restart_retires_every_live_epoch_and_drops_claims() {
    let (_folder, path) = place();
    let mut ledger = Ledger::open(&path, 1000).unwrap();
    ledger.record_epoch(&did(1), &epoch(1), 1000).unwrap();
    drop(ledger);
    let mut text = fs::read_to_string(&path).unwrap();
    assert_eq!(
        text,
        format!("[\"epoch\",\"{}\",\"{}\"]\n", did(1), epoch(1))
    );
    text.push_str("[\"claim\",\"old\",1,2,3]\n");
    fs::write(&path, text).unwrap();
    let mut ledger = Ledger::open(&path, 2000).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(!text.contains("claim"));
    assert!(text.contains(&format!(
        "[\"retire\",\"{}\",\"{}\",2000]",
        did(1),
        epoch(1)
    )));
    let again = ledger.record_epoch(&did(1), &epoch(1), 2779);
    assert!(matches!(again, Err(LedgerError::EpochReused)));
    drop(ledger);
    let _ledger = Ledger::open(&path, 2780).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
}

#[test]
fn a_revocation_is_for_good() {
    let (_folder, path) = place();
    let mut ledger = Ledger::open(&path, 1000).unwrap();
    ledger.revoke(&did(1)).unwrap();
    ledger.revoke(&did(1)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    drop(ledger);
    let mut ledger = Ledger::open(&path, 1_000_000).unwrap();
    assert!(ledger.is_revoked(&did(1)));
    let refused = ledger.record_epoch(&did(1), &epoch(1), 1_000_000);
    assert!(matches!(refused, Err(LedgerError::Revoked)));
    ledger.record_epoch(&did(2), &epoch(1), 1_000_000).unwrap();
}

#[test]
fn holds_exactly_its_bound_of_epochs() {
    let (_folder, path) = place();
    let mut lines = String::new();
    for number in 0..1023 {
        lines.push_str(&Line::Epoch(did(1), numbered(number)).to_text());
    }
    fs::write(&path, lines).unwrap();
    let mut ledger = Ledger::open(&path, 1000).unwrap();
    ledger.record_epoch(&did(1), &numbered(1023), 1000).unwrap();
    let over = ledger.record_epoch(&did(1), &numbered(1024), 1000);
    assert!(matches!(over, Err(LedgerError::EpochLimit)));
    ledger.record_epoch(&did(2), &numbered(1024), 1000).unwrap();
    // The earlier ones were retired by the restart; the live one stays.
    ledger
        .record_epoch(&did(1), &numbered(1025), 1000 + EPOCH_MEMORY)
        .unwrap();
}

#[test]
fn every_way_to_cut_the_file_short_is_noticed_or_harmless() {
    let (_folder, path) = place();
    let mut ledger = Ledger::open(&path, 1000).unwrap();
    ledger.record_epoch(&did(1), &epoch(1), 1000).unwrap();
    ledger.retire(&did(1), &epoch(1), 1000).unwrap();
    ledger.revoke(&did(2)).unwrap();
    drop(ledger);
    let whole = fs::read(&path).unwrap();
    for end in 0..whole.len() {
        let cut = &whole[..end];
        fs::write(&path, cut).unwrap();
        match Ledger::open(&path, 1000) {
            Ok(_) => assert!(cut.is_empty() || cut.ends_with(b"\n")),
            Err(LedgerError::Damaged { line, .. }) => {
                assert_eq!(line, cut.iter().filter(|byte| **byte == b'\n').count() + 1);
                assert_eq!(
                    fs::read(&path).unwrap(),
                    cut,
                    "a damaged file is left alone"
                );
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn names_the_damaged_line() {
    let (_folder, path) = place();
    for (bad, what) in [
        ("{}\n", "not an array"),
        ("[\"epoch\"]\n", "unknown record"),
        ("[\"epoch\",\"did:key:zBad\",\"00\"]\n", "no router"),
        ("\n", "not JSON"),
        ("[\"revoke\",\"x\",\"never\"]\n", "unknown record"),
    ] {
        fs::write(&path, Line::Revoke(did(1)).to_text() + bad).unwrap();
        let error = Ledger::open(&path, 1000).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("line 2 is damaged: {what}")),
            "{error}"
        );
    }
    let orphan = Line::Retire(did(1), epoch(1), 5).to_text();
    fs::write(&path, orphan).unwrap();
    assert!(matches!(
        Ledger::open(&path, 1000),
        Err(LedgerError::Damaged { line: 1, .. })
    ));
}

#[test]
fn one_process_at_a_time() {
    let (_folder, path) = place();
    let first = Ledger::open(&path, 1000).unwrap();
    assert!(matches!(
        Ledger::open(&path, 1000),
        Err(LedgerError::Locked(_))
    ));
    drop(first);
    Ledger::open(&path, 1000).unwrap();
}

#[test]
fn a_leftover_of_an_interrupted_rewrite_is_replaced() {
    let (_folder, path) = place();
    fs::write(with_suffix(&path, ".next"), "half a line").unwrap();
    let mut ledger = Ledger::open(&path, 1000).unwrap();
    assert!(!with_suffix(&path, ".next").exists());
    ledger.appended = REWRITE_AFTER;
    ledger.record_epoch(&did(1), &epoch(1), 1000).unwrap();
    ledger.record_epoch(&did(1), &epoch(2), 1000).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2);
    assert_eq!(fs::metadata(&path).unwrap().len(), ledger.len);
}

#[test]
fn a_failed_write_refuses_everything_until_restart() {
    let (_folder, path) = place();
    let mut ledger = Ledger::open(&path, 1000).unwrap();
    ledger.record_epoch(&did(1), &epoch(1), 1000).unwrap();
    let good = std::mem::replace(
        &mut ledger.file,
        OpenOptions::new().write(true).open("/dev/full").unwrap(),
    );
    let failed = ledger.record_epoch(&did(1), &epoch(2), 1000);
    assert!(matches!(failed, Err(LedgerError::Io { .. })));
    ledger.file = good;
    assert!(!ledger.is_healthy());
    let later = ledger.record_epoch(&did(1), &epoch(3), 1000);
    assert!(matches!(later, Err(LedgerError::Unhealthy)));
    assert!(ledger.revoke(&did(1)).is_err());
    assert!(ledger.is_revoked(&did(1)), "in this process it is");
    drop(ledger);
    let mut ledger = Ledger::open(&path, 1000).unwrap();
    ledger.record_epoch(&did(1), &epoch(3), 1000).unwrap();
}
