//! Messages of a raw client: hello, the three framings, answers by request, and the account of upload credit.

use std::collections::VecDeque;
use std::net::SocketAddr;

use memory_client::{Did, Identity};
use memory_wire::credit::decode_upload_credit;
use memory_wire::envelope;
use memory_wire::frame::Opcode;
use memory_wire::message::MAX_EXPANDED_LEN;
use memory_wire::stream::{COMPLETION, Header, MAX_CHUNK_LEN, Route, chunk_prefix};
use serde_json::{Map, Value, json};

use super::{Claim, Closing, Frame, RawClient, closing_of};
use crate::error::{holds, same};
use crate::{Context, GateError, Stage};

/// Seconds a signature lasts.
const LEASE: u64 = 600;

/// How messages are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Whole messages.
    Legacy,
    /// Controls whole, data in records without credit.
    Streamed,
    /// Everything in records, paid for with credit.
    Credited,
}

/// The account of upload credit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger {
    /// What may be outstanding, bytes.
    pub window: u64,
    /// Sent and not yet acknowledged, bytes of complete records.
    pub outstanding: u64,
    /// All that was sent, bytes.
    pub sent: u64,
    /// All that was acknowledged, bytes.
    pub credited: u64,
    /// How many acknowledgements came.
    pub credits: u64,
    /// How often a record had to wait for one.
    pub waits: u64,
}

/// Speaks the public protocol, one message at a time.
pub struct Speaker {
    /// The WebSocket below.
    pub client: RawClient,
    /// The answer to hello.
    pub hello: Value,
    /// The account of upload credit.
    pub ledger: Ledger,
    /// Messages that came as text.
    pub texts: u64,
    /// Messages that came in a compression envelope.
    pub envelopes: u64,
    /// The most fragments that one message came in.
    pub most_fragments: u64,
    /// Payload bytes of the last message.
    pub last_len: usize,
    framing: Framing,
    waiting: VecDeque<Value>,
    requests: u64,
    partial: Option<Partial>,
    observer: Option<Box<dyn FnMut() -> Result<(), GateError>>>,
}

/// A message of which fragments have come.
#[derive(Debug, Default)]
struct Partial {
    binary: bool,
    payload: Vec<u8>,
    fragments: u64,
}

impl Speaker {
    /// Connects, says hello and selects the framing.
    ///
    /// # Errors
    /// When the router does not answer hello.
    pub async fn connect(
        stage: &Stage,
        framing: Framing,
        compression: bool,
    ) -> Result<Self, GateError> {
        let client = RawClient::connect(stage).await?;
        Self::on(client, framing, compression).await
    }

    /// The same on an open WebSocket.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn on(
        client: RawClient,
        framing: Framing,
        compression: bool,
    ) -> Result<Self, GateError> {
        let flags = json!({
            "connectionAuth": true,
            "routedAuthV1": true,
            "stableExpressionResultIds": true,
            "modernCellRep": false,
            "messageCompressionV1": compression,
            "routedCompressionV1": compression,
        });
        Self::greet(client, framing, flags).await
    }

    /// Says hello with these flags on an open WebSocket, and selects the framing.
    ///
    /// # Errors
    /// When the router does not answer hello.
    pub async fn greet(
        client: RawClient,
        framing: Framing,
        flags: Value,
    ) -> Result<Self, GateError> {
        let mut speaker = Self {
            client,
            hello: Value::Null,
            ledger: Ledger::default(),
            texts: 0,
            envelopes: 0,
            most_fragments: 0,
            last_len: 0,
            framing: Framing::Legacy,
            waiting: VecDeque::new(),
            requests: 0,
            partial: None,
            observer: None,
        };
        let hello = json!({ "type": "hello", "protocol": "memory", "flags": flags });
        speaker.send(&hello).await?;
        speaker.hello = speaker.next().await?;
        same(
            "the answer to hello",
            text(&speaker.hello, "type"),
            Some("hello.ok"),
        )?;
        let selection = match framing {
            Framing::Legacy => None,
            Framing::Streamed => Some(json!({ "type": "router.transport", "version": 1 })),
            Framing::Credited => {
                Some(json!({ "type": "router.transport", "version": 1, "uploadCredits": true }))
            }
        };
        if let Some(selection) = selection {
            speaker.send(&selection).await?;
            let window = speaker.hello.get("routerUploadWindow");
            speaker.ledger.window = window
                .and_then(Value::as_u64)
                .during("routerUploadWindow")?;
        }
        speaker.framing = framing;
        Ok(speaker)
    }

    /// The connection's name in the router's log.
    ///
    /// # Errors
    /// When hello did not tell.
    pub fn connection(&self) -> Result<String, GateError> {
        let name = text(&self.hello, "connection").during("the connection's name in hello.ok")?;
        Ok(name.to_owned())
    }

    /// The address it has at the router.
    pub fn local(&self) -> SocketAddr {
        self.client.local()
    }

    /// Calls `observer` after every record sent and every frame received.
    pub fn observe(&mut self, observer: impl FnMut() -> Result<(), GateError> + 'static) {
        self.observer = Some(Box::new(observer));
    }

    fn observed(&mut self) -> Result<(), GateError> {
        match &mut self.observer {
            Some(observer) => observer(),
            None => Ok(()),
        }
    }

    // --- sending ---

    /// Sends a message as the framing has it, not compressed.
    ///
    /// # Errors
    /// When the connection is gone, or credit that is due does not come.
    pub async fn send(&mut self, message: &Value) -> Result<(), GateError> {
        let body = format!("fvj1:{message}");
        let kind = text(message, "type").unwrap_or_default();
        let whole = match self.framing {
            Framing::Legacy => true,
            Framing::Streamed => is_control(kind),
            Framing::Credited => false,
        };
        if whole {
            return self.client.frame(true, Opcode::Text, body.as_bytes()).await;
        }
        self.send_body(message, body.as_bytes(), false).await
    }

    /// Sends any body in records, under the header of `message`.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn send_body(
        &mut self,
        message: &Value,
        body: &[u8],
        binary: bool,
    ) -> Result<(), GateError> {
        let member = |name: &str| text(message, name).map(|text| text.to_owned().into());
        let header = Header {
            bytes: u32::try_from(body.len()).during("the length of a body")?,
            binary,
            request_ordinal: None,
            route: Route {
                kind: member("type").unwrap_or_default(),
                request_id: member("requestId"),
                space: member("space"),
                session_id: member("sessionId"),
                principal: member("principal"),
                error: false,
                assigned_session_id: None,
            },
        };
        let mut record = Vec::new();
        header.encode_record(&mut record).during("a header")?;
        self.record(&record).await?;
        for chunk in body.chunks(MAX_CHUNK_LEN) {
            record.clear();
            record.extend_from_slice(&chunk_prefix());
            record.extend_from_slice(chunk);
            self.record(&record).await?;
        }
        self.record(&COMPLETION).await
    }

    /// Sends one record, as soon as credit covers it.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn record(&mut self, record: &[u8]) -> Result<(), GateError> {
        if self.framing == Framing::Credited {
            let len = record.len() as u64;
            if self.ledger.outstanding + len > self.ledger.window {
                self.ledger.waits += 1;
            }
            while self.ledger.outstanding + len > self.ledger.window {
                // The window covers any record, so that something is in flight whenever one has to wait.
                holds(
                    "a record that waits for credit",
                    self.ledger.outstanding > 0,
                    "bytes in flight",
                    "none",
                )?;
                if let Some(message) = self.frame().await? {
                    self.waiting.push_back(message);
                }
            }
            self.ledger.outstanding += len;
            self.ledger.sent += len;
        }
        self.client.frame(true, Opcode::Binary, record).await?;
        self.observed()
    }

    // --- receiving ---

    /// The next message that is no credit.
    ///
    /// # Errors
    /// When none comes, the connection is gone, or the router breaks a rule.
    pub async fn next(&mut self) -> Result<Value, GateError> {
        if let Some(message) = self.waiting.pop_front() {
            return Ok(message);
        }
        loop {
            if let Some(message) = self.frame().await? {
                return Ok(message);
            }
        }
    }

    /// Takes one frame; gives the message that it completes.
    async fn frame(&mut self) -> Result<Option<Value>, GateError> {
        let frame = self.client.next().await?;
        let message = match frame.opcode {
            Opcode::Ping => {
                self.client
                    .frame(true, Opcode::Pong, &frame.payload)
                    .await?;
                return Ok(None);
            }
            Opcode::Pong => return Ok(None),
            Opcode::Close => {
                let Closing { code, text } = closing_of(&frame)?;
                let found = format!("close {code} {text}");
                return Err(GateError::new("the connection", "open", found));
            }
            Opcode::Text | Opcode::Binary | Opcode::Continuation => self.assemble(frame)?,
        };
        self.observed()?;
        match message {
            Some(message) => self.take(message),
            None => Ok(None),
        }
    }

    fn assemble(&mut self, frame: Frame) -> Result<Option<Partial>, GateError> {
        let continues = frame.opcode == Opcode::Continuation;
        same(
            "a message in progress where a frame continues one",
            self.partial.is_some(),
            continues,
        )?;
        let partial = self.partial.get_or_insert_with(|| Partial {
            binary: frame.opcode == Opcode::Binary,
            ..Partial::default()
        });
        partial.payload.extend_from_slice(&frame.payload);
        partial.fragments += 1;
        Ok(if frame.fin { self.partial.take() } else { None })
    }

    fn take(&mut self, message: Partial) -> Result<Option<Value>, GateError> {
        let Partial {
            binary,
            payload,
            fragments,
        } = message;
        let expanded;
        let text = if !binary {
            self.texts += 1;
            &payload
        } else if payload.starts_with(b"mcmp") {
            self.envelopes += 1;
            expanded = envelope::decode(&payload, MAX_EXPANDED_LEN)
                .during("an envelope of the router")?
                .text;
            &expanded
        } else {
            same("fragments of a credit", fragments, 1)?;
            self.credit(&payload)?;
            return Ok(None);
        };
        self.most_fragments = self.most_fragments.max(fragments);
        self.last_len = payload.len();
        let json = text
            .strip_prefix(b"fvj1:")
            .during("the prefix of a message")?;
        serde_json::from_slice(json)
            .during("a message of the router")
            .map(Some)
    }

    fn credit(&mut self, payload: &[u8]) -> Result<(), GateError> {
        same(
            "credit on a connection with it",
            self.framing,
            Framing::Credited,
        )?;
        let amount = decode_upload_credit(payload).during("a credit")?;
        let ledger = &mut self.ledger;
        holds(
            "the amount of a credit",
            (1..=ledger.outstanding).contains(&u64::from(amount)),
            format!("1 to {} outstanding bytes", ledger.outstanding),
            amount,
        )?;
        ledger.outstanding -= u64::from(amount);
        ledger.credited += u64::from(amount);
        ledger.credits += 1;
        Ok(())
    }

    /// Reads until every byte sent has been acknowledged; messages that come meanwhile are kept.
    ///
    /// # Errors
    /// When the credit does not come.
    pub async fn settle(&mut self) -> Result<(), GateError> {
        while self.ledger.outstanding > 0 {
            if let Some(message) = self.frame().await? {
                self.waiting.push_back(message);
            }
        }
        Ok(())
    }

    // --- requests ---

    /// Sends a request and gives its whole answer, error or not.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn request(&mut self, kind: &str, members: Value) -> Result<Value, GateError> {
        let (id, message) = self.compose(kind, members)?;
        self.send(&message).await?;
        self.answer(&id).await.map_err(|error| error.within(kind))
    }

    /// A request with an ID of its own, and that ID.
    ///
    /// # Errors
    /// When `members` is no object.
    pub fn compose(&mut self, kind: &str, members: Value) -> Result<(String, Value), GateError> {
        self.requests += 1;
        let id = format!("r{}", self.requests);
        let Value::Object(mut message) = members else {
            return Err(GateError::new("members", "an object", members));
        };
        message.insert("type".to_owned(), json!(kind));
        message.insert("requestId".to_owned(), json!(id));
        Ok((id, Value::Object(message)))
    }

    /// The answer to a request; other messages are kept for [`Self::next`].
    ///
    /// # Errors
    /// When there is none.
    pub async fn answer(&mut self, id: &str) -> Result<Value, GateError> {
        self.first(|message| text(message, "requestId") == Some(id))
            .await
    }

    /// The next push of this type; other messages are kept for [`Self::next`].
    ///
    /// # Errors
    /// When there is none.
    pub async fn push(&mut self, kind: &str) -> Result<Value, GateError> {
        self.first(|message| text(message, "type") == Some(kind))
            .await
            .map_err(|error| error.within(kind))
    }

    /// The first message that fulfils a condition, of those that wait and those to come.
    async fn first(&mut self, condition: impl Fn(&Value) -> bool) -> Result<Value, GateError> {
        if let Some(place) = self.waiting.iter().position(&condition) {
            return self.waiting.remove(place).during("an answer");
        }
        loop {
            match self.frame().await? {
                Some(message) if condition(&message) => return Ok(message),
                Some(message) => self.waiting.push_back(message),
                None => {}
            }
        }
    }

    /// Signs in over the challenge of hello, as a well-behaved client does.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn authenticate(&mut self, identity: &Identity) -> Result<(), GateError> {
        let open = self.hello.get("sessionOpen").during("sessionOpen")?.clone();
        let audience = did(&open, "audience")?;
        let answer = self.sign(identity, audience, &open).await?;
        ok(&answer).map(drop)
    }

    /// Signs the challenge of a `sessionOpen` for an audience, and gives the answer.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn sign(
        &mut self,
        identity: &Identity,
        audience: Did,
        open: &Value,
    ) -> Result<Value, GateError> {
        let claim = Claim {
            router: audience,
            ..Claim::pushed(self, open, LEASE)?
        };
        claim.present(self, identity).await
    }

    /// Opens a session; gives the `ok` of the answer.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn open(&mut self, space: Did, principal: Did) -> Result<Value, GateError> {
        let members = json!({ "space": space, "principal": principal, "session": {} });
        let answer = self.request("session.open", members).await?;
        ok(&answer).cloned()
    }
}

impl std::fmt::Debug for Speaker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Speaker")
            .field("client", &self.client)
            .field("ledger", &self.ledger)
            .finish_non_exhaustive()
    }
}

/// The `ok` of an answer.
///
/// # Errors
/// When it is an error.
pub fn ok(answer: &Value) -> Result<&Value, GateError> {
    answer.get("ok").ok_or_else(|| {
        let kind = text(answer, "type").unwrap_or("message");
        GateError::new(kind, "ok", answer)
    })
}

/// A text member.
pub fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str)
}

/// A member that is a DID.
///
/// # Errors
/// When it is none.
pub fn did(value: &Value, name: &str) -> Result<Did, GateError> {
    text(value, name)
        .and_then(|text| Did::parse(text).ok())
        .during(name)
}

/// Adds a session's members to those of a request.
///
/// # Errors
/// When `members` is no object.
pub fn of_session(space: Did, session: &str, members: Value) -> Result<Value, GateError> {
    let Value::Object(members) = members else {
        return Err(GateError::new("members", "an object", members));
    };
    let mut message = Map::from_iter([
        ("space".to_owned(), json!(space)),
        ("sessionId".to_owned(), json!(session)),
    ]);
    message.extend(members);
    Ok(Value::Object(message))
}

/// Messages that stay whole where records have no credit.
fn is_control(kind: &str) -> bool {
    kind.starts_with("connection.")
        || matches!(
            kind,
            "hello"
                | "router.transport"
                | "memory.compression"
                | "session.open"
                | "session.watch.set"
                | "session.watch.add"
        )
}
