//! Whole connections under stress: each test is a way in which one went wrong, or could.
//!
//! Compiled under `#[cfg(test)]` alone.

use std::rc::Rc;
use std::time::Duration;

use memory_transport::Buffer;
use memory_wire::credit::REQUEST_WINDOW;
use memory_wire::envelope;
use memory_wire::frame::Opcode;
use memory_wire::reason::Reason;
use memory_wire::stream::MAX_CHUNK_LEN;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::client::{ask_challenge, auth, challenge, open, request};
use super::toolshed::answer_body;
use super::{Client, Got, Stage, Toolshed, identity, play, settings};

pub(super) fn denial(id: &str, retriable: bool) -> Value {
    let mut error =
        json!({"name": "AuthorizationError", "message": "Routed memory request denied"});
    if retriable {
        error["retriable"] = json!(true);
    }
    json!({"type": "response", "requestId": id, "error": error})
}

#[test]
fn one_request_at_a_time_still_streams_its_body() {
    play(|| async {
        let mut limits = settings();
        limits.max_requests_per_connection = 1;
        limits.admission_ms = 2000;
        let (mut stage, mut client) = Stage::streaming(limits, true).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        let mut message = request("transact", "r", 5, "o");
        message["x"] = json!("x".repeat(3 * MAX_CHUNK_LEN));
        client.stream(&message).await;
        toolshed.serve().await.unwrap();
        assert_eq!(client.message().await["requestId"], "r");
    });
}

#[test]
fn a_full_request_table_does_not_keep_the_signature_out_that_opens_wait_for() {
    play(|| async {
        let mut limits = settings();
        limits.max_requests_per_connection = 1;
        limits.admission_ms = 1000;
        let (mut stage, mut client) = Stage::entered(limits).await;
        let who = identity(2);
        stage.plan.renew.borrow_mut().insert(who.did());
        client.say(&open("o", 5)).await;
        let push = client.message().await;
        assert_eq!(push["type"], "connection/challenge");
        let challenge = challenge(&push["challenge"]);
        client.say(&auth("again", &who, challenge)).await;
        assert_eq!(client.message().await["requestId"], "again");
        stage.toolshed().await.serve().await.unwrap();
        assert_eq!(client.message().await["ok"]["sessionId"], "s-o");
    });
}

#[test]
fn an_open_behind_a_slow_upload_is_refused_alone() {
    play(|| async {
        let mut limits = settings();
        limits.admission_ms = 300;
        let (mut stage, mut client) = Stage::streaming(limits, false).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        let gate = Rc::new(Notify::new());
        *stage.plan.gate.borrow_mut() = Some(Rc::clone(&gate));
        client.say(&open("late", 5)).await;
        let message = request("transact", "r", 5, "o");
        let text = format!("fvj1:{message}");
        let route = json!({"type": "transact", "requestId": "r", "space": message["space"],
            "sessionId": message["sessionId"]});
        client.header(text.len(), &route).await;
        assert_eq!(toolshed.header().await.unwrap()["route"]["requestId"], "r");
        gate.notify_one();
        assert_eq!(client.message().await, denial("late", true));
        client.chunk(text.as_bytes()).await;
        client.complete().await;
        toolshed.answer("r", None, 0).await;
        assert_eq!(client.message().await["requestId"], "r");
    });
}

#[test]
fn an_open_without_request_credit_is_refused_alone_and_spends_none() {
    play(|| async {
        let mut limits = settings();
        limits.admission_ms = 300;
        let (mut stage, mut client) = Stage::entered(limits).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        let mut message = request("transact", "r", 5, "o");
        let padding = REQUEST_WINDOW as usize - format!("fvj1:{message}").len() - 8;
        message["x"] = json!("x".repeat(padding));
        client.say(&message).await;
        let (header, _) = toolshed.request().await.unwrap();
        client.say(&open("late", 5)).await;
        assert_eq!(client.message().await, denial("late", true));
        toolshed
            .grant(u32::try_from(header["bytes"].as_u64().unwrap()).unwrap())
            .await;
        client.say(&open("later", 5)).await;
        let header = toolshed.serve().await.unwrap();
        assert_eq!(header["requestOrdinal"], 3);
        assert_eq!(client.message().await["ok"]["sessionId"], "s-later");
    });
}

#[test]
fn a_drain_delivers_what_is_in_flight_before_it_closes() {
    play(|| async {
        let (mut stage, mut client) = Stage::entered(settings()).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        client.say(&request("query", "r", 5, "o")).await;
        toolshed.request().await.unwrap();
        stage.drain().await;
        toolshed.answer("r", None, 3 << 20).await;
        let answer = client.message().await;
        assert_eq!(answer["ok"]["padding"].as_str().unwrap().len(), 3 << 20);
        assert_eq!(client.closing().await, (1001, "drain".to_owned()));
        assert_eq!(stage.ended().await, (Reason::Drain, "drain".to_owned()));
    });
}

#[test]
fn a_drain_ends_by_itself_before_the_spawner_ends_it() {
    play(|| async {
        let mut limits = settings();
        limits.drain_ms = 400;
        let (mut stage, mut client) = Stage::entered(limits).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        client.say(&request("query", "r", 5, "o")).await;
        toolshed.request().await.unwrap();
        stage.drain().await;
        assert_eq!(client.closing().await, (1001, "drain".to_owned()));
    });
}

#[test]
fn a_drain_refuses_opens_that_wait_for_a_signature() {
    play(|| async {
        let (stage, mut client) = Stage::entered(settings()).await;
        stage.plan.renew.borrow_mut().insert(identity(2).did());
        client.say(&open("o", 5)).await;
        assert_eq!(client.message().await["type"], "connection/challenge");
        stage.drain().await;
        assert_eq!(client.message().await, denial("o", true));
        assert_eq!(client.closing().await, (1001, "drain".to_owned()));
    });
}

#[test]
fn requests_pass_a_watch_mutation_as_soon_as_its_answer_begins() {
    play(|| async {
        let (mut stage, mut client) = Stage::entered(settings()).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        let mut watch = request("session.watch.set", "w", 5, "o");
        watch["watches"] = json!([{"id": "a"}]);
        client.say(&watch).await;
        toolshed.request().await.unwrap();
        client.say(&request("transact", "r", 5, "o")).await;
        let body = answer_body("w", None, 0);
        toolshed.answer_header("w", None, body.len()).await;
        let (header, _) = toolshed.request().await.unwrap();
        assert_eq!(header["route"]["requestId"], "r");
        toolshed.chunk(&body).await;
        toolshed.complete().await;
        toolshed.answer("r", None, 0).await;
        assert_eq!(client.message().await["requestId"], "w");
        assert_eq!(client.message().await["requestId"], "r");
    });
}

#[test]
fn an_upload_has_more_time_while_its_credit_cannot_be_sent() {
    play(|| async {
        let mut limits = settings();
        limits.upload_ms = 250;
        let (mut stage, mut client) = Stage::streaming(limits, true).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        client.stream(&request("query", "r", 5, "o")).await;
        toolshed.request().await.unwrap();
        // An answer that stalls in its middle owns the public output; credit cannot pass it.
        let body = answer_body("r", None, 10);
        toolshed.answer_header("r", None, body.len()).await;
        toolshed.chunk(&body[..5]).await;
        let message = format!("fvj1:{}", request("transact", "u", 5, "o"));
        let route = json!({"type": "transact", "requestId": "u",
            "space": identity(5).did(), "sessionId": "s-o"});
        client.hear_until_mid_message().await;
        client.header(message.len(), &route).await;
        // More than three times the upload's own time.
        let silence = async {
            loop {
                match client.hear().await {
                    Got::Credit(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        };
        let waited = tokio::time::timeout(Duration::from_millis(900), silence);
        assert!(waited.await.is_err());
        toolshed.chunk(&body[5..]).await;
        toolshed.complete().await;
        assert_eq!(client.message().await["requestId"], "r");
        client.chunk(message.as_bytes()).await;
        client.complete().await;
        toolshed.answer("u", None, 0).await;
        assert_eq!(client.message().await["requestId"], "u");
    });
}

#[test]
fn an_upload_that_stops_moving_ends_the_connection() {
    play(|| async {
        let mut limits = settings();
        limits.upload_ms = 200;
        let (_stage, mut client) = Stage::streaming(limits, true).await;
        client.header(100, &ask_challenge("c")).await;
        assert_eq!(client.closing().await, (1008, "upload-timeout".to_owned()));
    });
}

#[test]
fn a_client_in_the_middle_of_a_slow_message_is_not_silent() {
    play(|| async {
        let mut limits = settings();
        limits.ping_interval_ms = 200;
        limits.ping_timeout_ms = 200;
        let (_stage, mut client) = Stage::entered(limits).await;
        let text = format!(
            "fvj1:{}",
            json!({"type": "connection.challenge", "requestId": "c", "x": "x".repeat(200)})
        );
        // The client answers no ping meanwhile: a browser's pong stands behind its message.
        let mut beat = tokio::time::interval(Duration::from_millis(50));
        let parts: Vec<&[u8]> = text.as_bytes().chunks(12).collect();
        for (index, part) in parts.iter().enumerate() {
            beat.tick().await;
            let opcode = if index == 0 {
                Opcode::Text
            } else {
                Opcode::Continuation
            };
            let fin = index + 1 == parts.len();
            let mut part = Buffer::from(*part);
            client.writer.frame(opcode, fin, &mut part).await.unwrap();
        }
        assert_eq!(client.message().await["requestId"], "c");
    });
}

#[test]
fn a_silent_client_is_pinged_and_let_go() {
    play(|| async {
        let mut limits = settings();
        limits.ping_interval_ms = 100;
        limits.ping_timeout_ms = 100;
        let (mut stage, mut client) = Stage::entered(limits).await;
        while client.pings < 3 {
            tokio::select! {
                got = client.hear() => panic!("{got:?}"),
                () = tokio::time::sleep(Duration::from_millis(350)) => {}
            }
        }
        assert_eq!(stage.ended().await.0, Reason::PingTimeout);
    });
}

#[test]
fn what_is_longer_than_a_record_is_refused_at_its_header_once_uploads_are_credited() {
    play(|| async {
        let (_stage, mut client) = Stage::streaming(settings(), true).await;
        client.send(&vec![0; 4 * MAX_CHUNK_LEN]).await;
        assert_eq!(
            client.closing().await,
            (1009, "message-too-large".to_owned())
        );
    });
}

#[test]
fn the_close_frame_outlives_the_message_that_was_too_large() {
    play(|| async {
        let (_stage, mut client) = Stage::entered(settings()).await;
        let Client { reader, writer, .. } = &mut client;
        let message = vec![b'x'; 9 << 20];
        let (_, heard) = tokio::join!(writer.send_slice(Opcode::Text, &message), reader.next());
        let closed = memory_transport::Incoming::Close {
            code: Some(1009),
            reason: format!(
                "message-too-large {}",
                memory_wire::ids::ConnectionId::new(1, [0; 4])
            ),
        };
        assert_eq!(heard.unwrap(), closed);
    });
}

#[test]
fn opens_of_many_megabytes_are_not_all_kept() {
    play(|| async {
        let (mut stage, mut client) = Stage::entered(settings()).await;
        let gate = Rc::new(Notify::new());
        *stage.plan.gate.borrow_mut() = Some(Rc::clone(&gate));
        for id in ["a", "b", "c"] {
            let mut open = open(id, 5);
            open["session"]["x"] = json!("x".repeat(3 << 20));
            client.say(&open).await;
        }
        assert_eq!(client.message().await, denial("c", true));
        *stage.plan.gate.borrow_mut() = None;
        gate.notify_one();
        let mut toolshed = stage.toolshed().await;
        toolshed.serve().await.unwrap();
        toolshed.serve().await.unwrap();
        client.message().await;
        client.message().await;
        client.say(&open("d", 5)).await;
        toolshed.serve().await.unwrap();
        assert_eq!(client.message().await["ok"]["sessionId"], "s-d");
    });
}

#[test]
fn an_open_that_expands_past_the_request_window_is_refused_for_good() {
    play(|| async {
        let (_stage, mut client) = Stage::streaming(settings(), false).await;
        let mut open = open("o", 5);
        let mut noise = String::new();
        let mut state = 1_u32;
        while noise.len() < 5 << 20 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            noise.push_str(&format!("{:04x}", state >> 16));
        }
        open["session"]["x"] = json!(noise);
        let text = format!("fvj1:{open}");
        let body = envelope::encode(text.as_bytes(), open["space"].as_str()).unwrap();
        assert!(body.len() < REQUEST_WINDOW as usize);
        let header = json!({"bytes": body.len(), "binary": true, "route": {"type": "session.open",
            "requestId": "o", "space": open["space"], "principal": open["principal"]}});
        client
            .send(&[b"mrt\x01\x00", header.to_string().as_bytes()].concat())
            .await;
        for chunk in body.chunks(MAX_CHUNK_LEN) {
            client.chunk(chunk).await;
        }
        client.complete().await;
        assert_eq!(client.message().await, denial("o", false));
    });
}

#[test]
fn the_transport_may_be_selected_until_the_first_signature() {
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        let mut client = stage.connect().await;
        let challenge = client.greet().await;
        client.say(&ask_challenge("c")).await;
        client
            .say(&json!({"type": "memory.compression", "requestId": "m", "enabled": true}))
            .await;
        client.select(true).await;
        client.stream(&auth("a", &identity(2), challenge)).await;
        for id in ["c", "m", "a"] {
            assert_eq!(client.message().await["requestId"], id);
        }
    });
}

#[test]
fn a_lost_data_socket_without_sessions_refuses_opens_until_the_connection_ends() {
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        let (mut client, mut first) = deserted(&mut stage).await;
        client.say(&open("q", 6)).await;
        assert_eq!(client.message().await, denial("q", true));
        client.say(&request("query", "r", 5, "o")).await;
        first.serve().await.unwrap();
        assert_eq!(client.message().await["requestId"], "r");
        // The link stands: nothing would ever bring the socket back.
        assert_eq!(client.closing().await, (1011, "upstream-lost".to_owned()));
    });
}

#[test]
fn a_data_socket_without_sessions_that_goes_with_its_link_disturbs_nobody() {
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        let (mut client, mut first) = deserted(&mut stage).await;
        stage.lose_link(1).await;
        client.say(&open("q", 6)).await;
        let mut second = stage.toolshed().await;
        assert_eq!(second.index, 1);
        second.serve().await.unwrap();
        assert_eq!(client.message().await["ok"]["sessionId"], "s-q");
        // Past the time in which a socket that was lost alone would have ended it.
        let quiet = timeout(
            crate::receive::LINK_NEWS + Duration::from_secs(2),
            client.message(),
        );
        assert!(quiet.await.is_err(), "the client was told something");
        client.say(&request("query", "r", 5, "o")).await;
        first.serve().await.unwrap();
        assert_eq!(client.message().await["requestId"], "r");
    });
}

/// A client with a session at one toolshed, `o`, and at another nothing any more: its data socket was just lost, which the
/// worker has seen.
async fn deserted(stage: &mut Stage) -> (Client, Toolshed) {
    stage.plan.places.borrow_mut().insert(identity(6).did(), 1);
    let mut client = stage.connect().await;
    client.enter().await;
    let first = stage.session(&mut client, 5).await;
    client.say(&open("p", 6)).await;
    let mut second = stage.toolshed().await;
    assert_eq!(second.index, 1);
    second.serve().await.unwrap();
    client.message().await;
    client.say(&request("session.close", "c", 6, "p")).await;
    second.serve().await.unwrap();
    client.message().await;
    drop(second);
    // By the time that the link agent has answered, the worker has seen the socket end.
    client.say(&ask_challenge("round")).await;
    client.message().await;
    (client, first)
}

#[test]
fn a_lost_link_ends_the_connections_that_need_it_alone() {
    play(|| async {
        let (mut stage, mut client) = Stage::entered(settings()).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        stage.lose_link(1).await;
        client.say(&request("query", "r", 5, "o")).await;
        toolshed.serve().await.unwrap();
        client.message().await;
        stage.lose_link(0).await;
        assert_eq!(client.closing().await, (1011, "upstream-lost".to_owned()));
    });
}

#[test]
fn thirty_two_opens_at_once_pass_a_dead_toolshed() {
    play(|| async {
        let mut stage = Stage::start(settings()).await;
        for space in 40..48 {
            let mut places = stage.plan.places.borrow_mut();
            places.insert(identity(space).did(), u16::MAX);
        }
        let mut client = stage.connect().await;
        client.enter().await;
        for space in 16..48 {
            client.say(&open(&format!("o{space}"), space)).await;
        }
        let mut toolshed = stage.toolshed().await;
        for _ in 16..40 {
            toolshed.serve().await.unwrap();
        }
        let mut refused = 0;
        for _ in 16..48 {
            refused += u32::from(client.message().await.get("error").is_some());
        }
        assert_eq!(refused, 8);
    });
}

#[test]
fn opens_behind_a_setup_that_fails_are_tried_again() {
    play(|| async {
        let (mut stage, mut client) = Stage::entered(settings()).await;
        stage.plan.places.borrow_mut().insert(identity(9).did(), 1);
        stage.plan.refuse_binding.set(true);
        for space in [5, 6, 9, 7] {
            client.say(&open(&format!("o{space}"), space)).await;
        }
        // The first pays for the failure; then one at each toolshed goes on, and the rest find its socket.
        assert_eq!(client.message().await, denial("o5", true));
        let (mut answered, mut toolsheds) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let mut toolshed = stage.toolshed().await;
            let sessions = if toolshed.index == 0 { 2 } else { 1 };
            for _ in 0..sessions {
                toolshed.serve().await.unwrap();
                answered.push(client.message().await["ok"]["sessionId"].to_string());
            }
            toolsheds.push(toolshed);
        }
        answered.sort();
        assert_eq!(answered, ["\"s-o6\"", "\"s-o7\"", "\"s-o9\""]);
        assert_eq!(stage.plan.rollbacks.get(), 1);
    });
}

#[test]
fn a_data_socket_that_fails_before_its_binding_is_taken_back() {
    play(|| async {
        let (mut stage, mut client) = Stage::entered(settings()).await;
        stage.plan.refuse_binding.set(true);
        client.say(&open("a", 5)).await;
        assert_eq!(client.message().await, denial("a", true));
        assert_eq!(stage.plan.rollbacks.get(), 1);
        stage.session(&mut client, 5).await;
    });
}

#[test]
fn credit_returns_exactly_what_was_sent_also_for_refused_bodies() {
    play(|| async {
        let (_stage, mut client) = Stage::streaming(settings(), true).await;
        let before = client.writer.sent();
        let mut frames = 0;
        for id in ["a", "b", "c"] {
            let mut message = request("transact", id, 5, "nobody");
            message["x"] = json!("x".repeat(40_000));
            client.stream(&message).await;
            // Header, two chunks, completion; a mask and a short or a middle length each.
            frames += (6 + 2) + (8) + (6 + 2) + 6;
        }
        let sent = client.writer.sent() - before - frames;
        let mut returned = 0;
        let mut denied = 0;
        while returned < sent || denied < 3 {
            match client.hear().await {
                Got::Credit(amount) => returned += u64::from(amount),
                Got::Message(message) => {
                    assert_eq!(message["error"]["name"], "AuthorizationError");
                    denied += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(returned, sent);
    });
}

#[test]
fn a_toolshed_that_answers_what_nobody_asked_ends_the_connection() {
    play(|| async {
        let (mut stage, mut client) = Stage::entered(settings()).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        toolshed.answer("o", Some("s-x"), 0).await;
        assert_eq!(
            client.closing().await,
            (1011, "upstream-protocol".to_owned())
        );
    });
}

#[test]
fn an_answer_before_the_whole_request_is_passed_on_and_the_request_completed() {
    play(|| async {
        let (mut stage, mut client) = Stage::streaming(settings(), false).await;
        let mut toolshed = stage.session(&mut client, 5).await;
        let text = format!("fvj1:{}", request("transact", "r", 5, "o"));
        let route = json!({"type": "transact", "requestId": "r",
            "space": identity(5).did(), "sessionId": "s-o"});
        client.header(text.len(), &route).await;
        toolshed.header().await.unwrap();
        toolshed.answer("r", None, 0).await;
        assert_eq!(client.message().await["requestId"], "r");
        client.chunk(text.as_bytes()).await;
        client.complete().await;
        client.say(&request("query", "q", 5, "o")).await;
        while toolshed.header_of_next().await != "q" {}
        toolshed.answer("q", None, 0).await;
        assert_eq!(client.message().await["requestId"], "q");
    });
}

#[test]
fn an_operators_request_is_denied_for_good_with_or_without_a_session() {
    play(|| async {
        let (_stage, mut client) = Stage::entered(settings()).await;
        let kind = "sqlite.register-disk-source";
        client.say(&json!({"type": kind, "requestId": "a"})).await;
        client.say(&request(kind, "b", 5, "nobody")).await;
        for id in ["a", "b"] {
            assert_eq!(client.message().await, denial(id, false));
        }
    });
}
