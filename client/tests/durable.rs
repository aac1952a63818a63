//! Durable sessions over a router that loses, refuses and closes as planned.

mod support;

use std::collections::BTreeMap;

use memory_client::{
    Client, ClientError, Connection, Ended, Event, OpenOptions, Options, SessionOptions, Topology,
};
use serde_json::json;
use support::{Act, Copy, Fake, State, event, event_like, first, identity, is_rebuilt, set};

#[tokio::test]
async fn commits_whose_answer_or_request_is_lost_are_applied_once_and_in_order() {
    let acts = vec![Act::Serve, Act::LoseAnswer, Act::Serve, Act::LoseRequest];
    let fake = Fake::start(json!({}), first("transact", acts)).await;
    let (client, session) = fake.entered().await;
    let space = session.space();
    let mut submitted = Vec::new();
    for value in 1..=5 {
        let commit =
            json!({"reads": {"confirmed": [], "pending": []}, "operations": set("of:a", value)});
        submitted.push(session.submit(commit).await.unwrap());
    }
    let mut verdicts = Vec::new();
    for submitted in submitted {
        verdicts.push(submitted.verdict().await.unwrap());
    }
    let seqs: Vec<_> = verdicts
        .iter()
        .map(|verdict| verdict["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
    assert_eq!(verdicts[1]["replayed"], true);
    assert_eq!(fake.state().world.applied(space.as_str()), [1, 2, 3, 4, 5]);
    session.close().await.unwrap();
    assert_eq!(fake.state().count("session.close"), 1);
    client.close().await;
}

#[tokio::test]
async fn a_commit_refused_for_good_is_final_and_one_refused_for_now_is_not() {
    let acts = vec![Act::Refuse("AuthorizationError", true)];
    let fake = Fake::start(json!({}), first("transact", acts)).await;
    let client = fake.client(Topology::Shared);
    let alice = identity(41);
    let space = identity(31).did();
    let session = client
        .open(space, &alice, SessionOptions::default())
        .await
        .unwrap();
    let never = json!({"reads": {}, "operations": [], "preconditions": "never"});
    let never = session.submit(never).await.unwrap();
    let after = session.commit(set("of:a", 1)).await.unwrap();
    assert_eq!(after["seq"], 1);
    match never.verdict().await {
        Err(ClientError::Denied(denied)) => assert_eq!(denied.name, "PreconditionFailedError"),
        other => panic!("{other:?}"),
    }
    assert_eq!(fake.state().world.applied(space.as_str()), [2]);
    assert_eq!(fake.state().count("transact"), 3);
}

#[tokio::test]
async fn watches_come_back_with_the_difference() {
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let client = fake.client(Topology::Shared);
    let (space, alice) = (identity(31).did(), identity(41));
    fake.write(space.as_str(), "of:a", 1);
    fake.write(space.as_str(), "of:b", 1);
    let session = client
        .open(space, &alice, SessionOptions::default())
        .await
        .unwrap();
    session.watch(&["of:a", "of:b"]).await.unwrap();
    let mut copy = Copy::default();
    copy.follow(&[event(&session).await]);
    assert_eq!(copy.0.len(), 2);

    fake.lose(0);
    fake.until("the loss", |state| state.world.open_on(0) == 0)
        .await;
    fake.write(space.as_str(), "of:b", 2);
    let events = event_like(&session, is_rebuilt).await;
    assert!(matches!(events[0], Event::Interrupted));
    let Event::Sync(sync) = &events[1] else {
        panic!("{events:?}");
    };
    assert_eq!(
        sync["upserts"].as_array().unwrap().len(),
        1,
        "only what changed"
    );
    copy.follow(&events);

    fake.write(space.as_str(), "of:a", 3);
    copy.follow(&[event(&session).await]);
    assert_eq!(
        copy.0,
        BTreeMap::from([("of:a".to_owned(), 3), ("of:b".to_owned(), 2)])
    );
    assert_eq!(
        session.query(&["of:b"]).await.unwrap()["entities"][0]["seq"],
        3
    );
}

#[tokio::test]
async fn a_session_that_the_toolshed_still_knows_is_resumed() {
    // The first connection's loss is noticed here only: the second open finds the session alive.
    let fake = Fake::start(json!({}), first("transact", vec![Act::Close(1012)])).await;
    let (_client, session) = fake.entered().await;
    let (space, alice) = (session.space(), identity(41));
    session.watch(&["of:a"]).await.unwrap();
    event(&session).await;
    let saved = session.save().unwrap();
    let other = fake.client(Topology::Shared);
    let options = SessionOptions {
        saved: Some(saved),
        ..SessionOptions::default()
    };
    let resumed = other.open(space, &alice, options).await.unwrap();
    let events = event_like(&resumed, is_rebuilt).await;
    assert!(matches!(
        events.last(),
        Some(Event::Rebuilt { resumed: true, .. })
    ));
    let watched =
        |state: &State| state.count("session.watch.set") + state.count("session.watch.add");
    assert_eq!(watched(&fake.state()), 1, "its watches were kept");
    fake.write(space.as_str(), "of:a", 7);
    assert!(matches!(event(&resumed).await, Event::Sync(_)));
    assert_eq!(resumed.commit(set("of:x", 1)).await.unwrap()["seq"], 2);
}

#[tokio::test]
async fn a_saved_session_replays_what_had_no_verdict() {
    let fake = Fake::start(json!({}), first("transact", vec![Act::Park])).await;
    let (client, session) = fake.entered().await;
    let (space, alice) = (session.space(), identity(41));
    let commit = json!({"reads": {"confirmed": [], "pending": []}, "operations": set("of:a", 1)});
    let unheard = session.submit(commit).await.unwrap();
    fake.until("the commit", |state| state.count("transact") == 1)
        .await;
    let saved = session.save().unwrap();
    assert_eq!((saved.commits.len(), saved.next_local_seq), (1, 2));
    client.close().await;
    assert!(matches!(
        unheard.verdict().await,
        Err(ClientError::Ended(Ended::Closed))
    ));

    let text = serde_json::to_string(&saved).unwrap();
    let saved = serde_json::from_str(&text).unwrap();
    let client = fake.client(Topology::Shared);
    let options = SessionOptions {
        saved: Some(saved),
        ..SessionOptions::default()
    };
    let session = client.open(space, &alice, options).await.unwrap();
    let answered = event_like(&session, |event| matches!(event, Event::Answered { .. })).await;
    assert!(matches!(
        answered.last(),
        Some(Event::Answered {
            local_seq: 1,
            outcome: Ok(_)
        })
    ));
    session.commit(set("of:a", 2)).await.unwrap();
    assert_eq!(fake.state().world.applied(space.as_str()), [1, 2]);
}

#[tokio::test]
async fn an_open_refused_for_now_is_held_while_others_go_on() {
    let refused = identity(31).did();
    let mut left = 2;
    let fake = Fake::start(json!({}), move |_, message| {
        let hit = message["type"] == "session.open" && message["space"] == json!(refused);
        if hit && left > 0 {
            left -= 1;
            return Act::Refuse("AuthorizationError", true);
        }
        Act::Serve
    })
    .await;
    let client = fake.client(Topology::Shared);
    let alice = identity(41);
    let held = client
        .mount(refused, &alice, SessionOptions::default())
        .unwrap();
    fake.until("the refusal", |state| state.count("session.open") == 1)
        .await;
    let other = client
        .open(identity(32).did(), &alice, SessionOptions::default())
        .await
        .unwrap();
    other.commit(set("of:a", 1)).await.unwrap();
    assert!(!held.is_open());
    held.opened().await.unwrap();
    let state = fake.state();
    assert_eq!(state.count("session.open"), 4);
    assert_eq!(state.count("connection.auth"), 1, "one key signs once");
    assert_eq!(state.dedicated.len(), 1, "on the same connection");
}

#[tokio::test]
async fn an_open_refused_for_good_ends_the_session() {
    let fake = Fake::start(
        json!({}),
        first(
            "session.open",
            vec![Act::Refuse("AuthorizationError", false)],
        ),
    )
    .await;
    let client = fake.client(Topology::Shared);
    let opened = client
        .open(identity(31).did(), &identity(41), SessionOptions::default())
        .await;
    assert!(
        matches!(opened, Err(ClientError::Ended(Ended::Refused(_)))),
        "{opened:?}"
    );
}

#[tokio::test]
async fn a_first_open_fails_with_the_connection_it_was_sent_on_but_follows_while_it_waits() {
    let acts = vec![Act::LoseRequest, Act::Refuse("AuthorizationError", true)];
    let fake = Fake::start(json!({}), first("session.open", acts)).await;
    let client = fake.client(Topology::Shared);
    let (space, alice) = (identity(31).did(), identity(41));
    match client.open(space, &alice, SessionOptions::default()).await {
        Err(ClientError::Ended(Ended::Failed(error))) => {
            assert!(matches!(*error, ClientError::Closed(_)));
        }
        other => panic!("{other:?}"),
    }
    let waiting = client
        .mount(space, &alice, SessionOptions::default())
        .unwrap();
    fake.until("the refusal", |state| state.count("session.open") == 2)
        .await;
    fake.lose(1);
    waiting.opened().await.unwrap();
    assert_eq!(fake.state().dedicated.len(), 3);
}

#[tokio::test]
async fn a_key_refused_for_now_signs_a_fresh_challenge() {
    let refusals = vec![Act::Refuse("AuthorizationError", true); 1];
    let fake = Fake::start(json!({}), first("connection.auth", refusals)).await;
    let client = fake.client(Topology::Shared);
    let session = client
        .open(identity(31).did(), &identity(41), SessionOptions::default())
        .await;
    session.unwrap();
    let state = fake.state();
    assert_eq!(state.count("connection.auth"), 2);
    assert_eq!(state.count("connection.challenge"), 1);
}

#[tokio::test]
async fn a_broken_rule_is_not_tried_again() {
    for code in [1008, 1009] {
        let fake = Fake::start(json!({}), first("transact", vec![Act::Close(code)])).await;
        let client = fake.client(Topology::Shared);
        let space = identity(31).did();
        let session = client
            .open(space, &identity(41), SessionOptions::default())
            .await
            .unwrap();
        match session.commit(set("of:a", 1)).await {
            Err(ClientError::Ended(Ended::Failed(error))) => {
                assert!(matches!(*error, ClientError::Closed(closed) if closed.code == Some(code)));
            }
            other => panic!("{other:?}"),
        }
        let ended = event_like(&session, |event| matches!(event, Event::Ended(_))).await;
        assert!(session.event().await.is_none(), "{ended:?}");
        assert_eq!(fake.state().dedicated.len(), 1);
        // The client goes on: a new session makes a new connection.
        client
            .open(space, &identity(41), SessionOptions::default())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_session_revoked_with_its_lease_signs_again_and_reopens() {
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let mut options = memory_client::ClientOptions::default();
    // Shorter than clocks may differ: any end of the session may be the lease's.
    options.connection.lease = 4;
    let client = Client::new(fake.endpoint.clone(), options);
    let space = identity(31).did();
    let session = client
        .open(space, &identity(41), SessionOptions::default())
        .await
        .unwrap();
    session.watch(&["of:a"]).await.unwrap();
    event(&session).await;
    fake.revoke(&session, "unauthorized");
    event_like(&session, is_rebuilt).await;
    session.commit(set("of:a", 1)).await.unwrap();
    let state = fake.state();
    assert!(state.count("connection.auth") >= 2);
    assert_eq!(state.count("session.open"), 2);
    assert_eq!(state.dedicated.len(), 1);
}

#[tokio::test]
async fn access_lost_and_sessions_taken_over_end() {
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let client = fake.client(Topology::Shared);
    let (space, alice) = (identity(31).did(), identity(41));
    let lost = client
        .open(space, &alice, SessionOptions::default())
        .await
        .unwrap();
    fake.revoke(&lost, "unauthorized");
    let events = event_like(&lost, |event| matches!(event, Event::Ended(_))).await;
    assert!(matches!(
        events.last(),
        Some(Event::Ended(Ended::AccessLost))
    ));

    let taken = client
        .open(space, &alice, SessionOptions::default())
        .await
        .unwrap();
    fake.state().world.take_over(space.as_str());
    fake.revoke(&taken, "taken-over");
    let events = event_like(&taken, |event| matches!(event, Event::Ended(_))).await;
    assert!(
        matches!(events.last(), Some(Event::Ended(Ended::TakenOver))),
        "{events:?}"
    );
}

#[tokio::test]
async fn a_session_dropped_while_it_opens_is_closed_again() {
    let fake = Fake::start(json!({}), first("session.open", vec![Act::Park])).await;
    let client = fake.client(Topology::Shared);
    let (space, alice) = (identity(31).did(), identity(41));
    let session = client
        .mount(space, &alice, SessionOptions::default())
        .unwrap();
    fake.until("the open", |state| state.count("session.open") == 1)
        .await;
    drop(session);
    client
        .open(space, &alice, SessionOptions::default())
        .await
        .unwrap();
    fake.release(1);
    fake.until("the close", |state| state.count("session.close") >= 1)
        .await;
}

#[tokio::test]
async fn a_key_withdrawn_under_an_open_signs_in_again() {
    let mut opens = vec![Act::Refuse("AuthorizationError", false)];
    let mut signs = vec![Act::Park];
    let fake = Fake::start(json!({}), move |_, message| {
        let planned = match message["type"].as_str() {
            Some("connection.auth") => signs.pop(),
            Some("session.open") => opens.pop(),
            _ => None,
        };
        planned.unwrap_or(Act::Serve)
    })
    .await;
    let client = fake.client(Topology::Shared);
    let (space, alice) = (identity(31).did(), identity(41));
    let session = client
        .mount(space, &alice, SessionOptions::default())
        .unwrap();
    fake.until("the statement", |state| state.count("connection.auth") == 1)
        .await;
    client.release(alice.did()).await.unwrap();
    fake.release(1);
    session.opened().await.unwrap();
    assert_eq!(fake.state().count("session.open"), 2);
}

#[tokio::test]
async fn reads_are_asked_again_and_other_requests_are_not() {
    let fake = Fake::start(json!({}), first("graph.query", vec![Act::LoseRequest])).await;
    let (_client, session) = fake.entered().await;
    assert_eq!(session.query(&["of:a"]).await.unwrap()["serverSeq"], 0);
    fake.state()
        .set_plan(first("graph.query", vec![Act::LoseRequest]));
    let query = json!({"query": {"roots": []}});
    let once = session.request("graph.query", query).await;
    assert!(matches!(once, Err(ClientError::Closed(_))), "{once:?}");
}

#[tokio::test]
async fn a_resume_token_refused_after_a_lost_open_is_tried_again() {
    let refused = Act::Refuse("SessionRevokedError", false);
    let acts = vec![Act::Serve, Act::LoseAnswer, refused, Act::Serve];
    let fake = Fake::start(json!({}), first("session.open", acts)).await;
    let (_client, session) = fake.entered().await;
    fake.lose(0);
    event_like(&session, is_rebuilt).await;
    assert_eq!(session.commit(set("of:a", 1)).await.unwrap()["seq"], 1);
    assert_eq!(fake.state().count("session.open"), 4);
}

#[tokio::test]
async fn watches_come_back_although_the_toolshed_resumes_what_a_lost_open_left() {
    let acts = vec![Act::Serve, Act::LoseAnswerUnnoticed];
    let fake = Fake::start(json!({}), first("session.open", acts)).await;
    let (_client, session) = fake.entered().await;
    let space = session.space();
    session.watch(&["of:a"]).await.unwrap();
    fake.lose(0);
    let mut copy = Copy::default();
    copy.follow(&event_like(&session, is_rebuilt).await);
    assert_eq!(fake.state().count("session.open"), 3);
    fake.write(space.as_str(), "of:a", 7);
    while copy.0.get("of:a") != Some(&7) {
        copy.follow(&[event(&session).await]);
    }
}

#[tokio::test]
async fn a_plain_connection_ends_with_its_last_user() {
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let connection = Connection::connect(&fake.endpoint, Options::default())
        .await
        .unwrap();
    let alice = identity(41);
    connection.authenticate(&alice).await.unwrap();
    let space = identity(31).did();
    let session = connection
        .open(space, alice.did(), OpenOptions::default())
        .await
        .unwrap();
    drop(connection);
    session.query(&["of:a"]).await.unwrap();
    assert_eq!(fake.state().ended, 0);
    drop(session);
    fake.until("the end", |state| state.ended == 1).await;
}

/// Three writers with a watcher each, while messages of all kinds are lost, refused for now and closed upon.
#[tokio::test]
async fn whatever_is_lost_every_commit_is_applied_once_and_every_watcher_agrees() {
    const COMMITS: u64 = 40;
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos() as u64;
    println!("seed {seed}");
    let (mut random, mut losses, mut refusals) = (seed | 1, 3, 3);
    let mut first_opens = 0;
    let fake = Fake::start(json!({}), move |_, message| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let kind = message["type"].as_str().unwrap();
        // What is lost while a session is opened first fails it, as it should.
        let first_open = kind == "session.open" && message["session"].get("sessionId").is_none();
        first_opens += usize::from(first_open);
        let spared = kind == "hello" || kind == "session.close" || first_opens < 6 || first_open;
        if spared || random % 16 != 0 {
            return Act::Serve;
        }
        let act = match (random >> 8) % 5 {
            0 => Act::LoseRequest,
            1 => Act::LoseAnswer,
            2 => Act::LoseAnswerUnnoticed,
            3 => Act::Close(1011),
            _ => Act::Refuse("AuthorizationError", true),
        };
        let left = if matches!(act, Act::Refuse(..)) {
            &mut refusals
        } else {
            &mut losses
        };
        if *left == 0 {
            return Act::Serve;
        }
        *left -= 1;
        act
    })
    .await;
    let client = fake.client(Topology::Shared);
    let mut tasks = Vec::new();
    for seed in 31..34 {
        let (client, space) = (client.clone(), identity(seed).did());
        tasks.push(tokio::spawn(async move {
            let options = SessionOptions::default;
            let reader = client.open(space, &identity(41), options()).await.unwrap();
            let writer = client.open(space, &identity(42), options()).await.unwrap();
            reader.watch(&["of:a", "of:b", "of:c"]).await.unwrap();
            let writing = async {
                for value in 1..=COMMITS {
                    let id = ["of:a", "of:b", "of:c"][value as usize % 3];
                    writer.commit(set(id, value)).await.unwrap();
                }
            };
            let reading = async {
                let mut copy = Copy::default();
                while copy.0.values().max() != Some(&COMMITS) {
                    copy.follow(&[event(&reader).await]);
                }
                // What is behind the newest of a restore still comes.
                while copy.0.values().min() != Some(&(COMMITS - 2)) {
                    copy.follow(&[event(&reader).await]);
                }
            };
            tokio::join!(writing, reading);
            space
        }));
    }
    for task in tasks {
        let space = task.await.unwrap();
        let applied = fake.state().world.applied(space.as_str());
        assert_eq!(applied, (1..=COMMITS).collect::<Vec<_>>());
    }
}
