//! Random schedules against the real processes: clients open, commit, renew, release, leave and come back, while toolsheds
//! stall and restart, spaces move, and workers and roles are killed. Whatever the order, three things have to hold.
//!
//! - Every commit that was answered is in the store once, in the order of its session, and none that was refused.
//! - No session is given another session's data: every value carries its owner.
//! - When the clients are gone, so is everything that was kept for them.
//!
//! A schedule is drawn from its seed alone ([`schedule`]). Several run one after the other on one deployment ([`world`]), and
//! several deployments side by side, since most of the time somebody waits for a reconnect. Times are the machine's, so that
//! a seed gives the same steps again and not the same interleaving.

mod actor;
mod book;
mod idle;
mod schedule;
mod world;

use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use serde_json::json;

use crate::GateError;
use crate::gates::GateResult;
use crate::report::{Figures, figure};
use crate::stage::{Programs, Stage};
use schedule::Schedule;
use world::World;

/// Deployments side by side.
const LANES: u64 = 4;

/// Runs as many schedules as the programs' options say.
///
/// # Errors
/// The first that fails, with its seed.
pub(super) async fn schedules(stage: &Stage) -> GateResult {
    let programs = stage.programs();
    let (first, count) = match programs.seed {
        Some(seed) => (seed, 1),
        None => (entropy(), u64::from(programs.schedules)),
    };
    let lanes = LANES.min(count).max(1);
    let shares = (0..lanes).map(|lane| {
        let seeds = (lane..count)
            .step_by(usize::try_from(lanes).unwrap_or(1))
            .map(move |place| first.wrapping_add(place));
        drive(programs, seeds)
    });
    let mut figures = Figures::new();
    let mut failures = Vec::new();
    let mut totals = Totals::default();
    for outcome in join_all(shares).await {
        match outcome {
            Ok(lane) => totals.add(lane),
            Err(failed) => failures.push(failed),
        }
    }
    if let Some((seed, error)) = failures.into_iter().next() {
        let error = match seed {
            Some(seed) => error.within(format!("the schedule of --seed {seed}")),
            None => error,
        };
        return Err(error);
    }
    figures.extend(figure("seed", first));
    figures.extend(figure("schedules", totals.schedules));
    figures.extend(figure("commits", totals.commits));
    figures.extend(figure("refused_commits", totals.refused));
    figures.extend(figure("steps", json!(totals.steps)));
    Ok(figures)
}

/// What a lane did.
#[derive(Debug, Default)]
struct Totals {
    schedules: u64,
    steps: u64,
    commits: u64,
    refused: u64,
}

impl Totals {
    fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.steps += other.steps;
        self.commits += other.commits;
        self.refused += other.refused;
    }
}

/// Runs the schedules of these seeds on a deployment of their own. An error comes with the seed it belongs to, if any.
async fn drive(
    programs: &Programs,
    seeds: impl Iterator<Item = u64>,
) -> Result<Totals, (Option<u64>, GateError)> {
    let mut world = World::set(programs).await.map_err(|error| (None, error))?;
    let mut totals = Totals::default();
    for seed in seeds {
        let schedule = Schedule::draw(seed);
        let mark = world.stage.router.log().mark();
        let (commits, refused) = world.play(&schedule).await.map_err(|error| {
            let steps = format!("after {:?}", schedule.steps);
            let error = error
                .within(steps)
                .with_log(world.stage.router.log().tail(mark));
            (Some(seed), error)
        })?;
        totals.schedules += 1;
        totals.steps += u64::try_from(schedule.steps.len()).unwrap_or_default();
        totals.commits += commits;
        totals.refused += refused;
    }
    let finished = world.finish().await;
    finished.map_err(|error| (None, error))?;
    Ok(totals)
}

/// A seed that nobody chose.
fn entropy() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    // Short enough to be typed again.
    (now.as_nanos() % 1_000_000_007).try_into().unwrap_or(1)
}
