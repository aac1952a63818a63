//! The routed host over real TLS sockets, against a router written by hand.
#![allow(clippy::unwrap_used, clippy::panic)]

mod peer;

use memory_transport::Incoming;
use memory_wire::frame::Opcode;
use memory_wire::stream::{Header, Route};
use peer::*;
use serde_json::{Value, json};
use std::borrow::Cow;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;

fn set(local_seq: u64, id: &str, value: Value) -> Value {
    json!({"commit": {"localSeq": local_seq, "reads": {"confirmed": [], "pending": []},
        "operations": [{"op": "set", "id": id, "value": {"value": value}}]}})
}

fn watch(id: &str) -> Value {
    json!({"watches": [{"id": "w", "kind": "graph",
        "query": {"roots": [{"id": id, "selector": {"path": [], "schema": false}}]}}]})
}

#[tokio::test]
async fn two_clients_share_a_space() {
    let mut toolshed = Toolshed::start();
    let mut link = Link::open(&toolshed).await;
    assert!(
        link.flags.is_true("routerRequestCredit")
            && link.flags.is_true("routerEncodingNegotiation")
    );
    let mut alice = link.context(&toolshed, 1, ALICE).await;
    let mut bob = link.context(&toolshed, 2, BOB).await;
    let (a, b) = (alice.open(ALICE).await, bob.open(BOB).await);

    let answer = bob
        .ask(&in_session("session.watch.set", &b, watch("of:a")))
        .await;
    assert_eq!(answer["ok"]["sync"]["upserts"][0]["deleted"], true);
    let answer = alice
        .ask(&in_session("transact", &a, set(1, "of:a", json!(5))))
        .await;
    assert_eq!(answer["ok"]["seq"], 2);
    let (effect, _) = bob.receive().await;
    assert_eq!(effect["effect"]["upserts"][0]["doc"]["value"], 5);

    // As much as the request window holds, up in records and down in records. Random enough not to compress past 32 times.
    let mut seed = 1_u64;
    let large: String = (0..(4 << 20) - 1024)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'a' + u8::try_from((seed >> 33) % 26).unwrap())
        })
        .collect();
    let answer = alice
        .ask(&in_session(
            "transact",
            &a,
            set(2, "of:large", json!(large)),
        ))
        .await;
    assert_eq!(answer["ok"]["seq"], 3);
    let query = json!({"query": {"roots": [{"id": "of:large", "selector": {"path": [], "schema": false}}]}});
    bob.send(&in_session("graph.query", &b, query)).await;
    let (answer, compressed) = bob.receive().await;
    assert!(compressed);
    assert_eq!(
        answer["ok"]["entities"][0]["document"]["value"].as_str(),
        Some(large.as_str())
    );

    // The whole window came back: as much again fits.
    let answer = alice
        .ask(&in_session(
            "transact",
            &a,
            set(3, "of:large", json!(large)),
        ))
        .await;
    assert_eq!(answer["ok"]["seq"], 4);
    toolshed.stop();
    assert_eq!(alice.closed().await, Some(1001));
}

#[tokio::test]
async fn credit_and_ordinals_are_enforced() {
    let toolshed = Toolshed::start();
    let mut link = Link::open(&toolshed).await;
    for (context, ordinal, bytes) in [(1, 2, 100), (2, 1, (4 << 20) + 1), (3, 0, 100)] {
        let mut data = link.context(&toolshed, context, ALICE).await;
        let mut record = Vec::new();
        Header {
            bytes,
            binary: false,
            request_ordinal: Some(ordinal),
            route: Route {
                kind: Cow::Borrowed("transact"),
                ..Route::default()
            },
        }
        .encode_record(&mut record)
        .unwrap();
        data.socket
            .writer
            .send_slice(Opcode::Binary, &record)
            .await
            .unwrap();
        assert_eq!(
            data.closed().await,
            Some(1008),
            "ordinal {ordinal}, {bytes} bytes"
        );
    }
    // What cannot be a record here.
    for (context, opcode, payload) in [
        (4, Opcode::Text, b"fvj1:{}".as_slice()),
        (5, Opcode::Binary, b"mri\x02\0\0\0\x01"),
        (6, Opcode::Binary, b"mrt\x01\x02"),
        (7, Opcode::Binary, b"mrt\x01\x01x"),
    ] {
        let mut data = link.context(&toolshed, context, ALICE).await;
        data.socket
            .writer
            .send_slice(opcode, payload)
            .await
            .unwrap();
        assert_eq!(data.closed().await, Some(1008), "context {context}");
    }
}

#[tokio::test]
async fn a_new_link_ends_what_the_old_one_held() {
    let toolshed = Toolshed::start();
    let mut link = Link::open(&toolshed).await;
    let mut data = link.context(&toolshed, 1, ALICE).await;
    data.open(ALICE).await;
    // The same epoch again is refused, and replaces nothing.
    let mut again = toolshed.connect("/memory/router-link").await;
    assert_eq!(again.reader.next().await.unwrap(), Incoming::Binary);
    again
        .writer
        .send_slice(Opcode::Binary, b"rpc1 and nonsense")
        .await
        .unwrap();
    assert!(matches!(
        again.reader.next().await.unwrap(),
        Incoming::Close {
            code: Some(1008),
            ..
        }
    ));
    let answer = data
        .ask(&in_session("session.ack", "unknown", json!({"seenSeq": 1})))
        .await;
    assert_eq!(answer["error"]["message"], "Routed memory request denied");
    // A link that breaks the order of requests ends with its contexts.
    link.socket
        .writer
        .send_slice(Opcode::Binary, b"mlq1")
        .await
        .unwrap();
    assert!(matches!(
        link.socket.reader.next().await.unwrap(),
        Incoming::Close {
            code: Some(1008),
            ..
        }
    ));
    assert_eq!(data.closed().await, Some(1008));
}

#[tokio::test]
async fn strangers_are_dropped_before_a_byte_is_read() {
    let toolshed = Toolshed::start();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut stream = socket.connect(toolshed.address).await.unwrap();
    assert_eq!(stream.read(&mut [0; 16]).await.unwrap_or(0), 0);
}
