//! What a deployment keeps while nobody is there, as the kernel tells it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use tokio::time::sleep;

use crate::error::{DEADLINE, holds, same};
use crate::gates::party::signed_in;
use crate::proc::{self, Descriptor};
use crate::{Context, GateError, Stage};

/// Connections that one principal may have.
pub(super) const CONNECTIONS: usize = 8;

/// The pause between two looks: the kernel has no event for a descriptor that is closed.
const LOOK: Duration = Duration::from_millis(50);

/// How long nothing changes where nothing will.
const SETTLED: Duration = Duration::from_millis(700);

const ROLES: [&str; 5] = [
    "listener",
    "spawner",
    "key-agent",
    "link-agent",
    "directory-broker",
];

/// Those that the kernel lets nobody but root look into.
const HOLD_A_KEY: [&str; 2] = ["key-agent", "link-agent"];

/// Counts of what is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Idle {
    workers: usize,
    /// Open descriptors of each role.
    roles: BTreeMap<&'static str, usize>,
    /// Connections to each toolshed.
    toolsheds: Vec<usize>,
}

impl Idle {
    /// What is there once nothing changes any more.
    pub(super) async fn settled(stage: &Stage) -> Result<Self, GateError> {
        let deadline = Instant::now() + DEADLINE;
        let mut last = (Self::of(stage)?, Instant::now());
        while last.1.elapsed() < SETTLED && Instant::now() < deadline {
            sleep(LOOK).await;
            let now = Self::of(stage)?;
            if now != last.0 {
                last = (now, Instant::now());
            }
        }
        Ok(last.0)
    }

    /// What is there now.
    fn of(stage: &Stage) -> Result<Self, GateError> {
        let mut roles = BTreeMap::new();
        for role in ROLES {
            if HOLD_A_KEY.contains(&role) && !geteuid().is_root() {
                continue;
            }
            let descriptors = proc::descriptors(stage.router.role(role)?)?;
            let sockets = descriptors.iter().filter_map(Descriptor::socket);
            roles.insert(role, sockets.count());
        }
        let toolsheds = stage.toolsheds.iter();
        let toolsheds = toolsheds
            .map(|toolshed| Ok(proc::accepted_sockets(toolshed.port()?)?.len()))
            .collect::<Result<_, GateError>>()?;
        Ok(Self {
            workers: stage.router.workers()?.len(),
            roles,
            toolsheds,
        })
    }

    /// Waits until it is like this again.
    pub(super) async fn returns(&self, stage: &Stage) -> Result<(), GateError> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let now = Self::of(stage);
            if now.as_ref().is_ok_and(|now| now == self) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return same("what is kept for nobody", now?, self.clone());
            }
            sleep(LOOK).await;
        }
    }

    /// Fills a budget of the link agent's up: had anything been kept, it would be full too early.
    pub(super) async fn fills_exactly(&self, stage: &Stage) -> Result<(), GateError> {
        let [space, _] = &stage.spaces;
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(signed_in(stage, space).await?);
        }
        let more = stage.connect(memory_client::Options::default()).await?;
        let refused = more.authenticate(&space.owner).await;
        let is_full = refused
            .as_ref()
            .is_err_and(memory_client::ClientError::is_retriable);
        holds(
            format!("connection {} of a principal", CONNECTIONS + 1),
            is_full,
            "a refusal for now",
            format!("{refused:?}"),
        )?;
        for connection in connections.into_iter().chain([more]) {
            connection.close().await;
        }
        self.returns(stage).await.during("once more")
    }
}
