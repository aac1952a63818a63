//! Sockets that are dedicated to one space: a place first, then the WebSocket.
//!
//! Compiled under `#[cfg(test)]` alone.

use std::rc::Rc;

use memory_config::WorkerSettings;
use memory_transport::upgrade::ConnectError;
use memory_wire::reason::Reason;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::client::{auth, open};
use super::faults::denial;
use super::{Stage, identity, play, settings};

/// What an upgrade was refused with.
async fn refusal(stage: &mut Stage, space: u8) -> (u16, Option<u32>, Value) {
    match stage.connect_to(space).await {
        Err(ConnectError::Refused {
            status,
            retry_after,
            body,
        }) => (status, retry_after, serde_json::from_slice(&body).unwrap()),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("upgraded"),
    }
}

#[test]
fn the_websocket_opens_once_the_place_is_held_and_for_that_space_alone() {
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        let gate = Rc::new(Notify::new());
        *stage.plan.dedication_gate.borrow_mut() = Some(Rc::clone(&gate));
        let plan = Rc::clone(&stage.plan);
        let mut connecting = Box::pin(stage.connect_to(5));
        tokio::select! {
            _ = &mut connecting => panic!("upgraded without a place"),
            () = plan.asked_for_place.notified() => {}
        }
        assert_eq!(*plan.dedicated.borrow(), [identity(5).did()]);
        gate.notify_one();
        let mut client = connecting.await.unwrap();
        let challenge = client.greet().await;
        client.say(&auth("auth", &identity(2), challenge)).await;
        client.message().await;
        client.say(&open("p", 6)).await;
        assert_eq!(client.message().await, denial("p", false));
        stage.session(&mut client, 5).await;
        assert_eq!(plan.dedicated.borrow().len(), 1);
    });
}

#[test]
fn a_space_with_as_many_connections_as_it_may_have_is_named_with_its_cap() {
    play(|| async {
        let mut stage = Stage::start(WorkerSettings {
            max_connections_per_space: Some(7),
            ping_interval_ms: 1200,
            ping_timeout_ms: 900,
            ..settings()
        })
        .await;
        stage.plan.refuse_place.set(Some(Reason::TenantCap));
        let (status, retry_after, body) = refusal(&mut stage, 5).await;
        assert_eq!((status, retry_after), (429, Some(3)));
        let connection = body["connection"].clone();
        assert!(connection.is_string());
        let expected = json!({"error": "tenant-cap", "connection": connection,
            "tenant": identity(5).did(), "cap": 7});
        assert_eq!(body, expected);
        let (reason, report) = stage.ended_with_report().await;
        assert_eq!(reason, Reason::TenantCap);
        assert_eq!(report.refusals, [(Reason::TenantCap.code(), 1)]);
        let upgrades: u64 = report.latencies[0].counts.iter().sum();
        assert_eq!(upgrades, 0);
    });
}

#[test]
fn without_a_link_agent_nobody_is_given_a_place() {
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        stage.plan.refuse_place.set(Some(Reason::LinkAgentLost));
        let (status, retry_after, body) = refusal(&mut stage, 5).await;
        assert_eq!((status, retry_after), (503, None));
        assert_eq!(body["error"], "link-agent-lost");
        assert_eq!(stage.ended().await.0, Reason::LinkAgentLost);
    });
}

#[test]
fn other_connections_ask_for_no_place() {
    play(|| async {
        let (stage, _client) = Stage::entered(settings()).await;
        assert!(stage.plan.dedicated.borrow().is_empty());
    });
}
