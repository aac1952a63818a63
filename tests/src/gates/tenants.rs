//! Gate 6, at the upgrade: a space has so many dedicated sockets and no more, whoever races for them.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use memory_client::Did;
use tokio::time::sleep;

use super::GateResult;
use crate::error::{DEADLINE, holds, same};
use crate::raw::{RawClient, UpgradeAnswer, dial, request};
use crate::report::figure;
use crate::stage::StageOptions;
use crate::{GateError, Stage};

/// Dedicated sockets that a space may have.
const CAP: usize = 3;

/// Clients that race for them.
const RACERS: usize = 4 * CAP;

/// The pause before one who was refused tries again: the protocol has no event for it.
const RETRY: Duration = Duration::from_millis(100);

/// A cap of N admits N of those who race; the others get 429 with tenant, cap and Retry-After; whoever leaves makes room for one.
pub(super) async fn dedicated_sockets(stage: &Stage) -> GateResult {
    let options = StageOptions {
        limits: format!("max_connections_per_space = {CAP}"),
        ..StageOptions::default()
    };
    let stage = Stage::set(stage.programs(), options).await?;
    let [first, second] = &stage.spaces;
    let racing = (0..RACERS).map(|_| upgrade(&stage, first.did));
    let mut inside = Vec::new();
    for answer in join_all(racing).await {
        let answer = answer?;
        if answer.status == 101 {
            inside.push(answer.into_client()?);
        } else {
            is_refused(answer, first.did).await?;
        }
    }
    same("sockets among those who raced", inside.len(), CAP)?;

    // Neither another space nor a socket for all of them minds.
    upgrade(&stage, second.did).await?.into_client()?.reset()?;
    RawClient::connect(&stage).await?.reset()?;

    for client in inside.drain(..1) {
        client.reset()?;
    }
    let began = Instant::now();
    inside.push(admitted(&stage, first.did).await?);
    let waited = began.elapsed();
    is_refused(upgrade(&stage, first.did).await?, first.did).await?;

    // Nothing is left of those who have gone: as many come in again.
    for client in inside.drain(..) {
        client.reset()?;
    }
    for _ in 0..CAP {
        inside.push(admitted(&stage, first.did).await?);
    }
    is_refused(upgrade(&stage, first.did).await?, first.did).await?;
    drop(inside);
    stage.strike().await?;
    Ok(figure(
        "free_again_after_ms",
        u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
    ))
}

async fn upgrade(stage: &Stage, space: Did) -> Result<UpgradeAnswer, GateError> {
    let path = format!("/api/storage/memory?space={space}");
    dial(stage, &request(stage, &path, &[])).await
}

/// Tries until there is room.
async fn admitted(stage: &Stage, space: Did) -> Result<RawClient, GateError> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let answer = upgrade(stage, space).await?;
        if answer.status == 101 || Instant::now() >= deadline {
            return answer.into_client();
        }
        is_refused(answer, space).await?;
        sleep(RETRY).await;
    }
}

async fn is_refused(answer: UpgradeAnswer, space: Did) -> Result<(), GateError> {
    same("the status over the cap", answer.status, 429)?;
    let wait = answer
        .field("retry-after")
        .and_then(|wait| wait.parse().ok());
    holds(
        "Retry-After",
        wait.is_some_and(|seconds: u64| seconds > 0),
        "a number of seconds",
        format!("{wait:?}"),
    )?;
    let body = answer.body().await?;
    let told = [
        r#""error":"tenant-cap""#.to_owned(),
        format!(r#""tenant":"{space}""#),
        format!(r#""cap":{CAP}"#),
    ];
    let missing: Vec<&String> = told.iter().filter(|part| !body.contains(*part)).collect();
    holds(
        "the body over the cap",
        missing.is_empty(),
        format!("{told:?}"),
        body,
    )
}
