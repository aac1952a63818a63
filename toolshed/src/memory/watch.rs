//! `session.watch.set` and `session.watch.add`: what a session is told about from now on.

use super::answer::Refusal;
use super::document::{DocumentKey, Scopes};
use super::effect::{self, Heads};
use super::engine::Memory;
use super::holdings::Holdings;
use super::query::{Failure, parse_query};
use super::session::{SessionKey, Watch};
use memory_wire::message::is_identifier;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashSet};

impl Memory {
    /// Replaces the watches, and the views when the request names any. Everything is judged before anything changes.
    pub(super) fn watch_set(
        &mut self,
        key: &SessionKey,
        request: &Map<String, Value>,
    ) -> Result<Value, Failure> {
        let limits = self.limits();
        let session = self.sessions.get(key).ok_or_else(not_open)?;
        let watches = parse_watches(request.get("watches"), &session.scopes)?;
        let views = match request.get("views") {
            None => None,
            Some(views) => Some(parse_views(views, &session.scopes)?),
        };
        let holdings = Holdings::parse(request.get("holdings"), &session.scopes)?;
        let wanted: HashSet<DocumentKey> = watches
            .values()
            .chain(views.as_ref().unwrap_or(&session.views).values())
            .flat_map(|watch| watch.documents.iter().cloned())
            .collect();
        let room = self
            .sessions
            .has_room(key, wanted.len(), &self.options.watch_limits);
        if !room {
            return Err(too_many().into());
        }
        let space = self.store.space(&key.space)?.ok_or_else(not_open)?;
        let due: BTreeSet<DocumentKey> = match &holdings {
            Some(holdings) => holdings.difference(space, &wanted)?,
            // What is no longer watched is due as well: it is to be removed.
            None => wanted.union(session.documents()).cloned().collect(),
        };
        self.sessions.watch(key, watches, views);
        let session = self.sessions.get_mut(key).ok_or_else(not_open)?;
        session.dirty = due;
        if let Some(holdings) = holdings {
            session.holdings = holdings.len();
        }
        let from = session.seen_seq;
        let sync = effect::take_sync(space, session, &mut Heads::default(), &limits, from, true)?;
        let server_seq = space.server_seq;
        self.sessions.queue(key);
        Ok(json!({"serverSeq": server_seq, "sync": sync.value}))
    }

    /// Adds watches. One whose identifier is taken must be the same watch; one that is not refuses the request whole.
    pub(super) fn watch_add(
        &mut self,
        key: &SessionKey,
        request: &Map<String, Value>,
    ) -> Result<Value, Failure> {
        let limits = self.limits();
        let session = self.sessions.get(key).ok_or_else(not_open)?;
        let mut watches = parse_watches(request.get("watches"), &session.scopes)?;
        for (id, watch) in &watches {
            let same = session.watches.get(id).map(|w| w.digest == watch.digest);
            if same == Some(false) {
                return Err(Refusal::protocol(
                    "session.watch.add may not replace an existing watch id; use session.watch.set",
                )
                .into());
            }
        }
        watches.retain(|id, _| !session.watches.contains_key(id));
        let more: HashSet<&DocumentKey> = watches
            .values()
            .flat_map(|watch| &watch.documents)
            .filter(|document| !session.documents().contains(document))
            .collect();
        let total = session.documents().len() + more.len();
        let room = self
            .sessions
            .has_room(key, total, &self.options.watch_limits);
        if !room {
            return Err(too_many().into());
        }
        let space = self.store.space(&key.space)?.ok_or_else(not_open)?;
        let joined = self.sessions.watch_more(key, watches);
        let session = self.sessions.get_mut(key).ok_or_else(not_open)?;
        session.dirty.extend(joined);
        let from = session.synced_seq;
        let sync = effect::take_sync(space, session, &mut Heads::default(), &limits, from, true)?;
        let server_seq = space.server_seq;
        self.sessions.queue(key);
        Ok(json!({"serverSeq": server_seq, "sync": sync.value}))
    }
}

fn parse_watches(
    value: Option<&Value>,
    scopes: &Scopes,
) -> Result<BTreeMap<String, Watch>, Refusal> {
    let items = value.ok_or_else(Refusal::unparsable)?;
    collect(items, |item| {
        match item.get("kind").and_then(Value::as_str) {
            Some("graph" | "query") => {}
            _ => return Err(Refusal::query("watch kind is not supported")),
        }
        parse_query(item.get("query"), scopes)
    })
}

/// Views are kept as watches of their own name space: this server executes nothing, so their mode makes no difference.
fn parse_views(value: &Value, scopes: &Scopes) -> Result<BTreeMap<String, Watch>, Refusal> {
    collect(value, |item| parse_query(item.get("query"), scopes))
}

fn collect(
    value: &Value,
    parse: impl Fn(&Map<String, Value>) -> Result<Watch, Refusal>,
) -> Result<BTreeMap<String, Watch>, Refusal> {
    let items = value.as_array().ok_or_else(Refusal::unparsable)?;
    let mut watches: BTreeMap<String, Watch> = BTreeMap::new();
    for item in items {
        let item = item
            .as_object()
            .ok_or_else(|| Refusal::protocol("malformed watch"))?;
        let id = item
            .get("id")
            .and_then(Value::as_str)
            .filter(|id| is_identifier(id))
            .ok_or_else(|| Refusal::protocol("malformed watch id"))?;
        let watch = parse(item)?;
        let digest = watch.digest;
        if let Some(earlier) = watches.insert(id.to_owned(), watch)
            && earlier.digest != digest
        {
            return Err(Refusal::protocol("two watches have one id"));
        }
    }
    Ok(watches)
}

fn not_open() -> Refusal {
    Refusal::session("Unknown session for space")
}

fn too_many() -> Refusal {
    Refusal::query("too many documents are watched")
}
