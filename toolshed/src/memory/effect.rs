//! Syncs: what a session is told about documents, in answers and in effects of its own.

use super::document::DocumentKey;
use super::session::{Session, SessionKey};
use super::sql::{self, Head};
use super::store::{Space, StoreError};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Bytes of one message's items: 8 MiB is the bound of a message (`docs/protocol.md` section 2), the rest is envelope.
pub(super) const MAX_ITEMS_LEN: usize = (8 << 20) - (64 << 10);

/// Values of a message outside its items.
const ENVELOPE_SLOTS: u64 = 64;

/// Values of an item beside its document.
const ITEM_SLOTS: u64 = 7;

/// Bytes of an item beside its document and its identifier.
const ITEM_LEN: usize = 128;

/// What one message may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameLimits {
    /// JSON values, or `None` when they are not counted.
    pub(super) frame_slots: Option<u64>,
}

impl FrameLimits {
    /// Values of all items of one message.
    pub(super) fn slots(&self) -> u64 {
        self.frame_slots
            .map_or(u64::MAX, |slots| slots.saturating_sub(ENVELOPE_SLOTS))
    }

    /// Values of one document: it must fit a message alone, or nobody could read it.
    pub(super) fn document_slots(&self) -> u64 {
        self.slots().saturating_sub(ITEM_SLOTS)
    }
}

/// What is left of one message.
#[derive(Debug)]
pub(super) struct Room {
    len: usize,
    slots: u64,
    empty: bool,
}

impl Room {
    pub(super) fn new(limits: &FrameLimits) -> Self {
        Self {
            len: MAX_ITEMS_LEN,
            slots: limits.slots(),
            empty: true,
        }
    }

    /// Takes room for an item; the first one always fits, so that a message makes progress.
    pub(super) fn take(&mut self, key: &DocumentKey, head: Option<&Head>) -> bool {
        // Six bytes: an identifier of control characters is escaped so.
        let len = head.map_or(0, |head| head.len) + key.id.len() * 6 + ITEM_LEN;
        let slots = head.map_or(0, |head| head.slots) + ITEM_SLOTS;
        let fits = len <= self.len && slots <= self.slots;
        if !fits && !self.empty {
            return false;
        }
        self.len = self.len.saturating_sub(len);
        self.slots = self.slots.saturating_sub(slots);
        self.empty = false;
        true
    }

    fn used(&self) -> usize {
        MAX_ITEMS_LEN - self.len
    }
}

/// Documents read during one turn, so that many watchers cost one read.
#[derive(Debug, Default)]
pub(super) struct Heads(HashMap<DocumentKey, Option<Head>>);

impl Heads {
    pub(super) fn put(&mut self, key: DocumentKey, head: Head) {
        self.0.insert(key, Some(head));
    }

    fn load(&mut self, space: &Space, key: &DocumentKey) -> Result<Option<&Head>, StoreError> {
        if !self.0.contains_key(key) {
            let head = sql::head(&space.connection, key)?;
            self.0.insert(key.clone(), head);
        }
        Ok(self.0.get(key).and_then(Option::as_ref))
    }
}

/// One sync, as large as a message allows.
#[derive(Debug)]
pub(super) struct Sync {
    pub(super) value: Value,
    /// Bytes it holds, about.
    pub(super) len: usize,
}

/// Takes what a session is due, as much as fits one message. Only a sync that leaves nothing behind claims the state of the
/// newest commit (`toSeq`) and confirms verdicts (`caughtUpLocalSeq`).
///
/// `from` is the state the sync builds on. An `answer` confirms verdicts whether or not one is due.
pub(super) fn take_sync(
    space: &Space,
    session: &mut Session,
    heads: &mut Heads,
    limits: &FrameLimits,
    from: u64,
    answer: bool,
) -> Result<Sync, StoreError> {
    let mut room = Room::new(limits);
    let mut upserts = Vec::new();
    let mut removes = Vec::new();
    while let Some(key) = session.dirty.first() {
        if session.documents().contains(key) {
            let head = heads.load(space, key)?;
            if !room.take(key, head) {
                break;
            }
            upserts.push(upsert(key, head));
        } else {
            if !room.take(key, None) {
                break;
            }
            removes.push(json!({"branch": "", "id": &*key.id, "scope": key.scope.name()}));
        }
        session.dirty.pop_first();
    }
    let complete = session.dirty.is_empty();
    let to = if complete { space.server_seq } else { from };
    session.synced_seq = to;
    let mut sync = Map::new();
    sync.insert("type".to_owned(), "sync".into());
    sync.insert("fromSeq".to_owned(), from.into());
    sync.insert("toSeq".to_owned(), to.into());
    sync.insert("upserts".to_owned(), upserts.into());
    sync.insert("removes".to_owned(), removes.into());
    if complete {
        if session.marker_due || (answer && session.caught_up > 0) {
            sync.insert("caughtUpLocalSeq".to_owned(), session.caught_up.into());
        }
        session.marker_due = false;
    }
    Ok(Sync {
        value: sync.into(),
        len: room.used(),
    })
}

/// The push of a sync.
pub(super) fn effect(key: &SessionKey, sync: Value) -> Value {
    json!({
        "type": "session/effect", "space": key.space.as_str(), "sessionId": &*key.id, "effect": sync,
    })
}

fn upsert(key: &DocumentKey, head: Option<&Head>) -> Value {
    let mut upsert = Map::new();
    upsert.insert("branch".to_owned(), "".into());
    upsert.insert("id".to_owned(), (*key.id).into());
    upsert.insert("scope".to_owned(), key.scope.name().into());
    upsert.insert("seq".to_owned(), head.map_or(0, |head| head.seq).into());
    match head.and_then(|head| head.document.clone()) {
        Some(document) => upsert.insert("doc".to_owned(), document),
        None => upsert.insert("deleted".to_owned(), true.into()),
    };
    upsert.into()
}
