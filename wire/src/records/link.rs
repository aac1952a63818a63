//! The handshake that makes a connection to a toolshed a control link (`docs/protocol.md` section 6.1).

use super::field::signed_record;
use crate::did::Did;
use crate::ids::{EpochId, Nonce};

/// The toolshed's whole answer to a good [`LinkChallenge`]: `rpo1`, without fields.
pub const LINK_ACKNOWLEDGED: [u8; 4] = *b"rpo1";

/// A toolshed's greeting on a control link: `rph1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ToolshedHello {
    /// The toolshed that signs.
    pub toolshed: Did,
    /// Makes this handshake its own.
    pub nonce: Nonce,
    /// Unix second, by the toolshed's clock.
    pub issued: u64,
    /// The toolshed's capabilities in canonical form, private ones included.
    pub flags: Vec<u8>,
}

signed_record!(ToolshedHello, b"rph1", [toolshed, nonce, issued, flags], signer toolshed);

/// The router's answer to a [`ToolshedHello`]: `rpc1`. Its last byte, `0x01`, asserts that the router keeps to request
/// credit; a toolshed refuses a router that does not say so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LinkChallenge {
    /// The deployment.
    pub deployment: String,
    /// The router that signs.
    pub router: Did,
    /// The toolshed it answers.
    pub toolshed: Did,
    /// The new link's epoch, never used before.
    pub epoch: EpochId,
    /// The greeting's nonce.
    pub nonce: Nonce,
}

signed_record!(LinkChallenge, b"rpc1", [deployment, router, toolshed, epoch, nonce], signer router, ends 0x01);
