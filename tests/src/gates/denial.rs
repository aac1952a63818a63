//! What a refusal looks like: the one denial on the wire, and its reason in the router's log.

use memory_client::Did;
use serde_json::{Value, json};

use super::acts::Seat;
use crate::error::same;
use crate::raw::{Framing, Speaker};
use crate::stage::Space;
use crate::{GateError, Stage, log};

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    ForNow,
    ForGood,
}

/// Demands the router's one denial, and nothing more.
pub(super) fn denied(what: &str, answer: &Value, refusal: Refusal) -> Result<(), GateError> {
    let mut error = json!({
        "name": "AuthorizationError",
        "message": "Routed memory request denied",
    });
    if let (Refusal::ForNow, Value::Object(members)) = (refusal, &mut error) {
        members.insert("retriable".to_owned(), Value::Bool(true));
    }
    same(
        format!("the denial of {what}"),
        answer.get("error"),
        Some(&error),
    )
}

/// Demands the denial and its reason in a log line about this connection.
pub(super) async fn denied_because(
    stage: &Stage,
    (mark, connection): (usize, &str),
    answer: &Value,
    refusal: Refusal,
    reason: &str,
) -> Result<(), GateError> {
    denied(reason, answer, refusal)?;
    logged(stage, (mark, connection), reason).await
}

/// Waits for a line about this connection with this reason.
pub(super) async fn logged(
    stage: &Stage,
    (mark, connection): (usize, &str),
    reason: &str,
) -> Result<(), GateError> {
    let what = format!("reason {reason} of connection {connection}");
    stage
        .router
        .log()
        .wait(&what, mark, |line| {
            log::has(line, "connection", connection) && log::has(line, "reason", reason)
        })
        .await
        .map(drop)
}

/// Demands that the router closes with this code and reason.
pub(super) async fn closes(
    speaker: &mut Speaker,
    code: u16,
    reason: &str,
) -> Result<(), GateError> {
    let name = speaker.connection()?;
    let closing = speaker.client.closing().await?;
    same(
        "the close frame",
        (closing.code, closing.text),
        (code, format!("{reason} {name}")),
    )?;
    speaker.client.answer_closing().await
}

/// A connection that watches its log.
pub(super) struct Client<'a> {
    stage: &'a Stage,
    pub(super) speaker: Speaker,
    /// The connection's name in the log.
    pub(super) name: String,
}

impl<'a> Client<'a> {
    pub(super) async fn arrive(stage: &'a Stage, framing: Framing) -> Result<Self, GateError> {
        let speaker = Speaker::connect(stage, framing, false).await?;
        let name = speaker.connection()?;
        Ok(Self {
            stage,
            speaker,
            name,
        })
    }

    /// Demands the refusal of a request, and its reason in the log.
    pub(super) async fn is_refused(
        &mut self,
        (kind, members): (&str, Value),
        refusal: Refusal,
        reason: &str,
    ) -> Result<(), GateError> {
        let mark = self.stage.router.log().mark();
        let answer = self.speaker.request(kind, members).await?;
        denied_because(self.stage, (mark, &self.name), &answer, refusal, reason)
            .await
            .map_err(|error| error.within(kind))
    }

    /// The same for an open.
    pub(super) async fn may_not_open(
        &mut self,
        space: Did,
        principal: Did,
        refusal: Refusal,
        reason: &str,
    ) -> Result<(), GateError> {
        let members = json!({ "space": space, "principal": principal, "session": {} });
        self.is_refused(("session.open", members), refusal, reason)
            .await
    }

    /// Opens a session of a space as its owner, and demands that it can be read.
    pub(super) async fn opens(&mut self, space: &Space) -> Result<Seat, GateError> {
        self.speaker.sign_in(&space.owner, 600).await?;
        let seat = Seat::open(&mut self.speaker, space.did, space.owner.did()).await?;
        seat.reads_fixture(&mut self.speaker).await?;
        Ok(seat)
    }
}
