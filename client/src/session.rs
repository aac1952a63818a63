//! One session of one space.

use std::sync::Arc;

use memory_wire::did::Did;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use crate::ClientError;
use crate::connection::Guard;
use crate::inner::{Delivery, Inner};

/// What a toolshed sends without being asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// The `sync` of a `session/effect`.
    Sync(Value),
    /// The session is over, with the toolshed's reason: `taken-over`, `unauthorized`.
    Revoked(String),
    /// Any other push of this session, such as presence.
    Other(Value),
}

/// An open session. Dropping it leaves the session open at the toolshed until the connection ends; see [`Session::close`].
#[derive(Debug)]
pub struct Session {
    inner: Arc<Inner>,
    /// Keeps the connection.
    _guard: Arc<Guard>,
    space: Did,
    id: String,
    opened: Value,
    effects: mpsc::Receiver<Delivery>,
    next_seq: u64,
}

impl Session {
    pub(crate) fn new(
        inner: Arc<Inner>,
        guard: Arc<Guard>,
        space: Did,
        opened: Value,
        effects: mpsc::Receiver<Delivery>,
    ) -> Result<Self, ClientError> {
        let id = opened
            .get("sessionId")
            .and_then(Value::as_str)
            .ok_or(ClientError::Protocol("session.open answer"))?;
        Ok(Self {
            inner,
            _guard: guard,
            space,
            id: id.to_owned(),
            opened,
            effects,
            next_seq: 1,
        })
    }

    /// The space.
    pub fn space(&self) -> Did {
        self.space
    }

    /// The id the toolshed assigned.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The `ok` of the open: `sessionToken`, `serverSeq`, `resumed`, `sync`, ...
    pub fn opened(&self) -> &Value {
        &self.opened
    }

    /// The `localSeq` that [`Self::commit`] will use next. Set it from the application's own log when resuming.
    pub fn set_next_local_seq(&mut self, seq: u64) {
        self.next_seq = seq;
    }

    /// Any request of this session; `members` are added to type, requestId, space and sessionId.
    ///
    /// # Errors
    /// [`ClientError::Denied`] as answered; [`ClientError::Closed`] when the connection ended first.
    pub async fn request(&self, kind: &str, members: Value) -> Result<Value, ClientError> {
        let Value::Object(mut members) = members else {
            return Err(ClientError::Usage("members are an object"));
        };
        members.insert("space".to_owned(), json!(self.space));
        members.insert("sessionId".to_owned(), json!(self.id));
        self.inner.request(kind, members, None).await
    }

    /// Commits operations without reads under the next `localSeq`.
    ///
    /// # Errors
    /// See [`Self::request`]. After [`ClientError::Closed`] the commit may or may not have been applied.
    pub async fn commit(&mut self, operations: Value) -> Result<Value, ClientError> {
        let seq = self.next_seq;
        self.next_seq += 1;
        let commit = json!({ "localSeq": seq, "reads": { "confirmed": [], "pending": [] }, "operations": operations });
        self.transact(commit).await
    }

    /// `transact` with a whole commit.
    ///
    /// # Errors
    /// See [`Self::commit`].
    pub async fn transact(&self, commit: Value) -> Result<Value, ClientError> {
        self.request("transact", json!({ "commit": commit })).await
    }

    /// `graph.query` of whole documents by id.
    ///
    /// # Errors
    /// See [`Self::request`].
    pub async fn query(&self, ids: &[&str]) -> Result<Value, ClientError> {
        self.request("graph.query", json!({ "query": { "roots": roots(ids) } }))
            .await
    }

    /// `session.watch.set` with one watch per id, named as the id's place in the list.
    ///
    /// # Errors
    /// See [`Self::request`].
    pub async fn watch(&self, ids: &[&str]) -> Result<Value, ClientError> {
        self.request("session.watch.set", json!({ "watches": watches(ids) }))
            .await
    }

    /// `session.watch.add` with one watch per (name, id).
    ///
    /// # Errors
    /// See [`Self::request`].
    pub async fn watch_add(&self, named: &[(&str, &str)]) -> Result<Value, ClientError> {
        let watches: Vec<Value> = named.iter().map(|(name, id)| watch(name, &[id])).collect();
        self.request("session.watch.add", json!({ "watches": watches }))
            .await
    }

    /// `session.ack`.
    ///
    /// # Errors
    /// See [`Self::request`].
    pub async fn ack(&self, seen_seq: u64) -> Result<Value, ClientError> {
        self.request("session.ack", json!({ "seenSeq": seen_seq }))
            .await
    }

    /// The next push; `None` when the session or the connection is over.
    pub async fn effect(&mut self) -> Option<Effect> {
        loop {
            match self.effects.recv().await? {
                Delivery::Effect(effect, _) => return Some(effect),
                Delivery::Answer { .. } => {}
            }
        }
    }

    /// `session.close`.
    ///
    /// # Errors
    /// See [`Self::request`].
    pub async fn close(self) -> Result<(), ClientError> {
        self.request("session.close", Value::Object(Map::new()))
            .await?;
        self.inner.forget_session(self.space.as_str(), &self.id);
        Ok(())
    }
}

pub(crate) fn roots(ids: &[&str]) -> Value {
    ids.iter()
        .map(|id| json!({ "id": id, "selector": { "path": [], "schema": false } }))
        .collect()
}

pub(crate) fn watch(name: &str, ids: &[&str]) -> Value {
    json!({ "id": name, "kind": "graph", "query": { "roots": roots(ids) } })
}

fn watches(ids: &[&str]) -> Value {
    ids.iter()
        .enumerate()
        .map(|(place, id)| watch(&format!("w{place}"), &[id]))
        .collect()
}
