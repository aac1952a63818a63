//! Watches, holdings, views and effects.
//!
//! Compiled under `#[cfg(test)]` alone.

use super::super::{Effects, MemoryOptions, WatchLimits};
use super::support::*;
use serde_json::{Value, json};

fn fixture(options: MemoryOptions) -> (Host, Client, Client) {
    let (space, alice, bob) = (did(9), did(1), did(2));
    let mut host = Host::with(options);
    host.seed(
        &space,
        json!({alice.as_str(): "OWNER", bob.as_str(): "WRITE"}),
    );
    let alice = Client::new(&mut host, &space, &alice);
    let bob = Client::new(&mut host, &space, &bob);
    (host, alice, bob)
}

fn two() -> (Host, Client, Client) {
    fixture(MemoryOptions::default())
}

#[test]
fn a_watch_set_delivers_its_union_and_removes_what_left() {
    let (mut host, alice, bob) = two();
    bob.write(&mut host, 1, json!([set("of:a", 1), set("of:b", 2)]))
        .expect("commit");
    bob.write(&mut host, 2, json!([delete("of:b")]))
        .expect("commit");
    let watches = json!([
        watch("w", &["of:b", "of:a"]),
        watch("v", &["of:a", "of:never"])
    ]);
    let ok = alice
        .watch_set(&mut host, json!({"watches": watches}))
        .expect("watch");
    assert_eq!(
        ok,
        json!({"serverSeq": 3, "sync": {
            "type": "sync", "fromSeq": 0, "toSeq": 3,
            "upserts": [
                {"branch": "", "id": "of:a", "scope": "space", "seq": 2, "doc": {"value": 1}},
                {"branch": "", "id": "of:b", "scope": "space", "seq": 3, "deleted": true},
                {"branch": "", "id": "of:never", "scope": "space", "seq": 0, "deleted": true},
            ],
            "removes": [],
        }})
    );
    assert_eq!(host.memory.sessions(alice.backend)[0].watches, 2);
    alice
        .ask(&mut host, "session.ack", json!({"seenSeq": 3}))
        .expect("ack");
    let watches = json!([watch("v", &["of:a"])]);
    let ok = alice
        .watch_set(&mut host, json!({"watches": watches}))
        .expect("watch");
    assert_eq!(ok["sync"]["fromSeq"], 3);
    assert_eq!(ids(&ok["sync"]["upserts"]), ["of:a"]);
    assert_eq!(
        ok["sync"]["removes"],
        json!([
            {"branch": "", "id": "of:b", "scope": "space"},
            {"branch": "", "id": "of:never", "scope": "space"},
        ])
    );
    bob.write(&mut host, 3, json!([set("of:b", 3)]))
        .expect("commit");
    assert!(alice.effects(&mut host).is_empty(), "not watched any more");
    let ok = alice
        .watch_set(&mut host, json!({"watches": []}))
        .expect("watch");
    assert_eq!(ids(&ok["sync"]["removes"]), ["of:a"]);
    assert_eq!(host.memory.sessions(alice.backend)[0].watches, 0);
}

#[test]
fn what_is_held_is_not_sent_again() {
    let (mut host, alice, bob) = two();
    bob.write(
        &mut host,
        1,
        json!([set("of:a", 1), set("of:b", 2), set("of:c", 3)]),
    )
    .expect("commit");
    bob.write(&mut host, 2, json!([delete("of:c")]))
        .expect("commit");
    let watches = json!([watch("w", &["of:a", "of:b", "of:c", "of:never"])]);
    let holding = |host: &mut Host, holdings: Value| {
        alice
            .watch_set(host, json!({"watches": watches, "holdings": holdings}))
            .map(|ok| ok["sync"].clone())
    };
    let sync = holding(
        &mut host,
        json!([
            {"id": "of:a", "seq": 2},
            {"id": "of:b", "seq": 1},
            {"id": "of:c", "seq": 3, "deleted": true},
            {"id": "of:never", "seq": 0, "deleted": true},
            {"id": "of:gone", "seq": 1},
        ]),
    )
    .expect("watch");
    assert_eq!(ids(&sync["upserts"]), ["of:b"]);
    assert_eq!(ids(&sync["removes"]), ["of:gone"]);
    assert_eq!(host.memory.sessions(alice.backend)[0].holdings, 5);
    let sync = holding(&mut host, json!([{"id": "of:c", "seq": 3}])).expect("watch");
    assert_eq!(ids(&sync["upserts"]), ["of:a", "of:b", "of:c", "of:never"]);
    let sync = holding(&mut host, json!([])).expect("watch");
    assert_eq!(ids(&sync["upserts"]).len(), 4);
    for bad in [
        json!({}),
        json!([1]),
        json!([{"id": "of:a"}]),
        json!([{"id": "of:a", "seq": 1, "branch": "b"}]),
    ] {
        assert_eq!(
            holding(&mut host, bad).expect_err("holdings")["name"],
            "ProtocolError"
        );
    }
}

#[test]
fn a_watch_add_delivers_what_is_new() {
    let (mut host, alice, bob) = two();
    bob.write(&mut host, 1, json!([set("of:a", 1), set("of:b", 2)]))
        .expect("commit");
    let ok = alice
        .watch_add(&mut host, json!([watch("w", &["of:a"])]))
        .expect("add");
    assert_eq!(ids(&ok["sync"]["upserts"]), ["of:a"]);
    let ok = alice
        .watch_add(&mut host, json!([watch("x", &["of:b", "of:a"])]))
        .expect("add");
    assert_eq!(ids(&ok["sync"]["upserts"]), ["of:b"]);
    assert_eq!(ok["sync"]["fromSeq"], 2);
    // The same definition, roots in another order.
    let ok = alice
        .watch_add(&mut host, json!([watch("x", &["of:a", "of:b"])]))
        .expect("add");
    assert_eq!(
        (&ok["sync"]["upserts"], &ok["sync"]["removes"]),
        (&json!([]), &json!([]))
    );
    let other = json!([watch("y", &["of:c"]), watch("x", &["of:c"])]);
    let error = alice
        .watch_add(&mut host, other)
        .expect_err("another definition");
    assert_eq!(error["name"], "ProtocolError");
    assert_eq!(
        error["message"],
        "session.watch.add may not replace an existing watch id; use session.watch.set"
    );
    assert_eq!(
        host.memory.sessions(alice.backend)[0].watches,
        2,
        "nothing of it was added"
    );
    bob.write(&mut host, 2, json!([set("of:c", 1)]))
        .expect("commit");
    assert!(alice.effects(&mut host).is_empty());
}

#[test]
fn effects_go_to_those_who_watch_and_may_read() {
    let (mut host, alice, bob) = two();
    let idle = Client::new(&mut host, &alice.space, &did(1));
    let elsewhere = did(20);
    host.seed(&elsewhere, json!({did(1).as_str(): "OWNER"}));
    let stranger = Client::new(&mut host, &elsewhere, &did(1));
    for client in [&alice, &bob, &stranger] {
        let watches = json!([watch("w", &["of:a"])]);
        client
            .watch_set(&mut host, json!({"watches": watches}))
            .expect("watch");
    }
    bob.write(&mut host, 1, json!([set("of:a", 1), set("of:z", 1)]))
        .expect("commit");
    assert_eq!(
        alice.effects(&mut host),
        [json!({
            "type": "sync", "fromSeq": 1, "toSeq": 2, "removes": [],
            "upserts": [{"branch": "", "id": "of:a", "scope": "space", "seq": 2, "doc": {"value": 1}}],
        })]
    );
    // The writer set it, so it is told only that its verdict is in what it has.
    assert_eq!(
        bob.effects(&mut host),
        [json!({
            "type": "sync", "fromSeq": 1, "toSeq": 2, "removes": [], "upserts": [], "caughtUpLocalSeq": 1,
        })]
    );
    assert!(stranger.effects(&mut host).is_empty() && idle.effects(&mut host).is_empty());
    let change = json!([patch(
        "of:a",
        json!([{"op": "increment", "path": "/value", "by": 1}])
    )]);
    bob.write(&mut host, 2, change).expect("commit");
    assert_eq!(
        alice.effects(&mut host)[0]["upserts"][0]["doc"],
        json!({"value": 2})
    );
    let own = bob.effects(&mut host);
    assert_eq!(
        own[0]["upserts"][0]["doc"],
        json!({"value": 2}),
        "a patch's outcome is told"
    );
    assert_eq!(own[0]["caughtUpLocalSeq"], 2);
    bob.write(&mut host, 3, json!([delete("of:a")]))
        .expect("commit");
    assert_eq!(alice.effects(&mut host)[0]["upserts"][0]["deleted"], true);
    bob.effects(&mut host);

    // Without READ nothing is pushed, not even once more.
    let acl = set(
        &format!("of:{}", alice.space),
        json!({did(1).as_str(): "OWNER"}),
    );
    alice.write(&mut host, 1, json!([acl])).expect("ACL");
    assert_eq!(host.pushes(bob.backend)[0]["type"], "session/revoked");
    alice
        .write(&mut host, 2, json!([set("of:a", 9)]))
        .expect("commit");
    assert!(host.pushes(bob.backend).is_empty());
    assert_eq!(
        idle.read(&mut host, "of:a")["document"],
        json!({"value": 9})
    );
}

#[test]
fn a_conflict_tells_again_what_it_was_about() {
    let (mut host, alice, bob) = two();
    let watches = json!([watch("w", &["of:a", "of:b", "of:c"])]);
    alice
        .watch_set(&mut host, json!({"watches": watches}))
        .expect("watch");
    bob.write(&mut host, 1, json!([set("of:a", 1)]))
        .expect("commit");
    alice.effects(&mut host);
    let stale = commit(
        7,
        json!([{"id": "of:a", "path": [], "seq": 0}]),
        json!([set("of:b", 1), set("of:z", 1)]),
    );
    assert_eq!(
        alice.transact(&mut host, stale).expect_err("stale")["name"],
        "ConflictError"
    );
    let effects = alice.effects(&mut host);
    assert_eq!(effects.len(), 1);
    assert_eq!(ids(&effects[0]["upserts"]), ["of:a", "of:b"]);
    assert_eq!(effects[0]["caughtUpLocalSeq"], 7);
    assert!(bob.effects(&mut host).is_empty());
}

#[test]
fn a_scope_of_ones_own_is_watched_by_oneself() {
    let (mut host, alice, bob) = two();
    let root = json!({"id": "of:a", "scope": "user", "selector": {"path": [], "schema": false}});
    let watches = json!([{"id": "w", "kind": "query", "query": {"roots": [root]}}]);
    for client in [&alice, &bob] {
        client
            .watch_set(&mut host, json!({"watches": watches}))
            .expect("watch");
    }
    let second = Client::new(&mut host, &alice.space, &did(1));
    let write = json!([{"op": "set", "id": "of:a", "scope": "user", "value": {"value": 1}}]);
    second.write(&mut host, 1, write).expect("commit");
    let effects = alice.effects(&mut host);
    assert_eq!(effects[0]["upserts"][0]["scope"], "user");
    assert!(bob.effects(&mut host).is_empty());
}

#[test]
fn views_are_kept_until_they_are_named() {
    let (mut host, alice, bob) = two();
    let view = |id: &str, document: &str| {
        json!({
            "id": id, "revision": 0, "query": {"roots": roots(&[document])}, "mode": "speculate",
            "componentContractVersion": "1",
        })
    };
    let first = json!({"watches": [], "views": [view("v0", "of:a"), view("v1", "of:b")]});
    let ok = alice.watch_set(&mut host, first).expect("views");
    assert_eq!(ids(&ok["sync"]["upserts"]), ["of:a", "of:b"]);
    let usage = &host.memory.sessions(alice.backend)[0];
    assert_eq!((usage.watches, usage.views), (0, 2));
    bob.write(&mut host, 1, json!([set("of:a", 1)]))
        .expect("commit");
    assert_eq!(alice.effects(&mut host).len(), 1);
    let keep = json!({"watches": [watch("w", &["of:c"])]});
    let ok = alice.watch_set(&mut host, keep).expect("keep");
    assert_eq!(ids(&ok["sync"]["upserts"]), ["of:a", "of:b", "of:c"]);
    // An add reads its watches only.
    let add = json!({"watches": [], "views": [], "holdings": []});
    alice.ask(&mut host, "session.watch.add", add).expect("add");
    assert_eq!(host.memory.sessions(alice.backend)[0].views, 2);
    let clear = json!({"watches": [watch("w", &["of:c"])], "views": []});
    let ok = alice.watch_set(&mut host, clear).expect("clear");
    assert_eq!(ids(&ok["sync"]["removes"]), ["of:a", "of:b"]);
    assert_eq!(host.memory.sessions(alice.backend)[0].views, 0);
}

#[test]
fn a_refused_watch_request_changes_nothing() {
    let (mut host, alice, bob) = fixture(MemoryOptions {
        watch_limits: WatchLimits {
            per_session: 3,
            ..WatchLimits::default()
        },
        ..MemoryOptions::default()
    });
    alice
        .watch_set(&mut host, json!({"watches": [watch("w", &["of:a"])]}))
        .expect("watch");
    let root = |more: Value| {
        let mut root = json!({"id": "of:x", "selector": {"path": []}});
        for (key, value) in more.as_object().expect("object") {
            root[key] = value.clone();
        }
        json!([{"id": "x", "kind": "graph", "query": {"roots": [root]}}])
    };
    for (watches, error) in [
        (
            json!([watch("x", &["of:1", "of:2", "of:3", "of:4"])]),
            "QueryError",
        ),
        (json!({}), "InvalidMessageError"),
        (json!([1]), "ProtocolError"),
        (json!([watch("a b", &[])]), "ProtocolError"),
        (
            json!([watch("x", &["of:1"]), watch("x", &["of:2"])]),
            "ProtocolError",
        ),
        (
            json!([{"id": "x", "kind": "operation", "query": {"id": "of:x", "path": []}}]),
            "QueryError",
        ),
        (
            json!([{"id": "x", "kind": "graph", "query": {}}]),
            "QueryError",
        ),
        (
            json!([{"id": "x", "kind": "graph", "query": {"roots": [], "branch": "b"}}]),
            "QueryError",
        ),
        (
            json!([{"id": "x", "kind": "graph", "query": {"roots": [], "atSeq": 1}}]),
            "QueryError",
        ),
        (root(json!({"selector": {}})), "QueryError"),
        (root(json!({"scope": "galaxy"})), "QueryError"),
        (root(json!({"entityScopeKey": "user:x"})), "QueryError"),
        (root(json!({"id": ""})), "QueryError"),
    ] {
        let result = alice.watch_set(&mut host, json!({"watches": watches}));
        assert_eq!(result.expect_err("refused")["name"], error, "{watches}");
        assert!(alice.watch_add(&mut host, watches).is_err());
    }
    bob.write(&mut host, 1, json!([set("of:a", 1)]))
        .expect("commit");
    assert_eq!(alice.effects(&mut host).len(), 1);
    alice
        .watch_add(&mut host, json!([watch("x", &["of:b", "of:c"])]))
        .expect("room for three");
    assert!(
        alice
            .watch_add(&mut host, json!([watch("y", &["of:d"])]))
            .is_err()
    );
}

#[test]
fn a_sync_larger_than_a_message_goes_on_in_effects() {
    let (mut host, alice, bob) = fixture(MemoryOptions {
        frame_slots: Some(200),
        ..MemoryOptions::default()
    });
    let names: Vec<String> = (10..50).map(|n| format!("of:{n}")).collect();
    for (local_seq, name) in (1..).zip(&names) {
        bob.write(&mut host, local_seq, json!([set(name, 1)]))
            .expect("commit");
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let ok = alice
        .watch_set(&mut host, json!({"watches": [watch("w", &names)]}))
        .expect("watch");
    let mut syncs = vec![ok["sync"].clone()];
    syncs.extend(alice.effects(&mut host));
    let mut got = Vec::new();
    let last = syncs.len() - 1;
    assert!(last > 1);
    for (index, sync) in syncs.iter().enumerate() {
        assert!(ids(&sync["upserts"]).len() < 20);
        // Only the last one claims the newest state.
        assert_eq!(sync["toSeq"] == 41, index == last, "{sync}");
        got.extend(ids(&sync["upserts"]));
    }
    assert_eq!(got, names);
    let query = json!({"query": {"roots": roots(&names)}});
    assert_eq!(
        alice
            .ask(&mut host, "graph.query", query)
            .expect_err("too large")["name"],
        "QueryError"
    );
}

#[test]
fn batched_effects_come_when_they_are_asked_for() {
    let (mut host, alice, bob) = fixture(MemoryOptions {
        effects: Effects::Batched,
        ..MemoryOptions::default()
    });
    alice
        .watch_set(
            &mut host,
            json!({"watches": [watch("w", &["of:a", "of:b"])]}),
        )
        .expect("watch");
    for n in 1..4_u64 {
        bob.write(&mut host, n, json!([set("of:a", n)]))
            .expect("commit");
    }
    assert!(alice.effects(&mut host).is_empty() && host.memory.has_pending());
    // An add answers with everything that is due.
    let ok = alice
        .watch_add(&mut host, json!([watch("x", &["of:c"])]))
        .expect("add");
    assert_eq!(ids(&ok["sync"]["upserts"]), ["of:a", "of:c"]);
    host.take_flushed();
    assert!(alice.effects(&mut host).is_empty() && !host.memory.has_pending());
    for n in 4..8_u64 {
        bob.write(&mut host, n, json!([set("of:a", n), set("of:b", n)]))
            .expect("commit");
    }
    host.take_flushed();
    let effects = alice.effects(&mut host);
    assert_eq!(effects.len(), 1);
    assert_eq!(effects[0]["upserts"][0]["doc"], json!({"value": 7}));
    assert_eq!(
        (&effects[0]["fromSeq"], &effects[0]["toSeq"]),
        (&json!(4), &json!(8))
    );
    // A session that ends meanwhile is told nothing.
    bob.write(&mut host, 8, json!([set("of:a", 8)]))
        .expect("commit");
    host.memory.disconnect(alice.backend);
    host.take_flushed();
    assert!(alice.effects(&mut host).is_empty());
}

#[test]
fn a_client_without_markers_is_told_of_foreign_changes_only() {
    let (mut host, _, bob) = two();
    let mut flags = host.memory.capabilities();
    flags.remove("verdictCatchUpMarkers");
    let backend = host.connect_with(&flags, &[did(1)]);
    let id = host.session(backend, &bob.space, &did(1));
    let plain = Client {
        backend,
        id,
        ..bob.clone()
    };
    plain
        .watch_set(&mut host, json!({"watches": [watch("w", &["of:a"])]}))
        .expect("watch");
    plain
        .write(&mut host, 1, json!([set("of:a", 1)]))
        .expect("commit");
    assert!(plain.effects(&mut host).is_empty());
    bob.write(&mut host, 1, json!([set("of:a", 2)]))
        .expect("commit");
    assert_eq!(plain.effects(&mut host).len(), 1);
}
