//! Gates 22 to 24: workers and toolsheds that die or stall.

use std::time::{Duration, Instant};

use memory_client::Session;
use rustix::process::Signal;

use super::GateResult;
use super::bystander::Bystander;
use super::denial::logged;
use super::party::{
    Guest, arrive_at_last, is_silent, linked, name_of, open_at_last, refused_for_now, signed_in,
    told_of,
};
use crate::error::{holds, same};
use crate::processes::send_signal;
use crate::raw::{Framing, Speaker};
use crate::report::{Figures, figure};
use crate::stage::StageOptions;
use crate::{Context, GateError, Stage, log};

/// How often somebody whom a stall does not concern reads meanwhile.
const READS: usize = 20;

/// The longest that one of these reads may take.
const UNDISTURBED: Duration = Duration::from_secs(1);

/// Killing one worker closes one client; the next connects at once.
pub(super) async fn killed_worker(stage: &Stage) -> GateResult {
    let bystander = Bystander::arrive(stage).await?;
    let [space, _] = &stage.spaces;
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    speaker.authenticate(&space.owner).await?;
    speaker.open(space.did, space.owner.did()).await?;
    let name = speaker.connection()?;
    send_signal(stage.router.worker_of(speaker.local())?, Signal::KILL)?;

    let began = Instant::now();
    let next = Guest::arrive(stage, space).await?;
    let took = began.elapsed();
    next.reads().await?;
    while speaker.client.next().await.is_ok() {}
    logged(stage, (mark, &name), "worker-crash").await?;
    next.leave().await;
    bystander.leave(stage).await?;
    Ok(figure("next_client_ms", millis(took)))
}

/// A stopped toolshed refuses opens retriably while others go on; when it is back, so are its clients.
pub(super) async fn stopped_toolshed(stage: &Stage) -> GateResult {
    let mut stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let mut figures = Figures::new();
    for is_killed in [true, false] {
        let took = stop_and_come_back(&mut stage, is_killed).await?;
        let name = if is_killed { "killed" } else { "stopped" };
        figures.extend(figure(&format!("back_after_ms_when_{name}"), millis(took)));
    }
    stage.strike().await?;
    Ok(figures)
}

async fn stop_and_come_back(stage: &mut Stage, is_killed: bool) -> Result<Duration, GateError> {
    let [first, second] = stage.spaces.clone();
    let mut former = Guest::arrive(stage, &first).await?;
    let also = Guest::arrive(stage, &first).await?;
    // On this one the first space's owner has signed too, and opened nothing.
    let other = signed_in(stage, &second).await?;
    other
        .authenticate(&first.owner)
        .await
        .during("a second key")?;
    let session = open_at_last(&other, &second).await?;
    let other = Guest::with(other, session)?;
    let kept = format!("kept-{is_killed}");
    commit(&mut former.session, &kept).await?;
    let roles = roles(stage)?;

    let toolshed = &mut stage.toolsheds[0];
    if is_killed {
        toolshed.kill().await?;
    } else {
        toolshed.stop().await?;
    }
    former.loses_its_toolshed("upstream-lost").await?;
    also.loses_its_toolshed("upstream-lost").await?;
    other.reads().await?;
    refused_for_now(&other.connection, &first).await?;
    // Also for who comes only now.
    let late = signed_in(stage, &second).await?;
    late.authenticate(&first.owner)
        .await
        .during("a second key")?;
    refused_for_now(&late, &first).await?;
    other.reads().await?;

    let mark = stage.router.log().mark();
    let began = Instant::now();
    stage.toolsheds[0].launch().await?;
    linked(stage, mark, 0).await?;
    // The same connection, which signs the challenge that it is pushed; the router has not been touched.
    let session = open_at_last(&other.connection, &first).await?;
    let took = began.elapsed();
    let back = Guest::with(other.connection.clone(), session)?;
    back.reads().await?;
    other.reads().await?;
    let former = Guest::arrive(stage, &first).await?;
    let answer = former
        .session
        .query(&["of:kept"])
        .await
        .during("a former client's query")?;
    let value = answer.pointer("/entities/0/document/value");
    same("what was committed before", value, Some(&kept.into()))?;
    same("the roles", self::roles(stage)?, roles)?;
    for connection in [former.connection, late, other.connection] {
        connection.close().await;
    }
    Ok(took)
}

async fn commit(session: &mut Session, value: &str) -> Result<(), GateError> {
    let operation =
        serde_json::json!([{ "op": "set", "id": "of:kept", "value": { "value": value } }]);
    session.commit(operation).await.during("a commit").map(drop)
}

fn roles(stage: &Stage) -> Result<[u32; 5], GateError> {
    Ok([
        stage.router.role("listener")?,
        stage.router.role("spawner")?,
        stage.router.role("key-agent")?,
        stage.router.role("link-agent")?,
        stage.router.role("directory-broker")?,
    ])
}

/// A toolshed that stalls delays nobody else; short of the deadline its requests complete, past it the link is replaced.
pub(super) async fn stalled_toolshed(stage: &Stage) -> GateResult {
    let timeouts = "link_silence = \"3s\"\ncontrol_request = \"1s\"\ncontrol_wait = \"1s\"";
    let options = StageOptions {
        timeouts: timeouts.to_owned(),
        ..StageOptions::default()
    };
    let stage = Stage::set(stage.programs(), options).await?;
    let [first, second] = &stage.spaces;
    let guest = Guest::arrive(&stage, first).await?;
    let other = Guest::arrive(&stage, second).await?;
    let asker = signed_in(&stage, first).await?;
    let start = stage.router.log().mark();

    // Short of the deadline.
    stage.toolsheds[0].signal(Signal::STOP)?;
    let began = Instant::now();
    let (read, meanwhile) = tokio::join!(guest.reads(), async {
        let slowest = undisturbed(&other).await?;
        let refused = refused_for_now(&asker, first).await?;
        // A second one on the same connection finds the first request unanswered.
        refused_for_now(&asker, first).await?;
        stage.toolsheds[0].signal(Signal::CONT)?;
        Ok::<_, GateError>((slowest, refused))
    });
    let (slowest, refused) = meanwhile?;
    read?;
    let stalled = began.elapsed();
    let name = name_of(&asker)?;
    logged(&stage, (start, &name), "control-timeout").await?;
    holds(
        "the refusal of an open whose control request is unanswered",
        refused >= Duration::from_millis(900) && refused < Duration::from_secs(2),
        "after a second",
        format!("{refused:?}"),
    )?;
    is_silent("losses of links", &stage, start, |line| {
        log::has(line, "message", "link lost")
    })?;

    // The ticket that came late is never bound: this connection is refused while the toolshed counts it, others are not.
    let mark = stage.router.log().mark();
    refused_for_now(&asker, first).await?;
    logged(&stage, (mark, &name), "ticket-window").await?;
    Guest::arrive(&stage, first).await?.leave().await;

    // Past the deadline.
    let mark = stage.router.log().mark();
    stage.toolsheds[0].signal(Signal::STOP)?;
    let began = Instant::now();
    told_of(&stage, mark, 0, "link-silence").await?;
    let silence = began.elapsed();
    guest.loses_its_toolshed("upstream-lost").await?;
    refused_for_now(&asker, first).await?;
    undisturbed(&other).await?;
    stage.toolsheds[0].signal(Signal::CONT)?;
    linked(&stage, mark, 0).await?;
    // A new epoch: what the old one left behind is gone, the late ticket too.
    let session = open_at_last(&asker, first).await?;
    Guest::with(asker, session)?.reads().await?;
    arrive_at_last(&stage, first).await?.leave().await;

    // A link that is merely quiet is pinged, and stays: the other toolshed's all this time.
    is_silent("losses of the other link", &stage, start, |line| {
        log::has(line, "message", "link lost") && log::has(line, "toolshed", "toolshed-1")
    })?;
    other.reads().await?;
    other.leave().await;
    stage.strike().await?;
    let mut figures = figure("stalled_ms", millis(stalled));
    figures.extend(figure("others_slowest_ms", millis(slowest)));
    figures.extend(figure("refused_after_ms", millis(refused)));
    figures.extend(figure("replaced_after_ms", millis(silence)));
    Ok(figures)
}

/// Reads a while; the slowest read must be quick.
async fn undisturbed(other: &Guest) -> Result<Duration, GateError> {
    let mut slowest = Duration::ZERO;
    for _ in 0..READS {
        slowest = slowest.max(other.reads().await?);
    }
    holds(
        "reads at the other toolshed",
        slowest < UNDISTURBED,
        format!("less than {UNDISTURBED:?}"),
        format!("{slowest:?}"),
    )?;
    Ok(slowest)
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
