//! `exercise`: drives a built router against two toolsheds, prints a line of JSON per gate and then the verdict.
#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use memory_exercise::processes::ToolshedCommand;
use memory_exercise::{Programs, gates, report};
use tokio::runtime::Builder;

const AFTER_HELP: &str = "\
Exit statuses:
   0  every gate passed
   1  a gate failed, or the stage could not be set
   2  wrong usage";

/// Drives the router from outside, against two toolsheds with real stores, and says what a user would notice.
///
/// Prints {"gate":"...","passed":true,"ms":12} for each gate and {"accepted":true,"gates":N} at the end.
#[derive(Debug, Parser)]
#[command(name = "exercise", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    /// Any toolshed: a command that takes a JSON file as its last argument, as a shell reads it
    #[arg(long, value_name = "CMD", conflicts_with = "toolshed")]
    toolshed_command: Option<String>,
    /// The memory-router executable [default: beside this one]
    #[arg(long, value_name = "PATH")]
    router: Option<PathBuf>,
    /// The memory-toolshed executable [default: beside this one]
    #[arg(long, value_name = "PATH")]
    toolshed: Option<PathBuf>,
    /// How long a toolshed stalls under many clients, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    stall: u64,
    /// How many random schedules are played
    #[arg(long, value_name = "N", default_value_t = memory_exercise::stage::SCHEDULES)]
    schedules: u32,
    /// Play one schedule again: the seed that a failure named
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Only this gate: its name, or the number in front of it
    #[arg(long, value_name = "GATE")]
    only: Option<String>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(only) = &cli.only
        && !gates::ALL.iter().any(|gate| gate.is_meant(only))
    {
        let names: Vec<&str> = gates::ALL.iter().map(|gate| gate.name).collect();
        complain(&format!("no gate {only}; there are {}", names.join(", ")));
        return ExitCode::from(2);
    }
    match exercise(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn exercise(cli: &Cli) -> Result<bool, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let beside = |name: &str| own.parent().unwrap_or(Path::new(".")).join(name);
    let toolshed = match &cli.toolshed_command {
        Some(command) => ToolshedCommand::Shell(command.clone()),
        None => {
            let given = cli.toolshed.clone();
            ToolshedCommand::Reference(given.unwrap_or_else(|| beside("memory-toolshed")))
        }
    };
    let programs = Programs {
        router: cli
            .router
            .clone()
            .unwrap_or_else(|| beside("memory-router")),
        toolshed,
        stall: Duration::from_secs(cli.stall),
        schedules: cli.schedules,
        seed: cli.seed,
    };
    // One thread: the kernel ties the router's life to the thread that started it.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let running = memory_exercise::run(&programs, cli.only.as_deref(), |outcome| {
        say(&outcome.line());
    });
    let outcomes = runtime
        .block_on(running)
        .map_err(|error| error.to_string())?;
    say(&report::verdict(&outcomes));
    Ok(outcomes.iter().all(report::Outcome::passed))
}

fn say(line: &str) {
    // A closed output is no reason to stop: the status tells as well.
    drop(writeln!(io::stdout(), "{line}"));
}

fn complain(line: &str) {
    drop(writeln!(io::stderr(), "exercise: {line}"));
}
