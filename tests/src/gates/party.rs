//! Who takes part in gates about failures: guests with one session each, and opens that have to wait.

use std::time::{Duration, Instant};

use memory_client::{ClientError, Closed, Connection, OpenOptions, Options, Session};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::bystander::message_of;
use crate::error::{DEADLINE, holds, same, soon};
use crate::log;
use crate::stage::{FIXTURE_DOCUMENT, Space};
use crate::{Context, GateError, Stage};

/// The pause before an open that was refused for now is tried again: the protocol has no event for that.
const RETRY: Duration = Duration::from_millis(100);

/// A connection with one session.
pub(super) struct Guest {
    pub(super) connection: Connection,
    pub(super) session: Session,
    /// The connection's name in logs.
    pub(super) name: String,
}

impl Guest {
    pub(super) async fn arrive(stage: &Stage, space: &Space) -> Result<Self, GateError> {
        let connection = signed_in(stage, space).await?;
        let session = connection
            .open(space.did, space.owner.did(), OpenOptions::default())
            .await
            .during("a guest's open")?;
        Self::with(connection, session)
    }

    pub(super) fn with(connection: Connection, session: Session) -> Result<Self, GateError> {
        let name = name_of(&connection)?;
        Ok(Self {
            connection,
            session,
            name,
        })
    }

    /// Reads the fixture's document; tells how long that took.
    pub(super) async fn reads(&self) -> Result<Duration, GateError> {
        let began = Instant::now();
        let answer = soon("a guest's query", self.session.query(&[FIXTURE_DOCUMENT]))
            .await?
            .during("a guest's query")?;
        same(
            "a guest's document",
            message_of(&answer),
            Some("existing space"),
        )?;
        Ok(began.elapsed())
    }

    /// Demands that its connection ends for this reason, with the code of lost upstreams.
    pub(super) async fn loses_its_toolshed(self, reason: &str) -> Result<(), GateError> {
        let closed = soon("a guest's close", self.connection.closed()).await?;
        is_closed(&closed, 1011, &format!("{reason} {}", self.name))
    }

    pub(super) async fn leave(self) {
        self.connection.close().await;
    }
}

/// A connection on which the owner of a space has signed in.
pub(super) async fn signed_in(stage: &Stage, space: &Space) -> Result<Connection, GateError> {
    let connection = stage.connect(Options::default()).await?;
    connection
        .authenticate(&space.owner)
        .await
        .during("signing in")?;
    Ok(connection)
}

pub(super) fn name_of(connection: &Connection) -> Result<String, GateError> {
    let name = connection.hello().connection.clone();
    name.during("the connection's name in hello.ok")
}

/// Demands how a connection closed.
pub(super) fn is_closed(closed: &Closed, code: u16, text: &str) -> Result<(), GateError> {
    same(
        "the end of a connection",
        (closed.code, closed.reason.as_str()),
        (Some(code), text),
    )
}

/// Opens a space, which must be refused for now; tells how long that took.
pub(super) async fn refused_for_now(
    connection: &Connection,
    space: &Space,
) -> Result<Duration, GateError> {
    let began = Instant::now();
    let opened = connection.open(space.did, space.owner.did(), OpenOptions::default());
    match soon("an open", opened).await? {
        Err(error) if error.is_retriable() => Ok(began.elapsed()),
        Err(error) => Err(GateError::new("an open", "a refusal for now", error)),
        Ok(_) => Err(GateError::new("an open", "a refusal for now", "a session")),
    }
}

/// Opens a space on a connection as often as it is refused for now.
pub(super) async fn open_at_last(
    connection: &Connection,
    space: &Space,
) -> Result<Session, GateError> {
    let tries = async {
        loop {
            let opened = connection.open(space.did, space.owner.did(), OpenOptions::default());
            match opened.await {
                Ok(session) => return Ok(session),
                Err(error) if error.is_retriable() => sleep(RETRY).await,
                Err(error) => return Err(error),
            }
        }
    };
    let opened: Result<Session, ClientError> =
        timeout(DEADLINE, tries).await.unwrap_or_else(|_| {
            let what = "no open within the deadline";
            Err(ClientError::Usage(what))
        });
    opened.during("an open that may be refused for now first")
}

/// A connection with a session, made as often as something refuses it for now or is not there yet.
pub(super) async fn arrive_at_last(stage: &Stage, space: &Space) -> Result<Guest, GateError> {
    let tries = async {
        loop {
            match Guest::arrive(stage, space).await {
                Ok(guest) => return guest,
                Err(_) => sleep(RETRY).await,
            }
        }
    };
    match timeout(DEADLINE, tries).await {
        Ok(guest) => Ok(guest),
        // Once more, for its error.
        Err(_) => Guest::arrive(stage, space).await,
    }
}

/// Waits until the router is linked to a toolshed.
pub(super) async fn linked(stage: &Stage, mark: usize, place: usize) -> Result<(), GateError> {
    let name = format!("toolshed-{place}");
    stage
        .router
        .log()
        .wait(&format!("a link to {name}"), mark, |line| {
            log::has(line, "message", "linked") && log::has(line, "toolshed", &name)
        })
        .await
        .map(drop)
}

/// Waits for a line about a toolshed with this reason.
pub(super) async fn told_of(
    stage: &Stage,
    mark: usize,
    place: usize,
    reason: &str,
) -> Result<Value, GateError> {
    let name = format!("toolshed-{place}");
    stage
        .router
        .log()
        .wait(&format!("reason {reason} of {name}"), mark, |line| {
            log::has(line, "reason", reason) && log::has(line, "toolshed", &name)
        })
        .await
}

/// Waits until the listener accepts again, from a mark of the log on.
pub(super) async fn accepts(stage: &Stage, mark: usize) -> Result<(), GateError> {
    stage
        .router
        .log()
        .wait("the listener accepts", mark, |line| {
            log::has(line, "role", "listener")
                && log::has(line, "reason", "ready")
                && line.get("accepting") == Some(&Value::Bool(true))
        })
        .await
        .map(drop)
}

/// Demands that a log has no such line from a mark on.
pub(super) fn is_silent(
    what: &str,
    stage: &Stage,
    mark: usize,
    condition: impl Fn(&Value) -> bool,
) -> Result<(), GateError> {
    let lines = stage.router.log().select(mark, condition);
    holds(what, lines.is_empty(), "no line", Value::Array(lines))
}
