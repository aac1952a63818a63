//! Requests on a data socket: what is answered, what is denied, what closes.
//!
//! Compiled under `#[cfg(test)]` alone.

use super::support::*;
use memory_config::ToolshedLimits;
use memory_wire::envelope;
use memory_wire::flags::Capability;
use memory_wire::ids::ContextId;
use memory_wire::message::TEXT_PREFIX;
use serde_json::{Value, json};

const OTHER: ContextId = ContextId::new([5; 16]);

fn is_denied(answer: &Value, retriable: bool) -> bool {
    answer["error"]["name"] == "AuthorizationError"
        && answer["error"]["message"] == "Routed memory request denied"
        && answer["error"].get("retriable").is_some() == retriable
}

#[test]
fn opens_writes_and_watches() {
    let mut rig = Rig::new();
    let alice = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let bob = rig.bound(OTHER, SPACE, &[BOB]);
    let (a, b) = (rig.open(&alice, SPACE, ALICE), rig.open(&bob, SPACE, BOB));
    let set = in_session(
        "session.watch.set",
        SPACE,
        &b,
        json!({"watches": watches("w", 1)}),
    );
    assert_eq!(
        rig.request(&bob, &set).unwrap()[0]["ok"]["sync"]["type"],
        "sync"
    );
    let commit = json!({"commit": {"localSeq": 1, "reads": {"confirmed": [], "pending": []},
        "operations": [{"op": "set", "id": "of:a", "value": {"value": 5}}]}});
    let answers = rig
        .request(&alice, &in_session("transact", SPACE, &a, commit))
        .unwrap();
    assert_eq!(answers[0]["ok"]["seq"], 2);
    assert!(rig.state.memory.has_pending());
    assert!(!rig.state.flush(rig.now));
    let pushed = messages(&bob);
    assert_eq!(pushed[0]["type"], "session/effect");
    assert_eq!(pushed[0]["effect"]["upserts"][0]["doc"]["value"], 5);
}

#[test]
fn a_lease_that_ends_revokes_its_sessions() {
    let mut rig = Rig::new();
    let bound = rig.bound(CONTEXT, SPACE, &[]);
    let proof = rig.proof(CONTEXT, ALICE, 1, 3);
    assert!(rig.prove(CONTEXT, proof));
    let session = rig.open(&bound, SPACE, ALICE);
    rig.now += 2;
    let renewal = rig.proof(CONTEXT, ALICE, 2, 3);
    assert!(rig.prove(CONTEXT, renewal));
    rig.now += 2;
    rig.state.expire(rig.now);
    assert!(messages(&bound).is_empty(), "a renewal came first");
    rig.now += 1;
    let late = in_session("session.ack", SPACE, &session, json!({"seenSeq": 1}));
    assert!(is_denied(&rig.request(&bound, &late).unwrap()[0], true));
    rig.state.expire(rig.now);
    let pushed = messages(&bound);
    assert_eq!(pushed[0]["type"], "session/revoked");
    assert_eq!(pushed[0]["sessionId"], session.as_str());
    assert_eq!(rig.state.usage.total().sessions, 0);
    assert!(is_denied(&rig.request(&bound, &late).unwrap()[0], false));
    assert!(is_denied(
        &rig.request(&bound, &open(SPACE, ALICE)).unwrap()[0],
        true
    ));
    assert_eq!(
        rig.verdicts(),
        ["principal-expired", "session-not-held", "principal-expired"]
            .map(|reason| format!("request-refused: {reason}"))
    );
    let again = rig.proof(CONTEXT, ALICE, 3, 3);
    assert!(rig.prove(CONTEXT, again));
    rig.open(&bound, SPACE, ALICE);
}

#[test]
fn a_released_principal_keeps_its_sessions_and_opens_none() {
    let mut rig = Rig::new();
    let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let session = rig.open(&bound, SPACE, ALICE);
    assert!(rig.release(CONTEXT, ALICE));
    let ack = in_session("session.ack", SPACE, &session, json!({"seenSeq": 1}));
    assert!(rig.request(&bound, &ack).unwrap()[0].get("ok").is_some());
    assert!(is_denied(
        &rig.request(&bound, &open(SPACE, ALICE)).unwrap()[0],
        false
    ));
    assert!(is_denied(
        &rig.request(&bound, &open(SPACE, BOB)).unwrap()[0],
        false
    ));
    rig.now += 600;
    rig.state.expire(rig.now);
    assert_eq!(messages(&bound)[0]["type"], "session/revoked");
}

#[test]
fn broken_rules_close_without_an_answer() {
    let ack = |rig: &mut Rig, more: Value| {
        let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
        let session = rig.open(&bound, SPACE, ALICE);
        (bound, in_session("session.ack", SPACE, &session, more))
    };
    let mut cases: Vec<(Value, &str)> = vec![
        (json!({"watches": 1}), "list-malformed"),
        (json!({"holdings": {}}), "list-malformed"),
        (json!({"views": "x"}), "list-malformed"),
        (
            json!({"space": did(SPACE + 1).as_str()}),
            "space-not-admitted",
        ),
        (json!({"type": "hello"}), "data-message"),
        (
            json!({"type": "memory.compression", "enabled": true}),
            "data-message",
        ),
        (json!({"type": "connection.challenge"}), "data-message"),
        (json!({"type": "router.credit"}), "data-message"),
    ];
    for name in [
        "routerTicket",
        "routerBinding",
        "forwarded",
        "contextId",
        "upstream",
        "host",
        "authorization",
        "invocation",
        "actingAs",
        "statement",
    ] {
        cases.push((json!({name: "x"}), "forged-field"));
    }
    for (more, reason) in cases {
        let mut rig = Rig::new();
        let (bound, request) = ack(&mut rig, more);
        assert_eq!(
            rig.request(&bound, &request).unwrap_err(),
            reason,
            "{request}"
        );
        assert!(messages(&bound).is_empty());
        assert!(!rig.is_bound(bound.backend));
        assert_eq!(rig.verdicts(), [format!("context-closed: {reason}")]);
    }
    let mut rig = Rig::new();
    let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let mut acting = open(SPACE, ALICE);
    acting["session"]["actingAs"] = "space-owner".into();
    assert_eq!(rig.request(&bound, &acting).unwrap_err(), "forged-field");
}

#[test]
fn the_header_must_tell_what_the_body_says() {
    for (member, value) in [
        ("requestId", "r2"),
        ("sessionId", "other"),
        ("type", "transact"),
    ] {
        let mut rig = Rig::new();
        let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
        let announced = in_session("session.ack", SPACE, "s", json!({"seenSeq": 1}));
        let mut sent = announced.clone();
        sent[member] = value.into();
        let body = [TEXT_PREFIX, sent.to_string().as_bytes()].concat();
        let outcome = rig.request_bytes(&bound, &announced, body, false);
        assert_eq!(outcome, Err("route-mismatch"), "{member}");
    }
}

#[test]
fn bad_bodies_close_with_their_reason() {
    let message = in_session(
        "session.ack",
        SPACE,
        "s",
        json!({"seenSeq": 1, "pad": "x".repeat(4000)}),
    );
    let text = [TEXT_PREFIX, message.to_string().as_bytes()].concat();
    let space = did(SPACE);
    let good = envelope::encode(&text, Some(space.as_str())).unwrap();
    let mut bomb = good.clone();
    bomb[5..9].copy_from_slice(&((4 << 20) + 1_u32).to_be_bytes());
    let hint = envelope::encode(&text, None).unwrap();
    let mut crc = good.clone();
    let at = crc.len() - 8;
    crc[at] ^= 1;
    let duplicate = text
        .strip_suffix(b"}")
        .map(|text| [text, b",\"pad\":1}"].concat())
        .unwrap();
    for (body, binary, compression, reason) in [
        (bomb, true, true, "data-queue-limit"),
        (hint, true, true, "envelope-hint"),
        (crc, true, true, "envelope-crc"),
        (good.clone(), true, false, "compression-not-negotiated"),
        (duplicate, false, false, "json-duplicate-key"),
        (b"{}".to_vec(), false, false, "message-prefix"),
    ] {
        let mut rig = Rig::new();
        if compression {
            rig.flags
                .insert("messageCompressionV1", Capability::Flag(true))
                .unwrap();
        }
        let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
        assert_eq!(
            rig.request_bytes(&bound, &message, body, binary),
            Err(reason)
        );
    }
    let mut rig = Rig::new();
    rig.flags
        .insert("messageCompressionV1", Capability::Flag(true))
        .unwrap();
    let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
    assert_eq!(rig.request_bytes(&bound, &message, good, true), Ok(()));
}

#[test]
fn counts_values_when_the_policy_does() {
    for (slots, good) in [(Some(9), true), (Some(8), false), (None, true)] {
        let limits = ToolshedLimits {
            frame_slots: slots,
            ..ToolshedLimits::default()
        };
        let mut rig = Rig::with(limits);
        let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
        // The root, four texts, a list and three values.
        let request = in_session("session.ack", SPACE, "s", json!({"more": [1, 2, 3]}));
        assert_eq!(rig.request(&bound, &request).is_ok(), good, "{slots:?}");
    }
}

#[test]
fn a_request_identifier_is_not_used_twice_at_once() {
    let mut rig = Rig::new();
    let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let body = [TEXT_PREFIX, open(SPACE, ALICE).to_string().as_bytes()].concat();
    rig.request_bytes(&bound, &open(SPACE, ALICE), body.clone(), false)
        .unwrap();
    assert_eq!(messages(&bound).len(), 1, "written: it may be used again");
    rig.request_bytes(&bound, &open(SPACE, ALICE), body.clone(), false)
        .unwrap();
    let again = rig.request_bytes(&bound, &open(SPACE, ALICE), body, false);
    assert_eq!(again, Err("request-repeated"));
}

#[test]
fn session_quotas_are_exact_and_pass() {
    let limits = ToolshedLimits {
        sessions_per_context: Some(2),
        ..ToolshedLimits::default()
    };
    let mut rig = Rig::with(limits);
    let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let first = rig.open(&bound, SPACE, ALICE);
    rig.open(&bound, SPACE, ALICE);
    assert!(is_denied(
        &rig.request(&bound, &open(SPACE, ALICE)).unwrap()[0],
        true
    ));
    assert_eq!(rig.verdicts(), ["request-refused: session-limit"]);
    let close = in_session("session.close", SPACE, &first, json!({}));
    assert!(rig.request(&bound, &close).unwrap()[0].get("ok").is_some());
    rig.open(&bound, SPACE, ALICE);
    assert!(rig.close(CONTEXT));
    assert_eq!(rig.state.usage.total().sessions, 0);
}

#[test]
fn watch_quotas_are_exact() {
    let limits = ToolshedLimits {
        watches_per_session: Some(3),
        views_per_session: Some(1),
        watches_per_context: Some(4),
        holdings_per_context: Some(2),
        ..ToolshedLimits::default()
    };
    let mut rig = Rig::with(limits);
    let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let (one, two) = (
        rig.open(&bound, SPACE, ALICE),
        rig.open(&bound, SPACE, ALICE),
    );
    let mut ask = |kind: &str, session: &str, more: Value| {
        rig.request(&bound, &in_session(kind, SPACE, session, more))
            .unwrap()
            .remove(0)
    };
    let set = "session.watch.set";
    let add = "session.watch.add";
    assert!(
        ask(set, &one, json!({"watches": watches("w", 3)}))
            .get("ok")
            .is_some()
    );
    assert!(
        ask(add, &one, json!({"watches": watches("w", 3)}))
            .get("ok")
            .is_some(),
        "the same"
    );
    assert!(is_denied(
        &ask(add, &one, json!({"watches": watches("x", 1)})),
        false
    ));
    assert!(is_denied(
        &ask(set, &two, json!({"watches": watches("w", 2)})),
        true
    ));
    assert!(
        ask(set, &two, json!({"watches": watches("w", 1)}))
            .get("ok")
            .is_some()
    );
    let views = watches("v", 2);
    assert!(is_denied(
        &ask(set, &one, json!({"watches": [], "views": views})),
        false
    ));
    let views = watches("v", 1);
    assert!(
        ask(
            set,
            &one,
            json!({"watches": watches("w", 2), "views": views})
        )
        .get("ok")
        .is_some()
    );
    let holding = |count: usize| {
        (0..count)
            .map(|n| json!({"id": format!("of:{n}"), "seq": 1}))
            .collect::<Vec<_>>()
    };
    let more = json!({"watches": [], "views": [], "holdings": holding(3)});
    assert!(is_denied(&ask(set, &one, more), true));
    let more = json!({"watches": [], "views": [], "holdings": holding(2)});
    assert!(ask(set, &one, more).get("ok").is_some());
    let total = rig.state.usage.total();
    assert_eq!((total.sessions, total.watches, total.holdings), (2, 1, 2));
    let reasons = rig.verdicts();
    for reason in ["frame-limit", "watch-limit", "holdings-limit"] {
        assert!(
            reasons.contains(&format!("request-refused: {reason}")),
            "{reason}"
        );
    }
}

#[test]
fn more_holdings_than_a_session_may_have_are_malformed() {
    let limits = ToolshedLimits {
        holdings_per_session: Some(1),
        ..ToolshedLimits::default()
    };
    let mut rig = Rig::with(limits);
    let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let session = rig.open(&bound, SPACE, ALICE);
    let more =
        json!({"watches": [], "holdings": [{"id": "of:1", "seq": 1}, {"id": "of:2", "seq": 1}]});
    let request = in_session("session.watch.set", SPACE, &session, more);
    assert_eq!(rig.request(&bound, &request).unwrap_err(), "list-malformed");
}

#[test]
fn a_session_taken_over_moves_with_its_watches() {
    let mut rig = Rig::new();
    let one = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let two = rig.bound(OTHER, SPACE, &[ALICE]);
    let opened = rig.request(&one, &open(SPACE, ALICE)).unwrap().remove(0);
    let session = opened["ok"]["sessionId"].as_str().unwrap().to_owned();
    let set = in_session(
        "session.watch.set",
        SPACE,
        &session,
        json!({"watches": watches("w", 2)}),
    );
    rig.request(&one, &set).unwrap();
    let mut resume = open(SPACE, ALICE);
    resume["session"] =
        json!({"sessionId": session, "sessionToken": opened["ok"]["sessionToken"], "seenSeq": 1});
    let answers = rig.request(&two, &resume).unwrap();
    assert_eq!(answers[0]["ok"]["resumed"], true);
    assert_eq!(messages(&one)[0]["reason"], "taken-over");
    assert!(
        rig.state
            .context(rig.link, &CONTEXT)
            .unwrap()
            .sessions
            .is_empty()
    );
    assert_eq!(
        rig.state.context(rig.link, &OTHER).unwrap().amounts.watches,
        2
    );
    assert_eq!(rig.state.usage.total().watches, 2);
}

#[test]
fn an_exhausted_output_closes_with_its_snapshot() {
    let limits = ToolshedLimits {
        output_bytes_per_socket: Some(2000),
        ..ToolshedLimits::default()
    };
    let mut rig = Rig::with(limits);
    let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let session = rig.open(&bound, SPACE, ALICE);
    for number in 0..100 {
        let mut request = in_session("session.ack", SPACE, &session, json!({"seenSeq": 1}));
        request["requestId"] = format!("r{number}").into();
        let body = [TEXT_PREFIX, request.to_string().as_bytes()].concat();
        if rig.request_bytes(&bound, &request, body, false).is_err() {
            break;
        }
    }
    let lines = rig.verdicts.borrow();
    let closed = lines
        .iter()
        .find(|line| line["verdict"] == "context-closed")
        .unwrap();
    assert_eq!(closed["reason"], "output-limit");
    let snapshot = &closed["outputLimit"];
    assert_eq!(snapshot["classification"], "queued-output");
    assert_eq!(snapshot["limitBytes"], 2000);
    assert_eq!(snapshot["messageType"], "response");
    assert!(snapshot["bufferedBytes"].as_u64() <= Some(2000));
    let total =
        snapshot["bufferedBytes"].as_u64().unwrap() + snapshot["frameBytes"].as_u64().unwrap();
    assert!(total > 2000);
}
