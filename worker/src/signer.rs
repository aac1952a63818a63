//! The TLS private key, seen from a process that does not have it: every signature is asked of the key agent.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memory_ipc::BlockingChannel;
use memory_ipc::packets::{KeyAgentToWorker, WorkerToKeyAgent};
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

/// The one certificate, whose key lives elsewhere.
#[derive(Debug)]
pub(crate) struct RemoteCertificate(Arc<CertifiedKey>);

impl RemoteCertificate {
    /// `schemes` are those the key agent announced, best first. `patience` bounds one signature.
    pub(crate) fn new(
        chain: Vec<Vec<u8>>,
        schemes: &[u16],
        channel: BlockingChannel,
        patience: Duration,
    ) -> Self {
        let key = RemoteKey(Arc::new(Agent {
            channel: Mutex::new(channel),
            schemes: schemes
                .iter()
                .map(|scheme| SignatureScheme::from(*scheme))
                .collect(),
            patience,
        }));
        let chain = chain.into_iter().map(CertificateDer::from).collect();
        Self(Arc::new(CertifiedKey::new(chain, Arc::new(key))))
    }
}

impl ResolvesServerCert for RemoteCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

struct Agent {
    channel: Mutex<BlockingChannel>,
    schemes: Vec<SignatureScheme>,
    patience: Duration,
}

impl fmt::Debug for Agent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Agent")
            .field("schemes", &self.schemes)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct RemoteKey(Arc<Agent>);

impl SigningKey for RemoteKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = self
            .0
            .schemes
            .iter()
            .copied()
            .find(|scheme| offered.contains(scheme))?;
        Some(Box::new(RemoteSigner {
            agent: Arc::clone(&self.0),
            scheme,
        }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match self.0.schemes.first() {
            Some(SignatureScheme::ED25519) => SignatureAlgorithm::ED25519,
            Some(
                SignatureScheme::RSA_PSS_SHA256
                | SignatureScheme::RSA_PSS_SHA384
                | SignatureScheme::RSA_PSS_SHA512,
            ) => SignatureAlgorithm::RSA,
            _ => SignatureAlgorithm::ECDSA,
        }
    }
}

#[derive(Debug)]
struct RemoteSigner {
    agent: Arc<Agent>,
    scheme: SignatureScheme,
}

impl Signer for RemoteSigner {
    /// Blocks: the handshake of this process's only client cannot go on without it.
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let gone = || Error::General("the key agent did not sign".to_owned());
        let request = WorkerToKeyAgent::Sign {
            sequence: 1,
            scheme: u16::from(self.scheme),
            input: message.to_vec(),
        };
        let deadline = Instant::now() + self.agent.patience;
        let channel = self.agent.channel.lock().map_err(|_| gone())?;
        channel
            .send_packet(&request, &[], deadline)
            .map_err(|_| gone())?;
        match channel.recv_packet::<KeyAgentToWorker>(deadline) {
            Ok(Some((
                KeyAgentToWorker::Signed {
                    sequence: 1,
                    status: 0,
                    signature,
                },
                _,
            ))) => Ok(signature),
            _ => Err(gone()),
        }
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

/// Takes the descriptor of the key agent's channel.
pub(crate) fn channel(descriptor: OwnedFd) -> Result<BlockingChannel, memory_ipc::ChannelError> {
    BlockingChannel::from_fd(descriptor)
}
