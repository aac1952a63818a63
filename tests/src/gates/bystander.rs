//! Somebody who uses the router while a gate misbehaves, and must not notice.

use memory_client::{Connection, OpenOptions, Options, Session};
use serde_json::Value;

use crate::error::{holds, same};
use crate::log;
use crate::stage::FIXTURE_DOCUMENT;
use crate::{Context, GateError, Stage};

/// A connection with a session on either toolshed.
pub(super) struct Bystander {
    connection: Connection,
    name: String,
    sessions: Vec<Session>,
    mark: usize,
}

impl Bystander {
    pub(super) async fn arrive(stage: &Stage) -> Result<Self, GateError> {
        let mark = stage.router.log().mark();
        let connection = stage.connect(Options::default()).await?;
        let mut sessions = Vec::new();
        for space in &stage.spaces {
            connection
                .authenticate(&space.owner)
                .await
                .during("the bystander's authentication")?;
            let session = connection
                .open(space.did, space.owner.did(), OpenOptions::default())
                .await
                .during("the bystander's open")?;
            sessions.push(session);
        }
        let name = connection.hello().connection.clone();
        Ok(Self {
            connection,
            name: name.during("the connection's name in hello.ok")?,
            sessions,
            mark,
        })
    }

    /// Demands that both sessions still answer.
    pub(super) async fn is_well(&self) -> Result<(), GateError> {
        for session in &self.sessions {
            let answer = session
                .query(&[FIXTURE_DOCUMENT])
                .await
                .during("a bystander's query")?;
            same(
                "a bystander's document",
                message_of(&answer),
                Some("existing space"),
            )?;
        }
        Ok(())
    }

    /// Demands that nothing was logged about it, and leaves.
    pub(super) async fn leave(self, stage: &Stage) -> Result<(), GateError> {
        self.is_well().await?;
        let about = stage.router.log().select(self.mark, |line| {
            log::has(line, "role", "worker") && log::has(line, "connection", &self.name)
        });
        holds(
            "log lines about a bystander",
            about.is_empty(),
            "none",
            Value::Array(about),
        )?;
        self.connection.close().await;
        Ok(())
    }
}

/// The message in the fixture's document, as a query answers it.
pub(super) fn message_of(answer: &Value) -> Option<&str> {
    answer
        .pointer("/entities/0/document/value/message")
        .and_then(Value::as_str)
}
