//! The quotas of one connection: sessions, spaces, watches, holdings. Each refuses the request that would pass it.

use serde_json::{Value, json};

use super::acts::{try_open, watch_of};
use super::denial::{Client, Refusal, denied};
use crate::error::same;
use crate::raw::{Framing, ok};
use crate::stage::{StageOptions, identity};
use crate::{GateError, Stage};

/// Limits of the small stage.
const WATCHES_PER_SESSION: usize = 4;
const WATCHES: usize = 6;
const HOLDINGS: usize = 6;

/// Views of one session: fixed.
const MOST_VIEWS: usize = 64;

/// Every quota, on a stage that has little of each.
pub(super) async fn every(stage: &Stage) -> Result<(), GateError> {
    let options = StageOptions {
        limits: format!(
            "max_sessions_per_connection = 3\nmax_spaces_per_connection = 2\n\
            max_watches_per_session = {WATCHES_PER_SESSION}\nmax_watches_per_connection = {WATCHES}\n\
            max_holdings_per_connection = {HOLDINGS}"
        ),
        unlisted: true,
        ..StageOptions::default()
    };
    let small = Stage::set(stage.programs(), options).await?;
    spaces(&small).await?;
    watches(&small).await?;
    holdings(&small).await?;
    small.strike().await
}

/// Sessions and spaces of a connection.
async fn spaces(stage: &Stage) -> Result<(), GateError> {
    use Refusal::ForNow;
    let [first, second] = &stage.spaces;
    let mut client = Client::arrive(stage, Framing::Credited).await?;
    let third = identity(60)?;
    client.speaker.authenticate(&third).await?;
    let seat = client.opens(first).await?;
    let other = client.opens(second).await?;
    client
        .may_not_open(third.did(), third.did(), ForNow, "space-limit")
        .await?;
    // A space that was opened counts for good, its sessions only as long as they live.
    ok(&other
        .request(&mut client.speaker, "session.close", json!({}))
        .await?)?;
    client
        .may_not_open(third.did(), third.did(), ForNow, "space-limit")
        .await?;
    client.opens(second).await?;
    let last = client.opens(first).await?;
    client
        .may_not_open(first.did, first.owner.did(), ForNow, "session-limit")
        .await?;
    ok(&last
        .request(&mut client.speaker, "session.close", json!({}))
        .await?)?;
    client.opens(first).await?;
    seat.reads_fixture(&mut client.speaker).await?;
    client.speaker.client.reset()?;

    // A space counts from its admission on, also where the toolshed then lets nobody in.
    let mut client = Client::arrive(stage, Framing::Credited).await?;
    client.speaker.authenticate(&first.owner).await?;
    for seed in 61..63 {
        let space = identity(seed)?.did();
        let answer = try_open(&mut client.speaker, space, first.owner.did()).await?;
        denied("a stranger's open", &answer, Refusal::ForGood)?;
    }
    client
        .may_not_open(first.did, first.owner.did(), ForNow, "space-limit")
        .await?;
    client.speaker.client.reset()
}

/// Watches and views of a session and of a connection.
async fn watches(stage: &Stage) -> Result<(), GateError> {
    let [space, _] = &stage.spaces;
    let set = "session.watch.set";
    let mut client = Client::arrive(stage, Framing::Credited).await?;
    let seat = client.opens(space).await?;
    let other = client.opens(space).await?;
    let watches = |count: usize| -> Vec<Value> {
        (0..count)
            .map(|place| watch_of(&format!("w{place}"), &format!("of:watched-{place}")))
            .collect()
    };
    let full = seat.members(json!({ "watches": watches(WATCHES_PER_SESSION) }))?;
    ok(&client.speaker.request(set, full.clone()).await?)?;
    let one_more = seat.members(json!({ "watches": watches(WATCHES_PER_SESSION + 1) }))?;
    client
        .is_refused((set, one_more), Refusal::ForGood, "frame-limit")
        .await?;
    let added = seat.members(json!({ "watches": [watch_of("more", "of:more")] }))?;
    client
        .is_refused(
            ("session.watch.add", added),
            Refusal::ForGood,
            "frame-limit",
        )
        .await?;
    let views: Vec<Value> = (0..=MOST_VIEWS).map(|view| json!({ "id": view })).collect();
    let views = seat.members(json!({ "watches": [], "views": views }))?;
    client
        .is_refused((set, views), Refusal::ForGood, "frame-limit")
        .await?;

    // The other session finds what this one leaves of the connection's quota.
    let left = WATCHES - WATCHES_PER_SESSION;
    let too_many = other.members(json!({ "watches": watches(left + 1) }))?;
    client
        .is_refused((set, too_many.clone()), Refusal::ForNow, "watch-limit")
        .await?;
    let all = other.members(json!({ "watches": watches(left) }))?;
    ok(&client.speaker.request(set, all).await?)?;
    // The same set again takes nothing more; what is given back can be taken.
    ok(&client.speaker.request(set, full).await?)?;
    let fewer = seat.members(json!({ "watches": watches(WATCHES_PER_SESSION - 1) }))?;
    ok(&client.speaker.request(set, fewer).await?)?;
    ok(&client.speaker.request(set, too_many).await?)?;
    for seat in [seat, other] {
        seat.reads_fixture(&mut client.speaker).await?;
    }
    client.speaker.client.reset()
}

/// Holdings of a connection.
async fn holdings(stage: &Stage) -> Result<(), GateError> {
    let [space, _] = &stage.spaces;
    let set = "session.watch.set";
    let mut client = Client::arrive(stage, Framing::Credited).await?;
    let seat = client.opens(space).await?;
    let held = |count: usize| -> Vec<Value> {
        (0..count)
            .map(|place| json!({ "id": format!("of:held-{place}"), "scope": "space", "seq": 1, "branch": "" }))
            .collect()
    };
    let too_many = seat.members(json!({ "watches": [], "holdings": held(HOLDINGS + 1) }))?;
    client
        .is_refused((set, too_many), Refusal::ForNow, "holdings-limit")
        .await?;
    let all = seat.members(json!({ "watches": [], "holdings": held(HOLDINGS) }))?;
    let answer = client.speaker.request(set, all).await?;
    // Whatever the toolshed thinks of them, the router has let them pass.
    let reason = answer.pointer("/error/message");
    same(
        "an answer by the toolshed",
        reason == Some(&json!("Routed memory request denied")),
        false,
    )?;
    seat.reads_fixture(&mut client.speaker).await?;
    client.speaker.client.reset()
}
