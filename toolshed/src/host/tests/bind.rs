//! `router.hello`: every field bent alone is refused, and nothing is spent or replaced.
//!
//! Compiled under `#[cfg(test)]` alone.

use super::support::*;
use memory_wire::flags::{Capability, Flags};
use memory_wire::ids::{ContextId, Digest, EpochId, Nonce, Ticket};
use serde_json::{Value, json};

type Bend = Box<dyn Fn(&mut Hello)>;

fn bend(change: impl Fn(&mut Hello) + 'static) -> Bend {
    Box::new(change)
}

/// Changes a descriptor and keeps its signed hash right.
fn with_flags(member: &'static str, change: impl Fn(&mut Flags) + 'static) -> Bend {
    bend(move |hello| {
        let mut flags = Flags::from_value(&hello.members[member]).unwrap();
        change(&mut flags);
        match member {
            "memoryFlags" => hello.binding.client_flags = flags.digest(),
            _ => hello.binding.negotiated_flags = flags.digest(),
        }
        hello.members.insert(member.to_owned(), flags.to_value());
    })
}

fn with_member(member: &'static str, value: Value) -> Bend {
    bend(move |hello| {
        hello.members.insert(member.to_owned(), value.clone());
    })
}

#[test]
fn answers_with_an_exact_echo() {
    let mut rig = Rig::new();
    let ticket = rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    let hello = Hello::new(&rig, CONTEXT, ticket);
    let bound = rig.bind(&hello).unwrap();
    let ready: Value = serde_json::from_str(&bound.ready).unwrap();
    assert_eq!(ready["type"], "router.ready");
    assert_eq!(
        ready["negotiatedMemoryFlags"],
        hello.members["negotiatedMemoryFlags"]
    );
    assert_eq!(ready["routerEncodingNegotiation"], true);
    assert_eq!(ready["routerRequestCredit"], true);
    let endpoint = Flags::from_value(&ready["memoryFlags"]).unwrap();
    assert!(endpoint.is_true("connectionAuth") && !endpoint.has_private_names());
}

#[test]
fn refuses_each_bent_field_and_spends_nothing() {
    let claim = |name: &'static str| {
        move |flags: &mut Flags| flags.insert(name, Capability::Flag(true)).unwrap()
    };
    let cases: Vec<(&str, Bend)> = vec![
        ("binding-signature", bend(|hello| hello.signer = ALICE)),
        (
            "binding-signature",
            bend(|hello| hello.binding.router = did(ROUTER + 1)),
        ),
        (
            "binding-deployment",
            bend(|hello| hello.binding.deployment.push('x')),
        ),
        (
            "binding-toolshed",
            bend(|hello| hello.binding.toolshed = did(12)),
        ),
        (
            "binding-epoch",
            bend(|hello| hello.binding.epoch = EpochId::new([1; 16])),
        ),
        (
            "binding-context",
            bend(|hello| hello.binding.context = ContextId::new([1; 16])),
        ),
        (
            "binding-ticket",
            bend(|hello| hello.binding.ticket = Ticket::new([77; 32])),
        ),
        (
            "binding-nonce",
            bend(|hello| hello.binding.nonce = Nonce::new([1; 32])),
        ),
        ("binding-issued", bend(|hello| hello.binding.issued += 1)),
        (
            "binding-client-flags",
            bend(|hello| hello.binding.client_flags = Digest::of(b"")),
        ),
        (
            "binding-negotiated-flags",
            bend(|hello| hello.binding.negotiated_flags = Digest::of(b"")),
        ),
        (
            "ticket-unknown",
            with_member("routerTicket", json!("ab".repeat(32))),
        ),
        (
            "hello-ticket",
            with_member("routerTicket", json!("AB".repeat(32))),
        ),
        ("hello-version", with_member("version", json!(2))),
        ("hello-version", with_member("type", json!("hello"))),
        (
            "hello-request-credit",
            with_member("routerRequestCredit", json!(false)),
        ),
        ("hello-member", with_member("forwarded", json!("x"))),
        ("hello-binding", with_member("routerBinding", json!("="))),
        ("hello-flags", with_member("memoryFlags", json!([]))),
        ("flags-changed", with_flags("memoryFlags", claim("other"))),
        (
            "negotiated-private",
            with_flags("negotiatedMemoryFlags", claim("serverExecution")),
        ),
        (
            "negotiated-private",
            with_flags("negotiatedMemoryFlags", claim("routerRequestCredit")),
        ),
        (
            "cell-mode",
            with_flags("negotiatedMemoryFlags", claim("modernCellRep")),
        ),
        (
            "negotiated-client",
            with_flags("negotiatedMemoryFlags", claim("messageCompressionV1")),
        ),
        (
            "negotiated-endpoint",
            with_flags("negotiatedMemoryFlags", claim("onlyTheClient")),
        ),
    ];
    let mut rig = Rig::new();
    rig.flags
        .insert("onlyTheClient", Capability::Flag(true))
        .unwrap();
    let before = rig.bound(CONTEXT, SPACE, &[ALICE]);
    let session = rig.open(&before, SPACE, ALICE);
    let ticket = rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
    let good = Hello::new(&rig, CONTEXT, ticket);
    for (reason, change) in cases {
        let mut bent = good.clone();
        change(&mut bent);
        assert_eq!(rig.bind(&bent).unwrap_err(), reason);
        assert!(rig.is_bound(before.backend), "{reason}");
    }
    for member in good.members.keys() {
        let mut bent = good.clone();
        bent.members.remove(member);
        assert!(rig.bind(&bent).is_err(), "{member}");
    }
    let elsewhere = rig.state.bind(
        &good.text(),
        &good.greeting,
        "127.0.0.2".parse().unwrap(),
        NOW,
    );
    assert_eq!(elsewhere.unwrap_err(), "peer");
    // A second bind of the context replaces the first with all its sessions.
    let after = rig.bind(&good).unwrap();
    assert!(!rig.is_bound(before.backend) && rig.is_bound(after.backend));
    assert_eq!(rig.bind(&good).unwrap_err(), "ticket-unknown");
    let request = in_session("session.ack", SPACE, &session, json!({"seenSeq": 1}));
    let answers = rig.request(&after, &request).unwrap();
    assert_eq!(answers[0]["error"]["name"], "AuthorizationError");
    assert_eq!(rig.state.usage.total().sessions, 0);
}

#[test]
fn a_ticket_lives_fifteen_seconds() {
    let mut rig = Rig::new();
    for (age, good) in [(14, true), (15, false)] {
        let ticket = rig.ticket(CONTEXT, SPACE, OWNED).unwrap();
        rig.now += age;
        let hello = Hello::new(&rig, CONTEXT, ticket);
        assert_eq!(rig.bind(&hello).is_ok(), good);
    }
}
