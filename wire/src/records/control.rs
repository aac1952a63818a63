//! Requests and answers on a control link (`docs/protocol.md` sections 6.1 and 6.2). None is signed: the link is.

use super::field::{Field, plain_record};
use crate::codec::{DecodeError, EncodeError, Reader, Writer};
use crate::did::Did;
use crate::ids::{ContextId, Ticket};

/// What a control request asks for, as its operation byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Operation {
    /// [`TicketRequest`]: admit a context and a space; answered by the 32 bytes of a ticket.
    Ticket = 1,
    /// [`TicketProof`]: authenticate the principal that opens with a ticket.
    Proof = 2,
    /// [`CloseRequest`]: forget a context.
    Close = 3,
    /// [`ReleaseRequest`]: take a principal's authority for new opens away.
    Release = 4,
    /// [`SpaceRequest`]: admit another space to a context.
    Space = 5,
    /// [`ContextProof`]: authenticate a principal without admitting a space.
    VerifiedProof = 6,
}

impl Operation {
    /// The operation byte.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl TryFrom<u8> for Operation {
    type Error = DecodeError;

    fn try_from(code: u8) -> Result<Self, DecodeError> {
        Ok(match code {
            1 => Self::Ticket,
            2 => Self::Proof,
            3 => Self::Close,
            4 => Self::Release,
            5 => Self::Space,
            6 => Self::VerifiedProof,
            _ => return Err(DecodeError::Value),
        })
    }
}

impl Field for Operation {
    fn put(&self, writer: Writer) -> Writer {
        writer.u8(self.code())
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u8()?.try_into()
    }
}

/// One request of the router: `mlq1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ControlRequest {
    /// Strictly increasing on a link, from 1.
    pub sequence: u64,
    /// What is asked for; decides the payload's record.
    pub operation: Operation,
    /// The operation's record.
    pub payload: Vec<u8>,
}

plain_record!(ControlRequest, b"mlq1", [sequence, operation, payload]);

/// A toolshed's answer: `mls1`, in the order of the requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ControlResponse {
    /// The request's sequence.
    pub sequence: u64,
    /// [`Self::SUCCESS`], or anything else for a refusal; this side sends [`Self::REFUSED`].
    pub status: u8,
    /// A ticket's bytes after [`Operation::Ticket`], else empty.
    pub payload: Vec<u8>,
}

plain_record!(ControlResponse, b"mls1", [sequence, status, payload]);

impl ControlResponse {
    /// Status of a request that was done.
    pub const SUCCESS: u8 = 0;

    /// Status of a request that was refused.
    pub const REFUSED: u8 = 1;

    /// Whether the request was done.
    pub const fn is_success(&self) -> bool {
        self.status == Self::SUCCESS
    }
}

/// Operation 1, `mat1`: admit a context with its client's capabilities, and its first space.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TicketRequest {
    /// The context.
    pub context: ContextId,
    /// The client's own capabilities in canonical form, not negotiated ones.
    pub flags: Vec<u8>,
    /// The space.
    pub space: Did,
    /// The ownership epoch at which the directory places the space there.
    pub epoch: u64,
}

plain_record!(TicketRequest, b"mat1", [context, flags, space, epoch]);

/// Operation 2, `map1`: the opening principal's proof.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TicketProof {
    /// The ticket that operation 1 gave.
    pub ticket: Ticket,
    /// A whole [`super::Proof`].
    pub proof: Vec<u8>,
}

plain_record!(TicketProof, b"map1", [ticket, proof]);

/// Operation 3: the 16 bytes of a context, with neither tag nor length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CloseRequest {
    /// The context to forget.
    pub context: ContextId,
}

impl CloseRequest {
    /// The record's bytes.
    ///
    /// # Errors
    /// None today; fallible as every record's encoding is.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        Ok(self.context.as_bytes().to_vec())
    }

    /// Reads the whole of `bytes` as this record.
    ///
    /// # Errors
    /// Any length but 16.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::untagged(bytes);
        let context = ContextId::take(&mut reader)?;
        reader.finish()?;
        Ok(Self { context })
    }
}

/// Operation 4, `mrl1`: take a principal's authority for new opens away; its sessions stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReleaseRequest {
    /// The context.
    pub context: ContextId,
    /// The principal released in it.
    pub principal: Did,
}

plain_record!(ReleaseRequest, b"mrl1", [context, principal]);

/// Operation 5, `mas1`: admit another space to a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpaceRequest {
    /// The context.
    pub context: ContextId,
    /// The space.
    pub space: Did,
    /// The ownership epoch at which the directory places the space there.
    pub epoch: u64,
}

plain_record!(SpaceRequest, b"mas1", [context, space, epoch]);

/// Operation 6, `mvp1`: a proof without a space, for another principal of a context or a renewal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContextProof {
    /// The context.
    pub context: ContextId,
    /// The client's own capabilities in canonical form.
    pub flags: Vec<u8>,
    /// A whole [`super::Proof`].
    pub proof: Vec<u8>,
}

plain_record!(ContextProof, b"mvp1", [context, flags, proof]);
