//! Durable sessions where something is full: connections, frames, queues.

mod support;

use std::collections::BTreeMap;

use memory_client::{Event, SessionOptions, Topology};
use serde_json::json;
use support::{Act, Copy, Fake, event_like, identity, is_rebuilt, set};

#[tokio::test]
async fn full_connections_get_company_and_spaces_stay_where_they_are() {
    let fake = Fake::start(json!({"sessions": 2}), |_, _| Act::Serve).await;
    let client = fake.client(Topology::Shared);
    let alice = identity(41);
    let mut sessions = Vec::new();
    for seed in 1..=8 {
        sessions.push(
            client
                .mount(identity(seed).did(), &alice, SessionOptions::default())
                .unwrap(),
        );
    }
    for session in &sessions {
        session.opened().await.unwrap();
    }
    let status = client.connections();
    assert_eq!(
        status
            .iter()
            .map(|status| status.sessions)
            .collect::<Vec<_>>(),
        [2; 4]
    );
    assert!((0..4).all(|connection| fake.state().world.open_on(connection) == 2));
    let ninth = client
        .mount(identity(9).did(), &alice, SessionOptions::default())
        .unwrap();
    sessions.pop().unwrap().close().await.unwrap();
    ninth.opened().await.unwrap();
    assert_eq!(fake.state().dedicated.len(), 4);
    client.close().await;
}

#[tokio::test]
async fn a_dedicated_space_has_a_connection_of_its_own() {
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let client = fake.client(Topology::Dedicated);
    let alice = identity(41);
    let (one, two) = (identity(31).did(), identity(32).did());
    let first = client
        .open(one, &alice, SessionOptions::default())
        .await
        .unwrap();
    let second = client
        .open(one, &alice, SessionOptions::default())
        .await
        .unwrap();
    client
        .open(two, &alice, SessionOptions::default())
        .await
        .unwrap();
    let spaces = [Some(one.to_string()), Some(two.to_string())];
    assert_eq!(fake.state().dedicated, spaces);
    first.close().await.unwrap();
    second.commit(set("of:a", 1)).await.unwrap();
    second.close().await.unwrap();
    fake.until("the connection's end", |state| state.world.open_on(0) == 0)
        .await;
    assert!(
        client
            .connections()
            .iter()
            .all(|status| status.space != Some(one))
    );
}

#[tokio::test]
async fn sixteen_sessions_are_restored_at_a_time() {
    let fake = Fake::start(json!({}), |connection, message| {
        let park = connection == 1 && message["type"] == "session.open";
        if park { Act::Park } else { Act::Serve }
    })
    .await;
    let client = fake.client(Topology::Shared);
    let alice = identity(41);
    let mut sessions = Vec::new();
    for seed in 1..=40 {
        sessions.push(
            client
                .open(identity(seed).did(), &alice, SessionOptions::default())
                .await
                .unwrap(),
        );
    }
    fake.lose(0);
    for released in 0..=24 {
        let due = 40 + 16 + released;
        fake.until("the next open", |state| state.count("session.open") >= due)
            .await;
        assert_eq!(fake.state().count("session.open"), due);
        fake.release(1);
    }
    fake.release(16);
    fake.until("all", |state| state.world.open_on(1) == 40)
        .await;
    assert_eq!(fake.state().count("connection.auth"), 2);
}

#[tokio::test]
async fn a_large_watch_set_is_restored_in_frames() {
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let (_client, session) = fake.entered().await;
    let space = session.space();
    let ids: Vec<String> = (0..600).map(|n| format!("of:document-{n:04}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    session.watch(&ids).await.unwrap();
    fake.write(space.as_str(), "of:document-0500", 1);
    fake.lose(0);
    let mut copy = Copy::default();
    copy.follow(&event_like(&session, is_rebuilt).await);
    assert_eq!((copy.0.len(), copy.0["of:document-0500"]), (600, 1));
    let state = fake.state();
    let (first, sets): (Vec<_>, Vec<_>) = state
        .log
        .iter()
        .filter(|(_, message)| {
            message["type"]
                .as_str()
                .unwrap()
                .starts_with("session.watch.")
        })
        .partition(|(connection, _)| *connection == 0);
    assert!(first.len() > 2 && sets.len() > 2);
    assert_eq!(sets[0].1["type"], "session.watch.set");
    assert!(
        sets[1..]
            .iter()
            .all(|(_, message)| message["type"] == "session.watch.add")
    );
    assert!(
        sets.iter()
            .all(|(_, message)| message.to_string().len() <= 96 << 10)
    );
    assert_eq!(state.world.watches(space.as_str()), 600);
}

#[tokio::test]
async fn an_application_that_does_not_read_catches_up_later() {
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let client = fake.client(Topology::Shared);
    let (space, alice) = (identity(31).did(), identity(41));
    let slow = client
        .open(space, &alice, SessionOptions::default())
        .await
        .unwrap();
    slow.watch(&["of:a", "of:b"]).await.unwrap();
    for value in 1..=3000 {
        fake.write(space.as_str(), "of:a", value);
    }
    fake.write(space.as_str(), "of:b", 9);
    // The connection goes on meanwhile, and its answer comes behind all those pushes.
    let quick = client
        .open(space, &alice, SessionOptions::default())
        .await
        .unwrap();
    quick.commit(set("of:c", 1)).await.unwrap();
    let mut copy = Copy::default();
    let events = event_like(&slow, is_rebuilt).await;
    assert!(events.len() < 1100, "{}", events.len());
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Interrupted))
    );
    copy.follow(&events);
    assert_eq!(
        copy.0,
        BTreeMap::from([("of:a".to_owned(), 3000), ("of:b".to_owned(), 9)])
    );
}

#[tokio::test]
async fn commits_without_room_wait_and_a_caller_that_left_is_told_by_event() {
    let fake = Fake::start(json!({}), |_, message| {
        if message["type"] == "transact" {
            Act::Park
        } else {
            Act::Serve
        }
    })
    .await;
    let (_client, session) = fake.entered().await;
    let commit = |value| json!({"reads": {"confirmed": [], "pending": []}, "operations": set("of:a", value)});
    for value in 0..256 {
        drop(session.submit(commit(value)).await.unwrap());
    }
    let more = session.submit(commit(256));
    tokio::pin!(more);
    tokio::select! {
        biased;
        _ = &mut more => panic!("there is no room"),
        () = fake.until("the first", |state| state.count("transact") == 1) => {}
    }
    fake.release(1);
    let events = event_like(&session, |event| matches!(event, Event::Answered { .. })).await;
    assert!(matches!(
        events.last(),
        Some(Event::Answered {
            local_seq: 1,
            outcome: Ok(_)
        })
    ));
    more.await.unwrap();
}
