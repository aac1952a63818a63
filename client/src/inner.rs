//! What the tasks of a connection share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use memory_config::Identity;
use memory_wire::did::Did;
use memory_wire::records::{Statement, attach};
use memory_wire::stream::Route;
use memory_wire::{base64url, json};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot, watch};

use crate::hello::{Hello, Issued};
use crate::session::Effect;
use crate::{ClientError, Closed, Denied, Options};

/// Keys that share one challenge (seed, "The SDK shares a challenge among at most 32 different keys").
const MAX_KEYS_PER_CHALLENGE: usize = 32;
/// Effects of one session that may wait for the application before reading pauses.
const MAX_WAITING_EFFECTS: usize = 1024;

/// A message on its way to the send task.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) text: String,
    pub(crate) route: Route<'static>,
}

/// One item of a session's ordered stream.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// A push, and the bytes it came in.
    Effect(Effect, usize),
    /// The answer to a request that asked for it here, and the bytes it came in.
    Answer {
        tag: u64,
        outcome: Result<Value, Denied>,
        len: usize,
    },
}

/// Where an answer goes.
#[derive(Debug)]
pub(crate) enum Reply {
    /// To one caller.
    Once(oneshot::Sender<Result<Value, Denied>>),
    /// Into the session's stream, so that it keeps its place among the effects.
    Ordered(mpsc::Sender<Delivery>, u64),
}

/// Who waits for an answer.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) reply: Reply,
    /// For `session.open`: the space, and the receiver of the stream that the session will have.
    pub(crate) opens: Option<(Did, oneshot::Sender<mpsc::Receiver<Delivery>>)>,
    /// The request's share of the connection's budget, held until it is answered, also when its caller has gone.
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

/// A key and how far its authority on this connection reaches. Times are Unix seconds of the router's clock.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) identity: Arc<Identity>,
    /// When the lease ends.
    pub(crate) expires: u64,
    /// When the lease before this one would have ended.
    pub(crate) previous: Option<u64>,
    /// When to sign again; `None` once the lease ran out unrenewed.
    pub(crate) renew: Option<u64>,
    /// Renewals refused for now since the last one that succeeded.
    pub(crate) refused: u32,
}

/// A challenge at hand, and who signed it: nobody may sign it twice, even when the first signature was refused.
#[derive(Debug)]
struct AtHand {
    issued: Issued,
    signers: HashSet<Did>,
}

#[derive(Debug, Default)]
struct State {
    next_request: u64,
    waiting: HashMap<String, Waiter>,
    sessions: HashMap<(String, String), mpsc::Sender<Delivery>>,
    keys: HashMap<Did, Held>,
    /// How often each key was withdrawn.
    releases: HashMap<Did, u64>,
    challenge: Option<AtHand>,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) hello: Hello,
    /// What the router's clock is ahead of ours, in seconds.
    offset: i64,
    outgoing: mpsc::Sender<Outgoing>,
    /// Signing in, withdrawing keys and asking for challenges: they pass data that waits, keep their order among each other,
    /// and no data waits for them.
    urgent: mpsc::Sender<Outgoing>,
    state: Mutex<State>,
    closed: watch::Sender<Option<Closed>>,
    /// A key was added, renewed or released.
    pub(crate) keys_changed: Notify,
}

impl Inner {
    pub(crate) fn new(
        options: Options,
        hello: Hello,
        outgoing: mpsc::Sender<Outgoing>,
        urgent: mpsc::Sender<Outgoing>,
    ) -> Self {
        let now = local_unix();
        let offset = hello
            .server_time
            .map_or(0, |server| i64::try_from(server).unwrap_or(now) - now);
        let state = State {
            challenge: Some(AtHand {
                issued: hello.challenge,
                signers: HashSet::new(),
            }),
            ..State::default()
        };
        Self {
            options,
            hello,
            offset,
            outgoing,
            urgent,
            state: Mutex::new(state),
            closed: watch::Sender::new(None),
            keys_changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; a poisoned one would still hold consistent maps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The router's clock, Unix seconds.
    pub(crate) fn router_unix(&self) -> u64 {
        u64::try_from(local_unix() + self.offset).unwrap_or(0)
    }

    // --- end ---

    /// Ends the connection for everybody who waits on it. The first end stands.
    pub(crate) fn finish(&self, closed: Closed) {
        self.closed.send_if_modified(|slot| {
            let first = slot.is_none();
            if first {
                *slot = Some(closed);
            }
            first
        });
        let mut state = self.state();
        state.waiting.clear();
        state.sessions.clear();
        drop(state);
        self.keys_changed.notify_waiters();
    }

    pub(crate) fn end(&self) -> Option<Closed> {
        self.closed.borrow().clone()
    }

    pub(crate) async fn wait_closed(&self) -> Closed {
        let mut watched = self.closed.subscribe();
        loop {
            if let Some(closed) = watched.borrow_and_update().clone() {
                return closed;
            }
            if watched.changed().await.is_err() {
                return Closed {
                    code: None,
                    reason: String::new(),
                };
            }
        }
    }

    fn ended(&self) -> ClientError {
        ClientError::Closed(self.end().unwrap_or(Closed {
            code: None,
            reason: String::new(),
        }))
    }

    // --- requests ---

    /// Sends one request and waits for its answer.
    pub(crate) async fn request(
        &self,
        kind: &str,
        members: Map<String, Value>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<Value, ClientError> {
        let (answer, waiting) = oneshot::channel();
        let waiter = Waiter {
            reply: Reply::Once(answer),
            opens: None,
            _permit: permit,
        };
        self.send_request(kind, members, waiter).await?;
        self.settle(waiting).await
    }

    /// Sends one request of a session, whose answer comes as [`Delivery::Answer`] in the session's stream.
    pub(crate) async fn request_ordered(
        &self,
        kind: &str,
        members: Map<String, Value>,
        (space, session): (&str, &str),
        tag: u64,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(), ClientError> {
        let to = self.deliveries(space, session).ok_or_else(|| {
            if self.end().is_some() {
                self.ended()
            } else {
                ClientError::Usage("the session is over")
            }
        })?;
        let waiter = Waiter {
            reply: Reply::Ordered(to, tag),
            opens: None,
            _permit: permit,
        };
        self.send_request(kind, members, waiter).await
    }

    /// `session.open`: the answer, and the stream of the session it made.
    pub(crate) async fn open(
        &self,
        space: Did,
        members: Map<String, Value>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(Value, mpsc::Receiver<Delivery>), ClientError> {
        let (answer, waiting) = oneshot::channel();
        let (sender, stream) = oneshot::channel();
        let waiter = Waiter {
            reply: Reply::Once(answer),
            opens: Some((space, sender)),
            _permit: permit,
        };
        self.send_request("session.open", members, waiter).await?;
        let value = self.settle(waiting).await?;
        let stream = stream
            .await
            .map_err(|_| ClientError::Protocol("session.open answer"))?;
        Ok((value, stream))
    }

    async fn settle(
        &self,
        waiting: oneshot::Receiver<Result<Value, Denied>>,
    ) -> Result<Value, ClientError> {
        match waiting.await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(denied)) => Err(ClientError::Denied(denied)),
            Err(_) => Err(self.ended()),
        }
    }

    async fn send_request(
        &self,
        kind: &str,
        mut members: Map<String, Value>,
        waiter: Waiter,
    ) -> Result<(), ClientError> {
        let id = {
            let mut state = self.state();
            state.next_request += 1;
            let id = format!("r{}", state.next_request);
            if self.end().is_some() {
                return Err(self.ended());
            }
            state.waiting.insert(id.clone(), waiter);
            id
        };
        members.insert("type".to_owned(), json!(kind));
        members.insert("requestId".to_owned(), json!(id));
        let sent = self.send(Value::Object(members)).await;
        if sent.is_err() {
            self.state().waiting.remove(&id);
        }
        sent
    }

    /// Queues one message behind those already queued.
    pub(crate) async fn send(&self, message: Value) -> Result<(), ClientError> {
        let text = format!("fvj1:{message}");
        let limits = json::JsonLimits {
            max_slots: self.hello.frame_slots,
            ..json::JsonLimits::default()
        };
        json::validate(text.as_bytes().get(5..).unwrap_or_default(), &limits)
            .map_err(|_| ClientError::Usage("message over the router's bounds"))?;
        let member = |name: &str| {
            message
                .get(name)
                .and_then(Value::as_str)
                .map(|text| text.to_owned().into())
        };
        let route = Route {
            kind: member("type").ok_or(ClientError::Usage("message without type"))?,
            request_id: member("requestId"),
            space: member("space"),
            session_id: member("sessionId"),
            principal: member("principal"),
            error: false,
            assigned_session_id: None,
        };
        let queue = match &*route.kind {
            "connection.auth" | "connection.challenge" | "connection.release" => &self.urgent,
            _ => &self.outgoing,
        };
        queue
            .send(Outgoing { text, route })
            .await
            .map_err(|_| self.ended())
    }

    /// Delivers an answer of `len` bytes. One that belongs into a session's stream is returned, to be put there.
    pub(crate) fn answer(
        &self,
        request_id: &str,
        outcome: Result<Value, Denied>,
        len: usize,
    ) -> Option<(mpsc::Sender<Delivery>, Delivery)> {
        let mut state = self.state();
        let waiter = state.waiting.remove(request_id)?;
        if let (Some((space, effects)), Ok(value)) = (waiter.opens, &outcome)
            && let Some(session) = value.get("sessionId").and_then(Value::as_str)
        {
            // Made here, before the next message is read: an effect may follow the answer at once.
            let (sender, receiver) = mpsc::channel(MAX_WAITING_EFFECTS);
            state
                .sessions
                .insert((space.to_string(), session.to_owned()), sender);
            let _ = effects.send(receiver);
        }
        match waiter.reply {
            Reply::Once(caller) => {
                let _ = caller.send(outcome);
                None
            }
            Reply::Ordered(to, tag) => Some((to, Delivery::Answer { tag, outcome, len })),
        }
    }

    /// Where the effects of a session go.
    pub(crate) fn deliveries(&self, space: &str, session: &str) -> Option<mpsc::Sender<Delivery>> {
        self.state()
            .sessions
            .get(&(space.to_owned(), session.to_owned()))
            .cloned()
    }

    /// The session is over; its effects end after those already delivered.
    pub(crate) fn forget_session(&self, space: &str, session: &str) {
        self.state()
            .sessions
            .remove(&(space.to_owned(), session.to_owned()));
    }

    // --- keys ---

    /// Signs `challenge`, or the one at hand, or a fresh one, and sends `connection.auth`.
    pub(crate) async fn sign_in(
        &self,
        identity: &Arc<Identity>,
        pushed: Option<Issued>,
    ) -> Result<(Did, u64), ClientError> {
        let challenge = match pushed.or_else(|| self.claim_challenge(&identity.did())) {
            Some(challenge) => challenge,
            None => self.fresh_challenge(&identity.did()).await?,
        };
        let iat = self.router_unix();
        let statement = Statement {
            principal: identity.did(),
            router: self.hello.audience,
            deployment: self.hello.deployment.clone(),
            challenge: challenge.value,
            iat,
            exp: iat.saturating_add(self.options.lease),
        };
        let input = statement
            .signing_input()
            .map_err(|_| ClientError::Usage("statement"))?;
        let signature = identity.sign(&input);
        let statement = base64url::encode(&attach(input, signature));
        let members = Map::from_iter([("statement".to_owned(), json!(statement))]);
        let releases = self.releases(&identity.did());
        let ok = self.request("connection.auth", members, None).await?;
        let expires = ok
            .get("expiresAt")
            .and_then(Value::as_u64)
            .ok_or(ClientError::Protocol("connection.auth answer"))?;
        let lease = expires.saturating_sub(iat);
        if self.releases(&identity.did()) != releases {
            // Withdrawn under way: the router has taken both in their order, and the key is gone again.
            return Ok((identity.did(), expires));
        }
        let mut state = self.state();
        let held = Held {
            identity: Arc::clone(identity),
            expires,
            previous: state.keys.get(&identity.did()).map(|held| held.expires),
            // Early enough that a refusal for now can be tried again several times before the lease ends.
            renew: Some(expires.saturating_sub((lease / 3).max(1))),
            refused: 0,
        };
        state.keys.insert(identity.did(), held);
        drop(state);
        self.keys_changed.notify_waiters();
        Ok((identity.did(), expires))
    }

    /// The hello's or the last requested challenge, while it is fresh, few keys signed it and this one did not.
    fn claim_challenge(&self, principal: &Did) -> Option<Issued> {
        let now = self.router_unix();
        let mut state = self.state();
        let at_hand = state.challenge.as_mut()?;
        let stale = now + 5 >= at_hand.issued.expires;
        if stale || at_hand.signers.len() >= MAX_KEYS_PER_CHALLENGE {
            return None;
        }
        at_hand.signers.insert(*principal).then_some(at_hand.issued)
    }

    async fn fresh_challenge(&self, principal: &Did) -> Result<Issued, ClientError> {
        let ok = self
            .request("connection.challenge", Map::new(), None)
            .await?;
        let issued = Issued::from_value(ok.get("challenge").unwrap_or(&Value::Null))?;
        self.state().challenge = Some(AtHand {
            issued,
            signers: HashSet::from([*principal]),
        });
        Ok(issued)
    }

    pub(crate) fn held(&self, principal: &Did) -> Option<Held> {
        self.state().keys.get(principal).cloned()
    }

    pub(crate) fn release(&self, principal: &Did) {
        let mut state = self.state();
        state.keys.remove(principal);
        *state.releases.entry(*principal).or_default() += 1;
        drop(state);
        self.keys_changed.notify_waiters();
    }

    fn releases(&self, principal: &Did) -> u64 {
        let state = self.state();
        state.releases.get(principal).copied().unwrap_or_default()
    }

    /// The key to renew next, and when.
    pub(crate) fn next_renewal(&self) -> Option<(Held, u64)> {
        self.state()
            .keys
            .values()
            .filter_map(|held| held.renew.map(|at| (held, at)))
            .min_by_key(|(_, at)| *at)
            .map(|(held, at)| (held.clone(), at))
    }

    /// Changes when a key is renewed.
    pub(crate) fn reschedule(&self, principal: &Did, change: impl FnOnce(&mut Held)) {
        if let Some(held) = self.state().keys.get_mut(principal) {
            change(held);
        }
    }
}

fn local_unix() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
