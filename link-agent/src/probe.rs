//! Looking at a toolshed without linking: up to its signed greeting, and no further.
//!
//! The greeting is the toolshed's first word. Nothing answers it, so no epoch is made, and the toolshed learns of no router.

use std::time::Duration;

use memory_config::{Timeouts, Toolshed};
use memory_transport::tls;
use memory_wire::Did;
use memory_wire::codec::Reader;
use memory_wire::flags::Flags;
use memory_wire::records::ToolshedHello;
use tokio::time::{Instant, timeout, timeout_at};

use crate::agent::MAX_HELLO_AGE;
use crate::clock::Moment;
use crate::error::LinkFault;
use crate::handshake::{DialTimes, greet};

/// Farthest that the clocks of router and toolshed may be apart for a link, in seconds (`docs/protocol.md` section 6.1).
pub const MAX_CLOCK_SKEW: u64 = MAX_HELLO_AGE;

/// Time given to the toolshed to take the close frame.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// What a toolshed says of itself.
#[derive(Debug, Clone)]
pub struct Greeting {
    /// Who signed it: the toolshed of the directory or, when that one did not, the one that the greeting names.
    pub did: Did,
    /// Unix second by the toolshed's clock.
    pub issued: u64,
    /// Unix second by this host's clock, when the greeting had come.
    pub received: u64,
    /// Its capabilities, private ones included.
    pub flags: Flags,
}

/// Why there is no greeting to tell of.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The pinned certificates of the directory cannot be used.
    #[error("the pinned certificate cannot be used: {0}")]
    Pin(#[source] tls::TlsError),
    /// Nobody answers at the address.
    #[error("{0}")]
    Unreachable(String),
    /// Somebody answers whom TLS does not let pass for the toolshed.
    #[error("{0}")]
    Untrusted(String),
    /// It does not speak the protocol of a link.
    #[error("{0}")]
    Protocol(String),
    /// Its greeting is not signed by anybody it names.
    #[error("the greeting is not signed by whom it names")]
    Unsigned,
}

/// Dials a toolshed, takes its greeting and says goodbye, within `link_handshake`. To be called on a runtime with IO and
/// time enabled.
///
/// # Errors
/// [`ProbeError`].
pub async fn probe(toolshed: &Toolshed, timeouts: &Timeouts) -> Result<Greeting, ProbeError> {
    let config =
        tls::pinned_client_config(toolshed.certificate.clone()).map_err(ProbeError::Pin)?;
    let times = DialTimes {
        handshake: timeouts.link_handshake,
        tcp_user: timeouts.tcp_user,
    };
    let deadline = Instant::now() + times.handshake;
    let greeted = timeout_at(deadline, greet(toolshed, config, times, deadline)).await;
    let (mut socket, record) = greeted
        .unwrap_or(Err(LinkFault::Timeout))
        .map_err(ProbeError::from)?;
    let received = Moment::now().unix;
    // It may have hung up.
    let _ = timeout(GOODBYE_TIMEOUT, socket.writer.close(1000, "")).await;
    let _ = timeout(GOODBYE_TIMEOUT, socket.writer.shutdown()).await;

    let hello = match ToolshedHello::verify(&record, &toolshed.did) {
        Ok(hello) => hello,
        Err(_) => named(&record)
            .and_then(|did| ToolshedHello::verify(&record, &did).ok())
            .ok_or(ProbeError::Unsigned)?,
    };
    let flags = Flags::from_canonical(&hello.flags)
        .map_err(|error| ProbeError::Protocol(format!("greeting's flags: {error}")))?;
    Ok(Greeting {
        did: hello.toolshed,
        issued: hello.issued,
        received,
        flags,
    })
}

impl From<LinkFault> for ProbeError {
    fn from(fault: LinkFault) -> Self {
        let text = fault.to_string();
        match fault {
            LinkFault::Dial(_) | LinkFault::Timeout => Self::Unreachable(text),
            LinkFault::Tls(tls::TlsError::Timeout) => Self::Unreachable(text),
            LinkFault::Tls(_) => Self::Untrusted(text),
            _ => Self::Protocol(text),
        }
    }
}

/// Who a greeting names and is signed by. Only used to say who it is that is not the right one.
pub(crate) fn signer_of(record: &[u8]) -> Option<Did> {
    named(record).filter(|did| ToolshedHello::verify(record, did).is_ok())
}

/// Whom a greeting names as its signer: its first field.
fn named(record: &[u8]) -> Option<Did> {
    let mut fields = Reader::new(record, b"rph1").ok()?;
    fields.text().ok().and_then(|text| Did::parse(text).ok())
}
