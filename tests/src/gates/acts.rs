//! What gates do with a raw client over and over: open, query, commit, watch, create a space.

use std::sync::Arc;

use memory_client::{Did, Identity};
use serde_json::{Value, json};

use super::bystander::message_of;
use crate::error::same;
use crate::raw::{Speaker, of_session, ok, text};
use crate::stage::{FIXTURE_DOCUMENT, Space, identity};
use crate::{Context, GateError};

/// Opens a session; gives the whole answer, error or not.
pub(super) async fn try_open(
    speaker: &mut Speaker,
    space: Did,
    principal: Did,
) -> Result<Value, GateError> {
    let members = json!({ "space": space, "principal": principal, "session": {} });
    speaker.request("session.open", members).await
}

/// A session of a raw client.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub(super) space: Did,
    pub(super) id: String,
    commits: u64,
}

impl Seat {
    /// Opens a session as a principal that has signed.
    pub(super) async fn open(
        speaker: &mut Speaker,
        space: Did,
        principal: Did,
    ) -> Result<Self, GateError> {
        let answer = try_open(speaker, space, principal).await?;
        Self::of(space, &answer)
    }

    /// Signs in and opens a session of the owner's.
    pub(super) async fn take(speaker: &mut Speaker, space: &Space) -> Result<Self, GateError> {
        speaker.authenticate(&space.owner).await?;
        Self::open(speaker, space.did, space.owner.did()).await
    }

    /// The session in the answer to an open.
    pub(super) fn of(space: Did, answer: &Value) -> Result<Self, GateError> {
        let id = text(ok(answer)?, "sessionId").during("sessionId")?;
        Ok(Self {
            space,
            id: id.to_owned(),
            commits: 0,
        })
    }

    /// Members of any request of this session.
    pub(super) fn members(&self, members: Value) -> Result<Value, GateError> {
        of_session(self.space, &self.id, members)
    }

    /// Sends a request; gives the whole answer, error or not.
    pub(super) async fn request(
        &self,
        speaker: &mut Speaker,
        kind: &str,
        members: Value,
    ) -> Result<Value, GateError> {
        let members = self.members(members)?;
        speaker.request(kind, members).await
    }

    /// Demands that the document of every fixture can be read.
    pub(super) async fn reads_fixture(&self, speaker: &mut Speaker) -> Result<(), GateError> {
        let query = query_of(&[FIXTURE_DOCUMENT]);
        let answer = self.request(speaker, "graph.query", query).await?;
        same(
            "the seeded document",
            message_of(ok(&answer)?),
            Some("existing space"),
        )
    }

    /// Members of a commit that sets one document, under the next number.
    pub(super) fn set(&mut self, id: &str, value: Value) -> Result<Value, GateError> {
        self.commits += 1;
        self.members(json!({ "commit": {
            "localSeq": self.commits,
            "reads": { "confirmed": [], "pending": [] },
            "operations": [{ "op": "set", "id": id, "value": { "value": value } }],
        }}))
    }

    /// Sets one document; gives the whole answer, error or not.
    pub(super) async fn commit(
        &mut self,
        speaker: &mut Speaker,
        id: &str,
        value: Value,
    ) -> Result<Value, GateError> {
        let members = self.set(id, value)?;
        speaker.request("transact", members).await
    }
}

/// Members of a query of whole documents.
pub(super) fn query_of(ids: &[&str]) -> Value {
    let roots: Vec<Value> = ids
        .iter()
        .map(|id| json!({ "id": id, "selector": { "path": [], "schema": false } }))
        .collect();
    json!({ "query": { "roots": roots } })
}

/// A watch of one document.
pub(super) fn watch_of(name: &str, id: &str) -> Value {
    let Value::Object(mut watch) = query_of(&[id]) else {
        return Value::Null;
    };
    watch.insert("id".to_owned(), json!(name));
    watch.insert("kind".to_owned(), json!("graph"));
    Value::Object(watch)
}

/// Commits the ACL of a space that its own key has opened, and nobody else's; demands success.
pub(super) async fn claim(
    speaker: &mut Speaker,
    seat: &mut Seat,
    acl: Value,
) -> Result<(), GateError> {
    let id = format!("of:{}", seat.space);
    let answer = seat.commit(speaker, &id, acl).await?;
    ok(&answer)
        .map(drop)
        .map_err(|error| error.within("the genesis ACL"))
}

/// The identities of a row of seeds.
pub(super) fn identities(first: u8, count: u8) -> Result<Vec<Arc<Identity>>, GateError> {
    let seeds = first..first.saturating_add(count);
    seeds.map(|seed| identity(seed).map(Arc::new)).collect()
}
