//! Files, toolsheds and channels around a broker.

use std::future::Future;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::Duration;

use memory_config::{Identity, RouterConfig};
use memory_ipc::Channel;
use memory_ipc::packets::{
    BrokerToLinkAgent, BrokerToWorker, LinkAgentToBroker, SpawnerToBroker, WorkerToBroker,
};
use memory_wire::ids::{ConnectionId, Ticket};
use memory_wire::{Did, Reason};
use tempfile::TempDir;
use tokio::sync::watch;

/// Nothing here takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Files and toolsheds around a broker.
pub(crate) struct Bench {
    _folder: TempDir,
    pub(crate) config: RouterConfig,
    /// The configuration of the role, as it is and becomes.
    pub(crate) changes: watch::Sender<Arc<RouterConfig>>,
    pub(crate) toolsheds: [Option<TcpListener>; 2],
}

impl Bench {
    pub(crate) fn new(timeouts: &str, limits: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(path("ipc"))
            .unwrap();
        let certificate = rcgen::generate_simple_self_signed(["toolshed.test".to_owned()]).unwrap();
        std::fs::write(path("toolshed.pem"), certificate.cert.pem()).unwrap();
        let toolsheds = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let entries: Vec<String> = toolsheds
            .iter()
            .zip([20, 21])
            .map(|(listener, seed)| {
                let (did, address) = (did(seed), listener.local_addr().unwrap());
                format!(
                    r#"{{"name":"toolshed-{seed}","did":"{did}","address":"{address}","server_name":"toolshed.test","certificate":"toolshed.pem"}}"#
                )
            })
            .collect();
        let spaces: Vec<String> = [(100, 0), (101, 0), (110, 1)]
            .map(|(seed, index)| format!(r#""{}":{{"toolshed":{index},"epoch":5}}"#, did(seed)))
            .into();
        let directory = format!(
            r#"{{"version":1,"deployment":"test-stage","toolsheds":[{}],"spaces":{{{}}}}}"#,
            entries.join(","),
            spaces.join(",")
        );
        std::fs::write(path("directory.json"), directory).unwrap();
        let text = format!(
            "version = 1\nlisten = [\"127.0.0.1:8443\"]\nhost = \"router.test\"\norigins = []\ndirectory = \"directory.json\"\n\
             public_certificate = \"chain.pem\"\ntls_key = \"key.pem\"\nrouter_seed = \"seed\"\nipc_dir = \"ipc\"\n\
             [timeouts]\n{timeouts}\n[limits]\n{limits}\n"
        );
        let config = RouterConfig::parse(&text, &path("router.toml")).unwrap();
        Self {
            _folder: folder,
            changes: watch::Sender::new(Arc::new(config.clone())),
            config,
            toolsheds: toolsheds.map(Some),
        }
    }

    /// Runs the role until the story is told.
    pub(crate) async fn run(&self, story: impl Future<Output = ()>) {
        tokio::select! {
            ended = memory_directory_broker::run(self.changes.subscribe()) => panic!("the role ended: {ended:?}"),
            told = tokio::time::timeout(PATIENCE, story) => told.expect("the story hangs"),
        }
    }

    /// Registers a worker, as the spawner does.
    pub(crate) async fn worker(&self) -> Worker {
        let path = self
            .config
            .ipc_dir
            .join(memory_directory_broker::SOCKET_NAME);
        let spawner = loop {
            match memory_ipc::connect(&path) {
                Ok(channel) => break channel,
                // The role has not come to its socket yet.
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let [(worker, worker_end), (link, link_end)] = [(); 2].map(|()| Channel::pair().unwrap());
        let packet = SpawnerToBroker::Register {
            connection: ConnectionId::new(0, [0; 4]),
        };
        spawner
            .send_packet(&packet, &[worker_end.as_fd(), link_end.as_fd()])
            .await
            .unwrap();
        Worker {
            channel: Channel::from_fd(worker).unwrap(),
            link: Channel::from_fd(link).unwrap(),
            last: 0,
        }
    }

    /// The connection that the broker made to a toolshed.
    pub(crate) fn accept(&self, index: usize) -> TcpStream {
        let (stream, _) = self.toolsheds[index].as_ref().unwrap().accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

/// The worker's and the link agent's ends of one connection's channels.
pub(crate) struct Worker {
    pub(crate) channel: Channel,
    pub(crate) link: Channel,
    last: u32,
}

impl Worker {
    pub(crate) async fn send(&self, packet: WorkerToBroker) {
        self.channel.send_packet(&packet, &[]).await.unwrap();
    }

    pub(crate) async fn place(&mut self, space: u8) -> u32 {
        self.last += 1;
        self.send(WorkerToBroker::Place {
            sequence: self.last,
            space: did(space),
            principal: did(1),
        })
        .await;
        self.last
    }

    pub(crate) async fn receive(&self) -> BrokerToWorker {
        let (packet, descriptors) = self
            .channel
            .recv_packet()
            .await
            .unwrap()
            .expect("the channel ended");
        assert!(descriptors.is_empty());
        packet
    }

    pub(crate) async fn receive_socket(&self) -> (BrokerToWorker, TcpStream) {
        let received = self.channel.recv_packet::<BrokerToWorker>().await.unwrap();
        let (packet, mut descriptors) = received.expect("the channel ended");
        let descriptor: OwnedFd = descriptors
            .pop()
            .unwrap_or_else(|| panic!("no socket: {:?}", reason(&packet)));
        let stream = TcpStream::from(descriptor);
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        (packet, stream)
    }

    /// What the broker asks the link agent.
    pub(crate) async fn asked(&self) -> BrokerToLinkAgent {
        self.link
            .recv_packet()
            .await
            .unwrap()
            .expect("the channel ended")
            .0
    }

    pub(crate) async fn answer(&self, asked: &BrokerToLinkAgent, ticket: Option<Ticket>) {
        let answer = LinkAgentToBroker::Admitted {
            sequence: admission(asked),
            ticket,
        };
        self.link.send_packet(&answer, &[]).await.unwrap();
    }

    pub(crate) async fn answer_admission(&self, index: u16, space: u8, ticket: Option<Ticket>) {
        let asked = self.asked().await;
        let sequence = admission(&asked);
        let expected = BrokerToLinkAgent::Admit {
            sequence,
            index,
            space: did(space),
            epoch: 5,
            principal: did(1),
        };
        assert_eq!(asked, expected);
        self.answer(&asked, ticket).await;
    }

    /// Places a space whose toolshed has no socket yet, up to the descriptor.
    pub(crate) async fn open(&mut self, index: u16, space: u8, ticket: Ticket) -> TcpStream {
        let sequence = self.place(space).await;
        self.answer_admission(index, space, Some(ticket)).await;
        let (packet, stream) = self.receive_socket().await;
        match packet {
            BrokerToWorker::Socket {
                sequence: number,
                index: place,
                ticket: given,
                toolshed,
                server_name,
                certificate,
            } => {
                assert_eq!((number, place, given), (sequence, index, ticket));
                assert_eq!(toolshed, did(if index == 0 { 20 } else { 21 }));
                assert_eq!(server_name, "toolshed.test");
                assert!(!certificate.is_empty());
            }
            other => panic!("no socket: {other:?}"),
        }
        stream
    }

    pub(crate) async fn is_refused(&self, sequence: u32, reason: Reason) {
        assert_eq!(
            self.receive().await,
            BrokerToWorker::Refused {
                sequence,
                reason: reason.code()
            }
        );
    }

    /// Waits until the broker has ended both channels.
    pub(crate) async fn ends(&self) {
        assert!(
            self.channel
                .recv_packet::<BrokerToWorker>()
                .await
                .unwrap()
                .is_none()
        );
        while self
            .link
            .recv_packet::<BrokerToLinkAgent>()
            .await
            .unwrap()
            .is_some()
        {}
    }
}

pub(crate) fn number(packet: &BrokerToWorker) -> u32 {
    match packet {
        BrokerToWorker::Existing { sequence, .. }
        | BrokerToWorker::Socket { sequence, .. }
        | BrokerToWorker::Refused { sequence, .. }
        | BrokerToWorker::Behind { sequence, .. } => *sequence,
        BrokerToWorker::Confirmed => panic!("a confirmation has no number"),
    }
}

pub(crate) fn reason(packet: &BrokerToWorker) -> Option<Reason> {
    match packet {
        BrokerToWorker::Refused { reason, .. } => Reason::from_code(*reason),
        _ => None,
    }
}

pub(crate) fn admission(asked: &BrokerToLinkAgent) -> u32 {
    match asked {
        BrokerToLinkAgent::Admit { sequence, .. } => *sequence,
        BrokerToLinkAgent::Rollback { .. } => panic!("a rollback has no number"),
    }
}

pub(crate) fn did(seed: u8) -> Did {
    Identity::from_seed([seed; 32]).unwrap().did()
}

pub(crate) fn assert_eof(stream: &mut TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}
