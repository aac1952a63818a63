use super::*;
use crate::session::watch;
use std::time::Duration;

const BUDGET: FrameBudget = FrameBudget {
    target_len: 1 << 15,
    max_len: 1 << 16,
    max_slots: None,
    max_holdings: 100,
};

fn opened(token: u64, resumed: bool) -> Value {
    let mut ok = json!({"sessionId": "s", "sessionToken": format!("t{token}"), "serverSeq": 5});
    if resumed {
        ok["resumed"] = true.into();
    }
    ok
}

fn open(machine: &mut Machine, token: u64, resumed: bool) {
    let mut ok = opened(token, resumed);
    machine
        .attach(&mut ok, false, (&BUDGET, 10), Instant::now())
        .unwrap();
}

fn fresh() -> Machine {
    let mut machine = Machine::new(None, 1).unwrap();
    open(&mut machine, 1, false);
    machine
}

fn answer(tag: u64, outcome: Result<Value, Value>) -> Delivery {
    Delivery::Answer {
        tag,
        outcome: outcome.map_err(Denied::from_value),
        len: 10,
    }
}

fn deliver(machine: &mut Machine, delivery: Delivery) -> Flow {
    machine.deliver(delivery, Instant::now(), 0)
}

fn push(seq: u64) -> Delivery {
    let upserts = json!([{"id": "of:a", "seq": seq}]);
    let sync = json!({"fromSeq": seq - 1, "toSeq": seq, "upserts": upserts, "removes": []});
    Delivery::Effect(Effect::Sync(sync), 10)
}

type Verdict = oneshot::Receiver<Result<Value, ClientError>>;

fn commit(machine: &mut Machine) -> Verdict {
    let (sender, verdict) = oneshot::channel();
    let owner = CommitOwner {
        answer: Some(sender),
        room: Vec::new(),
    };
    machine.commit(json!({"operations": []}), owner).unwrap();
    verdict
}

fn watch_a(machine: &mut Machine) -> oneshot::Receiver<Result<(), ClientError>> {
    let (owner, accepted) = oneshot::channel();
    let watches = BTreeMap::from([("a".to_owned(), watch("a", &["of:a"]))]);
    machine.watch(watches, false, owner).unwrap();
    accepted
}

fn step(machine: &mut Machine) -> Step {
    machine.next_step(&BUDGET, Instant::now())
}

fn events(machine: &mut Machine) -> Vec<Event> {
    std::iter::from_fn(|| machine.next_event().0).collect()
}

#[test]
fn an_answer_without_a_session_is_no_verdict() {
    for name in ["SessionError", "SessionRevokedError"] {
        let mut machine = fresh();
        let mut verdict = commit(&mut machine);
        assert!(matches!(step(&mut machine), Step::Commit(1, _)));
        let flow = deliver(&mut machine, answer(1, Err(json!({ "name": name }))));
        assert_eq!(flow, Flow::Unknown);
        machine.detach();
        open(&mut machine, 2, false);
        assert!(matches!(step(&mut machine), Step::Commit(1, _)));
        assert!(verdict.try_recv().is_err());
        deliver(&mut machine, answer(1, Ok(json!({"seq": 6}))));
        assert!(verdict.try_recv().unwrap().is_ok());
    }
}

#[test]
fn a_refusal_for_now_holds_the_session() {
    let mut machine = fresh();
    let mut verdict = commit(&mut machine);
    step(&mut machine);
    let refusal = json!({"name": "AuthorizationError", "retriable": true});
    deliver(&mut machine, answer(1, Err(refusal)));
    let Step::Hold(until) = step(&mut machine) else {
        panic!("not held");
    };
    let wait = until - Instant::now();
    assert!(wait > Duration::from_millis(900) && wait <= Duration::from_secs(1));
    assert!(matches!(
        machine.next_step(&BUDGET, until),
        Step::Commit(1, _)
    ));
    deliver(
        &mut machine,
        answer(1, Err(json!({"name": "ConflictError"}))),
    );
    assert!(matches!(
        verdict.try_recv(),
        Ok(Err(ClientError::Denied(_)))
    ));
}

#[test]
fn a_session_of_another_name_is_refused() {
    let mut machine = fresh();
    machine.detach();
    let mut ok = opened(2, false);
    ok["sessionId"] = "other".into();
    assert!(
        machine
            .attach(&mut ok, false, (&BUDGET, 10), Instant::now())
            .is_err()
    );
}

#[test]
fn events_tell_of_interruption_and_rebuild() {
    let mut machine = fresh();
    assert!(events(&mut machine).is_empty());
    let mut accepted = watch_a(&mut machine);
    assert!(matches!(step(&mut machine), Step::Watch(frame) if !frame.set));
    machine.detach();
    open(&mut machine, 2, false);
    let Step::Watch(frame) = step(&mut machine) else {
        panic!("not restored");
    };
    assert!(frame.set);
    let sync = json!({"toSeq": 5, "upserts": [{"id": "of:a", "seq": 5}], "removes": []});
    deliver(&mut machine, answer(WATCH_TAG, Ok(json!({ "sync": sync }))));
    assert!(accepted.try_recv().unwrap().is_ok());
    let told = events(&mut machine);
    assert!(matches!(
        told[..],
        [
            Event::Interrupted,
            Event::Sync(_),
            Event::Rebuilt {
                resumed: false,
                whole: false
            }
        ]
    ));
    machine.detach();
    open(&mut machine, 3, true);
    assert!(matches!(step(&mut machine), Step::Idle), "kept");
    let told = events(&mut machine);
    assert!(matches!(
        told[..],
        [Event::Interrupted, Event::Rebuilt { resumed: true, .. }]
    ));
}

#[test]
fn what_a_lost_open_left_behind_knows_no_watches() {
    let mut machine = fresh();
    let _accepted = watch_a(&mut machine);
    step(&mut machine);
    deliver(&mut machine, answer(WATCH_TAG, Ok(json!({}))));
    machine.detach();
    let mut ok = opened(3, true);
    machine
        .attach(&mut ok, true, (&BUDGET, 10), Instant::now())
        .unwrap();
    assert!(matches!(step(&mut machine), Step::Watch(frame) if frame.set));
}

#[test]
fn what_finds_no_room_is_fetched_when_the_rest_is_read() {
    let mut machine = fresh();
    let _accepted = watch_a(&mut machine);
    step(&mut machine);
    deliver(&mut machine, answer(WATCH_TAG, Ok(json!({}))));
    for seq in 6..2000 {
        deliver(&mut machine, push(seq));
    }
    assert!(matches!(step(&mut machine), Step::Idle));
    let told = events(&mut machine);
    assert!(matches!(told.last(), Some(Event::Interrupted)));
    let Step::Watch(frame) = step(&mut machine) else {
        panic!("not fetched");
    };
    let held = told.len() as u64 - 1 + 5;
    assert_eq!(
        frame.holdings,
        Some(vec![json!({"id": "of:a", "seq": held})])
    );
    let saved = machine.save(did(), did()).unwrap();
    assert_eq!(saved.seen_seq, held);
    deliver(&mut machine, push(2000));
    let sync = json!({"toSeq": 2000, "upserts": [], "removes": []});
    deliver(&mut machine, answer(WATCH_TAG, Ok(json!({ "sync": sync }))));
    let told = events(&mut machine);
    assert!(matches!(told[..], [Event::Sync(_), Event::Rebuilt { .. }]));
    assert_eq!(machine.save(did(), did()).unwrap().seen_seq, 2000);
}

#[test]
fn what_is_kept_is_what_was_read() {
    let mut machine = fresh();
    deliver(&mut machine, push(6));
    events(&mut machine);
    deliver(&mut machine, push(7));
    let saved = machine.save(did(), did()).unwrap();
    assert_eq!(saved.seen_seq, 6);
    assert_eq!(saved.holdings, [json!({"id": "of:a", "seq": 0})]);
    assert!(
        !format!("{saved:?}").contains("t1"),
        "the token is a secret"
    );
    let text = serde_json::to_string(&saved).unwrap();
    let mut again = Machine::new(serde_json::from_str(&text).unwrap(), 1).unwrap();
    assert_eq!(again.save(did(), did()), Some(saved));
    assert!(matches!(events(&mut again)[..], [Event::Interrupted]));
}

#[test]
fn the_end_tells_everybody() {
    let mut machine = fresh();
    let mut verdict = commit(&mut machine);
    let mut accepted = watch_a(&mut machine);
    machine.end(&Ended::TakenOver);
    machine.end(&Ended::Closed);
    let taken = |error| matches!(error, ClientError::Ended(Ended::TakenOver));
    assert!(verdict.try_recv().unwrap().is_err_and(taken));
    assert!(accepted.try_recv().unwrap().is_err_and(taken));
    let told = events(&mut machine);
    assert!(matches!(
        told[..],
        [Event::Interrupted, Event::Ended(Ended::TakenOver)]
    ));
    let owner = CommitOwner {
        answer: None,
        room: Vec::new(),
    };
    assert!(machine.commit(json!({}), owner).is_err());
}

#[test]
fn a_closed_session_settles_first() {
    let mut machine = fresh();
    let _verdict = commit(&mut machine);
    machine.close();
    assert!(matches!(step(&mut machine), Step::Commit(1, _)));
    assert!(matches!(step(&mut machine), Step::Idle));
    deliver(&mut machine, answer(1, Ok(json!({"seq": 6}))));
    assert!(matches!(step(&mut machine), Step::Close));
}

fn did() -> Did {
    memory_config::Identity::from_seed([1; 32]).unwrap().did()
}
