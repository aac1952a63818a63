//! A commit as a client sends it.

use super::answer::Refusal;
use super::document::{DocumentKey, Scopes, document_id, safe_integer};
use super::genesis::Declarations;
use super::patch::PatchOp;
use super::pointer::{Path, parse_segments};
use serde_json::{Map, Value};

/// A well-formed commit. Borrows documents and patches from the request.
#[derive(Debug)]
pub(super) struct Commit<'a> {
    pub(super) confirmed: Vec<ConfirmedRead>,
    pub(super) pending: Vec<PendingRead>,
    pub(super) operations: Vec<Operation<'a>>,
    pub(super) preconditions: Vec<Precondition>,
    pub(super) declarations: Declarations,
}

/// What a commit read: a place of a document.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) key: DocumentKey,
    /// Segments from the document's root.
    pub(super) path: Path,
    /// Whether the commit depends on the keys at the place only, not on what is below them.
    pub(super) shallow: bool,
}

/// A read of what the server had confirmed.
#[derive(Debug)]
pub(super) struct ConfirmedRead {
    pub(super) read: Read,
    /// The commit whose state was read; 0 for absence.
    pub(super) seq: u64,
}

/// A read of what earlier commits of the same session wrote.
#[derive(Debug)]
pub(super) struct PendingRead {
    pub(super) read: Read,
    pub(super) local_seqs: Vec<u64>,
    pub(super) basis_seq: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Operation<'a> {
    pub(super) key: DocumentKey,
    pub(super) action: Action<'a>,
}

#[derive(Debug)]
pub(super) enum Action<'a> {
    Set(&'a Value),
    Patch {
        /// As sent, for history and answers.
        content: &'a Value,
        ops: Vec<PatchOp<'a>>,
    },
    Delete,
}

#[derive(Debug)]
pub(super) enum Precondition {
    OriginCommitted(u64),
    EntityAbsent(DocumentKey),
}

/// Reads `localSeq` alone: a replay is recognised before anything else is judged.
pub(super) fn local_seq(commit: &Value) -> Result<u64, Refusal> {
    commit
        .get("localSeq")
        .and_then(safe_integer)
        .ok_or_else(|| Refusal::protocol("commit localSeq must be an integer"))
}

impl<'a> Commit<'a> {
    pub(super) fn parse(commit: &'a Value, scopes: &Scopes) -> Result<Self, Refusal> {
        let members = commit.as_object().ok_or_else(Refusal::unparsable)?;
        check_branch(members)?;
        for unsupported in ["merge", "eventAppends"] {
            if members.contains_key(unsupported) {
                return Err(Refusal::protocol(format!("{unsupported} is not supported")));
            }
        }
        let reads = members
            .get("reads")
            .and_then(Value::as_object)
            .ok_or_else(|| Refusal::protocol("commit reads are required"))?;
        Ok(Self {
            confirmed: list(reads, "confirmed")?
                .iter()
                .map(|read| ConfirmedRead::parse(read, scopes))
                .collect::<Result<_, _>>()?,
            pending: list(reads, "pending")?
                .iter()
                .map(|read| PendingRead::parse(read, scopes))
                .collect::<Result<_, _>>()?,
            operations: operations(members, scopes)?,
            preconditions: match members.get("preconditions") {
                None => Vec::new(),
                Some(_) => list(members, "preconditions")?
                    .iter()
                    .map(|precondition| Precondition::parse(precondition, scopes))
                    .collect::<Result<_, _>>()?,
            },
            declarations: Declarations::parse(members)?,
        })
    }

    /// The documents a commit reads or writes.
    pub(super) fn keys(&self) -> impl Iterator<Item = &DocumentKey> {
        let confirmed = self.confirmed.iter().map(|read| &read.read.key);
        let pending = self.pending.iter().map(|read| &read.read.key);
        let written = self.operations.iter().map(|operation| &operation.key);
        confirmed.chain(pending).chain(written)
    }
}

impl Read {
    fn parse(members: &Map<String, Value>, scopes: &Scopes) -> Result<Self, Refusal> {
        check_branch(members)?;
        Ok(Self {
            key: key(members, scopes)?,
            path: parse_segments(members.get("path"))
                .ok_or_else(|| Refusal::protocol("commit read path must be a list of strings"))?,
            shallow: members.get("nonRecursive") == Some(&Value::Bool(true)),
        })
    }
}

impl ConfirmedRead {
    fn parse(value: &Value, scopes: &Scopes) -> Result<Self, Refusal> {
        let members = object(value)?;
        Ok(Self {
            read: Read::parse(members, scopes)?,
            seq: integer(members, "seq")?,
        })
    }
}

impl PendingRead {
    fn parse(value: &Value, scopes: &Scopes) -> Result<Self, Refusal> {
        let members = object(value)?;
        let local_seqs = match members.get("localSeq") {
            Some(Value::Array(stack)) if !stack.is_empty() => stack
                .iter()
                .map(safe_integer)
                .collect::<Option<_>>()
                .ok_or_else(|| malformed("localSeq"))?,
            _ => vec![integer(members, "localSeq")?],
        };
        Ok(Self {
            read: Read::parse(members, scopes)?,
            local_seqs,
            basis_seq: match members.get("basisSeq") {
                None => None,
                Some(_) => Some(integer(members, "basisSeq")?),
            },
        })
    }
}

impl Precondition {
    fn parse(value: &Value, scopes: &Scopes) -> Result<Self, Refusal> {
        let members = object(value)?;
        match members.get("kind").and_then(Value::as_str) {
            Some("origin-committed") => {
                Ok(Self::OriginCommitted(integer(members, "originLocalSeq")?))
            }
            Some("entity-absent") => Ok(Self::EntityAbsent(key(members, scopes)?)),
            _ => Err(Refusal::protocol("precondition is not supported")),
        }
    }
}

fn operations<'a>(
    members: &'a Map<String, Value>,
    scopes: &Scopes,
) -> Result<Vec<Operation<'a>>, Refusal> {
    let operations = list(members, "operations")?;
    if operations.is_empty() {
        return Err(Refusal::transaction(
            "memory v2 commit requires at least one operation",
        ));
    }
    operations
        .iter()
        .map(|value| operation(value, scopes))
        .collect()
}

fn operation<'a>(value: &'a Value, scopes: &Scopes) -> Result<Operation<'a>, Refusal> {
    let members = object(value)?;
    let action = match members.get("op").and_then(Value::as_str) {
        Some("set") => Action::Set(members.get("value").ok_or_else(|| malformed("value"))?),
        Some("patch") => {
            let content = members.get("patches").ok_or_else(|| malformed("patches"))?;
            let ops = content
                .as_array()
                .ok_or_else(|| malformed("patches"))?
                .iter()
                .map(PatchOp::parse)
                .collect::<Result<_, _>>()
                .map_err(Refusal::transaction)?;
            Action::Patch { content, ops }
        }
        Some("delete") => Action::Delete,
        _ => return Err(Refusal::protocol("operation is not supported")),
    };
    let key = key(members, scopes)?;
    // Written by a server's own machinery only, or never stored at all.
    let reserved = ["of:stream-events:", "of:server-execution-", "data:"];
    if reserved.iter().any(|prefix| key.id.starts_with(prefix)) {
        return Err(Refusal::protocol("document id is reserved"));
    }
    Ok(Operation { key, action })
}

fn key(members: &Map<String, Value>, scopes: &Scopes) -> Result<DocumentKey, Refusal> {
    let id = document_id(members.get("id")).ok_or_else(|| malformed("id"))?;
    let scope = scopes
        .resolve(members.get("scope"))
        .ok_or_else(|| malformed("scope"))?;
    Ok(DocumentKey {
        scope,
        id: id.into(),
    })
}

/// There is one branch, the default one.
fn check_branch(members: &Map<String, Value>) -> Result<(), Refusal> {
    match members.get("branch") {
        None => Ok(()),
        Some(Value::String(branch)) if branch.is_empty() => Ok(()),
        Some(_) => Err(Refusal::protocol("unknown branch")),
    }
}

fn object(value: &Value) -> Result<&Map<String, Value>, Refusal> {
    value.as_object().ok_or_else(|| malformed("element"))
}

fn list<'a>(members: &'a Map<String, Value>, name: &str) -> Result<&'a [Value], Refusal> {
    members
        .get(name)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .ok_or_else(|| malformed(name))
}

fn integer(members: &Map<String, Value>, name: &str) -> Result<u64, Refusal> {
    members
        .get(name)
        .and_then(safe_integer)
        .ok_or_else(|| malformed(name))
}

fn malformed(what: &str) -> Refusal {
    Refusal::protocol(format!("malformed commit {what}"))
}
