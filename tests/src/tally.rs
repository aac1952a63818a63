//! Commits whose every application shows: each appends a number of its own to the list in a document, so that one that was
//! lost is missing there, and one that was applied twice is there twice.

use memory_client::Session;
use serde_json::{Value, json};

use crate::{Context, GateError};

/// Operations that append one entry to the list of a document, and make that when it is not there.
pub fn append(document: &str, entry: &Value) -> Value {
    json!([{
        "op": "patch",
        "id": document,
        "patches": [{ "op": "append", "path": "/value", "values": [entry] }],
    }])
}

/// The entries of a document's list, and the number of the space's newest commit.
///
/// # Errors
/// When the query is refused.
pub async fn read(session: &Session, document: &str) -> Result<(Vec<Value>, u64), GateError> {
    let answer = session.query(&[document]).await.during("reading a tally")?;
    let seq = answer.get("serverSeq").and_then(Value::as_u64);
    Ok((entries(&answer), seq.during("serverSeq")?))
}

/// The entries of the first document of a query's answer; none when it is not there.
pub fn entries(answer: &Value) -> Vec<Value> {
    let list = answer.pointer("/entities/0/document/value");
    list.and_then(Value::as_array).cloned().unwrap_or_default()
}
