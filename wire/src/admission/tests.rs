//! Compiled under `#[cfg(test)]` alone.
use super::*;
use crate::reason::Refusal;
use crate::records::attach;
use ed25519_dalek::{Signer, SigningKey};
use proptest::prelude::*;

const NOW: u64 = 1_700_000_020;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn did(seed: u8) -> Did {
    Did::from_key(key(seed).verifying_key().as_bytes()).expect("key")
}

fn seal(seed: u8, input: Vec<u8>) -> Vec<u8> {
    let signature = key(seed).sign(&input).to_bytes();
    attach(input, signature)
}

fn statement() -> Statement {
    Statement {
        principal: did(1),
        router: did(2),
        deployment: "stage".to_owned(),
        challenge: Challenge::new([5; 32]),
        iat: NOW,
        exp: NOW + 600,
    }
}

fn judge(change: impl FnOnce(&mut Statement)) -> Result<(), StatementFault> {
    let mut statement = statement();
    change(&mut statement);
    judge_statement(
        &statement,
        &StatementContext {
            router: &did(2),
            deployment: "stage",
            challenge: &Challenge::new([5; 32]),
            received: NOW,
        },
    )
}

#[test]
fn judges_each_rule_at_its_bound() {
    use StatementFault as Fault;
    assert_eq!(judge(|_| ()), Ok(()));
    assert_eq!(judge(|s| s.router = did(3)), Err(Fault::WrongRouter));
    assert_eq!(
        judge(|s| s.deployment.push('x')),
        Err(Fault::WrongDeployment)
    );
    assert_eq!(
        judge(|s| s.challenge = Challenge::new([6; 32])),
        Err(Fault::WrongChallenge)
    );
    assert_eq!(judge(|s| s.principal = did(2)), Err(Fault::RouterPrincipal));
    assert_eq!(judge(|s| s.exp = s.iat), Err(Fault::Backwards));
    assert_eq!(judge(|s| s.exp = s.iat + 1), Ok(()));
    assert_eq!(judge(|s| s.exp += 1), Err(Fault::LeaseTooLong));
    // Ahead by the allowed skew, the lease still ends 600 s after the receipt.
    assert_eq!(judge(|s| s.iat += 120), Ok(()));
    let ahead = |skew| move |s: &mut Statement| (s.iat, s.exp) = (NOW + skew, NOW + skew + 600);
    assert_eq!(judge(ahead(120)), Err(Fault::LeaseTooLong));
    assert_eq!(judge(ahead(121)), Err(Fault::ClockSkew));
    let behind = |age| move |s: &mut Statement| (s.iat, s.exp) = (NOW - age, NOW - age + 600);
    assert_eq!(judge(behind(599)), Ok(()));
    assert_eq!(judge(behind(600)), Err(Fault::Expired));
}

#[test]
fn answers_what_honest_timing_can_cause() {
    use StatementFault as Fault;
    for (fault, refusal) in [
        (Fault::WrongRouter, Refusal::Close),
        (Fault::WrongDeployment, Refusal::Close),
        (Fault::Backwards, Refusal::Close),
        (Fault::WrongChallenge, Refusal::ForNow),
        (Fault::ClockSkew, Refusal::ForNow),
        (Fault::Expired, Refusal::ForNow),
        (Fault::LeaseTooLong, Refusal::ForGood),
        (Fault::RouterPrincipal, Refusal::ForGood),
    ] {
        assert_eq!(fault.reason().refusal(), refusal, "{fault}");
    }
}

/// The parts of a proof, open to change before they are signed.
struct Parts {
    statement: Statement,
    issuance: Issuance,
    received: u64,
    now: u64,
}

impl Parts {
    fn new() -> Self {
        Self {
            statement: statement(),
            issuance: Issuance {
                deployment: "stage".to_owned(),
                router: did(2),
                epoch: EpochId::new([3; 16]),
                context: ContextId::new([4; 16]),
                challenge: Challenge::new([5; 32]),
                issued: NOW - 20,
                expires: NOW + 40,
            },
            received: NOW,
            now: NOW + 1,
        }
    }

    fn proof(&self) -> Proof {
        let statement = seal(1, self.statement.signing_input().expect("statement"));
        let issuance = seal(2, self.issuance.signing_input().expect("issuance"));
        let receipt = Receipt {
            issuance_digest: Digest::of(&issuance),
            principal: self.statement.principal,
            statement_digest: Digest::of(&statement),
            received: self.received,
        };
        let receipt = seal(2, receipt.signing_input().expect("receipt"));
        Proof {
            statement,
            issuance,
            receipt,
        }
    }

    fn verify(&self, proof: &Proof) -> Result<VerifiedProof, ProofError> {
        verify_proof(
            proof,
            &ProofContext {
                router: &did(2),
                deployment: "stage",
                epoch: &EpochId::new([3; 16]),
                context: &ContextId::new([4; 16]),
                now: self.now,
            },
        )
    }
}

fn prove(change: impl FnOnce(&mut Parts)) -> Result<(), ProofError> {
    let mut parts = Parts::new();
    change(&mut parts);
    parts.verify(&parts.proof()).map(drop)
}

#[test]
fn believes_a_whole_proof() {
    let parts = Parts::new();
    let proof = parts.proof();
    let verified = parts.verify(&proof).expect("proof");
    assert_eq!(verified.statement, parts.statement);
    assert_eq!(verified.statement_digest, Digest::of(&proof.statement));
    assert_eq!(verified.received, NOW);
}

#[test]
fn refuses_each_part_that_does_not_fit() {
    use ProofError as Error;
    assert_eq!(
        prove(|p| p.issuance.deployment.push('x')),
        Err(Error::WrongDeployment)
    );
    assert_eq!(
        prove(|p| p.issuance.epoch = EpochId::new([9; 16])),
        Err(Error::WrongEpoch)
    );
    assert_eq!(
        prove(|p| p.issuance.context = ContextId::new([9; 16])),
        Err(Error::WrongContext)
    );
    assert_eq!(
        prove(|p| p.issuance.challenge = Challenge::new([9; 32])),
        Err(Error::Fault(StatementFault::WrongChallenge))
    );
    assert_eq!(
        prove(|p| p.statement.router = did(3)),
        Err(Error::Fault(StatementFault::WrongRouter))
    );
    assert_eq!(
        prove(|p| p.statement.deployment.push('x')),
        Err(Error::Fault(StatementFault::WrongDeployment))
    );
    assert_eq!(
        prove(|p| p.issuance.router = did(3)),
        Err(Error::Issuance(RecordError::Signer))
    );
    // Signed by the key of seed 1, but naming another principal.
    assert_eq!(
        prove(|p| p.statement.principal = did(3)),
        Err(Error::Statement(RecordError::Signature))
    );
}

#[test]
fn judges_every_time_at_its_bound() {
    use ProofError as Error;
    for (issued, expires, good) in [
        (NOW - 20, NOW + 40, true),
        (NOW - 20, NOW + 41, false),
        (NOW, NOW + 1, true),
        (NOW, NOW, false),
        (NOW + 1, NOW, false),
    ] {
        let result = prove(|p| (p.issuance.issued, p.issuance.expires) = (issued, expires));
        let expected = if good {
            Ok(())
        } else {
            Err(Error::ChallengeLifetime)
        };
        assert_eq!(result, expected);
    }
    let outside = Err(Error::ReceivedOutsideChallenge);
    assert_eq!(
        prove(|p| p.received = NOW - 20),
        Err(Error::Fault(StatementFault::LeaseTooLong))
    );
    assert_eq!(prove(|p| p.received = NOW - 21), outside);
    assert_eq!(prove(|p| p.received = NOW + 39), Ok(()));
    assert_eq!(prove(|p| p.received = NOW + 40), outside);
    assert_eq!(prove(|p| p.now = NOW - 120), Ok(()));
    assert_eq!(prove(|p| p.now = NOW - 121), Err(Error::ReceivedInFuture));
    assert_eq!(prove(|p| p.now = NOW + 599), Ok(()));
    assert_eq!(prove(|p| p.now = NOW + 600), Err(Error::Expired));
    assert_eq!(
        prove(|p| p.statement.exp = NOW + 601),
        Err(Error::Fault(StatementFault::LeaseTooLong))
    );
}

#[test]
fn refuses_parts_of_different_proofs() {
    let parts = Parts::new();
    let proof = parts.proof();
    let mut other = Parts::new();
    other.statement.exp -= 1;
    other.issuance.expires -= 1;
    let other = other.proof();
    let mixed = [
        Proof {
            statement: other.statement.clone(),
            ..proof.clone()
        },
        Proof {
            issuance: other.issuance.clone(),
            ..proof.clone()
        },
        Proof {
            receipt: other.receipt.clone(),
            ..proof.clone()
        },
    ];
    for mixed in mixed {
        assert_eq!(parts.verify(&mixed), Err(ProofError::Mismatch));
    }
    let swapped = Proof {
        issuance: proof.receipt.clone(),
        ..proof
    };
    assert!(matches!(
        parts.verify(&swapped),
        Err(ProofError::Issuance(_))
    ));
}

#[test]
fn refuses_a_receipt_for_another_principal() {
    let parts = Parts::new();
    let proof = parts.proof();
    let receipt = Receipt {
        issuance_digest: Digest::of(&proof.issuance),
        principal: did(3),
        statement_digest: Digest::of(&proof.statement),
        received: NOW,
    };
    let receipt = seal(2, receipt.signing_input().expect("receipt"));
    let proof = Proof { receipt, ..proof };
    assert_eq!(parts.verify(&proof), Err(ProofError::Mismatch));
}

proptest! {
    #[test]
    fn an_admitted_statement_keeps_every_time_rule(
        iat in NOW - 700..NOW + 200,
        lease in 0..700_u64,
    ) {
        let exp = iat + lease;
        let good = judge(|s| (s.iat, s.exp) = (iat, exp)).is_ok();
        let rules = iat < exp
            && exp > NOW
            && iat <= NOW + MAX_SKEW
            && exp <= iat + MAX_LEASE
            && exp <= NOW + MAX_LEASE;
        prop_assert_eq!(good, rules);
    }

    #[test]
    fn no_times_wrap(iat: u64, exp: u64) {
        let _ = judge(|s| (s.iat, s.exp) = (iat, exp));
    }
}
