//! The rogue's end of a data socket.

use std::sync::Arc;

use memory_transport::Incoming;
use memory_wire::credit::{REQUEST_WINDOW, encode_request_credit};
use memory_wire::flags::{ROUTER_ENCODING_NEGOTIATION, ROUTER_REQUEST_CREDIT};
use memory_wire::frame::Opcode;
use memory_wire::ids::Nonce;
use memory_wire::records::{DataHello, attach};
use memory_wire::stream::{
    BodyAssembler, COMPLETION, Direction, Header, MAX_CHUNK_LEN, Record, Route, chunk_prefix,
    decode_record,
};
use serde_json::{Map, Value, json};

use super::{Conduct, Shared, Socket};
use crate::raw::text;
use crate::stage::{UNKNOWN_SPACE, identity};

pub(super) async fn serve(shared: Arc<Shared>, socket: Socket) -> Option<()> {
    shared.seen().sockets += 1;
    let mut data = Data { shared, socket };
    data.greet().await?;
    data.bind().await?;
    data.shared.seen().bound += 1;
    data.grant().await?;
    loop {
        let (bytes, request) = data.request().await?;
        data.answer(&request).await?;
        data.binary(&encode_request_credit(bytes)).await?;
    }
}

struct Data {
    shared: Arc<Shared>,
    socket: Socket,
}

impl Data {
    fn conduct(&self) -> Conduct {
        self.shared.orders().data
    }

    async fn greet(&mut self) -> Option<()> {
        let conduct = self.conduct();
        match conduct {
            Conduct::NoGreeting => return None,
            Conduct::TextGreeting => return self.text("rdh1").await,
            _ => {}
        }
        let input = DataHello {
            toolshed: self.shared.identity.did(),
            nonce: Nonce::new(self.shared.draw_bytes()),
            issued: self.shared.now(),
        }
        .signing_input()
        .ok()?;
        let signature = if conduct == Conduct::ForgedGreeting {
            identity(UNKNOWN_SPACE).ok()?.sign(&input)
        } else {
            self.shared.identity.sign(&input)
        };
        self.binary(&attach(input, signature)).await
    }

    /// Takes `router.hello` and answers `router.ready`.
    async fn bind(&mut self) -> Option<()> {
        let hello = loop {
            match self.socket.reader.next().await.ok()? {
                Incoming::Text => break self.socket.reader.buffer().payload(),
                Incoming::Ping | Incoming::Pong => {}
                Incoming::Binary | Incoming::Close { .. } => return None,
            }
        };
        let hello: Value = serde_json::from_slice(hello).ok()?;
        let mut echo = hello.get("negotiatedMemoryFlags")?.as_object()?.clone();
        self.shared.seen().negotiated = Value::Object(echo.clone());
        let mut own = self.shared.orders().flags.clone();
        own.remove(ROUTER_ENCODING_NEGOTIATION);
        own.remove(ROUTER_REQUEST_CREDIT);
        let conduct = self.conduct();
        match conduct {
            Conduct::EndAfterHello => return None,
            Conduct::EchoMore => drop(echo.insert("tableTurningV9".to_owned(), json!(true))),
            Conduct::EchoLess => drop(echo.remove("connectionAuth")),
            Conduct::ReadyWithoutSupport => drop(own.remove("connectionAuth")),
            _ => {}
        }
        let mut ready = Map::from_iter([
            ("type".to_owned(), json!("router.ready")),
            ("version".to_owned(), json!(1)),
            ("memoryFlags".to_owned(), own.to_value()),
            (ROUTER_ENCODING_NEGOTIATION.to_owned(), json!(true)),
            (ROUTER_REQUEST_CREDIT.to_owned(), json!(true)),
            ("negotiatedMemoryFlags".to_owned(), Value::Object(echo)),
        ]);
        if conduct == Conduct::ReadyWithoutCredit {
            ready.remove(ROUTER_REQUEST_CREDIT);
        }
        let ready = Value::Object(ready).to_string();
        if conduct == Conduct::BinaryReady {
            return self.binary(ready.as_bytes()).await;
        }
        self.text(&ready).await
    }

    async fn grant(&mut self) -> Option<()> {
        let window = encode_request_credit(REQUEST_WINDOW);
        match self.conduct() {
            Conduct::NoCredit => Some(()),
            Conduct::CreditZero => self.binary(b"mri\x02\0\0\0\0").await,
            Conduct::CreditTwice => {
                self.binary(&window).await?;
                self.binary(&window).await
            }
            _ => self.binary(&window).await,
        }
    }

    /// The next request, and the bytes of its body.
    async fn request(&mut self) -> Option<(u32, Value)> {
        let mut body = BodyAssembler::new();
        let mut bytes = 0;
        loop {
            match self.socket.reader.next().await.ok()? {
                Incoming::Binary => {}
                Incoming::Ping => {
                    let payload = self.socket.reader.control().to_vec();
                    self.socket.writer.pong(&payload).await.ok()?;
                    continue;
                }
                Incoming::Pong => continue,
                Incoming::Text | Incoming::Close { .. } => return None,
            }
            match decode_record(self.socket.reader.buffer().payload()).ok()? {
                Record::Header(json) => {
                    bytes = Header::parse(json, Direction::PrivateRequest).ok()?.bytes;
                    body.begin(bytes).ok()?;
                }
                Record::Chunk(chunk) => drop(body.chunk(chunk).ok()?),
                Record::Completion => break,
            }
        }
        let body = body.complete().ok()?;
        let request = serde_json::from_slice(body.strip_prefix(b"fvj1:")?).ok()?;
        Some((bytes, request))
    }

    async fn answer(&mut self, request: &Value) -> Option<()> {
        let id = text(request, "requestId")?;
        if text(request, "type") == Some("session.open") {
            let session = format!("rogue-{}", self.shared.draw());
            let ok = json!({ "sessionId": session });
            return self.message(&response(id, &ok), Shape::default()).await;
        }
        let honest = response(id, &json!({}));
        let shape = Shape::default();
        match self.conduct() {
            Conduct::Sized(bytes) => {
                let filled = |len| response(id, &json!({ "filler": "x".repeat(len) }));
                let frame = format!("fvj1:{}", filled(0)).len();
                let filler = usize::try_from(bytes).ok()?.checked_sub(frame)?;
                self.message(&filled(filler), shape).await
            }
            Conduct::BinaryBody | Conduct::NoEnvelope => {
                let binary = true;
                self.message(&honest, Shape { binary, ..shape }).await
            }
            Conduct::Truncated => {
                let excess = -3;
                self.message(&honest, Shape { excess, ..shape }).await
            }
            Conduct::Overlong => {
                let excess = 3;
                self.message(&honest, Shape { excess, ..shape }).await
            }
            Conduct::NoHeader => self.chunk(b"fvj1:{}").await,
            Conduct::HugeRecord => self.chunk(&[b' '; MAX_CHUNK_LEN + 1]).await,
            Conduct::UnknownKind => self.binary(b"mrt\x01\x03").await,
            Conduct::Text => self.text(&format!("fvj1:{honest}")).await,
            Conduct::WrongSession => {
                let effect = effect(text(request, "space")?, "of-another");
                self.message(&effect, shape).await
            }
            Conduct::UnknownRequest => {
                let unasked = response("never-asked", &json!({}));
                self.message(&unasked, shape).await
            }
            Conduct::AnswerTwice => {
                self.message(&honest, Shape::default()).await?;
                self.message(&honest, shape).await
            }
            Conduct::AssignSession => {
                let assigned = true;
                self.message(&honest, Shape { assigned, ..shape }).await
            }
            Conduct::PushAfterEnd => {
                self.message(&honest, Shape::default()).await?;
                let effect = effect(text(request, "space")?, text(request, "sessionId")?);
                self.message(&effect, shape).await
            }
            Conduct::DataAfterClose => {
                self.socket.writer.close(1000, "").await.ok()?;
                self.message(&honest, shape).await
            }
            _ => self.message(&honest, shape).await,
        }
    }

    /// Sends a message in records.
    async fn message(&mut self, message: &Value, shape: Shape) -> Option<()> {
        let body = format!("fvj1:{message}");
        let length = i64::try_from(body.len()).ok()? - shape.excess;
        let assigned = message.pointer("/ok/sessionId").and_then(Value::as_str);
        let assigned = shape.assigned.then_some("rogue-0").or(assigned);
        let member = |name: &str| text(message, name).map(Into::into);
        let mut record = Vec::new();
        Header {
            bytes: u32::try_from(length).ok()?,
            binary: shape.binary,
            request_ordinal: None,
            route: Route {
                kind: member("type")?,
                request_id: member("requestId"),
                space: member("space"),
                session_id: member("sessionId"),
                assigned_session_id: assigned.map(Into::into),
                ..Route::default()
            },
        }
        .encode_record(&mut record)
        .ok()?;
        self.binary(&record).await?;
        for chunk in body.as_bytes().chunks(MAX_CHUNK_LEN) {
            self.chunk(chunk).await?;
        }
        self.binary(&COMPLETION).await
    }

    async fn chunk(&mut self, bytes: &[u8]) -> Option<()> {
        let record = [&chunk_prefix()[..], bytes].concat();
        self.binary(&record).await
    }

    async fn binary(&mut self, bytes: &[u8]) -> Option<()> {
        let writer = &mut self.socket.writer;
        writer.send_slice(Opcode::Binary, bytes).await.ok()
    }

    async fn text(&mut self, text: &str) -> Option<()> {
        let writer = &mut self.socket.writer;
        writer.send_slice(Opcode::Text, text.as_bytes()).await.ok()
    }
}

/// In which way a message is not what its header says.
#[derive(Debug, Clone, Copy, Default)]
struct Shape {
    binary: bool,
    /// Bytes more than the header says; negative for fewer.
    excess: i64,
    /// Whether the header assigns a session.
    assigned: bool,
}

fn response(id: &str, ok: &Value) -> Value {
    json!({ "type": "response", "requestId": id, "ok": ok })
}

fn effect(space: &str, session: &str) -> Value {
    json!({ "type": "session/effect", "space": space, "sessionId": session, "effect": {} })
}
