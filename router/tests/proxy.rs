//! PROXY protocol version 2 at the listener as a real process, with the test in the place of spawner and balancer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::{Ipv4Addr, SocketAddr};

use memory_ipc::packets::SpawnerToListener;
use memory_ipc::{Channel, WorkerOutcome};
use rustix::process::Signal;
use support::listening::{client, dropped, serving, taken, tell};
use support::{Fixture, PATIENCE, Process, json_of};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;

/// What a client sends first; none of it is the listener's.
const HELLO: &[u8] = b"\x16\x03\x01\x00\x05hello";

/// The configuration behind a balancer on loopback, and what follows.
fn behind(extra: &str) -> Fixture {
    Fixture::new(&trusting("127.0.0.0/8", extra))
}

fn trusting(network: &str, extra: &str) -> String {
    format!("proxy_protocol = \"v2\"\nproxy_trusted = [\"{network}\"]\n{extra}")
}

fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [
        b"\r\n\r\n\0\r\nQUIT\n",
        &[command, family][..],
        &length,
        rest,
    ]
    .concat()
}

/// A header for this client, with an extension behind its addresses.
fn header_for(client: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(client) = client else {
        panic!("not IPv4")
    };
    let rest = [
        &client.ip().octets()[..],
        &[198, 51, 100, 1],
        &client.port().to_be_bytes(),
        &443_u16.to_be_bytes(),
        &[0xee, 0, 2, 7, 7],
    ];
    header(PROXY, 0x11, &rest.concat())
}

/// The `number`th of distinct clients.
fn host(number: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(192, 0, 2, number), 50_000))
}

/// Connects and sends this.
async fn send(fixture: &Fixture, bytes: &[u8]) -> TcpStream {
    let mut stream = client(fixture).await;
    stream.write_all(bytes).await.unwrap();
    stream
}

/// The same, and what the spawner got for it.
async fn proxied(fixture: &Fixture, spawner: &Channel, peer: SocketAddr) -> TcpStream {
    let stream = send(fixture, &header_for(peer)).await;
    assert_eq!(taken(spawner).await.1, peer);
    stream
}

/// Reasons of the lines so far.
fn reasons(listener: &Process) -> Vec<String> {
    let lines = listener.log().iter().map(|line| json_of(line));
    lines
        .filter_map(|line| Some(line["reason"].as_str()?.to_owned()))
        .collect()
}

#[tokio::test]
async fn the_client_is_who_the_header_names_and_its_bytes_are_all_there() {
    let fixture = behind("");
    let (_listener, spawner) = serving(&fixture).await;
    let mut balancer = client(&fixture).await;
    balancer.set_nodelay(true).unwrap();
    // In as many pieces as there are bytes, and with the client's first bytes right behind.
    let sent = [&header_for(host(1))[..], HELLO].concat();
    for byte in sent {
        balancer.write_all(&[byte]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let (_, peer, socket) = taken(&spawner).await;
    assert_eq!(peer, host(1));
    let mut socket = TcpStream::from_std(std::net::TcpStream::from(socket)).unwrap();
    let mut received = [0; HELLO.len()];
    let read = timeout(PATIENCE, socket.read_exact(&mut received)).await;
    read.unwrap().unwrap();
    assert_eq!(received, HELLO);

    // All at once.
    let sent = [&header_for(host(2))[..], HELLO].concat();
    let _balancer = send(&fixture, &sent).await;
    let (_, peer, socket) = taken(&spawner).await;
    assert_eq!(peer, host(2));
    let mut socket = TcpStream::from_std(std::net::TcpStream::from(socket)).unwrap();
    let read = timeout(PATIENCE, socket.read_exact(&mut received)).await;
    read.unwrap().unwrap();
    assert_eq!(received, HELLO);
}

#[tokio::test]
async fn without_a_name_the_tcp_peer_stands_for_the_client() {
    let fixture = behind("");
    let (_listener, spawner) = serving(&fixture).await;
    for rest in [&[][..], &[1, 2, 3, 4, 5]] {
        let balancer = send(&fixture, &header(PROXY, 0, rest)).await;
        let (_, peer, _) = taken(&spawner).await;
        assert_eq!(peer, balancer.local_addr().unwrap());
    }
}

#[tokio::test]
async fn health_checks_count_nowhere_and_are_closed_quietly() {
    let fixture = behind(
        "[limits]\nmax_workers = 1\nmax_unauthenticated = 1\nmax_per_source = 1\n\
         max_unauthenticated_per_source = 1\nmax_new_connections_per_second = 1\n",
    );
    let (mut listener, spawner) = serving(&fixture).await;
    let _live = proxied(&fixture, &spawner, host(1)).await;
    // Full, and still well.
    for rest in [&[][..], &[1, 2, 3], &[1; 12], &[0xff; 520]] {
        dropped(send(&fixture, &header(LOCAL, 0, rest)).await).await;
        listener.reason("health-check").await;
        dropped(send(&fixture, &header(LOCAL, 0x11, rest)).await).await;
        listener.reason("health-check").await;
    }
    drop(client(&fixture).await);
    listener.reason("health-check").await;
    let told = reasons(&listener);
    assert!(!told.contains(&"proxy-header".to_owned()), "{told:?}");
    dropped(send(&fixture, &header_for(host(2))).await).await;
    listener.reason("capacity").await;
}

#[tokio::test]
async fn anything_but_a_header_is_dropped() {
    for bytes in [
        HELLO,
        b"PROXY TCP4 192.0.2.1 198.51.100.1 50000 443\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        &header(0x11, 0x11, &[0; 12]),
        &header(PROXY, 0x11, &[0; 11]),
        &header(PROXY, 0x12, &[0; 12]),
        &header(PROXY, 0x31, &[0; 216]),
        &header(PROXY, 0x11, &[0; 521]),
    ] {
        let fixture = behind("");
        let (mut listener, spawner) = serving(&fixture).await;
        dropped(send(&fixture, bytes).await).await;
        let line = listener.reason("proxy-header").await;
        assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
        // The next is served: it was not the balancer that was to blame.
        proxied(&fixture, &spawner, host(1)).await;
    }
}

#[tokio::test]
async fn a_header_from_somebody_else_is_not_believed() {
    let fixture = Fixture::new(&trusting("192.0.2.0/24", ""));
    let (mut listener, spawner) = serving(&fixture).await;
    dropped(client(&fixture).await).await;
    let line = listener.reason("proxy-header").await;
    assert_eq!(line["setting"], "proxy_trusted");
    let mut lying = client(&fixture).await;
    // It may be gone already.
    let _ = lying.write_all(&header_for(host(1))).await;
    dropped(lying).await;

    // Trusted by a reload.
    fixture.configure(&trusting("127.0.0.1/32", ""));
    listener.signal(Signal::HUP);
    listener.reason("reloaded").await;
    proxied(&fixture, &spawner, host(1)).await;
}

#[tokio::test]
async fn a_slow_header_holds_nobody_up_and_has_its_time() {
    let fixture = behind("[timeouts]\nhandshake = \"500ms\"\n");
    let (mut listener, spawner) = serving(&fixture).await;
    let whole = header_for(host(1));
    let mut slow = Vec::new();
    for cut in [0, 1, 11, 12, 13, 15, 16, 17, whole.len() - 1] {
        slow.push(send(&fixture, &whole[..cut]).await);
    }
    proxied(&fixture, &spawner, host(2)).await;
    for stream in slow {
        dropped(stream).await;
    }
    listener.reason("proxy-header").await;
}

#[tokio::test]
async fn headers_that_are_waited_for_are_bounded() {
    let fixture = behind("[limits]\nmax_unauthenticated = 2\n");
    let (mut listener, spawner) = serving(&fixture).await;
    let mut silent = vec![client(&fixture).await, client(&fixture).await];
    // Accepted in the order in which they connected.
    dropped(client(&fixture).await).await;
    let line = listener.reason("unauthenticated-limit").await;
    assert_eq!(line["setting"], "limits.max_unauthenticated");
    let mut first = silent.remove(0);
    first.write_all(&header_for(host(1))).await.unwrap();
    assert_eq!(taken(&spawner).await.1, host(1));
    proxied(&fixture, &spawner, host(2)).await;
}

#[tokio::test]
async fn sources_are_those_of_the_headers() {
    let fixture = behind("[limits]\nmax_per_source = 1\nmax_unauthenticated_per_source = 1\n");
    let (mut listener, spawner) = serving(&fixture).await;
    let mut live = Vec::new();
    for number in 1..=5 {
        live.push(proxied(&fixture, &spawner, host(number)).await);
    }
    dropped(send(&fixture, &header_for(host(3))).await).await;
    let line = listener.reason("source-limit").await;
    assert_eq!(line["peer"], host(3).to_string());
}

#[tokio::test]
async fn penalties_are_for_the_client_and_not_for_the_balancer() {
    let fixture = behind("");
    let (mut listener, spawner) = serving(&fixture).await;
    let _balancer = send(&fixture, &header_for(host(1))).await;
    let (connection, ..) = taken(&spawner).await;
    let outcome = WorkerOutcome::Crash;
    tell(
        &spawner,
        SpawnerToListener::Ended {
            connection,
            outcome,
        },
    )
    .await;
    // The listener reads what it was told before this connection has sent its header.
    listener.reason("worker-crash").await;
    dropped(send(&fixture, &header_for(host(1))).await).await;
    let line = listener.reason("penalized").await;
    assert_eq!(line["peer"], host(1).to_string());
    proxied(&fixture, &spawner, host(2)).await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_headers() {
    let fixture = behind("");
    let (mut listener, spawner) = serving(&fixture).await;
    let silent = client(&fixture).await;
    // Behind the silent one, so that it is waited for by now.
    dropped(send(&fixture, &header(LOCAL, 0, &[])).await).await;
    listener.signal(Signal::TERM);
    assert_eq!(listener.ended().await.code(), Some(0));
    dropped(silent).await;
    drop(spawner);
}
