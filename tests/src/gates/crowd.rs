//! Two hundred clients while their toolshed stalls, and while it dies and comes back.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use memory_client::{ClientError, OpenOptions};
use rustix::process::Signal;
use tokio::time::{interval, interval_at, sleep, timeout};

use super::GateResult;
use super::party::{Guest, is_silent, linked, refused_for_now, signed_in};
use super::upstream::millis;
use crate::error::{holds, same};
use crate::processes::Toolshed;
use crate::report::{Figures, figure};
use crate::stage::{Space, StageOptions};
use crate::{Context, GateError, Stage, log, proc};

/// Clients of the toolshed that fails.
const CROWD: usize = 200;

/// Clients that connect at the same time: a handshake that waits for the processor too long fails.
const AT_ONCE: usize = 32;

/// Clients of the other, and how often each reads.
const OTHERS: usize = 20;
const READ_EVERY: Duration = Duration::from_millis(100);

/// How long these are watched before the stall.
const BEFORE: Duration = Duration::from_secs(3);

/// What a stall may add to their slowest hundredth: much less than the stall.
const TOLERANCE: Duration = Duration::from_millis(150);

/// `max_admissions_per_second` of the stage.
const RATE: usize = 50;

/// The longest back-off of who comes back: a sixth of what the protocol says, so that the gate ends.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// How long a connection may take to be made at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// Setting the crowd up, both gates.
async fn gather(stage: &Stage) -> Result<(Stage, Vec<Guest>), GateError> {
    let options = StageOptions {
        limits: format!("max_per_source = 512\nmax_admissions_per_second = {RATE}"),
        // On a busy machine the wait for admission is long, and so are handshakes.
        timeouts: "control_wait = \"60s\"\nhandshake = \"30s\"".to_owned(),
        ..StageOptions::default()
    };
    let stage = Stage::set(stage.programs(), options).await?;
    let [first, _] = stage.spaces.clone();
    let mut arriving = futures_util::stream::iter(0..CROWD)
        .map(|_| Guest::arrive(&stage, &first))
        .buffer_unordered(AT_ONCE);
    let mut crowd = Vec::new();
    while let Some(guest) = arriving.next().await {
        crowd.push(guest?);
    }
    drop(arriving);
    Ok((stage, crowd))
}

/// A toolshed stopped for a while under 200 clients: no connection closes, the other toolshed's clients see nothing, and
/// everything completes when it goes on. How long is the stage's `stall`.
pub(super) async fn stalled(stage: &Stage) -> GateResult {
    let stall = stage.programs().stall;
    let (stage, crowd) = gather(stage).await?;
    let [first, second] = &stage.spaces;
    let mut others = Vec::new();
    for _ in 0..OTHERS {
        others.push(Guest::arrive(&stage, second).await?);
    }
    let before = read_for(&others, BEFORE).await?;

    let mark = stage.router.log().mark();
    stage.toolsheds[0].signal(Signal::STOP)?;
    let began = Instant::now();
    // Everybody asks once while it is stopped; somebody new tries to get in.
    let mut reads: FuturesUnordered<_> = crowd.iter().map(patient_read).collect();
    let asking = async {
        while let Some(read) = reads.next().await {
            read?;
        }
        Ok::<_, GateError>(began.elapsed())
    };
    let newcomer = async {
        let connection = signed_in(&stage, first).await?;
        if stall > Duration::from_secs(12) {
            refused_for_now(&connection, first).await.map(Some)
        } else {
            Ok(None)
        }
    };
    let watching = async {
        let during = read_for(&others, stall).await?;
        stage.toolsheds[0].signal(Signal::CONT)?;
        Ok::<_, GateError>((during, Instant::now()))
    };
    let (asked, refused, watched) = tokio::join!(asking, newcomer, watching);
    let (during, resumed) = watched?;
    let completed = asked?.saturating_sub(resumed - began);
    let refused = refused?;
    drop(reads);

    holds(
        "the others' slowest hundredth",
        during.at(99) <= before.at(99) + TOLERANCE,
        format!("{:?} and at most {TOLERANCE:?} more", before.at(99)),
        format!("{:?}", during.at(99)),
    )?;
    holds(
        "what the others wait for in the middle",
        during.at(50) <= before.at(50) + TOLERANCE / 3,
        format!("{:?} and little more", before.at(50)),
        format!("{:?}", during.at(50)),
    )?;
    is_silent("ends of connections and links", &stage, mark, |line| {
        log::has(line, "message", "connection ended") && !log::has(line, "outcome", "clean")
            || log::has(line, "message", "link lost")
    })?;
    for guest in crowd.iter().chain(&others) {
        guest.reads().await?;
    }
    let mut figures = Figures::new();
    for (name, latencies) in [("before", &before), ("during", &during)] {
        figures.extend(figure(
            &format!("others_p50_us_{name}"),
            micros(latencies.at(50)),
        ));
        figures.extend(figure(
            &format!("others_p99_us_{name}"),
            micros(latencies.at(99)),
        ));
    }
    figures.extend(figure("clients", CROWD));
    figures.extend(figure("stalled_ms", millis(stall)));
    figures.extend(figure("completed_after_ms", millis(completed)));
    if let Some(refused) = refused {
        figures.extend(figure("newcomer_refused_after_ms", millis(refused)));
    }
    drop((crowd, others));
    stage.strike().await?;
    Ok(figures)
}

/// A read that may take as long as the stall.
async fn patient_read(guest: &Guest) -> Result<(), GateError> {
    let query = guest.session.query(&[crate::stage::FIXTURE_DOCUMENT]);
    let answer = timeout(PATIENCE * 2, query)
        .await
        .during("a query across the stall")?;
    answer.during("a query across the stall").map(drop)
}

/// How long reads took.
struct Latencies(Vec<Duration>);

impl Latencies {
    /// The time within which this percentage was answered.
    fn at(&self, percentage: usize) -> Duration {
        let place = (self.0.len() * percentage / 100).min(self.0.len().saturating_sub(1));
        self.0.get(place).copied().unwrap_or_default()
    }
}

/// Has everybody read at a steady pace for a while.
async fn read_for(guests: &[Guest], time: Duration) -> Result<Latencies, GateError> {
    let mut readers: FuturesUnordered<_> = guests
        .iter()
        .zip(0_u32..)
        .map(|(guest, place)| async move {
            let began = Instant::now();
            // One after the other, not all at once: they would wait for each other.
            let count = u32::try_from(OTHERS).unwrap_or(u32::MAX);
            let first = tokio::time::Instant::now() + READ_EVERY * place / count;
            let mut pace = interval_at(first, READ_EVERY);
            let mut taken = Vec::new();
            while began.elapsed() < time {
                pace.tick().await;
                taken.push(guest.reads().await?);
            }
            Ok::<_, GateError>(taken)
        })
        .collect();
    let mut all = Vec::new();
    while let Some(taken) = readers.next().await {
        all.extend(taken?);
    }
    all.sort_unstable();
    Ok(Latencies(all))
}

/// A toolshed killed and restarted under 200 clients that come back as the protocol asks of them: it sees no more of them a
/// second than the router was told to let through.
pub(super) async fn returning(stage: &Stage) -> GateResult {
    let (mut stage, crowd) = gather(stage).await?;
    let [first, second] = stage.spaces.clone();
    let other = Guest::arrive(&stage, &second).await?;
    stage.toolsheds[0].kill().await?;
    for guest in crowd {
        guest.loses_its_toolshed("upstream-lost").await?;
    }
    let mark = stage.router.log().mark();
    stage.toolsheds[0].launch().await?;
    let began = Instant::now();
    let port = port_of(&stage.toolsheds[0])?;

    let coming = async {
        linked(&stage, mark, 0).await?;
        let linked_after = began.elapsed();
        let mut coming: FuturesUnordered<_> = (0..CROWD)
            .map(|place| come_back(&stage, &first, place))
            .collect();
        let mut all = Vec::new();
        let mut tries = 0;
        while let Some(back) = coming.next().await {
            let (guest, tried) = back?;
            tries += tried;
            all.push(guest);
        }
        Ok::<_, GateError>((all, tries, linked_after))
    };
    let mut sightings = Sightings::default();
    let (crowd, tries, linked_after) = tokio::select! {
        back = coming => back?,
        error = sightings.watch(port) => return Err(error),
    };
    let served = began.elapsed();
    // A full bucket and what flows into it meanwhile, the link itself, and what a look at the clock more or less may add.
    let bound = 2 * RATE + RATE / 10;
    holds(
        "connections that the toolshed saw in one second",
        sightings.peak <= bound,
        format!("at most {bound}"),
        sightings.peak,
    )?;
    same("the crowd", crowd.len(), CROWD)?;
    other.reads().await?;
    for guest in &crowd {
        guest.reads().await?;
    }
    drop((crowd, other));
    stage.strike().await?;
    let mut figures = figure("clients", CROWD);
    figures.extend(figure("all_served_after_ms", millis(served)));
    figures.extend(figure("linked_after_ms", millis(linked_after)));
    figures.extend(figure("opens_per_second_at_peak", sightings.peak));
    figures.extend(figure("admissions_per_second", RATE));
    figures.extend(figure("opens_tried", tries));
    Ok(figures)
}

/// Connects, signs and opens until it is served; how often it tried to open.
async fn come_back(
    stage: &Stage,
    space: &Space,
    place: usize,
) -> Result<(Guest, usize), GateError> {
    // The first reconnect waits a random time up to a second: here, one each.
    let spread = |bound: Duration, salt: usize| {
        let part = u32::try_from((place * 7919 + salt * 104_729) % 1000).unwrap_or_default();
        bound * part / 1000
    };
    sleep(spread(Duration::from_secs(1), 0)).await;
    let mut backoff = Duration::from_secs(1);
    let mut connected = signed_in(stage, space).await;
    for tries in 1..10 {
        let Ok(connection) = &connected else {
            sleep(spread(backoff, tries)).await;
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
            connected = signed_in(stage, space).await;
            continue;
        };
        let opened = connection.open(space.did, space.owner.did(), OpenOptions::default());
        match opened.await {
            Ok(session) => return Ok((Guest::with(connection.clone(), session)?, tries)),
            Err(error @ ClientError::Denied(_)) if error.is_retriable() => {
                sleep(spread(backoff, tries)).await;
                backoff = (backoff * 2).min(LONGEST_BACKOFF);
            }
            Err(error) => return Err(error).during("coming back"),
        }
    }
    connected.and(Err(GateError::new("coming back", "a session", "none")))
}

/// The connections that a toolshed accepts, as the kernel shows them.
#[derive(Default)]
struct Sightings {
    known: BTreeSet<u64>,
    /// When those of the last second came.
    recent: VecDeque<Instant>,
    /// The most in one second.
    peak: usize,
}

impl Sightings {
    /// Looks until it is dropped, or cannot.
    async fn watch(&mut self, port: u16) -> GateError {
        let mut looks = interval(Duration::from_millis(20));
        loop {
            looks.tick().await;
            let now = Instant::now();
            match proc::accepted_sockets(port) {
                Ok(sockets) => {
                    for socket in sockets {
                        if self.known.insert(socket) {
                            self.recent.push_back(now);
                        }
                    }
                }
                Err(error) => return error,
            }
            while let Some(first) = self.recent.front()
                && now - *first >= Duration::from_secs(1)
            {
                self.recent.pop_front();
            }
            self.peak = self.peak.max(self.recent.len());
        }
    }
}

fn port_of(toolshed: &Toolshed) -> Result<u16, GateError> {
    let fixture = std::fs::read(toolshed.fixture()).during("a toolshed's file")?;
    let fixture: serde_json::Value =
        serde_json::from_slice(&fixture).during("a toolshed's file")?;
    let port = fixture.get("port").and_then(serde_json::Value::as_u64);
    port.and_then(|port| u16::try_from(port).ok())
        .during("a toolshed's port")
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
