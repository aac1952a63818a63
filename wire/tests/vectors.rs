//! Records and signatures that this project did not make.
#![allow(clippy::expect_used, reason = "a test that lacks its input has failed")]

use ed25519_dalek::{Signer, SigningKey};
use memory_wire::Did;
use memory_wire::admission::{ProofContext, verify_proof};
use memory_wire::base64url;
use memory_wire::ids::{Challenge, ContextId, Digest, EpochId};
use memory_wire::records::{Issuance, Proof, Receipt, Statement, attach};
use serde_json::Value;
use std::path::Path;

/// A vector file, or `None` where the vectors are not at hand. A continuous-integration run must have them.
fn vectors(name: &str) -> Option<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/vectors");
    match std::fs::read(folder.join(name)) {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).expect("vector file is JSON")),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{name}: {error}");
            println!("not run: {name} is not at hand");
            None
        }
    }
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2));
    let digits = (0..text.len()).step_by(2);
    digits
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex"))
        .collect()
}

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().expect("text member")
}

fn sign(seed: u8, input: Vec<u8>) -> Vec<u8> {
    let signature = SigningKey::from_bytes(&[seed; 32]).sign(&input).to_bytes();
    attach(input, signature)
}

#[test]
fn golden_records_verify_and_are_made_again_byte_for_byte() {
    let Some(golden) = vectors("records/golden.json") else {
        return;
    };
    let record = |member| unhex(text(&golden, member));
    let router = Did::parse(text(&golden, "router")).expect("router");
    let challenge = Challenge::from_hex(text(&golden, "challenge")).expect("challenge");
    let epoch = EpochId::from_hex(text(&golden, "epoch")).expect("epoch");
    let context = ContextId::from_hex(text(&golden, "context")).expect("context");
    let deployment = text(&golden, "deployment").to_owned();

    let statement = Statement {
        principal: Did::parse(text(&golden, "principal")).expect("principal"),
        router,
        deployment: deployment.clone(),
        challenge,
        iat: 1_700_000_000,
        exp: 1_700_000_600,
    };
    let statement_bytes = record("statement");
    assert_eq!(Statement::verify(&statement_bytes).as_ref(), Ok(&statement));
    let again = sign(1, statement.signing_input().expect("statement"));
    assert_eq!(again, statement_bytes);
    let encoded = base64url::encode(&statement_bytes);
    assert_eq!(
        Statement::from_base64url(&encoded).as_ref(),
        Ok(&statement_bytes)
    );

    let issuance = Issuance {
        deployment: deployment.clone(),
        router,
        epoch,
        context,
        challenge,
        issued: 1_700_000_000,
        expires: 1_700_000_060,
    };
    let issuance_bytes = record("issuance");
    assert_eq!(
        Issuance::verify(&issuance_bytes, &router).as_ref(),
        Ok(&issuance)
    );
    let again = sign(2, issuance.signing_input().expect("issuance"));
    assert_eq!(again, issuance_bytes);

    let receipt = Receipt {
        issuance_digest: Digest::of(&issuance_bytes),
        principal: statement.principal,
        statement_digest: Digest::of(&statement_bytes),
        received: 1_700_000_020,
    };
    let receipt_bytes = record("receipt");
    assert_eq!(
        Receipt::verify(&receipt_bytes, &router).as_ref(),
        Ok(&receipt)
    );
    let again = sign(2, receipt.signing_input().expect("receipt"));
    assert_eq!(again, receipt_bytes);

    let proof = Proof {
        statement: statement_bytes,
        issuance: issuance_bytes,
        receipt: receipt_bytes,
    };
    let encoded = proof.encode().expect("proof");
    assert_eq!(Proof::decode(&encoded).as_ref(), Ok(&proof));
    if let Some(expected) = golden.get("proof").and_then(Value::as_str) {
        assert_eq!(encoded, unhex(expected));
    }
    let verified = verify_proof(
        &proof,
        &ProofContext {
            router: &router,
            deployment: &deployment,
            epoch: &epoch,
            context: &context,
            now: 1_700_000_030,
        },
    );
    assert_eq!(verified.expect("proof").statement, statement);
}

#[test]
fn wycheproof_signatures_are_judged_as_it_says() {
    let Some(file) = vectors("ed25519/wycheproof_ed25519_test.json") else {
        return;
    };
    let mut seen = 0;
    for group in file["testGroups"].as_array().expect("groups") {
        let key = unhex(text(&group["publicKey"], "pk"));
        let key = <[u8; 32]>::try_from(key).expect("32 bytes");
        for case in group["tests"].as_array().expect("tests") {
            seen += 1;
            let message = unhex(text(case, "msg"));
            // A signature of another length cannot even be asked about.
            let accepted = <[u8; 64]>::try_from(unhex(text(case, "sig"))).is_ok_and(|signature| {
                Did::from_key(&key).is_ok_and(|did| did.verify(&message, &signature))
            });
            let expected = text(case, "result") == "valid";
            assert_eq!(accepted, expected, "case {}", case["tcId"]);
        }
    }
    assert_eq!(file["numberOfTests"], seen);
}

#[test]
fn of_the_speccheck_cases_only_case_three_is_accepted() {
    let Some(cases) = vectors("ed25519/speccheck_cases.json") else {
        return;
    };
    let cases = cases.as_array().expect("cases");
    assert_eq!(cases.len(), 12);
    for (index, case) in cases.iter().enumerate() {
        let message = unhex(text(case, "message"));
        let key = <[u8; 32]>::try_from(unhex(text(case, "pub_key"))).expect("32 bytes");
        let signature = <[u8; 64]>::try_from(unhex(text(case, "signature"))).expect("64 bytes");
        let accepted = Did::from_key(&key).is_ok_and(|did| did.verify(&message, &signature));
        assert_eq!(accepted, index == 3, "case {index}");
    }
}
