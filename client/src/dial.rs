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
use rustls::pki_types::{CertificateDer, ServerName};
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
    /// The host without its port.
    name: String,
    address: SocketAddr,
    tls: Arc<ClientConfig>,
}

impl Endpoint {
    /// `host` is the router's configured `host`, with its port when that is not 443; `address` is where to connect to;
    /// `roots` are DER certificates of authorities, or the router's own certificate.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for a host that is no name, an address that does not resolve, or certificates that are none.
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
    /// [`ClientError::Usage`] for a host that is no name, or an address that does not resolve.
    pub fn with_tls(
        host: impl Into<String>,
        address: impl ToSocketAddrs,
        tls: Arc<ClientConfig>,
    ) -> Result<Self, ClientError> {
        let host = host.into();
        let name = server_name(&host).ok_or(ClientError::Usage(
            "the host is a DNS name or an IP address, with a port when that is not 443",
        ))?;
        let address = address
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next())
            .ok_or(ClientError::Usage("address"))?;
        Ok(Self {
            name: name.to_owned(),
            host,
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
        let stream = tls::connect(stream, Arc::clone(&self.tls), &self.name, deadline)
            .await
            .map_err(|error| match error.distrust() {
                Some(cause) => ClientError::Untrusted { cause },
                None => failed("tls")(&error),
            })?;
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
                ConnectError::Refused { status, body, .. } => ClientError::refused(status, &body),
                error => failed("upgrade")(&error),
            })
    }
}

/// The name in a `Host` field, as a certificate has it. `None` when it is none, or what follows it is no port.
fn server_name(host: &str) -> Option<&str> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) = rest.split_once(']')?;
            (address, rest)
        }
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit())
            && port.parse().is_ok_and(|port: u16| port > 0)
    };
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return None;
    }
    ServerName::try_from(name).is_ok().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::server_name;

    #[test]
    fn a_host_is_a_name_with_or_without_a_port() {
        for (host, name) in [
            ("router.example", Some("router.example")),
            ("router.example:8443", Some("router.example")),
            ("127.0.0.1:1", Some("127.0.0.1")),
            ("[::1]:8443", Some("::1")),
            ("[::1]", Some("::1")),
            ("", None),
            (":8443", None),
            ("https://router.example", None),
            ("router.example/path", None),
            ("router example", None),
            ("router.example:", None),
            ("router.example:0", None),
            ("router.example:+80", None),
            ("router.example:65536", None),
            ("[::1", None),
        ] {
            assert_eq!(server_name(host), name, "{host}");
        }
    }
}
