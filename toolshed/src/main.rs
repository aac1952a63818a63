//! The memory-toolshed executable.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use memory_config::{Identity, ToolshedPolicy};
use memory_toolshed::host::HostOptions;
use memory_toolshed::{fixture, serve};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit status of a configuration that cannot be used (`sysexits.h`, EX_CONFIG).
const EXIT_CONFIG: u8 = 78;

/// Reference toolshed: serves Memory to routers over their private links.
#[derive(Debug, Parser)]
#[command(name = "memory-toolshed", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve by a policy file until SIGTERM or SIGINT.
    Serve {
        /// Policy file (JSON).
        policy: PathBuf,
        /// Seed file of this toolshed's key, 32 raw bytes [default: toolshed.seed beside the policy].
        #[arg(long)]
        seed: Option<PathBuf>,
        /// Folder of the spaces, made when it is missing [default: store beside the policy].
        #[arg(long)]
        store: Option<PathBuf>,
        /// Serve the modern cell representation; every other part of the deployment must, too.
        #[arg(long)]
        modern_cell_rep: bool,
    },
    /// Serve as a fixture file of the exercise says, until standard input ends.
    Fixture {
        /// Fixture file (JSON).
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    memory_toolshed::log_to_stderr();
    let outcome = match Arguments::parse().command {
        Command::Serve {
            policy,
            seed,
            store,
            modern_cell_rep,
        } => run_policy(&policy, seed, store, modern_cell_rep),
        Command::Fixture { file } => fixture::run(&file).map_err(Into::into),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memory-toolshed: {error}");
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

fn run_policy(
    path: &Path,
    seed: Option<PathBuf>,
    store: Option<PathBuf>,
    modern_cell_rep: bool,
) -> Result<(), Box<dyn Error>> {
    let policy = ToolshedPolicy::load(path)?;
    let beside = |name: &str| path.with_file_name(name);
    let options = HostOptions {
        identity: Identity::from_seed_file(&seed.unwrap_or_else(|| beside("toolshed.seed")))?,
        store: store.unwrap_or_else(|| beside("store")),
        modern_cell_rep,
    };
    Ok(serve(&policy, options)?)
}
