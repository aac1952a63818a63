//! Gate 36: an operator shuts a principal out.

use std::process::Stdio;
use std::time::{Duration, Instant};

use memory_client::Did;
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use super::GateResult;
use super::acts::Seat;
use super::denial::{Client, Refusal, closes, denied_because};
use super::party::Guest;
use super::upstream::millis;
use crate::error::{DEADLINE, holds, same, soon};
use crate::raw::{Claim, Framing, ok};
use crate::report::figure;
use crate::stage::{Space, StageOptions};
use crate::{Context, GateError, Stage};

/// How soon after the command the last connection of a revoked principal has its close frame.
const PROMPTLY: Duration = Duration::from_secs(1);

/// How long a change may take to be in force, and the pause between looks.
const IN_FORCE: Duration = Duration::from_millis(500);
const RETRY: Duration = Duration::from_millis(50);

/// Revoking a principal ends its connections and refuses it, other principals notice nothing, a restart changes nothing, and
/// taking it back admits it again.
pub(super) async fn principal(stage: &Stage) -> GateResult {
    // Whatever happens to this gate, nobody else finds its keys revoked.
    let mut stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let [space, other] = stage.spaces.clone();
    let revoked = space.owner.did();
    let bystander = Guest::arrive(&stage, &other).await?;
    let mut opened = Client::arrive(&stage, Framing::Credited).await?;
    opened.opens(&space).await?;
    // On this one it has only signed, beside somebody who opened.
    let mut shared = Client::arrive(&stage, Framing::Credited).await?;
    shared.opens(&other).await?;
    shared.speaker.authenticate(&space.owner).await?;
    let mut waiting = Client::arrive(&stage, Framing::Credited).await?;

    let began = Instant::now();
    revoke(&stage, &[revoked.as_str(), "--reason", "gate 36"]).await?;
    for client in [&mut opened, &mut shared] {
        closes(&mut client.speaker, 1008, "principal-revoked").await?;
    }
    let took = began.elapsed();
    holds(
        "how soon the connections are closed",
        took < PROMPTLY,
        format!("less than {PROMPTLY:?}"),
        format!("{took:?}"),
    )?;
    bystander.reads().await?;
    is_refused(&stage, &mut waiting, &space).await?;
    // That connection is not held to it.
    waiting.opens(&other).await?;
    let mut fresh = Client::arrive(&stage, Framing::Credited).await?;
    is_refused(&stage, &mut fresh, &space).await?;
    for client in [waiting, fresh] {
        client.speaker.client.reset()?;
    }
    bystander.reads().await?;
    bystander.leave().await;

    let status = stage.router.stop().await?;
    same("the router's exit status", status.code(), Some(0))?;
    stage.start_router_again().await?;
    let mut later = Client::arrive(&stage, Framing::Credited).await?;
    is_refused(&stage, &mut later, &space).await?;

    let began = Instant::now();
    revoke(&stage, &["--remove", revoked.as_str()]).await?;
    let readmitted = admitted_at_last(&mut later, &space, revoked, began).await?;
    later.speaker.client.reset()?;
    stage.strike().await?;
    let mut figures = figure("closed_after_ms", millis(took));
    figures.extend(figure("readmitted_after_ms", millis(readmitted)));
    Ok(figures)
}

/// Runs the command, as an operator does.
async fn revoke(stage: &Stage, arguments: &[&str]) -> Result<(), GateError> {
    let command = Command::new(&stage.programs().router)
        .arg("revoke")
        .arg("--config")
        .arg(stage.folder().join("router.toml"))
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = soon("memory-router revoke", command)
        .await?
        .during("memory-router revoke")?;
    holds(
        "the status of memory-router revoke",
        output.status.success(),
        "success",
        String::from_utf8_lossy(&output.stderr),
    )
}

/// Demands that the owner of a space is refused for good.
async fn is_refused(
    stage: &Stage,
    client: &mut Client<'_>,
    space: &Space,
) -> Result<(), GateError> {
    let mark = stage.router.log().mark();
    let claim = Claim::fresh(&mut client.speaker, 600).await?;
    let answer = claim.present(&mut client.speaker, &space.owner).await?;
    let about = (mark, client.name.as_str());
    denied_because(stage, about, &answer, Refusal::ForGood, "principal-revoked").await
}

/// Signs in until it is granted, which must be soon; gives how long after `began`.
async fn admitted_at_last(
    client: &mut Client<'_>,
    space: &Space,
    principal: Did,
    began: Instant,
) -> Result<Duration, GateError> {
    let tries = async {
        loop {
            let claim = Claim::fresh(&mut client.speaker, 600).await?;
            let answer = claim.present(&mut client.speaker, &space.owner).await?;
            if answer.get("error").is_none() {
                return ok(&answer).map(drop);
            }
            sleep(RETRY).await;
        }
    };
    timeout(DEADLINE, tries).await.map_err(|_| {
        GateError::new("a principal that is admitted again", "granted", "refused")
    })??;
    let took = began.elapsed();
    holds(
        "how soon a principal is admitted again",
        took < IN_FORCE * 2,
        format!("about {IN_FORCE:?}"),
        format!("{took:?}"),
    )?;
    Seat::open(&mut client.speaker, space.did, principal)
        .await?
        .reads_fixture(&mut client.speaker)
        .await?;
    Ok(took)
}
