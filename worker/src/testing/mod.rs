//! A stage for whole connections: the worker runs on a thread of its own, exactly as it does in its process, and a test
//! plays everybody around it. Compiled under `#[cfg(test)]` alone.

mod client;
mod dedicated;
mod faults;
mod ledger;
mod pressure;
mod revocation;
mod toolshed;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::net::TcpStream as StdTcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memory_config::{Identity, WorkerSettings};
use memory_ipc::packets::{
    BrokerToWorker, KeyAgentToWorker, LinkAgentToWorker, REPORTED_BUDGETS, Report, SpawnerToWorker,
    WorkerToBroker, WorkerToKeyAgent, WorkerToLinkAgent, WorkerToSpawner,
};
use memory_ipc::{Channel, memfd};
use memory_transport::tls;
use memory_transport::upgrade::ConnectError;
use memory_wire::Did;
use memory_wire::flags::Flags;
use memory_wire::ids::{Challenge, ConnectionId, Ticket};
use memory_wire::reason::Reason;
use memory_wire::records::Statement;
use rustls::SignatureScheme;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::LocalSet;

use client::open;
pub(super) use client::{Client, Got};
pub(super) use toolshed::Toolshed;

/// Where every name of the stage resolves to.
const HOST: &str = "localhost";
const DEPLOYMENT: &str = "test";
/// Nothing on the stage takes longer, but where a test waits for a bound of the worker itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a test with its stage.
pub(super) fn play<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let set = LocalSet::new();
    runtime.block_on(set.run_until(async {
        tokio::time::timeout(PATIENCE, test())
            .await
            .expect("the test hangs");
    }));
}

pub(super) fn identity(number: u8) -> Identity {
    Identity::from_seed([number; 32]).unwrap()
}

pub(super) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// Settings with room for everything and bounds that a test can wait for.
pub(super) fn settings() -> WorkerSettings {
    serde_json::from_value(json!({
        "host": HOST, "origins": [], "require_origin": false, "development": true,
        "modern_cell_rep": false, "log_identifiers": false, "certificate_chain": [], "schemes": [],
        "handshake_ms": 10_000, "authenticate_ms": 60_000, "ping_interval_ms": 20_000,
        "ping_timeout_ms": 20_000, "upload_ms": 30_000, "upload_min_rate": 16_384,
        "admission_ms": 30_000, "hold_open_ms": 60_000, "control_wait_ms": 5000,
        "control_request_ms": 10_000, "data_handshake_ms": 5000, "tcp_user_ms": 120_000,
        "drain_ms": 10_000, "upload_window": 262_144, "max_connections_per_space": 1000,
        "max_sessions_per_connection": 1200,
        "max_spaces_per_connection": 1200, "max_principals_per_connection": 16,
        "max_principal_history": 128, "max_principals_per_challenge": 64,
        "max_requests_per_connection": 1024, "max_messages_per_second": null,
        "message_burst": null, "max_watches_per_session": 2048,
        "max_watches_per_connection": 40_960, "max_holdings_per_connection": 327_680,
        "max_frame_slots": 150_000
    }))
    .unwrap()
}

/// Everybody around one worker.
pub(super) struct Stage {
    /// Data sockets that the worker has set up, in order.
    toolsheds: mpsc::UnboundedReceiver<Toolshed>,
    pub(super) plan: Rc<Plan>,
    spawner: Rc<Channel>,
    /// What the worker told its spawner, `Finished` last.
    pub(super) events: mpsc::UnboundedReceiver<WorkerToSpawner>,
    /// Gone with the link agent.
    link: Weak<Channel>,
    certificate: Vec<u8>,
    client: Option<StdTcpStream>,
}

/// What the agents of the stage do.
#[derive(Default)]
pub(super) struct Plan {
    /// Where spaces live; the toolshed 0 if nothing is said.
    pub(super) places: RefCell<HashMap<Did, u16>>,
    /// Principals who have to sign again before they open anything.
    pub(super) renew: RefCell<HashSet<Did>>,
    /// What the link agent answers to the next binding, instead of one.
    pub(super) refuse_binding: Cell<bool>,
    /// Placements wait for it while it is there.
    pub(super) gate: RefCell<Option<Rc<Notify>>>,
    /// Spaces that a place was asked for.
    pub(super) dedicated: RefCell<Vec<Did>>,
    /// Told when it is.
    pub(super) asked_for_place: Notify,
    /// The answer waits for it while it is there.
    pub(super) dedication_gate: RefCell<Option<Rc<Notify>>>,
    /// Toolsheds whose link was lost since their data socket was made.
    unlinked: RefCell<HashSet<u16>>,
    /// What is answered instead of a place; nothing any more when it is that the link agent is lost.
    pub(super) refuse_place: Cell<Option<Reason>>,
    /// Data sockets that were taken back.
    pub(super) rollbacks: Cell<u32>,
}

impl Stage {
    pub(super) async fn start(mut settings: WorkerSettings) -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec![HOST.to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        let certificate = certificate.der().to_vec();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        settings.certificate_chain = vec![certificate.clone()];
        settings.schemes = vec![u16::from(SignatureScheme::ECDSA_NISTP256_SHA256)];

        let plan = Rc::new(Plan::default());
        let channel = |end: OwnedFd| Rc::new(Channel::from_fd(end).unwrap());
        let (spawner, workers_spawner) = Channel::pair().unwrap();
        let (keys, workers_keys) = Channel::pair().unwrap();
        let (link, workers_link) = Channel::pair().unwrap();
        let (broker, workers_broker) = Channel::pair().unwrap();
        let (spawner, link_agent) = (channel(spawner), channel(link));
        let link = Rc::downgrade(&link_agent);
        tokio::task::spawn_local(sign(channel(keys), key.clone_key()));
        tokio::task::spawn_local(serve_link(link_agent, Rc::clone(&plan)));
        let (bound, toolsheds) = mpsc::unbounded_channel();
        let tls = tls::server_config_from_key(
            vec![CertificateDer::from(certificate.clone())],
            key.clone_key(),
        )
        .unwrap();
        tokio::task::spawn_local(serve_broker(
            channel(broker),
            Rc::clone(&plan),
            certificate.clone(),
            tls,
            bound,
        ));

        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            LocalSet::new().block_on(&runtime, async move {
                crate::work(Channel::from_fd(workers_spawner).unwrap())
                    .await
                    .unwrap();
            });
        });

        let file = memfd::sealed("settings", &serde_json::to_vec(&settings).unwrap()).unwrap();
        spawner
            .send_packet(&SpawnerToWorker::Settings, &[file.as_fd()])
            .await
            .unwrap();
        let idle = spawner.recv_packet::<WorkerToSpawner>().await.unwrap();
        assert!(matches!(idle, Some((WorkerToSpawner::Idle, _))));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = StdTcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, peer) = listener.accept().await.unwrap();
        let accepted = accepted.into_std().unwrap();
        let start = SpawnerToWorker::Start {
            connection: ConnectionId::new(1, [0; 4]),
            peer,
            accepted_unix_ms: now() * 1000,
        };
        let ends = [
            accepted.as_fd(),
            workers_keys.as_fd(),
            workers_link.as_fd(),
            workers_broker.as_fd(),
        ];
        spawner.send_packet(&start, &ends).await.unwrap();
        let (said, events) = mpsc::unbounded_channel();
        tokio::task::spawn_local({
            let spawner = Rc::clone(&spawner);
            async move {
                while let Ok(Some((packet, _))) = spawner.recv_packet().await {
                    let _ = said.send(packet);
                }
            }
        });
        Self {
            toolsheds,
            plan,
            spawner,
            events,
            link,
            certificate,
            client: Some(client),
        }
    }

    /// The client, upgraded; nothing was said yet.
    pub(super) async fn connect(&mut self) -> Client {
        let connected = Client::connect(self.client.take().unwrap(), &self.certificate, None);
        connected.await.unwrap()
    }

    /// A client that asks for a socket of this space alone.
    pub(super) async fn connect_to(&mut self, space: u8) -> Result<Client, ConnectError> {
        let space = Some(identity(space).did());
        Client::connect(self.client.take().unwrap(), &self.certificate, space).await
    }

    /// With a client that is authenticated and sends whole messages.
    pub(super) async fn entered(settings: WorkerSettings) -> (Self, Client) {
        let mut stage = Self::start(settings).await;
        let mut client = stage.connect().await;
        client.enter().await;
        (stage, client)
    }

    /// With a client that is authenticated and sends records, paid for with credit or not.
    pub(super) async fn streaming(settings: WorkerSettings, credits: bool) -> (Self, Client) {
        let mut stage = Self::start(settings).await;
        let mut client = stage.connect().await;
        client.enter_streaming(credits).await;
        (stage, client)
    }

    /// Gives the client a session of `space`, opened by the request `o`, at a toolshed it had none at.
    pub(super) async fn session(&mut self, client: &mut Client, space: u8) -> Toolshed {
        client.tell(&open("o", space)).await;
        let mut toolshed = self.toolshed().await;
        toolshed.serve().await.unwrap();
        assert_eq!(client.message().await["ok"]["sessionId"], "s-o");
        toolshed
    }

    /// The next data socket that the worker sets up.
    pub(super) async fn toolshed(&mut self) -> Toolshed {
        self.toolsheds.recv().await.unwrap()
    }

    pub(super) async fn drain(&self) {
        let sent = self.spawner.send_packet(&SpawnerToWorker::Drain, &[]);
        sent.await.unwrap();
    }

    pub(super) async fn lose_link(&self, index: u16) {
        // As the link agent knows nothing of its tickets any more, the broker's next admission there comes with one.
        self.plan.unlinked.borrow_mut().insert(index);
        let lost = LinkAgentToWorker::LinkLost { index };
        self.tell(&lost).await;
    }

    /// Tells the worker that an operator revoked a principal.
    pub(super) async fn revoke(&self, principal: Did) {
        let revoked = LinkAgentToWorker::Revoked { principal };
        self.tell(&revoked).await;
    }

    /// What the link agent says unasked.
    async fn tell(&self, packet: &LinkAgentToWorker) {
        let link = self.link.upgrade().expect("the link agent is gone");
        link.send_packet(packet, &[]).await.unwrap();
    }

    /// How the connection ended.
    pub(super) async fn ended(&mut self) -> (Reason, String) {
        let (reason, last, _) = self.end().await;
        (reason, last)
    }

    /// How it ended, and what it had carried.
    pub(super) async fn ended_with_report(&mut self) -> (Reason, Report) {
        let (reason, _, report) = self.end().await;
        (reason, report)
    }

    async fn end(&mut self) -> (Reason, String, Report) {
        let mut last = String::new();
        let mut last_report = None;
        loop {
            match self.events.recv().await.expect("the worker vanished") {
                WorkerToSpawner::Event { detail, .. } => last = detail.to_string(),
                WorkerToSpawner::Report { report } => last_report = Some(report),
                WorkerToSpawner::Finished { reason, .. } => {
                    let report = *last_report.expect("no report");
                    let held = REPORTED_BUDGETS.iter().zip(&report.budgets);
                    let held: Vec<_> = held.filter(|(_, budget)| budget.current > 0).collect();
                    assert!(held.is_empty(), "still held: {held:?}");
                    return (Reason::from_code(reason).unwrap(), last, report);
                }
                WorkerToSpawner::Idle => {}
            }
        }
    }
}

async fn sign(channel: Rc<Channel>, key: PrivateKeyDer<'static>) {
    let key = rustls::crypto::ring::sign::any_ecdsa_type(&key).unwrap();
    while let Ok(Some((packet, _))) = channel.recv_packet::<WorkerToKeyAgent>().await {
        let WorkerToKeyAgent::Sign {
            sequence,
            scheme,
            input,
        } = packet;
        let signer = key.choose_scheme(&[SignatureScheme::from(scheme)]).unwrap();
        let signed = KeyAgentToWorker::Signed {
            sequence,
            status: 0,
            signature: signer.sign(&input).unwrap(),
        };
        channel.send_packet(&signed, &[]).await.unwrap();
    }
}

/// The flags that everybody has.
pub(super) fn flags() -> Flags {
    Flags::from_value(&json!({
        "connectionAuth": true, "routedAuthV1": true, "messageCompressionV1": true,
        "routedCompressionV1": true
    }))
    .unwrap()
}

async fn serve_link(channel: Rc<Channel>, plan: Rc<Plan>) {
    let mut challenges = 0;
    let mut challenge = || {
        challenges += 1;
        Challenge::new([challenges; 32])
    };
    while let Ok(Some((packet, _))) = channel.recv_packet::<WorkerToLinkAgent>().await {
        let answer = match packet {
            WorkerToLinkAgent::Dedicate { sequence, space } => {
                plan.dedicated.borrow_mut().push(space);
                plan.asked_for_place.notify_one();
                let gate = plan.dedication_gate.borrow().clone();
                if let Some(gate) = gate {
                    gate.notified().await;
                }
                match plan.refuse_place.get() {
                    None => LinkAgentToWorker::Ack { sequence },
                    Some(Reason::LinkAgentLost) => return,
                    Some(reason) => LinkAgentToWorker::Refused {
                        sequence,
                        reason: reason.code(),
                    },
                }
            }
            WorkerToLinkAgent::Hello { sequence, .. } => LinkAgentToWorker::HelloOk {
                sequence,
                deployment: DEPLOYMENT.to_owned(),
                router: identity(1).did(),
                offer: flags().canonical(),
                challenge: challenge(),
                expires: now() + 60,
                now: now(),
            },
            WorkerToLinkAgent::ChallengeRequest { sequence } => {
                LinkAgentToWorker::ChallengeIssued {
                    sequence,
                    challenge: challenge(),
                    expires: now() + 60,
                    now: now(),
                }
            }
            WorkerToLinkAgent::Authenticate {
                sequence,
                statement,
            } => {
                let statement = Statement::verify(&statement).unwrap();
                plan.renew.borrow_mut().remove(&statement.principal);
                LinkAgentToWorker::Authenticated {
                    sequence,
                    principal: statement.principal,
                    expires: statement.exp,
                }
            }
            WorkerToLinkAgent::Release { sequence, .. } => LinkAgentToWorker::Ack { sequence },
            WorkerToLinkAgent::Bind { sequence, .. } if plan.refuse_binding.take() => {
                LinkAgentToWorker::Refused {
                    sequence,
                    reason: Reason::TicketWindow.code(),
                }
            }
            WorkerToLinkAgent::Bind { sequence, .. } => LinkAgentToWorker::Bound {
                sequence,
                binding: b"rdb1".to_vec(),
                negotiated: flags().canonical(),
            },
        };
        channel.send_packet(&answer, &[]).await.unwrap();
    }
}

async fn serve_broker(
    channel: Rc<Channel>,
    plan: Rc<Plan>,
    certificate: Vec<u8>,
    tls: std::sync::Arc<rustls::ServerConfig>,
    bound: mpsc::UnboundedSender<Toolshed>,
) {
    let mut committed = HashSet::new();
    // The placement whose data socket is in setup: what is asked meanwhile is behind it.
    let mut in_setup = None;
    while let Ok(Some((packet, _))) = channel.recv_packet::<WorkerToBroker>().await {
        match packet {
            WorkerToBroker::Place {
                sequence,
                space,
                principal,
            } => {
                let gate = plan.gate.borrow().clone();
                if let Some(gate) = gate {
                    gate.notified().await;
                }
                committed.retain(|index| !plan.unlinked.borrow_mut().remove(index));
                let index = plan.places.borrow().get(&space).copied().unwrap_or(0);
                let refused = |reason: Reason| BrokerToWorker::Refused {
                    sequence,
                    reason: reason.code(),
                };
                let answer = if let Some(ahead) = in_setup {
                    BrokerToWorker::Behind {
                        sequence,
                        index,
                        ahead,
                    }
                } else if plan.renew.borrow().contains(&principal) {
                    refused(Reason::PrincipalRenewal)
                } else if index == u16::MAX {
                    refused(Reason::UpstreamUnavailable)
                } else if committed.contains(&index) {
                    BrokerToWorker::Existing { sequence, index }
                } else {
                    let (socket, accepted) = small_sockets().await;
                    let (tls, bound) = (std::sync::Arc::clone(&tls), bound.clone());
                    tokio::task::spawn_local(async move {
                        if let Some(toolshed) = Toolshed::accept(accepted, tls, index).await {
                            let _ = bound.send(toolshed);
                        }
                    });
                    let packet = BrokerToWorker::Socket {
                        sequence,
                        index,
                        ticket: Ticket::new([7; 32]),
                        toolshed: identity(100).did(),
                        server_name: HOST.to_owned(),
                        certificate: certificate.clone(),
                    };
                    let ends = [socket.as_fd()];
                    channel.send_packet(&packet, &ends).await.unwrap();
                    in_setup = Some(sequence);
                    continue;
                };
                channel.send_packet(&answer, &[]).await.unwrap();
            }
            WorkerToBroker::Commit { index, .. } => {
                committed.insert(index);
                in_setup = None;
                let sent = channel.send_packet(&BrokerToWorker::Confirmed, &[]);
                sent.await.unwrap();
            }
            WorkerToBroker::Rollback { .. } => {
                plan.rollbacks.set(plan.rollbacks.get() + 1);
                in_setup = None;
                let sent = channel.send_packet(&BrokerToWorker::Confirmed, &[]);
                sent.await.unwrap();
            }
        }
    }
}

/// A connection that takes little before it blocks: the end that connected, and the one that accepted.
async fn small_sockets() -> (StdTcpStream, TcpStream) {
    let listener = TcpSocket::new_v4().unwrap();
    listener.set_recv_buffer_size(64 * 1024).unwrap();
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = listener.listen(1).unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(64 * 1024).unwrap();
    let address = listener.local_addr().unwrap();
    let (socket, accepted) = tokio::join!(socket.connect(address), listener.accept());
    (socket.unwrap().into_std().unwrap(), accepted.unwrap().0)
}
