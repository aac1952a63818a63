//! Who may open a session, genesis, resumption, and how sessions end.
//!
//! Compiled under `#[cfg(test)]` alone.

use super::support::*;
use serde_json::{Value, json};

fn name(error: &Value) -> &str {
    error["name"].as_str().expect("name")
}

fn genesis(space: &memory_wire::Did, entries: Value) -> Value {
    json!({
        "localSeq": 1,
        "reads": {"confirmed": [{"id": format!("of:{space}"), "path": [], "seq": 0}], "pending": []},
        "operations": [set(&format!("of:{space}"), entries)],
    })
}

#[test]
fn an_open_answers_with_a_token() {
    let (space, alice) = (did(9), did(1));
    let mut host = Host::new();
    host.seed(&space, json!({alice.as_str(): "OWNER"}));
    let backend = host.connect(&[alice]);
    let ok = host.open(backend, &space, &alice, json!({})).expect("open");
    assert_eq!(ok["serverSeq"], 1);
    assert_eq!(ok["caughtUpLocalSeq"], 0);
    assert!(ok["sessionToken"].is_string() && ok.get("resumed").is_none());
    let named = host
        .open(backend, &space, &alice, json!({"sessionId": "mine"}))
        .expect("open");
    assert_eq!(named["sessionId"], "mine");
    let usage = host.memory.sessions(backend);
    assert_eq!(usage.len(), 2);
    assert!(
        usage
            .iter()
            .all(|usage| usage.principal == alice && usage.watches == 0)
    );
}

#[test]
fn an_open_needs_a_lease_ownership_read_and_a_current_client() {
    let (space, alice, bob) = (did(9), did(1), did(2));
    let mut host = Host::new();
    host.seed(&space, json!({alice.as_str(): "OWNER"}));
    let backend = host.connect(&[alice, bob]);
    let denied = json!({"name": "AuthorizationError", "message": "Routed memory request denied"});
    assert_eq!(
        host.open(backend, &space, &did(3), json!({})),
        Err(denied.clone())
    );
    host.leases.insert((backend, did(3)), host.now);
    let expired = host
        .open(backend, &space, &did(3), json!({}))
        .expect_err("expired");
    assert_eq!(expired["retriable"], true);
    host.lost.insert(space);
    assert_eq!(host.open(backend, &space, &alice, json!({})), Err(denied));
    host.lost.clear();
    let error = host
        .open(backend, &space, &bob, json!({}))
        .expect_err("no READ");
    assert_eq!(
        error["message"],
        format!("Principal {bob} lacks READ on space {space}")
    );
    let old = host.connect_with(&memory_wire::flags::Flags::new(), &[alice]);
    let error = host
        .open(old, &space, &alice, json!({}))
        .expect_err("old client");
    assert_eq!(name(&error), "SessionRevokedError");
    for session in [
        json!({"actingAs": "space-owner"}),
        json!({"readCeiling": {}}),
        json!({"sessionId": "no good"}),
        json!({"seenSeq": -1}),
        json!({"spaceKind": "x"}),
    ] {
        let error = host
            .open(backend, &space, &alice, session)
            .expect_err("session");
        assert_eq!(name(&error), "ProtocolError");
    }
    assert!(host.memory.sessions(backend).is_empty());
}

#[test]
fn only_its_own_key_creates_a_space_and_only_where_it_belongs() {
    let (space, alice) = (did(9), did(1));
    let mut host = Host::new();
    let backend = host.connect(&[space, alice]);
    for principal in [space, alice] {
        let error = host
            .open(backend, &space, &principal, json!({}))
            .expect_err("listed");
        assert_eq!(name(&error), "AuthorizationError");
        assert!(error.get("retriable").is_none());
    }
    host.unlisted.insert(space);
    assert!(host.open(backend, &space, &alice, json!({})).is_err());
    assert!(
        !host.memory.has_space(&space).expect("store"),
        "nothing was created"
    );
    let ok = host
        .open(backend, &space, &space, json!({}))
        .expect("created");
    assert_eq!(ok["serverSeq"], 0);
    assert!(host.memory.has_space(&space).expect("store"));
    let error = host
        .open(backend, &space, &alice, json!({}))
        .expect_err("before genesis");
    assert_eq!(name(&error), "AuthorizationError");
}

#[test]
fn genesis_is_an_acl_with_the_declarations_of_its_open() {
    let (space, alice) = (did(9), did(1));
    let mut host = Host::new();
    host.unlisted.insert(space);
    let backend = host.connect(&[space, alice]);
    let declared = json!({"spaceKind": "notebook", "genesisRoot": {"cause": "c"}});
    let ok = host
        .open(backend, &space, &space, declared.clone())
        .expect("open");
    let owner = Client {
        backend,
        space,
        id: ok["sessionId"].as_str().expect("identifier").to_owned(),
    };
    let error = owner
        .write(&mut host, 1, json!([set("of:x", 1)]))
        .expect_err("before the ACL");
    assert_eq!(
        error["message"],
        format!("Space {space} requires an ACL genesis commit before ordinary writes")
    );
    let mut commit = genesis(&space, json!({alice.as_str(): "OWNER"}));
    commit["spaceKind"] = "diary".into();
    assert_eq!(
        name(&owner.transact(&mut host, commit.clone()).expect_err("kind")),
        "ProtocolError"
    );
    commit["spaceKind"] = "notebook".into();
    commit["genesisRoot"] = json!({"cause": "c"});
    let ok = owner.transact(&mut host, commit.clone()).expect("genesis");
    assert_eq!(ok["seq"], 1);
    assert_eq!(
        owner.transact(&mut host, commit).expect("replay")["replayed"],
        true
    );

    // The key keeps implicit ownership; the kind is told and may be asserted.
    assert!(owner.write(&mut host, 2, json!([set("of:x", 1)])).is_ok());
    let ok = host.open(backend, &space, &alice, json!({})).expect("open");
    assert_eq!(ok["spaceKind"], "notebook");
    assert!(host.open(backend, &space, &alice, declared).is_ok());
    for wrong in [
        json!({"spaceKind": "diary"}),
        json!({"genesisRoot": {"cause": "d"}}),
    ] {
        assert!(host.open(backend, &space, &alice, wrong).is_err());
    }
    let late = json!({
        "localSeq": 3, "reads": {"confirmed": [], "pending": []}, "spaceKind": "notebook",
        "operations": [set("of:x", 2)],
    });
    assert_eq!(
        name(&owner.transact(&mut host, late).expect_err("late")),
        "ProtocolError"
    );
    host.restart();
    let backend = host.connect(&[alice]);
    let ok = host
        .open(backend, &space, &alice, json!({"spaceKind": "notebook"}))
        .expect("open");
    assert_eq!(ok["spaceKind"], "notebook");
}

#[test]
fn a_space_with_history_but_no_acl_is_refused_to_all_but_a_service() {
    let (space, service) = (did(9), did(8));
    let mut host = Host::with(super::super::MemoryOptions {
        services: vec![service],
        ..Default::default()
    });
    assert!(host.memory.seed(&space, &[set("of:old", 1)]).expect("seed"));
    assert!(!host.memory.seed(&space, &[set("of:old", 1)]).expect("seed"));
    host.unlisted.insert(space);
    let backend = host.connect(&[space, did(1), service]);
    for principal in [space, did(1)] {
        let error = host
            .open(backend, &space, &principal, json!({}))
            .expect_err("no ACL");
        assert_eq!(
            error["message"],
            format!("Space {space} has a malformed, ownerless, or retracted ACL")
        );
    }
    let repair = Client::new(&mut host, &space, &service);
    let acl = set(&format!("of:{space}"), json!({did(1).as_str(): "OWNER"}));
    assert!(repair.write(&mut host, 1, json!([acl])).is_ok());
    assert!(host.open(backend, &space, &did(1), json!({})).is_ok());
}

#[test]
fn a_token_survives_a_restart_and_the_session_its_replay() {
    let (space, alice, bob) = (did(9), did(1), did(2));
    let mut host = Host::new();
    host.seed(
        &space,
        json!({alice.as_str(): "OWNER", bob.as_str(): "READ"}),
    );
    let backend = host.connect(&[alice]);
    let ok = host.open(backend, &space, &alice, json!({})).expect("open");
    let (id, first) = (ok["sessionId"].clone(), ok["sessionToken"].clone());
    let client = Client {
        backend,
        space,
        id: id.as_str().expect("identifier").to_owned(),
    };
    let done = client
        .write(&mut host, 1, json!([set("of:x", 1)]))
        .expect("commit");
    host.restart();
    let backend = host.connect(&[alice, bob]);
    let with = |token: &Value| json!({"sessionId": id, "sessionToken": token, "seenSeq": 2});
    let error = host
        .open(backend, &space, &bob, with(&first))
        .expect_err("bound");
    assert_eq!(name(&error), "AuthorizationError");
    for session in [json!({"sessionId": id}), with(&json!("guess"))] {
        let error = host
            .open(backend, &space, &alice, session)
            .expect_err("token");
        assert_eq!(name(&error), "SessionRevokedError");
    }
    let ok = host
        .open(backend, &space, &alice, with(&first))
        .expect("resume");
    assert_eq!(ok["sessionId"], id);
    assert!(
        ok.get("resumed").is_none(),
        "its watches are gone, so it is a fresh session"
    );
    let second = ok["sessionToken"].clone();
    assert_ne!(second, first);
    let client = Client { backend, ..client };
    let mut replay = client
        .write(&mut host, 1, json!([set("of:x", 1)]))
        .expect("replay");
    assert_eq!(
        replay.as_object_mut().expect("object").remove("replayed"),
        Some(json!(true))
    );
    assert_eq!(replay, done);
    let error = client
        .write(&mut host, 1, json!([set("of:x", 2)]))
        .expect_err("mismatch");
    assert_eq!(
        error["message"],
        format!(
            "commit replay mismatch for session {} localSeq 1",
            client.id
        )
    );
    assert_eq!(client.read(&mut host, "of:x")["seq"], 2);

    // The answer with the second token may never have arrived.
    host.restart();
    let backend = host.connect(&[alice]);
    let third = host
        .open(backend, &space, &alice, with(&first))
        .expect("earlier token");
    assert!(
        host.open(backend, &space, &alice, with(&first)).is_err(),
        "live: newest token only"
    );
    assert!(
        host.open(backend, &space, &alice, with(&third["sessionToken"]))
            .is_ok()
    );

    // After a close nothing is left to resume.
    let client = Client { backend, ..client };
    client
        .ask(&mut host, "session.close", json!({}))
        .expect("close");
    assert_eq!(
        name(
            &client
                .write(&mut host, 9, json!([delete("of:x")]))
                .expect_err("closed")
        ),
        "SessionError"
    );
    assert!(
        host.open(backend, &space, &alice, json!({"sessionId": id}))
            .is_ok()
    );
}

#[test]
fn a_live_session_is_taken_over_with_its_watches() {
    let (space, alice) = (did(9), did(1));
    let mut host = Host::new();
    host.seed(&space, json!({alice.as_str(): "OWNER"}));
    let old = host.connect(&[alice]);
    let ok = host
        .open(old, &space, &alice, json!({"sessionId": "s"}))
        .expect("open");
    let mut reader = Client {
        backend: old,
        space,
        id: "s".to_owned(),
    };
    let watches = json!([watch("w", &["of:x", "of:y"])]);
    reader
        .watch_set(&mut host, json!({"watches": watches}))
        .expect("watch");
    let writer = Client::new(&mut host, &space, &alice);
    writer
        .write(&mut host, 1, json!([set("of:x", 1)]))
        .expect("commit");
    assert_eq!(reader.effects(&mut host).len(), 1);

    let new = host.connect(&[alice]);
    let session = json!({"sessionId": "s", "sessionToken": ok["sessionToken"], "seenSeq": 1});
    let ok = host.open(new, &space, &alice, session).expect("resume");
    assert_eq!(ok["resumed"], true);
    assert_eq!(ids(&ok["sync"]["upserts"]), ["of:x"]);
    assert_eq!(
        (&ok["sync"]["fromSeq"], &ok["sync"]["toSeq"]),
        (&json!(1), &json!(2))
    );
    let told = json!({
        "type": "session/revoked", "space": space.as_str(), "sessionId": "s", "reason": "taken-over",
    });
    assert_eq!(host.pushes(old), [told]);
    let error = reader
        .watch_add(&mut host, json!([]))
        .expect_err("taken over");
    assert_eq!(error["message"], "Session is not open on this connection");
    reader.backend = new;
    writer
        .write(&mut host, 2, json!([set("of:y", 1)]))
        .expect("commit");
    assert_eq!(ids(&reader.effects(&mut host)[0]["upserts"]), ["of:y"]);

    // With holdings, the difference.
    let members = json!({
        "principal": alice.as_str(),
        "session": {"sessionId": "s", "sessionToken": ok["sessionToken"]},
        "holdings": [{"id": "of:x", "seq": 2}, {"id": "of:z", "seq": 1}],
    });
    let ok = host
        .ask(new, "session.open", &space, members)
        .expect("resume");
    assert_eq!(ids(&ok["sync"]["upserts"]), ["of:y"]);
    assert_eq!(ids(&ok["sync"]["removes"]), ["of:z"]);
    assert!(host.pushes(new).is_empty(), "it was its own");
}

#[test]
fn sessions_end_with_their_lease_ownership_or_connection() {
    let (space, alice, bob) = (did(9), did(1), did(2));
    let mut host = Host::new();
    host.seed(
        &space,
        json!({alice.as_str(): "OWNER", bob.as_str(): "READ"}),
    );
    let backend = host.connect(&[alice, bob]);
    let id = host.session(backend, &space, &alice);
    let client = Client { backend, space, id };
    let other = host.session(backend, &space, &bob);
    host.expire(backend, &alice);
    assert!(host.pushes(backend).is_empty(), "renewed in time");
    host.leases.insert((backend, alice), host.now);
    host.expire(backend, &alice);
    let told = host.pushes(backend);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["sessionId"], client.id.as_str());
    assert_eq!(told[0]["reason"], "unauthorized");
    let error = client
        .write(&mut host, 1, json!([set("of:x", 1)]))
        .expect_err("ended");
    assert_eq!(name(&error), "SessionError");

    // The lease ran out while a request was on its way.
    host.leases.insert((backend, bob), host.now);
    let client = Client {
        backend,
        space,
        id: other,
    };
    let error = client
        .watch_set(&mut host, json!({"watches": []}))
        .expect_err("late");
    assert_eq!(name(&error), "SessionRevokedError");
    assert_eq!(host.pushes(backend)[0]["type"], "session/revoked");

    let client = Client::new(&mut host, &space, &alice);
    host.lost.insert(space);
    let error = client
        .write(&mut host, 1, json!([set("of:x", 1)]))
        .expect_err("fenced");
    assert_eq!(name(&error), "SessionRevokedError");
    assert_eq!(host.pushes(client.backend)[0]["type"], "session/revoked");
    host.lost.clear();
    let client = Client::new(&mut host, &space, &alice);
    assert_eq!(
        client.read(&mut host, "of:x")["seq"],
        0,
        "nothing was committed"
    );

    host.memory.disconnect(client.backend);
    assert!(host.memory.sessions(client.backend).is_empty());
    assert!(client.write(&mut host, 1, json!([set("of:x", 1)])).is_err());
    assert!(
        host.open(client.backend, &space, &alice, json!({}))
            .is_err()
    );
}

#[test]
fn requests_that_cannot_be_read_are_answered() {
    let (space, alice) = (did(9), did(1));
    let mut host = Host::new();
    host.seed(&space, json!({alice.as_str(): "OWNER"}));
    let client = Client::new(&mut host, &space, &alice);
    let base = json!({
        "type": "graph.query", "requestId": "r", "space": space.as_str(), "sessionId": client.id,
        "query": {"roots": []},
    });
    assert_eq!(
        host.send(client.backend, &base)["ok"]["entities"],
        json!([])
    );
    for (member, value, id) in [
        ("type", json!("graph.dance"), "r"),
        ("type", json!(1), "r"),
        ("requestId", json!(1), "invalid"),
        ("space", json!("did:key:z"), "r"),
        ("sessionId", json!(null), "r"),
    ] {
        let mut bad = base.clone();
        bad[member] = value;
        let answer = host.send(client.backend, &bad);
        assert_eq!(answer["requestId"], id);
        assert_eq!(name(&answer["error"]), "InvalidMessageError");
    }
    for bad in [json!(1), json!([]), json!({})] {
        assert_eq!(host.send(client.backend, &bad)["requestId"], "invalid");
    }
    for kind in [
        "presence.join",
        "sqlite.register-disk-source",
        "session.report",
    ] {
        assert!(client.ask(&mut host, kind, json!({})).is_err());
    }
}

#[test]
fn more_spaces_than_may_be_open_work_all_the_same() {
    let mut host = Host::with(super::super::MemoryOptions {
        max_open_spaces: 2,
        ..Default::default()
    });
    let alice = did(1);
    let clients: Vec<Client> = (10..16)
        .map(|n| {
            host.seed(&did(n), json!({alice.as_str(): "OWNER"}));
            Client::new(&mut host, &did(n), &alice)
        })
        .collect();
    for round in 1..4_u64 {
        for client in &clients {
            let ok = client
                .write(&mut host, round, json!([set("of:x", round)]))
                .expect("commit");
            assert_eq!(ok["seq"], round + 1);
        }
    }
}

#[test]
fn a_damaged_database_is_a_failure_that_may_pass() {
    let (space, alice) = (did(9), did(1));
    let mut host = Host::new();
    let name = space.as_str().rsplit(':').next().expect("key");
    let path = host.directory.path().join(format!("{name}.sqlite"));
    std::fs::write(&path, vec![7; 8192]).expect("file");
    let backend = host.connect(&[alice]);
    let error = host
        .open(backend, &space, &alice, json!({}))
        .expect_err("damaged");
    assert_eq!(error["message"], "memory storage failure");
    assert_eq!(error["retriable"], true);
    std::fs::remove_file(&path).expect("removed");
    host.seed(&space, json!({alice.as_str(): "OWNER"}));
    assert!(host.open(backend, &space, &alice, json!({})).is_ok());
}
