//! Gate 27: each role killed in turn. What goes on goes on, and service is restored by itself.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::GateResult;
use super::party::{Guest, accepts, is_closed, open_at_last, signed_in};
use super::upstream::millis;
use crate::error::{same, soon};
use crate::processes::send_signal;
use crate::report::{Figures, figure};
use crate::stage::StageOptions;
use crate::{GateError, Stage, log};

/// What becomes of established connections.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connections {
    GoOn,
    /// Closed with this code and reason.
    Close(u16, &'static str),
    /// Gone with their workers, without a word.
    Vanish,
}

const ROLES: [(&str, Connections); 5] = [
    ("key-agent", Connections::GoOn),
    ("directory-broker", Connections::GoOn),
    ("listener", Connections::GoOn),
    ("link-agent", Connections::Close(1012, "link-agent-lost")),
    ("spawner", Connections::Vanish),
];

/// Kills each role, waits without a client until clients are served again, and looks at who was there before.
pub(super) async fn killed_roles(stage: &Stage) -> GateResult {
    let stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let mut figures = Figures::new();
    for (role, connections) in ROLES {
        let took = kill(&stage, role, connections)
            .await
            .map_err(|error| error.within(format!("killing the {role}")))?;
        figures.extend(figure(&format!("{role}_back_ms"), millis(took)));
    }
    // Also while nobody at all is connected.
    let took = restored(&stage, "spawner").await?;
    figures.extend(figure("spawner_back_ms_when_idle", millis(took)));
    Guest::arrive(&stage, &stage.spaces[0]).await?.leave().await;
    stage.strike().await?;
    Ok(figures)
}

async fn kill(stage: &Stage, role: &str, connections: Connections) -> Result<Duration, GateError> {
    let [first, second] = &stage.spaces;
    let guest = Guest::arrive(stage, first).await?;
    // It has signed for both spaces and opened none at the second toolshed.
    guest
        .connection
        .authenticate(&second.owner)
        .await
        .map_err(|error| GateError::new("a second key", "success", error))?;
    // One that has no session, and so no data socket.
    let bare = signed_in(stage, first).await?;
    if connections == Connections::GoOn {
        // Opens that meet the gap are refused for now, at worst, and sessions notice nothing.
        let (took, session) = tokio::join!(restored(stage, role), async {
            guest.reads().await?;
            open_at_last(&bare, first).await
        });
        let (took, session) = (took?, session?);
        let bare = Guest::with(bare, session)?;
        bare.reads().await?;
        // A new session on an established connection, at a toolshed that it has no data socket to.
        let session = open_at_last(&guest.connection, second).await?;
        Guest::with(guest.connection.clone(), session)?
            .reads()
            .await?;
        guest.reads().await?;
        bare.leave().await;
        guest.leave().await;
        newcomer(stage).await?;
        return Ok(took);
    }
    let took = restored(stage, role).await?;
    match connections {
        Connections::GoOn => {}
        Connections::Close(code, reason) => {
            let closed = soon("a close", guest.connection.closed()).await?;
            is_closed(&closed, code, &format!("{reason} {}", guest.name))?;
            let closed = soon("a close", bare.closed()).await?;
            same("the code", closed.code, Some(code))?;
        }
        Connections::Vanish => {
            let closed = soon("an end", guest.connection.closed()).await?;
            same("the code", closed.code, None)?;
            soon("an end", bare.closed()).await?;
        }
    }
    newcomer(stage).await?;
    Ok(took)
}

async fn newcomer(stage: &Stage) -> Result<(), GateError> {
    let guest = Guest::arrive(stage, &stage.spaces[1]).await?;
    guest.reads().await?;
    guest.leave().await;
    Ok(())
}

/// Kills a role and waits, by the log alone, until the listener accepts again.
async fn restored(stage: &Stage, role: &str) -> Result<Duration, GateError> {
    let before = stage.router.role(role)?;
    let mark = stage.router.log().mark();
    let began = Instant::now();
    send_signal(before, Signal::KILL)?;
    let router = &stage.router;
    router
        .log()
        .wait(&format!("the death of the {role}"), mark, |line| {
            log::has(line, "reason", "role-died") && log::has(line, "child", role)
        })
        .await?;
    accepts(stage, mark).await?;
    let took = began.elapsed();
    let after = router.role(role)?;
    if after == before {
        return Err(GateError::new(role, "another process", after));
    }
    Ok(took)
}
