//! Tests of the routing state, compiled under `#[cfg(test)]` alone.

use std::borrow::Cow;

use super::*;

const SPACE: &str = "did:key:z6Mkon3Necd6NkkyfoGoHxid2znGc59LU3K7mubaRcFbLfLX";

fn table() -> Table {
    Table::new(TableLimits {
        requests: 4,
        sessions: Some(2),
        spaces: Some(1),
        watches_per_session: Some(3),
        watches: Some(4),
        holdings: Some(10),
    })
}

fn route(kind: &'static str, request_id: Option<&'static str>) -> Route<'static> {
    Route {
        kind: Cow::Borrowed(kind),
        request_id: request_id.map(Cow::Borrowed),
        space: None,
        session_id: None,
        principal: None,
        error: false,
        assigned_session_id: None,
    }
}

fn answer(table: &mut Table, id: &'static str, error: bool, assigned: Option<&'static str>) {
    let route = Route {
        error,
        assigned_session_id: assigned.map(Cow::Borrowed),
        ..route("response", Some(id))
    };
    let response = table.admit_response(7, &route).unwrap();
    table.complete_response(response);
}

fn open(table: &mut Table, id: &'static str, session: &'static str) {
    assert_eq!(
        table.begin_open(id, &Did::parse(SPACE).unwrap()).unwrap(),
        None
    );
    table.forward_open(id, 7);
    answer(table, id, false, Some(session));
}

fn watch(replace: bool, ids: &[&str], holdings: Option<u64>) -> WatchChange {
    WatchChange {
        replace,
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        views: None,
        holdings,
    }
}

#[test]
fn a_request_id_may_not_repeat_while_in_flight_and_may_afterwards() {
    let mut table = table();
    table.begin_plain("r", 7).unwrap();
    assert!(table.begin_local("r").is_err());
    answer(&mut table, "r", false, None);
    table.begin_plain("r", 7).unwrap();
}

#[test]
fn session_slots_are_exact_and_come_back_on_refusal_close_and_revocation() {
    let mut table = table();
    let space = Did::parse(SPACE).unwrap();
    open(&mut table, "a", "s1");
    assert_eq!(table.begin_open("b", &space).unwrap(), None);
    assert_eq!(
        table.begin_open("c", &space).unwrap(),
        Some(Reason::SessionLimit)
    );
    table.finish_local("c");
    table.finish_local("b");
    open(&mut table, "d", "s2");
    assert_eq!(table.place(SPACE, "s2"), Placed::Ready(7));
    table.begin_close("e", 7, SPACE, "s2").unwrap();
    answer(&mut table, "e", false, None);
    assert_eq!(table.place(SPACE, "s2"), Placed::Unknown);
    let mut push = route("session/revoked", None);
    push.space = Some(Cow::Borrowed(SPACE));
    push.session_id = Some(Cow::Borrowed("s1"));
    let response = table.admit_response(7, &push).unwrap();
    table.complete_response(response);
    assert_eq!(table.sessions.len(), 0);
    assert!(!table.depends_on(7));
}

#[test]
fn another_space_than_the_cap_allows_is_refused_for_now() {
    let mut table = table();
    open(&mut table, "a", "s1");
    let other = Did::parse("did:key:z6Mko9hTggMwjSTEaJaPUfE6tqcy2xvU6BnNq3e3o8qVBiyH").unwrap();
    assert_eq!(
        table.begin_open("b", &other).unwrap(),
        Some(Reason::SpaceLimit)
    );
}

#[test]
fn watch_quota_is_reserved_rolled_back_and_applied() {
    let mut table = table();
    open(&mut table, "o", "s1");
    open(&mut table, "p", "s2");
    assert_eq!(
        table
            .begin_watch("1", SPACE, "s1", watch(true, &["a", "b", "c"], Some(6)))
            .unwrap(),
        None
    );
    assert_eq!(table.place(SPACE, "s1"), Placed::Behind(7));
    assert_eq!(
        table
            .begin_watch("2", SPACE, "s2", watch(true, &["a", "b"], None))
            .unwrap(),
        Some(Reason::WatchLimit)
    );
    table.finish_local("2");
    answer(&mut table, "1", true, None);
    assert_eq!(table.place(SPACE, "s1"), Placed::Ready(7));
    assert_eq!(
        table
            .begin_watch("2", SPACE, "s2", watch(true, &["a", "b"], Some(6)))
            .unwrap(),
        None
    );
    answer(&mut table, "2", false, None);
    assert_eq!(
        table
            .begin_watch("3", SPACE, "s1", watch(true, &[], Some(5)))
            .unwrap(),
        Some(Reason::HoldingsLimit)
    );
    table.finish_local("3");
    assert_eq!(
        table
            .begin_watch("4", SPACE, "s2", watch(false, &["b", "c"], None))
            .unwrap(),
        None
    );
    answer(&mut table, "4", false, None);
    assert_eq!(
        table.live,
        Usage {
            watches: 3,
            holdings: 6
        }
    );
    assert_eq!(
        table
            .begin_watch("5", SPACE, "s2", watch(false, &["d"], None))
            .unwrap(),
        Some(Reason::FrameLimit)
    );
    table.finish_local("5");
    table.begin_close("6", 7, SPACE, "s2").unwrap();
    answer(&mut table, "6", false, None);
    assert_eq!(
        (table.live, table.reserved),
        (Usage::default(), Usage::default())
    );
}

#[test]
fn responses_from_the_wrong_toolshed_or_to_nobody_are_refused() {
    let mut table = table();
    table.begin_plain("r", 7).unwrap();
    assert!(
        table
            .admit_response(8, &route("response", Some("r")))
            .is_err()
    );
    assert!(
        table
            .admit_response(7, &route("response", Some("x")))
            .is_err()
    );
    assert!(table.admit_response(7, &route("response", None)).is_err());
    assert!(
        table
            .admit_response(7, &route("session/effect", None))
            .is_err()
    );
    let assigned = Route {
        assigned_session_id: Some(Cow::Borrowed("s")),
        ..route("response", Some("r"))
    };
    assert!(table.admit_response(7, &assigned).is_err());
    table.begin_local("l").unwrap();
    assert!(
        table
            .admit_response(7, &route("response", Some("l")))
            .is_err()
    );
}

#[test]
fn a_space_that_could_not_be_opened_gives_its_place_back() {
    let mut table = table();
    let space = Did::parse(SPACE).unwrap();
    assert_eq!(table.begin_open("a", &space).unwrap(), None);
    table.finish_local("a");
    let other = Did::parse("did:key:z6Mko9hTggMwjSTEaJaPUfE6tqcy2xvU6BnNq3e3o8qVBiyH").unwrap();
    assert_eq!(table.begin_open("b", &other).unwrap(), None);
    table.forward_open("b", 7);
    answer(&mut table, "b", true, None);
    open(&mut table, "c", "s1");
}

#[test]
fn a_resumed_session_keeps_what_it_holds_and_its_unanswered_mutation() {
    let mut table = table();
    open(&mut table, "a", "s1");
    let begun = table.begin_watch("w", SPACE, "s1", watch(true, &["a", "b"], Some(6)));
    assert_eq!(begun.unwrap(), None);
    open(&mut table, "b", "s1");
    assert_eq!(table.place(SPACE, "s1"), Placed::Behind(7));
    answer(&mut table, "w", false, None);
    assert_eq!(table.place(SPACE, "s1"), Placed::Ready(7));
    assert_eq!((table.live.watches, table.live.holdings), (2, 6));
}

#[test]
fn the_late_answer_of_an_ended_session_does_not_touch_its_successor() {
    let mut table = table();
    open(&mut table, "a", "s1");
    let begun = table.begin_watch("w", SPACE, "s1", watch(true, &["a", "b"], None));
    assert_eq!(begun.unwrap(), None);
    let mut push = route("session/revoked", None);
    push.space = Some(Cow::Borrowed(SPACE));
    push.session_id = Some(Cow::Borrowed("s1"));
    let revoked = table.admit_response(7, &push).unwrap();
    table.complete_response(revoked);
    open(&mut table, "b", "s1");
    let begun = table.begin_watch("x", SPACE, "s1", watch(true, &["c"], None));
    assert_eq!(begun.unwrap(), None);
    answer(&mut table, "w", false, None);
    assert_eq!(table.place(SPACE, "s1"), Placed::Behind(7));
    answer(&mut table, "x", false, None);
    assert_eq!(table.live.watches, 1);
    assert_eq!(table.reserved, Usage::default());
}

#[test]
fn a_watch_mutation_is_settled_by_the_header_of_its_answer() {
    let mut table = table();
    open(&mut table, "a", "s1");
    let begun = table.begin_watch("w", SPACE, "s1", watch(true, &["a"], None));
    assert_eq!(begun.unwrap(), None);
    let begun = table.admit_response(7, &route("response", Some("w")));
    assert_eq!(table.place(SPACE, "s1"), Placed::Ready(7));
    assert!(table.begin_local("w").is_err(), "still in flight");
    table.complete_response(begun.unwrap());
    table.begin_local("w").unwrap();
    assert_eq!(table.live.watches, 1);
}
