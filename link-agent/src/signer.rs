//! The router's key, and the four records that it signs here.
//!
//! Nothing signs bytes that came from elsewhere: each function takes fields, builds the record and signs that.

use memory_config::Identity;
use memory_wire::Did;
use memory_wire::codec::EncodeError;
use memory_wire::ids::{ContextId, Digest, EpochId, Nonce, Ticket};
use memory_wire::records::{Binding, DataHello, Issuance, LinkChallenge, Proof, Receipt, attach};

use crate::principal::Accepted;

/// The holder of the router's seed.
#[derive(Debug)]
pub(crate) struct Signer {
    identity: Identity,
    router: Did,
    deployment: String,
}

impl Signer {
    pub(crate) fn new(identity: Identity, deployment: String) -> Self {
        Self {
            router: identity.did(),
            identity,
            deployment,
        }
    }

    pub(crate) const fn router(&self) -> &Did {
        &self.router
    }

    pub(crate) fn deployment(&self) -> &str {
        &self.deployment
    }

    /// Signs issuance (`mrc1`) and receipt (`mrr1`) of an accepted statement for one link, and joins them with it (`mrp1`).
    /// Times are those of the events, however much later this is.
    pub(crate) fn proof(
        &self,
        principal: &Did,
        accepted: &Accepted,
        context: &ContextId,
        epoch: &EpochId,
    ) -> Result<Vec<u8>, EncodeError> {
        let issuance = Issuance {
            deployment: self.deployment.clone(),
            router: self.router,
            epoch: *epoch,
            context: *context,
            challenge: accepted.issue.value,
            issued: accepted.issue.issued,
            expires: accepted.issue.expires,
        };
        let issuance = self.sign(issuance.signing_input()?);
        let receipt = Receipt {
            issuance_digest: Digest::of(&issuance),
            principal: *principal,
            statement_digest: accepted.digest,
            received: accepted.received,
        };
        let receipt = self.sign(receipt.signing_input()?);
        Proof {
            statement: accepted.statement.to_vec(),
            issuance,
            receipt,
        }
        .encode()
    }

    /// Signs the answer to a toolshed's greeting on a link (`rpc1`).
    pub(crate) fn link_challenge(
        &self,
        toolshed: &Did,
        epoch: &EpochId,
        nonce: &Nonce,
    ) -> Result<Vec<u8>, EncodeError> {
        let challenge = LinkChallenge {
            deployment: self.deployment.clone(),
            router: self.router,
            toolshed: *toolshed,
            epoch: *epoch,
            nonce: *nonce,
        };
        Ok(self.sign(challenge.signing_input()?))
    }

    /// Signs the binding of a data socket to a context (`rdb1`).
    pub(crate) fn binding(&self, bound: &Bound<'_>) -> Result<Vec<u8>, EncodeError> {
        let binding = Binding {
            router: self.router,
            deployment: self.deployment.clone(),
            toolshed: bound.hello.toolshed,
            epoch: *bound.epoch,
            context: *bound.context,
            ticket: bound.ticket,
            nonce: bound.hello.nonce,
            issued: bound.hello.issued,
            client_flags: bound.client_flags,
            negotiated_flags: bound.negotiated_flags,
        };
        Ok(self.sign(binding.signing_input()?))
    }

    fn sign(&self, input: Vec<u8>) -> Vec<u8> {
        let signature = self.identity.sign(&input);
        attach(input, signature)
    }
}

/// What a binding states, beside who signs it.
#[derive(Debug)]
pub(crate) struct Bound<'a> {
    /// The toolshed's verified greeting.
    pub(crate) hello: &'a DataHello,
    pub(crate) epoch: &'a EpochId,
    pub(crate) context: &'a ContextId,
    pub(crate) ticket: Ticket,
    pub(crate) client_flags: Digest,
    pub(crate) negotiated_flags: Digest,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::challenge::ChallengeBook;
    use crate::testing::{did, moment, sign_statement, signer};
    use memory_wire::admission::{ProofContext, verify_proof};
    use memory_wire::ids::Challenge;
    use std::time::Duration;

    #[test]
    fn a_proof_signed_late_states_the_original_times() {
        let (signer, now) = (signer(), moment());
        let (context, epoch) = (ContextId::new([1; 16]), EpochId::new([2; 16]));
        let issue =
            ChallengeBook::default().issue(Challenge::new([3; 32]), Box::new([(0, epoch)]), now);
        let statement = sign_statement(5, &signer, &issue.value, now.unix, 600);
        let accepted = Accepted {
            digest: Digest::of(&statement),
            statement: statement.into(),
            expires: now.unix + 600,
            ends: now.monotonic + Duration::from_secs(600),
            received: now.unix + 7,
            issue,
            granted: crate::revocation::Generation::default(),
        };
        let proof = signer.proof(&did(5), &accepted, &context, &epoch).unwrap();
        let verified = verify_proof(
            &Proof::decode(&proof).unwrap(),
            &ProofContext {
                router: signer.router(),
                deployment: signer.deployment(),
                epoch: &epoch,
                context: &context,
                now: now.unix + 300,
            },
        );
        let verified = verified.unwrap();
        assert_eq!(verified.statement.principal, did(5));
        assert_eq!(verified.received, now.unix + 7);
    }

    #[test]
    fn link_challenges_and_bindings_verify_as_the_router() {
        let signer = signer();
        let (epoch, nonce) = (EpochId::new([2; 16]), Nonce::new([4; 32]));
        let bytes = signer.link_challenge(&did(9), &epoch, &nonce).unwrap();
        let challenge = LinkChallenge::verify(&bytes, signer.router()).unwrap();
        assert_eq!(
            (challenge.toolshed, challenge.epoch, challenge.nonce),
            (did(9), epoch, nonce)
        );

        let hello = DataHello {
            toolshed: did(9),
            nonce,
            issued: 12,
        };
        let bound = Bound {
            hello: &hello,
            epoch: &epoch,
            context: &ContextId::new([1; 16]),
            ticket: Ticket::new([6; 32]),
            client_flags: Digest::of(b"client"),
            negotiated_flags: Digest::of(b"negotiated"),
        };
        let bytes = signer.binding(&bound).unwrap();
        let binding = Binding::verify(&bytes, signer.router()).unwrap();
        assert_eq!(binding.negotiated_flags, Digest::of(b"negotiated"));
        assert_eq!((binding.toolshed, binding.issued), (did(9), 12));
    }
}
