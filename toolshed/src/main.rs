//! The memory-toolshed executable.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use memory_config::{Identity, ToolshedPolicy};
use memory_toolshed::host::{HostError, HostOptions, LedgerError};
use memory_toolshed::{fixture, serve};
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const AFTER_HELP: &str = "\
Exit statuses:
   0  stopped as asked
   2  wrong usage
  75  a passing condition, such as an address, store or ledger in use; try again
  77  permission denied
  78  anything else: the policy, or a file it names

Environment:
  MEMORY_TOOLSHED_LOG  which log lines are written: off, error, warn, info, debug or trace, or directives
                       such as \"info,memory_toolshed=debug\" [default: info]

Log lines are JSON objects on standard error.";

/// A passing condition (`sysexits.h`, EX_TEMPFAIL).
const EXIT_TRY_AGAIN: u8 = 75;
/// Permission denied (EX_NOPERM).
const EXIT_PERMISSION: u8 = 77;
/// A configuration that cannot be used (EX_CONFIG).
const EXIT_CONFIG: u8 = 78;

/// Reference toolshed: serves Memory to routers over their private links.
#[derive(Debug, Parser)]
#[command(name = "memory-toolshed", version, after_help = AFTER_HELP, max_term_width = 100)]
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
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed standard error is no reason to end otherwise than so.
            drop(writeln!(io::stderr(), "memory-toolshed: {error}"));
            ExitCode::from(status(error.as_ref()))
        }
    }
}

fn run(command: Command) -> Result<(), Box<dyn Error>> {
    memory_toolshed::log_to_stderr()?;
    match command {
        Command::Serve {
            policy,
            seed,
            store,
            modern_cell_rep,
        } => run_policy(&policy, seed, store, modern_cell_rep),
        Command::Fixture { file } => fixture::run(&file).map_err(Into::into),
    }
}

/// The exit status of a failure: by the first system error among its causes, as the router's.
fn status(error: &(dyn Error + 'static)) -> u8 {
    if matches!(
        error.downcast_ref(),
        Some(HostError::Ledger(LedgerError::Locked(_)))
    ) {
        return EXIT_TRY_AGAIN;
    }
    let mut cause = Some(error);
    let mut system = None;
    while let (Some(error), None) = (cause, system) {
        system = error.downcast_ref().map(io::Error::kind);
        cause = error.source();
    }
    match system {
        Some(
            io::ErrorKind::AddrInUse
            | io::ErrorKind::WouldBlock
            | io::ErrorKind::OutOfMemory
            | io::ErrorKind::StorageFull,
        ) => EXIT_TRY_AGAIN,
        Some(io::ErrorKind::PermissionDenied) => EXIT_PERMISSION,
        _ => EXIT_CONFIG,
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
