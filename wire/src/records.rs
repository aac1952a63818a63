//! Canonical binary records (`docs/protocol.md` section 6): who signs what, field by field.
//!
//! | tag | record | signed by |
//! | --- | --- | --- |
//! | `mra1` | [`Statement`] | client |
//! | `mrc1` | [`Issuance`] | router |
//! | `mrr1` | [`Receipt`] | router |
//! | `mrp1` | [`Proof`] | no one: its three blobs are signed |
//! | `rph1` | [`ToolshedHello`] | toolshed |
//! | `rpc1` | [`LinkChallenge`] | router |
//! | `rpo1` | [`LINK_ACKNOWLEDGED`] | no one |
//! | `mlq1`, `mls1` | [`ControlRequest`], [`ControlResponse`] | no one |
//! | `mat1`, `map1`, `mrl1`, `mas1`, `mvp1` | [`TicketRequest`], [`TicketProof`], [`ReleaseRequest`], [`SpaceRequest`], [`ContextProof`] | no one |
//! | none | [`CloseRequest`] | no one |
//! | `rdh1` | [`DataHello`] | toolshed |
//! | `rdb1` | [`Binding`] | router |
//!
//! A signature is the last 64 bytes of its record and covers every byte before it. `verify` checks it before it looks at
//! any field, and there is no way to decode a signed record without verifying it. Nothing here signs: the owner of a key
//! builds [`Statement::signing_input`] and the like, signs it, and calls [`attach`].

mod authentication;
mod control;
mod data;
mod field;
mod link;

pub use authentication::{
    Issuance, MAX_STATEMENT_LEN, MAX_STATEMENT_TEXT_LEN, Proof, Receipt, Statement,
};
pub use control::{
    CloseRequest, ContextProof, ControlRequest, ControlResponse, Operation, ReleaseRequest,
    SpaceRequest, TicketProof, TicketRequest,
};
pub use data::{Binding, DataHello};
pub use link::{LINK_ACKNOWLEDGED, LinkChallenge, ToolshedHello};

use crate::codec::{DecodeError, MAX_RECORD_LEN};
use crate::did::Did;
use thiserror::Error;

/// Bytes of an Ed25519 signature.
pub const SIGNATURE_LEN: usize = 64;

/// Bytes that a signature may cover, so that the record with it keeps [`MAX_RECORD_LEN`].
pub const MAX_SIGNING_INPUT_LEN: usize = MAX_RECORD_LEN - SIGNATURE_LEN;

/// The record whose signing input is `input`.
pub fn attach(mut input: Vec<u8>, signature: [u8; SIGNATURE_LEN]) -> Vec<u8> {
    input.extend_from_slice(&signature);
    input
}

/// Why bytes are not a record signed by the expected key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum RecordError {
    /// The signature is not the signer's over the bytes before it.
    #[error("signature does not verify")]
    Signature,
    /// The record is signed, but names another party as its signer.
    #[error("record names another signer")]
    Signer,
    /// The bytes do not have the record's form.
    #[error(transparent)]
    Form(#[from] DecodeError),
}

/// Splits the signature off `bytes` and checks that `signer` made it. Returns the bytes it covers.
fn check_signature<'a>(bytes: &'a [u8], signer: &Did) -> Result<&'a [u8], RecordError> {
    let (input, signature) = split_signature(bytes)?;
    if signer.verify(input, signature) {
        Ok(input)
    } else {
        Err(RecordError::Signature)
    }
}

/// Splits `bytes` into what is signed and the signature; bounds them before anything hashes them.
fn split_signature(bytes: &[u8]) -> Result<(&[u8], &[u8; SIGNATURE_LEN]), DecodeError> {
    if bytes.len() > MAX_RECORD_LEN {
        return Err(DecodeError::TooLong);
    }
    bytes.split_last_chunk().ok_or(DecodeError::Truncated)
}

#[cfg(test)]
mod tests;
