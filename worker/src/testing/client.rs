//! A client that does what the test tells it, also what no client should.
//!
//! Compiled under `#[cfg(test)]` alone.

use std::net::TcpStream as StdTcpStream;
use std::time::Duration;

use memory_config::Identity;
use memory_transport::upgrade::ConnectError;
use memory_transport::{Incoming, ReadLimits, Target, WsReader, WsWriter, tls, upgrade};
use memory_wire::Did;
use memory_wire::base64url;
use memory_wire::credit::decode_upload_credit;
use memory_wire::frame::Opcode;
use memory_wire::ids::Challenge;
use memory_wire::records::{self, Statement};
use memory_wire::stream::{COMPLETION, MAX_CHUNK_LEN, chunk_prefix};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

use super::{DEPLOYMENT, HOST, PATIENCE, flags, identity, now};

/// What a client hears.
#[derive(Debug, PartialEq)]
pub(crate) enum Got {
    Message(Value),
    Credit(u32),
    Close(u16, String),
    /// The transport ended without a close frame.
    Gone,
}

pub(crate) struct Client {
    pub(crate) reader: WsReader<ReadHalf<TlsStream<TcpStream>>>,
    pub(crate) writer: WsWriter<WriteHalf<TlsStream<TcpStream>>>,
    /// Credit at hand; only where a test pays.
    credit: usize,
    /// Whether everything is sent in records.
    is_credited: bool,
    /// Pings that were answered.
    pub(crate) pings: u32,
}

impl Client {
    pub(crate) async fn connect(
        stream: StdTcpStream,
        certificate: &[u8],
        space: Option<Did>,
    ) -> Result<Self, ConnectError> {
        stream.set_nonblocking(true).unwrap();
        let stream = TcpStream::from_std(stream).unwrap();
        let pins = vec![CertificateDer::from(certificate.to_vec())];
        let config = tls::pinned_client_config(pins).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let stream = tls::connect(stream, config, HOST, deadline).await.unwrap();
        let query = space.map_or(String::new(), |space| format!("?space={space}"));
        let target = Target {
            host: HOST,
            path: &format!("/api/storage/memory{query}"),
            origin: None,
        };
        let limits = ReadLimits::new(9 << 20);
        let socket = upgrade::connect(stream, target, limits, deadline).await?;
        Ok(Self {
            reader: socket.reader,
            writer: socket.writer,
            credit: 200_000,
            is_credited: false,
            pings: 0,
        })
    }

    /// A message as text.
    pub(crate) async fn say(&mut self, message: &Value) {
        let text = format!("fvj1:{message}");
        // A worker that has ended is what some tests wait for.
        let _ = self.writer.send_slice(Opcode::Text, text.as_bytes()).await;
    }

    /// A message in the framing that was selected.
    pub(crate) async fn tell(&mut self, message: &Value) {
        if self.is_credited {
            self.stream(message).await;
        } else {
            self.say(message).await;
        }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = self.writer.send_slice(Opcode::Binary, bytes).await;
    }

    pub(crate) async fn header(&mut self, bytes: usize, route: &Value) {
        let header = json!({"bytes": bytes, "binary": false, "route": route}).to_string();
        self.send(&[b"mrt\x01\x00", header.as_bytes()].concat())
            .await;
    }

    pub(crate) async fn chunk(&mut self, bytes: &[u8]) {
        self.send(&[&chunk_prefix()[..], bytes].concat()).await;
    }

    pub(crate) async fn complete(&mut self) {
        self.send(&COMPLETION).await;
    }

    /// A message in records, without a look at credit.
    pub(crate) async fn stream(&mut self, message: &Value) {
        let text = format!("fvj1:{message}");
        let mut route = json!({"type": message["type"]});
        for name in ["requestId", "space", "sessionId", "principal"] {
            if let Some(value) = message.get(name) {
                route[name] = value.clone();
            }
        }
        self.header(text.len(), &route).await;
        for chunk in text.as_bytes().chunks(MAX_CHUNK_LEN) {
            self.chunk(chunk).await;
        }
        self.complete().await;
    }

    /// A large request in records, as far as credit covers them. Nothing but credit may come meanwhile.
    pub(crate) async fn bulk(&mut self, message: &Value) {
        let text = format!("fvj1:{message}");
        let route = json!({"type": message["type"], "requestId": message["requestId"],
            "space": message["space"], "sessionId": message["sessionId"]});
        self.header(text.len(), &route).await;
        for chunk in text.as_bytes().chunks(MAX_CHUNK_LEN) {
            self.pay(chunk.len() + 5).await;
            self.chunk(chunk).await;
        }
        self.complete().await;
    }

    /// Waits until credit covers `bytes`, and spends it.
    pub(crate) async fn pay(&mut self, bytes: usize) {
        while self.credit < bytes {
            match self.hear().await {
                Got::Credit(amount) => self.credit += amount as usize,
                other => panic!("{other:?}"),
            }
        }
        self.credit -= bytes;
    }

    pub(crate) async fn hear(&mut self) -> Got {
        loop {
            match self.reader.next().await {
                Ok(Incoming::Text) => {
                    let payload = self.reader.buffer().payload();
                    let json = payload.strip_prefix(b"fvj1:").unwrap();
                    return Got::Message(serde_json::from_slice(json).unwrap());
                }
                Ok(Incoming::Binary) => {
                    let amount = decode_upload_credit(self.reader.buffer().payload()).unwrap();
                    return Got::Credit(amount);
                }
                Ok(Incoming::Ping) => {
                    self.pings += 1;
                    let payload = self.reader.control().to_vec();
                    let _ = self.writer.pong(&payload).await;
                }
                Ok(Incoming::Pong) => {}
                Ok(Incoming::Close { code, reason }) => {
                    return Got::Close(code.unwrap_or(1005), reason);
                }
                Err(_) => return Got::Gone,
            }
        }
    }

    /// Hears credit until a message has begun and is not complete.
    pub(crate) async fn hear_until_mid_message(&mut self) {
        let mut beat = tokio::time::interval(Duration::from_millis(5));
        while !self.reader.is_mid_message() {
            tokio::select! {
                got = self.hear() => assert!(matches!(got, Got::Credit(_)), "{got:?}"),
                _ = beat.tick() => {}
            }
        }
    }

    /// The next message, credit aside.
    pub(crate) async fn message(&mut self) -> Value {
        loop {
            match self.hear().await {
                Got::Message(message) => return message,
                Got::Credit(amount) => self.credit += amount as usize,
                other => panic!("{other:?}"),
            }
        }
    }

    /// The close frame, whatever comes before it.
    pub(crate) async fn closing(&mut self) -> (u16, String) {
        loop {
            match self.hear().await {
                Got::Close(code, reason) => {
                    let word = reason.split(' ').next().unwrap().to_owned();
                    return (code, word);
                }
                Got::Gone => panic!("no close frame"),
                Got::Message(_) | Got::Credit(_) => {}
            }
        }
    }

    /// Hello; gives the first challenge.
    pub(crate) async fn greet(&mut self) -> Challenge {
        self.say(&json!({"type": "hello", "protocol": "memory", "flags": flags().to_value()}))
            .await;
        let answer = self.message().await;
        assert_eq!(answer["type"], "hello.ok");
        challenge(&answer["sessionOpen"]["challenge"])
    }

    pub(crate) async fn select(&mut self, credits: bool) {
        self.say(&if credits {
            json!({"type": "router.transport", "version": 1, "uploadCredits": true})
        } else {
            json!({"type": "router.transport", "version": 1})
        })
        .await;
        self.is_credited = credits;
    }

    /// Hello, selection of the streaming mode and authentication of principal 2.
    pub(crate) async fn enter_streaming(&mut self, credits: bool) {
        let challenge = self.greet().await;
        self.select(credits).await;
        self.tell(&auth("auth", &identity(2), challenge)).await;
        assert_eq!(self.message().await["requestId"], "auth");
    }

    /// Hello and authentication of principal 2, as text.
    pub(crate) async fn enter(&mut self) {
        let challenge = self.greet().await;
        self.say(&auth("auth", &identity(2), challenge)).await;
        assert_eq!(self.message().await["requestId"], "auth");
    }
}

pub(crate) fn challenge(value: &Value) -> Challenge {
    Challenge::from_hex(value["value"].as_str().unwrap()).unwrap()
}

/// A `connection.auth`.
pub(crate) fn auth(id: &str, who: &Identity, challenge: Challenge) -> Value {
    let statement = Statement {
        principal: who.did(),
        router: identity(1).did(),
        deployment: DEPLOYMENT.to_owned(),
        challenge,
        iat: now(),
        exp: now() + 600,
    };
    let input = statement.signing_input().unwrap();
    let signature = who.sign(&input);
    let statement = base64url::encode(&records::attach(input, signature));
    json!({"type": "connection.auth", "requestId": id, "statement": statement})
}

/// A `connection.challenge`.
pub(crate) fn ask_challenge(id: &str) -> Value {
    json!({"type": "connection.challenge", "requestId": id})
}

/// A `session.open` by principal 2 of the space of identity `space`.
pub(crate) fn open(id: &str, space: u8) -> Value {
    json!({"type": "session.open", "requestId": id, "space": identity(space).did(),
        "principal": identity(2).did(), "session": {}})
}

/// A request of the session that the open `opened` of `space` made.
pub(crate) fn request(kind: &str, id: &str, space: u8, opened: &str) -> Value {
    json!({"type": kind, "requestId": id, "space": identity(space).did(),
        "sessionId": format!("s-{opened}")})
}
