//! Client of the routed Memory protocol.
//!
//! One [`Connection`] is one public WebSocket: it carries sessions of many spaces, opened by several keys. The client signs
//! the router's challenge with each key it is given, renews those leases before they end, answers challenges the router
//! pushes, and streams its requests with upload credit.
//!
//! ```no_run
//! # async fn run() -> Result<(), memory_client::ClientError> {
//! use memory_client::{Connection, Endpoint, Identity, Options};
//! use std::sync::Arc;
//!
//! let certificate = std::fs::read("router.der").unwrap_or_default();
//! let endpoint = Endpoint::new("router.example", ("127.0.0.1", 8443), vec![certificate])?;
//! let connection = Connection::connect(&endpoint, Options::default()).await?;
//! let alice = Arc::new(Identity::from_seed([1; 32])?);
//! connection.authenticate(&alice).await?;
//! let session = connection.open(alice.did(), alice.did(), Default::default()).await?;
//! let entities = session.query(&["of:greeting"]).await?;
//! # let _ = entities; Ok(()) }
//! ```
//!
//! A connection that ends fails every request in flight with [`ClientError::Closed`]: what became of a mutation is then
//! unknown, and only `localSeq` replay on a new connection settles it. This crate never replays by itself.
#![forbid(unsafe_code)]

mod connection;
mod dial;
mod error;
mod hello;
mod inner;
mod lease;
mod random;
mod receive;
mod send;
mod session;

pub use connection::{Connection, Lease, OpenOptions};
pub use dial::Endpoint;
pub use error::{ClientError, Closed, Denied};
pub use hello::{Hello, Limits};
pub use memory_config::Identity;
pub use memory_wire::did::Did;
pub use session::{Effect, Session};

use memory_wire::flags::{Capability, Flags};

/// How the client frames its uploads (`docs/protocol.md`, transport selection).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Every message as records, paid for with upload credit.
    #[default]
    Credited,
    /// Ordinary data as records without credit, control messages whole.
    Streamed,
    /// Whole messages only.
    Legacy,
}

/// How a connection is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Framing of uploads. Falls back to whole messages where the router offers no streaming.
    pub transport: Transport,
    /// Whether bodies of 1 KiB or more are compressed end to end, when the router's offer has it too.
    pub compression: bool,
    /// The only space of a dedicated connection.
    pub dedicated: Option<Did>,
    /// `Origin` to send, as a browser would.
    pub origin: Option<String>,
    /// Seconds a signature is asked to last, at most 600.
    pub lease: u64,
    /// The deployment's cell representation.
    pub modern_cell_rep: bool,
    /// Whether leases are renewed and pushed challenges answered without being asked.
    pub keep_leases: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            transport: Transport::Credited,
            compression: true,
            dedicated: None,
            origin: None,
            lease: memory_wire::admission::MAX_LEASE,
            modern_cell_rep: false,
            keep_leases: true,
        }
    }
}

impl Options {
    /// The capabilities this client has.
    fn flags(&self) -> Result<Flags, ClientError> {
        let mut flags = Flags::new();
        let own = [
            ("connectionAuth", true),
            ("routedAuthV1", true),
            ("stableExpressionResultIds", true),
            ("modernCellRep", self.modern_cell_rep),
            ("messageCompressionV1", self.compression),
            ("routedCompressionV1", self.compression),
            ("pendingReadStacks", true),
            ("verdictCatchUpMarkers", true),
            ("entityIdListing", true),
            ("entityIdPagination", true),
            ("entityIdLookup", true),
            ("sessionHoldings", true),
            ("sessionClose", true),
            ("genesisRoot", true),
            ("spaceKind", true),
        ];
        for (name, value) in own {
            flags
                .insert(name, Capability::Flag(value))
                .map_err(|_| ClientError::Usage("flags"))?;
        }
        Ok(flags)
    }
}
