//! The handshake that makes a connection to a toolshed a data socket (`docs/protocol.md` section 6.3).

use super::field::signed_record;
use crate::did::Did;
use crate::ids::{ContextId, Digest, EpochId, Nonce, Ticket};

/// A toolshed's greeting on a data socket: `rdh1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DataHello {
    /// The toolshed that signs.
    pub toolshed: Did,
    /// Makes this socket its own.
    pub nonce: Nonce,
    /// Unix second, by the toolshed's clock.
    pub issued: u64,
}

signed_record!(DataHello, b"rdh1", [toolshed, nonce, issued], signer toolshed);

/// The router's leave to bind one data socket to one context: `rdb1`. It redeems the ticket, so it is signed once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Binding {
    /// The router that signs.
    pub router: Did,
    /// The deployment.
    pub deployment: String,
    /// The toolshed that greeted.
    pub toolshed: Did,
    /// The control link's epoch.
    pub epoch: EpochId,
    /// The context.
    pub context: ContextId,
    /// The ticket redeemed.
    pub ticket: Ticket,
    /// The greeting's nonce.
    pub nonce: Nonce,
    /// The greeting's Unix second.
    pub issued: u64,
    /// SHA-256 of the client's own capabilities in canonical form.
    pub client_flags: Digest,
    /// SHA-256 of the negotiated capabilities in canonical form.
    pub negotiated_flags: Digest,
}

signed_record!(
    Binding,
    b"rdb1",
    [
        router,
        deployment,
        toolshed,
        epoch,
        context,
        ticket,
        nonce,
        issued,
        client_flags,
        negotiated_flags
    ],
    signer router
);
