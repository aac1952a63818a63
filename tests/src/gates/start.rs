//! Gate 28: what toolsheds may be when the router starts, and what they may become.

use memory_wire::flags::Capability;
use serde_json::{Value, json};

use super::GateResult;
use super::denial::{Refusal, denied, logged};
use super::impostor::{Victim, stage_with_rogue};
use super::party::{Guest, linked, open_at_last, refused_for_now, signed_in, told_of};
use crate::error::{holds, same};
use crate::raw::{Framing, Speaker, ok};
use crate::report::Figures;
use crate::stage::{Seat, StageOptions};
use crate::{Context, GateError, Stage, log};

/// A capability that neither router nor toolshed has ever heard of.
const NOVELTY: &str = "tableTurningV9";

/// The router starts while a toolshed is down, or at the other cell mode: that one alone is refused until it changes.
pub(super) async fn absent_toolshed(stage: &Stage) -> GateResult {
    let options = StageOptions {
        timeouts: "startup_grace = \"200ms\"".to_owned(),
        seats: [Seat::Taken, Seat::Empty],
        ..StageOptions::default()
    };
    let mut stage = Stage::set(stage.programs(), options).await?;
    let [first, second] = stage.spaces.clone();
    let guest = Guest::arrive(&stage, &first).await?;
    let early = signed_in(&stage, &second).await?;
    refused_for_now(&early, &second).await?;

    // At the other cell mode it is no toolshed of this deployment.
    let mark = stage.router.log().mark();
    set_cell_mode(&stage, true)?;
    stage.toolsheds[1].launch().await?;
    told_of(&stage, mark, 1, "upstream-incompatible").await?;
    refused_for_now(&early, &second).await?;
    let name = super::party::name_of(&early)?;
    logged(&stage, (mark, &name), "upstream-incompatible").await?;
    guest.reads().await?;

    let mark = stage.router.log().mark();
    stage.toolsheds[1].stop().await?;
    set_cell_mode(&stage, false)?;
    stage.toolsheds[1].launch().await?;
    linked(&stage, mark, 1).await?;
    let session = open_at_last(&early, &second).await?;
    let early = Guest::with(early, session)?;
    early.reads().await?;
    early.leave().await;
    Guest::arrive(&stage, &second).await?.leave().await;
    guest.reads().await?;
    guest.leave().await;
    stage.strike().await?;
    Ok(Figures::new())
}

/// Rewrites the second toolshed's file.
fn set_cell_mode(stage: &Stage, modern: bool) -> Result<(), GateError> {
    let file = stage.toolsheds[1].fixture();
    let text = std::fs::read(file).during("a toolshed's file")?;
    let mut fixture: Value = serde_json::from_slice(&text).during("a toolshed's file")?;
    if let Value::Object(members) = &mut fixture {
        members.insert("modernCellRep".to_owned(), json!(modern));
    }
    std::fs::write(file, fixture.to_string()).during("a toolshed's file")
}

/// An upgraded toolshed cannot widen the frozen offer; one that lost a capability stays linked and is not used.
pub(super) async fn frozen_offer(stage: &Stage) -> GateResult {
    let (stage, rogue) = stage_with_rogue(stage, "").await?;
    let [first, _] = &stage.spaces;
    let guest = Guest::arrive(&stage, first).await?;
    let offer = Speaker::connect(&stage, Framing::Legacy, false).await?;
    let offer = offer.hello.get("flags").cloned().during("flags")?;

    let mark = stage.router.log().mark();
    rogue.set_flag(NOVELTY, Some(Capability::Flag(true)))?;
    linked(&stage, mark, 1).await?;
    let mut victim = Victim::arrive(&stage, false).await?;
    same("the offer", victim.speaker.hello.get("flags"), Some(&offer))?;
    ok(&victim.open().await?)?;
    let negotiated = rogue.seen().negotiated;
    holds(
        "negotiatedMemoryFlags",
        negotiated.get(NOVELTY).is_none(),
        "none that the offer lacks",
        &negotiated,
    )?;
    victim.speaker.client.reset()?;

    // Something that the offer promises, and both toolsheds had.
    const PROMISED: &str = "sessionClose";
    same("the promise", offer.get(PROMISED), Some(&json!(true)))?;
    let mark = stage.router.log().mark();
    rogue.set_flag(PROMISED, None)?;
    let unused = told_of(&stage, mark, 1, "upstream-incompatible").await?;
    holds(
        "the log",
        log::has(
            &unused,
            "message",
            "linked, but not used: it does not support the frozen offer",
        ),
        "that it is linked and not used",
        &unused,
    )?;
    let links = rogue.seen().links;
    let mut victim = Victim::arrive(&stage, false).await?;
    denied("an open", &victim.open().await?, Refusal::ForNow)?;
    logged(&stage, (mark, &victim.name), "upstream-incompatible").await?;
    guest.reads().await?;
    let seen = rogue.seen();
    same("links since", seen.links, links)?;

    let mark = stage.router.log().mark();
    rogue.set_flag(PROMISED, Some(Capability::Flag(true)))?;
    linked(&stage, mark, 1).await?;
    victim.speaker.client.reset()?;
    let mut victim = Victim::arrive(&stage, false).await?;
    ok(&victim.open().await?)?;
    victim.speaker.client.reset()?;
    guest.reads().await?;
    guest.leave().await;
    drop(rogue);
    stage.strike().await?;
    Ok(Figures::new())
}
