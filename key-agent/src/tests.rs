//! The agent over real channels: what it signs, and what ends a channel. Compiled under `#[cfg(test)]` alone.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use memory_config::RouterConfig;
use memory_ipc::packets::{
    KeyAgentToSpawner, KeyAgentToWorker, SpawnerToKeyAgent, WorkerToKeyAgent,
};
use memory_ipc::{Channel, connect, memfd};
use memory_wire::ids::ConnectionId;
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use crate::agent::Agent;
use crate::input::tests::verify_input;
use crate::keys::TlsKey;
use crate::{KeyAgentError, MAX_SIGNATURES_PER_WORKER, SOCKET_NAME};

const ED25519: u16 = 0x0807;
const ECDSA_P256: u16 = 0x0403;
const ECDSA_P384: u16 = 0x0503;
const RSA_PSS: [u16; 3] = [0x0804, 0x0805, 0x0806];
const RSA_PKCS1_SHA256: u16 = 0x0401;

/// Long enough to be an error of the agent, not of a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A folder with a certificate, its key, and a configuration that names them.
struct Fixture {
    folder: TempDir,
    key: KeyPair,
    certificate: Vec<u8>,
}

impl Fixture {
    fn new(key: KeyPair) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificate = CertificateParams::new(vec!["localhost".to_owned()])
            .unwrap()
            .self_signed(&key)
            .unwrap();
        std::fs::write(folder.path().join("public.pem"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("tls.pem"), key.serialize_pem()).unwrap();
        Self {
            folder,
            key,
            certificate: certificate.der().to_vec(),
        }
    }

    fn ed25519() -> Self {
        Self::new(KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap())
    }

    fn config(&self, extra: &str) -> RouterConfig {
        let text = format!(
            "version = 1\nlisten = [\"127.0.0.1:8443\"]\nhost = \"localhost\"\norigins = []\n\
             directory = \"directory.json\"\npublic_certificate = \"public.pem\"\ntls_key = \"tls.pem\"\n\
             router_seed = \"seed\"\nipc_dir = \"ipc\"\ndevelopment = true\n{extra}"
        );
        RouterConfig::parse(&text, &self.folder.path().join("router.toml")).unwrap()
    }

    fn load(&self) -> Result<TlsKey, KeyAgentError> {
        let config = self.config("");
        TlsKey::load(&config.public_certificate, &config.tls_key)
    }

    fn agent(&self, extra: &str) -> Rc<Agent> {
        Rc::new(Agent::new(self.load().unwrap(), &self.config(extra)).unwrap())
    }
}

fn connection() -> ConnectionId {
    ConnectionId::new(1, [1, 2, 3, 4])
}

/// A spawner's channel to an agent that serves it, with what it announced.
async fn spawner(agent: Rc<Agent>) -> (Channel, Vec<u16>, Vec<u8>) {
    let (ours, theirs) = Channel::pair().unwrap();
    spawn_local(agent.serve_spawner(Channel::from_fd(theirs).unwrap()));
    announcement(Channel::from_fd(ours).unwrap()).await
}

async fn announcement(channel: Channel) -> (Channel, Vec<u16>, Vec<u8>) {
    let (packet, descriptors) = timeout(PATIENCE, channel.recv_packet())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let KeyAgentToSpawner::KeyAnnounce {
        announcement,
        schemes,
    } = packet;
    assert_eq!(announcement, 1);
    let [chain] = <[_; 1]>::try_from(descriptors).unwrap();
    let chain = memfd::read(chain, 1 << 20).unwrap();
    (channel, schemes, chain)
}

/// A worker's channel, registered with the agent by its spawner.
async fn worker(spawner: &Channel) -> Channel {
    register(spawner, 1).await
}

/// A worker's channel, registered as one that shows the chain of an announcement.
async fn register(spawner: &Channel, announcement: u32) -> Channel {
    let (ours, theirs) = Channel::pair().unwrap();
    let packet = SpawnerToKeyAgent::Register {
        connection: connection(),
        announcement,
    };
    spawner
        .send_packet(&packet, &[theirs.as_fd()])
        .await
        .unwrap();
    Channel::from_fd(ours).unwrap()
}

/// Asks for a signature; `None` when the agent ends the channel instead.
async fn sign(worker: &Channel, sequence: u32, scheme: u16, input: &[u8]) -> Option<Vec<u8>> {
    let request = WorkerToKeyAgent::Sign {
        sequence,
        scheme,
        input: input.to_vec(),
    };
    // The agent may have ended the channel already; then there is no answer either.
    drop(worker.send_packet(&request, &[]).await);
    let (packet, _) = timeout(PATIENCE, worker.recv_packet::<KeyAgentToWorker>())
        .await
        .unwrap()
        .unwrap()?;
    let KeyAgentToWorker::Signed {
        sequence: answered,
        status,
        signature,
    } = packet;
    assert_eq!((answered, status), (sequence, 0));
    Some(signature)
}

fn verifies(key: &KeyPair, scheme: u16, message: &[u8], signature: &[u8]) -> bool {
    let provider = rustls::crypto::ring::default_provider();
    let (_, algorithms) = provider
        .signature_verification_algorithms
        .mapping
        .iter()
        .find(|(known, _)| u16::from(*known) == scheme)
        .unwrap();
    algorithms.iter().any(|algorithm| {
        algorithm
            .verify_signature(key.public_key_raw(), message, signature)
            .is_ok()
    })
}

async fn local<F: Future<Output = ()>>(test: F) {
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn announces_what_it_signs_with_and_the_chain() {
    local(async {
        for (algorithm, expected) in [
            (&rcgen::PKCS_ED25519, ED25519),
            (&rcgen::PKCS_ECDSA_P256_SHA256, ECDSA_P256),
            (&rcgen::PKCS_ECDSA_P384_SHA384, ECDSA_P384),
        ] {
            let fixture = Fixture::new(KeyPair::generate_for(algorithm).unwrap());
            let (spawner, schemes, chain) = spawner(fixture.agent("")).await;
            assert_eq!(schemes, [expected]);
            let length = u32::try_from(fixture.certificate.len())
                .unwrap()
                .to_be_bytes();
            assert_eq!(chain, [&length[..], &fixture.certificate].concat());

            let worker = worker(&spawner).await;
            for (sequence, length) in [(1, 32), (2, 48)] {
                let input = verify_input(length);
                let signature = sign(&worker, sequence, expected, &input).await.unwrap();
                assert!(verifies(&fixture.key, expected, &input, &signature));
            }
        }
    })
    .await;
}

#[tokio::test]
async fn signs_with_rsa_by_pss_only() {
    local(async {
        let pem = include_str!("../testdata/rsa-2048.pem");
        let key = KeyPair::from_pkcs8_pem_and_sign_algo(pem, &rcgen::PKCS_RSA_SHA256).unwrap();
        let fixture = Fixture::new(key);
        let (spawner, schemes, _) = spawner(fixture.agent("")).await;
        assert_eq!(schemes, RSA_PSS);
        for scheme in RSA_PSS {
            let input = verify_input(32);
            let signature = sign(&worker(&spawner).await, 1, scheme, &input)
                .await
                .unwrap();
            assert!(verifies(&fixture.key, scheme, &input, &signature));
        }
        assert_eq!(
            sign(
                &worker(&spawner).await,
                1,
                RSA_PKCS1_SHA256,
                &verify_input(32)
            )
            .await,
            None
        );
    })
    .await;
}

#[tokio::test]
async fn ends_the_channel_of_a_worker_that_asks_for_anything_else() {
    local(async {
        let fixture = Fixture::ed25519();
        let (spawner, ..) = spawner(fixture.agent("")).await;
        let good = verify_input(32);
        let mut client = good.clone();
        client[73..79].copy_from_slice(b"client");
        let mut padding = good.clone();
        padding[0] = 0;
        let mut separator = good.clone();
        separator[97] = b' ';
        let trailing = [&good[..], &[0]].concat();
        for input in [
            &client[..],
            &padding,
            &separator,
            &trailing,
            &verify_input(20),
            &verify_input(64),
            b"anything",
        ] {
            let worker = worker(&spawner).await;
            assert_eq!(sign(&worker, 1, ED25519, input).await, None);
            // It is over for that worker, whatever it asks next.
            assert_eq!(sign(&worker, 2, ED25519, &good).await, None);
        }
        for scheme in [ECDSA_P256, RSA_PKCS1_SHA256, 0, 0xffff] {
            assert_eq!(sign(&worker(&spawner).await, 1, scheme, &good).await, None);
        }
        // Nobody else is harmed.
        assert!(
            sign(&worker(&spawner).await, 1, ED25519, &good)
                .await
                .is_some()
        );
    })
    .await;
}

#[tokio::test]
async fn ends_the_channel_at_a_packet_that_is_none_of_its_own() {
    local(async {
        let fixture = Fixture::ed25519();
        let (spawner, ..) = spawner(fixture.agent("")).await;
        let null = std::fs::File::open("/dev/null").unwrap();
        let request = WorkerToKeyAgent::Sign {
            sequence: 1,
            scheme: ED25519,
            input: verify_input(32),
        };
        let request = memory_ipc::Packet::encode(&request).unwrap();
        let truncated = &request[..request.len() - 1];
        for (packet, descriptors) in [
            (&b"ksg2"[..], &[][..]),
            (truncated, &[]),
            (&[0], &[]),
            // A descriptor where none belongs.
            (&request, &[null.as_fd()]),
        ] {
            let worker = worker(&spawner).await;
            worker.send(packet, descriptors).await.unwrap();
            assert!(
                timeout(PATIENCE, worker.recv_packet::<KeyAgentToWorker>())
                    .await
                    .unwrap()
                    .unwrap()
                    .is_none()
            );
        }
    })
    .await;
}

#[tokio::test]
async fn gives_a_worker_few_signatures() {
    local(async {
        let fixture = Fixture::ed25519();
        let (spawner, ..) = spawner(fixture.agent("")).await;
        let worker = worker(&spawner).await;
        for sequence in 0..MAX_SIGNATURES_PER_WORKER {
            assert!(
                sign(&worker, sequence, ED25519, &verify_input(32))
                    .await
                    .is_some()
            );
        }
        assert_eq!(sign(&worker, 9, ED25519, &verify_input(32)).await, None);
    })
    .await;
}

#[tokio::test]
async fn drops_a_worker_that_does_not_ask_in_time() {
    local(async {
        let fixture = Fixture::ed25519();
        let (spawner, ..) = spawner(fixture.agent("[timeouts]\nhandshake = \"100ms\"\n")).await;
        let worker = worker(&spawner).await;
        let end = timeout(PATIENCE, worker.recv_packet::<KeyAgentToWorker>())
            .await
            .unwrap();
        assert!(end.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn serves_a_spawner_that_comes_back_on_its_named_socket() {
    local(async {
        let fixture = Fixture::ed25519();
        let config = fixture.config("");
        let path = config.ipc_dir.join(SOCKET_NAME);
        let (_changes, config) = watch::channel(Arc::new(config));
        spawn_local(async { crate::run(config).await.unwrap() });
        for _ in 0..2 {
            let channel = loop {
                match connect(&path) {
                    Ok(channel) => break channel,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            let (spawner, schemes, _) = announcement(channel).await;
            assert_eq!(schemes, [ED25519]);
            assert!(
                sign(&worker(&spawner).await, 1, ED25519, &verify_input(32))
                    .await
                    .is_some()
            );
        }
    })
    .await;
}

#[test]
fn refuses_a_key_of_another_certificate() {
    let fixture = Fixture::ed25519();
    let other = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    std::fs::write(fixture.folder.path().join("tls.pem"), other.serialize_pem()).unwrap();
    let error = fixture.load().unwrap_err();
    assert!(matches!(error, KeyAgentError::Mismatch(_)), "{error}");
    assert!(error.is_configuration());
}

#[test]
fn refuses_files_that_are_missing_or_exchanged() {
    let fixture = Fixture::ed25519();
    let path = |name: &str| -> std::path::PathBuf { fixture.folder.path().join(name) };
    let key = std::fs::read(path("tls.pem")).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write::<&Path, _>(&path(name), bytes).unwrap();

    write("tls.pem", &std::fs::read(path("public.pem")).unwrap());
    assert!(matches!(fixture.load(), Err(KeyAgentError::PrivateKey(_))));
    write("tls.pem", &key);
    write("public.pem", &key);
    assert!(matches!(fixture.load(), Err(KeyAgentError::Certificate(_))));
    std::fs::remove_file(path("public.pem")).unwrap();
    let error = fixture.load().unwrap_err();
    assert!(matches!(error, KeyAgentError::Certificate(_)));
    assert!(error.is_configuration());
}

/// The next announcement on a channel: its number, and the first certificate of its chain.
async fn announced(spawner: &Channel) -> (u32, Vec<u8>) {
    let (packet, descriptors) = timeout(PATIENCE, spawner.recv_packet())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let KeyAgentToSpawner::KeyAnnounce { announcement, .. } = packet;
    let [chain] = <[_; 1]>::try_from(descriptors).unwrap();
    let chain = memfd::read(chain, 1 << 20).unwrap();
    (announcement, chain[4..].to_vec())
}

#[tokio::test]
async fn another_pair_is_announced_and_each_worker_gets_signatures_of_the_chain_it_shows() {
    local(async {
        let before = Fixture::ed25519();
        let after = Fixture::ed25519();
        let agent = before.agent("");
        let (spawner, ..) = spawner(Rc::clone(&agent)).await;
        agent.reload(&after.config(""));
        // The same again is no news, so that the announcement after it has the next number.
        agent.reload(&after.config(""));
        assert_eq!(announced(&spawner).await, (2, after.certificate.clone()));

        let input = verify_input(32);
        for (announcement, fixture) in [(1, &before), (1, &before), (2, &after)] {
            let worker = register(&spawner, announcement).await;
            let signature = sign(&worker, 1, ED25519, &input).await.unwrap();
            assert!(verifies(&fixture.key, ED25519, &input, &signature));
        }
        // Nobody shows the first any more: it is forgotten, and asking for it a fault of the spawner.
        let worker = register(&spawner, 1).await;
        assert_eq!(sign(&worker, 1, ED25519, &input).await, None);
        let end = timeout(PATIENCE, spawner.recv_packet::<KeyAgentToSpawner>()).await;
        assert!(end.unwrap().unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn a_pair_that_cannot_be_used_leaves_the_one_before_in_force() {
    local(async {
        let fixture = Fixture::ed25519();
        let other = Fixture::ed25519();
        let agent = fixture.agent("");
        let (spawner, ..) = spawner(Rc::clone(&agent)).await;
        let path = |name: &str| fixture.folder.path().join(name);
        let exchange = |name: &str| {
            std::fs::copy(other.folder.path().join(name), path(name)).unwrap();
            agent.reload(&fixture.config(""));
        };
        // Replaced one after the other: the half-way state is refused.
        exchange("tls.pem");
        let worker = register(&spawner, 1).await;
        let signature = sign(&worker, 1, ED25519, &verify_input(32)).await.unwrap();
        assert!(verifies(
            &fixture.key,
            ED25519,
            &verify_input(32),
            &signature
        ));
        exchange("public.pem");
        assert_eq!(announced(&spawner).await, (2, other.certificate.clone()));
        // So is a file that is missing.
        std::fs::remove_file(path("tls.pem")).unwrap();
        agent.reload(&fixture.config(""));
        let worker = register(&spawner, 2).await;
        assert!(sign(&worker, 1, ED25519, &verify_input(32)).await.is_some());
    })
    .await;
}

#[tokio::test]
async fn bounds_of_worker_channels_can_be_raised_and_lowered() {
    local(async {
        let limits = |workers: u32| {
            format!("[limits]\nmax_workers = {workers}\nmax_unauthenticated = 1\nmax_per_source = 1\nmax_unauthenticated_per_source = 1\n")
        };
        let fixture = Fixture::ed25519();
        let agent = fixture.agent(&limits(1));
        let (spawner, ..) = spawner(Rc::clone(&agent)).await;
        let ended = async |worker: &Channel| {
            let end = timeout(PATIENCE, worker.recv_packet::<KeyAgentToWorker>()).await;
            end.unwrap().unwrap().is_none()
        };
        let open = [worker(&spawner).await, worker(&spawner).await];
        assert!(ended(&worker(&spawner).await).await);
        agent.reload(&fixture.config(&limits(2)));
        let more = [worker(&spawner).await, worker(&spawner).await];
        assert!(ended(&worker(&spawner).await).await);
        agent.reload(&fixture.config(&limits(1)));
        for worker in open.iter().chain(&more) {
            assert!(sign(worker, 1, ED25519, &verify_input(32)).await.is_some());
        }
        assert!(ended(&worker(&spawner).await).await);
    })
    .await;
}
