//! A router written by hand, just enough of one: signatures, a control link, a data socket.

use memory_config::{Identity, load_certificates};
use memory_toolshed::{Host, HostOptions};
use memory_transport::{Incoming, ReadLimits, Target, WebSocket, tls, upgrade};
use memory_wire::Did;
use memory_wire::base64url;
use memory_wire::credit::{RequestSender, decode_request_credit, is_request_credit};
use memory_wire::flags::{Capability, Flags};
use memory_wire::frame::Opcode;
use memory_wire::ids::{Challenge, ContextId, Digest, EpochId, Ticket};
use memory_wire::json::JsonLimits;
use memory_wire::message::{self, TEXT_PREFIX};
use memory_wire::records::{
    Binding, ControlRequest, ControlResponse, DataHello, Issuance, LINK_ACKNOWLEDGED,
    LinkChallenge, Operation, Proof, Receipt, Statement, TicketProof, TicketRequest, ToolshedHello,
    attach,
};
use memory_wire::stream::{
    BodyAssembler, COMPLETION, Direction, Header, MAX_CHUNK_LEN, Record, Route, chunk_prefix,
    decode_record,
};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

pub(crate) type Socket = WebSocket<TlsStream<TcpStream>>;

pub(crate) const DEPLOYMENT: &str = "stage";
pub(crate) const TOOLSHED: u8 = 11;
pub(crate) const ROUTER: u8 = 21;
pub(crate) const SPACE: u8 = 31;
pub(crate) const ALICE: u8 = 41;
pub(crate) const BOB: u8 = 42;
const EPOCH: EpochId = EpochId::new([3; 16]);

pub(crate) fn identity(byte: u8) -> Identity {
    Identity::from_seed([byte; 32]).unwrap()
}

pub(crate) fn did(byte: u8) -> Did {
    identity(byte).did()
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

pub(crate) fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Writes certificate, key and directory into a folder.
pub(crate) fn write_files(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("tls.pem"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    let directory = json!({"version": 1, "deployment": DEPLOYMENT,
        "toolsheds": [{"name": "one", "did": did(TOOLSHED).as_str(), "address": "127.0.0.1:9001",
            "server_name": "localhost", "certificate": "tls.pem"}],
        "spaces": {did(SPACE).as_str(): {"toolshed": 0, "epoch": 1}}});
    std::fs::write(folder.join("directory.json"), directory.to_string()).unwrap();
}

/// A toolshed on a thread of its own; it stops when this is dropped.
pub(crate) struct Toolshed {
    pub(crate) folder: TempDir,
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Toolshed {
    pub(crate) fn start() -> Self {
        let folder = TempDir::new().unwrap();
        write_files(folder.path());
        let policy = json!({"version": 1, "deployment": DEPLOYMENT, "hostname": "127.0.0.1", "port": 1,
            "certificate": "tls.pem", "key": "tls.key", "directory": "directory.json",
            "epochLedger": "epochs.jsonl", "routers": {did(ROUTER).as_str(): ["127.0.0.1"]}});
        let file = folder.path().join("policy.json");
        let mut policy = memory_config::ToolshedPolicy::parse(&policy.to_string(), &file).unwrap();
        policy.port = 0;
        let store = folder.path().join("store");
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let options = HostOptions {
                    identity: identity(TOOLSHED),
                    store,
                    modern_cell_rep: false,
                };
                let host = Host::bind(&policy, options).await.unwrap();
                let owners = json!({did(ALICE).as_str(): "OWNER", did(BOB).as_str(): "WRITE"});
                let id = format!("of:{}", did(SPACE));
                let acl = json!({"op": "set", "id": id, "value": {"value": owners}});
                assert!(host.seed(&did(SPACE), &[acl]).unwrap());
                tell.send(host.address().unwrap()).unwrap();
                host.run(async {
                    let _ = stopped.await;
                })
                .await;
            });
        });
        Self {
            folder,
            address: told.recv().unwrap(),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    pub(crate) async fn connect(&self, path: &str) -> Socket {
        let socket = TcpSocket::new_v4().unwrap();
        let stream = socket.connect(self.address).await.unwrap();
        let pins = load_certificates(&self.folder.path().join("tls.pem")).unwrap();
        let config = tls::pinned_client_config(pins).unwrap();
        let stream = tls::connect(stream, config, "localhost", deadline())
            .await
            .unwrap();
        let target = Target {
            host: "localhost",
            path,
            origin: None,
        };
        upgrade::connect(stream, target, ReadLimits::new(1 << 20), deadline())
            .await
            .unwrap()
    }
}

impl Drop for Toolshed {
    fn drop(&mut self) {
        drop(self.stop.take());
    }
}

fn sign(who: &Identity, input: Vec<u8>) -> Vec<u8> {
    let signature = who.sign(&input);
    attach(input, signature)
}

/// A control link.
pub(crate) struct Link {
    pub(crate) socket: Socket,
    pub(crate) flags: Flags,
    sequence: u64,
}

impl Link {
    pub(crate) async fn open(toolshed: &Toolshed) -> Self {
        let mut socket = toolshed.connect("/memory/router-link").await;
        assert_eq!(socket.reader.next().await.unwrap(), Incoming::Binary);
        let hello = socket.reader.buffer().payload();
        let hello = ToolshedHello::verify(hello, &did(TOOLSHED)).unwrap();
        let flags = Flags::from_canonical(&hello.flags).unwrap();
        let answer = LinkChallenge {
            deployment: DEPLOYMENT.to_owned(),
            router: did(ROUTER),
            toolshed: did(TOOLSHED),
            epoch: EPOCH,
            nonce: hello.nonce,
        };
        let answer = sign(&identity(ROUTER), answer.signing_input().unwrap());
        socket
            .writer
            .send_slice(Opcode::Binary, &answer)
            .await
            .unwrap();
        assert_eq!(socket.reader.next().await.unwrap(), Incoming::Binary);
        assert_eq!(socket.reader.buffer().payload(), LINK_ACKNOWLEDGED);
        Self {
            socket,
            flags,
            sequence: 0,
        }
    }

    pub(crate) async fn ask(&mut self, operation: Operation, payload: Vec<u8>) -> ControlResponse {
        self.sequence += 1;
        let request = ControlRequest {
            sequence: self.sequence,
            operation,
            payload,
        };
        let request = request.encode().unwrap();
        self.socket
            .writer
            .send_slice(Opcode::Binary, &request)
            .await
            .unwrap();
        assert_eq!(self.socket.reader.next().await.unwrap(), Incoming::Binary);
        let response = ControlResponse::decode(self.socket.reader.buffer().payload()).unwrap();
        assert_eq!(response.sequence, self.sequence);
        response
    }

    /// A context with one principal, and a data socket for it.
    pub(crate) async fn context(
        &mut self,
        toolshed: &Toolshed,
        context: u8,
        principal: u8,
    ) -> Data {
        let context = ContextId::new([context; 16]);
        let mut client = Flags::new();
        for name in [
            "connectionAuth",
            "routedAuthV1",
            "stableExpressionResultIds",
            "verdictCatchUpMarkers",
            "messageCompressionV1",
            "routedCompressionV1",
        ] {
            client.insert(name, Capability::Flag(true)).unwrap();
        }
        let request = TicketRequest {
            context,
            flags: client.canonical(),
            space: did(SPACE),
            epoch: 1,
        };
        let response = self.ask(Operation::Ticket, request.encode().unwrap()).await;
        assert!(response.is_success());
        let ticket = Ticket::new(response.payload.try_into().unwrap());
        let proof = proof(context, principal);
        let proof = TicketProof { ticket, proof }.encode().unwrap();
        assert!(self.ask(Operation::Proof, proof).await.is_success());

        let mut socket = toolshed.connect("/memory/router-data").await;
        assert_eq!(socket.reader.next().await.unwrap(), Incoming::Binary);
        let hello = socket.reader.buffer().payload();
        let hello = DataHello::verify(hello, &did(TOOLSHED)).unwrap();
        let offer = Flags::public_offer(&[&self.flags]);
        let negotiated = Flags::negotiate(&client, &offer);
        let binding = Binding {
            router: did(ROUTER),
            deployment: DEPLOYMENT.to_owned(),
            toolshed: did(TOOLSHED),
            epoch: EPOCH,
            context,
            ticket,
            nonce: hello.nonce,
            issued: hello.issued,
            client_flags: client.digest(),
            negotiated_flags: negotiated.digest(),
        };
        let binding = sign(&identity(ROUTER), binding.signing_input().unwrap());
        let hello = json!({"type": "router.hello", "version": 1, "memoryFlags": client.to_value(),
            "negotiatedMemoryFlags": negotiated.to_value(), "routerRequestCredit": true,
            "routerTicket": ticket.to_hex(), "routerBinding": base64url::encode(&binding)});
        socket
            .writer
            .send_slice(Opcode::Text, hello.to_string().as_bytes())
            .await
            .unwrap();
        assert_eq!(socket.reader.next().await.unwrap(), Incoming::Text);
        let ready: Value = serde_json::from_slice(socket.reader.buffer().payload()).unwrap();
        assert_eq!(ready["type"], "router.ready");
        assert_eq!(ready["negotiatedMemoryFlags"], negotiated.to_value());
        Data {
            socket,
            credit: RequestSender::new(),
        }
    }
}

fn proof(context: ContextId, principal: u8) -> Vec<u8> {
    let (router, client) = (identity(ROUTER), identity(principal));
    let challenge = Challenge::new([principal; 32]);
    let now = now();
    let statement = Statement {
        principal: client.did(),
        router: router.did(),
        deployment: DEPLOYMENT.to_owned(),
        challenge,
        iat: now,
        exp: now + 600,
    };
    let statement = sign(&client, statement.signing_input().unwrap());
    let issuance = Issuance {
        deployment: DEPLOYMENT.to_owned(),
        router: router.did(),
        epoch: EPOCH,
        context,
        challenge,
        issued: now,
        expires: now + 60,
    };
    let issuance = sign(&router, issuance.signing_input().unwrap());
    let receipt = Receipt {
        issuance_digest: Digest::of(&issuance),
        principal: client.did(),
        statement_digest: Digest::of(&statement),
        received: now,
    };
    let receipt = sign(&router, receipt.signing_input().unwrap());
    let proof = Proof {
        statement,
        issuance,
        receipt,
    };
    proof.encode().unwrap()
}

/// A data socket.
pub(crate) struct Data {
    pub(crate) socket: Socket,
    pub(crate) credit: RequestSender,
}

impl Data {
    /// Sends a request in records, as text; waits for credit as long as it must.
    pub(crate) async fn send(&mut self, request: &Value) {
        let body = [TEXT_PREFIX, request.to_string().as_bytes()].concat();
        let bytes = u32::try_from(body.len()).unwrap();
        let ordinal = loop {
            match self.credit.try_reserve(bytes) {
                Some(ordinal) => break ordinal,
                None => {
                    assert_eq!(self.socket.reader.next().await.unwrap(), Incoming::Binary);
                    let record = self.socket.reader.buffer().payload();
                    self.credit
                        .grant(decode_request_credit(record).unwrap())
                        .unwrap();
                }
            }
        };
        let limits = JsonLimits {
            max_slots: None,
            ..JsonLimits::default()
        };
        let projected = message::project(&body, &limits).unwrap();
        let mut header = Vec::new();
        Header {
            bytes,
            binary: false,
            request_ordinal: Some(ordinal),
            route: Route::of(&projected),
        }
        .encode_record(&mut header)
        .unwrap();
        self.socket
            .writer
            .send_slice(Opcode::Binary, &header)
            .await
            .unwrap();
        for chunk in body.chunks(MAX_CHUNK_LEN) {
            let record = [&chunk_prefix()[..], chunk].concat();
            self.socket
                .writer
                .send_slice(Opcode::Binary, &record)
                .await
                .unwrap();
        }
        self.socket
            .writer
            .send_slice(Opcode::Binary, &COMPLETION)
            .await
            .unwrap();
    }

    /// The next message, and whether it came compressed. Credit on the way is taken up.
    pub(crate) async fn receive(&mut self) -> (Value, bool) {
        let mut body = BodyAssembler::new();
        let mut binary = false;
        loop {
            assert_eq!(self.socket.reader.next().await.unwrap(), Incoming::Binary);
            let record = self.socket.reader.buffer().payload();
            if is_request_credit(record) {
                self.credit
                    .grant(decode_request_credit(record).unwrap())
                    .unwrap();
                continue;
            }
            match decode_record(record).unwrap() {
                Record::Header(json) => {
                    let header = Header::parse(json, Direction::PrivateResponse).unwrap();
                    binary = header.binary;
                    body.begin(header.bytes).unwrap();
                }
                Record::Chunk(bytes) => {
                    body.chunk(bytes).unwrap();
                }
                Record::Completion => break,
            }
        }
        let mut bytes = body.complete().unwrap();
        if binary {
            bytes = memory_wire::envelope::decode(&bytes, 16 << 20)
                .unwrap()
                .text;
        }
        (
            serde_json::from_slice(bytes.strip_prefix(TEXT_PREFIX).unwrap()).unwrap(),
            binary,
        )
    }

    pub(crate) async fn ask(&mut self, request: &Value) -> Value {
        self.send(request).await;
        let (answer, _) = self.receive().await;
        assert_eq!(answer["requestId"], request["requestId"]);
        answer
    }

    pub(crate) async fn open(&mut self, principal: u8) -> String {
        let request = json!({"type": "session.open", "requestId": "open", "space": did(SPACE).as_str(),
            "principal": did(principal).as_str(), "session": {}});
        let answer = self.ask(&request).await;
        answer["ok"]["sessionId"]
            .as_str()
            .unwrap_or_else(|| panic!("{answer}"))
            .to_owned()
    }

    /// Reads until the toolshed says good-bye; its code.
    pub(crate) async fn closed(&mut self) -> Option<u16> {
        loop {
            match self.socket.reader.next().await {
                Ok(Incoming::Close { code, .. }) => return code,
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Any request of a session.
pub(crate) fn in_session(kind: &str, session: &str, more: Value) -> Value {
    let mut request = json!({"type": kind, "requestId": kind, "space": did(SPACE).as_str(), "sessionId": session});
    let members: Map<String, Value> = more.as_object().cloned().unwrap();
    request.as_object_mut().unwrap().extend(members);
    request
}
