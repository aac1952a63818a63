//! The table of sessions and routing, as far as no process has to die for it: what the client is told, and what the log says.

use serde_json::{Value, json};

use super::GateResult;
use super::acts::try_open;
use super::allowances;
use super::denial::{Client, Refusal, denied, logged};
use super::directory::{Placement, write_text};
use super::malformed::closes_as_broken;
use crate::error::same;
use crate::raw::{Framing, ok};
use crate::report::figure;
use crate::stage::{StageOptions, UNKNOWN_SPACE, identity};
use crate::{GateError, Stage, log};

/// Entries of `holdings` in one frame: fixed.
const MOST_HOLDINGS: usize = 8192;

/// The largest request of which credit can ever cover the body, bytes.
const LARGEST_REQUEST: usize = 4 << 20;

/// How often a change of the directory is tried that only an open between two looks of the router meets.
const TRIES: u64 = 20;

/// Every row of the table.
pub(super) async fn table(stage: &Stage) -> GateResult {
    sessions(stage).await?;
    large_requests(stage).await?;
    let closed = closing(stage).await?;
    allowances::every(stage).await?;

    let mut own = Stage::set(stage.programs(), StageOptions::default()).await?;
    let tries = placement_changed(&own).await?;
    unreadable(&own).await?;
    topology(&own).await?;
    no_toolshed(&mut own).await?;
    own.strike().await?;
    let mut figures = figure("closing_cases", closed);
    figures.extend(figure("placement_tries", tries));
    Ok(figures)
}

/// Refusals that leave the connection and its sessions as they are.
async fn sessions(stage: &Stage) -> Result<(), GateError> {
    use Refusal::ForGood;
    let [first, second] = &stage.spaces;
    let unknown = identity(UNKNOWN_SPACE)?.did();
    for framing in [Framing::Credited, Framing::Streamed, Framing::Legacy] {
        let mut client = Client::arrive(stage, framing).await?;
        let seat = client.opens(first).await?;
        client
            .may_not_open(unknown, first.owner.did(), ForGood, "unplaced")
            .await?;
        client
            .may_not_open(second.did, second.owner.did(), ForGood, "principal-unknown")
            .await?;
        let elsewhere = [(first.did, "nobody"), (second.did, seat.id.as_str())];
        for (space, session) in elsewhere {
            for (kind, more) in [
                ("graph.query", json!({})),
                ("session.close", json!({})),
                ("session.watch.set", json!({ "watches": [] })),
                ("no.such.operation", json!({})),
            ] {
                let members = crate::raw::of_session(space, session, more)?;
                client
                    .is_refused((kind, members), ForGood, "session-unknown")
                    .await?;
            }
        }
        let members = seat.members(json!({ "source": {} }))?;
        client
            .is_refused(
                ("sqlite.register-disk-source", members),
                ForGood,
                "operation-denied",
            )
            .await?;
        // An ID that has been answered may be used again; an operation that the router does not know is the toolshed's.
        let query = seat.members(json!({ "query": { "roots": [] } }))?;
        let (id, message) = client.speaker.compose("graph.query", query)?;
        for _ in 0..2 {
            client.speaker.send(&message).await?;
            ok(&client.speaker.answer(&id).await?)?;
        }
        let answer = seat
            .request(&mut client.speaker, "no.such.operation", json!({}))
            .await?;
        same(
            "an operation that the router does not know",
            answer.pointer("/error/name"),
            Some(&json!("InvalidMessageError")),
        )?;
        ok(&seat
            .request(&mut client.speaker, "session.close", json!({}))
            .await?)?;
        let members = seat.members(json!({}))?;
        client
            .is_refused(("graph.query", members), ForGood, "session-unknown")
            .await?;
        client.speaker.client.reset()?;
    }
    Ok(())
}

/// A request that request credit can never cover.
async fn large_requests(stage: &Stage) -> Result<(), GateError> {
    let [space, _] = &stage.spaces;
    let mut client = Client::arrive(stage, Framing::Credited).await?;
    let seat = client.opens(space).await?;
    let padding = "x".repeat(LARGEST_REQUEST);
    let open = json!({
        "space": space.did, "principal": space.owner.did(), "session": {}, "padding": padding,
    });
    let watch = seat.members(json!({ "watches": [], "padding": padding }))?;
    let query = seat.members(json!({ "query": { "roots": [] }, "padding": padding }))?;
    for request in [
        ("session.open", open),
        ("session.watch.set", watch),
        ("graph.query", query),
    ] {
        client
            .is_refused(request, Refusal::ForGood, "request-too-large")
            .await?;
        seat.reads_fixture(&mut client.speaker).await?;
    }
    client.speaker.client.reset()
}

/// Requests that close the connection.
async fn closing(stage: &Stage) -> Result<usize, GateError> {
    let [space, _] = &stage.spaces;
    let entries: Vec<Value> = vec![json!(1); MOST_HOLDINGS + 1];
    let cases: [(&str, &str, Value, &str); 9] = [
        (
            "holdings that are no list",
            "session.watch.set",
            json!({ "watches": [], "holdings": {} }),
            "holdings",
        ),
        (
            "too many holdings",
            "session.watch.set",
            json!({ "watches": [], "holdings": entries }),
            "holdings-count",
        ),
        (
            "watches that are no list",
            "session.watch.set",
            json!({ "watches": {} }),
            "watches",
        ),
        ("no watches", "session.watch.add", json!({}), "watches"),
        (
            "views that are no list",
            "session.watch.set",
            json!({ "watches": [], "views": 1 }),
            "views",
        ),
        (
            "a watch without an ID",
            "session.watch.set",
            json!({ "watches": [{ "kind": "graph" }] }),
            "watch-id",
        ),
        (
            "a watch with a malformed ID",
            "session.watch.set",
            json!({ "watches": [{ "id": "a b" }] }),
            "watch-id",
        ),
        (
            "smuggled metadata",
            "session.watch.set",
            json!({ "watches": [], "routerTicket": "" }),
            "smuggled-metadata",
        ),
        (
            "an open without session",
            "session.open",
            json!({ "principal": space.owner.did() }),
            "open-session",
        ),
    ];
    let count = cases.len() + 1;
    for (what, kind, members, detail) in cases {
        let mark = stage.router.log().mark();
        let mut client = Client::arrive(stage, Framing::Credited).await?;
        let seat = client.opens(space).await?;
        let mut members = seat.members(members)?;
        if kind == "session.open"
            && let Some(members) = members.as_object_mut()
        {
            members.remove("sessionId");
        }
        let (_, message) = client.speaker.compose(kind, members)?;
        client.speaker.send(&message).await?;
        closes_as_broken(stage, mark, &mut client.speaker, detail)
            .await
            .map_err(|error| error.within(what))?;
    }
    // A request ID that is in flight.
    let mark = stage.router.log().mark();
    let mut client = Client::arrive(stage, Framing::Credited).await?;
    let seat = client.opens(space).await?;
    let (_, first) = client.speaker.compose(
        "graph.query",
        seat.members(json!({ "query": { "roots": [] } }))?,
    )?;
    for _ in 0..64 {
        // One of them comes before the answer to the one before.
        if client.speaker.send(&first).await.is_err() {
            break;
        }
    }
    closes_as_broken(stage, mark, &mut client.speaker, "request-id-in-flight")
        .await
        .map_err(|error| error.within("a request ID in flight"))?;
    Ok(count)
}

/// A placement that the toolshed follows before the router does. Gives how often it was tried.
async fn placement_changed(stage: &Stage) -> Result<u64, GateError> {
    let [space, other] = &stage.spaces;
    let mut placement = Placement::of(stage)?;
    for attempt in 1..=TRIES {
        let mut client = Client::arrive(stage, Framing::Credited).await?;
        client.speaker.authenticate(&space.owner).await?;
        let seat = client.opens(other).await?;
        let mark = stage.router.log().mark();
        placement.list(space.did, space.toolshed, 1 + attempt);
        placement.write(stage)?;
        let answer = try_open(&mut client.speaker, space.did, space.owner.did()).await?;
        let met = answer.get("error").is_some();
        if met {
            denied("a placement that changed", &answer, Refusal::ForNow)?;
            logged(stage, (mark, &client.name), "placement-changed").await?;
        }
        placement.is_followed(stage, mark).await?;
        // From then on the same connection gets in, and it never lost the other session.
        client.opens(space).await?;
        seat.reads_fixture(&mut client.speaker).await?;
        client.speaker.client.reset()?;
        if met {
            return Ok(attempt);
        }
    }
    Err(GateError::new("placement-changed", "it met once", "never"))
}

/// A directory that cannot be read: open sessions go on, new opens are refused for now.
async fn unreadable(stage: &Stage) -> Result<(), GateError> {
    let good = Placement::of(stage)?;
    let [space, other] = &stage.spaces;
    let mut client = Client::arrive(stage, Framing::Credited).await?;
    let seat = client.opens(space).await?;
    let mark = stage.router.log().mark();
    write_text(stage, "{\"version\": 1,")?;
    broker_says(stage, mark, "directory-unreadable").await?;
    client.speaker.authenticate(&other.owner).await?;
    for space in [space, other] {
        client
            .may_not_open(
                space.did,
                space.owner.did(),
                Refusal::ForNow,
                "directory-unreadable",
            )
            .await?;
    }
    seat.reads_fixture(&mut client.speaker).await?;
    let mark = stage.router.log().mark();
    good.write(stage)?;
    good.is_followed(stage, mark).await?;
    client.opens(other).await?;
    client.speaker.client.reset()
}

/// Toolsheds, or the rule for unlisted spaces, that are not those the router started with.
async fn topology(stage: &Stage) -> Result<(), GateError> {
    let good = Placement::of(stage)?;
    let [space, other] = &stage.spaces;
    let mut client = Client::arrive(stage, Framing::Credited).await?;
    let seat = client.opens(space).await?;
    client.speaker.authenticate(&other.owner).await?;
    let mut renamed = good.clone();
    renamed.rename(1, "another-name")?;
    let mut ruled = good.clone();
    ruled.rule(0, 1);
    for changed in [renamed, ruled] {
        let mark = stage.router.log().mark();
        changed.write(stage)?;
        broker_says(stage, mark, "restart-needed").await?;
        client
            .may_not_open(
                other.did,
                other.owner.did(),
                Refusal::ForNow,
                "restart-needed",
            )
            .await?;
        seat.reads_fixture(&mut client.speaker).await?;
        let mark = stage.router.log().mark();
        good.write(stage)?;
        good.is_followed(stage, mark).await?;
        client.opens(other).await?;
    }
    client.speaker.client.reset()
}

async fn broker_says(stage: &Stage, mark: usize, reason: &str) -> Result<(), GateError> {
    let says = |line: &Value| {
        log::has(line, "role", "directory-broker") && log::has(line, "reason", reason)
    };
    stage.router.log().wait(reason, mark, says).await.map(drop)
}

/// A toolshed whose link is gone: opens there are refused for now, others go on.
async fn no_toolshed(stage: &mut Stage) -> Result<(), GateError> {
    let audience = stage.audience;
    let mark = stage.router.log().mark();
    let [toolshed, _] = &mut stage.toolsheds;
    toolshed.command(&json!({ "revoke": audience })).await?;
    let gone = |line: &Value| {
        log::has(line, "toolshed", "toolshed-0") && log::has(line, "reason", "link-lost")
    };
    stage.router.log().wait("link-lost", mark, gone).await?;
    let [space, other] = &stage.spaces;
    let mut client = Client::arrive(stage, Framing::Credited).await?;
    client.speaker.authenticate(&space.owner).await?;
    client
        .may_not_open(
            space.did,
            space.owner.did(),
            Refusal::ForNow,
            "upstream-unavailable",
        )
        .await?;
    client.opens(other).await?;
    client.speaker.client.reset()
}
