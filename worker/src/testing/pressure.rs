//! Peers that do not read, or read late.
//!
//! Compiled under `#[cfg(test)]` alone.

use std::time::Duration;

use memory_wire::credit::REQUEST_WINDOW;
use memory_wire::reason::Reason;
use serde_json::json;

use super::client::{ask_challenge, request};
use super::{Stage, play, settings};

#[test]
fn a_ping_of_a_toolshed_that_does_not_read_holds_up_none_of_its_answers() {
    play(|| async {
        let (mut stage, mut client) = Stage::entered(settings()).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        client.say(&request("query", "q", 5, "o")).await;
        toolshed.request().await.unwrap();
        // More than the sockets between worker and toolshed take.
        let mut message = request("transact", "r", 5, "o");
        message["x"] = json!("x".repeat(REQUEST_WINDOW as usize - 4096));
        client.say(&message).await;
        assert_eq!(toolshed.header().await.unwrap()["route"]["requestId"], "r");
        for id in 0..3 {
            toolshed.ping().await;
            client.say(&ask_challenge(&format!("c{id}"))).await;
        }
        toolshed.answer("q", None, 0).await;
        assert_eq!(client.message().await["requestId"], "q");
    });
}

#[test]
fn a_client_that_reads_late_is_not_blamed_for_what_waits_behind_it() {
    play(|| async {
        let mut limits = settings();
        limits.admission_ms = 2500;
        limits.max_requests_per_connection = 1;
        let (mut stage, mut client) = Stage::entered(limits).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        client.say(&request("query", "r", 5, "o")).await;
        toolshed.request().await.unwrap();
        client.say(&request("query", "s", 5, "o")).await;
        let late = async {
            tokio::time::sleep(Duration::from_millis(3500)).await;
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
        let (mut stage, mut client) = Stage::entered(limits).await;
        let mut toolshed = stage.session(&mut client, 5).await;
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
        let (mut stage, mut client) = Stage::streaming(settings(), true).await;
        let mut toolshed = stage.session(&mut client, 5).await;
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
            let upload = async {
                client.bulk(&message).await;
                assert_eq!(client.message().await["requestId"], id);
            };
            let (served, ()) = tokio::join!(toolshed.serve(), upload);
            served.unwrap();
        }
    });
}
