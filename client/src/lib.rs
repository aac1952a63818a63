//! Client of the routed Memory protocol, in two layers.
//!
//! A [`Client`] has sessions that survive: it reconnects, signs in again, reopens each [`DurableSession`] with its resume
//! token, restores its watches by difference, and sends commits without a verdict again under their `localSeq`, so that each
//! is applied once.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use memory_client::{Client, Endpoint, Event, Identity};
//! use serde_json::json;
//! use std::sync::Arc;
//!
//! // The router's `host`, where to connect to, and the certificate to trust, DER (`openssl x509 -in public.pem -outform der`).
//! let certificate = std::fs::read("public.der")?;
//! let endpoint = Endpoint::new("localhost:8443", "127.0.0.1:8443", vec![certificate])?;
//! let client = Client::new(endpoint, Default::default());
//!
//! // A space is opened by a key. Here it is the space's own, which alone may create it.
//! let alice = Arc::new(Identity::from_seed([1; 32])?);
//! let session = Arc::new(client.open(alice.did(), &alice, Default::default()).await?);
//!
//! // One task reads what happens, over as many connections as it takes.
//! let reader = tokio::spawn({
//!     let session = Arc::clone(&session);
//!     async move {
//!         while let Some(event) = session.event().await {
//!             match event {
//!                 Event::Sync(sync) => println!("{sync}"),
//!                 Event::Interrupted => println!("the connection is lost, or this task is too slow"),
//!                 Event::Rebuilt { .. } => println!("up to date again"),
//!                 Event::Ended(why) => println!("over: {why}"),
//!                 _ => {}
//!             }
//!         }
//!     }
//! });
//!
//! // Others write. The first commit of a space sets its access list, and nothing else.
//! let acl = json!({ "value": { alice.did().to_string(): "OWNER" } });
//! session
//!     .commit(json!([{ "op": "set", "id": format!("of:{}", alice.did()), "value": acl }]))
//!     .await?;
//! session.watch(&["of:note"]).await?;
//! let committed = session
//!     .commit(json!([{ "op": "set", "id": "of:note", "value": { "value": { "title": "Tea" } } }]))
//!     .await?;
//! println!("sequence {}", committed["seq"]);
//! session
//!     .commit(json!([{ "op": "patch", "id": "of:note",
//!         "patches": [{ "op": "replace", "path": "/value/title", "value": "Green tea" }] }]))
//!     .await?;
//! session.close().await?;
//! reader.await?;
//! # Ok(()) }
//! ```
//!
//! After a lost connection a session usually comes back with [`Event::Rebuilt`] `{ resumed: false }`, and nothing is wrong then: a
//! toolshed behind a router gives a session up with its connection, so that the next one begins a new life under the same
//! identity. Watches, and commits without a verdict, are carried over all the same. `resumed: true` is the exception, where
//! the toolshed still knew what it had sent. What an application has to look at is `whole`: whether the syncs before were
//! everything that is watched, or the difference.
//!
//! Below it, one [`Connection`] is one public WebSocket: it carries sessions of many spaces, opened by several keys. It signs
//! the router's challenge with each key it is given, renews those leases before they end, answers challenges the router
//! pushes, and streams its requests with upload credit. A connection that ends fails every request in flight with
//! [`ClientError::Closed`]: what became of a mutation is then unknown, and a plain [`Session`] never replays one by itself.
//!
//! ```no_run
//! # async fn run(endpoint: memory_client::Endpoint) -> Result<(), memory_client::ClientError> {
//! use memory_client::{Connection, Identity, Options};
//! use std::sync::Arc;
//!
//! let connection = Connection::connect(&endpoint, Options::default()).await?;
//! let alice = Arc::new(Identity::from_seed([1; 32])?);
//! connection.authenticate(&alice).await?;
//! let session = connection.open(alice.did(), alice.did(), Default::default()).await?;
//! let entities = session.query(&["of:note"]).await?;
//! # let _ = entities; Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod connection;
mod dial;
mod durable;
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
pub use durable::{
    Client, ClientOptions, ConnectionStatus, DurableSession, Event, SavedSession, SessionOptions,
    Submitted, Topology,
};
pub use error::{ClientError, Closed, Denied, Ended};
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
