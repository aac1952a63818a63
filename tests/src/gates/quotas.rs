//! Gates 6 and 7: a connection at one of its limits refuses the newcomer, and goes on.

use serde_json::{Value, json};

use super::GateResult;
use super::acts::{Seat, claim, identities, query_of, try_open};
use super::denial::{Refusal, denied_because};
use crate::error::same;
use crate::raw::{Framing, Speaker, ok};
use crate::report::{Figures, figure};
use crate::stage::{StageOptions, identity};
use crate::{Context, GateError, Stage};

/// Principals that the connection of the seventh gate may have active, and spaces that it creates.
const PRINCIPALS: usize = 8;
const SPACES: u8 = 12;

/// Gate 6: at its principal limit a connection refuses one authentication and goes on; at its session limit one open.
pub(super) async fn limits(stage: &Stage) -> GateResult {
    let options = StageOptions {
        limits: "max_principals_per_connection = 2\nmax_sessions_per_connection = 2".to_owned(),
        ..StageOptions::default()
    };
    let small = Stage::set(stage.programs(), options).await?;
    let stage = &small;
    let [first, second] = &stage.spaces;
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    same(
        "the limits that hello tells",
        ["sessions", "principals"].map(|limit| {
            let limits = speaker.hello.get("routerLimits");
            limits.and_then(|limits| limits.get(limit)).cloned()
        }),
        [Some(json!(2)), Some(json!(2))],
    )?;
    let seats = [
        Seat::take(&mut speaker, first).await?,
        Seat::take(&mut speaker, second).await?,
    ];
    let carol = identity(43)?;
    let open = speaker.hello.get("sessionOpen").cloned();
    let open = open.during("sessionOpen")?;
    for _ in 0..2 {
        let answer = speaker.sign(&carol, stage.audience, &open).await?;
        denied_because(
            stage,
            (mark, &name),
            &answer,
            Refusal::ForNow,
            "principal-limit",
        )
        .await?;
    }
    for (space, principal) in [(first, first.owner.did()), (second, second.owner.did())] {
        let answer = try_open(&mut speaker, space.did, principal).await?;
        denied_because(
            stage,
            (mark, &name),
            &answer,
            Refusal::ForNow,
            "session-limit",
        )
        .await?;
    }
    for seat in &seats {
        seat.reads_fixture(&mut speaker).await?;
    }
    // Whoever gives a place up makes room for one.
    let [seat, other] = seats;
    ok(&seat
        .request(&mut speaker, "session.close", json!({}))
        .await?)?;
    let again = Seat::open(&mut speaker, second.did, second.owner.did()).await?;
    speaker.release(first.owner.did()).await?;
    ok(&speaker.sign(&carol, stage.audience, &open).await?)?;
    for seat in [&other, &again] {
        seat.reads_fixture(&mut speaker).await?;
    }
    // Also an open that the toolshed refuses gives its place back.
    ok(&again
        .request(&mut speaker, "session.close", json!({}))
        .await?)?;
    for _ in 0..3 {
        let answer = try_open(&mut speaker, second.did, carol.did()).await?;
        same("an open by a stranger", answer.get("ok"), None::<&Value>)?;
    }
    Seat::open(&mut speaker, second.did, second.owner.did())
        .await?
        .reads_fixture(&mut speaker)
        .await?;
    speaker.client.reset()?;
    small.strike().await?;
    Ok(Figures::new())
}

/// Gate 7: twelve spaces are created on one connection limited to eight principals: authenticate, create, release.
pub(super) async fn twelve_spaces(stage: &Stage) -> GateResult {
    let options = StageOptions {
        unlisted: true,
        limits: format!("max_principals_per_connection = {PRINCIPALS}"),
        ..StageOptions::default()
    };
    let own = Stage::set(stage.programs(), options).await?;
    let stage = &own;
    let keys = identities(100, SPACES)?;
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    speaker.authenticate(&stage.alice).await?;

    // The owner and seven new keys fill the connection; the next one has to wait.
    let (early, late) = keys.split_at(PRINCIPALS - 1);
    let [next, ..] = late else {
        return Err(GateError::new("keys", "more than fit", keys.len()));
    };
    for key in early {
        speaker.authenticate(key).await?;
    }
    let open = speaker.hello.get("sessionOpen").cloned();
    let open = open.during("sessionOpen")?;
    let answer = speaker.sign(next, stage.audience, &open).await?;
    denied_because(
        stage,
        (mark, &name),
        &answer,
        Refusal::ForNow,
        "principal-limit",
    )
    .await?;

    let mut seats = Vec::new();
    for (place, key) in keys.iter().enumerate() {
        if place >= early.len() {
            speaker.authenticate(key).await?;
        }
        let mut seat = Seat::open(&mut speaker, key.did(), key.did()).await?;
        let acl = json!({ stage.alice.did().as_str(): "OWNER" });
        claim(&mut speaker, &mut seat, acl).await?;
        let answer = seat.commit(&mut speaker, "of:gate-7", json!(place)).await?;
        ok(&answer)?;
        speaker.release(key.did()).await?;
        seats.push(seat);
    }
    // Every creator's session lives on its lease, and the owner, who stayed, owns every space.
    for (place, seat) in seats.iter().enumerate() {
        let answer = try_open(&mut speaker, seat.space, stage.alice.did()).await?;
        for seat in [seat, &Seat::of(seat.space, &answer)?] {
            let query = query_of(&["of:gate-7"]);
            let answer = seat.request(&mut speaker, "graph.query", query).await?;
            same(
                "the document of a space",
                ok(&answer)?.pointer("/entities/0/document/value"),
                Some(&json!(place)),
            )?;
        }
    }
    speaker.client.reset()?;
    own.strike().await?;
    Ok(figure("spaces", seats.len()))
}
