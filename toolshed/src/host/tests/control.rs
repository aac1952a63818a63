//! The six operations of a link, and what ends with it.
//!
//! Compiled under `#[cfg(test)]` alone.

use super::super::closer::{Closer, Closing};
use super::super::principals::Standing;
use super::support::*;
use memory_config::ToolshedLimits;
use memory_wire::flags::Capability;
use memory_wire::ids::{ContextId, EpochId, Ticket};
use memory_wire::records::{ControlRequest, Operation};
use serde_json::json;
use std::rc::Rc;

fn context(byte: u8) -> ContextId {
    ContextId::new([byte; 16])
}

#[test]
fn a_context_lives_from_its_ticket_to_its_close() {
    let mut rig = Rig::new();
    let ticket = rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    let proof = rig.proof(CONTEXT, ALICE, 1, 600);
    assert!(rig.prove_ticket(ticket, proof));
    assert!(rig.space(CONTEXT, SPACE + 1, OWNED));
    let proof = rig.proof(CONTEXT, BOB, 1, 600);
    assert!(rig.prove(CONTEXT, proof));
    assert!(rig.release(CONTEXT, ALICE));
    let known = rig.state.context(rig.link, &CONTEXT).unwrap();
    assert_eq!(known.spaces.len(), 2);
    assert_eq!(
        known.principals.standing(&did(ALICE), NOW),
        Standing::Released
    );
    assert_eq!(known.principals.standing(&did(BOB), NOW), Standing::Active);
    assert!(rig.close(CONTEXT));
    assert!(rig.close(CONTEXT), "closing again is no fault");
    assert!(rig.state.context(rig.link, &CONTEXT).is_none());
    assert!(rig.state.tickets.look_up(&ticket, NOW).is_none());
    let closed = "context-closed: router-closed".to_owned();
    assert_eq!(
        rig.verdicts()
            .iter()
            .filter(|verdict| **verdict == closed)
            .count(),
        1
    );
}

#[test]
fn unknown_contexts_and_tickets_are_refused_alone() {
    let mut rig = Rig::new();
    let ticket = rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    assert!(!rig.space(context(9), SPACE, OWNED));
    assert!(!rig.release(context(9), ALICE));
    assert!(
        rig.release(CONTEXT, ALICE),
        "a principal never seen is released already"
    );
    let proof = rig.proof(CONTEXT, ALICE, 1, 600);
    assert!(!rig.prove_ticket(Ticket::new([200; 32]), proof.clone()));
    for operation in [
        Operation::Ticket,
        Operation::Proof,
        Operation::Close,
        Operation::Release,
        Operation::Space,
        Operation::VerifiedProof,
    ] {
        let response = rig.control(operation, b"nonsense".to_vec());
        assert_eq!(
            (response.status, response.payload.as_slice()),
            (1, b"".as_slice())
        );
    }
    rig.now += 14;
    let late = rig.proof(CONTEXT, ALICE, 2, 600);
    assert!(rig.prove_ticket(ticket, late));
    rig.now += 1;
    let late = rig.proof(CONTEXT, ALICE, 3, 600);
    assert!(!rig.prove_ticket(ticket, late), "15 seconds are over");
    assert!(rig.state.context(rig.link, &CONTEXT).is_some());
    // A proof alone may make a context.
    let first = rig.proof(context(5), ALICE, 4, 600);
    assert!(rig.prove(context(5), first));
}

#[test]
fn a_spent_ticket_proves_nothing() {
    let mut rig = Rig::new();
    let ticket = rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    let hello = Hello::new(&rig, CONTEXT, ticket);
    rig.bind(&hello).unwrap();
    let proof = rig.proof(CONTEXT, ALICE, 1, 600);
    assert!(!rig.prove_ticket(ticket, proof.clone()));
    assert!(rig.prove(CONTEXT, proof));
}

#[test]
fn the_sequence_counts_by_one() {
    let mut rig = Rig::new();
    for (sequence, good) in [
        (0, false),
        (2, false),
        (1, true),
        (1, false),
        (3, false),
        (2, true),
    ] {
        let request = ControlRequest {
            sequence,
            operation: Operation::Close,
            payload: vec![0; 16],
        };
        let outcome = rig
            .state
            .control(rig.link, &request, Ticket::new([0; 32]), NOW);
        match good {
            true => assert!(outcome.unwrap().is_success()),
            false => assert_eq!(outcome.unwrap_err(), "control-sequence"),
        }
    }
}

#[test]
fn only_owned_spaces_at_their_epoch_are_admitted() {
    let mut rig = Rig::new();
    assert!(rig.ticket(CONTEXT, SPACE, OWNED + 1).is_none());
    assert!(rig.ticket(CONTEXT, 99, OWNED).is_none());
    assert!(
        rig.state.context(rig.link, &CONTEXT).is_none(),
        "a refusal leaves nothing behind"
    );
    rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    assert!(!rig.space(CONTEXT, SPACE + 1, OWNED - 1));
    let text = std::fs::read(rig.directory()).unwrap();
    std::fs::write(rig.directory(), b"{").unwrap();
    assert!(
        !rig.space(CONTEXT, SPACE + 1, OWNED),
        "no admission by an unreadable directory"
    );
    assert!(
        rig.state.context(rig.link, &CONTEXT).is_some(),
        "what is open goes on"
    );
    std::fs::write(rig.directory(), text).unwrap();
    assert!(rig.space(CONTEXT, SPACE + 1, OWNED));
}

#[test]
fn a_client_is_admitted_by_its_flags_and_keeps_them() {
    let mut rig = Rig::new();
    let good = rig.flags.clone();
    for (name, value) in [
        ("connectionAuth", false),
        ("routedAuthV1", false),
        ("modernCellRep", true),
    ] {
        rig.flags = good.clone();
        rig.flags.insert(name, Capability::Flag(value)).unwrap();
        assert!(rig.ticket(CONTEXT, SPACE, OWNED).is_none(), "{name}");
    }
    rig.flags = good.clone();
    rig.flags.remove("stableExpressionResultIds");
    rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    rig.flags = good;
    assert!(rig.ticket(CONTEXT, SPACE, OWNED).is_none());
    let proof = rig.proof(CONTEXT, ALICE, 1, 600);
    assert!(!rig.prove(CONTEXT, proof));
}

#[test]
fn a_bad_proof_closes_its_whole_context() {
    let good = ProofParts {
        context: CONTEXT,
        epoch: EpochId::new([3; 16]),
        principal: ALICE,
        challenge: 1,
        issued: NOW,
        received: NOW,
        exp: NOW + 600,
    };
    let mut flipped = proof(&good);
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    for (bad, reason) in [
        (
            proof(&ProofParts {
                context: context(9),
                ..good
            }),
            "proof-context",
        ),
        (
            proof(&ProofParts {
                epoch: EpochId::new([8; 16]),
                ..good
            }),
            "proof-epoch",
        ),
        (
            proof(&ProofParts {
                exp: NOW + 601,
                ..good
            }),
            "lease-too-long",
        ),
        (
            proof(&ProofParts {
                received: NOW + 60,
                ..good
            }),
            "proof-challenge-expired",
        ),
        (
            proof(&ProofParts {
                issued: NOW - 100,
                received: NOW - 50,
                exp: NOW,
                ..good
            }),
            "statement-expired",
        ),
        (
            proof(&ProofParts {
                principal: ROUTER,
                ..good
            }),
            "principal-revoked",
        ),
        (
            proof(&ProofParts {
                principal: ROUTER + 1,
                ..good
            }),
            "router-principal",
        ),
        (flipped, "proof-receipt"),
        (b"mrp1".to_vec(), "proof-malformed"),
    ] {
        let mut rig = Rig::new();
        rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
        rig.ticket(context(5), SPACE, OWNED).unwrap();
        rig.verdicts();
        assert!(!rig.prove(CONTEXT, bad));
        let verdicts = rig.verdicts();
        assert_eq!(verdicts[0], format!("proof-denied: {reason}"));
        assert_eq!(verdicts[1], format!("context-closed: {reason}"));
        assert!(rig.state.context(rig.link, &CONTEXT).is_none());
        assert!(
            rig.state.context(rig.link, &context(5)).is_some(),
            "others go on"
        );
    }
}

#[test]
fn a_statement_belongs_to_its_challenge() {
    let mut rig = Rig::new();
    rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    let first = rig.proof(CONTEXT, ALICE, 1, 300);
    for _ in 0..2 {
        assert!(
            rig.prove(CONTEXT, first.clone()),
            "an exact repeat is as good"
        );
    }
    assert_eq!(
        rig.state
            .context(rig.link, &CONTEXT)
            .unwrap()
            .principals
            .proofs(),
        1
    );
    // Re-signed evidence cannot carry a statement into another live context.
    rig.ticket(context(5), SPACE, OWNED).unwrap();
    assert!(!rig.prove(context(5), first));
    let other = rig.proof(CONTEXT, ALICE, 1, 301);
    assert!(!rig.prove(CONTEXT, other));
    assert!(
        rig.verdicts()
            .contains(&"proof-denied: challenge-reused".to_owned())
    );
    // The context took its statements with it: its identifier may be used again at once.
    rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    let again = rig.proof(CONTEXT, ALICE, 1, 302);
    assert!(rig.prove(CONTEXT, again));
}

#[test]
fn a_release_is_undone_by_a_fresh_signature_alone() {
    let mut rig = Rig::new();
    rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    let old = rig.proof(CONTEXT, ALICE, 2, 600);
    rig.now += 5;
    let accepted = rig.proof(CONTEXT, ALICE, 1, 300);
    assert!(rig.prove(CONTEXT, accepted.clone()));
    assert!(rig.release(CONTEXT, ALICE));
    let standing = |rig: &Rig| {
        let known = rig.state.context(rig.link, &CONTEXT).unwrap();
        known.principals.standing(&did(ALICE), rig.now)
    };
    for stale in [accepted, old] {
        assert!(rig.prove(CONTEXT, stale));
        assert_eq!(standing(&rig), Standing::Released);
    }
    rig.now += 5;
    let fresh = rig.proof(CONTEXT, ALICE, 3, 300);
    assert!(rig.prove(CONTEXT, fresh));
    assert_eq!(standing(&rig), Standing::Active);
}

#[test]
fn control_quotas_are_exact() {
    let limits = ToolshedLimits {
        contexts_per_link: Some(2),
        tickets: Some(3),
        spaces_per_context: Some(2),
        ..ToolshedLimits::default()
    };
    let mut rig = Rig::with(limits);
    rig.ticket(context(1), SPACE, OWNED).unwrap();
    rig.ticket(context(2), SPACE, OWNED).unwrap();
    assert!(rig.ticket(context(3), SPACE, OWNED).is_none());
    assert!(rig.space(context(1), SPACE + 1, OWNED));
    assert!(rig.space(context(1), SPACE + 1, OWNED), "known already");
    assert!(!rig.space(context(1), SPACE + 2, OWNED));
    rig.close(context(2));
    rig.ticket(context(3), SPACE, OWNED).unwrap();
    rig.ticket(context(3), SPACE, OWNED).unwrap();
    assert!(
        rig.ticket(context(3), SPACE, OWNED).is_none(),
        "three live tickets"
    );
    rig.now += 15;
    rig.ticket(context(3), SPACE, OWNED).unwrap();
    let reasons = rig.verdicts();
    for reason in ["context-limit", "space-limit", "ticket-limit"] {
        assert!(
            reasons.contains(&format!("control-denied: {reason}")),
            "{reason}"
        );
    }
}

#[test]
fn proof_quotas_close_the_context() {
    let limits = |active, history, proofs| ToolshedLimits {
        principals_per_context: Some(active),
        principal_history_per_context: Some(history),
        proofs_per_context: Some(proofs),
        ..ToolshedLimits::default()
    };
    for (limits, reason) in [
        (limits(2, 9, 9), "principal-limit"),
        (limits(9, 2, 9), "principal-history-limit"),
        (limits(9, 9, 2), "proof-limit"),
    ] {
        let mut rig = Rig::with(limits);
        rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
        for principal in [ALICE, BOB] {
            let good = rig.proof(CONTEXT, principal, 1, 600);
            assert!(rig.prove(CONTEXT, good));
            if reason == "principal-history-limit" {
                rig.release(CONTEXT, principal);
            }
        }
        rig.verdicts();
        let over = rig.proof(CONTEXT, BOB + 1, 1, 600);
        assert!(!rig.prove(CONTEXT, over));
        assert_eq!(
            rig.verdicts()[..2],
            [
                format!("proof-denied: {reason}"),
                format!("context-closed: {reason}")
            ]
        );
    }
    // What has expired makes room.
    let mut rig = Rig::with(limits(1, 1, 1));
    rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    let first = rig.proof(CONTEXT, ALICE, 1, 10);
    assert!(rig.prove(CONTEXT, first));
    rig.now += 10;
    let second = rig.proof(CONTEXT, BOB, 1, 10);
    assert!(rig.prove(CONTEXT, second));
}

#[test]
fn a_new_link_replaces_the_old_one_of_its_router() {
    let mut rig = Rig::new();
    let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let other = Rc::new(Closer::new());
    let epoch = EpochId::new([5; 16]);
    rig.state
        .admit_link(
            did(ROUTER + 1),
            EpochId::new([6; 16]),
            Rc::new(Closer::new()),
            NOW,
        )
        .unwrap();
    assert!(
        rig.is_bound(bound.backend),
        "another router's link changes nothing"
    );
    let used = rig
        .state
        .admit_link(did(ROUTER), rig.epoch, Rc::clone(&other), NOW);
    assert!(used.is_err());
    assert!(
        rig.is_bound(bound.backend),
        "a refused link replaces nothing"
    );
    rig.state
        .admit_link(did(ROUTER), epoch, other, NOW)
        .unwrap();
    assert!(!rig.is_bound(bound.backend));
    assert_eq!(bound.outlet.closer.closing(), Some(Closing::ENDED));
    assert_eq!(rig.closer.closing(), Some(Closing::ENDED));
    assert!(
        rig.verdicts()
            .contains(&"context-closed: link-replaced".to_owned())
    );
}

#[test]
fn a_revoked_router_never_links_again() {
    let mut rig = Rig::new();
    let bound = rig.bound(CONTEXT, SPACE, &[ALICE]);
    rig.state.revoke_router(&did(ROUTER), NOW).unwrap();
    assert!(!rig.is_bound(bound.backend) && rig.state.links.is_empty());
    let closer = Rc::new(Closer::new());
    let again = rig
        .state
        .admit_link(did(ROUTER), EpochId::new([5; 16]), Rc::clone(&closer), NOW);
    assert_eq!(again.unwrap_err().reason(), "router-revoked");
    rig.state
        .admit_link(did(ROUTER + 1), EpochId::new([5; 16]), closer, NOW)
        .unwrap();
}

#[test]
fn a_moved_space_closes_exactly_the_contexts_that_hold_it() {
    let mut rig = Rig::new();
    let moved = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let stays = rig.bound(context(5), SPACE + 1, &[BOB]);
    rig.move_spaces(&json!({did(SPACE).as_str(): {"toolshed": 1, "epoch": OWNED + 1}}));
    rig.state.look_at_directory();
    assert!(!rig.is_bound(moved.backend));
    assert!(rig.is_bound(stays.backend));
    assert_eq!(rig.verdicts(), ["context-closed: ownership-changed"]);

    // The store that left is not held open: it can be carried off, and what comes back is read anew.
    for space in [SPACE, SPACE + 1] {
        std::fs::remove_file(rig.store_of(space)).unwrap();
    }
    assert!(!rig.state.memory.has_space(&did(SPACE)).unwrap());
    assert!(rig.state.memory.has_space(&did(SPACE + 1)).unwrap());
}
