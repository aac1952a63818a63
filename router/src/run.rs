//! `run`: every role of one host, supervised, where no service manager does it.
//!
//! Each role is a child process, an exec of this same executable. Children get process groups of their own, so that a
//! terminal's interrupt reaches `run` alone and the order of stopping is its to choose; that none of them outlives it is
//! seen to by each child itself ([`crate::supervised`]). The listener tells over its standard output, a pipe, whether it
//! accepts: see [`crate::listener::Announcement`].

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_local};

use crate::accepted::{self, Accepted};
use crate::backoff::Backoff;
use crate::exit::{Exit, Failure};
use crate::kept::{self, Kept};
use crate::listener::Announcement;
use crate::reload::Reloader;
use crate::signals::StopSignals;
use crate::supervised;

/// The line on standard error that says that clients are served.
const READY_LINE: &str = "memory-router-ready";

/// Pauses before a role that died is started again.
const FIRST_RESTART_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_RESTART_PAUSE: Duration = Duration::from_secs(5);

/// Pause before a role that has only just started is asked to reload.
const RELOAD_PAUSE: Duration = Duration::from_millis(20);

/// A role that lived this long is started again without the pauses that its earlier deaths had added up.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// How long a role may take to end beyond the drain; then it is killed.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// The roles in the order of stopping: nothing new comes in, then what is going on ends, then what it needed goes, and who
/// looks on sees all of it.
const STOP_ORDER: [&[&str]; 4] = [
    &["listener"],
    &["spawner"],
    &["directory-broker", "link-agent", "key-agent"],
    &[METRICS],
];

/// The role that there is only where the configuration wants it.
const METRICS: &str = "metrics";

/// Supervises all roles until a signal asks to stop or a role cannot be had.
///
/// # Errors
/// The status of a role that ended with one that no restart mends ([`Exit::is_final`]); [`Exit::TryAgain`] when another
/// `run` uses the same `ipc_dir`; [`Exit::Failure`] when a role did not end by itself and was killed.
pub(crate) async fn run(config_file: &Path, mut reloader: Reloader) -> Result<(), Failure> {
    let changes = reloader.changes();
    let config = Arc::clone(&changes.borrow());
    let mut signals = StopSignals::new()?;
    let _lock = claim(&config.ipc_dir)?;

    let (notes, mut inbox) = mpsc::channel(16);
    let mut groups = Vec::new();
    // Started in the opposite order. Nothing depends on it, since each role waits for those it needs, but it avoids waits.
    for names in STOP_ORDER.into_iter().rev() {
        let group = names
            .iter()
            .filter(|name| **name != METRICS || config.metrics_listen.is_some())
            .map(|name| Role::start(name, config_file, reloader.accepted(), notes.clone()))
            .collect();
        groups.push(Group(group));
    }
    groups.reverse();
    spawn_local(kept::show(config.ipc_dir.clone(), kept_roles(&groups)));

    let roles: Vec<_> = groups.iter().flat_map(|group: &Group| &group.0).collect();
    let ended = tokio::select! {
        ended = watch_over(&mut inbox, &mut signals) => ended,
        never = forward_reloads(&mut reloader, &roles) => match never {},
    };
    tracing::info!(reason = "stop", "stopping");
    let timeouts = changes.borrow().timeouts.clone();
    let grace = timeouts.pre_drain + timeouts.drain + STOP_GRACE;
    let killed = stop(groups, grace, &mut signals, &mut inbox).await;
    ended?;
    match killed {
        0 => Ok(()),
        killed => Err(Failure::new(
            Exit::Failure,
            format!("{killed} roles had to be killed"),
        )),
    }
}

/// The roles in the order of stopping, to be shown.
fn kept_roles(groups: &[Group]) -> Vec<Rc<Kept>> {
    let roles = groups.iter().flat_map(|group| &group.0);
    roles.map(|role| Rc::clone(&role.kept)).collect()
}

/// Has every role read the configuration again when this process is asked to. One that is invalid is refused here, once for
/// all of them.
async fn forward_reloads(reloader: &mut Reloader, roles: &[&Role]) -> std::convert::Infallible {
    loop {
        if !reloader.next().await {
            continue;
        }
        for role in roles {
            role.reload
                .send_modify(|times| *times = times.wrapping_add(1));
        }
    }
}

/// Makes the directory of the role sockets if needed, and claims it for this process for as long as the file is open.
fn claim(directory: &Path) -> Result<File, Failure> {
    let name = directory.display();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| Failure::io(format!("cannot make ipc_dir {name}"), error))?;
    let lock = File::open(directory)
        .map_err(|error| Failure::io(format!("cannot open ipc_dir {name}"), error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => Err(Failure::new(
            Exit::TryAgain,
            format!("another memory-router runs in ipc_dir {name}"),
        )),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(Failure::io(format!("cannot lock ipc_dir {name}"), error))
        }
    }
}

/// What the tasks that keep roles tell.
#[derive(Debug)]
enum Note {
    /// The listener accepts, or has stopped to.
    Listener(Announcement),
    /// A role ended with a status that no restart mends.
    Final { role: &'static str, exit: Exit },
}

/// Waits for a reason to stop: a signal, or a role that cannot be had.
async fn watch_over(
    inbox: &mut mpsc::Receiver<Note>,
    signals: &mut StopSignals,
) -> Result<(), Failure> {
    let mut announced = false;
    loop {
        let note = tokio::select! {
            () = signals.next() => return Ok(()),
            note = inbox.recv() => note,
        };
        match note {
            Some(Note::Listener(Announcement::Serving)) if !announced => {
                announced = true;
                // A closed standard error is no reason to end.
                drop(writeln!(io::stderr(), "{READY_LINE}"));
            }
            Some(Note::Listener(announcement)) => {
                tracing::info!(reason = announcement.as_str(), "the listener changed state");
            }
            Some(Note::Final { role, exit }) => {
                return Err(Failure::new(
                    exit,
                    format!("{role} ended with status {}", exit as u8),
                ));
            }
            None => return Ok(()),
        }
    }
}

/// Stops the groups one after the other; a further signal kills what is left. Returns how many roles were killed.
async fn stop(
    groups: Vec<Group>,
    grace: Duration,
    signals: &mut StopSignals,
    inbox: &mut mpsc::Receiver<Note>,
) -> usize {
    let orders: Vec<_> = groups
        .iter()
        .flat_map(|group| group.0.iter().map(|role| role.order.clone()))
        .collect();
    let in_order = async {
        let mut killed = 0;
        for group in groups {
            killed += group.stop(grace).await;
        }
        killed
    };
    tokio::pin!(in_order);
    loop {
        tokio::select! {
            killed = &mut in_order => return killed,
            () = signals.next() => {
                for order in &orders {
                    order.send_replace(Order::Kill);
                }
            }
            // Nobody acts on notes any more, but nobody may wait for room to leave one either.
            Some(_) = inbox.recv() => {}
        }
    }
}

/// Roles that stop together.
struct Group(Vec<Role>);

impl Group {
    async fn stop(self, grace: Duration) -> usize {
        for role in &self.0 {
            role.order.send_if_modified(|order| {
                let running = matches!(order, Order::Run);
                if running {
                    *order = Order::Stop(grace);
                }
                running
            });
        }
        let mut killed = 0;
        for role in self.0 {
            // The task neither panics nor is it aborted.
            killed += usize::from(role.task.await.is_ok_and(|ended| ended == Ended::Killed));
        }
        killed
    }
}

/// A role as its supervisor sees it: where its orders go, and the task that keeps it.
struct Role {
    order: watch::Sender<Order>,
    /// How often it was to read the configuration again.
    reload: watch::Sender<u64>,
    kept: Rc<Kept>,
    task: JoinHandle<Ended>,
}

impl Role {
    fn start(
        name: &'static str,
        config_file: &Path,
        accepted: Rc<Accepted>,
        notes: mpsc::Sender<Note>,
    ) -> Self {
        let (order, orders) = watch::channel(Order::Run);
        let (reload, reloads) = watch::channel(0);
        let kept = Rc::new(Kept::new(name));
        let keeper = Keeper {
            role: name,
            kept: Rc::clone(&kept),
            config_file: config_file.to_owned(),
            accepted,
            notes,
            orders,
            reloads,
        };
        Self {
            order,
            reload,
            kept,
            task: spawn_local(keeper.keep()),
        }
    }
}

/// What a role is to do.
#[derive(Debug, Clone, Copy)]
enum Order {
    Run,
    /// End within this time.
    Stop(Duration),
    Kill,
}

/// How keeping a role ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    ByItself,
    Killed,
}

/// Keeps one role running.
struct Keeper {
    role: &'static str,
    kept: Rc<Kept>,
    config_file: PathBuf,
    accepted: Rc<Accepted>,
    notes: mpsc::Sender<Note>,
    orders: watch::Receiver<Order>,
    reloads: watch::Receiver<u64>,
}

impl Keeper {
    async fn keep(mut self) -> Ended {
        let mut backoff = Backoff::new(FIRST_RESTART_PAUSE, LONGEST_RESTART_PAUSE);
        loop {
            let started = Instant::now();
            match self.spawn() {
                Ok(mut child) => {
                    let running = self.kept.started();
                    let mut is_owed = false;
                    let status = loop {
                        tokio::select! {
                            status = child.wait() => break status,
                            () = stop_ordered(&mut self.orders) => return self.end(child).await,
                            Ok(()) = self.reloads.changed() => is_owed = true,
                            () = tokio::time::sleep(RELOAD_PAUSE), if is_owed => {}
                        }
                        is_owed = is_owed && !reload(&child);
                    };
                    drop(running);
                    if let Some(ended) = self.died(status).await {
                        return ended;
                    }
                }
                Err(error) => {
                    tracing::error!(reason = "role-spawn", child = self.role, error = %error, "cannot start a role");
                }
            }
            if started.elapsed() >= SETTLED_AFTER {
                backoff.reset();
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.pause()) => {}
                () = stop_ordered(&mut self.orders) => return Ended::ByItself,
            }
        }
    }

    fn spawn(&mut self) -> io::Result<Child> {
        // It gets what was accepted last, so that it owes nothing.
        self.reloads.borrow_and_update();
        let listens = self.role == "listener";
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("memory-router")
            .arg(self.role)
            .arg("--config")
            .arg(&self.config_file)
            .env(supervised::VARIABLE, std::process::id().to_string())
            .env(accepted::VARIABLE, "stdin")
            .stdin(self.accepted.sealed()?)
            .stdout(if listens {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        tracing::info!(
            reason = "role-started",
            child = self.role,
            pid = child.id(),
            "started a role"
        );
        if let Some(output) = child.stdout.take() {
            spawn_local(follow(output, self.notes.clone()));
        }
        Ok(child)
    }

    /// Deals with a death that nobody ordered; `Some` when the role is not to be started again.
    async fn died(&self, status: io::Result<ExitStatus>) -> Option<Ended> {
        let (code, signal) = match &status {
            Ok(status) => (status.code(), status.signal()),
            Err(_) => (None, None),
        };
        tracing::error!(
            reason = "role-died",
            child = self.role,
            status = code,
            signal,
            "a role died"
        );
        let exit = code
            .and_then(Exit::from_code)
            .filter(|exit| exit.is_final())?;
        // The receiver lives until every keeper has ended.
        drop(
            self.notes
                .send(Note::Final {
                    role: self.role,
                    exit,
                })
                .await,
        );
        Some(Ended::ByItself)
    }

    /// Ends the child as ordered.
    async fn end(&mut self, mut child: Child) -> Ended {
        let grace = match *self.orders.borrow() {
            Order::Stop(grace) => grace,
            Order::Run | Order::Kill => Duration::ZERO,
        };
        terminate(&child);
        let deadline = tokio::time::sleep(grace);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                _ = child.wait() => return Ended::ByItself,
                () = &mut deadline => break,
                changed = self.orders.changed() => {
                    if changed.is_err() || matches!(*self.orders.borrow(), Order::Kill) {
                        break;
                    }
                }
            }
        }
        tracing::error!(
            reason = "role-killed",
            child = self.role,
            "a role did not end in time and is killed"
        );
        // It fails only when the process has ended meanwhile.
        drop(child.kill().await);
        Ended::Killed
    }
}

/// Waits until the role is to stop; for ever if that never comes.
async fn stop_ordered(orders: &mut watch::Receiver<Order>) {
    // An error says that the supervisor is gone, and then this task goes too.
    drop(orders.wait_for(|order| !matches!(order, Order::Run)).await);
}

/// Asks a child to end.
fn terminate(child: &Child) {
    send(child, Signal::TERM);
}

/// Asks a child to read the configuration again, and says whether it did: one that does not catch the signal yet would die of
/// it, and has to be asked later.
fn reload(child: &Child) -> bool {
    let is_ready = child.id().is_some_and(catches_hangup);
    if is_ready {
        send(child, Signal::HUP);
    }
    is_ready
}

fn send(child: &Child, signal: Signal) {
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It has not been reaped yet, so that the number is still its own; at worst it has ended already.
        let _ = kill_process(pid, signal);
    }
}

/// Whether a process has a handler for SIGHUP, which is bit 0 of the mask that the kernel shows.
fn catches_hangup(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Passes on what the listener announces on its standard output.
async fn follow(output: ChildStdout, notes: mpsc::Sender<Note>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(announcement) = Announcement::parse(&line) else {
            continue;
        };
        if notes.send(Note::Listener(announcement)).await.is_err() {
            return;
        }
    }
}
