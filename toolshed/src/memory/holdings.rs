//! What a client states that it holds already, so that it is not sent again.

use super::answer::Refusal;
use super::document::{DocumentKey, Scopes, document_id, safe_integer};
use super::sql;
use super::store::{Space, StoreError};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Holdings of one request (`docs/protocol.md` section 4.5).
const MAX_HOLDINGS: usize = 8192;

/// A statement of holdings.
#[derive(Debug)]
pub(super) struct Holdings(BTreeMap<DocumentKey, (u64, bool)>);

impl Holdings {
    /// Reads a request's `holdings`; `None` when it makes no statement, which differs from holding nothing.
    pub(super) fn parse(value: Option<&Value>, scopes: &Scopes) -> Result<Option<Self>, Refusal> {
        let malformed = || Refusal::protocol("malformed holdings");
        let Some(value) = value else {
            return Ok(None);
        };
        let items = value.as_array().ok_or_else(malformed)?;
        if items.len() > MAX_HOLDINGS {
            return Err(Refusal::protocol("too many holdings"));
        }
        let mut holdings = BTreeMap::new();
        for item in items {
            let id = document_id(item.get("id")).ok_or_else(malformed)?;
            let scope = scopes.resolve(item.get("scope")).ok_or_else(malformed)?;
            match item.get("branch") {
                None => {}
                Some(Value::String(branch)) if branch.is_empty() => {}
                Some(_) => return Err(malformed()),
            }
            let seq = item
                .get("seq")
                .and_then(safe_integer)
                .ok_or_else(malformed)?;
            let deleted = item.get("deleted") == Some(&Value::Bool(true));
            let key = DocumentKey {
                scope,
                id: id.into(),
            };
            holdings.insert(key, (seq, deleted));
        }
        Ok(Some(Self(holdings)))
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Where the client differs from what it is to have: documents to send and documents to remove.
    pub(super) fn difference(
        &self,
        space: &Space,
        wanted: &HashSet<DocumentKey>,
    ) -> Result<BTreeSet<DocumentKey>, StoreError> {
        let mut differing: BTreeSet<DocumentKey> = self
            .0
            .keys()
            .filter(|key| !wanted.contains(key))
            .cloned()
            .collect();
        for key in wanted {
            // A document that never was is told as deleted at 0.
            let state = sql::head_state(&space.connection, key)?.unwrap_or((0, true));
            if self.0.get(key) != Some(&state) {
                differing.insert(key.clone());
            }
        }
        Ok(differing)
    }
}
