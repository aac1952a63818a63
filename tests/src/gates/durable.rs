//! Gate 25: sessions of the client library that go on committing across restarts, each commit exactly once.

use std::time::{Duration, Instant};

use futures_util::FutureExt;
use memory_client::{
    Client, ClientError, ClientOptions, DurableSession, Event, SessionOptions, Submitted, Topology,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::GateResult;
use super::party::{arrive_at_last, linked};
use super::upstream::millis;
use crate::error::{holds, same, soon};
use crate::processes::send_signal;
use crate::report::{Figures, figure};
use crate::stage::{Space, StageOptions};
use crate::{Context, GateError, Stage, tally};

/// Commits that are under way together, sent one after the other.
const SUBMITTED: usize = 4;

/// Commits that each session has answered before something happens, and again afterwards.
const ENOUGH: u64 = 8;

/// What happens to the deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    ToolshedKilled,
    ToolshedRestarted,
    WorkersKilled,
    RouterRestarted,
    RouterKilled,
}

const BLOWS: [(Blow, &str); 5] = [
    (Blow::ToolshedKilled, "toolshed_killed"),
    (Blow::ToolshedRestarted, "toolshed_restarted"),
    (Blow::WorkersKilled, "workers_killed"),
    (Blow::RouterRestarted, "router_restarted"),
    (Blow::RouterKilled, "router_killed"),
];

/// Sessions with a connection for each space, and sessions that share one, commit across every restart.
pub(super) async fn across_restarts(stage: &Stage) -> GateResult {
    let mut stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let mut figures = Figures::new();
    let mut commits = 0;
    for (blow, name) in BLOWS {
        let (took, written) = survive(&mut stage, blow, name)
            .await
            .map_err(|error| error.within(name))?;
        commits += written;
        figures.extend(figure(&format!("on_after_ms_{name}"), millis(took)));
    }
    figures.extend(figure("commits", commits));
    stage.strike().await?;
    Ok(figures)
}

/// Lets both kinds of client commit to both spaces, strikes, waits until all go on, and counts.
async fn survive(stage: &mut Stage, blow: Blow, name: &str) -> Result<(Duration, u64), GateError> {
    let spaces = stage.spaces.clone();
    let before = [
        newest(stage, &spaces[0]).await?,
        newest(stage, &spaces[1]).await?,
    ];
    let mut clients = Vec::new();
    let mut pumps = Vec::new();
    for topology in [Topology::Dedicated, Topology::Shared] {
        let client = client(stage, topology)?;
        for space in &spaces {
            let document = format!("of:{name}-{topology:?}").to_lowercase();
            pumps.push(Pump::start(&client, space, topology, document).await?);
        }
        clients.push(client);
    }
    for pump in &mut pumps {
        pump.reaches(ENOUGH).await?;
    }

    let began = Instant::now();
    strike(stage, blow).await?;
    for pump in &mut pumps {
        let now = pump.answered();
        pump.reaches(now + ENOUGH).await?;
    }
    let took = began.elapsed();

    let mut written = [0, 0];
    for pump in pumps {
        let (space, topology, document) =
            (pump.space.clone(), pump.topology, pump.document.clone());
        let (count, interruptions) = pump.stop().await?;
        if let Some(total) = written.get_mut(space.toolshed) {
            *total += count;
        }
        let guest = arrive_at_last(stage, &space).await?;
        let (entries, _) = tally::read(&guest.session, &document).await?;
        let expected: Vec<Value> = (1..=count).map(|number| json!(number)).collect();
        same(
            format!("{document} at toolshed {}", space.toolshed),
            entries,
            expected,
        )?;
        guest.leave().await;
        // A connection of its own has nothing to do with the other space's toolshed.
        let at_toolshed = matches!(blow, Blow::ToolshedKilled | Blow::ToolshedRestarted);
        let is_spared = at_toolshed && topology == Topology::Dedicated && space.toolshed == 1;
        holds(
            format!("interruptions of {document} at toolshed {}", space.toolshed),
            (interruptions == 0) == is_spared,
            if is_spared { "none" } else { "some" },
            interruptions,
        )?;
    }
    for (space, (before, written)) in spaces.iter().zip(before.into_iter().zip(written)) {
        same(
            "commits in the store",
            newest(stage, space).await?,
            before + written,
        )?;
    }
    for client in clients {
        client.close().await;
    }
    Ok((took, written.iter().sum()))
}

async fn strike(stage: &mut Stage, blow: Blow) -> Result<(), GateError> {
    match blow {
        Blow::ToolshedKilled | Blow::ToolshedRestarted => {
            let mark = stage.router.log().mark();
            let toolshed = &mut stage.toolsheds[0];
            if blow == Blow::ToolshedKilled {
                toolshed.kill().await?;
            } else {
                toolshed.stop().await?;
            }
            toolshed.launch().await?;
            linked(stage, mark, 0).await
        }
        Blow::WorkersKilled => {
            for worker in stage.router.workers()? {
                // The end of one may have ended another already: it is not there to be killed.
                drop(send_signal(worker, Signal::KILL));
            }
            Ok(())
        }
        Blow::RouterRestarted => {
            let status = stage.router.stop().await?;
            same("the router's exit status", status.code(), Some(0))?;
            stage.start_router_again().await
        }
        Blow::RouterKilled => {
            send_signal(stage.router.pid(), Signal::KILL)?;
            stage.router.ended().await?;
            stage.start_router_again().await
        }
    }
}

fn client(stage: &Stage, topology: Topology) -> Result<Client, GateError> {
    let endpoint = stage.endpoint_at(stage.public().address)?;
    let options = ClientOptions {
        topology,
        ..ClientOptions::default()
    };
    Ok(Client::new(endpoint, options))
}

/// The number of a space's newest commit.
async fn newest(stage: &Stage, space: &Space) -> Result<u64, GateError> {
    let guest = arrive_at_last(stage, space).await?;
    let (_, seq) = tally::read(&guest.session, "of:none").await?;
    guest.leave().await;
    Ok(seq)
}

/// A session that commits until it is told to stop.
struct Pump {
    space: Space,
    topology: Topology,
    document: String,
    stop: watch::Sender<bool>,
    answered: watch::Receiver<u64>,
    task: JoinHandle<Result<(u64, usize), ClientError>>,
}

impl Pump {
    async fn start(
        client: &Client,
        space: &Space,
        topology: Topology,
        document: String,
    ) -> Result<Self, GateError> {
        let opened = client.open(space.did, &space.owner, SessionOptions::default());
        let session = soon("a durable open", opened)
            .await?
            .during("a durable open")?;
        let (stop, stopped) = watch::channel(false);
        let (progress, answered) = watch::channel(0);
        let task = tokio::spawn(pump(session, document.clone(), stopped, progress));
        Ok(Self {
            space: space.clone(),
            topology,
            document,
            stop,
            answered,
            task,
        })
    }

    fn answered(&self) -> u64 {
        *self.answered.borrow()
    }

    /// Waits until as many commits are answered.
    async fn reaches(&mut self, count: u64) -> Result<(), GateError> {
        let step = format!("answers to {count} commits to {}", self.document);
        let reached = self.answered.wait_for(|answered| *answered >= count);
        let reached = soon(&step, reached).await?.map(drop);
        if reached.is_ok() {
            return Ok(());
        }
        // It ended before its time: for its error.
        let ended = (&mut self.task).await.during(&step)?;
        ended.during(&step)?;
        Err(GateError::new(step, "more of them", "an end"))
    }

    /// Stops it; gives how many commits were made, and how often the session was interrupted.
    async fn stop(self) -> Result<(u64, usize), GateError> {
        self.stop.send_replace(true);
        let step = "the end of a session";
        soon(step, self.task).await?.during(step)?.during(step)
    }
}

async fn pump(
    session: DurableSession,
    document: String,
    stop: watch::Receiver<bool>,
    progress: watch::Sender<u64>,
) -> Result<(u64, usize), ClientError> {
    let mut number = 0;
    let mut interruptions = 0;
    while !*stop.borrow() {
        let mut submitted: Vec<Submitted> = Vec::new();
        for _ in 0..SUBMITTED {
            number += 1;
            let reads = json!({ "confirmed": [], "pending": [] });
            let operations = tally::append(&document, &json!(number));
            let commit = json!({ "reads": reads, "operations": operations });
            submitted.push(session.submit(commit).await?);
        }
        for submitted in submitted {
            submitted.verdict().await?;
        }
        progress.send_replace(number);
        while let Some(Some(event)) = session.event().now_or_never() {
            interruptions += usize::from(matches!(event, Event::Interrupted));
        }
    }
    session.close().await?;
    Ok((number, interruptions))
}
