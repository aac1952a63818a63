//! Tests of `revocation`; compiled under `#[cfg(test)]` alone.

use memory_config::{FileIdentity, Revocation};

use super::*;
use crate::testing::{did, moment};

fn list(byte: u8) -> RevocationList {
    let mut list = RevocationList::default();
    let entry = Revocation {
        since: 1,
        reason: None,
    };
    assert!(list.insert(did(byte), entry));
    list
}

fn version(inode: u64) -> RevocationVersion {
    RevocationVersion::File(FileIdentity {
        device: 1,
        inode,
        modified_seconds: 2,
        modified_nanoseconds: 3,
        len: 4,
    })
}

#[test]
fn what_an_earlier_state_granted_is_judged_again_by_the_next() {
    let mut revocations = Revocations::default();
    let first = revocations.admits(&did(1)).unwrap();
    assert_eq!(revocations.confirms(&did(1), first), Ok(()));
    revocations.replace(list(1));
    let revoked = Err(Reason::PrincipalRevoked);
    assert_eq!(revocations.confirms(&did(1), first), revoked);
    assert_eq!(revocations.confirms(&did(2), first), Ok(()));
    assert_eq!(revocations.admits(&did(1)).err(), revoked.err());
    let second = revocations.admits(&did(2)).unwrap();
    assert!(second > first);

    // A state that does not name it any more lets what it had before stand again: it has ended long since.
    revocations.replace(RevocationList::default());
    assert_eq!(revocations.confirms(&did(1), first), Ok(()));
}

#[test]
fn while_the_list_is_stale_it_still_refuses_for_good_whom_it_names() {
    let mut revocations = Revocations::default();
    revocations.replace(list(1));
    let granted = revocations.admits(&did(2)).unwrap();
    revocations.close();
    let unreadable = Err(Reason::RevocationUnreadable);
    assert_eq!(revocations.admits(&did(2)), unreadable);
    assert_eq!(revocations.admits(&did(1)), Err(Reason::PrincipalRevoked));
    assert_eq!(revocations.confirms(&did(2), granted), Ok(()));
    revocations.replace(list(1));
    assert!(revocations.admits(&did(2)).is_ok());
}

#[test]
fn a_good_version_is_read_once_and_a_bad_one_again_after_a_while() {
    let now = moment().monotonic;
    let mut schedule = Schedule::default();
    assert!(schedule.is_due(Some(&RevocationVersion::Missing), now));
    schedule.succeeded(RevocationVersion::Missing);
    assert!(!schedule.is_due(Some(&RevocationVersion::Missing), now + RETRY * 100));
    assert!(schedule.is_due(Some(&version(1)), now));
    assert!(schedule.is_due(None, now), "not known to be missing");

    schedule.failed(Some(version(1)), now);
    assert!(!schedule.is_due(Some(&version(1)), now + RETRY / 2));
    assert!(schedule.is_due(Some(&version(2)), now));
    assert!(schedule.is_due(Some(&version(1)), now + RETRY));
    schedule.succeeded(version(1));
    assert!(!schedule.is_due(Some(&version(1)), now + RETRY * 100));
}

const _: () = assert!(INTERVAL.as_millis() * 2 < 500);
