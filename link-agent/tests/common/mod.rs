//! Files, toolsheds and channels around a link agent.

use std::future::Future;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memory_config::{Identity, RouterConfig};
use memory_ipc::Channel;
use memory_ipc::packets::{
    BrokerToLinkAgent, LinkAgentToBroker, LinkAgentToSpawner, LinkAgentToWorker,
    SpawnerToLinkAgent, WorkerToLinkAgent,
};
use memory_transport::{Incoming, ReadLimits, WebSocket, tls, upgrade};
use memory_wire::codec::MAX_RECORD_LEN;
use memory_wire::frame::Opcode;
use memory_wire::ids::{Challenge, ConnectionId, EpochId, Nonce, Ticket};
use memory_wire::records::{
    ControlRequest, ControlResponse, DataHello, LINK_ACKNOWLEDGED, LinkChallenge, Operation,
    Statement, ToolshedHello, attach,
};
use memory_wire::upgrade::UpgradePolicy;
use memory_wire::{Did, Reason};
use rustls_pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;

pub(crate) const DEPLOYMENT: &str = "test-stage";
pub(crate) const ROUTER: u8 = 250;

pub(crate) const TOOLSHED_FLAGS: &str = r#"{"connectionAuth":true,"modernCellRep":false,"presenceV1":true,"routedAuthV1":true,"routerEncodingNegotiation":true,"routerRequestCredit":true}"#;
pub(crate) const CLIENT_FLAGS: &[u8] =
    br#"{"connectionAuth":true,"presenceV1":true,"routedAuthV1":true}"#;

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn identity(seed: u8) -> Identity {
    Identity::from_seed([seed; 32]).unwrap()
}

pub(crate) fn did(seed: u8) -> Did {
    identity(seed).did()
}

pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// A link agent's files, and the sockets of its toolsheds (seeds 20, 21).
pub(crate) struct Bench {
    _folder: TempDir,
    pub(crate) config: RouterConfig,
    /// The configuration of the role, as it is and becomes.
    pub(crate) changes: watch::Sender<Arc<RouterConfig>>,
    pub(crate) toolsheds: Vec<Toolshed>,
}

impl Bench {
    pub(crate) async fn new(toolsheds: u8, timeouts: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(path("ipc"))
            .unwrap();
        std::fs::write(path("seed"), [ROUTER; 32]).unwrap();
        let made = rcgen::generate_simple_self_signed(["toolshed.test".to_owned()]).unwrap();
        std::fs::write(path("toolshed.pem"), made.cert.pem()).unwrap();
        let key = made.signing_key.serialize_der();
        let mut listening = Vec::new();
        let mut entries = Vec::new();
        for seed in (20..).take(usize::from(toolsheds)) {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (did, address) = (did(seed), listener.local_addr().unwrap());
            entries.push(format!(
                r#"{{"name":"toolshed-{seed}","did":"{did}","address":"{address}","server_name":"toolshed.test","certificate":"toolshed.pem"}}"#
            ));
            let key = PrivateKeyDer::try_from(key.clone()).unwrap();
            let tls = tls::server_config_from_key(vec![made.cert.der().clone()], key).unwrap();
            listening.push(Toolshed {
                seed,
                listener,
                tls,
            });
        }
        let directory = format!(
            r#"{{"version":1,"deployment":"{DEPLOYMENT}","toolsheds":[{}],"spaces":{{}}}}"#,
            entries.join(",")
        );
        std::fs::write(path("directory.json"), directory).unwrap();
        let text = format!(
            "version = 1\nlisten = [\"127.0.0.1:8443\"]\nhost = \"router.test\"\norigins = []\ndirectory = \"directory.json\"\n\
             public_certificate = \"chain.pem\"\ntls_key = \"key.pem\"\nrouter_seed = \"seed\"\nipc_dir = \"ipc\"\n\
             [timeouts]\n{timeouts}\n"
        );
        let config = RouterConfig::parse(&text, &path("router.toml")).unwrap();
        Self {
            _folder: folder,
            changes: watch::Sender::new(Arc::new(config.clone())),
            config,
            toolsheds: listening,
        }
    }

    /// Runs the role until the story is told.
    pub(crate) async fn run(&self, story: impl Future<Output = ()>) {
        tokio::select! {
            ended = memory_link_agent::run(self.changes.subscribe()) => panic!("the role ended: {ended:?}"),
            told = tokio::time::timeout(PATIENCE, story) => told.expect("the story hangs"),
        }
    }

    /// Connects as the spawner does.
    pub(crate) async fn spawner(&self) -> Channel {
        let path = self.config.ipc_dir.join(memory_link_agent::SOCKET_NAME);
        loop {
            match memory_ipc::connect(&path) {
                Ok(channel) => return channel,
                // The role has not come to its socket yet.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }
}

pub(crate) async fn is_ready(spawner: &Channel) {
    let (packet, _) = spawner
        .recv_packet::<LinkAgentToSpawner>()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(packet, LinkAgentToSpawner::Ready { accepting: true });
}

/// Registers a connection and says hello for its client.
pub(crate) async fn connect(spawner: &Channel) -> Connection {
    let [(worker, worker_end), (broker, broker_end)] = [(); 2].map(|()| Channel::pair().unwrap());
    let packet = SpawnerToLinkAgent::Register {
        connection: ConnectionId::new(0, [0; 4]),
    };
    spawner
        .send_packet(&packet, &[worker_end.as_fd(), broker_end.as_fd()])
        .await
        .unwrap();
    let mut connection = Connection {
        worker: Channel::from_fd(worker).unwrap(),
        broker: Channel::from_fd(broker).unwrap(),
        challenge: Challenge::new([0; 32]),
        last: 0,
    };
    let hello = WorkerToLinkAgent::Hello {
        sequence: 1,
        flags: CLIENT_FLAGS.to_vec(),
    };
    match connection.ask(hello).await {
        LinkAgentToWorker::HelloOk {
            sequence: 1,
            deployment,
            router,
            challenge,
            expires,
            now,
            ..
        } => {
            assert_eq!(
                (deployment.as_str(), router, expires),
                (DEPLOYMENT, did(ROUTER), now + 60)
            );
            connection.challenge = challenge;
        }
        other => panic!("{other:?}"),
    }
    connection
}

/// The worker's and the broker's ends of one connection's channels.
pub(crate) struct Connection {
    pub(crate) worker: Channel,
    pub(crate) broker: Channel,
    /// The last challenge issued.
    pub(crate) challenge: Challenge,
    last: u32,
}

impl Connection {
    /// Asks as the worker.
    pub(crate) async fn ask(&self, packet: WorkerToLinkAgent) -> LinkAgentToWorker {
        self.worker.send_packet(&packet, &[]).await.unwrap();
        self.told().await
    }

    /// What the worker is told next.
    pub(crate) async fn told(&self) -> LinkAgentToWorker {
        self.worker
            .recv_packet()
            .await
            .unwrap()
            .expect("the channel ended")
            .0
    }

    /// Has the client ask for a new challenge.
    pub(crate) async fn renew_challenge(&mut self) {
        match self
            .ask(WorkerToLinkAgent::ChallengeRequest { sequence: 2 })
            .await
        {
            LinkAgentToWorker::ChallengeIssued {
                sequence: 2,
                challenge,
                ..
            } => self.challenge = challenge,
            other => panic!("{other:?}"),
        }
    }

    /// Has a principal sign the last challenge.
    pub(crate) async fn authenticate(&self, principal: u8) -> LinkAgentToWorker {
        let iat = now();
        let statement = Statement {
            principal: did(principal),
            router: did(ROUTER),
            deployment: DEPLOYMENT.to_owned(),
            challenge: self.challenge,
            iat,
            exp: iat + 600,
        };
        let input = statement.signing_input().unwrap();
        let signature = identity(principal).sign(&input);
        let statement = attach(input, signature);
        self.ask(WorkerToLinkAgent::Authenticate {
            sequence: 3,
            statement,
        })
        .await
    }

    pub(crate) async fn bind(&self, ticket: Ticket, hello: Vec<u8>) -> LinkAgentToWorker {
        self.ask(WorkerToLinkAgent::Bind {
            sequence: 4,
            index: 0,
            ticket,
            hello,
        })
        .await
    }

    /// Asks for admission as the broker; the answer comes with [`Self::admitted`].
    pub(crate) async fn admit(&mut self, index: u16, space: u8, principal: u8) -> u32 {
        self.last += 1;
        let packet = BrokerToLinkAgent::Admit {
            sequence: self.last,
            index,
            space: did(space),
            epoch: 5,
            principal: did(principal),
        };
        self.broker.send_packet(&packet, &[]).await.unwrap();
        self.last
    }

    pub(crate) async fn answered(&self) -> LinkAgentToBroker {
        self.broker
            .recv_packet()
            .await
            .unwrap()
            .expect("the channel ended")
            .0
    }

    pub(crate) async fn admitted(&self, sequence: u32) -> Option<Ticket> {
        match self.answered().await {
            LinkAgentToBroker::Admitted {
                sequence: number,
                ticket,
            } => {
                assert_eq!(number, sequence);
                ticket
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn refused(&self, sequence: u32) -> Reason {
        match self.answered().await {
            LinkAgentToBroker::Refused {
                sequence: number,
                reason,
            } => {
                assert_eq!(number, sequence);
                Reason::from_code(reason).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Registers another broker, as the spawner does; its channel before.
    pub(crate) async fn replace_broker(&mut self, spawner: &Channel) -> Channel {
        let (broker, end) = Channel::pair().unwrap();
        let packet = SpawnerToLinkAgent::Broker {
            connection: ConnectionId::new(0, [0; 4]),
        };
        spawner.send_packet(&packet, &[end.as_fd()]).await.unwrap();
        std::mem::replace(&mut self.broker, Channel::from_fd(broker).unwrap())
    }

    /// Waits until the agent has ended the context.
    pub(crate) async fn ends(&self) {
        assert!(
            self.worker
                .recv_packet::<LinkAgentToWorker>()
                .await
                .unwrap()
                .is_none()
        );
        assert!(
            self.broker
                .recv_packet::<LinkAgentToBroker>()
                .await
                .unwrap()
                .is_none()
        );
    }
}

/// A toolshed of the test: its listener, and the handshake played by hand.
pub(crate) struct Toolshed {
    seed: u8,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
}

impl Toolshed {
    /// Takes the next link with good flags.
    pub(crate) async fn accept(&self) -> Link {
        self.greet(TOOLSHED_FLAGS, self.seed, now())
            .await
            .acknowledge()
            .await
    }

    /// Takes the next connection and sends a greeting, signed by `seed` at `issued`.
    pub(crate) async fn greet(&self, flags: &str, seed: u8, issued: u64) -> Greeted {
        let (stream, _) = self.listener.accept().await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        let stream = tls::accept(stream, Arc::clone(&self.tls), deadline)
            .await
            .unwrap();
        let limits = ReadLimits::new(MAX_RECORD_LEN);
        let (mut socket, _) = upgrade::accept(stream, &UpgradePolicy::Private, limits, deadline)
            .await
            .unwrap();
        let nonce = Nonce::new([5; 32]);
        let hello = ToolshedHello {
            toolshed: did(self.seed),
            nonce,
            issued,
            flags: flags.into(),
        };
        let input = hello.signing_input().unwrap();
        let signature = identity(seed).sign(&input);
        socket
            .writer
            .send_slice(Opcode::Binary, &attach(input, signature))
            .await
            .unwrap();
        Greeted {
            socket,
            nonce,
            toolshed: did(self.seed),
        }
    }

    /// A data socket's greeting.
    pub(crate) fn data_hello(&self) -> Vec<u8> {
        let hello = DataHello {
            toolshed: did(self.seed),
            nonce: Nonce::new([6; 32]),
            issued: now(),
        };
        let input = hello.signing_input().unwrap();
        let signature = identity(self.seed).sign(&input);
        attach(input, signature)
    }
}

type Socket = WebSocket<TlsStream<TcpStream>>;

/// A connection whose greeting has been sent.
pub(crate) struct Greeted {
    socket: Socket,
    nonce: Nonce,
    toolshed: Did,
}

impl Greeted {
    /// Takes the router's challenge and acknowledges the link.
    pub(crate) async fn acknowledge(mut self) -> Link {
        let message = receive(&mut self.socket).await.expect("a challenge");
        let challenge = LinkChallenge::verify(&message, &did(ROUTER)).unwrap();
        assert_eq!(
            (challenge.toolshed, challenge.nonce),
            (self.toolshed, self.nonce)
        );
        assert_eq!(challenge.deployment, DEPLOYMENT);
        self.socket
            .writer
            .send_slice(Opcode::Binary, &LINK_ACKNOWLEDGED)
            .await
            .unwrap();
        Link {
            socket: self.socket,
            epoch: challenge.epoch,
        }
    }

    /// Waits until the router gives up.
    pub(crate) async fn ends(mut self) {
        assert_eq!(receive(&mut self.socket).await, None);
    }
}

/// A link, seen from the toolshed.
pub(crate) struct Link {
    pub(crate) socket: Socket,
    pub(crate) epoch: EpochId,
}

impl Link {
    pub(crate) async fn request(&mut self) -> ControlRequest {
        let message = receive(&mut self.socket).await.expect("the link ended");
        ControlRequest::decode(&message).unwrap()
    }

    pub(crate) async fn answer(&mut self, request: &ControlRequest, payload: &[u8]) {
        self.respond(request, ControlResponse::SUCCESS, payload)
            .await;
    }

    pub(crate) async fn respond(&mut self, request: &ControlRequest, status: u8, payload: &[u8]) {
        let response = ControlResponse {
            sequence: request.sequence,
            status,
            payload: payload.to_vec(),
        };
        self.socket
            .writer
            .send_slice(Opcode::Binary, &response.encode().unwrap())
            .await
            .unwrap();
    }

    /// Takes a request of this operation and grants it.
    pub(crate) async fn grant(&mut self, operation: Operation, payload: &[u8]) -> ControlRequest {
        let request = self.request().await;
        assert_eq!(request.operation, operation);
        self.answer(&request, payload).await;
        request
    }

    /// Waits until the router has ended the link.
    pub(crate) async fn ends(mut self) {
        while receive(&mut self.socket).await.is_some() {}
    }
}

/// The next binary message; `None` when the connection has ended.
async fn receive(socket: &mut Socket) -> Option<Vec<u8>> {
    loop {
        match socket.reader.next().await {
            Ok(Incoming::Binary) => return Some(socket.reader.buffer().payload().to_vec()),
            Ok(Incoming::Ping) => {
                let payload = socket.reader.control().to_vec();
                socket.writer.pong(&payload).await.ok()?;
            }
            Ok(Incoming::Pong) => {}
            Ok(Incoming::Text | Incoming::Close { .. }) | Err(_) => return None,
        }
    }
}
