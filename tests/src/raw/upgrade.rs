//! TCP, TLS and the HTTP upgrade of a raw client.

use std::sync::Arc;
use std::time::Duration;

use memory_transport::tls::{self, PinnedVerifier};
use memory_wire::upgrade::{PUBLIC_PATH, encode_key};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use super::RawClient;
use crate::error::{holds, same, soon};
use crate::{Context, GateError, Stage};

/// TCP, TLS and upgrade together.
const DIAL_DEADLINE: Duration = Duration::from_secs(10);

/// Longest head of an answer, bytes.
const MAX_HEAD_LEN: usize = 16 << 10;

/// The key of every upgrade: there is no cache between us and the router that it could guard against.
const KEY: [u8; 16] = *b"memory exercise.";

/// What the router answered to an upgrade.
#[derive(Debug)]
pub struct UpgradeAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The fields, names in lower case.
    pub fields: Vec<(String, String)>,
    stream: TlsStream<TcpStream>,
    leftover: Vec<u8>,
}

impl UpgradeAnswer {
    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let (_, value) = fields.find(|(known, _)| known == name)?;
        Some(value)
    }

    /// The body of a refusal, as its Content-Length bounds it.
    ///
    /// # Errors
    /// When it does not come, or is no text.
    pub async fn body(mut self) -> Result<String, GateError> {
        let step = "the body of a refusal";
        let len = self
            .field("content-length")
            .and_then(|len| len.parse().ok());
        let len: usize = len.during(step)?;
        while self.leftover.len() < len.min(MAX_HEAD_LEN) {
            let read = self.stream.read_buf(&mut self.leftover);
            if soon(step, read).await?.during(step)? == 0 {
                break;
            }
        }
        same("the length of the body", self.leftover.len(), len)?;
        String::from_utf8(self.leftover).during(step)
    }

    /// The WebSocket, where the upgrade was granted.
    ///
    /// # Errors
    /// When it was refused.
    pub fn into_client(self) -> Result<RawClient, GateError> {
        same("the status of the upgrade", self.status, 101)?;
        RawClient::new(self.stream, self.leftover)
    }
}

/// The request of an ordinary client.
pub(super) fn ordinary_request(stage: &Stage) -> String {
    request(stage, PUBLIC_PATH, &[])
}

/// A request with further fields, each a line without its end.
pub fn request(stage: &Stage, path: &str, fields: &[&str]) -> String {
    let mut text = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n",
        stage.public().host,
        encode_key(&KEY),
    );
    for field in fields {
        text.push_str(field);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    text
}

/// Connects, trusting the stage's certificate, and sends a request; gives the answer, whatever it is.
///
/// # Errors
/// When there is no answer.
pub async fn dial(stage: &Stage, request: &str) -> Result<UpgradeAnswer, GateError> {
    dial_with(stage, ordinary_config(stage)?, request).await
}

/// Trusts the stage's certificate.
pub(super) fn ordinary_config(stage: &Stage) -> Result<Arc<ClientConfig>, GateError> {
    let trusted = vec![CertificateDer::from(stage.public().certificate.clone())];
    tls::pinned_client_config(trusted).during("the client's TLS configuration")
}

/// The same with a TLS configuration of the caller's own.
///
/// # Errors
/// As [`dial`].
pub async fn dial_with(
    stage: &Stage,
    config: Arc<ClientConfig>,
    request: &str,
) -> Result<UpgradeAnswer, GateError> {
    let stream = TcpStream::connect(stage.public().address)
        .await
        .during("connecting")?;
    dial_over(stream, config, request).await
}

/// The same over a TCP connection of the caller's.
///
/// # Errors
/// As [`dial`].
pub async fn dial_over(
    stream: TcpStream,
    config: Arc<ClientConfig>,
    request: &str,
) -> Result<UpgradeAnswer, GateError> {
    stream.set_nodelay(true).during("connecting")?;
    let deadline = Instant::now() + DIAL_DEADLINE;
    let mut stream = tls::connect(stream, config, "localhost", deadline)
        .await
        .during("the TLS handshake")?;
    let exchange = async {
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < MAX_HEAD_LEN {
            if stream.read_buf(&mut head).await? == 0 {
                break;
            }
        }
        Ok::<_, std::io::Error>(head)
    };
    let head = soon("the answer to the upgrade", exchange)
        .await?
        .during("the answer to the upgrade")?;
    let end = head.windows(4).position(|end| end == b"\r\n\r\n");
    let text = String::from_utf8_lossy(head.get(..end.unwrap_or(head.len())).unwrap_or_default());
    holds(
        "the answer to the upgrade",
        end.is_some(),
        "a whole head",
        &text,
    )?;
    let mut lines = text.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 "))
        .and_then(|rest| rest.get(..3))
        .and_then(|status| status.parse().ok())
        .during("the status of the answer")?;
    let fields = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let leftover = end.and_then(|end| head.get(end + 4..));
    Ok(UpgradeAnswer {
        status,
        fields,
        leftover: leftover.unwrap_or_default().to_vec(),
        stream,
    })
}

/// A TLS configuration whose client hello lists these signature algorithms, in this order, and `http/1.1` alone.
///
/// # Errors
/// When the stage's certificate is none.
pub fn browser_config(
    stage: &Stage,
    schemes: &[SignatureScheme],
) -> Result<Arc<ClientConfig>, GateError> {
    let step = "the browser's TLS configuration";
    let trusted = vec![CertificateDer::from(stage.public().certificate.clone())];
    let verifier = BrowserVerifier {
        inner: PinnedVerifier::new(trusted).during(step)?,
        schemes: schemes.to_vec(),
    };
    let mut config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .during(step)?
        .dangerous() // the name of the only way to give a verifier of one's own
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![tls::ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Trusts as the inner verifier does; announces other signature algorithms.
#[derive(Debug)]
struct BrowserVerifier {
    inner: PinnedVerifier,
    schemes: Vec<SignatureScheme>,
}

impl ServerCertVerifier for BrowserVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.inner
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}
