//! The listener as a real process, with the test in the spawner's place.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::time::Duration;

use memory_ipc::WorkerOutcome;
use memory_ipc::packets::{ListenerToSpawner, SpawnerToListener};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use support::listening::{SOCKET, admitted_client, client, dropped, ends, serving, taken, tell};
use support::{Fixture, PATIENCE, end_of_file, receive};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

#[tokio::test]
async fn hands_over_the_accepted_socket_and_keeps_no_copy() {
    let fixture = Fixture::new("");
    let (_listener, spawner) = serving(&fixture).await;
    let mut client = client(&fixture).await;
    let (_, peer, socket) = taken(&spawner).await;
    assert_eq!(peer, client.local_addr().unwrap());

    let socket = std::net::TcpStream::from(socket);
    assert!(socket.nodelay().unwrap());
    let mut server = TcpStream::from_std(socket).unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut server, b"x")
        .await
        .unwrap();
    let mut byte = [0];
    client.read_exact(&mut byte).await.unwrap();
    // With a copy in the listener, the client would not see this end.
    drop(server);
    dropped(client).await;
}

#[tokio::test]
async fn accepts_only_while_the_spawner_is_ready() {
    let fixture = Fixture::new("");
    let (mut listener, spawner) = serving(&fixture).await;
    tell(&spawner, SpawnerToListener::Ready { accepting: false }).await;
    listener.reason("ready").await;
    let waiting = client(&fixture).await;
    // A packet would come before this one's effect: the listener reads its channel in order.
    let early = timeout(Duration::from_millis(200), spawner.recv(&mut Vec::new())).await;
    assert!(early.is_err(), "accepted while not ready");
    tell(&spawner, SpawnerToListener::Ready { accepting: true }).await;
    let (_, peer, _) = taken(&spawner).await;
    assert_eq!(peer, waiting.local_addr().unwrap());
}

#[tokio::test]
async fn caps_hold_exactly_and_are_freed_by_authentication_end_and_refusal() {
    let fixture =
        Fixture::new("[limits]\nmax_per_source = 4\nmax_unauthenticated_per_source = 2\n");
    let (mut listener, spawner) = serving(&fixture).await;
    let mut clients = Vec::new();
    let mut connections = Vec::new();
    for _ in 0..2 {
        clients.push(client(&fixture).await);
        connections.push(taken(&spawner).await.0);
    }
    dropped(client(&fixture).await).await;
    let line = listener.reason("source-unauthenticated-limit").await;
    assert_eq!(line["setting"], "limits.max_unauthenticated_per_source");

    for connection in connections.clone() {
        tell(&spawner, SpawnerToListener::Authenticated { connection }).await;
    }
    for _ in 0..2 {
        clients.push(admitted_client(&fixture, &spawner, &mut connections).await);
    }
    dropped(client(&fixture).await).await;
    listener.reason("source-limit").await;

    // An end and a refusal free one place each.
    for connection in connections[2..].iter().copied() {
        tell(&spawner, SpawnerToListener::Authenticated { connection }).await;
    }
    let outcome = WorkerOutcome::Clean;
    tell(
        &spawner,
        SpawnerToListener::Ended {
            connection: connections[0],
            outcome,
        },
    )
    .await;
    clients.push(admitted_client(&fixture, &spawner, &mut connections).await);
    tell(
        &spawner,
        SpawnerToListener::Refused {
            connection: connections[2],
            reason: 40,
        },
    )
    .await;
    clients.push(admitted_client(&fixture, &spawner, &mut connections).await);
    dropped(client(&fixture).await).await;
}

#[tokio::test]
async fn rate_of_one_source_is_bounded() {
    let fixture = Fixture::new("[limits]\nmax_new_connections_per_source_per_second = 3\n");
    let (mut listener, spawner) = serving(&fixture).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(client(&fixture).await);
        taken(&spawner).await;
    }
    dropped(client(&fixture).await).await;
    listener.reason("source-rate").await;
}

#[tokio::test]
async fn a_lost_spawner_frees_its_places_and_is_found_again() {
    let fixture =
        Fixture::new("[limits]\nmax_per_source = 1\nmax_unauthenticated_per_source = 1\n");
    let (mut listener, spawner) = serving(&fixture).await;
    let first = client(&fixture).await;
    let (_, _, socket) = taken(&spawner).await;
    drop((spawner, socket));
    let line = listener.reason("spawner-lost").await;
    assert_eq!(line["connections"], 1);
    dropped(first).await;

    let socket = fixture.stand_in(SOCKET);
    let spawner = timeout(PATIENCE, socket.accept()).await.unwrap().unwrap();
    tell(&spawner, SpawnerToListener::Ready { accepting: true }).await;
    let _second = client(&fixture).await;
    taken(&spawner).await;
}

#[tokio::test]
async fn a_stop_drains_and_waits_for_the_connections() {
    let fixture = Fixture::new("");
    let (mut listener, spawner) = serving(&fixture).await;
    let _client = client(&fixture).await;
    let (connection, ..) = taken(&spawner).await;
    listener.signal(Signal::TERM);
    let (packet, _) = receive::<ListenerToSpawner>(&spawner).await;
    assert!(matches!(packet, ListenerToSpawner::Drain));
    // It does not listen any more, but has not ended either.
    assert!(TcpStream::connect(fixture.public).await.is_err());
    assert!(listener.child.try_wait().unwrap().is_none());
    tell(
        &spawner,
        SpawnerToListener::Ended {
            connection,
            outcome: WorkerOutcome::Drained,
        },
    )
    .await;
    assert_eq!(listener.ended().await.code(), Some(0));
    end_of_file(&spawner).await;
}

#[tokio::test]
async fn without_descriptors_connections_are_dropped_and_service_comes_back() {
    let fixture = Fixture::new("");
    let (mut listener, spawner) = serving(&fixture).await;
    let pid = listener.child.id().unwrap();
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    let limit = |current: u64| {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap());
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        prlimit(
            pid,
            Resource::Nofile,
            Rlimit {
                current: Some(current),
                maximum,
            },
        )
        .unwrap()
    };
    let before = limit(u64::try_from(open).unwrap());
    // Not one descriptor is free: the client is turned away instead of waiting for nothing.
    dropped(client(&fixture).await).await;
    let line = listener.reason("descriptor-limit").await;
    assert!(line["setting"].as_str().unwrap().contains("LimitNOFILE"));

    limit(before.current.unwrap());
    let mut connections = Vec::new();
    admitted_client(&fixture, &spawner, &mut connections).await;
}

#[tokio::test]
async fn an_address_in_use_is_status_75() {
    let fixture = Fixture::new("");
    let _holder = std::net::TcpListener::bind(fixture.public).unwrap();
    let mut listener = fixture.start("listener");
    assert_eq!(listener.ended().await.code(), Some(75));
    assert!(
        listener
            .log()
            .iter()
            .any(|line| line.contains(&fixture.public.to_string()))
    );
}

#[tokio::test]
async fn a_source_whose_connections_end_badly_is_dropped_until_it_has_waited() {
    // Past the threshold with its second error, and it waits for no more than the maximum.
    let settings = "threshold = \"15s\"\nprotocol_error = \"10s\"\nmaximum = \"15s\"\n";
    let fixture = Fixture::new(&format!("[penalties]\n{settings}"));
    let (mut listener, spawner) = serving(&fixture).await;
    // What the router refuses for now costs nothing, however often.
    let refused = [WorkerOutcome::Overload; 10];
    let misbehaving = [
        WorkerOutcome::ProtocolError,
        WorkerOutcome::Clean,
        WorkerOutcome::ProtocolError,
    ];
    for outcome in refused.into_iter().chain(misbehaving) {
        ends(&fixture, &mut listener, &spawner, outcome).await;
    }
    dropped(client(&fixture).await).await;
    let line = listener.reason("penalized").await;
    assert_eq!(line["setting"], "penalties.threshold");
    assert_eq!(line["role"], "listener");

    // A reload keeps the sum.
    fixture.configure("[penalties]\nthreshold = \"20s\"\n");
    listener.signal(Signal::HUP);
    listener.reason("reloaded").await;
    dropped(client(&fixture).await).await;
    // Exempt, it is served at once.
    fixture.configure("[penalties]\nexempt = [\"127.0.0.0/8\"]\n");
    listener.signal(Signal::HUP);
    listener.reason("reloaded").await;
    let mut connections = Vec::new();
    admitted_client(&fixture, &spawner, &mut connections).await;
}

#[tokio::test]
async fn penalties_can_be_switched_off() {
    let fixture = Fixture::new("[penalties]\nenabled = false\n");
    let (mut listener, spawner) = serving(&fixture).await;
    for _ in 0..3 {
        ends(&fixture, &mut listener, &spawner, WorkerOutcome::Crash).await;
    }
}
