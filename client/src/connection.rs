//! One public connection.

use std::sync::Arc;
use std::time::Duration;

use memory_config::Identity;
use memory_transport::{Incoming, WebSocket, WsWriter};
use memory_wire::did::Did;
use memory_wire::frame::Opcode;
use memory_wire::json::{self, JsonLimits};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::dial::{Endpoint, Write};
use crate::hello::Hello;
use crate::inner::Inner;
use crate::send::{Credit, Framing};
use crate::session::Session;
use crate::{ClientError, Closed, Options, Transport, lease, receive, send};

/// Messages that may wait to be sent before callers wait themselves.
const MAX_QUEUED_MESSAGES: usize = 64;
/// How long a connection that nobody uses any more may take to say so.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Pushed challenges that may wait for their signature.
const MAX_PUSHED: usize = 64;

/// How long a key may open sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Whose.
    pub principal: Did,
    /// Unix seconds of the router's clock.
    pub expires_at: u64,
}

/// What goes into `session`, and beside it, when a session is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Members of `session`: `sessionId`, `sessionToken`, `seenSeq`, `spaceKind`, `genesisRoot`.
    pub session: Map<String, Value>,
    /// What the client already holds, at most 8,192 entries.
    pub holdings: Option<Vec<Value>>,
}

/// A connection to a router. Cheap to clone; closes when [`Connection::close`] is called or the last clone and session
/// are gone.
#[derive(Debug, Clone)]
pub struct Connection {
    inner: Arc<Inner>,
    writer: Arc<Mutex<WsWriter<Write>>>,
    guard: Arc<Guard>,
}

/// Held by everybody who uses the connection; when the last of them is gone, so is it.
#[derive(Debug)]
pub(crate) struct Guard {
    _alive: oneshot::Sender<()>,
}

impl Connection {
    /// Dials, says hello and selects the transport.
    ///
    /// # Errors
    /// Every [`ClientError`] but `Denied`.
    pub async fn connect(endpoint: &Endpoint, options: Options) -> Result<Self, ClientError> {
        let WebSocket {
            mut reader,
            mut writer,
        } = endpoint.dial(&options).await?;
        let flags = options.flags()?;
        let closed = || {
            ClientError::Closed(Closed {
                code: None,
                reason: "transport lost".to_owned(),
            })
        };
        let hello = json!({ "type": "hello", "protocol": "memory", "flags": flags.to_value() });
        writer
            .send_slice(Opcode::Text, format!("fvj1:{hello}").as_bytes())
            .await
            .map_err(|_| closed())?;
        let hello = loop {
            match reader.next().await {
                Ok(Incoming::Text) => {
                    let body = reader
                        .buffer()
                        .payload()
                        .strip_prefix(b"fvj1:")
                        .ok_or(ClientError::Protocol("hello.ok"))?;
                    let value = json::parse(body, &JsonLimits::default())
                        .map_err(|_| ClientError::Protocol("hello.ok"))?;
                    break Hello::from_value(&value)?;
                }
                Ok(Incoming::Ping | Incoming::Pong) => {}
                Ok(Incoming::Binary) => return Err(ClientError::Protocol("hello.ok")),
                Ok(Incoming::Close { code, reason }) => {
                    return Err(ClientError::Closed(Closed { code, reason }));
                }
                Err(_) => return Err(closed()),
            }
        };
        if hello.flags.modern_cell_rep() != options.modern_cell_rep {
            return Err(ClientError::Usage(
                "the deployment's cell representation is the other one",
            ));
        }

        let both = |name: &str| flags.is_true(name) && hello.flags.is_true(name);
        let (transport, window) = match (options.transport, hello.streams, hello.upload_window) {
            (Transport::Legacy, _, _) | (_, false, _) => (Transport::Legacy, None),
            (Transport::Credited, true, Some(window)) => (Transport::Credited, Some(window)),
            (Transport::Credited | Transport::Streamed, true, _) => (Transport::Streamed, None),
        };
        let selection = match transport {
            Transport::Credited => {
                Some(r#"fvj1:{"type":"router.transport","version":1,"uploadCredits":true}"#)
            }
            Transport::Streamed => Some(r#"fvj1:{"type":"router.transport","version":1}"#),
            Transport::Legacy => None,
        };
        if let Some(selection) = selection {
            writer
                .send_slice(Opcode::Text, selection.as_bytes())
                .await
                .map_err(|_| closed())?;
        }
        let credit = window.map(Credit::new).transpose()?.map(Arc::new);
        let framing = Framing {
            transport,
            compress_records: both("messageCompressionV1") && both("routedCompressionV1"),
            compress_whole: both("messageCompressionV1"),
            credit: credit.clone(),
        };

        let keep_leases = options.keep_leases;
        let (outgoing, queue) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let (urgent, urgent_queue) = mpsc::channel(MAX_QUEUED_MESSAGES);
        let (pushed, pushes) = mpsc::channel(MAX_PUSHED);
        let (alive, abandoned) = oneshot::channel::<()>();
        let inner = Arc::new(Inner::new(options, hello, outgoing, urgent));
        let writer = Arc::new(Mutex::new(writer));
        tokio::spawn({
            let (inner, writer) = (Arc::clone(&inner), Arc::clone(&writer));
            async move {
                let receiving = receive::run(
                    Arc::clone(&inner),
                    reader,
                    Arc::clone(&writer),
                    credit,
                    pushed,
                );
                let sending = send::run(Arc::clone(&writer), framing, queue, urgent_queue);
                tokio::pin!(receiving);
                let closed = tokio::select! {
                    closed = &mut receiving => closed,
                    _ = abandoned => {
                        // Nobody waits for the answer; a peer that does not read must not keep the task.
                        let farewell = async { writer.lock().await.close(1000, "").await };
                        let _ = tokio::time::timeout(FAREWELL_TIMEOUT, farewell).await;
                        Closed { code: None, reason: "closed by this side".to_owned() }
                    }
                    // The router's close frame, if there is one, says more than the failed write.
                    result = sending => match result {
                        Err(_) => receiving.await,
                        Ok(()) => Closed { code: None, reason: "closed by this side".to_owned() },
                    },
                };
                inner.finish(closed);
            }
        });
        if keep_leases {
            tokio::spawn(lease::run(Arc::clone(&inner), pushes));
        }
        let guard = Arc::new(Guard { _alive: alive });
        Ok(Self {
            inner,
            writer,
            guard,
        })
    }

    /// What the layers above share with this one.
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The lease of a key that signed in here and was not released, also when it ran out.
    pub fn lease(&self, principal: &Did) -> Option<Lease> {
        self.inner.held(principal).map(|held| Lease {
            principal: *principal,
            expires_at: held.expires,
        })
    }

    /// The router's clock, Unix seconds, as far as it told.
    pub fn router_time(&self) -> u64 {
        self.inner.router_unix()
    }

    /// What the router said of itself.
    pub fn hello(&self) -> &Hello {
        &self.inner.hello
    }

    /// Signs in with a key. The key is kept for renewals until [`Self::release`].
    ///
    /// # Errors
    /// [`ClientError::Denied`], retriable where waiting or releasing another key helps.
    pub async fn authenticate(&self, identity: &Arc<Identity>) -> Result<Lease, ClientError> {
        let (principal, expires_at) = self.inner.sign_in(identity, None).await?;
        Ok(Lease {
            principal,
            expires_at,
        })
    }

    /// Withdraws a key: it opens no more sessions; those it opened keep their lease.
    ///
    /// # Errors
    /// [`ClientError::Closed`].
    pub async fn release(&self, principal: Did) -> Result<(), ClientError> {
        self.inner.release(&principal);
        let members = Map::from_iter([("principal".to_owned(), json!(principal))]);
        self.inner
            .request("connection.release", members, None)
            .await
            .map(drop)
    }

    /// Opens a session of `space` as `principal`, which must have signed in.
    ///
    /// # Errors
    /// [`ClientError::Denied`] as the router or the toolshed answered.
    pub async fn open(
        &self,
        space: Did,
        principal: Did,
        options: OpenOptions,
    ) -> Result<Session, ClientError> {
        let mut members = Map::from_iter([
            ("space".to_owned(), json!(space)),
            ("principal".to_owned(), json!(principal)),
            ("session".to_owned(), Value::Object(options.session)),
        ]);
        if let Some(holdings) = options.holdings {
            members.insert("holdings".to_owned(), Value::Array(holdings));
        }
        let (opened, effects) = self.inner.open(space, members, None).await?;
        Session::new(
            Arc::clone(&self.inner),
            Arc::clone(&self.guard),
            space,
            opened,
            effects,
        )
    }

    /// Any request that names no session, such as `memory.compression`.
    ///
    /// # Errors
    /// See [`Session::request`].
    pub async fn request(
        &self,
        kind: &str,
        members: Map<String, Value>,
    ) -> Result<Value, ClientError> {
        self.inner.request(kind, members, None).await
    }

    /// Waits until the connection is over, and tells how.
    pub async fn closed(&self) -> Closed {
        self.inner.wait_closed().await
    }

    /// Closes the connection and waits for the router's answer.
    pub async fn close(&self) -> Closed {
        let _ = self.writer.lock().await.close(1000, "").await;
        self.inner.wait_closed().await
    }
}
