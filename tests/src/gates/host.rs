//! What the host can see of the router: which process holds what, and how much memory each takes.

use std::collections::BTreeSet;
use std::time::Duration;

use memory_client::Identity;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::GateResult;
use crate::error::{DEADLINE, holds, same};
use crate::proc::{
    Descriptor, children, descriptors, image_kib, listening_sockets, private_kib, tcp_sockets,
};
use crate::raw::{Framing, Speaker};
use crate::report::figure;
use crate::stage::{StageOptions, identity};
use crate::{GateError, Stage};

/// Private memory of an idle, authenticated worker, KiB: the promise, and for builds without optimisation, whose stacks and
/// futures are larger, a bound that still shows a buffer left behind.
const MOST_IDLE_WORKER_KIB: u64 = if cfg!(debug_assertions) { 800 } else { 600 };

/// What an idle client adds to link agent and key agent together, KiB of private memory.
const MOST_AGENTS_KIB_PER_CLIENT: u64 = 128;

/// Idle clients that are measured together, so that single pages do not matter.
const CLIENTS: u64 = 20;

/// Time between two looks where the kernel tells no event.
const LOOK: Duration = Duration::from_millis(50);

/// Roles under `run`, each a process of its own.
const ROLES: [&str; 5] = [
    "directory-broker",
    "key-agent",
    "link-agent",
    "listener",
    "spawner",
];

/// A worker in use holds sockets, its runtime's descriptors and its standard three, and no file and no listening socket;
/// worker and agents are separate processes.
pub(super) async fn worker_descriptors(stage: &Stage) -> GateResult {
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    for space in &stage.spaces {
        speaker.authenticate(&space.owner).await?;
        speaker.open(space.did, space.owner.did()).await?;
    }
    let worker = stage.router.worker_of(speaker.local())?;

    let mut pids = BTreeSet::from([stage.router.pid(), worker]);
    for role in ROLES {
        pids.insert(stage.router.role(role)?);
    }
    same("separate processes", pids.len(), ROLES.len() + 2)?;
    let offspring = children(worker)?;
    holds(
        "children of a worker",
        offspring.is_empty(),
        "none",
        format!("{offspring:?}"),
    )?;

    let held = descriptors(worker)?;
    let listening = listening_sockets()?;
    let wrong: Vec<String> = held
        .iter()
        .filter(|descriptor| !is_expected(descriptor, &listening))
        .map(|descriptor| format!("{} {}", descriptor.number, descriptor.target))
        .collect();
    holds(
        "descriptors of a worker",
        wrong.is_empty(),
        "sockets that do not listen, eventfd, epoll, timerfd, /dev/null, a log pipe at 2",
        wrong.join(", "),
    )?;
    // The others are channels to its own host: spawner, agents, and what its runtime wakes itself with.
    let network = tcp_sockets()?;
    // Each once: the clock of the connection has the client's socket by a descriptor of its own.
    let sockets: BTreeSet<u64> = held.iter().filter_map(Descriptor::socket).collect();
    let reach = sockets.iter().filter(|inode| network.contains(inode));
    same(
        "TCP sockets of a worker: its client and two toolsheds",
        reach.count(),
        3,
    )?;
    speaker.client.reset()?;
    let mut figures = figure("descriptors", held.len());
    figures.extend(figure("sockets", sockets.len()));
    Ok(figures)
}

fn is_expected(descriptor: &Descriptor, listening: &BTreeSet<u64>) -> bool {
    if let Some(inode) = descriptor.socket() {
        return !listening.contains(&inode);
    }
    match descriptor.target.as_str() {
        "anon_inode:[eventpoll]" | "anon_inode:[eventfd]" | "anon_inode:[timerfd]" => true,
        "/dev/null" => true,
        // The log, inherited from whoever started the router.
        target => descriptor.number == 2 && target.starts_with("pipe:["),
    }
}

/// An idle authenticated worker has under 600 KiB of private memory, as built for use.
///
/// What the start of a position-independent executable writes into its own image is part of that. It grows with the code,
/// and so with every optimisation left out: where the programs are built for debugging, the bound is for the rest.
pub(super) async fn worker_memory(stage: &Stage) -> GateResult {
    let mut speakers = Vec::new();
    let mut workers = Vec::new();
    for key in keys()? {
        let mut speaker = Speaker::connect(stage, Framing::Credited, true).await?;
        speaker.authenticate(&key).await?;
        workers.push(stage.router.worker_of(speaker.local())?);
        speakers.push(speaker);
    }
    let most = || {
        let sizes: Result<Vec<u64>, GateError> =
            workers.iter().map(|worker| judged(*worker)).collect();
        Ok(sizes?.into_iter().max().unwrap_or_default())
    };
    let judged_part = if cfg!(debug_assertions) {
        "without its image"
    } else {
        "in all"
    };
    let busy = most()?;
    // A worker gives back what it needed for a burst when it has been quiet for a while.
    let idle = settles(most, |kib| kib < MOST_IDLE_WORKER_KIB).await?;
    holds(
        "private KiB of an idle authenticated worker",
        idle < MOST_IDLE_WORKER_KIB,
        format!("under {MOST_IDLE_WORKER_KIB}"),
        idle,
    )?;
    for speaker in speakers {
        speaker.client.reset()?;
    }
    let mut figures = figure("largest_idle_worker_kib", idle);
    figures.extend(figure("of_worker", judged_part));
    figures.extend(figure("largest_worker_at_first_kib", busy));
    figures.extend(figure("workers", workers.len()));
    Ok(figures)
}

/// The private memory of a worker that is held against the bound, KiB.
fn judged(worker: u32) -> Result<u64, GateError> {
    let all = private_kib(worker)?;
    if cfg!(debug_assertions) {
        Ok(all.saturating_sub(image_kib(worker)?))
    } else {
        Ok(all)
    }
}

/// Link agent and key agent together grow by under 128 KiB of private memory for each idle client.
///
/// Has a stage of its own: agents that have served others have room for these clients already.
pub(super) async fn agent_memory(stage: &Stage) -> GateResult {
    let stage = &Stage::set(stage.programs(), StageOptions::default()).await?;
    let agents = [
        stage.router.role("link-agent")?,
        stage.router.role("key-agent")?,
    ];
    let both = || {
        let [link, key] = agents.map(private_kib);
        Ok::<_, GateError>(link? + key?)
    };
    // So that what only the first client needs is there.
    let mut first = Speaker::connect(stage, Framing::Credited, true).await?;
    first.authenticate(&stage.alice).await?;
    let before = both()?;
    let mut speakers = Vec::new();
    for key in keys()? {
        let mut speaker = Speaker::connect(stage, Framing::Credited, true).await?;
        speaker.authenticate(&key).await?;
        speakers.push(speaker);
    }
    let after = both()?;
    let grown = after.saturating_sub(before);
    let bound = MOST_AGENTS_KIB_PER_CLIENT * CLIENTS;
    holds(
        format!("private KiB of link agent and key agent for {CLIENTS} clients"),
        grown < bound,
        format!("under {bound} more"),
        format!("{before}, then {after}"),
    )?;
    for speaker in speakers {
        speaker.client.reset()?;
    }
    first.client.reset()?;
    let mut figures = figure("agents_kib_before", before);
    figures.extend(figure("agents_kib_after", after));
    figures.extend(figure("clients", CLIENTS));
    let per_client = (grown * 10 / CLIENTS) as f64 / 10.0;
    figures.extend(figure("agents_kib_per_client", json!(per_client)));
    Ok(figures)
}

/// Keys of as many clients, each another.
fn keys() -> Result<Vec<Identity>, GateError> {
    (100..=u8::MAX)
        .take(usize::try_from(CLIENTS).unwrap_or_default())
        .map(identity)
        .collect()
}

/// Looks until a figure is as wished or the deadline has passed; gives the last.
async fn settles(
    look: impl Fn() -> Result<u64, GateError>,
    wished: impl Fn(u64) -> bool,
) -> Result<u64, GateError> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let figure = look()?;
        if wished(figure) || Instant::now() >= deadline {
            return Ok(figure);
        }
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pipe_at_2_is_a_log() {
        let listening = BTreeSet::from([7]);
        let descriptor = |number, target: &str| Descriptor {
            number,
            target: target.to_owned(),
        };
        for (number, target, expected) in [
            (2, "pipe:[5]", true),
            (5, "pipe:[5]", false),
            (5, "socket:[6]", true),
            (5, "socket:[7]", false),
            (5, "/memfd:settings (deleted)", false),
            (5, "/tmp/x", false),
            (5, "anon_inode:[eventpoll]", true),
        ] {
            let found = is_expected(&descriptor(number, target), &listening);
            assert_eq!(found, expected, "{number} {target}");
        }
    }
}
