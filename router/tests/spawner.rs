//! The spawner as a real process with real workers, and the test in the place of listener and agents.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use memory_ipc::packets::{
    KeyAgentToSpawner, LinkAgentToSpawner, ListenerToSpawner, SpawnerToBroker, SpawnerToKeyAgent,
    SpawnerToLinkAgent, SpawnerToListener,
};
use memory_ipc::{Channel, NamedListener, WorkerOutcome, memfd};
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use support::{Fixture, PATIENCE, Process, end_of_file, receive, signal_process};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// ECDSA with P-256 and SHA-256; what is announced is not used before a client's hello.
const SCHEME: u16 = 0x0403;

/// A spawner with everything around it.
struct Bench {
    spawner: Process,
    listener: Channel,
    key_agent: Channel,
    link_agent: Channel,
    broker: Channel,
    sockets: [NamedListener; 3],
    certificate: Vec<u8>,
    fixture: Fixture,
    connections: u32,
}

/// What the agents got for one connection.
struct Served {
    connection: ConnectionId,
    client: TcpStream,
    /// Process ID of its worker.
    worker: u32,
    /// Whose chain it shows.
    announcement: u32,
    key: Channel,
    link: Channel,
    link_to_broker: Channel,
    broker: Channel,
    broker_to_link: Channel,
}

impl Bench {
    async fn new(extra: &str) -> Self {
        let fixture = Fixture::new(extra);
        let sockets = ["key-agent.sock", "link-agent.sock", "directory-broker.sock"]
            .map(|socket| fixture.stand_in(socket));
        let mut spawner = fixture.start("spawner");
        let [key_agent, link_agent, broker] = &sockets;
        let key_agent = accept(key_agent).await;
        let link_agent = accept(link_agent).await;
        let broker = accept(broker).await;
        let listener = fixture.connect("spawner.sock").await;
        assert!(!ready(&listener).await);
        let certificate = fixture.certificate.clone();
        announce(&key_agent, 1, &certificate).await;
        link_agent
            .send_packet(&LinkAgentToSpawner::Ready { accepting: true }, &[])
            .await
            .unwrap();
        assert!(ready(&listener).await);
        spawner.reason("settings").await;
        Self {
            spawner,
            listener,
            key_agent,
            link_agent,
            broker,
            sockets,
            certificate,
            fixture,
            connections: 0,
        }
    }

    /// Hands a connection over.
    async fn connect(&mut self) -> (ConnectionId, TcpStream) {
        let public = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let client = TcpStream::connect(public.local_addr().unwrap())
            .await
            .unwrap();
        let (socket, peer) = public.accept().await.unwrap();
        let socket = OwnedFd::from(socket.into_std().unwrap());
        self.connections += 1;
        let connection = ConnectionId::new(unix_millis(), self.connections.to_be_bytes());
        self.hand_over(connection, peer, &socket).await;
        (connection, client)
    }

    async fn hand_over(&self, connection: ConnectionId, peer: SocketAddr, socket: &OwnedFd) {
        let packet = ListenerToSpawner::NewConnection {
            connection,
            peer,
            accepted_unix_ms: connection.unix_millis(),
        };
        self.listener
            .send_packet(&packet, &[socket.as_fd()])
            .await
            .unwrap();
    }

    /// Hands a connection over and collects what the agents get for it.
    async fn serve(&mut self) -> Served {
        let (connection, client) = self.connect().await;
        let channel = |descriptor| Channel::from_fd(descriptor).unwrap();

        let (packet, descriptors) = receive(&self.key_agent).await;
        let SpawnerToKeyAgent::Register {
            connection: named,
            announcement,
        } = packet;
        assert_eq!(named, connection);
        let [key] = <[_; 1]>::try_from(descriptors).unwrap().map(channel);
        let (packet, descriptors) = receive::<SpawnerToLinkAgent>(&self.link_agent).await;
        assert_eq!(packet, SpawnerToLinkAgent::Register { connection });
        let [link, link_to_broker] = <[_; 2]>::try_from(descriptors).unwrap().map(channel);
        let (SpawnerToBroker::Register { connection: named }, descriptors) =
            receive(&self.broker).await;
        assert_eq!(named, connection);
        let [broker, broker_to_link] = <[_; 2]>::try_from(descriptors).unwrap().map(channel);

        let line = self.spawner.reason("serving").await;
        assert_eq!(line["connection"], connection.to_string());
        assert_eq!(line["role"], "worker");
        let worker = u32::try_from(line["pid"].as_u64().unwrap()).unwrap();
        Served {
            connection,
            client,
            worker,
            announcement,
            key,
            link,
            link_to_broker,
            broker,
            broker_to_link,
        }
    }

    async fn ended(&self) -> (ConnectionId, WorkerOutcome) {
        match receive(&self.listener).await.0 {
            SpawnerToListener::Ended {
                connection,
                outcome,
            } => (connection, outcome),
            other => panic!("{other:?}"),
        }
    }

    async fn refused(&self) -> (ConnectionId, Option<Reason>) {
        match receive(&self.listener).await.0 {
            SpawnerToListener::Refused { connection, reason } => {
                (connection, Reason::from_code(reason))
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The deadline of a handshake counts from here.
fn unix_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

async fn accept(socket: &NamedListener) -> Channel {
    timeout(PATIENCE, socket.accept()).await.unwrap().unwrap()
}

async fn announce(key_agent: &Channel, announcement: u32, certificate: &[u8]) {
    let length = u32::try_from(certificate.len()).unwrap().to_be_bytes();
    let chain = memfd::sealed("chain", &[&length[..], certificate].concat()).unwrap();
    let packet = KeyAgentToSpawner::KeyAnnounce {
        announcement,
        schemes: vec![SCHEME],
    };
    key_agent
        .send_packet(&packet, &[chain.as_fd()])
        .await
        .unwrap();
}

async fn ready(listener: &Channel) -> bool {
    match receive(listener).await.0 {
        SpawnerToListener::Ready { accepting } => accepting,
        other => panic!("{other:?}"),
    }
}

async fn client_dropped(mut client: TcpStream) {
    let read = timeout(PATIENCE, client.read_to_end(&mut Vec::new())).await;
    assert!(read.is_ok(), "still connected");
}

#[tokio::test]
async fn gives_each_connection_a_worker_of_its_own_and_connects_it_with_the_agents() {
    let mut bench = Bench::new("").await;
    let first = bench.serve().await;
    let second = bench.serve().await;
    assert_ne!(first.worker, second.worker);

    // Broker and link agent hold the two ends of one channel, which no worker has.
    first.broker_to_link.send(b"test", &[]).await.unwrap();
    let mut packet = Vec::new();
    timeout(PATIENCE, first.link_to_broker.recv(&mut packet))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(packet, b"test");

    // The worker's exec has nothing of the spawner's environment.
    let environment = std::fs::read(format!("/proc/{}/environ", first.worker)).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    assert!(environment.contains("MALLOC_ARENA_MAX=1"), "{environment}");
    assert!(!environment.contains("PATH="), "{environment}");
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", first.worker)).unwrap();
    assert_eq!(command, "memory-router\0worker\0");

    // One client's end is nobody else's.
    drop(first.client);
    let (connection, _) = bench.ended().await;
    assert_eq!(connection, first.connection);
    for channel in [&first.key, &first.link, &first.broker] {
        end_of_file(channel).await;
    }
    drop(second.client);
    assert_eq!(bench.ended().await.0, second.connection);
}

#[tokio::test]
async fn a_killed_worker_costs_its_client_alone_and_is_reported_as_a_crash() {
    let mut bench = Bench::new("").await;
    let victim = bench.serve().await;
    let other = bench.serve().await;
    signal_process(victim.worker, Signal::KILL);
    assert_eq!(
        bench.ended().await,
        (victim.connection, WorkerOutcome::Crash)
    );
    client_dropped(victim.client).await;
    let line = bench.spawner.reason("worker-crash").await;
    assert_eq!(line["signal"], 9);
    assert_eq!(line["connection"], victim.connection.to_string());

    // The next connects at once, and the other goes on.
    let next = bench.serve().await;
    assert!(std::path::Path::new(&format!("/proc/{}", other.worker)).exists());
    drop((other.client, next.client));
    bench.ended().await;
    bench.ended().await;
}

#[tokio::test]
async fn max_workers_holds_exactly_here_too() {
    let mut bench = Bench::new("[limits]\nmax_workers = 2\nmax_unauthenticated = 2\nmax_per_source = 2\nmax_unauthenticated_per_source = 2\n").await;
    let first = bench.serve().await;
    let _second = bench.serve().await;
    let (connection, client) = bench.connect().await;
    assert_eq!(bench.refused().await, (connection, Some(Reason::Capacity)));
    client_dropped(client).await;
    drop(first.client);
    assert_eq!(bench.ended().await.0, first.connection);
    bench.serve().await;
}

#[tokio::test]
async fn a_connection_id_is_served_once() {
    let mut bench = Bench::new("").await;
    let served = bench.serve().await;
    let peer = served.client.local_addr().unwrap();
    let socket = OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    bench.hand_over(served.connection, peer, &socket).await;
    assert_eq!(
        bench.refused().await,
        (served.connection, Some(Reason::ChannelProtocol))
    );
}

#[tokio::test]
async fn authentication_is_passed_on_to_the_listener_once() {
    let mut bench = Bench::new("").await;
    let served = bench.serve().await;
    let connection = served.connection;
    let unknown = ConnectionId::new(7, [7; 4]);
    for connection in [unknown, connection, connection] {
        bench
            .link_agent
            .send_packet(&LinkAgentToSpawner::Authenticated { connection }, &[])
            .await
            .unwrap();
    }
    let (packet, _) = receive::<SpawnerToListener>(&bench.listener).await;
    assert_eq!(packet, SpawnerToListener::Authenticated { connection });
    drop(served.client);
    assert_eq!(bench.ended().await.0, connection);
}

#[tokio::test]
async fn loss_of_the_link_agent_ends_every_worker_and_service_comes_back_with_it() {
    let mut bench = Bench::new("").await;
    let first = bench.serve().await;
    let second = bench.serve().await;
    let [_, socket, _] = &bench.sockets;
    let former = std::mem::replace(&mut bench.link_agent, {
        // Dropping an agent closes its channels to the workers too; the spawner connects again by itself.
        drop((
            first.link,
            first.link_to_broker,
            second.link,
            second.link_to_broker,
        ));
        let (spare, _) = Channel::pair().unwrap();
        Channel::from_fd(spare).unwrap()
    });
    drop(former);
    // The workers see it for themselves, so that their ends may be told before it is.
    let mut ended = Vec::new();
    let mut paused = false;
    while ended.len() < 2 || !paused {
        match receive(&bench.listener).await.0 {
            SpawnerToListener::Ended { connection, .. } => ended.push(connection),
            SpawnerToListener::Ready { accepting } => paused = !accepting,
            other => panic!("{other:?}"),
        }
    }
    ended.sort();
    assert_eq!(ended, [first.connection, second.connection]);
    client_dropped(first.client).await;
    client_dropped(second.client).await;

    bench.link_agent = accept(socket).await;
    bench
        .link_agent
        .send_packet(&LinkAgentToSpawner::Ready { accepting: true }, &[])
        .await
        .unwrap();
    assert!(ready(&bench.listener).await);
    bench.serve().await;
}

#[tokio::test]
async fn loss_of_broker_or_key_agent_pauses_accepting_and_ends_nobody() {
    let mut bench = Bench::new("").await;
    let served = bench.serve().await;
    let [key_socket, _, broker_socket] = &bench.sockets;

    let (spare, _) = Channel::pair().unwrap();
    drop(std::mem::replace(
        &mut bench.broker,
        Channel::from_fd(spare).unwrap(),
    ));
    assert!(!ready(&bench.listener).await);
    bench.broker = accept(broker_socket).await;
    assert!(ready(&bench.listener).await);
    // The one that is served gets fresh channels to the new broker, between link agent and broker too.
    let connection = served.connection;
    let (packet, descriptors) = receive::<SpawnerToLinkAgent>(&bench.link_agent).await;
    assert_eq!(packet, SpawnerToLinkAgent::Broker { connection });
    let [to_broker] = <[_; 1]>::try_from(descriptors).unwrap();
    let (packet, descriptors) = receive::<SpawnerToBroker>(&bench.broker).await;
    assert_eq!(packet, SpawnerToBroker::Register { connection });
    let [to_worker, to_link] = <[_; 2]>::try_from(descriptors)
        .unwrap()
        .map(|descriptor| Channel::from_fd(descriptor).unwrap());
    to_link.send(b"test", &[]).await.unwrap();
    let mut packet = Vec::new();
    let to_broker = Channel::from_fd(to_broker).unwrap();
    timeout(PATIENCE, to_broker.recv(&mut packet))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(packet, b"test");
    bench.spawner.reason("broker-rewired").await;

    let (spare, _) = Channel::pair().unwrap();
    drop(std::mem::replace(
        &mut bench.key_agent,
        Channel::from_fd(spare).unwrap(),
    ));
    assert!(!ready(&bench.listener).await);
    bench.key_agent = accept(key_socket).await;
    announce(&bench.key_agent, 1, &bench.certificate).await;
    assert!(ready(&bench.listener).await);

    let _next = bench.serve().await;
    drop(served.client);
    assert_eq!(bench.ended().await.0, served.connection);
    // The worker had the other end, and took it along.
    end_of_file(&to_worker).await;
}

#[tokio::test]
async fn a_new_certificate_reaches_the_next_worker() {
    let mut bench = Bench::new("").await;
    let other = Fixture::new("");
    announce(&bench.key_agent, 2, &other.certificate).await;
    let line = bench.spawner.reason("settings").await;
    assert!(line["retired"].as_u64().is_some());
    assert_eq!(bench.serve().await.announcement, 2);
}

#[tokio::test]
async fn a_stop_drains_the_workers_and_succeeds() {
    let mut bench = Bench::new("[timeouts]\ndrain = \"500ms\"\n").await;
    let served = bench.serve().await;
    bench.spawner.signal(Signal::TERM);
    assert!(!ready(&bench.listener).await);
    assert_eq!(bench.spawner.ended().await.code(), Some(0));
    client_dropped(served.client).await;
    assert!(!std::path::Path::new(&format!("/proc/{}", served.worker)).exists());
}

#[tokio::test]
async fn a_draining_listener_drains_the_workers_and_its_successor_is_served() {
    let mut bench = Bench::new("[timeouts]\ndrain = \"500ms\"\n").await;
    let served = bench.serve().await;
    bench
        .listener
        .send_packet(&ListenerToSpawner::Drain, &[])
        .await
        .unwrap();
    assert_eq!(bench.ended().await.0, served.connection);
    bench.listener = bench.fixture.connect("spawner.sock").await;
    assert!(ready(&bench.listener).await);
    bench.serve().await;
}

#[tokio::test]
async fn workers_end_with_their_spawner() {
    let mut bench = Bench::new("").await;
    let served = bench.serve().await;
    bench.spawner.signal(Signal::KILL);
    client_dropped(served.client).await;
    end_of_file(&served.key).await;
}

impl Bench {
    /// Gives the spawner another soft limit.
    fn limit(&self, resource: Resource, current: Option<u64>) {
        let pid = Pid::from_raw(i32::try_from(self.spawner.child.id().unwrap()).unwrap());
        let maximum = getrlimit(resource).maximum;
        prlimit(pid, resource, Rlimit { current, maximum }).unwrap();
    }

    /// Processor time that the spawner has taken, in ticks of mostly 10 ms.
    fn ticks(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.spawner.child.id().unwrap());
        let stat = std::fs::read_to_string(path).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let fields = fields.split(' ').skip(11).take(2);
        fields.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    }
}

#[tokio::test]
async fn without_descriptors_a_connection_is_refused_and_the_listener_stays_connected() {
    let mut bench = Bench::new("[isolation]\nworker_pool = 1\n").await;
    let before = getrlimit(Resource::Nofile).current;
    bench.limit(Resource::Nofile, Some(3));
    let (connection, client) = bench.connect().await;
    assert_eq!(
        bench.refused().await,
        (connection, Some(Reason::DescriptorLimit))
    );
    client_dropped(client).await;
    let line = bench.spawner.reason("descriptor-limit").await;
    assert!(line["setting"].as_str().unwrap().contains("LimitNOFILE"));

    bench.limit(Resource::Nofile, before);
    bench.serve().await;
}

/// A user whose processes are not counted with anybody else's.
const NOBODY_ELSE: u32 = 54_321;

/// The limit of processes does not hold for root, so this test runs itself again as another user then.
#[tokio::test]
async fn without_processes_connections_wait_and_are_refused_and_service_comes_back() {
    if rustix::process::geteuid().is_root() {
        let myself = std::env::current_exe().unwrap();
        let mut again = tokio::process::Command::new(myself);
        again
            .args(["--exact", "--nocapture"])
            .arg("without_processes_connections_wait_and_are_refused_and_service_comes_back")
            .env("TMPDIR", "/tmp")
            .current_dir("/")
            .uid(NOBODY_ELSE)
            .gid(NOBODY_ELSE);
        let status = match again.status().await {
            Err(error)
                if error.kind() == std::io::ErrorKind::PermissionDenied
                    && std::env::var_os("CI").is_none() =>
            {
                eprintln!("not tested: another user cannot run the executable of this test");
                return;
            }
            status => status.unwrap(),
        };
        assert!(status.success());
        return;
    }
    let mut bench =
        Bench::new("[isolation]\nworker_pool = 1\n[timeouts]\nhandshake = \"2s\"\n").await;
    let _served = bench.serve().await;
    let before = getrlimit(Resource::Nproc).current;
    bench.limit(Resource::Nproc, Some(1));
    // The idle workers are taken, and no other can be started.
    let (mut clients, mut waiting) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (connection, client) = bench.connect().await;
        clients.push(client);
        waiting.push(connection);
    }
    let line = bench.spawner.reason("process-limit").await;
    assert!(line["setting"].as_str().unwrap().contains("TasksMax"));
    let ticks = bench.ticks();
    // Those that have a worker run out of time too.
    let (refused, reason) = loop {
        match receive(&bench.listener).await.0 {
            SpawnerToListener::Refused { connection, reason } => break (connection, reason),
            SpawnerToListener::Ended { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(Reason::from_code(reason), Some(Reason::Capacity));
    assert!(waiting.contains(&refused));
    assert!(bench.ticks() - ticks < 50, "it spins");
    bench.spawner.reason("capacity").await;
    let lines = bench.spawner.log().iter();
    let lines = lines.filter(|line| support::json_of(line)["reason"] == "process-limit");
    assert_eq!(lines.count(), 1);

    bench.limit(Resource::Nproc, before);
    drop(clients);
    loop {
        let (connection, _client) = bench.connect().await;
        // Those before may have been given to workers meanwhile, and end now.
        let refused = loop {
            tokio::select! {
                packet = receive::<SpawnerToListener>(&bench.listener) => match packet.0 {
                    SpawnerToListener::Refused { connection: refused, .. } if refused == connection => break true,
                    _ => {}
                },
                packet = receive::<SpawnerToKeyAgent>(&bench.key_agent) => {
                    let SpawnerToKeyAgent::Register { connection: registered, .. } = packet.0;
                    if registered == connection {
                        break false;
                    }
                }
            }
        };
        if !refused {
            return;
        }
    }
}
