//! Peers that do not read, or read late.
//!
//! Compiled under `#[cfg(test)]` alone.

use std::time::Duration;

use memory_wire::credit::REQUEST_WINDOW;
use memory_wire::reason::Reason;
use memory_wire::stream::MAX_CHUNK_LEN;
use serde_json::json;

use super::client::{open, request};
use super::{Stage, play, settings};

#[test]
fn a_ping_of_a_toolshed_that_does_not_read_holds_up_none_of_its_answers() {
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        let mut client = stage.connect().await;
        client.enter().await;
        client.say(&open("o", 5)).await;
        let mut toolshed = stage.toolshed().await;
        toolshed.serve().await.unwrap();
        client.message().await;
        client.say(&request("query", "q", 5, "o")).await;
        toolshed.request().await.unwrap();
        // More than the sockets between worker and toolshed take.
        let mut message = request("transact", "r", 5, "o");
        message["x"] = json!("x".repeat(REQUEST_WINDOW as usize - 4096));
        client.say(&message).await;
        assert_eq!(toolshed.header().await.unwrap()["route"]["requestId"], "r");
        for id in 0..3 {
            toolshed.ping().await;
            client
                .say(&json!({"type": "connection.challenge", "requestId": format!("c{id}")}))
                .await;
        }
        toolshed.answer("q", None, 0).await;
        assert_eq!(client.message().await["requestId"], "q");
    });
}

#[test]
fn a_client_that_reads_late_is_not_blamed_for_what_waits_behind_it() {
    play(|| async {
        let mut limits = settings();
        limits.admission_ms = 700;
        limits.max_requests_per_connection = 1;
        let mut stage = Stage::start(limits).await;
        let mut client = stage.connect().await;
        client.enter().await;
        client.say(&open("o", 5)).await;
        let mut toolshed = stage.toolshed().await;
        toolshed.serve().await.unwrap();
        client.message().await;
        client.say(&request("query", "r", 5, "o")).await;
        toolshed.request().await.unwrap();
        client.say(&request("query", "s", 5, "o")).await;
        let late = async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            assert_eq!(client.message().await["requestId"], "r");
            assert_eq!(client.message().await["requestId"], "s");
        };
        let answers = async {
            toolshed.answer("r", None, (8 << 20) - 4096).await;
            toolshed.serve().await.unwrap();
        };
        tokio::join!(late, answers);
    });
}

#[test]
fn a_client_that_never_reads_is_let_go() {
    play(|| async {
        let mut limits = settings();
        limits.ping_interval_ms = 200;
        limits.ping_timeout_ms = 200;
        let mut stage = Stage::start(limits).await;
        let mut client = stage.connect().await;
        client.enter().await;
        client.say(&open("o", 5)).await;
        let mut toolshed = stage.toolshed().await;
        toolshed.serve().await.unwrap();
        client.message().await;
        client.say(&request("query", "r", 5, "o")).await;
        toolshed.request().await.unwrap();
        let flood = async {
            toolshed.answer("r", None, (8 << 20) - 4096).await;
            std::future::pending::<()>().await;
        };
        let end = tokio::select! {
            () = flood => return,
            end = stage.ended() => end,
        };
        // The kernel may notice first.
        assert!(
            matches!(end.0, Reason::PingTimeout | Reason::ClientLost),
            "{end:?}"
        );
    });
}

#[test]
fn a_body_of_the_whole_request_window_passes_in_credited_records() {
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        let mut client = stage.connect().await;
        client.enter_streaming(true).await;
        client.stream(&open("o", 5)).await;
        let mut toolshed = stage.toolshed().await;
        toolshed.serve().await.unwrap();
        client.message().await;
        // How many such bodies; a profiler compares runs of different length.
        let bodies =
            std::env::var("MEMORY_WORKER_BODIES").map_or(1, |count| count.parse().unwrap());
        for number in 0..bodies {
            let id = format!("r{number}");
            let mut message = request("transact", &id, 5, "o");
            let padding = REQUEST_WINDOW as usize - format!("fvj1:{message}").len() - 7;
            message["x"] = json!("x".repeat(padding));
            let text = format!("fvj1:{message}");
            assert_eq!(text.len(), REQUEST_WINDOW as usize);
            let route = json!({"type": "transact", "requestId": id, "space": message["space"],
                "sessionId": message["sessionId"]});
            let upload = async {
                client.header(text.len(), &route).await;
                for chunk in text.as_bytes().chunks(MAX_CHUNK_LEN) {
                    client.pay(chunk.len() + 5).await;
                    client.chunk(chunk).await;
                }
                client.complete().await;
                assert_eq!(client.message().await["requestId"], id);
            };
            let (served, ()) = tokio::join!(toolshed.serve(), upload);
            served.unwrap();
        }
    });
}
