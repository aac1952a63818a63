//! One worker process: starting it, and the channel to it.

use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use memory_ipc::packets::{SpawnerToWorker, WorkerToSpawner};
use memory_ipc::{Channel, ChannelError};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::settings::Settings;

/// How long a process whose channel is closed may take to end by itself; then it is killed.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// The whole environment of a worker: one small, tidy heap. Many workers share the machine, so each gives memory that a
/// large message took back to the system instead of keeping it for the next.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_TRIM_THRESHOLD_", "65536"),
    ("MALLOC_MMAP_THRESHOLD_", "65536"),
];

/// A worker process and the spawner's end of its channel. Killed when dropped, should it still live then.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    child: Child,
    channel: Channel,
    pid: Option<u32>,
}

/// Something that a worker or the kernel said.
#[derive(Debug)]
pub(super) enum WorkerSign {
    Packet(WorkerToSpawner),
    /// It has closed its channel, which it does by ending.
    Closed,
    /// It said something that a worker may not.
    Violation(ChannelError),
}

impl WorkerProcess {
    /// Starts a worker: an exec of this same executable, so that each has an address layout of its own. Its channel is its
    /// descriptor 0; it inherits nothing else but standard error.
    pub(super) fn start() -> Result<Self, ChannelError> {
        let (ours, theirs) = Channel::pair().map_err(ChannelError::Setup)?;
        let channel = Channel::from_fd(ours)?;
        let child = Command::new("/proc/self/exe")
            .arg0("memory-router")
            .arg("worker")
            .env_clear()
            .envs(ENVIRONMENT)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(ChannelError::Setup)?;
        let pid = child.id();
        Ok(Self {
            child,
            channel,
            pid,
        })
    }

    /// Its process ID; still told when it has ended.
    pub(super) fn pid(&self) -> Option<u32> {
        self.pid
    }

    pub(super) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Gives it its settings.
    pub(super) fn send_settings(&self, settings: &Settings) -> Result<(), ChannelError> {
        let descriptors = [settings.file()];
        self.channel
            .try_send_packet(&SpawnerToWorker::Settings, &descriptors)
    }

    /// What it says next. Cancel-safe.
    pub(super) async fn sign(&self) -> WorkerSign {
        match self.channel.recv_packet::<WorkerToSpawner>().await {
            Ok(Some((packet, _))) => WorkerSign::Packet(packet),
            Ok(None) => WorkerSign::Closed,
            Err(error) if error.is_violation() => WorkerSign::Violation(error),
            // A connection reset is how a process that died with unread packets shows.
            Err(_) => WorkerSign::Closed,
        }
    }

    /// Waits for its end after its channel was closed by it; kills it when that takes too long. `killed` says that it did.
    pub(super) async fn reap(mut self) -> Reaped {
        match timeout(EXIT_GRACE, self.child.wait()).await {
            Ok(status) => Reaped {
                status,
                killed: false,
            },
            Err(_) => self.kill().await,
        }
    }

    /// Closes the channel, which tells it to end, and waits for that.
    pub(super) async fn retire(self) -> Reaped {
        let Self {
            mut child, channel, ..
        } = self;
        drop(channel);
        match timeout(EXIT_GRACE, child.wait()).await {
            Ok(status) => Reaped {
                status,
                killed: false,
            },
            Err(_) => kill(&mut child).await,
        }
    }

    /// Kills it and waits for its end.
    pub(super) async fn kill(&mut self) -> Reaped {
        kill(&mut self.child).await
    }
}

async fn kill(child: &mut Child) -> Reaped {
    // It fails only when the process has ended meanwhile.
    drop(child.start_kill());
    Reaped {
        status: child.wait().await,
        killed: true,
    }
}

/// How a worker process ended.
#[derive(Debug)]
pub(super) struct Reaped {
    pub(super) status: io::Result<ExitStatus>,
    /// The spawner killed it.
    pub(super) killed: bool,
}

impl Reaped {
    /// Whether it ended by itself, and well.
    pub(super) fn is_success(&self) -> bool {
        !self.killed && self.status.as_ref().is_ok_and(ExitStatus::success)
    }
}

#[cfg(test)]
impl WorkerProcess {
    /// A process that is not a worker, its standard output, and the worker's end of its channel.
    pub(super) fn stand_in() -> (Self, tokio::process::ChildStdout, std::os::fd::OwnedFd) {
        let (ours, theirs) = Channel::pair().unwrap();
        // It ends with its standard input, which waiting for it closes.
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let process = Self {
            pid: child.id(),
            child,
            channel: Channel::from_fd(ours).unwrap(),
        };
        (process, output, theirs)
    }
}
