//! Gate 31: a router that is asked to stop loses nothing.

use std::time::{Duration, Instant};

use memory_client::Identity;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::GateResult;
use super::denial::{Refusal, denied};
use super::party::{Guest, is_closed};
use super::upstream::millis;
use crate::error::{DEADLINE, holds, same, soon};
use crate::processes::send_signal;
use crate::raw::{Framing, Speaker, of_session, ok, text};
use crate::report::figure;
use crate::stage::{Space, StageOptions};
use crate::{Context, GateError, Stage};

/// Clients with something in flight.
const BUSY: usize = 4;

/// What each has in flight.
const PIPELINED: usize = 5;

/// Somebody with commits in flight.
struct Busy {
    speaker: Speaker,
    name: String,
    document: String,
    requests: Vec<String>,
}

impl Busy {
    async fn arrive(
        stage: &Stage,
        space: &Space,
        place: usize,
    ) -> Result<(Self, String), GateError> {
        let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
        speaker.authenticate(&space.owner).await?;
        let opened = speaker.open(space.did, space.owner.did()).await?;
        let session = text(&opened, "sessionId").during("sessionId")?.to_owned();
        let busy = Self {
            name: speaker.connection()?,
            speaker,
            document: format!("of:drain-{place}"),
            requests: Vec::new(),
        };
        Ok((busy, session))
    }

    /// Sends its commits, and waits until the router has passed them on.
    async fn commit(&mut self, space: &Space, session: &str) -> Result<(), GateError> {
        for place in 1..=PIPELINED {
            let commit = json!({
                "localSeq": place,
                "reads": { "confirmed": [], "pending": [] },
                "operations": [{ "op": "set", "id": self.document, "value": { "value": place } }],
            });
            let members = of_session(space.did, session, json!({ "commit": commit }))?;
            let (request, message) = self.speaker.compose("transact", members)?;
            self.speaker.send(&message).await?;
            self.requests.push(request);
        }
        // The router takes messages in order.
        let answer = self
            .speaker
            .request("connection.challenge", json!({}))
            .await?;
        ok(&answer).map(drop)
    }

    /// Demands an answer to each, and then the close frame of the drain.
    async fn is_answered(&mut self) -> Result<(), GateError> {
        for request in std::mem::take(&mut self.requests) {
            ok(&self.speaker.answer(&request).await?)?;
        }
        let closing = self.speaker.client.closing().await?;
        same(
            "the close frame",
            (closing.code, closing.text),
            (1001, format!("drain {}", self.name)),
        )?;
        self.speaker.client.answer_closing().await
    }
}

/// How long a connection that must not come about is waited for.
const LATE: Duration = Duration::from_secs(1);

/// Requests in flight are answered, every connection is told, the exit status is 0, and what was answered is there.
pub(super) async fn drains(stage: &Stage) -> GateResult {
    let options = StageOptions {
        timeouts: "drain = \"10s\"".to_owned(),
        ..StageOptions::default()
    };
    let mut stage = Stage::set(stage.programs(), options).await?;
    let [first, second] = stage.spaces.clone();
    let idle = Guest::arrive(&stage, &second).await?;
    let mut busy = Vec::new();
    for place in 0..BUSY {
        busy.push(Busy::arrive(&stage, &first, place).await?);
    }
    if let Some((client, _)) = busy.first_mut() {
        client.speaker.authenticate(&second.owner).await?;
    }
    stage.toolsheds[0].signal(Signal::STOP)?;
    for (client, session) in &mut busy {
        client.commit(&first, session).await?;
    }

    let began = Instant::now();
    send_signal(stage.router.pid(), Signal::TERM)?;
    let closed = soon("the end of an idle connection", idle.connection.closed()).await?;
    is_closed(&closed, 1001, &format!("drain {}", idle.name))?;
    // However it fails, and if the kernel takes its time to say so: what is in flight must not wait for it.
    let late = timeout(LATE, stage.connect(memory_client::Options::default())).await;
    holds(
        "a connection while it drains",
        !matches!(late, Ok(Ok(_))),
        "none",
        "a connection",
    )?;
    if let Some((client, _)) = busy.first_mut() {
        opens_nothing_more(&mut client.speaker, &second).await?;
    }
    stage.toolsheds[0].signal(Signal::CONT)?;
    for (client, _) in &mut busy {
        client.is_answered().await?;
    }
    let status = stage.router.ended().await?;
    same("the exit status", status.code(), Some(0))?;
    let took = began.elapsed();

    stage.start_router_again().await?;
    let guest = Guest::arrive(&stage, &first).await?;
    for (client, _) in &busy {
        let answer = guest
            .session
            .query(&[&client.document])
            .await
            .during("a query")?;
        let value = answer.pointer("/entities/0/document/value");
        same("what was answered", value, Some(&json!(PIPELINED)))?;
    }
    guest.leave().await;
    stage.strike().await?;
    let mut figures = figure("drained_ms", millis(took));
    figures.extend(figure("in_flight", BUSY * PIPELINED));
    Ok(figures)
}

/// Opens are refused. A worker that has not read its notice yet may admit some: at a toolshed that answers, which one that is
/// stopped does not before the drain is over.
async fn opens_nothing_more(speaker: &mut Speaker, space: &Space) -> Result<(), GateError> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let answer = open(speaker, space, &space.owner).await?;
        if ok(&answer).is_err() || Instant::now() >= deadline {
            return denied("an open while it drains", &answer, Refusal::ForNow);
        }
    }
}

async fn open(
    speaker: &mut Speaker,
    space: &Space,
    principal: &Identity,
) -> Result<Value, GateError> {
    let members = json!({ "space": space.did, "principal": principal.did(), "session": {} });
    speaker.request("session.open", members).await
}
