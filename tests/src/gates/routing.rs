//! Gates 1, 2 and 10: who may reach what over one public socket.

use memory_client::{ClientError, Connection, Did, OpenOptions, Options, Session};
use serde_json::{Value, json};

use super::GateResult;
use super::bystander::message_of;
use crate::error::{holds, same};
use crate::raw::{Framing, Speaker, did};
use crate::report::Figures;
use crate::stage::{FIXTURE_DOCUMENT, Space, UNKNOWN_SPACE, identity};
use crate::{Context, GateError, Stage};

/// Gate 1: one public socket, two owning toolsheds, two independently authorized principals.
pub(super) async fn two_toolsheds(stage: &Stage) -> GateResult {
    let connection = stage.connect(Options::default()).await?;
    for space in &stage.spaces {
        let lease = connection
            .authenticate(&space.owner)
            .await
            .during("authentication")?;
        same(
            "the principal signed in",
            lease.principal,
            space.owner.did(),
        )?;
    }
    let mut sessions = Vec::new();
    for space in &stage.spaces {
        sessions.push(open(&connection, space).await?);
    }
    // Interleaved, so that an answer that came from the wrong toolshed would be seen.
    for (place, session) in sessions.iter_mut().enumerate() {
        let before = session.query(&[FIXTURE_DOCUMENT]).await.during("a query")?;
        same(
            "the seeded document",
            message_of(&before),
            Some("existing space"),
        )?;
        let document = json!([{
            "op": "set",
            "id": "of:gate-1",
            "value": { "value": { "place": place } },
        }]);
        let committed = session.commit(document).await.during("a commit")?;
        holds(
            "the answer to a commit",
            committed.get("seq").is_some_and(Value::is_u64),
            "a seq",
            &committed,
        )?;
    }
    for (place, session) in sessions.iter().enumerate() {
        let after = session.query(&["of:gate-1"]).await.during("a query")?;
        same(
            "the document of each toolshed",
            after.pointer("/entities/0/document/value/place"),
            Some(&json!(place)),
        )?;
    }
    for session in sessions {
        session.close().await.during("closing a session")?;
    }
    connection.close().await;
    Ok(Figures::new())
}

/// Gate 2: cross-principal ACL denial; unknown space denied; both leave the connection usable.
pub(super) async fn denials(stage: &Stage) -> GateResult {
    let [first, second] = &stage.spaces;
    let connection = stage.connect(Options::default()).await?;
    for space in &stage.spaces {
        connection
            .authenticate(&space.owner)
            .await
            .during("authentication")?;
    }
    let session = open(&connection, first).await?;
    let unknown = identity(UNKNOWN_SPACE)?.did();
    let name = connection.hello().connection.clone();
    let name = name.during("the connection's name in hello.ok")?;
    // The first two are the toolsheds' to deny, the others the router's, which logs why.
    for (what, space, principal, reason) in [
        ("bob in alice's space", first.did, second.owner.did(), None),
        ("alice in bob's space", second.did, first.owner.did(), None),
        (
            "alice in an unknown space",
            unknown,
            first.owner.did(),
            Some("unplaced"),
        ),
        (
            "an unknown principal",
            first.did,
            unknown,
            Some("principal-unknown"),
        ),
    ] {
        let mark = stage.router.log().mark();
        let denied = open_error(&connection, space, principal).await?;
        denied_for_good(what, denied)?;
        if let Some(reason) = reason {
            stage
                .router
                .worker_event(mark, &name, reason, "session.open")
                .await?;
        }
        session
            .query(&[FIXTURE_DOCUMENT])
            .await
            .during(format!("a query after the denial of {what}"))?;
    }
    // The socket to bob's toolshed was made for a denied open; it serves bob all the same.
    let other = open(&connection, second).await?;
    other
        .query(&[FIXTURE_DOCUMENT])
        .await
        .during("bob's query")?;
    connection.close().await;
    Ok(Figures::new())
}

/// Gate 10: the client's second principal signs for the pinned router audience after the first open.
pub(super) async fn pinned_audience(stage: &Stage) -> GateResult {
    let [first, second] = &stage.spaces;

    // The library pins what hello said, whatever a toolshed's answer says.
    let connection = stage.connect(Options::default()).await?;
    same(
        "the audience in hello",
        connection.hello().audience,
        stage.audience,
    )?;
    connection
        .authenticate(&first.owner)
        .await
        .during("the first principal")?;
    open(&connection, first).await?;
    connection
        .authenticate(&second.owner)
        .await
        .during("the second principal, after the first open")?;
    open(&connection, second).await?;
    connection.close().await;

    // Which it has to: the toolshed's answer names another audience, and a signature for that one closes the connection.
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    speaker.authenticate(&first.owner).await?;
    let opened = speaker.open(first.did, first.owner.did()).await?;
    let audience = match opened.get("sessionOpen") {
        Some(open) => did(open, "audience")?,
        None => first.did,
    };
    holds(
        "the audience in a toolshed's answer",
        audience != stage.audience,
        "another than the router's",
        audience,
    )?;
    let open = speaker.hello.get("sessionOpen").cloned();
    let open = open.during("sessionOpen in hello")?;
    let refused = speaker.sign(&second.owner, audience, &open).await;
    holds(
        "a statement for a toolshed's audience",
        refused.is_err(),
        "a closed connection",
        "an answer",
    )?;
    speaker.client.answer_closing().await?;
    stage
        .router
        .worker_event(mark, &name, "client-protocol", "statement-audience")
        .await?;
    Ok(Figures::new())
}

async fn open(connection: &Connection, space: &Space) -> Result<Session, GateError> {
    connection
        .open(space.did, space.owner.did(), OpenOptions::default())
        .await
        .during("an open by the owner")
}

async fn open_error(
    connection: &Connection,
    space: Did,
    principal: Did,
) -> Result<ClientError, GateError> {
    match connection
        .open(space, principal, OpenOptions::default())
        .await
    {
        Err(error) => Ok(error),
        Ok(session) => Err(GateError::new("an open", "a denial", session.opened())),
    }
}

fn denied_for_good(what: &str, error: ClientError) -> Result<(), GateError> {
    let ClientError::Denied(denied) = &error else {
        return Err(GateError::new(what, "a denial", error));
    };
    same(
        format!("the denial of {what}"),
        (denied.name.as_str(), denied.retriable),
        ("AuthorizationError", false),
    )
}
