//! Gate 29: the directory file, broken, missing, half-written, and changed while sessions are open.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use memory_client::OpenOptions;
use serde_json::Value;

use super::GateResult;
use super::directory::{Placement, write_text};
use super::party::{Guest, is_closed, is_silent, open_at_last, refused_for_now, signed_in};
use super::upstream::millis;
use crate::error::{holds, same, soon};
use crate::report::{Figures, figure};
use crate::stage::{Space, StageOptions};
use crate::{Context, GateError, Stage, log};

/// A directory that cannot be used refuses new opens for now; sessions go on, and it is used again as soon as it is good.
pub(super) async fn broken_directory(stage: &Stage) -> GateResult {
    let stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let [first, second] = &stage.spaces;
    let file = stage.directory_file();
    let good = fs::read_to_string(&file).during("the directory")?;
    let half = good.as_bytes().get(..good.len() / 2).during("half of it")?;
    // In place and not by renaming, as no writer should.
    let faults: [(&str, Option<&[u8]>); 4] = [
        ("half-written", Some(half)),
        ("empty", Some(b"")),
        ("no JSON", Some(b"{\"version\":1,\n  \"deployment\":}")),
        ("missing", None),
    ];
    let mut figures = Figures::new();
    for (name, content) in faults {
        let step = |error: GateError| error.within(name);
        let guest = Guest::arrive(&stage, first).await.map_err(step)?;
        let asker = signed_in(&stage, second).await?;
        let mark = stage.router.log().mark();
        match content {
            Some(bytes) => fs::write(&file, bytes).during(name)?,
            None => fs::remove_file(&file).during(name)?,
        }
        let told = broker_says(&stage, mark, "directory-unreadable").await?;
        let detail = told
            .get("detail")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let is_placed = detail.contains("directory.json");
        // Where in the file, for what has a place.
        let is_placed = is_placed && (name != "no JSON" || detail.contains(":2:"));
        holds("the log", is_placed, "file, line and column", &told).map_err(step)?;
        refused_for_now(&asker, second).await.map_err(step)?;
        refused_for_now(&guest.connection, first)
            .await
            .map_err(step)?;
        guest.reads().await.map_err(step)?;
        let began = Instant::now();
        write_text(&stage, &good)?;
        let session = open_at_last(&asker, second).await.map_err(step)?;
        Guest::with(asker, session)?.reads().await?;
        figures.extend(figure(
            &format!("good_again_ms_after_{}", name.replace([' ', '-'], "_")),
            millis(began.elapsed()),
        ));
        guest.reads().await?;
        guest.leave().await;
    }
    stage.strike().await?;
    Ok(figures)
}

/// A placement epoch that advances fences the space's contexts, and nobody else's.
pub(super) async fn advanced_epoch(stage: &Stage) -> GateResult {
    let stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let [first, second] = &stage.spaces;
    let fenced = Guest::arrive(&stage, first).await?;
    let other = Guest::arrive(&stage, second).await?;
    let idle = Guest::arrive(&stage, first).await?;
    let closed = idle.session.close().await;
    closed.during("the end of an idle client's session")?;
    let began = Instant::now();
    let mut placement = Placement::of(&stage)?;
    placement.list(first.did, 0, 2);
    let mark = stage.router.log().mark();
    placement.write(&stage)?;
    placement.is_followed(&stage, mark).await?;
    fenced.loses_its_toolshed("upstream-lost").await?;
    let cut_off = began.elapsed();
    // It has no session there, and could have none again: its context is gone there, and its ticket spent.
    let closed = soon("an idle client's close", idle.connection.closed()).await?;
    is_closed(&closed, 1011, &format!("upstream-lost {}", idle.name))?;
    let asker = signed_in(&stage, first).await?;
    let session = open_at_last(&asker, first).await?;
    Guest::with(asker, session)?.reads().await?;
    other.reads().await?;
    other.leave().await;
    stage.strike().await?;
    Ok(figure("fenced_after_ms", millis(cut_off)))
}

/// A space that moves takes its sessions along: they end here, and open there once its store has arrived.
pub(super) async fn moved_space(stage: &Stage) -> GateResult {
    let stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let [first, second] = &stage.spaces;
    let mut mover = Guest::arrive(&stage, first).await?;
    mover
        .session
        .commit(serde_json::json!([{ "op": "set", "id": "of:luggage", "value": { "value": "all of it" } }]))
        .await
        .during("a commit")?;
    let other = Guest::arrive(&stage, second).await?;
    let mut placement = Placement::of(&stage)?;
    placement.list(first.did, 1, 2);
    let mark = stage.router.log().mark();
    placement.write(&stage)?;
    placement.is_followed(&stage, mark).await?;
    mover.loses_its_toolshed("upstream-lost").await?;

    // Its store has not arrived: it is not made anew, and not opened where it was.
    let asker = signed_in(&stage, first).await?;
    let early = asker
        .open(first.did, first.owner.did(), OpenOptions::default())
        .await;
    holds(
        "an open before the store has arrived",
        early.is_err(),
        "a refusal",
        "a session",
    )?;
    carry(&stage, first)?;
    let asker = signed_in(&stage, first).await?;
    let session = open_at_last(&asker, first).await?;
    let mover = Guest::with(asker, session)?;
    mover.reads().await?;
    let answer = mover
        .session
        .query(&["of:luggage"])
        .await
        .during("a query")?;
    let value = answer.pointer("/entities/0/document/value");
    same("what moved", value, Some(&Value::from("all of it")))?;
    other.reads().await?;
    for guest in [mover, other] {
        guest.leave().await;
    }
    stage.strike().await?;
    Ok(Figures::new())
}

/// Copies the store of a space from the first toolshed to the second. Nobody writes to it any more.
fn carry(stage: &Stage, space: &Space) -> Result<(), GateError> {
    let step = "moving a store";
    let store =
        |place: usize| -> PathBuf { stage.folder().join(format!("toolshed-{place}-store")) };
    let key = space.did.as_str().rsplit(':').next().during(step)?;
    for suffix in ["-wal", ""] {
        let name = format!("{key}.sqlite{suffix}");
        match fs::copy(store(0).join(&name), store(1).join(&name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !suffix.is_empty() => {}
            copied => drop(copied.during(step)?),
        }
    }
    Ok(())
}

/// A changed list of toolsheds needs a restart: new opens are refused for now until it is changed back, sessions go on.
pub(super) async fn changed_toolsheds(stage: &Stage) -> GateResult {
    let stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let [first, second] = &stage.spaces;
    let guest = Guest::arrive(&stage, first).await?;
    let asker = signed_in(&stage, second).await?;
    let good = fs::read_to_string(stage.directory_file()).during("the directory")?;
    let mut placement = Placement::of(&stage)?;
    placement.rename(1, "another-name")?;
    let mark = stage.router.log().mark();
    placement.write(&stage)?;
    broker_says(&stage, mark, "restart-needed").await?;
    refused_for_now(&asker, second).await?;
    guest.reads().await?;
    write_text(&stage, &good)?;
    let session = open_at_last(&asker, second).await?;
    Guest::with(asker, session)?.reads().await?;
    guest.reads().await?;
    is_silent("losses of links", &stage, mark, |line| {
        log::has(line, "message", "link lost")
    })?;
    guest.leave().await;
    stage.strike().await?;
    Ok(Figures::new())
}

async fn broker_says(stage: &Stage, mark: usize, reason: &str) -> Result<Value, GateError> {
    let log = stage.router.log();
    log.wait(reason, mark, |line| {
        log::has(line, "role", "directory-broker")
            && log::has(line, "reason", reason)
            && line.get("connection").is_none()
    })
    .await
}
