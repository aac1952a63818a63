//! Tests of the routing state, compiled under `#[cfg(test)]` alone.

use std::borrow::Cow;

use memory_config::WorkerSettings;
use proptest::prelude::*;

use super::*;
use crate::ledger::Class;
use crate::testing::settings;

const SPACE: &str = "did:key:z6Mkon3Necd6NkkyfoGoHxid2znGc59LU3K7mubaRcFbLfLX";

fn table() -> Table {
    let settings = WorkerSettings {
        max_requests_per_connection: 4,
        max_sessions_per_connection: Some(2),
        max_spaces_per_connection: Some(1),
        max_watches_per_session: Some(3),
        max_watches_per_connection: Some(4),
        max_holdings_per_connection: Some(10),
        ..settings()
    };
    let ledger = Rc::new(Ledger::new(&settings));
    Table::new(ledger, settings.max_watches_per_session)
}

fn admitted(table: &Table) -> Admitted {
    let place = table.ledger.places(Class::Control).reserve(1);
    Admitted::new(place.unwrap(), Instant::now())
}

fn begin_open(table: &mut Table, id: &str, space: &Did) -> Option<Reason> {
    table.begin_open(id, space, admitted(table)).unwrap()
}

fn begin_watch(table: &mut Table, id: &str, session: &str, change: WatchChange) -> Option<Reason> {
    let admitted = admitted(table);
    let begun = table.begin_watch(id, SPACE, session, change, admitted);
    begun.unwrap()
}

/// Watches and holdings of the connection, reserved ones included.
fn held(table: &Table) -> [u64; 2] {
    [&table.ledger.watches, &table.ledger.holdings].map(memory_budget::Budget::current)
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
    assert_eq!(begin_open(table, id, &Did::parse(SPACE).unwrap()), None);
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
    table.begin_plain("r", 7, admitted(&table)).unwrap();
    assert!(table.begin_local("r").is_err());
    answer(&mut table, "r", false, None);
    table.begin_plain("r", 7, admitted(&table)).unwrap();
}

#[test]
fn session_slots_are_exact_and_come_back_on_refusal_close_and_revocation() {
    let mut table = table();
    let space = Did::parse(SPACE).unwrap();
    open(&mut table, "a", "s1");
    assert_eq!(begin_open(&mut table, "b", &space), None);
    assert_eq!(
        begin_open(&mut table, "c", &space),
        Some(Reason::SessionLimit)
    );
    table.finish_local("c");
    table.finish_local("b");
    open(&mut table, "d", "s2");
    assert_eq!(table.place(SPACE, "s2"), Placed::Ready(7));
    table
        .begin_close("e", 7, SPACE, "s2", admitted(&table))
        .unwrap();
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
        begin_open(&mut table, "b", &other),
        Some(Reason::SpaceLimit)
    );
}

#[test]
fn watch_quota_is_reserved_rolled_back_and_applied() {
    let mut table = table();
    open(&mut table, "o", "s1");
    open(&mut table, "p", "s2");
    assert_eq!(
        begin_watch(
            &mut table,
            "1",
            "s1",
            watch(true, &["a", "b", "c"], Some(6))
        ),
        None
    );
    assert_eq!(table.place(SPACE, "s1"), Placed::Behind(7));
    assert_eq!(
        begin_watch(&mut table, "2", "s2", watch(true, &["a", "b"], None)),
        Some(Reason::WatchLimit)
    );
    table.finish_local("2");
    answer(&mut table, "1", true, None);
    assert_eq!(table.place(SPACE, "s1"), Placed::Ready(7));
    assert_eq!(
        begin_watch(&mut table, "2", "s2", watch(true, &["a", "b"], Some(6))),
        None
    );
    answer(&mut table, "2", false, None);
    assert_eq!(
        begin_watch(&mut table, "3", "s1", watch(true, &[], Some(5))),
        Some(Reason::HoldingsLimit)
    );
    table.finish_local("3");
    assert_eq!(
        begin_watch(&mut table, "4", "s2", watch(false, &["b", "c"], None)),
        None
    );
    answer(&mut table, "4", false, None);
    assert_eq!(held(&table), [3, 6]);
    assert_eq!(
        begin_watch(&mut table, "5", "s2", watch(false, &["d"], None)),
        Some(Reason::FrameLimit)
    );
    table.finish_local("5");
    table
        .begin_close("6", 7, SPACE, "s2", admitted(&table))
        .unwrap();
    answer(&mut table, "6", false, None);
    assert_eq!(held(&table), [0, 0]);
    table.clear();
    assert!(table.ledger.uses().iter().all(|budget| budget.current == 0));
}

#[test]
fn responses_from_the_wrong_toolshed_or_to_nobody_are_refused() {
    let mut table = table();
    table.begin_plain("r", 7, admitted(&table)).unwrap();
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
    assert_eq!(begin_open(&mut table, "a", &space), None);
    table.finish_local("a");
    let other = Did::parse("did:key:z6Mko9hTggMwjSTEaJaPUfE6tqcy2xvU6BnNq3e3o8qVBiyH").unwrap();
    assert_eq!(begin_open(&mut table, "b", &other), None);
    table.forward_open("b", 7);
    answer(&mut table, "b", true, None);
    open(&mut table, "c", "s1");
}

#[test]
fn a_resumed_session_keeps_what_it_holds_and_its_unanswered_mutation() {
    let mut table = table();
    open(&mut table, "a", "s1");
    let begun = begin_watch(&mut table, "w", "s1", watch(true, &["a", "b"], Some(6)));
    assert_eq!(begun, None);
    open(&mut table, "b", "s1");
    assert_eq!(table.place(SPACE, "s1"), Placed::Behind(7));
    answer(&mut table, "w", false, None);
    assert_eq!(table.place(SPACE, "s1"), Placed::Ready(7));
    assert_eq!(held(&table), [2, 6]);
}

#[test]
fn the_late_answer_of_an_ended_session_does_not_touch_its_successor() {
    let mut table = table();
    open(&mut table, "a", "s1");
    let begun = begin_watch(&mut table, "w", "s1", watch(true, &["a", "b"], None));
    assert_eq!(begun, None);
    let mut push = route("session/revoked", None);
    push.space = Some(Cow::Borrowed(SPACE));
    push.session_id = Some(Cow::Borrowed("s1"));
    let revoked = table.admit_response(7, &push).unwrap();
    table.complete_response(revoked);
    open(&mut table, "b", "s1");
    let begun = begin_watch(&mut table, "x", "s1", watch(true, &["c"], None));
    assert_eq!(begun, None);
    answer(&mut table, "w", false, None);
    assert_eq!(table.place(SPACE, "s1"), Placed::Behind(7));
    answer(&mut table, "x", false, None);
    assert_eq!(held(&table), [1, 0]);
}

#[test]
fn a_watch_mutation_is_settled_by_the_header_of_its_answer() {
    let mut table = table();
    open(&mut table, "a", "s1");
    let begun = begin_watch(&mut table, "w", "s1", watch(true, &["a"], None));
    assert_eq!(begun, None);
    let begun = table.admit_response(7, &route("response", Some("w")));
    assert_eq!(table.place(SPACE, "s1"), Placed::Ready(7));
    assert!(table.begin_local("w").is_err(), "still in flight");
    table.complete_response(begun.unwrap());
    table.begin_local("w").unwrap();
    assert_eq!(held(&table), [1, 0]);
}

/// One step of a random history: of requests `0` to `5`, sessions `s0` to `s2` and watches.
#[derive(Debug, Clone)]
enum Step {
    Open(usize),
    Refuse(usize),
    Plain(usize),
    Close(usize, usize),
    Watch(usize, usize, WatchChange),
    Answer(usize, usize, bool),
    Begin(usize, bool),
    Revoke(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (id, session) = (0..6_usize, 0..3_usize);
    let change = (
        any::<bool>(),
        proptest::collection::vec("[a-e]", 0..4),
        proptest::option::of(0..3_u64),
        proptest::option::of(0..12_u64),
    );
    let change = change.prop_map(|(replace, ids, views, holdings)| WatchChange {
        replace,
        ids,
        views,
        holdings,
    });
    prop_oneof![
        3 => id.clone().prop_map(Step::Open),
        1 => id.clone().prop_map(Step::Refuse),
        1 => id.clone().prop_map(Step::Plain),
        1 => (id.clone(), session.clone()).prop_map(|(id, session)| Step::Close(id, session)),
        4 => (id.clone(), session.clone(), change)
            .prop_map(|(id, session, change)| Step::Watch(id, session, change)),
        5 => (id.clone(), session.clone(), any::<bool>())
            .prop_map(|(id, session, error)| Step::Answer(id, session, error)),
        1 => (id, any::<bool>()).prop_map(|(id, error)| Step::Begin(id, error)),
        1 => session.prop_map(Step::Revoke),
    ]
}

/// What the ledger has to say, counted anew: sessions, spaces, requests, watches, holdings.
fn counted(table: &Table) -> [u64; 5] {
    let pending = || table.requests.values().map(|request| &request.pending);
    let opening = pending().filter(|pending| matches!(pending, Pending::Open { .. }));
    let admitted = table
        .requests
        .values()
        .filter(|request| request.admitted.is_some());
    let mut held: Vec<&Usage> = table.sessions.values().map(Session::usage).collect();
    held.extend(pending().filter_map(|pending| match pending {
        Pending::Watch { reserved, .. } => Some(reserved),
        _ => None,
    }));
    [
        (table.sessions.len() + opening.count()) as u64,
        table.spaces.len() as u64,
        admitted.count() as u64,
        held.iter().map(|usage| usage.watches.amount()).sum(),
        held.iter().map(|usage| usage.holdings.amount()).sum(),
    ]
}

/// Does what the input and the responses would do. A request that cannot begin, or is refused, leaves nothing behind.
fn play(table: &mut Table, step: Step) {
    let id = |number: usize| ["0", "1", "2", "3", "4", "5"][number];
    let session = |number: usize| ["s0", "s1", "s2"][number];
    let place = table.ledger.places(Class::Control).reserve(1);
    let admitted = place.map(|place| Admitted::new(place, Instant::now()));
    let begun = match (step, admitted) {
        (Step::Open(number), Ok(admitted)) => {
            let space = Did::parse(SPACE).unwrap();
            let begun = table.begin_open(id(number), &space, admitted);
            if begun == Ok(None) {
                table.forward_open(id(number), 7);
            }
            begun.map(|refused| (number, refused))
        }
        (Step::Plain(number), Ok(admitted)) => table
            .begin_plain(id(number), 7, admitted)
            .map(|()| (number, None)),
        (Step::Close(number, of), Ok(admitted)) => table
            .begin_close(id(number), 7, SPACE, session(of), admitted)
            .map(|()| (number, None)),
        (Step::Watch(number, of, change), Ok(admitted)) => table
            .begin_watch(id(number), SPACE, session(of), change, admitted)
            .map(|refused| (number, refused)),
        (Step::Refuse(number), _) => {
            table.finish_local(id(number));
            return;
        }
        (Step::Answer(number, of, error), _) => {
            let opens = matches!(
                table
                    .requests
                    .get(id(number))
                    .map(|request| &request.pending),
                Some(Pending::Open { .. })
            );
            let route = Route {
                error,
                assigned_session_id: (opens && !error).then(|| Cow::Borrowed(session(of))),
                ..route("response", Some(id(number)))
            };
            if let Ok(response) = table.admit_response(7, &route) {
                table.complete_response(response);
            }
            return;
        }
        (Step::Begin(number, error), _) => {
            let route = Route {
                error,
                ..route("response", Some(id(number)))
            };
            // Never completed; an answer to it may come again.
            let _ = table.admit_response(7, &route);
            return;
        }
        (Step::Revoke(of), _) => {
            let mut push = route("session/revoked", None);
            push.space = Some(Cow::Borrowed(SPACE));
            push.session_id = Some(Cow::Borrowed(session(of)));
            if let Ok(response) = table.admit_response(7, &push) {
                table.complete_response(response);
            }
            return;
        }
        (_, Err(_)) => return,
    };
    if let Ok((number, Some(_))) = begun {
        table.finish_local(id(number));
    }
}

proptest! {
    /// Any history: what is held is counted once, by whoever holds it, and never past a limit.
    #[test]
    fn the_ledger_agrees_with_what_the_table_holds(
        steps in proptest::collection::vec(step(), 0..80)
    ) {
        let mut table = table();
        for step in steps {
            play(&mut table, step);
            let ledger = Rc::clone(&table.ledger);
            let budgets = [
                &ledger.sessions,
                &ledger.spaces,
                ledger.places(Class::Control),
                &ledger.watches,
                &ledger.holdings,
            ];
            prop_assert_eq!(budgets.map(memory_budget::Budget::current), counted(&table));
            for budget in budgets {
                let snapshot = budget.snapshot();
                prop_assert!(snapshot.limit.get().is_none_or(|limit| snapshot.peak <= limit));
            }
        }
        table.clear();
        prop_assert!(table.ledger.uses().iter().all(|budget| budget.current == 0));
    }
}
