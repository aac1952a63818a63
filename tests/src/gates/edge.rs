//! Gate 12: the very edge of what a response may be, which an honest toolshed keeps away from.

use serde_json::json;

use super::GateResult;
use super::impostor::{Victim, stage_with_rogue};
use super::party::Guest;
use crate::Stage;
use crate::error::same;
use crate::raw::{of_session, ok};
use crate::report::figure;
use crate::rogue::Conduct;

/// Body bytes of the largest response.
const LARGEST: u32 = 8 << 20;

/// A response of exactly 8 MiB goes through whole; one byte more is refused at its header, and costs nobody else.
pub(super) async fn response(stage: &Stage) -> GateResult {
    let (stage, rogue) = stage_with_rogue(stage, "").await?;
    let guest = Guest::arrive(&stage, &stage.spaces[0]).await?;
    let mut victim = Victim::arrive(&stage, false).await?;
    let session = victim.session().await?;
    for bytes in [LARGEST - 1, LARGEST] {
        rogue.behave(Conduct::Sized(bytes));
        let members = of_session(stage.spaces[1].did, &session, json!({}))?;
        let answer = victim.speaker.request("graph.query", members).await?;
        ok(&answer)?;
        same(
            "the length of an answer",
            victim.speaker.last_len,
            bytes as usize,
        )?;
    }

    rogue.behave(Conduct::Sized(LARGEST + 1));
    let mark = stage.router.log().mark();
    victim.send("graph.query", &session).await?;
    let end = ("upstream-protocol", "response-header");
    victim.ends(&stage, mark, end).await?;
    guest.reads().await?;

    // The toolshed is used again as if nothing had been.
    rogue.behave(Conduct::Honest);
    let mut next = Victim::arrive(&stage, false).await?;
    next.session().await?;
    next.speaker.client.reset()?;
    guest.leave().await;
    drop(rogue);
    stage.strike().await?;
    Ok(figure("response_bytes", LARGEST))
}
