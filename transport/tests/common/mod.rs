//! Certificates, TLS pairs over loopback and scripted streams that several test files share.
#![allow(dead_code)] // each test file uses its part

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// The name every good certificate carries.
pub(crate) const NAME: &str = "toolshed.test";

/// A certificate with its key.
pub(crate) struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl Identity {
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.server_with_chain(&[])
    }

    pub(crate) fn server_with_chain(&self, more: &[CertificateDer<'static>]) -> Arc<ServerConfig> {
        let chain = std::iter::once(&self.certificate)
            .chain(more)
            .cloned()
            .collect();
        memory_transport::tls::server_config_from_key(chain, self.key.clone_key()).unwrap()
    }
}

/// Parameters of a certificate for `name`, valid now, with a subject of its own: path building goes by subjects.
pub(crate) fn params(name: &str) -> CertificateParams {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    params
        .distinguished_name
        .push(DnType::CommonName, format!("{name} {count}"));
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2120, 1, 1);
    params
}

/// A self-signed certificate.
pub(crate) fn self_signed(params: CertificateParams) -> Identity {
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    Identity {
        certificate,
        key: key.into(),
    }
}

/// A certificate authority.
pub(crate) fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = params("authority.test");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate that `issuer` signed.
pub(crate) fn issued(
    params: CertificateParams,
    issuer: &CertifiedIssuer<'static, KeyPair>,
) -> Identity {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap().der().clone();
    Identity {
        certificate,
        key: key.into(),
    }
}

/// Far enough that only a hang reaches it.
pub(crate) fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// Two ends of a loopback TCP connection: (client, server).
pub(crate) async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .await
        .unwrap();
    let (client, server) = tokio::join!(
        TcpStream::connect(listener.local_addr().unwrap()),
        listener.accept()
    );
    (client.unwrap(), server.unwrap().0)
}

pub(crate) type TlsClient = tokio_rustls::client::TlsStream<TcpStream>;
pub(crate) type TlsServer = tokio_rustls::server::TlsStream<TcpStream>;

/// A handshake over loopback: what each side made of it.
pub(crate) async fn handshake(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: &str,
) -> (
    Result<TlsClient, memory_transport::tls::TlsError>,
    Result<TlsServer, memory_transport::tls::TlsError>,
) {
    let (client_tcp, server_tcp) = tcp_pair().await;
    tokio::join!(
        memory_transport::tls::connect(client_tcp, client, name, deadline()),
        memory_transport::tls::accept(server_tcp, server, deadline()),
    )
}

/// Two ends of a loopback TLS connection that trust each other.
pub(crate) async fn tls_pair() -> (TlsClient, TlsServer) {
    let identity = self_signed(params(NAME));
    let client =
        memory_transport::tls::pinned_client_config(vec![identity.certificate.clone()]).unwrap();
    let (client, server) = handshake(client, identity.server(), NAME).await;
    (client.unwrap(), server.unwrap())
}

/// A stream that answers reads with these pieces, one each, and is pending before every one.
pub(crate) struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    ready: bool,
    /// Pending for ever after the last piece, instead of end of file.
    hang: bool,
}

impl Pieces {
    pub(crate) fn new(pieces: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let pieces = pieces
            .into_iter()
            .filter(|piece| !piece.is_empty())
            .collect();
        Self {
            pieces,
            ready: false,
            hang: false,
        }
    }

    pub(crate) fn then_hang(mut self) -> Self {
        self.hang = true;
        self
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.pieces.is_empty()
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.ready = !self.ready;
        if self.ready || (self.hang && self.pieces.is_empty()) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(mut piece) = self.pieces.pop_front() {
            let count = piece.len().min(out.remaining());
            out.put_slice(&piece[..count]);
            piece.drain(..count);
            if !piece.is_empty() {
                self.pieces.push_front(piece);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Polls a future once, then drops it: what `select!` does to the loser.
pub(crate) fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
