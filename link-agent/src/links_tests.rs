//! Tests of `links`; compiled under `#[cfg(test)]` alone.

use super::*;
use crate::testing::{TOOLSHED_FLAGS, did, toolshed};

const LIMITS: QueueLimits = QueueLimits {
    waiters: 2,
    wait: Duration::from_secs(5),
    request: Duration::from_secs(10),
    rate: None,
};
const GRACE: Duration = Duration::from_secs(10);

fn links() -> Links {
    Links::new(vec![toolshed(20), toolshed(21)], LIMITS, false, GRACE)
}

fn flags(change: &str, to: &str) -> Flags {
    let text = String::from_utf8(TOOLSHED_FLAGS.to_vec()).unwrap();
    Flags::from_canonical(text.replace(change, to).as_bytes()).unwrap()
}

fn epoch(byte: u8) -> EpochId {
    EpochId::new([byte; 16])
}

#[test]
fn refuses_toolsheds_without_the_private_flags_or_of_another_mode() {
    let links = links();
    assert_eq!(links.judge(&flags("", "")), Ok(()));
    for name in [
        "\"routerRequestCredit\":true",
        "\"routerEncodingNegotiation\":true",
    ] {
        assert_eq!(
            links.judge(&flags(name, &name.replace("true", "false"))),
            Err(Unsuitable::Private)
        );
    }
    let modern = flags("\"modernCellRep\":false", "\"modernCellRep\":true");
    assert_eq!(links.judge(&modern), Err(Unsuitable::CellMode));
    // Absence means the legacy mode.
    assert_eq!(links.judge(&flags("\"modernCellRep\":false,", "")), Ok(()));
}

#[test]
fn freezes_at_once_when_all_are_linked() {
    let mut links = links();
    assert!(!links.freeze(Duration::ZERO));
    links.up(0, epoch(1), flags("", ""), Instant::now());
    assert!(!links.freeze(Duration::from_secs(9)));
    assert_eq!(links.usable(0), Err(Reason::UpstreamUnavailable));
    links.up(1, epoch(2), flags("\"a@1\",", ""), Instant::now());
    assert!(links.freeze(Duration::ZERO));
    let offer = links.offer().unwrap();
    assert_eq!(
        String::from_utf8(offer.canonical()).unwrap(),
        r#"{"codecs":["b@1"],"connectionAuth":true,"modernCellRep":false,"presenceV1":true,"routedAuthV1":true}"#
    );
    assert_eq!(links.usable(0), Ok(&epoch(1)));
    assert_eq!(links.usable(2), Err(Reason::RestartNeeded));
    assert_eq!(&*links.epochs(), [(0, epoch(1)), (1, epoch(2))]);
}

#[test]
fn waits_past_the_grace_until_one_is_linked_and_stays_frozen() {
    let mut links = links();
    assert!(!links.freeze(GRACE * 10));
    links.up(1, epoch(1), flags("", ""), Instant::now());
    assert!(links.freeze(GRACE));
    let frozen = links.offer().unwrap().clone();
    // What can do more does not widen the offer, what can do less is linked and not used.
    assert!(links.up(
        0,
        epoch(2),
        flags("\"presenceV1\":true", "\"more\":true,\"presenceV1\":true"),
        Instant::now()
    ));
    assert_eq!(links.usable(0), Ok(&epoch(2)));
    assert!(!links.up(
        1,
        epoch(3),
        flags("\"presenceV1\":true", "\"presenceV1\":false"),
        Instant::now()
    ));
    assert_eq!(links.usable(1), Err(Reason::UpstreamIncompatible));
    assert!(links.is_any_usable());
    assert!(links.freeze(GRACE));
    assert_eq!(links.offer(), Some(&frozen));
}

#[test]
fn says_why_a_toolshed_cannot_be_used() {
    let mut links = links();
    links.up(0, epoch(1), flags("", ""), Instant::now());
    assert!(links.freeze(GRACE));
    assert_eq!(links.did(0), Some(&did(20)));
    links.down(0);
    assert_eq!(links.usable(0), Err(Reason::UpstreamUnavailable));
    links.refuse(0, Unsuitable::CellMode);
    assert_eq!(links.usable(0), Err(Reason::UpstreamIncompatible));
    links.refuse(0, Unsuitable::Private);
    assert_eq!(links.usable(0), Err(Reason::UpstreamUnavailable));
    assert!(!links.is_any_usable());
    assert_eq!(&*links.epochs(), []);
}

#[test]
fn requests_die_with_their_link() {
    let mut links = links();
    let now = Instant::now();
    let context = ContextId::new([1; 16]);
    assert!(!links.push(0, context, Task::Close, Class::Kept, None, now));
    links.up(0, epoch(1), flags("", ""), Instant::now());
    let (caller, mut outcome) = oneshot::channel();
    assert!(links.push(0, context, Task::Close, Class::Asked, Some(caller), now));
    assert!(
        outcome
            .try_recv()
            .is_err_and(|error| error == oneshot::error::TryRecvError::Empty)
    );
    links.down(0);
    assert!(
        outcome
            .try_recv()
            .is_err_and(|error| error == oneshot::error::TryRecvError::Closed)
    );
}
