//! Gate 30: a full disk, no descriptors, no processes. Where the host does not let the exercise make one of them, the gate
//! says so and passes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memory_client::Options;
use rustix::process::{Pid, Resource, Rlimit, Signal, geteuid, prlimit};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::GateResult;
use super::party::{Guest, accepts, arrive_at_last, linked, refused_for_now, signed_in, told_of};
use super::upstream::millis;
use crate::error::{DEADLINE, holds, same, soon};
use crate::processes::send_signal;
use crate::report::{Figures, figure};
use crate::stage::{Seat, StageOptions};
use crate::{Context, GateError, Stage, log, proc};

/// Connections that are tried while there is nothing to serve them with.
const TRIES: usize = 8;

/// Idle workers of a stage: the configuration's default.
const POOL: usize = 8;

/// Bytes of the disk that fills up: enough for the store, little enough to fill quickly.
const DISK: &str = "size=4m";

fn skipped(why: impl Into<String>) -> GateResult {
    Ok(figure("skipped", why.into()))
}

/// A full disk under a toolshed's ledger: no link is admitted that is not on the disk, no commit acknowledged. Others go on.
pub(super) async fn full_disk(stage: &Stage) -> GateResult {
    if !geteuid().is_root() {
        return skipped("mounting a small disk needs root");
    }
    let options = StageOptions {
        timeouts: "startup_grace = \"200ms\"".to_owned(),
        seats: [Seat::Empty, Seat::Taken],
        ..StageOptions::default()
    };
    let mut stage = Stage::set(stage.programs(), options).await?;
    let disk = stage.folder().join("toolshed-0-store");
    let _mounted = match Mounted::at(&disk) {
        Ok(mounted) => mounted,
        Err(why) => return skipped(why),
    };
    let [first, second] = stage.spaces.clone();
    let mark = stage.router.log().mark();
    stage.toolsheds[0].launch().await?;
    linked(&stage, mark, 0).await?;
    let mut guest = Guest::arrive(&stage, &first).await?;
    let other = Guest::arrive(&stage, &second).await?;
    let value = |text: &str| json!([{ "op": "set", "id": "of:disk", "value": { "value": text } }]);
    guest
        .session
        .commit(value("before"))
        .await
        .during("a commit while there is room")?;

    let ballast = disk.join("ballast");
    end_at_page(&disk.join("router-epochs.jsonl"))?;
    fill(&ballast)?;
    // A large one, so that no slack in the store's file takes it.
    let refused = soon(
        "a commit",
        guest.session.commit(value(&"x".repeat(1 << 20))),
    )
    .await?;
    holds(
        "a commit on a full disk",
        refused.is_err(),
        "an error",
        "an acknowledgement",
    )?;
    other.reads().await?;

    // A new link needs the ledger. The link agent's death makes one.
    let (mark, said) = (
        stage.router.log().mark(),
        stage.toolsheds[0].errors().mark(),
    );
    send_signal(stage.router.role("link-agent")?, Signal::KILL)?;
    accepts(&stage, mark).await?;
    stage.toolsheds[0]
        .errors()
        .wait("a link that is denied", said, |line| {
            log::has(line, "verdict", "link-denied")
        })
        .await?;
    told_of(&stage, mark, 0, "link-handshake").await?;
    let asker = signed_in(&stage, &second).await?;
    asker
        .authenticate(&first.owner)
        .await
        .during("a second key")?;
    refused_for_now(&asker, &first).await?;
    Guest::arrive(&stage, &second).await?.leave().await;

    // With room again it still admits nobody: what it missed is not known. A restart finds everything as acknowledged.
    fs::remove_file(&ballast).during("making room")?;
    refused_for_now(&asker, &first).await?;
    let mark = stage.router.log().mark();
    stage.toolsheds[0].kill().await?;
    stage.toolsheds[0].launch().await?;
    linked(&stage, mark, 0).await?;
    let guest = Guest::arrive(&stage, &first).await?;
    let answer = guest.session.query(&["of:disk"]).await.during("a query")?;
    let kept = answer.pointer("/entities/0/document/value");
    same("what was acknowledged", kept, Some(&json!("before")))?;
    guest.leave().await;
    stage.strike().await?;
    Ok(Figures::new())
}

/// A small file system of its own.
struct Mounted(PathBuf);

impl Mounted {
    fn at(path: &Path) -> Result<Self, String> {
        fs::create_dir(path).map_err(|error| error.to_string())?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", DISK, "exercise"]);
        let status = command.arg(path).status();
        match status {
            Ok(status) if status.success() => Ok(Self(path.to_owned())),
            Ok(status) => Err(format!("mount: {status}")),
            Err(error) => Err(format!("mount: {error}")),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: the toolshed may still be ending.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Pads the ledger to the end of a page, so that its next line needs another: with a line of earlier toolsheds, which means
/// nothing any more.
fn end_at_page(ledger: &Path) -> Result<(), GateError> {
    use std::io::Write as _;
    const PAGE: u64 = 4096;
    let step = "padding the ledger";
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(ledger)
        .during(step)?;
    let length = file.metadata().during(step)?.len();
    let frame = "[\"claim\",\"\"]\n".len() as u64;
    let filler = (2 * PAGE - length % PAGE - frame) % PAGE;
    let filler = "x".repeat(usize::try_from(filler).during(step)?);
    file.write_all(format!("[\"claim\",\"{filler}\"]\n").as_bytes())
        .during(step)
}

/// Writes a file until there is no room for another byte.
fn fill(path: &Path) -> Result<(), GateError> {
    use std::io::Write as _;
    let mut file = fs::File::create(path).during("filling the disk")?;
    for piece in [1 << 16, 1 << 10, 1] {
        let zeros = vec![0; piece];
        while file.write_all(&zeros).is_ok() {}
    }
    Ok(())
}

/// Without descriptors the listener drops who comes, says so once, does not spin, and recovers by itself; the spawner too.
pub(super) async fn no_descriptors(stage: &Stage) -> GateResult {
    let stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let guest = Guest::arrive(&stage, &stage.spaces[0]).await?;
    let mut figures = Figures::new();
    for role in ["listener", "spawner"] {
        let pid = stage.router.role(role)?;
        let mark = stage.router.log().mark();
        let before = limit_descriptors(pid, None)?;
        let cpu = proc::cpu_ticks(pid)?;
        for _ in 0..TRIES {
            let refused = timeout(DEADLINE, stage.connect(Options::default())).await;
            holds(
                format!("connecting while the {role} has no descriptors"),
                matches!(refused, Ok(Err(_))),
                "to be dropped",
                "something else",
            )?;
        }
        stage
            .router
            .log()
            .wait("descriptor-limit", mark, |line| {
                log::has(line, "role", role) && log::has(line, "reason", "descriptor-limit")
            })
            .await?;
        let lines = stage.router.log().select(mark, |line| {
            log::has(line, "role", role) && log::has(line, "reason", "descriptor-limit")
        });
        holds(
            format!("lines of the {role} about it"),
            lines.len() <= 2,
            "one per interval and subject",
            lines.len(),
        )?;
        guest.reads().await?;
        let cpu = proc::cpu_ticks(pid)? - cpu;
        holds(
            format!("what the {role} spent meanwhile"),
            cpu < 50,
            "less than half a second",
            format!("{cpu} hundredths of a second"),
        )?;
        limit_descriptors(pid, Some(before))?;
        let began = Instant::now();
        arrive_at_last(&stage, &stage.spaces[1])
            .await?
            .leave()
            .await;
        let took = millis(began.elapsed());
        figures.extend(figure(&format!("{role}_recovered_ms"), took));
        same("the process", stage.router.role(role)?, pid)?;
    }
    guest.reads().await?;
    guest.leave().await;
    stage.strike().await?;
    Ok(figures)
}

/// Leaves a process exactly the descriptors that it has, or gives it a limit back; gives the limit before.
fn limit_descriptors(pid: u32, limit: Option<Rlimit>) -> Result<Rlimit, GateError> {
    let step = "the limit of descriptors";
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = process.during(step)?;
    let wanted = match limit {
        Some(limit) => limit,
        None => {
            // What is free below the highest one would still be given out.
            let held = proc::descriptors(pid)?;
            let next = (0..).find(|number| held.iter().all(|held| held.number != *number));
            let present = rustix_limit(process)?;
            Rlimit {
                current: Some(u64::from(next.during(step)?)),
                maximum: present.maximum,
            }
        }
    };
    prlimit(Some(process), Resource::Nofile, wanted).during(step)
}

/// The present limit: set to itself for want of a call that only asks about another process.
fn rustix_limit(process: Pid) -> Result<Rlimit, GateError> {
    let step = "the limit of descriptors";
    let text = fs::read_to_string(format!("/proc/{}/limits", process.as_raw_nonzero()));
    let text = text.during(step)?;
    let row = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .during(step)?;
    let mut numbers = row.split_ascii_whitespace().map(|word| word.parse().ok());
    Ok(Rlimit {
        current: numbers.next().flatten(),
        maximum: numbers.next().flatten(),
    })
}

/// Without processes the idle workers serve who comes, then connections wait; when there are some again, they are served.
pub(super) async fn no_processes(stage: &Stage) -> GateResult {
    // Declared before the stage, so that it goes after it.
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => return skipped(why),
    };
    let stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let spawner = stage.router.role("spawner")?;
    group.take(spawner).during("a group of processes")?;
    let [first, second] = &stage.spaces;
    let bystander = Guest::arrive(&stage, first).await?;
    // The pool is whole before the limit falls.
    let full = async {
        while stage.router.workers()?.len() < POOL + 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok::<_, GateError>(())
    };
    soon("a full pool", full).await??;

    group.limit("1").during("a limit of processes")?;
    let mark = stage.router.log().mark();
    let mut guests = Vec::new();
    for _ in 0..POOL {
        guests.push(Guest::arrive(&stage, first).await?);
    }
    stage
        .router
        .log()
        .wait("process-limit", mark, |line| {
            log::has(line, "role", "spawner") && log::has(line, "reason", "process-limit")
        })
        .await?;
    let waiting = TcpStream::connect(stage.public().address);
    let waiting = waiting.await.during("connecting")?;
    for guest in &guests {
        guest.reads().await?;
    }
    bystander.reads().await?;
    let began = Instant::now();
    let (guest, raised) = tokio::join!(Guest::arrive(&stage, second), async {
        // Well after the connection has come to wait.
        bystander.reads().await?;
        group.limit("max").during("a limit of processes")
    });
    raised?;
    let guest = guest?;
    let took = began.elapsed();
    guest.reads().await?;
    drop(waiting);
    let lines = stage
        .router
        .log()
        .select(mark, |line| log::has(line, "reason", "process-limit"));
    same("lines about it", lines.len(), 1)?;
    same("the spawner", stage.router.role("spawner")?, spawner)?;
    for guest in guests.into_iter().chain([guest, bystander]) {
        guest.leave().await;
    }
    stage.strike().await?;
    Ok(figure("served_after_ms", millis(took)))
}

/// A control group that counts processes. Root is exempt from `RLIMIT_NPROC`, and from this it is not.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Self, String> {
        if !geteuid().is_root() {
            return Err("a limit of processes for one process needs root".to_owned());
        }
        let name = format!("exercise-{}", std::process::id());
        let hierarchies = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        for hierarchy in hierarchies.map(Path::new) {
            let path = hierarchy.join(&name);
            if fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self(path);
            if group.0.join("pids.max").exists() {
                return Ok(group);
            }
        }
        Err("this host has no control group that counts processes".to_owned())
    }

    fn take(&self, pid: u32) -> std::io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())
    }

    fn limit(&self, most: &str) -> std::io::Result<()> {
        fs::write(self.0.join("pids.max"), most)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It fails while a process is still ending, and then an empty group stays.
        let _ = fs::remove_dir(&self.0);
    }
}
