//! A toolshed that does what the test tells it.
//!
//! Compiled under `#[cfg(test)]` alone.

use std::sync::Arc;

use memory_transport::{Incoming, ReadLimits, WsReader, WsWriter, tls, upgrade};
use memory_wire::credit::{REQUEST_WINDOW, encode_request_credit};
use memory_wire::frame::Opcode;
use memory_wire::ids::Nonce;
use memory_wire::records::{self, DataHello};
use memory_wire::stream::{COMPLETION, MAX_CHUNK_LEN, Record, chunk_prefix, decode_record};
use memory_wire::upgrade::UpgradePolicy;
use serde_json::{Value, json};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::server::TlsStream;

use super::client::request;
use super::{PATIENCE, flags, identity, now};

/// One data socket.
pub(crate) struct Toolshed {
    pub(crate) index: u16,
    reader: WsReader<ReadHalf<TlsStream<TcpStream>>>,
    writer: WsWriter<WriteHalf<TlsStream<TcpStream>>>,
}

impl Toolshed {
    /// `None` when the worker gives the socket up.
    pub(crate) async fn accept(
        stream: TcpStream,
        config: Arc<rustls::ServerConfig>,
        index: u16,
    ) -> Option<Self> {
        let deadline = Instant::now() + PATIENCE;
        let stream = tls::accept(stream, config, deadline).await.ok()?;
        let limits = ReadLimits::new(64 * 1024);
        let accepted = upgrade::accept(stream, &UpgradePolicy::Private, limits, deadline).await;
        let (socket, _) = accepted.ok()?;
        let mut this = Self {
            index,
            reader: socket.reader,
            writer: socket.writer,
        };
        let hello = DataHello {
            toolshed: identity(100).did(),
            nonce: Nonce::new([9; 32]),
            issued: now(),
        };
        let input = hello.signing_input().unwrap();
        let signature = identity(100).sign(&input);
        this.send(&records::attach(input, signature)).await;
        if !matches!(this.reader.next().await, Ok(Incoming::Text)) {
            return None;
        }
        let ready = json!({
            "type": "router.ready", "version": 1, "memoryFlags": flags().to_value(),
            "routerEncodingNegotiation": true, "routerRequestCredit": true,
            "negotiatedMemoryFlags": flags().to_value(),
        });
        let ready = ready.to_string();
        let sent = this.writer.send_slice(Opcode::Text, ready.as_bytes());
        sent.await.ok()?;
        this.grant(REQUEST_WINDOW).await;
        Some(this)
    }

    pub(crate) async fn grant(&mut self, amount: u32) {
        self.send(&encode_request_credit(amount)).await;
    }

    /// One binary message.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        // A worker that has ended is what some tests wait for.
        let _ = self.writer.send_slice(Opcode::Binary, bytes).await;
    }

    pub(crate) async fn ping(&mut self) {
        let _ = self.writer.ping(b"there?").await;
    }

    async fn record(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.reader.next().await.ok()? {
                Incoming::Binary => return Some(self.reader.buffer().payload().to_vec()),
                Incoming::Ping | Incoming::Pong => {}
                _ => return None,
            }
        }
    }

    /// The next header; `None` when the socket has ended.
    pub(crate) async fn header(&mut self) -> Option<Value> {
        let record = self.record().await?;
        let Ok(Record::Header(json)) = decode_record(&record) else {
            panic!("not a header");
        };
        Some(serde_json::from_slice(json).unwrap())
    }

    /// The id of the next header, whatever records come before it.
    pub(crate) async fn header_of_next(&mut self) -> String {
        loop {
            let record = self.record().await.unwrap();
            if let Ok(Record::Header(json)) = decode_record(&record) {
                let header: Value = serde_json::from_slice(json).unwrap();
                return header["route"]["requestId"].as_str().unwrap().to_owned();
            }
        }
    }

    /// The next request, complete.
    pub(crate) async fn request(&mut self) -> Option<(Value, Vec<u8>)> {
        let header = self.header().await?;
        let mut body = Vec::new();
        loop {
            let record = self.record().await?;
            match decode_record(&record).unwrap() {
                Record::Chunk(chunk) => body.extend_from_slice(chunk),
                Record::Completion => break,
                Record::Header(_) => panic!("a header inside a body"),
            }
        }
        assert_eq!(header["bytes"], json!(body.len()));
        Some((header, body))
    }

    /// Waits for the next request and answers it; gives its header.
    pub(crate) async fn serve(&mut self) -> Option<Value> {
        let (header, body) = self.request().await?;
        let id = header["route"]["requestId"].as_str().unwrap().to_owned();
        let assigned = (header["route"]["type"] == "session.open").then(|| format!("s-{id}"));
        self.answer(&id, assigned.as_deref(), 0).await;
        self.grant(u32::try_from(body.len()).unwrap()).await;
        Some(header)
    }

    /// The header of an answer with `bytes` of body.
    pub(crate) async fn answer_header(&mut self, id: &str, assigned: Option<&str>, bytes: usize) {
        let mut route = json!({"type": "response", "requestId": id});
        if let Some(assigned) = assigned {
            route["assignedSessionId"] = json!(assigned);
        }
        self.raw_header(&json!({"bytes": bytes, "binary": false, "route": route}))
            .await;
    }

    pub(crate) async fn raw_header(&mut self, header: &Value) {
        let record = [b"mrt\x01\x00", header.to_string().as_bytes()].concat();
        self.send(&record).await;
    }

    pub(crate) async fn chunk(&mut self, bytes: &[u8]) {
        let record = [&chunk_prefix()[..], bytes].concat();
        self.send(&record).await;
    }

    pub(crate) async fn complete(&mut self) {
        self.send(&COMPLETION).await;
    }

    /// A push to the session that the open `opened` of `space` made.
    pub(crate) async fn effect(&mut self, space: u8, opened: &str) {
        let route = request("session/effect", "", space, opened);
        let route = json!({"type": route["type"], "space": route["space"], "sessionId": route["sessionId"]});
        let body = format!("fvj1:{route}");
        self.raw_header(&json!({"bytes": body.len(), "binary": false, "route": route}))
            .await;
        self.chunk(body.as_bytes()).await;
        self.complete().await;
    }

    /// A successful answer, with `padding` more bytes.
    pub(crate) async fn answer(&mut self, id: &str, assigned: Option<&str>, padding: usize) {
        let body = answer_body(id, assigned, padding);
        self.answer_header(id, assigned, body.len()).await;
        for chunk in body.chunks(MAX_CHUNK_LEN) {
            self.chunk(chunk).await;
        }
        self.complete().await;
    }
}

/// The text of a successful answer.
pub(crate) fn answer_body(id: &str, assigned: Option<&str>, padding: usize) -> Vec<u8> {
    let mut ok = json!({"padding": "x".repeat(padding)});
    if let Some(assigned) = assigned {
        ok["sessionId"] = json!(assigned);
    }
    format!(
        "fvj1:{}",
        json!({"type": "response", "requestId": id, "ok": ok})
    )
    .into_bytes()
}
