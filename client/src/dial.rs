//! Reaching the router: TCP, TLS 1.3, upgrade.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use memory_transport::{
    ConnectError, KeepAlive, ReadLimits, Target, WebSocket, tls, tune_tcp, upgrade,
};
use memory_wire::message::MAX_RAW_LEN;
use memory_wire::upgrade::PUBLIC_PATH;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::client::TlsStream;

use crate::{ClientError, Options};

/// TCP, TLS and upgrade together.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) type Stream = TlsStream<TcpStream>;
pub(crate) type Read = ReadHalf<Stream>;
pub(crate) type Write = WriteHalf<Stream>;

/// Where a router is and how it is recognised.
#[derive(Debug, Clone)]
pub struct Endpoint {
    host: String,
    address: SocketAddr,
    tls: Arc<ClientConfig>,
}

impl Endpoint {
    /// `host` is the router's configured `host`, with its port when that is not 443; `address` is where to connect to;
    /// `roots` are DER certificates of authorities, or the router's own certificate.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for an address that does not resolve or certificates that are none.
    pub fn new(
        host: impl Into<String>,
        address: impl ToSocketAddrs,
        roots: Vec<Vec<u8>>,
    ) -> Result<Self, ClientError> {
        let roots = roots.into_iter().map(CertificateDer::from).collect();
        let tls =
            tls::pinned_client_config(roots).map_err(|_| ClientError::Usage("certificates"))?;
        Self::with_tls(host, address, tls)
    }

    /// The same with a TLS configuration of the caller's own, such as one that trusts the public authorities.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for an address that does not resolve.
    pub fn with_tls(
        host: impl Into<String>,
        address: impl ToSocketAddrs,
        tls: Arc<ClientConfig>,
    ) -> Result<Self, ClientError> {
        let address = address
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next())
            .ok_or(ClientError::Usage("address"))?;
        Ok(Self {
            host: host.into(),
            address,
            tls,
        })
    }

    /// Connects and upgrades.
    pub(crate) async fn dial(&self, options: &Options) -> Result<WebSocket<Stream>, ClientError> {
        let deadline = Instant::now() + DIAL_TIMEOUT;
        let failed = |step: &'static str| {
            move |error: &dyn std::error::Error| ClientError::Dial {
                step,
                cause: error.to_string(),
            }
        };
        let stream = timeout_at(deadline, TcpStream::connect(self.address))
            .await
            .map_err(|error| failed("connect")(&error))?
            .map_err(|error| failed("connect")(&error))?;
        tune_tcp(&stream, &KeepAlive::default()).map_err(|error| failed("connect")(&error))?;
        let name = match self.host.rsplit_once(':') {
            Some((name, _)) => name,
            None => &self.host,
        };
        let stream = tls::connect(stream, Arc::clone(&self.tls), name, deadline)
            .await
            .map_err(|error| failed("tls")(&error))?;
        let path = match &options.dedicated {
            Some(space) => format!("{PUBLIC_PATH}?space={space}"),
            None => PUBLIC_PATH.to_owned(),
        };
        let target = Target {
            host: &self.host,
            path: &path,
            origin: options.origin.as_deref(),
        };
        upgrade::connect(stream, target, ReadLimits::new(MAX_RAW_LEN), deadline)
            .await
            .map_err(|error| match error {
                ConnectError::Refused { status, .. } => ClientError::Refused { status },
                error => failed("upgrade")(&error),
            })
    }
}
