//! The upgrade: what passes, what is refused and how, and where the bytes behind the head go.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation is the verdict

mod common;

use std::time::Duration;

use memory_transport::{
    AcceptError, ConnectError, Incoming, PendingUpgrade, ReadLimits, Target, WebSocket, upgrade,
};
use memory_wire::Reason;
use memory_wire::frame::Opcode;
use memory_wire::upgrade::{
    Endpoint, LINK_PATH, MAX_HEAD_LEN, PUBLIC_PATH, RefusalBody, UpgradePolicy,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::time::Instant;

use common::{deadline, tcp_pair, tls_pair};

const LIMITS: ReadLimits = ReadLimits::new(1 << 20);
const HOST: &str = "memory.example";
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

fn public() -> UpgradePolicy {
    UpgradePolicy::Public {
        host: HOST.to_owned(),
        origins: vec!["https://app.example".to_owned()],
        require_origin: false,
    }
}

fn target(path: &str) -> Target<'_> {
    Target {
        host: HOST,
        path,
        origin: None,
    }
}

fn request(path: &str, more: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
    )
    .into_bytes()
}

async fn echo_once(mut client: WebSocket<DuplexStream>, mut server: WebSocket<DuplexStream>) {
    client
        .writer
        .send_slice(Opcode::Text, b"hello")
        .await
        .unwrap();
    assert_eq!(server.reader.next().await.unwrap(), Incoming::Text);
    let mut buffer = memory_transport::Buffer::new();
    server.reader.swap_buffer(&mut buffer);
    server
        .writer
        .frame(Opcode::Text, true, &mut buffer)
        .await
        .unwrap();
    assert_eq!(client.reader.next().await.unwrap(), Incoming::Text);
    assert_eq!(client.reader.buffer().payload(), b"hello");
}

#[tokio::test]
async fn opens_public_and_private_endpoints() {
    for (policy, path, endpoint) in [
        (public(), PUBLIC_PATH, Endpoint::Public { space: None }),
        (UpgradePolicy::Private, LINK_PATH, Endpoint::RouterLink),
    ] {
        let (client, server) = duplex(64);
        let (client, server) = tokio::join!(
            upgrade::connect(client, target(path), LIMITS, deadline()),
            upgrade::accept(server, &policy, LIMITS, deadline()),
        );
        let (server, request) = server.unwrap();
        assert_eq!(request.endpoint, endpoint);
        echo_once(client.unwrap(), server).await;
    }
}

#[tokio::test]
async fn opens_over_tls() {
    let (client, server) = tls_pair().await;
    let policy = UpgradePolicy::Private;
    let (client, server) = tokio::join!(
        upgrade::connect(client, target(LINK_PATH), LIMITS, deadline()),
        upgrade::accept(server, &policy, LIMITS, deadline()),
    );
    let (mut client, (mut server, _)) = (client.unwrap(), server.unwrap());
    server.writer.close(1012, "drain").await.unwrap();
    server.writer.shutdown().await.unwrap();
    let close = client.reader.next().await.unwrap();
    assert_eq!(
        close,
        Incoming::Close {
            code: Some(1012),
            reason: "drain".to_owned()
        }
    );
}

#[tokio::test]
async fn accepts_a_head_cut_anywhere_and_keeps_what_follows() {
    let mut bytes = request(PUBLIC_PATH, "");
    let head = bytes.len();
    bytes.extend(b"\x89\x84\0\0\0\0ping\x81\x82\0\0\0\0hi"); // both behind the head in the same read
    for cut in 1..bytes.len() {
        let (mut client, server) = duplex(4096);
        let policy = public();
        let send = async {
            client.write_all(&bytes[..cut]).await.unwrap();
            tokio::task::yield_now().await;
            client.write_all(&bytes[cut..]).await.unwrap();
        };
        let (server, ()) = tokio::join!(upgrade::accept(server, &policy, LIMITS, deadline()), send);
        let (mut server, _) = server.unwrap();
        assert_eq!(
            server.reader.next().await.unwrap(),
            Incoming::Ping,
            "cut at {cut} of {head}"
        );
        assert_eq!(server.reader.control(), b"ping");
        assert_eq!(server.reader.next().await.unwrap(), Incoming::Text);
        assert_eq!(server.reader.buffer().payload(), b"hi");
    }
}

/// Sends `bytes`, gives the server's verdict and the whole answer.
async fn answer(bytes: &[u8], policy: &UpgradePolicy) -> (Result<(), AcceptError>, String) {
    let (mut client, server) = duplex(64 * 1024);
    client.write_all(bytes).await.unwrap();
    let read = async {
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        drop(client); // ends the server's lingering
        answer
    };
    let receive = async {
        let pending =
            PendingUpgrade::receive(server, policy, Some("0123456789abcdef"), deadline()).await;
        pending.map(drop)
    };
    tokio::join!(receive, read)
}

#[tokio::test]
async fn refuses_with_an_answer_and_shuts_down() {
    let good = String::from_utf8(request(PUBLIC_PATH, "")).unwrap();
    for (bytes, status, reason) in [
        ("\r\n".to_owned(), 400, Reason::UpgradeMalformed),
        ("nonsense\r\n\r\n".to_owned(), 400, Reason::UpgradeMalformed),
        (good.replace("GET", "POST"), 405, Reason::UpgradeMethod),
        (good.replace(PUBLIC_PATH, "/"), 404, Reason::UpgradePath),
        (
            good.replace(HOST, "other.example"),
            421,
            Reason::UpgradeHost,
        ),
        (
            good.replace("Version: 13", "Version: 8"),
            426,
            Reason::UpgradeVersion,
        ),
        (
            good.replace("\r\n\r\n", "\r\nOrigin: https://evil.example\r\n\r\n"),
            403,
            Reason::UpgradeOrigin,
        ),
        (
            good.replace("\r\n\r\n", "\r\nContent-Length: 5\r\n\r\nhello"),
            400,
            Reason::UpgradeMalformed,
        ),
    ] {
        let (result, answer) = answer(bytes.as_bytes(), &public()).await;
        match result {
            Err(AcceptError::Refused(refusal)) => {
                assert_eq!((refusal.status, refusal.reason), (status, reason))
            }
            other => panic!("{bytes:?}: {other:?}"),
        }
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
        let body = format!("{{\"error\":\"{reason}\",\"connection\":\"0123456789abcdef\"}}\n");
        assert!(answer.ends_with(&body), "{answer}");
        assert!(answer.contains("Connection: close\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn refuses_a_head_over_its_bound() {
    // One endless line, many lines, and a head that ends one byte too late.
    let prefix = request(PUBLIC_PATH, "X: ").len() + 2;
    let pad = |len: usize| request(PUBLIC_PATH, &format!("X: {}\r\n", "a".repeat(len - prefix)));
    let fits = pad(MAX_HEAD_LEN);
    assert_eq!(fits.len(), MAX_HEAD_LEN);
    let (mut client, server) = duplex(64 * 1024);
    client.write_all(&fits).await.unwrap();
    upgrade::accept(server, &public(), LIMITS, deadline())
        .await
        .unwrap();
    for bytes in [
        pad(MAX_HEAD_LEN + 1),
        vec![b'a'; 40_000],
        b"a\r\n".repeat(10_000),
    ] {
        let (result, answer) = answer(&bytes, &public()).await;
        assert!(matches!(result, Err(AcceptError::Refused(_))), "{result:?}");
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
}

#[tokio::test]
async fn refusal_reaches_a_client_that_goes_on_sending() {
    // Unread bytes at close would turn the answer into a reset.
    let (mut client, server) = tcp_pair().await;
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    client.write_all(&[b'x'; 30_000]).await.unwrap();
    let read = async {
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        drop(client);
        answer
    };
    let policy = public();
    let (result, answer) = tokio::join!(upgrade::accept(server, &policy, LIMITS, deadline()), read);
    assert!(matches!(result, Err(AcceptError::Refused(_))));
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}

#[tokio::test]
async fn caller_may_refuse_what_the_rules_allow() {
    let (client, server) = duplex(4096);
    let policy = public();
    let serve = async {
        let pending = PendingUpgrade::receive(server, &policy, None, deadline())
            .await
            .unwrap();
        assert_eq!(pending.request().endpoint, Endpoint::Public { space: None });
        let body = RefusalBody {
            error: Reason::TenantCap.as_str(),
            tenant: Some("tenant"),
            cap: Some(7),
            retry_after: Some(30),
            ..RefusalBody::default()
        };
        pending.refuse(429, &body).await;
    };
    let (client, ()) = tokio::join!(
        upgrade::connect(client, target(PUBLIC_PATH), LIMITS, deadline()),
        serve
    );
    match client.map(drop) {
        Err(ConnectError::Refused {
            status: 429,
            retry_after: Some(30),
            body,
        }) => {
            assert_eq!(
                body,
                b"{\"error\":\"tenant-cap\",\"tenant\":\"tenant\",\"cap\":7}\n"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_end_or_silence_inside_the_head_is_an_error() {
    let (mut client, server) = duplex(4096);
    client.write_all(b"GET / HT").await.unwrap();
    drop(client);
    let result = upgrade::accept(server, &public(), LIMITS, deadline()).await;
    assert!(matches!(result, Err(AcceptError::EndOfStream)));

    tokio::time::pause();
    let soon = Instant::now() + Duration::from_secs(10);
    let (mut client, server) = duplex(4096);
    client.write_all(b"GET / HT").await.unwrap();
    let result = upgrade::accept(server, &public(), LIMITS, soon).await;
    assert!(matches!(result, Err(AcceptError::Timeout)));
    let (client, _server) = duplex(4096);
    let result = upgrade::connect(
        client,
        target(PUBLIC_PATH),
        LIMITS,
        soon + Duration::from_secs(10),
    )
    .await;
    assert!(matches!(result, Err(ConnectError::Timeout)));
}

#[tokio::test]
async fn client_refuses_a_wrong_answer() {
    let wrong = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    for answer in [wrong, "HTTP/1.0 200 OK\r\n\r\n", "\r\n\r\nx"] {
        let (client, mut server) = duplex(4096);
        server.write_all(answer.as_bytes()).await.unwrap();
        let result = upgrade::connect(client, target(PUBLIC_PATH), LIMITS, deadline()).await;
        assert!(matches!(result, Err(ConnectError::Response(_))), "{answer}");
    }
    let (client, server) = duplex(4096);
    drop(server);
    let result = upgrade::connect(client, target(PUBLIC_PATH), LIMITS, deadline()).await;
    assert!(matches!(result, Err(ConnectError::Io(_))));
    let (client, _server) = duplex(4096);
    let result = upgrade::connect(client, target("no slash"), LIMITS, deadline()).await;
    assert!(matches!(result, Err(ConnectError::Response(_))));
}
