//! Queries: roots, `graph.query` and the listing of entity identifiers. Roots only: links are not followed.

use super::answer::Refusal;
use super::document::{DocumentKey, Scopes, content_digest, document_id, safe_integer};
use super::effect::{FrameLimits, Room};
use super::pointer::parse_segments;
use super::session::Watch;
use super::sql;
use super::store::{Space, StoreError};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;

/// Identifiers of one page of a listing.
const MAX_LISTED_IDS: usize = 1000;

/// A request that failed: by its own fault or by the store's.
#[derive(Debug)]
pub(super) enum Failure {
    Refused(Refusal),
    Store(StoreError),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Reads a `query` object: the documents it names and the digest that tells whether two queries are the same one.
pub(super) fn parse_query(query: Option<&Value>, scopes: &Scopes) -> Result<Watch, Refusal> {
    let query = query
        .and_then(Value::as_object)
        .ok_or_else(|| Refusal::query("malformed query"))?;
    match query.get("branch") {
        None => {}
        Some(Value::String(branch)) if branch.is_empty() => {}
        Some(_) => return Err(Refusal::query("unknown branch")),
    }
    if query.contains_key("atSeq") {
        return Err(Refusal::query("atSeq is not supported"));
    }
    if query
        .get("subscribe")
        .is_some_and(|set| *set != Value::Bool(false))
    {
        return Err(Refusal::protocol(
            "live graph.query subscriptions were removed; use session.watch.set",
        ));
    }
    let roots = query
        .get("roots")
        .and_then(Value::as_array)
        .ok_or_else(|| Refusal::query("malformed query roots"))?;
    let mut documents = BTreeSet::new();
    let mut digests = BTreeSet::new();
    for root in roots {
        let (document, digest) = parse_root(root, scopes)?;
        documents.insert(document);
        digests.insert(digest);
    }
    let mut digest = Sha256::new();
    digest.update([u8::from(
        query.get("excludeSent") == Some(&Value::Bool(true)),
    )]);
    for root in &digests {
        digest.update(root);
    }
    Ok(Watch {
        digest: digest.finalize().into(),
        documents,
    })
}

fn parse_root(root: &Value, scopes: &Scopes) -> Result<(DocumentKey, [u8; 32]), Refusal> {
    let malformed = || Refusal::query("malformed query root");
    let members = root.as_object().ok_or_else(malformed)?;
    if members.contains_key("entityScopeKey") {
        return Err(Refusal::query("entityScopeKey is not supported"));
    }
    let selector = members.get("selector").ok_or_else(malformed)?;
    parse_segments(selector.get("path")).ok_or_else(malformed)?;
    let scope = scopes.resolve(members.get("scope")).ok_or_else(malformed)?;
    let id = document_id(members.get("id")).ok_or_else(malformed)?;
    let mut digest = Sha256::new();
    for part in [
        content_digest(&id.into()),
        content_digest(&scope.name().into()),
        content_digest(selector),
    ] {
        digest.update(part);
    }
    let key = DocumentKey {
        scope,
        id: id.into(),
    };
    Ok((key, digest.finalize().into()))
}

/// Answers `graph.query`.
pub(super) fn graph_query(
    space: &Space,
    query: Option<&Value>,
    scopes: &Scopes,
    limits: &FrameLimits,
) -> Result<Value, Failure> {
    let query = parse_query(query, scopes)?;
    let mut room = Room::new(limits);
    let mut entities = Vec::with_capacity(query.documents.len());
    for key in &query.documents {
        let head = sql::head(&space.connection, key)?;
        // The first item always has room, and a document alone fits a message.
        if !room.take(key, head.as_ref()) {
            return Err(Refusal::query("query result does not fit one message").into());
        }
        let mut entity = Map::new();
        entity.insert("branch".to_owned(), "".into());
        entity.insert("id".to_owned(), (*key.id).into());
        if key.scope.name() != "space" {
            entity.insert("scope".to_owned(), key.scope.name().into());
        }
        let (seq, document) = head.map_or((0, None), |head| (head.seq, head.document));
        entity.insert("seq".to_owned(), seq.into());
        entity.insert("document".to_owned(), document.unwrap_or_default());
        entities.push(Value::Object(entity));
    }
    Ok(json!({"serverSeq": space.server_seq, "entities": entities}))
}

/// Answers `entity-id.list`.
pub(super) fn list_ids(space: &Space, request: &Map<String, Value>) -> Result<Value, Failure> {
    let malformed = |name: &str| Refusal::protocol(format!("malformed {name}"));
    let after = match request.get("after") {
        None => None,
        Some(after) => Some(document_id(Some(after)).ok_or_else(|| malformed("after"))?),
    };
    let limit = match request.get("limit") {
        None => None,
        Some(limit) => Some(
            safe_integer(limit)
                .filter(|limit| *limit > 0)
                .and_then(|limit| usize::try_from(limit).ok())
                .ok_or_else(|| malformed("limit"))?,
        ),
    };
    if let Some(expected) = request.get("expectedServerSeq") {
        let expected = safe_integer(expected).ok_or_else(|| malformed("expectedServerSeq"))?;
        if expected != space.server_seq {
            return Err(Refusal::new(
                "SnapshotChangedError",
                format!(
                    "entity identifier snapshot changed from server sequence {expected} to {}",
                    space.server_seq
                ),
            )
            .into());
        }
    }
    let paged = after.is_some() || limit.is_some() || request.contains_key("expectedServerSeq");
    let limit = limit.unwrap_or(MAX_LISTED_IDS).min(MAX_LISTED_IDS);
    let mut ids = sql::live_ids(&space.connection, after, limit + 1)?;
    let more = ids.len() > limit;
    if more && !paged {
        return Err(Refusal::protocol(
            "unpaginated entity identifier listing exceeds 1000 entries; use pagination",
        )
        .into());
    }
    ids.truncate(limit);
    let mut answer = Map::new();
    if more && let Some(last) = ids.last() {
        answer.insert("nextAfter".to_owned(), last.as_str().into());
    }
    answer.insert("serverSeq".to_owned(), space.server_seq.into());
    answer.insert("ids".to_owned(), ids.into());
    Ok(answer.into())
}

/// Answers `entity-id.exists`.
pub(super) fn id_exists(space: &Space, request: &Map<String, Value>) -> Result<Value, Failure> {
    let id = document_id(request.get("id")).ok_or_else(|| Refusal::protocol("malformed id"))?;
    let state = sql::head_state(&space.connection, &DocumentKey::in_space(id))?;
    let exists = state.is_some_and(|(_, deleted)| !deleted);
    Ok(json!({"serverSeq": space.server_seq, "exists": exists}))
}
