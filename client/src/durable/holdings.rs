//! What the application has been given: told to the toolshed after a reconnect, so that only differences are sent.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// Documents remembered: what may be declared on a routed connection (seed, "The SDK declares at most 8,192 holdings"). A
/// document beyond them is sent again after a reconnect.
pub(crate) const MAX_HOLDINGS: usize = 8192;
/// Bytes of identifiers remembered.
const MAX_HOLDINGS_LEN: usize = 1 << 20;

/// A document of the session's space.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Document {
    pub(crate) id: String,
    /// Empty for the default branch.
    branch: String,
    /// Empty for `space`.
    scope: String,
}

impl Document {
    /// Reads `id`, `branch` and `scope` of an upsert, a remove, a root or a holding.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        Some(Self {
            id: text("id")?.to_owned(),
            branch: text("branch").unwrap_or_default().to_owned(),
            scope: match text("scope") {
                None | Some("space") => String::new(),
                Some(scope) => scope.to_owned(),
            },
        })
    }

    fn members(&self) -> Map<String, Value> {
        let mut members = Map::new();
        members.insert("id".to_owned(), self.id.as_str().into());
        if !self.branch.is_empty() {
            members.insert("branch".to_owned(), self.branch.as_str().into());
        }
        if !self.scope.is_empty() {
            members.insert("scope".to_owned(), self.scope.as_str().into());
        }
        members
    }

    fn len(&self) -> usize {
        self.id.len() + self.branch.len() + self.scope.len()
    }
}

/// The state in which a document is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    seq: u64,
    deleted: bool,
}

/// Documents and the state in which each is held.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    documents: BTreeMap<Document, State>,
    len: usize,
}

impl Holdings {
    /// Holdings as [`Self::declare`] wrote them.
    pub(crate) fn restore(declared: &[Value]) -> Self {
        let mut holdings = Self::default();
        for holding in declared {
            holdings.upsert(holding);
        }
        holdings
    }

    /// Takes over what a sync delivered.
    pub(crate) fn apply(&mut self, sync: &Value) {
        let list = |name: &str| {
            sync.get(name)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
        };
        for upsert in list("upserts") {
            self.upsert(upsert);
        }
        for remove in list("removes") {
            if let Some(document) = Document::of(remove)
                && self.documents.remove(&document).is_some()
            {
                self.len = self.len.saturating_sub(document.len());
            }
        }
    }

    /// Takes over what an own commit made of documents held: its `set` and `delete` are not sent back to its session. What a
    /// patch made is.
    pub(crate) fn committed(&mut self, answer: &Value) {
        let revisions = answer.get("revisions").and_then(Value::as_array);
        for revision in revisions.into_iter().flatten() {
            let deleted = match revision.get("op").and_then(Value::as_str) {
                Some("set") => false,
                Some("delete") => true,
                _ => continue,
            };
            let seq = revision.get("seq").and_then(Value::as_u64);
            if let (Some(document), Some(seq)) = (Document::of(revision), seq)
                && let Some(held) = self.documents.get_mut(&document)
                && held.seq < seq
            {
                *held = State { seq, deleted };
            }
        }
    }

    /// Statements of holdings, as many as `room` bytes take, of those documents that `wanted` names.
    pub(crate) fn declare(&self, room: usize, wanted: impl Fn(&Document) -> bool) -> Vec<Value> {
        let mut left = room;
        let mut declared = Vec::new();
        for (document, state) in &self.documents {
            if !wanted(document) {
                continue;
            }
            let mut members = document.members();
            members.insert("seq".to_owned(), state.seq.into());
            if state.deleted {
                members.insert("deleted".to_owned(), true.into());
            }
            let holding = Value::Object(members);
            let len = holding.to_string().len() + 1;
            if len > left {
                break;
            }
            left -= len;
            declared.push(holding);
        }
        declared
    }

    /// Holdings of an application that has not read `unread` yet, in that order: of what those syncs name it holds some other
    /// state, stated as one that no document has.
    pub(crate) fn declare_before<'a>(&self, unread: impl Iterator<Item = &'a Value>) -> Vec<Value> {
        let list = |sync: &'a Value, name: &str| {
            let items = sync.get(name).and_then(Value::as_array);
            items.into_iter().flatten().filter_map(Document::of)
        };
        let changed: BTreeSet<Document> = unread
            .flat_map(|sync| list(sync, "upserts").chain(list(sync, "removes")))
            .collect();
        let mut declared = self.declare(usize::MAX, |document| !changed.contains(document));
        for document in changed
            .iter()
            .take(MAX_HOLDINGS - declared.len().min(MAX_HOLDINGS))
        {
            let mut members = document.members();
            members.insert("seq".to_owned(), 0.into());
            declared.push(Value::Object(members));
        }
        declared
    }

    /// Forgets everything: all of it will be sent again.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    fn upsert(&mut self, upsert: &Value) {
        let seq = upsert.get("seq").and_then(Value::as_u64);
        let (Some(document), Some(seq)) = (Document::of(upsert), seq) else {
            return;
        };
        let deleted = upsert.get("deleted") == Some(&Value::Bool(true));
        let state = State { seq, deleted };
        if let Some(held) = self.documents.get_mut(&document) {
            *held = state;
        } else if self.documents.len() < MAX_HOLDINGS
            && self.len + document.len() <= MAX_HOLDINGS_LEN
        {
            self.len += document.len();
            self.documents.insert(document, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn all(holdings: &Holdings) -> Vec<Value> {
        holdings.declare(usize::MAX, |_| true)
    }

    #[test]
    fn syncs_and_own_commits_are_followed() {
        let mut holdings = Holdings::default();
        holdings.apply(&json!({
            "upserts": [
                {"branch": "", "id": "of:a", "scope": "space", "seq": 3, "doc": {}},
                {"branch": "", "id": "of:b", "scope": "user", "seq": 4, "deleted": true},
            ],
            "removes": [],
        }));
        let expected = [
            json!({"id": "of:a", "seq": 3}),
            json!({"id": "of:b", "scope": "user", "seq": 4, "deleted": true}),
        ];
        assert_eq!(all(&holdings), expected);
        holdings.committed(&json!({"seq": 9, "revisions": [
            {"id": "of:a", "scopeKey": "space", "branch": "", "seq": 9, "op": "delete"},
            {"id": "of:new", "branch": "", "seq": 9, "op": "set"},
        ]}));
        holdings.apply(&json!({"upserts": [], "removes": [{"id": "of:b", "scope": "user"}]}));
        let expected = [json!({"id": "of:a", "seq": 9, "deleted": true})];
        assert_eq!(all(&holdings), expected);
        assert_eq!(all(&Holdings::restore(&expected)), expected);
    }

    #[test]
    fn no_more_than_may_be_declared_is_kept() {
        let upserts: Vec<Value> = (0..MAX_HOLDINGS + 5)
            .map(|n| json!({"id": format!("of:{n}"), "seq": 1}))
            .collect();
        let mut holdings = Holdings::default();
        holdings.apply(&json!({ "upserts": upserts }));
        assert_eq!(all(&holdings).len(), MAX_HOLDINGS);
        assert_eq!(holdings.declare(100, |_| true).len(), 4);
    }
}
