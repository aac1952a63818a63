//! Gates 8 and 9: a space is created by its own key alone, and a dedicated socket is for one space.

use std::fs;

use memory_client::{Did, Identity};
use serde_json::{Value, json};

use super::GateResult;
use super::acts::{Seat, query_of, try_open};
use super::denial::{Refusal, denied, denied_because};
use super::directory::Placement;
use crate::error::{holds, same};
use crate::raw::{Framing, RawClient, Speaker, dial, ok, request};
use crate::report::figure;
use crate::stage::{StageOptions, UNKNOWN_SPACE, identity};
use crate::{Context, GateError, Stage};

/// Gate 8: a space is created by its own key through the `unlisted` rule; its genesis ACL then governs; nobody else creates
/// it.
pub(super) async fn by_its_own_key(stage: &Stage) -> GateResult {
    // Where there is no rule, its own key does not help.
    let key = identity(50)?;
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    speaker.authenticate(&key).await?;
    let answer = try_open(&mut speaker, key.did(), key.did()).await?;
    denied_because(stage, (mark, &name), &answer, Refusal::ForGood, "unplaced").await?;
    speaker.client.reset()?;

    let options = StageOptions {
        unlisted: true,
        ..StageOptions::default()
    };
    let own = Stage::set(stage.programs(), options).await?;
    create(&own, &identity(51)?, false).await?;
    create(&own, &identity(52)?, true).await?;
    not_where_it_is_listed(&own, &identity(53)?).await?;
    own.strike().await?;
    Ok(figure("spaces", 2))
}

/// A connection to this space alone, or to any.
async fn connect(stage: &Stage, only: Option<Did>) -> Result<Speaker, GateError> {
    let client = match only {
        None => RawClient::connect(stage).await?,
        Some(space) => dedicated(stage, &format!("space={space}")).await?,
    };
    Speaker::on(client, Framing::Credited, false).await
}

async fn dedicated(stage: &Stage, query: &str) -> Result<RawClient, GateError> {
    let path = format!("/api/storage/memory?{query}");
    dial(stage, &request(stage, &path, &[]))
        .await?
        .into_client()
}

async fn create(stage: &Stage, key: &Identity, is_dedicated: bool) -> Result<(), GateError> {
    let space = key.did();
    let stores = stores(stage)?;
    let mut speaker = connect(stage, is_dedicated.then_some(space)).await?;
    speaker.authenticate(&stage.alice).await?;

    // A stranger's open makes nothing, not even a store.
    let answer = try_open(&mut speaker, space, stage.alice.did()).await?;
    denied(
        "a stranger's open of a new space",
        &answer,
        Refusal::ForGood,
    )?;
    same("the stores after a stranger", self::stores(stage)?, stores)?;

    speaker.authenticate(key).await?;
    let session = json!({ "spaceKind": "notebook" });
    let members = json!({ "space": space, "principal": space, "session": session });
    let answer = speaker.request("session.open", members).await?;
    let mut seat = Seat::of(space, &answer)?;
    same(
        "the stores of a new space",
        self::stores(stage)?,
        stores + 1,
    )?;

    // Before its ACL it holds nothing else, and nobody but its key comes in.
    let answer = seat.commit(&mut speaker, "of:too-early", json!(1)).await?;
    holds(
        "a commit before the ACL",
        answer.get("error").is_some(),
        "an error",
        &answer,
    )?;
    let answer = try_open(&mut speaker, space, stage.alice.did()).await?;
    is_refused("a stranger before the ACL", &answer)?;

    let [alice, bob] = [&stage.alice, &stage.bob].map(|owner| owner.did());
    let acl = json!({ alice.as_str(): "OWNER", bob.as_str(): "READ" });
    let mut members = seat.set(&format!("of:{space}"), acl)?;
    let commit = members.get_mut("commit").and_then(Value::as_object_mut);
    commit
        .during("a commit")?
        .insert("spaceKind".to_owned(), json!("notebook"));
    ok(&speaker.request("transact", members).await?)?;

    let mut owner = Seat::open(&mut speaker, space, alice).await?;
    let answer = owner
        .commit(&mut speaker, "of:gate-8", json!("first"))
        .await?;
    ok(&answer)?;
    speaker.authenticate(&stage.bob).await?;
    let mut reader = Seat::open(&mut speaker, space, bob).await?;
    let query = query_of(&["of:gate-8"]);
    let answer = reader.request(&mut speaker, "graph.query", query).await?;
    same(
        "the document as a reader sees it",
        ok(&answer)?.pointer("/entities/0/document/value"),
        Some(&json!("first")),
    )?;
    let answer = reader
        .commit(&mut speaker, "of:gate-8", json!("second"))
        .await?;
    is_refused("a reader's commit", &answer)?;
    let carol = identity(43)?;
    speaker.authenticate(&carol).await?;
    let answer = try_open(&mut speaker, space, carol.did()).await?;
    is_refused("somebody the ACL does not name", &answer)?;

    // What its genesis declared is told to everybody, and cannot be declared otherwise.
    let answer = try_open(&mut speaker, space, alice).await?;
    same(
        "the kind of the space",
        ok(&answer)?.get("spaceKind"),
        Some(&json!("notebook")),
    )?;
    speaker.client.reset()
}

fn is_refused(what: &str, answer: &Value) -> Result<(), GateError> {
    let name = answer.pointer("/error/name");
    same(what, name, Some(&json!("AuthorizationError")))
}

/// Stores of the toolshed that new spaces go to.
fn stores(stage: &Stage) -> Result<usize, GateError> {
    let folder = stage.folder().join("toolshed-0-store");
    let mut count = 0;
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).during("listing a store")? {
            let path = entry.during("listing a store")?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("sqlite" | "db") => count += 1,
                _ => {}
            }
        }
    }
    Ok(count)
}

/// A listed space whose store is not there is not made anew, not even by its own key.
async fn not_where_it_is_listed(stage: &Stage, key: &Identity) -> Result<(), GateError> {
    let mut placement = Placement::of(stage)?;
    placement.list(key.did(), 0, 1);
    let mark = stage.router.log().mark();
    placement.write(stage)?;
    placement.is_followed(stage, mark).await?;
    let mut speaker = connect(stage, None).await?;
    speaker.authenticate(key).await?;
    let answer = try_open(&mut speaker, key.did(), key.did()).await?;
    denied("a listed space without a store", &answer, Refusal::ForGood)?;
    speaker.client.reset()
}

/// Gate 9: a dedicated socket cannot open another space even with its owner's signature; an unknown DID in the URL gets
/// nothing.
pub(super) async fn dedicated_sockets(stage: &Stage) -> GateResult {
    let [first, second] = &stage.spaces;
    let mark = stage.router.log().mark();
    let encoded = first.did.as_str().replace(':', "%3A");
    let spellings = [format!("space={}", first.did), format!("space={encoded}")];
    for query in &spellings {
        let client = dedicated(stage, query).await?;
        let mut speaker = Speaker::on(client, Framing::Credited, false).await?;
        let name = speaker.connection()?;
        let seat = Seat::take(&mut speaker, first).await?;
        speaker.authenticate(&second.owner).await?;
        let answer = try_open(&mut speaker, second.did, second.owner.did()).await?;
        denied_because(
            stage,
            (mark, &name),
            &answer,
            Refusal::ForGood,
            "dedicated-space",
        )
        .await?;
        // A frame of another space is one of a session that it does not hold.
        let elsewhere = Seat::of(second.did, &json!({ "ok": { "sessionId": seat.id } }))?;
        let answer = elsewhere
            .request(&mut speaker, "graph.query", json!({}))
            .await?;
        denied("a frame of another space", &answer, Refusal::ForGood)?;
        seat.reads_fixture(&mut speaker).await?;
        speaker.client.reset()?;
    }

    // The upgrade does not tell whether anybody knows the space; an open does not either.
    let unknown = identity(UNKNOWN_SPACE)?;
    let mut speaker = connect(stage, Some(unknown.did())).await?;
    let name = speaker.connection()?;
    for key in [&first.owner, &second.owner] {
        speaker.authenticate(key).await?;
        let answer = try_open(&mut speaker, unknown.did(), key.did()).await?;
        denied_because(stage, (mark, &name), &answer, Refusal::ForGood, "unplaced").await?;
    }
    let answer = try_open(&mut speaker, first.did, first.owner.did()).await?;
    denied("a space that is not the URL's", &answer, Refusal::ForGood)?;
    speaker.client.reset()?;

    let did = first.did;
    let malformed = [
        format!("space={did}&space={did}"),
        format!("space={did}&other=1"),
        format!("other=1&space={did}"),
        format!("Space={did}"),
        "space=".to_owned(),
        format!("space={did}%"),
        format!("space={did}%4"),
        format!("space=%zz{did}"),
        format!("space={did}%20"),
        format!("space={did}#fragment"),
        "space=did:web:example".to_owned(),
        String::new(),
    ];
    for query in &malformed {
        let path = format!("/api/storage/memory?{query}");
        let answer = dial(stage, &request(stage, &path, &[])).await?;
        let status = answer.status;
        holds(
            format!("the status of ?{query}"),
            matches!(status, 400 | 404),
            "400 or 404",
            status,
        )?;
    }
    Ok(figure("cases", spellings.len() + 1 + malformed.len()))
}
