//! What one session of a schedule knows of itself, over all its lives.

use std::collections::BTreeMap;

use memory_client::{ClientError, SavedSession};
use serde_json::{Value, json};

use crate::error::{holds, same};
use crate::stage::{FIXTURE_DOCUMENT, Space};
use crate::{GateError, tally};

/// The document that each session has one of its own of, under the same name.
pub(super) const MINE: &str = "of:mine";

/// Bytes of a large commit: more than an upload window, less than the request window.
const BALLAST: usize = 300 << 10;

/// What became of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Unknown,
    Applied,
    Refused,
}

/// A session's records.
#[derive(Debug)]
pub(super) struct Book {
    /// Its name, in every value that it writes.
    pub(super) owner: String,
    pub(super) space: Space,
    pub(super) in_flight: usize,
    /// The last life, to go on with.
    pub(super) saved: Option<SavedSession>,
    /// Commits by their number here.
    outcomes: BTreeMap<u64, Outcome>,
    /// Their numbers here, by their number in the session.
    numbers: BTreeMap<u64, u64>,
}

impl Book {
    pub(super) fn new(owner: String, space: Space, in_flight: usize) -> Self {
        Self {
            owner,
            space,
            in_flight,
            saved: None,
            outcomes: BTreeMap::new(),
            numbers: BTreeMap::new(),
        }
    }

    /// The document with everything that this session commits, and nothing else.
    pub(super) fn document(&self) -> String {
        format!("of:{}", self.owner)
    }

    /// The next commit, with its number.
    pub(super) fn compose(&mut self, large: bool, stale: bool) -> (u64, Value) {
        let number = u64::try_from(self.outcomes.len()).unwrap_or_default() + 1;
        self.outcomes.insert(number, Outcome::Unknown);
        let entry = json!({ "owner": self.owner, "number": number });
        let mut operations = tally::append(&self.document(), &entry);
        if let Some(list) = operations.as_array_mut() {
            let value = json!({ "value": entry });
            list.push(json!({ "op": "set", "id": MINE, "scope": "session", "value": value }));
            if large {
                let value = json!({ "value": "x".repeat(BALLAST) });
                let id = format!("{}-ballast", self.document());
                list.push(json!({ "op": "set", "id": id, "value": value }));
            }
        }
        let confirmed = if stale {
            // Genesis has written it since.
            json!([{ "id": FIXTURE_DOCUMENT, "path": [], "seq": 0 }])
        } else {
            json!([])
        };
        let reads = json!({ "confirmed": confirmed, "pending": [] });
        (number, json!({ "reads": reads, "operations": operations }))
    }

    /// A commit was queued.
    pub(super) fn submitted(&mut self, number: u64, local_seq: u64) {
        self.numbers.insert(local_seq, number);
    }

    /// A commit was judged, or its life ended first.
    ///
    /// # Errors
    /// When it had been judged otherwise before.
    pub(super) fn judge(
        &mut self,
        number: u64,
        verdict: &Result<Value, ClientError>,
    ) -> Result<(), GateError> {
        let outcome = match verdict {
            Ok(_) => Outcome::Applied,
            Err(ClientError::Denied(denied)) => {
                same(
                    "the name of a denial",
                    denied.name.as_str(),
                    "ConflictError",
                )?;
                Outcome::Refused
            }
            // Its next life tells.
            Err(ClientError::Ended(_)) => return Ok(()),
            Err(error) => return Err(GateError::new("a commit", "a verdict", error)),
        };
        let before = self.outcomes.insert(number, outcome);
        let agrees = [None, Some(Outcome::Unknown), Some(outcome)].contains(&before);
        holds(
            "a second verdict",
            agrees,
            "the first",
            format!("{before:?}"),
        )
    }

    /// The verdict of a commit of an earlier life.
    ///
    /// # Errors
    /// When there is no such commit, and as [`Self::judge`].
    pub(super) fn judge_late(
        &mut self,
        local_seq: u64,
        verdict: &Result<Value, ClientError>,
    ) -> Result<(), GateError> {
        match self.numbers.get(&local_seq) {
            Some(number) => self.judge(*number, verdict),
            None => Err(GateError::new(
                "a verdict",
                "one on a commit of this session",
                local_seq,
            )),
        }
    }

    /// Whether every commit is judged.
    pub(super) fn is_judged(&self) -> bool {
        self.count(Outcome::Unknown) == 0
    }

    pub(super) fn count(&self, outcome: Outcome) -> u64 {
        let same = self.outcomes.values().filter(|found| **found == outcome);
        u64::try_from(same.count()).unwrap_or_default()
    }

    /// Demands that a sync has only what this session watches, each value its own.
    ///
    /// # Errors
    /// When it has more.
    pub(super) fn inspect(&self, sync: &Value) -> Result<(), GateError> {
        let upserts = sync.get("upserts").and_then(Value::as_array);
        for upsert in upserts.into_iter().flatten() {
            let id = upsert.get("id").and_then(Value::as_str).unwrap_or_default();
            let value = upsert.pointer("/doc/value").unwrap_or(&Value::Null);
            if id == MINE {
                // It is watched before it is there.
                if !value.is_null() {
                    self.is_own(value)?;
                }
            } else if id == self.document() {
                for entry in value.as_array().into_iter().flatten() {
                    self.is_own(entry)?;
                }
            } else {
                let expected = "what it watches";
                return Err(GateError::new(
                    format!("{}'s sync", self.owner),
                    expected,
                    id,
                ));
            }
        }
        Ok(())
    }

    /// Demands that a value is this session's.
    ///
    /// # Errors
    /// When it is another's.
    pub(super) fn is_own(&self, value: &Value) -> Result<(), GateError> {
        let owner = value.get("owner").and_then(Value::as_str);
        same("the owner of a value", owner, Some(self.owner.as_str()))
    }

    /// Demands that the store has every commit that was applied once, in order, and no other.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn agrees(&self, mut found: Vec<Value>) -> Result<(), GateError> {
        for entry in &found {
            self.is_own(entry)?;
        }
        let number = |entry: &Value| entry.get("number").and_then(Value::as_u64);
        if self.in_flight > 1 {
            // One that was refused for now is applied after those that were in flight with it.
            found.sort_by_key(number);
        }
        let found: Vec<u64> = found.iter().filter_map(number).collect();
        let applied = self.outcomes.iter();
        let applied: Vec<u64> = applied
            .filter(|(_, outcome)| **outcome == Outcome::Applied)
            .map(|(number, _)| *number)
            .collect();
        same(format!("commits of {}", self.owner), found, applied)
    }
}
