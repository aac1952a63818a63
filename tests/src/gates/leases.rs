//! Gates 3 to 5: what a lease is good for, how it is extended, and what its end looks like.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::GateResult;
use super::acts::{Seat, try_open};
use super::denial::{Refusal, denied, denied_because};
use crate::error::{holds, same};
use crate::raw::{Claim, Framing, Speaker, ok, text, unix_now};
use crate::report::figure;
use crate::stage::{Space, StageOptions};
use crate::{GateError, Stage};

/// Seconds of a lease whose end is waited for. One second less would be too short for a toolshed to be told.
const SHORT: u64 = 3;

/// Renewals of a short lease, one a second: together they outlast the first lease.
const RENEWALS: u64 = 5;

/// How long a stage of the fifth gate holds an open.
const HOLD: Duration = Duration::from_millis(700);

/// Gate 3: renewal extends an active session past its first lease; 600 s are admitted, 601 s are not.
pub(super) async fn renewal(stage: &Stage) -> GateResult {
    let (kept, ()) = tokio::try_join!(kept_alive(stage), longest(stage))?;
    Ok(figure("kept_alive_s", kept))
}

/// Gives how long the session lived, seconds.
async fn kept_alive(stage: &Stage) -> Result<u64, GateError> {
    let [space, _] = &stage.spaces;
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let began = unix_now();
    speaker.sign_in(&space.owner, SHORT).await?;
    let seat = Seat::open(&mut speaker, space.did, space.owner.did()).await?;
    for renewal in 1..=RENEWALS {
        until(began + renewal).await;
        speaker.sign_in(&space.owner, SHORT).await?;
        seat.reads_fixture(&mut speaker)
            .await
            .map_err(|error| error.within(format!("after renewal {renewal}")))?;
    }
    let lived = unix_now() - began;
    holds(
        "the life of the session",
        lived >= SHORT,
        format!("past the first lease of {SHORT} s"),
        lived,
    )?;
    speaker.client.reset()?;
    Ok(lived)
}

async fn longest(stage: &Stage) -> Result<(), GateError> {
    let [space, _] = &stage.spaces;
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let answer = {
        let claim = Claim::fresh(&mut speaker, 601).await?;
        claim.present(&mut speaker, &space.owner).await?
    };
    denied_because(
        stage,
        (mark, &name),
        &answer,
        Refusal::ForGood,
        "lease-too-long",
    )
    .await?;
    let claim = Claim::fresh(&mut speaker, 600).await?;
    let answer = claim.present(&mut speaker, &space.owner).await?;
    same(
        "the answer to a lease of 600 s",
        ok(&answer)?,
        &json!({ "principal": space.owner.did(), "expiresAt": claim.exp }),
    )?;
    let seat = Seat::open(&mut speaker, space.did, space.owner.did()).await?;
    seat.reads_fixture(&mut speaker).await?;
    speaker.client.reset()
}

/// Gate 4: release blocks new opens and keeps the original session's lease.
pub(super) async fn release(stage: &Stage) -> GateResult {
    let [space, other] = &stage.spaces;
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let claim = Claim::fresh(&mut speaker, SHORT).await?;
    ok(&claim.present(&mut speaker, &space.owner).await?)?;
    let seat = Seat::open(&mut speaker, space.did, space.owner.did()).await?;
    speaker.authenticate(&other.owner).await?;
    let others = Seat::open(&mut speaker, other.did, other.owner.did()).await?;

    // Twice, and of somebody who never came: each is granted.
    let stranger = crate::stage::identity(crate::stage::UNKNOWN_SPACE)?.did();
    for principal in [space.owner.did(), space.owner.did(), stranger] {
        speaker.release(principal).await?;
    }
    let answer = try_open(&mut speaker, space.did, space.owner.did()).await?;
    denied_because(
        stage,
        (mark, &name),
        &answer,
        Refusal::ForGood,
        "principal-unknown",
    )
    .await?;
    // The statement of before the release does not undo it.
    let answer = claim.present(&mut speaker, &space.owner).await?;
    denied("the released statement", &answer, Refusal::ForGood)?;

    seat.reads_fixture(&mut speaker).await?;
    is_revoked_at(&mut speaker, &seat, claim.exp).await?;
    others.reads_fixture(&mut speaker).await?;

    // A fresh signature brings the principal back.
    speaker.sign_in(&space.owner, SHORT).await?;
    let seat = Seat::open(&mut speaker, space.did, space.owner.did()).await?;
    seat.reads_fixture(&mut speaker).await?;
    speaker.client.reset()?;
    Ok(figure("lease_s", SHORT))
}

/// Gate 5: lease expiry revokes sessions; a later open is held, the pushed challenge is signed, the open is answered. Not
/// signed, it is refused for now.
pub(super) async fn expiry(stage: &Stage) -> GateResult {
    let hold = format!("hold_open = \"{}ms\"", HOLD.as_millis());
    let options = StageOptions {
        timeouts: hold,
        ..StageOptions::default()
    };
    let impatient = Stage::set(stage.programs(), options).await?;
    let [first, second] = &stage.spaces;
    let (late, again, held) = tokio::try_join!(
        signed_again(stage, first),
        signed_again(stage, second),
        not_signed(&impatient),
    )?;
    impatient.strike().await?;
    let mut figures = figure("revoked_after_expiry_ms", late.max(again));
    figures.extend(figure("held_ms", held));
    Ok(figures)
}

/// Gives how long after the lease's end the session was revoked, milliseconds.
async fn signed_again(stage: &Stage, space: &Space) -> Result<u64, GateError> {
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let claim = Claim::fresh(&mut speaker, SHORT).await?;
    ok(&claim.present(&mut speaker, &space.owner).await?)?;
    let seat = Seat::open(&mut speaker, space.did, space.owner.did()).await?;
    // The client sends nothing from here to there.
    let late = is_revoked_at(&mut speaker, &seat, claim.exp).await?;

    // Two opens are held, and one challenge is enough for both.
    let members = json!({ "space": space.did, "principal": space.owner.did(), "session": {} });
    let mut held = Vec::new();
    for _ in 0..2 {
        let (id, open) = speaker.compose("session.open", members.clone())?;
        speaker.send(&open).await?;
        held.push(id);
    }
    let push = speaker.push("connection/challenge").await?;
    same(
        "the principal of a pushed challenge",
        text(&push, "principal"),
        Some(space.owner.did().as_str()),
    )?;
    // The connection is not held: somebody else's requests are answered meanwhile.
    let query = json!({});
    let answer = seat.request(&mut speaker, "graph.query", query).await?;
    denied(
        "a request of the session that is over",
        &answer,
        Refusal::ForGood,
    )?;
    let claim = Claim::pushed(&speaker, &push, 600)?;
    ok(&claim.present(&mut speaker, &space.owner).await?)?;
    for id in held {
        let answer = speaker.answer(&id).await?;
        Seat::of(space.did, &answer)?
            .reads_fixture(&mut speaker)
            .await?;
    }
    speaker.client.reset()?;
    Ok(late)
}

/// Gives how long the open was held, milliseconds.
async fn not_signed(stage: &Stage) -> Result<u64, GateError> {
    let [space, other] = &stage.spaces;
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let claim = Claim::fresh(&mut speaker, SHORT).await?;
    ok(&claim.present(&mut speaker, &space.owner).await?)?;
    speaker.authenticate(&other.owner).await?;
    until(claim.exp).await;
    let mut longest = 0;
    for _ in 0..2 {
        let began = Instant::now();
        let answer = try_open(&mut speaker, space.did, space.owner.did()).await?;
        let held = began.elapsed();
        denied_because(
            stage,
            (mark, &name),
            &answer,
            Refusal::ForNow,
            "principal-renewal",
        )
        .await?;
        holds(
            "how long an open is held",
            held >= HOLD,
            format!("{HOLD:?}"),
            format!("{held:?}"),
        )?;
        longest = longest.max(millis(held));
        // Each open that is held asks anew.
        speaker.push("connection/challenge").await?;
        Seat::open(&mut speaker, other.did, other.owner.did())
            .await?
            .reads_fixture(&mut speaker)
            .await?;
    }
    speaker.client.reset()?;
    Ok(longest)
}

/// Demands that the session is revoked, and not before its lease is over; gives how long after that, milliseconds.
async fn is_revoked_at(speaker: &mut Speaker, seat: &Seat, exp: u64) -> Result<u64, GateError> {
    let push = speaker.push("session/revoked").await?;
    let end = UNIX_EPOCH + Duration::from_secs(exp);
    let late = end.elapsed();
    let late = late.map_err(|early| {
        let found = format!("{:?} before it", early.duration());
        GateError::new("a revocation", "the end of the lease", found)
    })?;
    same(
        "the session that is revoked",
        (text(&push, "space"), text(&push, "sessionId")),
        (Some(seat.space.as_str()), Some(seat.id.as_str())),
    )?;
    same(
        "the reason of a revocation",
        push.get("reason"),
        Some(&Value::from("unauthorized")),
    )?;
    Ok(millis(late))
}

/// Waits for a second of this host's clock.
async fn until(unix: u64) {
    let at = UNIX_EPOCH + Duration::from_secs(unix);
    if let Ok(left) = at.duration_since(std::time::SystemTime::now()) {
        sleep(left).await;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
