//! A deployment that schedules are played on, and what an operator does to it.

use std::fs;
use std::io;
use std::time::Duration;

use memory_client::{Client, ClientError, ClientOptions, Did, Options, Topology, Transport};
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::actor::{Life, Order};
use super::book::{Book, Outcome};
use super::idle::Idle;
use super::schedule::{Manner, Schedule, Step};
use crate::error::{same, soon};
use crate::gates::directory::Placement;
use crate::gates::party::{Guest, accepts, arrive_at_last, linked};
use crate::processes::send_signal;
use crate::proxy::Proxy;
use crate::stage::{Programs, StageOptions};
use crate::{Context, GateError, Stage, tally};

/// How long sessions may take to come to their end once nothing happens any more: several reconnects with back-off.
const END: Duration = Duration::from_secs(60);

/// Seconds of the leases that are renewed within a schedule.
const SHORT_LEASE: u64 = 4;

/// A running deployment and what is known of it.
pub(super) struct World {
    pub(super) stage: Stage,
    /// The directory's epoch of each space; its place is in the stage.
    epochs: [u64; 2],
    /// The number of each space's newest commit.
    seqs: [u64; 2],
    idle: Idle,
    /// Names no two sessions alike.
    sessions: u64,
}

/// Who takes part in one schedule.
struct Cast {
    clients: Vec<(Proxy, Client)>,
    sessions: Vec<Option<Life>>,
    releases: Vec<JoinHandle<Result<(), ClientError>>>,
    stalled: [bool; 2],
}

impl World {
    pub(super) async fn set(programs: &Programs) -> Result<Self, GateError> {
        let options = StageOptions {
            limits: format!(
                "max_connections_per_principal = {}",
                super::idle::CONNECTIONS
            ),
            timeouts: "startup_grace = \"1s\"".to_owned(),
            ..StageOptions::default()
        };
        let stage = Stage::set(programs, options).await?;
        let mut seqs = [0; 2];
        for (seq, space) in seqs.iter_mut().zip(&stage.spaces) {
            let guest = Guest::arrive(&stage, space).await?;
            *seq = tally::read(&guest.session, "of:none").await?.1;
            guest.leave().await;
        }
        let idle = Idle::settled(&stage).await?;
        Ok(Self {
            stage,
            epochs: [1; 2],
            seqs,
            idle,
            sessions: 0,
        })
    }

    /// Plays a schedule to its end and looks at the stores; gives how many commits were applied, and how many refused.
    pub(super) async fn play(&mut self, schedule: &Schedule) -> Result<(u64, u64), GateError> {
        let mut cast = Cast {
            clients: Vec::new(),
            sessions: Vec::new(),
            releases: Vec::new(),
            stalled: [false; 2],
        };
        for manner in schedule.manners {
            let proxy = Proxy::start(self.stage.public().address).await?;
            let endpoint = self.stage.endpoint_at(proxy.address())?;
            let client = Client::new(endpoint, options(manner));
            cast.clients.push((proxy, client));
        }
        for (place, step) in schedule.steps.iter().enumerate() {
            self.step(&mut cast, schedule.seed, *step)
                .await
                .map_err(|error| error.within(format!("step {place}, {step:?}")))?;
        }
        self.wake(&mut cast, [0, 1])?;
        let books = end(&mut cast).await?;
        for release in cast.releases {
            match soon("a release", release).await?.during("a release")? {
                Ok(()) | Err(ClientError::Closed(_)) => {}
                Err(error) => return Err(error).during("a release"),
            }
        }
        let counts = self.audit(&books).await?;
        for (_, client) in cast.clients {
            client.close().await;
        }
        Ok(counts)
    }

    async fn step(&mut self, cast: &mut Cast, seed: u64, step: Step) -> Result<(), GateError> {
        match step {
            Step::Open {
                client,
                space,
                in_flight,
            } => {
                self.sessions += 1;
                let owner = format!("s{}-{seed}", self.sessions);
                let space = self.stage.spaces.get(space).during("a space")?.clone();
                let book = Book::new(owner, space, in_flight);
                let life = Life::start(book, cast.client(client)?);
                cast.sessions.push(Some(life));
            }
            Step::Commit {
                session,
                count,
                large,
            } => {
                for place in 0..count {
                    let large = large && place == 0;
                    cast.tell(
                        session,
                        Order::Commit {
                            large,
                            stale: false,
                        },
                    );
                }
            }
            Step::Stale { session } => {
                let (large, stale) = (false, true);
                cast.tell(session, Order::Commit { large, stale });
            }
            Step::Park { session } => cast.tell(session, Order::Park),
            Step::Resume { session, client } => {
                let client = cast.client(client)?;
                if let Some(slot) = cast.sessions.get_mut(session)
                    && slot.as_ref().is_some_and(|life| life.task.is_finished())
                    && let Some(life) = slot.take()
                {
                    let book = life.task.await.during("a session")??;
                    *slot = Some(Life::start(book, client));
                }
            }
            Step::Release { client, space } => {
                let client = cast.client(client)?;
                let principal: Did = self.stage.spaces.get(space).during("a space")?.owner.did();
                let release = async move { client.release(principal).await };
                cast.releases.push(tokio::spawn(release));
            }
            Step::Cut { client } => {
                if let Ok(pipe) = cast.proxy(client)?.pipe() {
                    pipe.cut();
                }
            }
            Step::KillWorker { client } => {
                let pipe = cast.proxy(client)?.pipe();
                let router = &self.stage.router;
                // Not connected, or not any more.
                if let Ok(worker) = pipe.and_then(|pipe| router.worker_of(pipe.router_side())) {
                    drop(send_signal(worker, Signal::KILL));
                }
            }
            Step::KillRole(role) => {
                // One that starts freezes an offer, which takes a toolshed.
                if role == "link-agent" {
                    self.wake(cast, [0, 1])?;
                }
                let mark = self.stage.router.log().mark();
                send_signal(self.stage.router.role(role)?, Signal::KILL)?;
                accepts(&self.stage, mark).await?;
            }
            Step::Stall { toolshed } => {
                let stalled = cast.stalled.get_mut(toolshed).during("a toolshed")?;
                if !std::mem::replace(stalled, true) {
                    let toolshed = self.stage.toolsheds.get(toolshed);
                    toolshed.during("a toolshed")?.signal(Signal::STOP)?;
                }
            }
            Step::Wake { toolshed } => self.wake(cast, [toolshed])?,
            Step::KillToolshed { toolshed } => {
                self.wake(cast, [toolshed])?;
                let mark = self.stage.router.log().mark();
                let killed = self.stage.toolsheds.get_mut(toolshed);
                let killed = killed.during("a toolshed")?;
                killed.kill().await?;
                killed.launch().await?;
                linked(&self.stage, mark, toolshed).await?;
            }
            Step::RestartToolshed { toolshed } => {
                self.wake(cast, [toolshed])?;
                let mark = self.stage.router.log().mark();
                let stopped = self.stage.toolsheds.get_mut(toolshed);
                let stopped = stopped.during("a toolshed")?;
                stopped.stop().await?;
                stopped.launch().await?;
                linked(&self.stage, mark, toolshed).await?;
            }
            Step::Advance { space } => {
                self.wake(cast, [0, 1])?;
                let place = self.stage.spaces.get(space).during("a space")?.toolshed;
                self.place(space, place).await?;
            }
            Step::Move { space } => {
                self.wake(cast, [0, 1])?;
                self.carry(space).await?;
            }
            Step::Pause(duration) => sleep(duration).await,
        }
        // Whoever has something to do may begin with it.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Lets stalled toolsheds go on.
    fn wake<const N: usize>(
        &self,
        cast: &mut Cast,
        toolsheds: [usize; N],
    ) -> Result<(), GateError> {
        for place in toolsheds {
            let stalled = cast.stalled.get_mut(place).during("a toolshed")?;
            if std::mem::take(stalled) {
                let toolshed = self.stage.toolsheds.get(place).during("a toolshed")?;
                toolshed.signal(Signal::CONT)?;
            }
        }
        Ok(())
    }

    /// Places a space at a toolshed, at its next epoch, and waits until router and former owner follow.
    async fn place(&mut self, space: usize, toolshed: usize) -> Result<(), GateError> {
        let epoch = self.epochs.get_mut(space).during("a space")?;
        *epoch += 1;
        let moved = self.stage.spaces.get_mut(space).during("a space")?;
        let from = std::mem::replace(&mut moved.toolshed, toolshed);
        let did = moved.did;
        let mut placement = Placement::of(&self.stage)?;
        placement.list(did, toolshed, *epoch);
        let mark = self.stage.router.log().mark();
        placement.write(&self.stage)?;
        placement.is_followed(&self.stage, mark).await?;
        let from = self.stage.toolsheds.get_mut(from).during("a toolshed")?;
        from.command(&serde_json::json!({ "fence": true })).await
    }

    /// Moves a space to the other toolshed, which does not run until the store has arrived: meanwhile opens are refused for
    /// now. Where it ran, they would be refused for good, as those of any space that it has no store of.
    async fn carry(&mut self, space: usize) -> Result<(), GateError> {
        let from = self.stage.spaces.get(space).during("a space")?.toolshed;
        let to = 1 - from.min(1);
        let mark = self.stage.router.log().mark();
        let target = self.stage.toolsheds.get_mut(to).during("a toolshed")?;
        target.stop().await?;
        self.place(space, to).await?;
        let did = self.stage.spaces.get(space).during("a space")?.did;
        let key = did.as_str().rsplit(':').next().unwrap_or_default();
        let store = |place: usize| self.stage.folder().join(format!("toolshed-{place}-store"));
        for suffix in ["", "-wal"] {
            let name = format!("{key}.sqlite{suffix}");
            match fs::rename(store(from).join(&name), store(to).join(&name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !suffix.is_empty() => {}
                moved => moved.during("moving a store")?,
            }
        }
        let target = self.stage.toolsheds.get_mut(to).during("a toolshed")?;
        target.launch().await?;
        linked(&self.stage, mark, to).await
    }

    /// Compares the stores with what the sessions were told.
    async fn audit(&mut self, books: &[Book]) -> Result<(u64, u64), GateError> {
        let mut counts = (0, 0);
        for (place, space) in self.stage.spaces.iter().enumerate() {
            let observer = arrive_at_last(&self.stage, space).await?;
            let mut applied = 0;
            for book in books.iter().filter(|book| book.space.did == space.did) {
                let (found, _) = tally::read(&observer.session, &book.document()).await?;
                book.agrees(found)?;
                applied += book.count(Outcome::Applied);
                counts.1 += book.count(Outcome::Refused);
            }
            let (_, newest) = tally::read(&observer.session, "of:none").await?;
            let seq = self.seqs.get_mut(place).during("a space")?;
            *seq += applied;
            same("the number of the newest commit", newest, *seq)?;
            counts.0 += applied;
            observer.leave().await;
        }
        Ok(counts)
    }

    /// Demands that everything is as it was before the first client, and strikes the stage.
    pub(super) async fn finish(self) -> Result<(), GateError> {
        self.idle.returns(&self.stage).await?;
        self.idle.fills_exactly(&self.stage).await?;
        self.stage.strike().await
    }
}

impl Cast {
    fn client(&self, place: usize) -> Result<Client, GateError> {
        let found = self.clients.get(place);
        found.map(|(_, client)| client.clone()).during("a client")
    }

    fn proxy(&self, place: usize) -> Result<&Proxy, GateError> {
        let found = self.clients.get(place);
        found.map(|(proxy, _)| proxy).during("a client's proxy")
    }

    /// Tells a session, if it is there and not parked.
    fn tell(&self, session: usize, order: Order) {
        if let Some(Some(life)) = self.sessions.get(session) {
            let _ = life.orders.send(order);
        }
    }
}

/// Brings every session to its end, parked ones in one more life.
async fn end(cast: &mut Cast) -> Result<Vec<Book>, GateError> {
    let client = cast.client(0)?;
    let ends = cast.sessions.drain(..).flatten().map(|life| {
        let client = client.clone();
        async move {
            let _ = life.orders.send(Order::Finish);
            let book = life.task.await.during("a session")??;
            if book.saved.is_none() {
                return Ok(book);
            }
            let last = Life::start(book, client);
            let _ = last.orders.send(Order::Finish);
            last.task.await.during("a session")?
        }
    });
    let ended = timeout(END, futures_util::future::join_all(ends)).await;
    let ended = ended
        .map_err(|_| GateError::new("all sessions", format!("an end within {END:?}"), "none"))?;
    ended.into_iter().collect()
}

fn options(manner: Manner) -> ClientOptions {
    ClientOptions {
        connection: Options {
            compression: manner.compression,
            transport: if manner.streams {
                Transport::Credited
            } else {
                Transport::Legacy
            },
            lease: if manner.renews { SHORT_LEASE } else { 600 },
            ..Options::default()
        },
        topology: if manner.dedicated {
            Topology::Dedicated
        } else {
            Topology::Shared
        },
    }
}
