//! From a role's name to the role: isolation, logging, configuration, runtime, and its exit status.

use std::error::Error;
use std::future::Future;
use std::path::Path;

use memory_config::RouterConfig;
use memory_sandbox::SandboxError;
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

use crate::exit::{Exit, Failure};
use crate::signals::StopSignals;
use crate::{isolation, listener, logging, run, spawner, supervised};

/// Runs the listener.
pub(crate) fn listener(config_file: &Path) -> Result<(), Failure> {
    let (config, supervised) = begin("listener", isolation::listener, config_file)?;
    block_on(listener::run(&config, supervised))
}

/// Runs the spawner.
pub(crate) fn spawner(config_file: &Path) -> Result<(), Failure> {
    let (config, _) = begin("spawner", isolation::spawner, config_file)?;
    block_on(spawner::run(config))
}

/// Runs the key agent.
pub(crate) fn key_agent(config_file: &Path) -> Result<(), Failure> {
    use memory_key_agent::KeyAgentError;

    let (config, _) = begin("key-agent", isolation::key_agent, config_file)?;
    block_on(until_stopped("key-agent", async {
        memory_key_agent::run(config)
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

    let (config, _) = begin("link-agent", isolation::link_agent, config_file)?;
    block_on(until_stopped("link-agent", async {
        memory_link_agent::run(config)
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

    let (config, _) = begin("directory-broker", isolation::directory_broker, config_file)?;
    block_on(until_stopped("directory-broker", async {
        memory_directory_broker::run(config)
            .await
            .map_err(|error| match error {
                Error::Listen(error) => Failure::channel("cannot listen for the spawner", error),
                error @ (Error::Directory(_) | Error::Source) => {
                    agent_failure(Exit::Configuration, error)
                }
            })
    }))
}

/// Runs a worker. It reads no file and writes no log: its channel is all it has.
pub(crate) fn worker() -> Result<(), Failure> {
    isolation::worker().map_err(cannot_isolate)?;
    block_on(async {
        memory_worker::run()
            .await
            .map_err(|error| agent_failure(Exit::Failure, error))
    })
}

/// Runs every role, supervised.
pub(crate) fn run(config_file: &Path) -> Result<(), Failure> {
    let (config, _) = begin("run", isolation::run, config_file)?;
    block_on(run::run(config_file, &config))
}

/// What every role with a configuration begins with. Returns also whether a supervisor watches over this process.
fn begin(
    role: &'static str,
    isolate: fn() -> Result<(), SandboxError>,
    config_file: &Path,
) -> Result<(RouterConfig, bool), Failure> {
    isolate().map_err(cannot_isolate)?;
    let supervised = supervised::follow_supervisor()?;
    // Before logging starts: faults of the configuration are for a person to read, a line each.
    let config = RouterConfig::load(config_file)
        .map_err(|errors| Failure::because(Exit::Configuration, "invalid configuration", errors))?;
    logging::start(role)?;
    isolation::raise_descriptor_limit();
    Ok((config, supervised))
}

fn cannot_isolate(error: SandboxError) -> Failure {
    Failure::because(Exit::Failure, "cannot isolate this process", error)
}

fn agent_failure(exit: Exit, error: impl Error + Send + Sync + 'static) -> Failure {
    Failure::because(exit, "cannot serve", error)
}

/// Runs an agent until it fails or a signal asks it to stop. Agents keep nothing that would have to be finished: who asks for
/// a stop stops those that use them first.
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
    }
}

/// Runs a role on one thread, with a set for its local tasks.
fn block_on<F: Future<Output = Result<(), Failure>>>(role: F) -> Result<(), Failure> {
    let runtime: Runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start the runtime", error))?;
    let result = LocalSet::new().block_on(&runtime, role);
    // Waits for no task that blocks, such as a name being resolved.
    runtime.shutdown_background();
    result
}
