//! The rules that admit a statement or a proof, in one place for the worker, the link agent, the toolshed and the client
//! (`docs/protocol.md` section 4.4). All times are Unix seconds; freshness by a monotonic clock is the caller's.

use crate::did::Did;
use crate::ids::{Challenge, ContextId, Digest, EpochId};
use crate::reason::Reason;
use crate::records::{Issuance, Proof, Receipt, RecordError, Statement};
use thiserror::Error;

/// Seconds of the longest lease, counted from the client's issue time and from the receipt.
pub const MAX_LEASE: u64 = 600;

/// Seconds by which another host's clock may be ahead.
pub const MAX_SKEW: u64 = 120;

/// Seconds between a challenge's issue and its expiry, at most.
pub const CHALLENGE_LIFETIME: u64 = 60;

/// What a statement is judged against.
#[derive(Debug, Clone, Copy)]
pub struct StatementContext<'a> {
    /// The router that received it.
    pub router: &'a Did,
    /// The router's deployment.
    pub deployment: &'a str,
    /// The challenge issued to the connection it came on.
    pub challenge: &'a Challenge,
    /// Unix second of receipt.
    pub received: u64,
}

/// Judges a statement whose signature was verified. What is left to the caller: whether the challenge is still fresh,
/// whether another statement answered it, and whether an operator revoked the principal.
///
/// # Errors
/// The first [`StatementFault`], those that end the connection before those that are only refused.
pub fn judge_statement(
    statement: &Statement,
    context: &StatementContext<'_>,
) -> Result<(), StatementFault> {
    let Statement {
        principal,
        router,
        deployment,
        challenge,
        iat,
        exp,
    } = statement;
    let check = |good: bool, fault| if good { Ok(()) } else { Err(fault) };
    // Sums cannot wrap: every time is a safe integer. Saturation only keeps that from being an assumption.
    let within = |start: u64, length: u64| start.saturating_add(length);
    check(router == context.router, StatementFault::WrongRouter)?;
    check(
        deployment == context.deployment,
        StatementFault::WrongDeployment,
    )?;
    check(iat < exp, StatementFault::Backwards)?;
    check(principal != router, StatementFault::RouterPrincipal)?;
    check(
        challenge == context.challenge,
        StatementFault::WrongChallenge,
    )?;
    check(
        *exp <= within(*iat, MAX_LEASE),
        StatementFault::LeaseTooLong,
    )?;
    // Before the lease is measured from the receipt: a clock that is ahead would make an honest lease look too long.
    check(
        *iat <= within(context.received, MAX_SKEW),
        StatementFault::ClockSkew,
    )?;
    check(
        *exp <= within(context.received, MAX_LEASE),
        StatementFault::LeaseTooLong,
    )?;
    check(*exp > context.received, StatementFault::Expired)
}

/// What a proof is judged against.
#[derive(Debug, Clone, Copy)]
pub struct ProofContext<'a> {
    /// The router whose link it came on.
    pub router: &'a Did,
    /// The toolshed's deployment.
    pub deployment: &'a str,
    /// That link's epoch.
    pub epoch: &'a EpochId,
    /// The context it is offered for.
    pub context: &'a ContextId,
    /// Unix second, by the toolshed's clock.
    pub now: u64,
}

/// A principal's authentication that [`verify_proof`] found good. Only that function makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifiedProof {
    /// What the client signed.
    pub statement: Statement,
    /// SHA-256 of the exact signed statement: a repeat has the same.
    pub statement_digest: Digest,
    /// Unix second at which the router received it.
    pub received: u64,
}

/// Judges the three parts of a proof, each alone and all together.
///
/// # Errors
/// The first [`ProofError`].
pub fn verify_proof(
    proof: &Proof,
    context: &ProofContext<'_>,
) -> Result<VerifiedProof, ProofError> {
    let statement = Statement::verify(&proof.statement).map_err(ProofError::Statement)?;
    let issuance =
        Issuance::verify(&proof.issuance, context.router).map_err(ProofError::Issuance)?;
    let receipt = Receipt::verify(&proof.receipt, context.router).map_err(ProofError::Receipt)?;

    if issuance.deployment != context.deployment {
        return Err(ProofError::WrongDeployment);
    }
    if issuance.epoch != *context.epoch {
        return Err(ProofError::WrongEpoch);
    }
    if issuance.context != *context.context {
        return Err(ProofError::WrongContext);
    }
    let statement_digest = Digest::of(&proof.statement);
    if receipt.issuance_digest != Digest::of(&proof.issuance)
        || receipt.statement_digest != statement_digest
        || receipt.principal != statement.principal
    {
        return Err(ProofError::Mismatch);
    }
    let lifetime = issuance.expires.checked_sub(issuance.issued);
    if !lifetime.is_some_and(|lifetime| (1..=CHALLENGE_LIFETIME).contains(&lifetime)) {
        return Err(ProofError::ChallengeLifetime);
    }
    let received = receipt.received;
    if !(issuance.issued..issuance.expires).contains(&received) {
        return Err(ProofError::ReceivedOutsideChallenge);
    }
    // The router's clock and this one are different ones, so a receipt may seem to come from the future.
    if received > context.now.saturating_add(MAX_SKEW) {
        return Err(ProofError::ReceivedInFuture);
    }
    judge_statement(
        &statement,
        &StatementContext {
            router: context.router,
            deployment: context.deployment,
            challenge: &issuance.challenge,
            received,
        },
    )?;
    if statement.exp <= context.now {
        return Err(ProofError::Expired);
    }
    Ok(VerifiedProof {
        statement,
        statement_digest,
        received,
    })
}

/// What is wrong with a statement that is signed and well formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum StatementFault {
    /// It is meant for another router.
    #[error("statement is for another router")]
    WrongRouter,
    /// It is meant for another deployment.
    #[error("statement is for another deployment")]
    WrongDeployment,
    /// It answers another challenge.
    #[error("statement answers another challenge")]
    WrongChallenge,
    /// Its issue time is more than [`MAX_SKEW`] ahead.
    #[error("statement was issued in the future")]
    ClockSkew,
    /// Its lease ended before it was received.
    #[error("statement has expired")]
    Expired,
    /// Its lease is longer than [`MAX_LEASE`].
    #[error("lease is too long")]
    LeaseTooLong,
    /// It expires before it begins.
    #[error("statement expires before it was issued")]
    Backwards,
    /// Its principal is the router itself.
    #[error("principal is the router")]
    RouterPrincipal,
}

impl StatementFault {
    /// The reason to log, which also decides whether the client is refused or disconnected.
    pub const fn reason(self) -> Reason {
        match self {
            Self::WrongRouter | Self::WrongDeployment | Self::Backwards => Reason::ClientProtocol,
            Self::WrongChallenge => Reason::ChallengeExpired,
            Self::ClockSkew => Reason::ClockSkew,
            Self::Expired => Reason::StatementExpired,
            Self::LeaseTooLong => Reason::LeaseTooLong,
            Self::RouterPrincipal => Reason::PrincipalRevoked,
        }
    }
}

/// Why a toolshed does not believe a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum ProofError {
    /// The statement is not one, or its principal did not sign it.
    #[error("statement: {0}")]
    Statement(#[source] RecordError),
    /// The issuance is not one, or this router did not sign it.
    #[error("issuance: {0}")]
    Issuance(#[source] RecordError),
    /// The receipt is not one, or this router did not sign it.
    #[error("receipt: {0}")]
    Receipt(#[source] RecordError),
    /// The challenge was issued for another deployment.
    #[error("challenge was issued for another deployment")]
    WrongDeployment,
    /// The challenge was issued for another link.
    #[error("challenge was issued for another link")]
    WrongEpoch,
    /// The challenge was issued to another context.
    #[error("challenge was issued to another context")]
    WrongContext,
    /// The receipt is for another statement, issuance or principal.
    #[error("receipt does not fit statement and issuance")]
    Mismatch,
    /// The challenge lives longer than [`CHALLENGE_LIFETIME`], or not at all.
    #[error("challenge lifetime out of range")]
    ChallengeLifetime,
    /// The statement was not received while its challenge lived.
    #[error("statement was received outside its challenge's life")]
    ReceivedOutsideChallenge,
    /// The receipt is more than [`MAX_SKEW`] ahead of this host's clock.
    #[error("receipt is from the future")]
    ReceivedInFuture,
    /// The lease has ended since.
    #[error("statement has expired")]
    Expired,
    /// The statement was not good when the router received it.
    #[error(transparent)]
    Fault(#[from] StatementFault),
}

#[cfg(test)]
mod tests;
