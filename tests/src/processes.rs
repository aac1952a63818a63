//! The programs under test, as processes. None outlives the exercise: each is killed when its handle is dropped, and ends by
//! itself when the exercise is killed: the router because it is told whom to follow, a toolshed because its input ends.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

use crate::error::soon;
use crate::log::{self, Log};
use crate::proc;
use crate::{Context, GateError};

/// What the router takes to start, its wait for every toolshed included.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// The line on the router's standard error that says that clients are served.
const ROUTER_READY: &str = "memory-router-ready";

/// Names to the router the process it must not outlive.
const FOLLOW_VARIABLE: &str = "MEMORY_ROUTER_SUPERVISOR";

/// A running `memory-router run`.
#[derive(Debug)]
pub struct Router {
    child: Child,
    pid: u32,
    address: SocketAddr,
    log: Arc<Log>,
}

impl Router {
    /// Starts the router and waits until it serves clients.
    ///
    /// # Errors
    /// When it does not, with what it logged.
    pub async fn start(
        program: &Path,
        config: &Path,
        address: SocketAddr,
    ) -> Result<Self, GateError> {
        let mut child = Command::new(program)
            .arg("run")
            .arg("--config")
            .arg(config)
            .env(FOLLOW_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .during(format!("starting {}", program.display()))?;
        let pid = child.id().during("the router's process ID")?;
        let log = Arc::new(Log::default());
        if let Some(stderr) = child.stderr.take() {
            let log = Arc::clone(&log);
            tokio::spawn(async move { log.collect(stderr).await });
        }
        let router = Self {
            child,
            pid,
            address,
            log,
        };
        router.wait_ready(0).await?;
        Ok(router)
    }

    /// Waits for the line that clients are served, from a mark of the log on.
    ///
    /// # Errors
    /// When it does not come in time.
    pub async fn wait_ready(&self, mark: usize) -> Result<(), GateError> {
        self.log
            .wait_for(ROUTER_READY, mark, START_DEADLINE, |line| {
                line.as_str() == Some(ROUTER_READY)
            })
            .await
            .map(drop)
    }

    /// Its log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Its process ID.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The process ID of a role.
    ///
    /// # Errors
    /// When it does not run.
    pub fn role(&self, name: &str) -> Result<u32, GateError> {
        let children = proc::children(self.pid)?;
        let role = children.iter().find(|child| child.role() == name);
        role.map(|role| role.pid).ok_or_else(|| {
            let names: Vec<&str> = children.iter().map(proc::Process::role).collect();
            GateError::new("roles", name, names.join(" "))
        })
    }

    /// The workers, idle ones included.
    ///
    /// # Errors
    /// When there is no spawner.
    pub fn workers(&self) -> Result<Vec<u32>, GateError> {
        let children = proc::children(self.role("spawner")?)?;
        let workers = children.iter().filter(|child| child.role() == "worker");
        Ok(workers.map(|worker| worker.pid).collect())
    }

    /// The worker that serves the connection of the client at this address: the one that holds its socket.
    ///
    /// # Errors
    /// When there is none.
    pub fn worker_of(&self, client: SocketAddr) -> Result<u32, GateError> {
        let inode = proc::accepted_socket(self.address, client)?.during("the client's socket")?;
        for worker in self.workers()? {
            let holds = proc::descriptors(worker)
                .unwrap_or_default() // one that is just ending
                .iter()
                .any(|descriptor| descriptor.socket() == Some(inode));
            if holds {
                return Ok(worker);
            }
        }
        Err(GateError::new(
            "workers",
            format!("one that holds the socket of {client}"),
            "none",
        ))
    }

    /// The log line of a connection that a worker wrote with this reason and detail.
    ///
    /// # Errors
    /// When it does not come.
    pub async fn worker_event(
        &self,
        mark: usize,
        connection: &str,
        reason: &str,
        detail: &str,
    ) -> Result<Value, GateError> {
        let what = format!("reason {reason} and detail {detail} of connection {connection}");
        self.log
            .wait(&what, mark, |line| {
                log::has(line, "role", "worker")
                    && log::has(line, "connection", connection)
                    && log::has(line, "reason", reason)
                    && log::has(line, "detail", detail)
            })
            .await
    }

    /// Asks it to stop, and waits for that.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(&mut self) -> Result<ExitStatus, GateError> {
        terminate(&mut self.child, "the router").await
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ended(&mut self) -> Result<ExitStatus, GateError> {
        soon("the end of the router", self.child.wait())
            .await?
            .during("the end of the router")
    }
}

/// How toolsheds are started.
#[derive(Debug, Clone)]
pub enum ToolshedCommand {
    /// The reference toolshed: `PROGRAM fixture FILE`.
    Reference(PathBuf),
    /// Any other, as a shell would read it; the fixture file becomes its last argument.
    Shell(String),
}

impl ToolshedCommand {
    fn with(&self, fixture: &Path) -> Command {
        match self {
            Self::Reference(program) => {
                let mut command = Command::new(program);
                command.arg("fixture").arg(fixture);
                command
            }
            Self::Shell(words) => {
                let mut command = Command::new("sh");
                command
                    .arg("-c")
                    .arg(format!("exec {words} \"$1\""))
                    .arg("sh")
                    .arg(fixture);
                command
            }
        }
    }
}

/// A toolshed: its place in the stage, and the process while it runs.
#[derive(Debug)]
pub struct Toolshed {
    command: ToolshedCommand,
    fixture: PathBuf,
    running: Option<Running>,
    output: Arc<Log>,
    errors: Arc<Log>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    input: ChildStdin,
}

impl Toolshed {
    /// One that does not run yet.
    pub fn absent(command: &ToolshedCommand, fixture: &Path) -> Self {
        Self {
            command: command.clone(),
            fixture: fixture.to_owned(),
            running: None,
            output: Arc::default(),
            errors: Arc::default(),
        }
    }

    /// Starts a toolshed and waits until it serves routers.
    ///
    /// # Errors
    /// When it does not, with what it wrote.
    pub async fn start(command: &ToolshedCommand, fixture: &Path) -> Result<Self, GateError> {
        let mut toolshed = Self::absent(command, fixture);
        toolshed.launch().await?;
        Ok(toolshed)
    }

    /// Starts the process, in place of the one before, and waits until it serves routers.
    ///
    /// # Errors
    /// When it does not, with what it wrote.
    pub async fn launch(&mut self) -> Result<(), GateError> {
        let (printed, complained) = (self.output.mark(), self.errors.mark());
        let mut child = self
            .command
            .with(&self.fixture)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .during("starting a toolshed")?;
        if let Some(stdout) = child.stdout.take() {
            let output = Arc::clone(&self.output);
            tokio::spawn(async move { output.collect(stdout).await });
        }
        if let Some(stderr) = child.stderr.take() {
            let errors = Arc::clone(&self.errors);
            tokio::spawn(async move { errors.collect(stderr).await });
        }
        let input = child.stdin.take().during("a toolshed's input")?;
        self.running = Some(Running { child, input });
        let ready = |line: &Value| line.get("ready") == Some(&Value::Bool(true));
        self.output
            .wait_for(
                "a toolshed's \"ready\":true",
                printed,
                START_DEADLINE,
                ready,
            )
            .await
            .map(drop)
            .map_err(|error| error.within(format!("toolshed: {}", self.errors.tail(complained))))
    }

    /// The file it was given.
    pub fn fixture(&self) -> &Path {
        &self.fixture
    }

    /// The port it listens on.
    ///
    /// # Errors
    /// When its file does not say.
    pub fn port(&self) -> Result<u16, GateError> {
        let text = std::fs::read(&self.fixture).during("a toolshed's file")?;
        let fixture: Value = serde_json::from_slice(&text).during("a toolshed's file")?;
        let port = fixture.get("port").and_then(Value::as_u64);
        port.and_then(|port| u16::try_from(port).ok())
            .during("a toolshed's port")
    }

    /// What it wrote to its standard error.
    pub fn errors(&self) -> &Log {
        &self.errors
    }

    /// Its process ID, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref()?.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, signal: Signal) -> Result<(), GateError> {
        send_signal(self.pid().during("a running toolshed")?, signal)
    }

    /// Sends a command (`{"revoke":DID}`, `{"fence":true}`) and waits until it is acknowledged.
    ///
    /// # Errors
    /// When it is not.
    pub async fn command(&mut self, command: &Value) -> Result<(), GateError> {
        let mark = self.output.mark();
        let line = format!("{command}\n");
        let running = self.running.as_mut().during("a running toolshed")?;
        soon(
            "a toolshed's command",
            running.input.write_all(line.as_bytes()),
        )
        .await?
        .during("a toolshed's command")?;
        let acknowledged = |line: &Value| line.get("acknowledged") == Some(&Value::Bool(true));
        self.output
            .wait("\"acknowledged\":true", mark, acknowledged)
            .await
            .map(drop)
    }

    /// Asks it to stop, and waits for that.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(&mut self) -> Result<(), GateError> {
        match self.running.take() {
            Some(mut running) => terminate(&mut running.child, "a toolshed").await.map(drop),
            None => Ok(()),
        }
    }

    /// Ends it at once, as a crash would.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn kill(&mut self) -> Result<(), GateError> {
        match self.running.take() {
            Some(mut running) => soon("the end of a toolshed", running.child.kill())
                .await?
                .during("the end of a toolshed"),
            None => Ok(()),
        }
    }
}

/// Sends a signal to a process that this one, or the router it started, has started.
///
/// # Errors
/// When there is no such process.
pub fn send_signal(pid: u32, signal: Signal) -> Result<(), GateError> {
    let step = || format!("a signal to process {pid}");
    let pid = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .during(step())?;
    kill_process(pid, signal).during(step())
}

async fn terminate(child: &mut Child, name: &str) -> Result<ExitStatus, GateError> {
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // It has not been reaped yet, so that the number is still its own; at worst it has ended already.
        let _ = kill_process(pid, Signal::TERM);
    }
    soon(format!("the end of {name}"), child.wait())
        .await?
        .during(format!("the end of {name}"))
}
