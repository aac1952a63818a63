//! Applying a commit: replay, conflicts, operations, all in one transaction.

use super::acl::{self, AclState, Capability};
use super::answer::Refusal;
use super::commit::{Action, Commit, ConfirmedRead, PendingRead, Precondition, Read, local_seq};
use super::document::{
    DocumentKey, MAX_DOCUMENT_DEPTH, MAX_DOCUMENT_LEN, Measure, content_digest, is_plain_object,
};
use super::effect::FrameLimits;
use super::patch::{self, Budget, PatchOp};
use super::session::Session;
use super::sql::{self, Head, Revision};
use super::store::{GENESIS_ROOT, SPACE_KIND, Space, StoreError};
use memory_wire::Did;
use rusqlite::{Connection, TransactionBehavior};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of all documents one commit may leave behind. A small patch may touch large documents, and every watcher gets them.
const MAX_WRITTEN_LEN: usize = 16 << 20;

/// Bytes of documents and patches an answer repeats; a larger commit's answer names its revisions without them.
const MAX_ECHO_LEN: usize = 4 << 20;

/// Values a revision of an answer has beside its document or patches.
const REVISION_SLOTS: u64 = 9;

/// Conflicts an answer names.
const MAX_NAMED_CONFLICTS: usize = 256;

/// An accepted commit.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) answer: Value,
    pub(super) local_seq: u64,
    /// Empty for a replay.
    pub(super) changes: BTreeMap<DocumentKey, Change>,
    pub(super) acl_changed: bool,
}

/// What a commit made of one document.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) head: Head,
    /// Whether the last operation was a patch, of which the writer does not know the outcome.
    pub(super) patched: bool,
}

/// A commit that was not accepted. It leaves nothing behind.
#[derive(Debug)]
pub(super) enum Rejection {
    Refused(Refusal),
    /// Its session gets what it read and wished to write again.
    Conflict {
        refusal: Refusal,
        local_seq: u64,
        documents: BTreeSet<DocumentKey>,
    },
    Store(StoreError),
}

impl From<Refusal> for Rejection {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<StoreError> for Rejection {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<rusqlite::Error> for Rejection {
    fn from(error: rusqlite::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Judges and applies one commit. The caller has checked that the session is live, leased and may read.
pub(super) fn transact(
    space: &mut Space,
    did: &Did,
    session: &Session,
    commit: &Value,
    limits: &FrameLimits,
) -> Result<Applied, Rejection> {
    let touches_acl = acl::touches_acl(commit, did);
    let need = if touches_acl {
        acl::check_acl_commit(commit)?;
        Capability::Owner
    } else {
        Capability::Write
    };
    space
        .acl
        .require(did, &session.principal, session.service, need)?;
    if !touches_acl && matches!(space.acl, AclState::Unclaimed) {
        return Err(Refusal::authorization(format!(
            "Space {did} requires an ACL genesis commit before ordinary writes"
        ))
        .into());
    }
    let local_seq = local_seq(commit)?;
    let digest = content_digest(commit);
    let (principal, id) = (session.principal.as_str(), &*session.id);
    if let Some((seq, earlier)) = sql::commit_of(&space.connection, principal, id, local_seq)? {
        if earlier != digest {
            return Err(Refusal::protocol(format!(
                "commit replay mismatch for session {id} localSeq {local_seq}"
            ))
            .into());
        }
        let mut answer = answer(&space.connection, seq, limits)?;
        answer.insert("replayed".to_owned(), true.into());
        return Ok(Applied {
            answer: answer.into(),
            local_seq,
            changes: BTreeMap::new(),
            acl_changed: false,
        });
    }
    let parsed = Commit::parse(commit, &session.scopes)?;
    check_declarations(&parsed, session, space)?;
    let head = space.server_seq;
    let seq = head + 1;
    let transaction = space
        .connection
        .transaction_with_behavior(TransactionBehavior::Immediate)?;
    let conflict = |refusal: Refusal| Rejection::Conflict {
        refusal: refusal.with("retryAfterSeq", head),
        local_seq,
        documents: parsed.keys().cloned().collect(),
    };
    let mut scan = sql::MAX_SCANNED_LEN;
    if let Some(refusal) = confirmed_conflict(&transaction, &parsed.confirmed, &mut scan)? {
        return Err(conflict(refusal));
    }
    for read in &parsed.pending {
        let owner = (principal, id);
        if let Some(refusal) = pending_conflict(&transaction, read, owner, head, &mut scan)? {
            return Err(conflict(refusal));
        }
    }
    check_preconditions(&transaction, &parsed.preconditions, (principal, id))?;
    sql::insert_commit(&transaction, seq, (principal, id), local_seq, &digest)?;
    let changes = write(&transaction, seq, &parsed, limits)?;
    if let Some(root) = &parsed.declarations.genesis_root {
        sql::insert_fact(&transaction, GENESIS_ROOT, &root.to_string())?;
    }
    if let Some(kind) = &parsed.declarations.space_kind {
        sql::insert_fact(&transaction, SPACE_KIND, kind)?;
    }
    let answer = answer(&transaction, seq, limits)?;
    transaction.commit()?;
    space.server_seq = seq;
    if !parsed.declarations.is_empty() {
        space.genesis_root = parsed.declarations.genesis_root;
        space.space_kind = parsed.declarations.space_kind;
    }
    if touches_acl {
        space.reload_acl(did)?;
    }
    Ok(Applied {
        answer: answer.into(),
        local_seq,
        changes,
        acl_changed: touches_acl,
    })
}

/// Writes commit 1 of an empty space without asking anybody.
pub(super) fn seed(
    space: &mut Space,
    did: &Did,
    session: &Session,
    operations: &[Value],
    limits: &FrameLimits,
) -> Result<(), Rejection> {
    let commit = json!({
        "localSeq": 1,
        "reads": {"confirmed": [], "pending": []},
        "operations": operations,
    });
    let parsed = Commit::parse(&commit, &session.scopes)?;
    let transaction = space
        .connection
        .transaction_with_behavior(TransactionBehavior::Immediate)?;
    let owner = (session.principal.as_str(), &*session.id);
    sql::insert_commit(&transaction, 1, owner, 1, &content_digest(&commit))?;
    write(&transaction, 1, &parsed, limits)?;
    transaction.commit()?;
    space.server_seq = 1;
    space.reload_acl(did)?;
    Ok(())
}

/// Declarations belong to the genesis commit, and to what its session was opened with.
fn check_declarations(
    commit: &Commit<'_>,
    session: &Session,
    space: &Space,
) -> Result<(), Refusal> {
    if commit.declarations.is_empty() {
        return Ok(());
    }
    if space.server_seq > 0 {
        return Err(Refusal::protocol(
            "genesis declarations are only valid in the first commit",
        ));
    }
    commit.declarations.check_declared(&session.declarations)
}

fn confirmed_conflict(
    db: &Connection,
    reads: &[ConfirmedRead],
    scan: &mut usize,
) -> Result<Option<Refusal>, StoreError> {
    let mut message = None;
    let mut conflicts = Vec::new();
    for ConfirmedRead { read, seq } in reads {
        let changed = sql::first_conflict(db, &read.key, *seq, scan, |revision| {
            overlaps(revision, read)
        })?;
        let Some(changed) = changed else {
            continue;
        };
        let id = &read.key.id;
        message.get_or_insert_with(|| {
            format!("stale confirmed read: {id} at seq {seq} conflicted with seq {changed}")
        });
        conflicts.push(json!({
            "of": &**id, "scope": read.key.scope.name(), "seq": seq, "conflictSeq": changed,
        }));
        if conflicts.len() == MAX_NAMED_CONFLICTS {
            break;
        }
    }
    Ok(message.map(|message| Refusal::new("ConflictError", message).with("conflicts", conflicts)))
}

/// A pending read holds when each commit it names was accepted and nobody else has written the place since.
fn pending_conflict(
    db: &Connection,
    pending: &PendingRead,
    (principal, session): (&str, &str),
    head: u64,
    scan: &mut usize,
) -> Result<Option<Refusal>, Rejection> {
    let mut named = BTreeSet::new();
    for local_seq in &pending.local_seqs {
        match sql::commit_of(db, principal, session, *local_seq)? {
            Some((seq, _)) => named.insert(seq),
            None => {
                return Ok(Some(Refusal::new(
                    "ConflictError",
                    format!("pending dependency not resolved: {local_seq}"),
                )));
            }
        };
    }
    let since = match pending.basis_seq {
        Some(basis) if basis > head => {
            return Err(Refusal::protocol("pending read basisSeq is ahead of the server").into());
        }
        Some(basis) => basis,
        None => named.last().copied().unwrap_or_default(),
    };
    let read = &pending.read;
    let changed = sql::first_conflict(db, &read.key, since, scan, |revision| {
        Ok(!named.contains(&revision.seq) && overlaps(revision, read)?)
    })?;
    Ok(changed.map(|changed| {
        let via = pending.local_seqs.last().copied().unwrap_or_default();
        let id = &read.key.id;
        Refusal::new(
            "ConflictError",
            format!("stale pending read: {id} via localSeq {via} conflicted with seq {changed}"),
        )
    }))
}

fn overlaps(revision: &Revision, read: &Read) -> Result<bool, StoreError> {
    if revision.op != "patch" {
        return Ok(true);
    }
    let content = revision.content.as_deref().unwrap_or_default();
    let patches: Vec<Value> =
        serde_json::from_str(content).map_err(|_| StoreError::Damaged("patches"))?;
    for patch in &patches {
        let op = PatchOp::parse(patch).map_err(|_| StoreError::Damaged("patch"))?;
        if op.touches(&read.path, read.shallow) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn check_preconditions(
    db: &Connection,
    preconditions: &[Precondition],
    (principal, session): (&str, &str),
) -> Result<(), Rejection> {
    let failed = |kind: &str| {
        Refusal::new("PreconditionFailedError", format!("{kind} does not hold"))
            .with("precondition", kind)
    };
    for precondition in preconditions {
        match precondition {
            Precondition::OriginCommitted(origin) => {
                if sql::commit_of(db, principal, session, *origin)?.is_none() {
                    return Err(failed("origin-committed").into());
                }
            }
            Precondition::EntityAbsent(key) => {
                if sql::head_state(db, key)?.is_some_and(|(_, deleted)| !deleted) {
                    return Err(failed("receipt-exists").into());
                }
            }
        }
    }
    Ok(())
}

struct Draft {
    document: Option<Value>,
    patched: bool,
}

/// Writes revisions and heads.
fn write(
    db: &Connection,
    seq: u64,
    commit: &Commit<'_>,
    limits: &FrameLimits,
) -> Result<BTreeMap<DocumentKey, Change>, Rejection> {
    let count = commit.operations.len() as u64;
    if count.saturating_mul(REVISION_SLOTS) > limits.slots() {
        return Err(Refusal::transaction("commit has too many operations").into());
    }
    let mut budget = Budget::new();
    let mut loaded = 0_usize;
    let mut drafts: BTreeMap<&DocumentKey, Draft> = BTreeMap::new();
    for (op_index, operation) in (0_u64..).zip(&commit.operations) {
        let key = &operation.key;
        let (op, content, draft) = match &operation.action {
            Action::Set(document) => {
                if !is_plain_object(document) {
                    return Err(Refusal::transaction("document root is not an object").into());
                }
                let draft = Draft {
                    document: Some((*document).clone()),
                    patched: false,
                };
                ("set", Some(*document), draft)
            }
            Action::Delete => {
                let draft = Draft {
                    document: None,
                    patched: false,
                };
                ("delete", None, draft)
            }
            Action::Patch { content, ops } => {
                let earlier = match drafts.remove(key) {
                    Some(draft) => draft.document,
                    None => match sql::head(db, key)? {
                        Some(head) => {
                            loaded = loaded.saturating_add(head.len);
                            head.document
                        }
                        None => None,
                    },
                };
                if loaded > MAX_WRITTEN_LEN {
                    return Err(Refusal::transaction("commit patches too much content").into());
                }
                let mut document = earlier.unwrap_or_else(|| Value::Object(Map::new()));
                patch::apply(&mut document, ops, &mut budget).map_err(Refusal::transaction)?;
                let draft = Draft {
                    document: Some(document),
                    patched: true,
                };
                ("patch", Some(*content), draft)
            }
        };
        let text = content.map(Value::to_string);
        sql::insert_revision(db, (seq, op_index), key, op, text.as_deref())?;
        drafts.insert(key, draft);
    }
    let mut written = 0_usize;
    let mut changes = BTreeMap::new();
    for (key, draft) in drafts {
        let change = write_head(db, seq, key, draft, limits)?;
        written = written.saturating_add(change.head.len);
        if written > MAX_WRITTEN_LEN {
            return Err(Refusal::transaction("commit leaves too much content").into());
        }
        changes.insert(key.clone(), change);
    }
    Ok(changes)
}

fn write_head(
    db: &Connection,
    seq: u64,
    key: &DocumentKey,
    draft: Draft,
    limits: &FrameLimits,
) -> Result<Change, Rejection> {
    let text = draft.document.as_ref().map(Value::to_string);
    let slots = match &draft.document {
        None => 0,
        Some(document) => {
            let measure = Measure::of(document);
            if measure.depth > MAX_DOCUMENT_DEPTH {
                return Err(Refusal::transaction("document is too deep").into());
            }
            if measure.slots > limits.document_slots() {
                return Err(Refusal::transaction("document has too many values").into());
            }
            measure.slots
        }
    };
    let len = text.as_ref().map_or(0, String::len);
    if len > MAX_DOCUMENT_LEN {
        return Err(Refusal::transaction("document is too large").into());
    }
    sql::write_head(db, key, seq, text.as_deref(), slots)?;
    Ok(Change {
        head: Head {
            seq,
            document: draft.document,
            len,
            slots,
        },
        patched: draft.patched,
    })
}

/// The answer to a commit, from history: the first time and when it is replayed.
fn answer(
    db: &Connection,
    seq: u64,
    limits: &FrameLimits,
) -> Result<Map<String, Value>, StoreError> {
    let rows = sql::revisions_of(db, seq)?;
    let len: usize = rows
        .iter()
        .map(|row| row.content.as_ref().map_or(0, String::len))
        .sum();
    let mut contents = Vec::with_capacity(rows.len());
    let mut slots = rows.len() as u64 * REVISION_SLOTS;
    if len <= MAX_ECHO_LEN {
        for row in &rows {
            let content: Option<Value> = row
                .content
                .as_deref()
                .map(serde_json::from_str)
                .transpose()
                .map_err(|_| StoreError::Damaged("revision"))?;
            slots += content.as_ref().map_or(0, |value| Measure::of(value).slots);
            contents.push(content);
        }
    }
    if slots > limits.slots() {
        contents.clear();
    }
    let mut contents = contents.into_iter();
    let revisions: Vec<Value> = rows
        .iter()
        .map(|row| revision(row, contents.next().flatten()))
        .collect();
    let mut answer = Map::new();
    answer.insert("seq".to_owned(), seq.into());
    answer.insert("branch".to_owned(), "".into());
    answer.insert("revisions".to_owned(), revisions.into());
    Ok(answer)
}

fn revision(row: &Revision, content: Option<Value>) -> Value {
    let mut revision = json!({
        "id": row.id, "scopeKey": row.scope, "branch": "", "seq": row.seq, "opIndex": row.op_index,
        "commitSeq": row.seq, "op": row.op,
    });
    if let Some(members) = revision.as_object_mut() {
        if let Some((scope, _)) = row.scope.split_once(':') {
            members.insert("scope".to_owned(), scope.into());
        }
        if let Some(content) = content {
            let name = if row.op == "set" {
                "document"
            } else {
                "patches"
            };
            members.insert(name.to_owned(), content);
        }
    }
    revision
}
