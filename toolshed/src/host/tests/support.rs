//! A host without sockets: a router's link, its signatures, and shorthand for what it sends.
//!
//! Compiled under `#[cfg(test)]` alone.

use super::super::audit::Audit;
use super::super::bind::Bound;
use super::super::capabilities;
use super::super::closer::Closer;
use super::super::ledger::Ledger;
use super::super::ownership::Ownership;
use super::super::state::{LinkId, Settings, State};
use crate::memory::{BackendId, Effects, Memory, MemoryOptions};
use memory_config::{Identity, ToolshedLimits};
use memory_wire::Did;
use memory_wire::base64url;
use memory_wire::envelope::{self, ENVELOPE_MAGIC};
use memory_wire::flags::{self, Capability, Flags};
use memory_wire::ids::{Challenge, ContextId, Digest, EpochId, Nonce, Ticket};
use memory_wire::json::JsonLimits;
use memory_wire::message;
use memory_wire::records::{
    Binding, CloseRequest, ContextProof, ControlRequest, ControlResponse, DataHello, Issuance,
    Operation, Proof, Receipt, ReleaseRequest, SpaceRequest, Statement, TicketProof, TicketRequest,
    attach,
};
use memory_wire::stream::{Header, Route};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::rc::Rc;
use tempfile::TempDir;

pub(super) const NOW: u64 = 1_800_000_000;
pub(super) const CONTEXT: ContextId = ContextId::new([4; 16]);
pub(super) const PEER: Ipv4Addr = Ipv4Addr::LOCALHOST;
pub(super) const DEPLOYMENT: &str = "stage";
/// Ownership epoch of every listed space.
pub(super) const OWNED: u64 = 7;

pub(super) fn identity(byte: u8) -> Identity {
    Identity::from_seed([byte; 32]).unwrap()
}

pub(super) fn did(byte: u8) -> Did {
    identity(byte).did()
}

pub(super) const TOOLSHED: u8 = 11;
pub(super) const ROUTER: u8 = 21;
pub(super) const SPACE: u8 = 31;
pub(super) const ALICE: u8 = 41;
pub(super) const BOB: u8 = 42;

/// A client's capabilities.
pub(super) fn client_flags() -> Flags {
    let mut client = Flags::new();
    for name in [
        flags::CONNECTION_AUTH,
        flags::ROUTED_AUTH_V1,
        "stableExpressionResultIds",
        "sessionClose",
        "sessionHoldings",
    ] {
        client.insert(name, Capability::Flag(true)).unwrap();
    }
    client
}

pub(super) struct Rig {
    pub(super) folder: TempDir,
    pub(super) state: State,
    pub(super) verdicts: Rc<RefCell<Vec<Value>>>,
    pub(super) link: LinkId,
    pub(super) closer: Rc<Closer>,
    pub(super) epoch: EpochId,
    pub(super) now: u64,
    sequence: u64,
    tickets: u8,
    ordinal: u64,
    /// Of the client of every context made here.
    pub(super) flags: Flags,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(ToolshedLimits::default())
    }

    pub(super) fn with(limits: ToolshedLimits) -> Self {
        let folder = TempDir::new().unwrap();
        let certificate = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("tls.pem"), certificate.cert.pem()).unwrap();
        write_directory(&folder, &json!({}));
        let options = MemoryOptions {
            effects: Effects::Batched,
            ..MemoryOptions::default()
        };
        let mut memory = Memory::open(&folder.path().join("store"), options).unwrap();
        for space in [SPACE, SPACE + 1, SPACE + 2, SPACE + 3] {
            let id = format!("of:{}", did(space));
            let acl = json!({did(ALICE).as_str(): "OWNER", did(BOB).as_str(): "WRITE"});
            let commit = json!({"op": "set", "id": id, "value": {"value": acl}});
            assert!(memory.seed(&did(space), &[commit]).unwrap());
        }
        let path = folder.path().join("directory.json");
        let ownership = Ownership::load(&path, Some(DEPLOYMENT), &did(TOOLSHED)).unwrap();
        let ledger = Ledger::open(&folder.path().join("epochs.jsonl"), NOW).unwrap();
        let settings = Settings {
            flags: capabilities::public(&memory.capabilities()).unwrap(),
            identity: identity(TOOLSHED),
            deployment: DEPLOYMENT.to_owned(),
            routers: BTreeMap::from([(did(ROUTER), vec![PEER]), (did(ROUTER + 1), vec![PEER])]),
            limits,
        };
        let verdicts = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&verdicts);
        let audit = Audit::new(did(TOOLSHED), move |line| {
            sink.borrow_mut().push(line.clone())
        });
        let mut state = State::new(settings, ledger, ownership, memory, audit);
        let closer = Rc::new(Closer::new());
        let epoch = EpochId::new([3; 16]);
        let link = state
            .admit_link(did(ROUTER), epoch, Rc::clone(&closer), NOW)
            .unwrap();
        Self {
            folder,
            state,
            verdicts,
            link,
            closer,
            epoch,
            now: NOW,
            sequence: 0,
            tickets: 0,
            ordinal: 0,
            flags: client_flags(),
        }
    }

    /// Replaces the directory: `spaces` are entries that differ from the usual ones.
    pub(super) fn move_spaces(&self, spaces: &Value) {
        write_directory(&self.folder, spaces);
    }

    /// The database of a space.
    pub(super) fn store_of(&self, space: u8) -> PathBuf {
        let space = did(space);
        let name = space.as_str().rsplit(':').next().unwrap_or_default();
        self.folder.path().join(format!("store/{name}.sqlite"))
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.folder.path().join("directory.json")
    }

    /// Verdicts since the last call, as `verdict: reason`.
    pub(super) fn verdicts(&self) -> Vec<String> {
        let lines = std::mem::take(&mut *self.verdicts.borrow_mut());
        let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
        lines
            .iter()
            .map(|line| text(line, "verdict") + ": " + &text(line, "reason"))
            .collect()
    }

    pub(super) fn control(&mut self, operation: Operation, payload: Vec<u8>) -> ControlResponse {
        self.sequence += 1;
        self.tickets += 1;
        let request = ControlRequest {
            sequence: self.sequence,
            operation,
            payload,
        };
        let fresh = Ticket::new([self.tickets; 32]);
        self.state
            .control(self.link, &request, fresh, self.now)
            .unwrap()
    }

    /// Operation 1.
    pub(super) fn ticket(&mut self, context: ContextId, space: u8, epoch: u64) -> Option<Ticket> {
        let request = TicketRequest {
            context,
            flags: self.flags.canonical(),
            space: did(space),
            epoch,
        };
        let response = self.control(Operation::Ticket, request.encode().unwrap());
        match response.is_success() {
            true => Some(Ticket::new(response.payload.try_into().unwrap())),
            false => {
                assert!(response.payload.is_empty());
                None
            }
        }
    }

    /// Operation 2.
    pub(super) fn prove_ticket(&mut self, ticket: Ticket, proof: Vec<u8>) -> bool {
        let request = TicketProof { ticket, proof };
        self.control(Operation::Proof, request.encode().unwrap())
            .is_success()
    }

    /// Operation 3.
    pub(super) fn close(&mut self, context: ContextId) -> bool {
        let request = CloseRequest { context };
        self.control(Operation::Close, request.encode().unwrap())
            .is_success()
    }

    /// Operation 4.
    pub(super) fn release(&mut self, context: ContextId, principal: u8) -> bool {
        let request = ReleaseRequest {
            context,
            principal: did(principal),
        };
        self.control(Operation::Release, request.encode().unwrap())
            .is_success()
    }

    /// Operation 5.
    pub(super) fn space(&mut self, context: ContextId, space: u8, epoch: u64) -> bool {
        let request = SpaceRequest {
            context,
            space: did(space),
            epoch,
        };
        self.control(Operation::Space, request.encode().unwrap())
            .is_success()
    }

    /// Operation 6.
    pub(super) fn prove(&mut self, context: ContextId, proof: Vec<u8>) -> bool {
        let request = ContextProof {
            context,
            flags: self.flags.canonical(),
            proof,
        };
        self.control(Operation::VerifiedProof, request.encode().unwrap())
            .is_success()
    }

    /// A good proof of a principal over challenge number `challenge`, whose lease ends `lease` seconds from now.
    pub(super) fn proof(
        &self,
        context: ContextId,
        principal: u8,
        challenge: u8,
        lease: u64,
    ) -> Vec<u8> {
        proof(&ProofParts {
            context,
            epoch: self.epoch,
            principal,
            challenge,
            issued: self.now,
            received: self.now,
            exp: self.now + lease,
        })
    }

    /// A data socket for a context with `space` and the principals.
    pub(super) fn bound(&mut self, context: ContextId, space: u8, principals: &[u8]) -> Bound {
        let ticket = self.ticket(context, space, OWNED).unwrap();
        for (index, principal) in principals.iter().enumerate() {
            let proof = self.proof(context, *principal, 100 + index as u8, 600);
            assert!(self.prove_ticket(ticket, proof));
        }
        let hello = Hello::new(self, context, ticket);
        let bound = self.bind(&hello).unwrap();
        self.ordinal = 0;
        self.verdicts();
        bound
    }

    pub(super) fn bind(&mut self, hello: &Hello) -> Result<Bound, &'static str> {
        self.state
            .bind(&hello.text(), &hello.greeting, PEER, self.now)
    }

    /// One request through its turn; what its socket was given meanwhile.
    pub(super) fn request(
        &mut self,
        bound: &Bound,
        message: &Value,
    ) -> Result<Vec<Value>, &'static str> {
        let body = [message::TEXT_PREFIX, message.to_string().as_bytes()].concat();
        self.request_bytes(bound, message, body, false)?;
        Ok(messages(bound))
    }

    pub(super) fn request_bytes(
        &mut self,
        bound: &Bound,
        message: &Value,
        body: Vec<u8>,
        binary: bool,
    ) -> Result<(), &'static str> {
        let text = [message::TEXT_PREFIX, message.to_string().as_bytes()].concat();
        let projected = message::project(&text, &JsonLimits::default()).unwrap();
        self.ordinal += 1;
        let header = Header {
            bytes: u32::try_from(body.len()).unwrap(),
            binary,
            request_ordinal: Some(self.ordinal),
            route: Route::of(&projected),
        };
        let outcome = self.state.request(bound.backend, &header, body, self.now);
        if let Err(reason) = outcome {
            self.state.end_socket(bound.backend, reason, None);
        }
        outcome
    }

    /// Opens a session; its identifier.
    pub(super) fn open(&mut self, bound: &Bound, space: u8, principal: u8) -> String {
        let answers = self.request(bound, &open(space, principal)).unwrap();
        answers[0]["ok"]["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("{answers:?}"))
            .to_owned()
    }

    pub(super) fn is_bound(&self, backend: BackendId) -> bool {
        self.state.backends.contains_key(&backend)
    }
}

/// What was queued for a socket.
pub(super) fn messages(bound: &Bound) -> Vec<Value> {
    let bodies = bound.outlet.drain();
    let value = |bytes: &[u8]| {
        let text = match bytes.starts_with(&ENVELOPE_MAGIC) {
            true => envelope::decode(bytes, 16 << 20).unwrap().text,
            false => bytes.to_vec(),
        };
        serde_json::from_slice(text.strip_prefix(message::TEXT_PREFIX).unwrap()).unwrap()
    };
    bodies.iter().map(|body| value(&body.bytes)).collect()
}

/// `session.open`.
pub(super) fn open(space: u8, principal: u8) -> Value {
    json!({"type": "session.open", "requestId": "open", "space": did(space).as_str(),
        "principal": did(principal).as_str(), "session": {}})
}

/// Any request of a session.
pub(super) fn in_session(kind: &str, space: u8, session: &str, more: Value) -> Value {
    let mut request =
        json!({"type": kind, "requestId": "r", "space": did(space).as_str(), "sessionId": session});
    let members: Map<String, Value> = more.as_object().cloned().unwrap_or_default();
    request.as_object_mut().unwrap().extend(members);
    request
}

/// `count` watches with identifiers `prefix0`, `prefix1`, ...
pub(super) fn watches(prefix: &str, count: usize) -> Value {
    let watch = |index| {
        json!({"id": format!("{prefix}{index}"), "kind": "graph",
            "query": {"roots": [{"id": "of:a", "selector": {"path": [], "schema": false}}]}})
    };
    (0..count).map(watch).collect::<Vec<Value>>().into()
}

/// What a proof is made of.
#[derive(Clone, Copy)]
pub(super) struct ProofParts {
    pub(super) context: ContextId,
    pub(super) epoch: EpochId,
    pub(super) principal: u8,
    pub(super) challenge: u8,
    pub(super) issued: u64,
    pub(super) received: u64,
    pub(super) exp: u64,
}

pub(super) fn proof(parts: &ProofParts) -> Vec<u8> {
    let sign = |who: &Identity, input: Vec<u8>| {
        let signature = who.sign(&input);
        attach(input, signature)
    };
    let (router, principal) = (identity(ROUTER), identity(parts.principal));
    let challenge = Challenge::new([parts.challenge; 32]);
    let statement = Statement {
        principal: principal.did(),
        router: router.did(),
        deployment: DEPLOYMENT.to_owned(),
        challenge,
        iat: parts.received.min(parts.exp.saturating_sub(1)),
        exp: parts.exp,
    };
    let statement = sign(&principal, statement.signing_input().unwrap());
    let issuance = Issuance {
        deployment: DEPLOYMENT.to_owned(),
        router: router.did(),
        epoch: parts.epoch,
        context: parts.context,
        challenge,
        issued: parts.issued,
        expires: parts.issued + 60,
    };
    let issuance = sign(&router, issuance.signing_input().unwrap());
    let receipt = Receipt {
        issuance_digest: Digest::of(&issuance),
        principal: principal.did(),
        statement_digest: Digest::of(&statement),
        received: parts.received,
    };
    let receipt = sign(&router, receipt.signing_input().unwrap());
    let proof = Proof {
        statement,
        issuance,
        receipt,
    };
    proof.encode().unwrap()
}

/// A `router.hello` that can be bent.
#[derive(Clone)]
pub(super) struct Hello {
    pub(super) greeting: DataHello,
    pub(super) binding: Binding,
    pub(super) signer: u8,
    /// Members of the JSON; the binding is added when it is sent.
    pub(super) members: Map<String, Value>,
}

impl Hello {
    pub(super) fn new(rig: &Rig, context: ContextId, ticket: Ticket) -> Self {
        let client = rig.flags.clone();
        let negotiated = Flags::negotiate(&client, &rig.state.settings.flags);
        let greeting = DataHello {
            toolshed: did(TOOLSHED),
            nonce: Nonce::new([9; 32]),
            issued: rig.now,
        };
        let binding = Binding {
            router: did(ROUTER),
            deployment: DEPLOYMENT.to_owned(),
            toolshed: did(TOOLSHED),
            epoch: rig.epoch,
            context,
            ticket,
            nonce: greeting.nonce,
            issued: greeting.issued,
            client_flags: client.digest(),
            negotiated_flags: negotiated.digest(),
        };
        let members = json!({
            "type": "router.hello", "version": 1,
            "memoryFlags": client.to_value(), "negotiatedMemoryFlags": negotiated.to_value(),
            "routerRequestCredit": true, "routerTicket": ticket.to_hex(),
        });
        Self {
            greeting,
            binding,
            signer: ROUTER,
            members: members.as_object().cloned().unwrap(),
        }
    }

    pub(super) fn text(&self) -> Vec<u8> {
        let input = self.binding.signing_input().unwrap();
        let signature = identity(self.signer).sign(&input);
        let binding = base64url::encode(&attach(input, signature));
        let mut members = self.members.clone();
        members
            .entry("routerBinding")
            .or_insert_with(|| binding.into());
        Value::Object(members).to_string().into_bytes()
    }
}

fn write_directory(folder: &TempDir, changed: &Value) {
    let mut spaces = Map::new();
    for space in [SPACE, SPACE + 1, SPACE + 2, SPACE + 3] {
        let here = json!({"toolshed": 0, "epoch": OWNED});
        spaces.insert(did(space).to_string(), here);
    }
    spaces.extend(changed.as_object().cloned().unwrap());
    let toolshed = |index: u8| {
        json!({"name": format!("t{index}"), "did": did(TOOLSHED + index).as_str(),
            "address": format!("127.0.0.1:{}", 9000 + u16::from(index)),
            "server_name": "localhost", "certificate": "tls.pem"})
    };
    let directory = json!({"version": 1, "deployment": DEPLOYMENT,
        "toolsheds": [toolshed(0), toolshed(1)], "spaces": spaces});
    let next = folder.path().join("directory.next");
    std::fs::write(&next, directory.to_string()).unwrap();
    std::fs::rename(next, folder.path().join("directory.json")).unwrap();
}
