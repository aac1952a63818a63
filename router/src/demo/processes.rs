//! The demonstration's processes: started, watched for the line that says they serve, surveyed, stopped.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use memory_sandbox::memory_of;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader, Lines};
use tokio::process::{Child, Command};

use super::stage::Stage;
use crate::exit::{Exit, Failure};

/// How long a process may take until it serves.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a process may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Lines of a process that failed to start which are shown.
const SHOWN_LINES: usize = 20;

/// What runs. Dropping it kills what was not stopped.
pub(crate) struct Deployment {
    toolsheds: Vec<Child>,
    router: Option<Child>,
    is_log_shown: Rc<Cell<bool>>,
}

/// One process of the survey.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Surveyed {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) depth: usize,
    pub(crate) role: String,
    /// KiB that end with this process; absent where the kernel keeps it from this user.
    pub(crate) private_kib: Option<u64>,
    /// KiB in memory, shared pages in full.
    pub(crate) resident_kib: u64,
}

impl Deployment {
    pub(crate) fn new() -> Self {
        Self {
            toolsheds: Vec::new(),
            router: None,
            is_log_shown: Rc::default(),
        }
    }

    pub(crate) async fn start_toolshed(
        &mut self,
        stage: &Stage,
        index: usize,
    ) -> Result<(), Failure> {
        let mut command = this_executable()?;
        // Its standard input is its life: it stops at end of file.
        command
            .arg("demo-toolshed")
            .arg(stage.fixture(index))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = spawn(command, "toolshed")?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        if let Some(err) = err {
            keep_reading(BufReader::new(err).lines(), Rc::default());
        }
        let ready = wait_for(out, |line| line.contains("\"ready\":true"), Rc::default());
        until_ready(&mut child, "toolshed", ready).await?;
        self.toolsheds.push(child);
        Ok(())
    }

    pub(crate) async fn start_router(&mut self, stage: &Stage) -> Result<(), Failure> {
        let mut command = this_executable()?;
        command
            .arg("run")
            .arg("--config")
            .arg(stage.config())
            // A terminal that is closed ends this process, and reloads a router: it must not stay behind.
            .env(crate::supervised::VARIABLE, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = spawn(command, "router")?;
        let err = child.stderr.take();
        let is_shown = Rc::clone(&self.is_log_shown);
        let ready = wait_for(err, |line| line == "memory-router-ready", is_shown);
        until_ready(&mut child, "router", ready).await?;
        self.router = Some(child);
        Ok(())
    }

    /// Passes the router's log on to standard error from now on.
    pub(crate) fn show_log(&self) {
        self.is_log_shown.set(true);
    }

    /// Every process below this one, parents first.
    pub(crate) fn survey(&self) -> Result<Vec<Surveyed>, Failure> {
        let failed = |error| Failure::io("cannot read /proc", error);
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for entry in fs::read_dir("/proc").map_err(failed)? {
            let Ok(entry) = entry else { continue };
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            if let Some(parent) = parent_of(pid) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut found = Vec::new();
        walk(&children, std::process::id(), 0, &mut found);
        Ok(found)
    }

    /// Stops the router, then the toolsheds, each by its own id.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        if let Some(mut router) = self.router.take() {
            terminate(&router).map_err(|error| Failure::io("cannot stop the router", error))?;
            stopped(&mut router, "router").await?;
        }
        for mut toolshed in std::mem::take(&mut self.toolsheds) {
            drop(toolshed.stdin.take());
            stopped(&mut toolshed, "toolshed").await?;
        }
        Ok(())
    }
}

fn this_executable() -> Result<Command, Failure> {
    let path = std::env::current_exe()
        .map_err(|error| Failure::io("cannot find this executable", error))?;
    let mut command = Command::new(path);
    command.kill_on_drop(true);
    Ok(command)
}

fn spawn(mut command: Command, what: &str) -> Result<Child, Failure> {
    command
        .spawn()
        .map_err(|error| Failure::io(format!("cannot start the {what}"), error))
}

/// Reads lines until one is accepted; the rest is read on and dropped, so that the process is never blocked by its output.
async fn wait_for(
    stream: Option<impl AsyncRead + Unpin + 'static>,
    accept: impl Fn(&str) -> bool,
    is_shown: Rc<Cell<bool>>,
) -> Result<(), Vec<String>> {
    let mut seen = Vec::new();
    let Some(stream) = stream else {
        return Err(seen);
    };
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if accept(&line) {
            keep_reading(lines, is_shown);
            return Ok(());
        }
        if seen.len() == SHOWN_LINES {
            seen.remove(0);
        }
        seen.push(line);
    }
    Err(seen)
}

/// Reads what a process says, which would wait otherwise; it is shown while it is to be.
fn keep_reading(
    mut lines: Lines<BufReader<impl AsyncRead + Unpin + 'static>>,
    is_shown: Rc<Cell<bool>>,
) {
    tokio::task::spawn_local(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            if is_shown.get() {
                // Who closed it wants to see nothing.
                let _ = writeln!(io::stderr(), "{line}");
            }
        }
    });
}

async fn until_ready(
    child: &mut Child,
    what: &str,
    ready: impl Future<Output = Result<(), Vec<String>>>,
) -> Result<(), Failure> {
    match tokio::time::timeout(START_TIMEOUT, ready).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(lines)) => {
            let status = child
                .wait()
                .await
                .map_or_else(|error| error.to_string(), |status| status.to_string());
            Err(Failure::new(
                Exit::Failure,
                format!(
                    "the {what} ended before it served ({status}); it said:\n{}",
                    lines.join("\n")
                ),
            ))
        }
        Err(_) => Err(Failure::new(
            Exit::Failure,
            format!("the {what} did not serve within {START_TIMEOUT:?}"),
        )),
    }
}

fn terminate(child: &Child) -> io::Result<()> {
    let pid = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw);
    match pid {
        Some(pid) => Ok(kill_process(pid, Signal::TERM)?),
        None => Ok(()),
    }
}

async fn stopped(child: &mut Child, what: &str) -> Result<(), Failure> {
    match tokio::time::timeout(STOP_TIMEOUT, child.wait()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(Failure::new(
            Exit::Failure,
            format!("the {what} ended with {status}"),
        )),
        Ok(Err(error)) => Err(Failure::io(format!("cannot wait for the {what}"), error)),
        Err(_) => Err(Failure::new(
            Exit::Failure,
            format!("the {what} did not stop within {STOP_TIMEOUT:?}"),
        )),
    }
}

/// The parent of a process, from the fields after the command in `/proc/PID/stat`; a command may hold parentheses itself.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

fn walk(children: &BTreeMap<u32, Vec<u32>>, parent: u32, depth: usize, found: &mut Vec<Surveyed>) {
    for pid in children.get(&parent).into_iter().flatten() {
        if let Some(resident_kib) = resident_kib(*pid) {
            found.push(Surveyed {
                pid: *pid,
                parent,
                depth,
                role: role_of(*pid),
                private_kib: memory_of(*pid).ok().map(|memory| memory.private_kib),
                resident_kib,
            });
        }
        walk(children, *pid, depth + 1, found);
    }
}

/// The first argument of a process is its role.
fn role_of(pid: u32) -> String {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut arguments = arguments.split(|byte| *byte == 0).skip(1);
    let role = arguments
        .next()
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .unwrap_or_default();
    if role == "demo-toolshed" {
        "toolshed".to_owned()
    } else {
        role
    }
}

fn resident_kib(pid: u32) -> Option<u64> {
    let pages: u64 = fs::read_to_string(format!("/proc/{pid}/statm"))
        .ok()?
        .split_ascii_whitespace()
        .nth(1)?
        .parse()
        .ok()?;
    Some(pages * rustix::param::page_size() as u64 / 1024)
}
