//! A connection at its limits: what was promised still happens, and nothing is left of it in the end.
//!
//! Compiled under `#[cfg(test)]` alone.

use std::rc::Rc;

use memory_config::WorkerSettings;
use memory_ipc::packets::{
    BudgetUse, REPORTED_BUDGETS, REPORTED_LATENCIES, Report, WorkerToSpawner,
};
use memory_wire::credit::REQUEST_WINDOW;
use memory_wire::reason::Reason;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::client::{ask_challenge, auth, challenge, open, request};
use super::faults::denial;
use super::{Client, Got, Stage, Toolshed, identity, play, settings};
use crate::ledger::{CREDIT_MARGIN, Class, Ledger};

/// Room for three sessions, four watches and sixteen requests: twelve of data, two more of what is live, two of controls.
fn small() -> WorkerSettings {
    WorkerSettings {
        max_sessions_per_connection: Some(3),
        max_spaces_per_connection: Some(2),
        max_requests_per_connection: 16,
        max_watches_per_connection: Some(4),
        max_holdings_per_connection: Some(10),
        ..settings()
    }
}

fn budget(report: &Report, name: &str) -> BudgetUse {
    let at = REPORTED_BUDGETS.iter().position(|other| *other == name);
    report.budgets[at.unwrap()]
}

fn observed(report: &Report, name: &str) -> u64 {
    let at = REPORTED_LATENCIES.iter().position(|other| *other == name);
    report.latencies[at.unwrap()].counts.iter().sum()
}

fn watch(id: &str, space: u8, opened: &str, watches: &[&str]) -> Value {
    let mut watch = request("session.watch.set", id, space, opened);
    watch["watches"] = watches.iter().map(|id| json!({"id": id})).collect();
    watch["holdings"] = json!([1, 2, 3]);
    watch
}

fn transact(id: &str, bytes: usize) -> Value {
    let mut message = request("transact", id, 5, "o");
    let padding = bytes - format!("fvj1:{message}").len() - 7;
    message["x"] = json!("x".repeat(padding));
    message
}

/// Opens `id` at a toolshed that the connection has a socket to.
async fn opened(client: &mut Client, toolshed: &mut Toolshed, id: &str, space: u8) {
    client.stream(&open(id, space)).await;
    toolshed.serve().await.unwrap();
    assert_eq!(client.message().await["requestId"], id);
}

#[test]
fn a_client_at_every_limit_renews_closes_and_gets_its_effects() {
    play(|| async {
        let mut stage = Stage::start(small()).await;
        stage.plan.places.borrow_mut().insert(identity(6).did(), 1);
        let mut client = stage.connect().await;
        client.enter_streaming(true).await;
        client.stream(&open("o", 5)).await;
        let mut one = stage.toolshed().await;
        one.serve().await.unwrap();
        client.message().await;
        client.stream(&open("p", 6)).await;
        let mut other = stage.toolshed().await;
        other.serve().await.unwrap();
        client.message().await;
        opened(&mut client, &mut one, "q", 5).await;
        client
            .stream(&watch("w", 5, "o", &["a", "b", "c", "d"]))
            .await;
        one.serve().await.unwrap();
        client.message().await;
        // Every place for data is taken, and all request credit but the margin.
        let bytes = (REQUEST_WINDOW - CREDIT_MARGIN) as usize / 12;
        for number in 0..12 {
            let message = transact(&format!("bulk{number}"), bytes);
            let (served, ()) = tokio::join!(one.request(), client.bulk(&message));
            served.unwrap();
        }
        // At every other limit too.
        client.stream(&open("r", 6)).await;
        assert_eq!(client.message().await, denial("r", true));
        client.stream(&watch("x", 6, "p", &["e"])).await;
        assert_eq!(client.message().await, denial("x", true));

        // A lease is renewed without anybody's answer.
        client.stream(&ask_challenge("c")).await;
        let issued = challenge(&client.message().await["ok"]["challenge"]);
        client.stream(&auth("again", &identity(2), issued)).await;
        assert_eq!(
            client.message().await["ok"]["principal"],
            json!(identity(2).did())
        );
        // What is followed is told, by the busy toolshed and by the other one, and can be changed.
        for (toolshed, space, id) in [(&mut one, 5, "o"), (&mut other, 6, "p")] {
            toolshed.effect(space, id).await;
            assert_eq!(client.message().await["type"], "session/effect");
        }
        client.stream(&watch("y", 5, "q", &[])).await;
        one.serve().await.unwrap();
        assert_eq!(client.message().await["requestId"], "y");
        // A session is closed, which makes room for another.
        client
            .stream(&request("session.close", "close", 5, "q"))
            .await;
        one.serve().await.unwrap();
        assert_eq!(client.message().await["requestId"], "close");
        opened(&mut client, &mut one, "s", 5).await;

        // The data goes on when there is room, and in its order.
        client.stream(&request("query", "late", 5, "o")).await;
        one.answer("bulk0", None, 0).await;
        assert_eq!(client.message().await["requestId"], "bulk0");
        one.grant(u32::try_from(bytes).unwrap()).await;
        assert_eq!(one.request().await.unwrap().0["route"]["requestId"], "late");
        let _ = client.writer.close(1000, "").await;

        let (reason, report) = stage.ended_with_report().await;
        assert_eq!(reason, Reason::ClientClosed);
        let peaks = [
            "sessions",
            "spaces",
            "principals",
            "requests",
            "watches",
            "holdings",
        ]
        .map(|name| budget(&report, name).peak);
        assert_eq!(peaks, [3, 2, 1, 13, 4, 6]);
        let peaks = ["live-requests", "data-requests"].map(|name| budget(&report, name).peak);
        assert_eq!(peaks, [13, 12]);
        let refused = [
            "sessions",
            "watches",
            "data-requests",
            "live-requests",
            "requests",
        ]
        .map(|name| budget(&report, name).refused);
        assert_eq!(refused, [1, 1, 1, 0, 0]);
        let refusals = [Reason::SessionLimit, Reason::WatchLimit].map(|reason| (reason.code(), 1));
        assert_eq!(report.refusals, refusals);
        let observed = REPORTED_LATENCIES.map(|name| observed(&report, name));
        // An open that got no place was not worked on.
        assert_eq!(observed, [1, 2, 4, 4]);
    });
}

#[test]
fn an_open_passes_data_that_waits_for_request_credit() {
    play(|| async {
        let (mut stage, mut client) = Stage::streaming(settings(), true).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        let all = (REQUEST_WINDOW - CREDIT_MARGIN) as usize;
        let bulk = transact("bulk", all);
        let (served, ()) = tokio::join!(toolshed.request(), client.bulk(&bulk));
        served.unwrap();
        let gate = Rc::new(Notify::new());
        *stage.plan.gate.borrow_mut() = Some(Rc::clone(&gate));
        client.stream(&open("late", 5)).await;
        client.stream(&request("query", "waits", 5, "o")).await;
        gate.notify_one();
        assert_eq!(
            toolshed.serve().await.unwrap()["route"]["requestId"],
            "late"
        );
        assert_eq!(client.message().await["requestId"], "late");
        toolshed.grant(u32::try_from(all).unwrap()).await;
        assert_eq!(
            toolshed.serve().await.unwrap()["route"]["requestId"],
            "waits"
        );
        assert_eq!(client.message().await["requestId"], "waits");
    });
}

#[test]
fn an_effect_does_not_wait_behind_the_answers_of_another_toolshed() {
    const ANSWERS: usize = 4;
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        stage.plan.places.borrow_mut().insert(identity(6).did(), 1);
        let mut client = stage.connect().await;
        client.enter().await;
        client.say(&open("o", 5)).await;
        let mut one = stage.toolshed().await;
        one.serve().await.unwrap();
        client.message().await;
        client.say(&open("p", 6)).await;
        let mut other = stage.toolshed().await;
        other.serve().await.unwrap();
        client.message().await;
        for number in 0..ANSWERS {
            client
                .say(&request("query", &number.to_string(), 5, "o"))
                .await;
            one.request().await.unwrap();
        }
        let answers = async {
            for number in 0..ANSWERS {
                one.answer(&number.to_string(), None, (8 << 20) - 4096)
                    .await;
            }
        };
        let reading = async {
            // The first answer fills what is between worker and client.
            client.hear_until_mid_message().await;
            other.effect(6, "p").await;
            client.say(&ask_challenge("c")).await;
            let mut order = Vec::new();
            while order.len() < ANSWERS + 2 {
                let message = client.message().await;
                let name = message.get("requestId").unwrap_or(&message["type"]);
                order.push(name.as_str().unwrap().to_owned());
            }
            order
        };
        let ((), order) = tokio::join!(answers, reading);
        let place = |name: &str| order.iter().position(|other| other == name).unwrap();
        // Served in the order of arrival, both would come last.
        let last = place("3");
        assert!(
            place("c") < last && place("session/effect") < last,
            "{order:?}"
        );
    });
}

#[test]
fn the_classes_share_the_places_for_requests() {
    for (places, data, live) in [(1, 1, 1), (7, 7, 7), (8, 6, 7), (1024, 992, 1008)] {
        let ledger = Ledger::new(&WorkerSettings {
            max_requests_per_connection: places,
            ..settings()
        });
        assert_eq!(ledger.advertised_requests(), Some(data));
        let fill = |class| {
            let places = ledger.places(class);
            std::iter::from_fn(|| places.reserve(1).ok()).collect::<Vec<_>>()
        };
        let of_data = fill(Class::Data);
        let of_live = fill(Class::Live);
        let of_control = fill(Class::Control);
        let counts = [&of_data, &of_live, &of_control].map(|permits| permits.len() as u64);
        assert_eq!(counts, [data, live - data, places - live]);
    }
}

#[test]
fn what_is_carried_is_told_while_the_connection_lives() {
    play(|| async {
        let (mut stage, mut client) = Stage::entered(settings()).await;
        let _toolshed = stage.session(&mut client, 5).await;
        let mut before = Report::default();
        loop {
            let WorkerToSpawner::Report { report } = stage.events.recv().await.unwrap() else {
                panic!("something else happened");
            };
            assert!(report.bytes_in >= before.bytes_in && report.bytes_out >= before.bytes_out);
            // Hello, signature and open, and as many answers.
            if (report.messages_in, report.messages_out) == (3, 3) {
                assert_eq!(budget(&report, "sessions").current, 1);
                assert_eq!(budget(&report, "principals").current, 1);
                assert_eq!(budget(&report, "requests").current, 0);
                let observed = REPORTED_LATENCIES.map(|name| observed(&report, name));
                assert_eq!(observed, [1, 1, 1, 0]);
                return;
            }
            before = *report;
        }
    });
}

#[test]
fn nothing_is_held_any_more_however_the_connection_ends() {
    for how in 0..6_u8 {
        play(|| async {
            let mut limits = settings();
            limits.drain_ms = 200;
            let (mut stage, mut client) = Stage::streaming(limits, true).await;
            stage.plan.places.borrow_mut().insert(identity(6).did(), 1);
            let mut one = stage.session(&mut client, 5).await;
            client.stream(&open("p", 6)).await;
            let mut other = stage.toolshed().await;
            other.serve().await.unwrap();
            client.message().await;
            // An open that waits, a request and a watch mutation without an answer, half an upload.
            *stage.plan.gate.borrow_mut() = Some(Rc::new(Notify::new()));
            client.stream(&open("held", 7)).await;
            client.stream(&request("query", "r", 5, "o")).await;
            one.request().await.unwrap();
            client.stream(&watch("w", 5, "o", &["a", "b"])).await;
            one.request().await.unwrap();
            let upload = request("transact", "u", 6, "p");
            let route = json!({"type": "transact", "requestId": "u", "space": upload["space"],
                "sessionId": upload["sessionId"]});
            client.header(1000, &route).await;
            client.chunk(&[b'x'; 500]).await;
            other.header().await.unwrap();
            let expected = match how {
                0 => {
                    let _ = client.writer.close(1000, "").await;
                    Reason::ClientClosed
                }
                1 => {
                    client.send(b"nothing that there is").await;
                    Reason::ClientProtocol
                }
                2 => {
                    stage.lose_link(0).await;
                    Reason::UpstreamLost
                }
                3 => {
                    other.chunk(b"nobody asked for this").await;
                    Reason::UpstreamProtocol
                }
                4 => {
                    stage.revoke(identity(2).did()).await;
                    Reason::PrincipalRevoked
                }
                _ => {
                    stage.drain().await;
                    Reason::Drain
                }
            };
            while !matches!(client.hear().await, Got::Close(..) | Got::Gone) {}
            // Nobody waits for a client that left.
            drop(client);
            // The report says that nothing is held.
            let (reason, report) = stage.ended_with_report().await;
            assert_eq!(reason, expected);
            let names = [
                "sessions",
                "live-requests",
                "data-requests",
                "watches",
                "open-bytes",
            ];
            let peaks = names.map(|name| budget(&report, name).peak);
            assert!(peaks.iter().all(|peak| *peak > 0), "{how}: {peaks:?}");
        });
    }
}
