//! Every statement of the engine. Callers that need several to be one run them in one transaction.

use super::document::{DocumentKey, MAX_DOCUMENT_LEN};
use super::store::StoreError;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;

/// Revisions looked at for one read before it counts as a conflict unseen.
const MAX_SCANNED_REVISIONS: i64 = 512;

/// Bytes of patches looked at for one commit before every newer write counts as a conflict unseen.
pub(super) const MAX_SCANNED_LEN: usize = 64 << 20;

/// Sessions of one principal whose tokens are remembered in one space; the oldest are forgotten first.
const MAX_SESSIONS_PER_PRINCIPAL: i64 = 1024;

/// A document as the newest commit left it.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub(super) seq: u64,
    /// `None` when deleted.
    pub(super) document: Option<Value>,
    /// Bytes of the stored text.
    pub(super) len: usize,
    /// Values of the document.
    pub(super) slots: u64,
}

/// One operation of a commit, as history keeps it.
#[derive(Debug)]
pub(super) struct Revision {
    pub(super) seq: u64,
    pub(super) op_index: u64,
    pub(super) scope: String,
    pub(super) id: String,
    pub(super) op: String,
    /// The document of a `set`, the patches of a `patch`.
    pub(super) content: Option<String>,
}

/// A remembered session.
#[derive(Debug)]
pub(super) struct SessionRow {
    pub(super) principal: String,
    pub(super) token: String,
    pub(super) earlier_token: Option<String>,
}

pub(super) fn server_seq(db: &Connection) -> Result<u64, StoreError> {
    let seq: Option<i64> = db
        .prepare_cached("SELECT max(seq) FROM commits")?
        .query_row([], |row| row.get(0))?;
    unsigned(seq.unwrap_or_default())
}

pub(super) fn fact(db: &Connection, name: &str) -> Result<Option<String>, StoreError> {
    Ok(db
        .prepare_cached("SELECT value FROM facts WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?)
}

pub(super) fn insert_fact(db: &Connection, name: &str, value: &str) -> Result<(), StoreError> {
    db.prepare_cached("INSERT INTO facts (name, value) VALUES (?1, ?2)")?
        .execute([name, value])?;
    Ok(())
}

pub(super) fn head(db: &Connection, key: &DocumentKey) -> Result<Option<Head>, StoreError> {
    let row = db
        .prepare_cached("SELECT seq, document, slots FROM heads WHERE scope = ?1 AND id = ?2")?
        .query_row([key.scope.as_str(), &key.id], |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, Option<String>>(1)?,
                row.get::<_, i64>(2)?,
            ))
        })
        .optional()?;
    let Some((seq, text, slots)) = row else {
        return Ok(None);
    };
    let len = text.as_ref().map_or(0, String::len);
    let document = text
        .map(|text| serde_json::from_str(&text))
        .transpose()
        .map_err(|_| StoreError::Damaged("document"))?;
    Ok(Some(Head {
        seq: unsigned(seq)?,
        document,
        len,
        slots: unsigned(slots)?,
    }))
}

/// The number of the commit that last wrote the document and whether that deleted it.
pub(super) fn head_state(
    db: &Connection,
    key: &DocumentKey,
) -> Result<Option<(u64, bool)>, StoreError> {
    let row = db
        .prepare_cached("SELECT seq, document IS NULL FROM heads WHERE scope = ?1 AND id = ?2")?
        .query_row([key.scope.as_str(), &key.id], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?))
        })
        .optional()?;
    row.map(|(seq, deleted)| Ok((unsigned(seq)?, deleted)))
        .transpose()
}

/// Writes a head. `text` is `None` for a deleted document.
pub(super) fn write_head(
    db: &Connection,
    key: &DocumentKey,
    seq: u64,
    text: Option<&str>,
    slots: u64,
) -> Result<(), StoreError> {
    debug_assert!(text.is_none_or(|text| text.len() <= MAX_DOCUMENT_LEN));
    db.prepare_cached(
        "INSERT INTO heads (scope, id, seq, document, slots) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (scope, id) DO UPDATE
         SET seq = excluded.seq, document = excluded.document, slots = excluded.slots",
    )?
    .execute(params![
        key.scope.as_str(),
        &*key.id,
        signed(seq)?,
        text,
        signed(slots)?
    ])?;
    Ok(())
}

/// The commit a session submitted under `local_seq`: its number and the digest of its content.
pub(super) fn commit_of(
    db: &Connection,
    principal: &str,
    session: &str,
    local_seq: u64,
) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
    let row = db
        .prepare_cached(
            "SELECT seq, digest FROM commits
             WHERE principal = ?1 AND session = ?2 AND local_seq = ?3",
        )?
        .query_row(params![principal, session, signed(local_seq)?], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?))
        })
        .optional()?;
    row.map(|(seq, digest)| Ok((unsigned(seq)?, digest)))
        .transpose()
}

/// The highest `localSeq` a session has committed; 0 for none.
pub(super) fn last_local_seq(
    db: &Connection,
    principal: &str,
    session: &str,
) -> Result<u64, StoreError> {
    let last: Option<i64> = db
        .prepare_cached("SELECT max(local_seq) FROM commits WHERE principal = ?1 AND session = ?2")?
        .query_row([principal, session], |row| row.get(0))?;
    unsigned(last.unwrap_or_default())
}

pub(super) fn insert_commit(
    db: &Connection,
    seq: u64,
    (principal, session): (&str, &str),
    local_seq: u64,
    digest: &[u8],
) -> Result<(), StoreError> {
    db.prepare_cached(
        "INSERT INTO commits (seq, principal, session, local_seq, digest)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![
        signed(seq)?,
        principal,
        session,
        signed(local_seq)?,
        digest
    ])?;
    Ok(())
}

pub(super) fn insert_revision(
    db: &Connection,
    (seq, op_index): (u64, u64),
    key: &DocumentKey,
    op: &str,
    content: Option<&str>,
) -> Result<(), StoreError> {
    db.prepare_cached(
        "INSERT INTO revisions (seq, op_index, scope, id, op, content)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        signed(seq)?,
        signed(op_index)?,
        key.scope.as_str(),
        &*key.id,
        op,
        content
    ])?;
    Ok(())
}

/// The operations of one commit, in order.
pub(super) fn revisions_of(db: &Connection, seq: u64) -> Result<Vec<Revision>, StoreError> {
    let mut statement = db.prepare_cached(
        "SELECT seq, op_index, scope, id, op, content FROM revisions WHERE seq = ?1
         ORDER BY op_index",
    )?;
    let mut rows = statement.query([signed(seq)?])?;
    let mut revisions = Vec::new();
    while let Some(row) = rows.next()? {
        revisions.push(revision(row)?);
    }
    Ok(revisions)
}

/// The first revision of a document after `seq` that `conflicts` says yes to; the number of its commit. A document with
/// more than [`MAX_SCANNED_REVISIONS`] newer revisions conflicts by that alone, and so does any that `budget`, the bytes
/// still to be looked at, does not suffice for.
pub(super) fn first_conflict(
    db: &Connection,
    key: &DocumentKey,
    seq: u64,
    budget: &mut usize,
    mut conflicts: impl FnMut(&Revision) -> Result<bool, StoreError>,
) -> Result<Option<u64>, StoreError> {
    match head_state(db, key)? {
        Some((head, _)) if head > seq => {}
        _ => return Ok(None),
    }
    let mut statement = db.prepare_cached(
        "SELECT seq, op_index, scope, id, op, content FROM revisions
         WHERE scope = ?1 AND id = ?2 AND seq > ?3 ORDER BY seq LIMIT ?4",
    )?;
    let mut rows = statement.query(params![
        key.scope.as_str(),
        &*key.id,
        signed(seq)?,
        MAX_SCANNED_REVISIONS
    ])?;
    let mut scanned = 0;
    while let Some(row) = rows.next()? {
        scanned += 1;
        let revision = revision(row)?;
        let len = revision.content.as_ref().map_or(0, String::len);
        let Some(left) = budget.checked_sub(len) else {
            return Ok(Some(revision.seq));
        };
        *budget = left;
        if conflicts(&revision)? || scanned == MAX_SCANNED_REVISIONS {
            return Ok(Some(revision.seq));
        }
    }
    Ok(None)
}

/// Identifiers of live documents of the space scope after `after`, in order, at most `limit`.
pub(super) fn live_ids(
    db: &Connection,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<String>, StoreError> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = db.prepare_cached(
        "SELECT id FROM heads WHERE scope = 'space' AND document IS NOT NULL AND id > ?1
         ORDER BY id LIMIT ?2",
    )?;
    // No identifier is empty, so everything stands after the empty one.
    let rows = statement.query_map(params![after.unwrap_or_default(), limit], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn session(db: &Connection, id: &str) -> Result<Option<SessionRow>, StoreError> {
    Ok(db
        .prepare_cached("SELECT principal, token, earlier_token FROM sessions WHERE id = ?1")?
        .query_row([id], |row| {
            Ok(SessionRow {
                principal: row.get(0)?,
                token: row.get(1)?,
                earlier_token: row.get(2)?,
            })
        })
        .optional()?)
}

/// Remembers a session's new token and the one before it, as the newest opening of its principal.
pub(super) fn write_session(db: &Connection, id: &str, row: &SessionRow) -> Result<(), StoreError> {
    db.prepare_cached(
        "INSERT OR REPLACE INTO sessions (id, principal, token, earlier_token)
         VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![id, row.principal, row.token, row.earlier_token])?;
    db.prepare_cached(
        "DELETE FROM sessions WHERE opening IN (
           SELECT opening FROM sessions WHERE principal = ?1
           ORDER BY opening DESC LIMIT -1 OFFSET ?2)",
    )?
    .execute(params![row.principal, MAX_SESSIONS_PER_PRINCIPAL])?;
    Ok(())
}

pub(super) fn delete_session(db: &Connection, id: &str) -> Result<(), StoreError> {
    db.prepare_cached("DELETE FROM sessions WHERE id = ?1")?
        .execute([id])?;
    Ok(())
}

fn revision(row: &rusqlite::Row<'_>) -> Result<Revision, StoreError> {
    Ok(Revision {
        seq: unsigned(row.get(0)?)?,
        op_index: unsigned(row.get(1)?)?,
        scope: row.get(2)?,
        id: row.get(3)?,
        op: row.get(4)?,
        content: row.get(5)?,
    })
}

fn signed(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|_| StoreError::Damaged("number out of range"))
}

fn unsigned(number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_| StoreError::Damaged("number out of range"))
}
