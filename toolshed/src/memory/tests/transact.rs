//! Commits: exactly once, conflicts, operations, capabilities, bounds.
//!
//! Compiled under `#[cfg(test)]` alone.

use super::support::*;
use serde_json::{Value, json};

fn fixture() -> (Host, Client) {
    let (space, alice) = (did(9), did(1));
    let mut host = Host::new();
    host.seed(&space, json!({alice.as_str(): "OWNER"}));
    let client = Client::new(&mut host, &space, &alice);
    (host, client)
}

fn name(result: &Result<Value, Value>) -> &str {
    match result {
        Ok(_) => "ok",
        Err(error) => error["name"].as_str().expect("name"),
    }
}

#[test]
fn a_commit_answers_with_its_revisions() {
    let (mut host, client) = fixture();
    let operations = json!([
        set("of:a", json!({"title": "x"})),
        patch("of:b", json!([{"op": "add", "path": "/value/n", "value": 1}])),
        delete("of:c"),
        {"op": "set", "id": "of:d", "scope": "user", "value": {"value": 1}},
    ]);
    let ok = client.write(&mut host, 1, operations).expect("commit");
    assert_eq!(ok["seq"], 2);
    assert_eq!(ok["branch"], "");
    let user = format!("user:{}", did(1).as_str().replace(':', "%3A"));
    assert_eq!(
        ok["revisions"],
        json!([
            {"id": "of:a", "scopeKey": "space", "branch": "", "seq": 2, "opIndex": 0, "commitSeq": 2,
                "op": "set", "document": {"value": {"title": "x"}}},
            {"id": "of:b", "scopeKey": "space", "branch": "", "seq": 2, "opIndex": 1, "commitSeq": 2,
                "op": "patch", "patches": [{"op": "add", "path": "/value/n", "value": 1}]},
            {"id": "of:c", "scopeKey": "space", "branch": "", "seq": 2, "opIndex": 2, "commitSeq": 2,
                "op": "delete"},
            {"id": "of:d", "scopeKey": user, "scope": "user", "branch": "", "seq": 2, "opIndex": 3,
                "commitSeq": 2, "op": "set", "document": {"value": 1}},
        ])
    );
    assert_eq!(
        client.read(&mut host, "of:b")["document"],
        json!({"value": {"n": 1}})
    );
    assert_eq!(
        client.read(&mut host, "of:c"),
        json!({"branch": "", "id": "of:c", "seq": 2, "document": null})
    );
    assert_eq!(client.read(&mut host, "of:d")["seq"], 0, "another scope");
    let query = json!({"roots": [{"id": "of:d", "scope": "user", "selector": {"path": []}}]});
    let ok = client
        .ask(&mut host, "graph.query", json!({"query": query}))
        .expect("query");
    assert_eq!(
        ok["entities"][0],
        json!({
            "branch": "", "id": "of:d", "scope": "user", "seq": 2, "document": {"value": 1},
        })
    );
}

#[test]
fn a_commit_happens_once_over_a_restart() {
    let (mut host, mut client) = fixture();
    let (space, alice) = (client.space, did(1));
    let ok = host
        .open(client.backend, &space, &alice, json!({"sessionId": "mine"}))
        .expect("open");
    client.id = "mine".to_owned();
    let add = json!([patch(
        "of:n",
        json!([{"op": "increment", "path": "/value/n", "by": 1}])
    )]);
    let first = client.write(&mut host, 5, add.clone()).expect("commit");
    for restarts in 0..2 {
        let mut again = client.write(&mut host, 5, add.clone()).expect("replay");
        assert_eq!(again["replayed"], true);
        again.as_object_mut().expect("object").remove("replayed");
        assert_eq!(again, first);
        let other = client.write(&mut host, 5, json!([set("of:n", 0)]));
        assert_eq!(name(&other), "ProtocolError");
        let document = client.read(&mut host, "of:n")["document"].take();
        assert_eq!(
            document,
            json!({"value": {"n": 1}}),
            "after {restarts} restarts"
        );
        if restarts == 0 {
            host.restart();
            client.backend = host.connect(&[alice]);
            let session = json!({"sessionId": "mine", "sessionToken": ok["sessionToken"]});
            host.open(client.backend, &space, &alice, session)
                .expect("resume");
        }
    }
    // The same localSeq of another session is another commit.
    let other = Client::new(&mut host, &space, &alice);
    let ok = other.write(&mut host, 5, add).expect("commit");
    assert!(ok.get("replayed").is_none());
}

#[test]
fn a_rejected_commit_consumes_nothing() {
    let (mut host, client) = fixture();
    let bad = json!([
        set("of:a", 1),
        patch("of:b", json!([{"op": "remove", "path": "/value/x"}]))
    ]);
    let result = client.write(&mut host, 1, bad);
    assert_eq!(name(&result), "TransactionError");
    assert_eq!(client.read(&mut host, "of:a")["seq"], 0);
    let ok = client
        .write(&mut host, 1, json!([set("of:a", 2)]))
        .expect("commit");
    assert_eq!(ok["seq"], 2);
    assert!(ok.get("replayed").is_none());
}

#[test]
fn a_stale_confirmed_read_conflicts() {
    let (mut host, client) = fixture();
    client
        .write(&mut host, 1, json!([set("of:a", json!({"x": 1, "y": 1}))]))
        .expect("commit");
    let change = json!([patch(
        "of:a",
        json!([{"op": "replace", "path": "/value/x", "value": 2}])
    )]);
    client.write(&mut host, 2, change).expect("commit");
    let reading = |path: Value, seq: u64, local_seq: u64| {
        let read = json!([{"id": "of:a", "path": path, "seq": seq}]);
        commit(local_seq, read, json!([set("of:b", local_seq)]))
    };
    let error = client
        .transact(&mut host, reading(json!(["value", "x"]), 2, 3))
        .expect_err("stale");
    assert_eq!(
        error,
        json!({
            "name": "ConflictError",
            "message": "stale confirmed read: of:a at seq 2 conflicted with seq 3",
            "retryAfterSeq": 3,
            "conflicts": [{"of": "of:a", "scope": "space", "seq": 2, "conflictSeq": 3}],
        })
    );
    for (path, seq, verdict) in [
        (json!([]), 2, "ConflictError"),
        (json!(["value"]), 2, "ConflictError"),
        (json!(["value", "x", "deep"]), 2, "ConflictError"),
        (json!(["value", "y"]), 2, "ok"),
        (json!(["value", "x"]), 3, "ok"),
        (json!(["value", "y"]), 1, "ConflictError"),
        (json!(["value", "y"]), 0, "ConflictError"),
    ] {
        let local_seq = 10 + client.read(&mut host, "of:b")["seq"].as_u64().expect("seq");
        let result = client.transact(&mut host, reading(path.clone(), seq, local_seq));
        assert_eq!(name(&result), verdict, "{path} at {seq}");
    }
    client
        .write(&mut host, 90, json!([delete("of:a")]))
        .expect("delete");
    let result = client.transact(&mut host, reading(json!(["value", "y"]), 3, 91));
    assert_eq!(
        name(&result),
        "ConflictError",
        "a delete overlaps everything"
    );
    let absent = json!([{"id": "of:never", "path": [], "seq": 0}]);
    assert!(
        client
            .transact(&mut host, commit(92, absent, json!([set("of:never", 1)])))
            .is_ok()
    );
}

#[test]
fn pending_reads_stand_on_commits_of_the_session() {
    let (mut host, client) = fixture();
    let other = Client::new(&mut host, &client.space, &did(1));
    client
        .write(&mut host, 1, json!([set("of:a", 1)]))
        .expect("commit");
    client
        .write(&mut host, 2, json!([set("of:a", 2)]))
        .expect("commit");
    let pending = |local_seq: u64, named: Value, basis: Option<u64>| {
        let mut read = json!({"id": "of:a", "path": ["value"], "localSeq": named});
        if let Some(basis) = basis {
            read["basisSeq"] = basis.into();
        }
        json!({
            "localSeq": local_seq, "reads": {"confirmed": [], "pending": [read]},
            "operations": [set("of:b", local_seq)],
        })
    };
    assert!(
        client
            .transact(&mut host, pending(3, json!(2), None))
            .is_ok()
    );
    assert!(
        client
            .transact(&mut host, pending(4, json!([1, 2]), Some(1)))
            .is_ok()
    );
    let error = client
        .transact(&mut host, pending(5, json!(9), None))
        .expect_err("unknown");
    assert_eq!(error["message"], "pending dependency not resolved: 9");
    assert_eq!(error["retryAfterSeq"], 5);
    // Without the first commit named, it is somebody else's write since the basis.
    assert_eq!(
        name(&client.transact(&mut host, pending(5, json!(2), Some(1)))),
        "ConflictError"
    );
    assert_eq!(
        name(&client.transact(&mut host, pending(5, json!(2), Some(99)))),
        "ProtocolError"
    );
    other
        .write(&mut host, 1, json!([set("of:a", 3)]))
        .expect("commit");
    let error = client
        .transact(&mut host, pending(5, json!(2), None))
        .expect_err("stale");
    assert_eq!(
        error["message"],
        "stale pending read: of:a via localSeq 2 conflicted with seq 6"
    );
    assert_eq!(
        name(&other.transact(&mut host, pending(2, json!(2), None))),
        "ConflictError"
    );
}

#[test]
fn preconditions_hold_or_fail() {
    let (mut host, client) = fixture();
    client
        .write(&mut host, 1, json!([set("of:a", 1)]))
        .expect("commit");
    let with = |local_seq: u64, precondition: Value| {
        let mut commit = commit(local_seq, json!([]), json!([set("of:b", 1)]));
        commit["preconditions"] = json!([precondition]);
        commit
    };
    let origin = |n: u64| json!({"kind": "origin-committed", "originLocalSeq": n});
    let absent = |id: &str| json!({"kind": "entity-absent", "id": id});
    assert!(client.transact(&mut host, with(2, origin(1))).is_ok());
    assert!(
        client
            .transact(&mut host, with(3, absent("of:never")))
            .is_ok()
    );
    let error = client
        .transact(&mut host, with(4, origin(9)))
        .expect_err("origin");
    assert_eq!(error["name"], "PreconditionFailedError");
    assert_eq!(error["precondition"], "origin-committed");
    let error = client
        .transact(&mut host, with(4, absent("of:a")))
        .expect_err("present");
    assert_eq!(error["precondition"], "receipt-exists");
    let hash = json!({"kind": "entity-value-hash", "id": "of:a", "valueHash": null});
    assert_eq!(
        name(&client.transact(&mut host, with(4, hash))),
        "ProtocolError"
    );
}

#[test]
fn malformed_commits_are_refused() {
    let (mut host, client) = fixture();
    let good = commit(1, json!([]), json!([set("of:a", 1)]));
    for (member, value, verdict) in [
        ("localSeq", json!(-1), "ProtocolError"),
        ("localSeq", json!("1"), "ProtocolError"),
        ("reads", json!(null), "ProtocolError"),
        ("reads", json!({"confirmed": []}), "ProtocolError"),
        (
            "reads",
            json!({"confirmed": [{"id": "of:a", "seq": 0}], "pending": []}),
            "ProtocolError",
        ),
        (
            "reads",
            json!({"confirmed": [{"id": "of:a", "seq": -0.0, "path": []}], "pending": []}),
            "ProtocolError",
        ),
        (
            "reads",
            json!({"confirmed": [{"id": "of:a", "seq": 0, "path": [1]}], "pending": []}),
            "ProtocolError",
        ),
        (
            "reads",
            json!({"confirmed": [], "pending": [{"id": "of:a", "path": [], "localSeq": []}]}),
            "ProtocolError",
        ),
        ("operations", json!([]), "TransactionError"),
        ("operations", json!({}), "ProtocolError"),
        (
            "operations",
            json!([{"op": "sqlite", "id": "of:a"}]),
            "ProtocolError",
        ),
        (
            "operations",
            json!([{"op": "set", "id": "", "value": {}}]),
            "ProtocolError",
        ),
        (
            "operations",
            json!([{"op": "set", "id": "of:a", "scope": "galaxy", "value": {}}]),
            "ProtocolError",
        ),
        (
            "operations",
            json!([{"op": "set", "id": "of:a"}]),
            "ProtocolError",
        ),
        (
            "operations",
            json!([{"op": "set", "id": "of:a", "value": []}]),
            "TransactionError",
        ),
        (
            "operations",
            json!([{"op": "set", "id": "of:a", "value": {"/Bytes@1": ""}}]),
            "TransactionError",
        ),
        (
            "operations",
            json!([{"op": "set", "id": "of:stream-events:x", "value": {}}]),
            "ProtocolError",
        ),
        (
            "operations",
            json!([{"op": "patch", "id": "of:a", "patches": [{"op": "test"}]}]),
            "TransactionError",
        ),
        ("branch", json!("b"), "ProtocolError"),
        ("merge", json!({}), "ProtocolError"),
        ("spaceKind", json!("kind"), "ProtocolError"),
    ] {
        let mut bad = good.clone();
        bad[member] = value.clone();
        assert_eq!(
            name(&client.transact(&mut host, bad)),
            verdict,
            "{member} {value}"
        );
    }
    for bad in [json!({}), json!({"commit": []})] {
        assert_eq!(
            name(&client.ask(&mut host, "transact", bad)),
            "InvalidMessageError"
        );
    }
    assert_eq!(client.transact(&mut host, good).expect("commit")["seq"], 2);
}

#[test]
fn documents_are_bounded() {
    let space = did(9);
    let mut host = Host::with(super::super::MemoryOptions {
        frame_slots: Some(1_000),
        ..Default::default()
    });
    host.seed(&space, json!({did(1).as_str(): "OWNER"}));
    let client = Client::new(&mut host, &space, &did(1));
    let list: Vec<u64> = (0..500).collect();
    let append = json!([patch(
        "of:l",
        json!([{"op": "append", "path": "/value", "values": list}])
    )]);
    assert!(client.write(&mut host, 1, append.clone()).is_ok());
    let result = client.write(&mut host, 2, append);
    assert_eq!(
        name(&result),
        "TransactionError",
        "no message could carry it"
    );
    let many: Vec<Value> = (0..200).map(|n| delete(&format!("of:{n}"))).collect();
    assert_eq!(
        name(&client.write(&mut host, 2, many.into())),
        "TransactionError"
    );
    let large = json!([set("of:large", "x".repeat(7 << 20))]);
    assert_eq!(name(&client.write(&mut host, 2, large)), "TransactionError");
    let mut deep = json!(1);
    for _ in 0..59 {
        deep = json!([deep]);
    }
    assert_eq!(
        name(&client.write(&mut host, 2, json!([set("of:deep", deep)]))),
        "TransactionError"
    );
    let large = json!([set("of:large", "x".repeat(5 << 20))]);
    let ok = client.write(&mut host, 2, large.clone()).expect("commit");
    assert!(
        ok["revisions"][0].get("document").is_none(),
        "too large to repeat"
    );
    let again = client.write(&mut host, 2, large).expect("replay");
    assert_eq!(again["revisions"], ok["revisions"]);
}

#[test]
fn capabilities_are_enforced_at_every_request() {
    let (space, owner, writer, reader, other) = (did(9), did(1), did(2), did(3), did(4));
    let mut host = Host::new();
    let acl = |more: Value| {
        let mut acl =
            json!({owner.as_str(): "OWNER", writer.as_str(): "WRITE", reader.as_str(): "READ"});
        for (key, value) in more.as_object().expect("object") {
            acl[key] = value.clone();
        }
        set(&format!("of:{space}"), acl)
    };
    host.seed(&space, json!({owner.as_str(): "OWNER", writer.as_str(): "WRITE", reader.as_str(): "READ", "*": "READ"}));
    let owner = Client::new(&mut host, &space, &owner);
    let writer = Client::new(&mut host, &space, &writer);
    let reader = Client::new(&mut host, &space, &reader);
    let guest = Client::new(&mut host, &space, &other);
    let hers = json!([acl(json!({"*": "WRITE"}))]);
    for (client, may_write) in [
        (&owner, true),
        (&writer, true),
        (&reader, false),
        (&guest, false),
    ] {
        let result = client.write(&mut host, 1, json!([set("of:x", 1)]));
        assert_eq!(result.is_ok(), may_write);
        if !may_write {
            assert_eq!(name(&result), "AuthorizationError");
        }
        assert!(client.ask(&mut host, "entity-id.list", json!({})).is_ok());
    }
    for client in [&writer, &reader, &guest] {
        let error = client
            .write(&mut host, 2, hers.clone())
            .expect_err("not an owner");
        assert!(
            error["message"]
                .as_str()
                .expect("text")
                .contains("lacks OWNER"),
            "{error}"
        );
    }
    // Shape comes before capability.
    let result = writer.write(&mut host, 2, json!([delete(&format!("of:{space}"))]));
    assert_eq!(name(&result), "ProtocolError");
    owner.write(&mut host, 2, hers).expect("ACL");
    assert!(guest.write(&mut host, 2, json!([set("of:x", 2)])).is_ok());
    assert!(
        reader.write(&mut host, 2, json!([set("of:x", 3)])).is_err(),
        "an own entry wins"
    );

    // Whoever loses READ is told, after the verdict.
    owner
        .write(&mut host, 3, json!([acl(json!({}))]))
        .expect("ACL");
    assert_eq!(host.pushes(guest.backend)[0]["reason"], "unauthorized");
    assert_eq!(
        name(&guest.write(&mut host, 3, json!([set("of:x", 4)]))),
        "SessionError"
    );
    assert!(host.open(guest.backend, &space, &other, json!({})).is_err());
    assert!(host.pushes(writer.backend).is_empty());
    let handed = set(
        &format!("of:{space}"),
        json!({writer_did().as_str(): "OWNER"}),
    );
    assert!(owner.write(&mut host, 4, json!([handed])).is_ok());
    assert_eq!(host.pushes(owner.backend)[0]["type"], "session/revoked");
    assert_eq!(host.pushes(reader.backend).len(), 1);
    assert!(writer.write(&mut host, 4, json!([set("of:x", 5)])).is_ok());
}

fn writer_did() -> memory_wire::Did {
    did(2)
}

#[test]
fn identifiers_are_listed_in_pages() {
    let (mut host, client) = fixture();
    let operations: Vec<Value> = (0..5).map(|n| set(&format!("of:{n}"), n)).collect();
    client
        .write(&mut host, 1, operations.into())
        .expect("commit");
    client
        .write(&mut host, 2, json!([delete("of:3")]))
        .expect("commit");
    let acl = format!("of:{}", client.space);
    let list = |host: &mut Host, members: Value| client.ask(host, "entity-id.list", members);
    let ok = list(&mut host, json!({})).expect("list");
    assert_eq!(
        ok,
        json!({"serverSeq": 3, "ids": ["of:0", "of:1", "of:2", "of:4", acl]})
    );
    let ok = list(&mut host, json!({"limit": 2})).expect("list");
    assert_eq!(
        ok,
        json!({"serverSeq": 3, "ids": ["of:0", "of:1"], "nextAfter": "of:1"})
    );
    let next = json!({"limit": 1000, "after": "of:1", "expectedServerSeq": 3});
    let ok = list(&mut host, next).expect("list");
    assert_eq!(ok, json!({"serverSeq": 3, "ids": ["of:2", "of:4", acl]}));
    let error = list(&mut host, json!({"expectedServerSeq": 2})).expect_err("changed");
    assert_eq!(error["name"], "SnapshotChangedError");
    assert!(list(&mut host, json!({"limit": 0})).is_err());
    for (id, exists) in [("of:1", true), ("of:3", false), ("of:9", false)] {
        let ok = client
            .ask(&mut host, "entity-id.exists", json!({"id": id}))
            .expect("exists");
        assert_eq!(ok, json!({"serverSeq": 3, "exists": exists}));
    }
    let operations: Vec<Value> = (0..1000).map(|n| set(&format!("of:many{n}"), n)).collect();
    client
        .write(&mut host, 3, operations.into())
        .expect("commit");
    assert_eq!(name(&list(&mut host, json!({}))), "ProtocolError");
    let ok = list(&mut host, json!({"limit": 5000})).expect("list");
    assert_eq!(ok["ids"].as_array().expect("list").len(), 1000);
}
