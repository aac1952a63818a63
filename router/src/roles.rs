//! From a role's name to the role: isolation, logging, configuration, runtime, and its exit status.

use std::error::Error;
use std::future::Future;
use std::io;
use std::path::Path;

use memory_sandbox::SandboxError;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::accepted::Accepted;
use crate::check::{self, Part};
use crate::exit::{Exit, Failure};
use crate::reload::{Hangups, Reloader};
use crate::signals::StopSignals;
use crate::{isolation, listener, logging, metrics, run, spawner, supervised};

/// Runs the listener.
pub(crate) fn listener(config_file: &Path) -> Result<(), Failure> {
    let begun = begin(
        "listener",
        isolation::listener,
        &[Part::Listener],
        config_file,
    )?;
    let (supervised, changes) = (begun.supervised, begun.reloader.changes());
    begun.block_on(listener::run(changes, supervised))
}

/// Runs the spawner.
pub(crate) fn spawner(config_file: &Path) -> Result<(), Failure> {
    let begun = begin("spawner", isolation::spawner, &[Part::Spawner], config_file)?;
    let changes = begun.reloader.changes();
    begun.block_on(spawner::run(changes))
}

/// Runs the key agent.
pub(crate) fn key_agent(config_file: &Path) -> Result<(), Failure> {
    use memory_key_agent::KeyAgentError;

    let begun = begin(
        "key-agent",
        isolation::key_agent,
        &[Part::KeyAgent],
        config_file,
    )?;
    let changes = begun.reloader.changes();
    begun.block_on(until_stopped("key-agent", async {
        memory_key_agent::run(changes)
            .await
            .map_err(|error| match error {
                KeyAgentError::Listen(error) => {
                    Failure::channel("cannot listen for the spawner", error)
                }
                error if error.is_configuration() => agent_failure(Exit::Configuration, error),
                error => agent_failure(Exit::Failure, error),
            })
    }))
}

/// Runs the link agent.
pub(crate) fn link_agent(config_file: &Path) -> Result<(), Failure> {
    use memory_link_agent::Error;

    let begun = begin(
        "link-agent",
        isolation::link_agent,
        &[Part::LinkAgent],
        config_file,
    )?;
    let changes = begun.reloader.changes();
    begun.block_on(until_stopped("link-agent", async {
        memory_link_agent::run(changes)
            .await
            .map_err(|error| match error {
                Error::Listen(error) => Failure::channel("cannot listen for the spawner", error),
                error @ Error::Sandbox(_) => agent_failure(Exit::Failure, error),
                error => agent_failure(Exit::Configuration, error),
            })
    }))
}

/// Runs the directory broker.
pub(crate) fn directory_broker(config_file: &Path) -> Result<(), Failure> {
    use memory_directory_broker::Error;

    let begun = begin(
        "directory-broker",
        isolation::directory_broker,
        &[Part::DirectoryBroker],
        config_file,
    )?;
    let changes = begun.reloader.changes();
    begun.block_on(until_stopped("directory-broker", async {
        memory_directory_broker::run(changes)
            .await
            .map_err(|error| match error {
                Error::Listen(error) => Failure::channel("cannot listen for the spawner", error),
                error @ (Error::Directory(_) | Error::Source) => {
                    agent_failure(Exit::Configuration, error)
                }
            })
    }))
}

/// Runs the metrics role.
pub(crate) fn metrics(config_file: &Path) -> Result<(), Failure> {
    let begun = begin("metrics", isolation::metrics, &[Part::Metrics], config_file)?;
    let changes = begun.reloader.changes();
    begun.block_on(until_stopped("metrics", metrics::run(changes)))
}

/// Runs a worker. It reads no file and writes no log: its channel is all it has.
pub(crate) fn worker() -> Result<(), Failure> {
    isolation::worker().map_err(cannot_isolate)?;
    let input = rustix::fs::fstat(io::stdin())
        .map(|status| rustix::fs::FileType::from_raw_mode(status.st_mode));
    if input != Ok(rustix::fs::FileType::Socket) {
        return Err(Failure::new(
            Exit::Usage,
            "a worker is started by the spawner: its standard input is no channel to one",
        ));
    }
    let runtime = runtime()?;
    // Its configuration came with its start. Who signals every process of this name to reload must not end connections.
    let _unheard = hangups(&runtime)?;
    let result = block_on(&runtime, async {
        memory_worker::run()
            .await
            .map_err(|error| agent_failure(Exit::Failure, error))
    });
    runtime.shutdown_background();
    result
}

/// Runs every role, supervised.
pub(crate) fn run(config_file: &Path) -> Result<(), Failure> {
    let Begun {
        runtime, reloader, ..
    } = begin("run", isolation::run, &Part::ALL, config_file)?;
    let result = block_on(&runtime, run::run(config_file, reloader));
    runtime.shutdown_background();
    result
}

/// What every role with a configuration begins with.
struct Begun {
    runtime: Runtime,
    reloader: Reloader,
    /// A supervisor watches over this process.
    supervised: bool,
}

impl Begun {
    /// Runs a role on one thread, following SIGHUP beside it.
    fn block_on(self, role: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
        let Self {
            runtime, reloader, ..
        } = self;
        let result = block_on(&runtime, async {
            tokio::select! {
                ended = role => ended,
                () = reloader.follow() => Ok(()),
            }
        });
        // Waits for no task that blocks, such as a name being resolved.
        runtime.shutdown_background();
        result
    }
}

fn begin(
    role: &'static str,
    isolate: fn() -> Result<(), SandboxError>,
    parts: &[Part],
    config_file: &Path,
) -> Result<Begun, Failure> {
    isolate().map_err(cannot_isolate)?;
    let supervised = supervised::follow_supervisor()?;
    let runtime = runtime()?;
    let hangups = hangups(&runtime)?;
    // Before logging starts: faults of the configuration are for a person to read, a line each.
    let (accepted, examined) = Accepted::at_start(config_file)?;
    let (config, notes) = check::at_start(config_file, examined, parts)?;
    logging::start(role)?;
    // `run` looks at everything so that nothing is started in vain; each role tells its own.
    if let [_] = parts {
        notes.log();
    }
    isolation::raise_descriptor_limit();
    Ok(Begun {
        runtime,
        reloader: Reloader::new(role, config_file, hangups, config, accepted),
        supervised,
    })
}

fn cannot_isolate(error: SandboxError) -> Failure {
    Failure::because(Exit::Failure, "cannot isolate this process", error)
}

fn agent_failure(exit: Exit, error: impl Error + Send + Sync + 'static) -> Failure {
    Failure::because(exit, "cannot serve", error)
}

/// Runs an agent until it fails or a signal asks it to stop. Agents keep nothing that would have to be
/// finished: who asks for a stop stops those that use them first.
async fn until_stopped(
    role: &'static str,
    agent: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let mut signals = StopSignals::new()?;
    tokio::select! {
        ended = agent => ended,
        () = signals.next() => {
            tracing::info!(reason = "stop", "{role} stops");
            Ok(())
        }
        // Showing goes on for ever.
    }
}

/// A runtime of one thread.
fn runtime() -> Result<Runtime, Failure> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start the runtime", error))
}

/// Catches SIGHUP from here on.
fn hangups(runtime: &Runtime) -> Result<Hangups, Failure> {
    let _inside = runtime.enter();
    Hangups::new()
}

/// Runs a role on one thread, with a set for its local tasks.
fn block_on(
    runtime: &Runtime,
    role: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    LocalSet::new().block_on(runtime, role)
}
