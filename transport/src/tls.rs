//! TLS 1.3 settings of every socket, and the two ways of trusting a server.
//!
//! Everything that lets one connection influence another is off: no tickets, no session cache, no early data, no TLS 1.2.
//! ALPN is `http/1.1`: a client that offers only other protocols is refused, one that offers none is served (RFC 7301).

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    Resumption, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name,
};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, ResolvesServerCert};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, PeerIncompatible, RootCertStore,
    ServerConfig, SignatureScheme, version,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::der::CertificateFields;

/// The one application protocol spoken here.
pub const ALPN: &[u8] = b"http/1.1";

/// Why a TLS setting or handshake failed.
#[derive(Debug, Error)]
pub enum TlsError {
    /// Caller's fault: a certificate to pin or trust is not X.509 in DER.
    #[error("certificate {index} is not valid X.509")]
    Certificate {
        /// Position in the list given.
        index: usize,
    },
    /// Caller's fault: there was no certificate to pin or trust.
    #[error("no certificate to trust")]
    NoCertificate,
    /// Caller's fault: the server name is neither a DNS name nor an address.
    #[error("server name is not a DNS name or an IP address")]
    ServerName,
    /// Caller's fault: certificate chain and key do not fit, or the provider lacks TLS 1.3.
    #[error("TLS configuration: {0}")]
    Configuration(#[source] rustls::Error),
    /// Peer's fault or the network's: the handshake did not complete.
    #[error("TLS handshake: {}", in_words(.0))]
    Handshake(#[source] io::Error),
    /// The deadline passed first.
    #[error("TLS handshake timed out")]
    Timeout,
}

impl TlsError {
    /// The TLS fault behind a failed handshake, when it was one and not the network's.
    pub fn fault(&self) -> Option<&rustls::Error> {
        match self {
            Self::Configuration(fault) => Some(fault),
            Self::Handshake(error) => error.get_ref()?.downcast_ref(),
            _ => None,
        }
    }

    /// Why the server's certificate was not accepted, in plain words; `None` when something else failed.
    pub fn distrust(&self) -> Option<&'static str> {
        match self.fault()? {
            rustls::Error::InvalidCertificate(fault) => Some(distrust(fault)),
            _ => None,
        }
    }
}

fn distrust(fault: &CertificateError) -> &'static str {
    match fault {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the server's certificate is for another name"
        }
        CertificateError::BadEncoding => "the server's certificate is malformed",
        // A self-signed one that is not pinned shows as the last.
        CertificateError::UnknownIssuer
        | CertificateError::BadSignature
        | CertificateError::Other(_) => {
            "the server's certificate is none of those trusted, and not issued by one of them"
        }
        _ => "the server's certificate is not acceptable",
    }
}

/// What went wrong with a handshake, for people.
fn in_words(error: &io::Error) -> String {
    let fault = error.get_ref().and_then(|fault| fault.downcast_ref());
    match fault {
        Some(rustls::Error::InvalidCertificate(fault)) => distrust(fault).to_owned(),
        _ => error.to_string(),
    }
}

/// A server whose certificate and signing key come from `resolver`, which may sign elsewhere (the worker's key agent).
///
/// # Errors
/// [`TlsError::Configuration`] when the provider cannot do TLS 1.3.
pub fn server_config(resolver: Arc<dyn ResolvesServerCert>) -> Result<Arc<ServerConfig>, TlsError> {
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_1_3)
        .map_err(TlsError::Configuration)?
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    Ok(Arc::new(harden_server(config)))
}

/// A server that holds its own key: `chain` starts with the end-entity certificate.
///
/// # Errors
/// [`TlsError::Configuration`] when chain and key do not fit together.
pub fn server_config_from_key(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_1_3)
        .map_err(TlsError::Configuration)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(TlsError::Configuration)?;
    Ok(Arc::new(harden_server(config)))
}

/// A client that trusts exactly `certificates` (a directory entry's file): see [`PinnedVerifier`].
///
/// # Errors
/// [`TlsError::NoCertificate`], [`TlsError::Certificate`] or [`TlsError::Configuration`].
pub fn pinned_client_config(
    certificates: Vec<CertificateDer<'static>>,
) -> Result<Arc<ClientConfig>, TlsError> {
    client_config(Arc::new(PinnedVerifier::new(certificates)?))
}

/// A client that trusts any chain to `roots`, as on the public side.
///
/// # Errors
/// [`TlsError::NoCertificate`], [`TlsError::Certificate`] or [`TlsError::Configuration`].
pub fn root_client_config(
    roots: Vec<CertificateDer<'static>>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let mut store = RootCertStore::empty();
    for (index, root) in roots.into_iter().enumerate() {
        store
            .add(root)
            .map_err(|_| TlsError::Certificate { index })?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider())
        .build()
        .map_err(|_| TlsError::NoCertificate)?;
    client_config(verifier)
}

/// Performs the server's handshake before `deadline`.
///
/// # Errors
/// [`TlsError::Handshake`] or [`TlsError::Timeout`]; the stream is dropped.
pub async fn accept<S>(
    stream: S,
    config: Arc<ServerConfig>,
    deadline: Instant,
) -> Result<server::TlsStream<S>, TlsError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = timeout_at(deadline, TlsAcceptor::from(config).accept(stream)).await;
    handshake
        .map_err(|_| TlsError::Timeout)?
        .map_err(TlsError::Handshake)
}

/// Performs the client's handshake with the server called `server_name` (DNS name or IP address) before `deadline`.
///
/// # Errors
/// [`TlsError::ServerName`], [`TlsError::Handshake`] or [`TlsError::Timeout`]; the stream is dropped.
pub async fn connect<S>(
    stream: S,
    config: Arc<ClientConfig>,
    server_name: &str,
    deadline: Instant,
) -> Result<client::TlsStream<S>, TlsError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(server_name.to_owned()).map_err(|_| TlsError::ServerName)?;
    let handshake = timeout_at(deadline, TlsConnector::from(config).connect(name, stream)).await;
    handshake
        .map_err(|_| TlsError::Timeout)?
        .map_err(TlsError::Handshake)
}

/// The cryptography of all of it: ring.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Trusts a server that presents one of the pinned certificates, byte for byte, or one whose chain leads to a pinned
/// authority (`docs/protocol.md` section 6). Name and validity period are checked either way.
///
/// A pinned certificate without the `cA` bit is compared only: its key must not be able to vouch for another certificate.
/// An expired pin is refused, so that forgetting a renewal shows at once and not only after the next key is stolen.
pub struct PinnedVerifier {
    pins: Vec<Pin>,
    authorities: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

struct Pin {
    certificate: CertificateDer<'static>,
    fields: CertificateFields,
}

impl PinnedVerifier {
    /// Pins `certificates`, which may mix end-entity certificates and authorities.
    ///
    /// # Errors
    /// [`TlsError::NoCertificate`] or [`TlsError::Certificate`].
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TlsError> {
        if certificates.is_empty() {
            return Err(TlsError::NoCertificate);
        }
        let mut pins = Vec::with_capacity(certificates.len());
        let mut authorities = RootCertStore::empty();
        for (index, certificate) in certificates.into_iter().enumerate() {
            let fields =
                CertificateFields::parse(&certificate).ok_or(TlsError::Certificate { index })?;
            if fields.is_authority {
                authorities
                    .add(certificate.clone())
                    .map_err(|_| TlsError::Certificate { index })?;
            }
            pins.push(Pin {
                certificate,
                fields,
            });
        }
        Ok(Self {
            pins,
            authorities,
            algorithms: provider().signature_verification_algorithms,
        })
    }
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        if let Some(pin) = self.pins.iter().find(|pin| pin.certificate == *end_entity) {
            let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
            if now < pin.fields.not_before {
                return Err(CertificateError::NotValidYet.into());
            }
            if now > pin.fields.not_after {
                return Err(CertificateError::Expired.into());
            }
        } else {
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &self.authorities,
                intermediates,
                now,
                self.algorithms.all,
            )?;
        }
        verify_server_name(&parsed, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl std::fmt::Debug for PinnedVerifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedVerifier")
            .field("pins", &self.pins.len())
            .field("authorities", &self.authorities.len())
            .finish()
    }
}

fn client_config(verifier: Arc<dyn ServerCertVerifier>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_1_3)
        .map_err(TlsError::Configuration)?
        .dangerous() // the name of the only way to give a verifier of one's own
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    Ok(Arc::new(config))
}

fn harden_server(mut config: ServerConfig) -> ServerConfig {
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config
}

const TLS_1_3: &[&rustls::SupportedProtocolVersion] = &[&version::TLS13];
