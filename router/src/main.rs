//! The memory-router executable: every role of the router, and the few commands that an operator needs to start with.
#![forbid(unsafe_code)]

mod accepted;
mod admission;
mod backoff;
mod check;
mod cli;
#[cfg(feature = "demo")]
mod demo;
mod exit;
mod isolation;
mod kept;
mod keygen;
mod listener;
mod logging;
mod metrics;
mod reload;
mod revoke;
mod roles;
mod run;
mod signals;
mod spawner;
mod status;
mod supervised;
mod survey;
mod throttle;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;

use cli::{Cli, Command};
use exit::{Exit, Failure};

fn main() -> ExitCode {
    // Wrong usage ends here with status 2, help and version with 0.
    let command = Cli::parse().command;
    let is_worker = matches!(command, Command::Worker);
    match dispatch(command) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            // A worker's standard error is its spawner's log, which is for JSON; the spawner logs how it ended. One that was
            // started by hand has no spawner to do so.
            if !is_worker || failure.exit == Exit::Usage {
                report(&failure);
            }
            failure.exit.into()
        }
    }
}

fn dispatch(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Check(args) => return check::run(&args),
        Command::Run(args) => roles::run(&args.config),
        Command::Listener(args) => roles::listener(&args.config),
        Command::Spawner(args) => roles::spawner(&args.config),
        Command::Worker => roles::worker(),
        Command::KeyAgent(args) => roles::key_agent(&args.config),
        Command::LinkAgent(args) => roles::link_agent(&args.config),
        Command::DirectoryBroker(args) => roles::directory_broker(&args.config),
        Command::Metrics(args) => roles::metrics(&args.config),
        Command::Status(args) => return status::run(&args),
        Command::Keygen { out } => print(&keygen::keygen(&out)?).map_err(|error| {
            let file = out.display();
            let what =
                format!("{file} is made, but its DID is not told (`did --seed {file}` tells it)");
            Failure::because(error.exit, what, error)
        }),
        Command::Did { seed } => print(&keygen::did(&seed)?),
        Command::Revoke(args) => revoke::run(&args),
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(&args),
        #[cfg(feature = "demo")]
        Command::DemoToolshed { fixture } => demo::toolshed(&fixture),
    }
    .map(|()| Exit::Success)
}

fn print(line: &str) -> Result<(), Failure> {
    writeln!(io::stdout(), "{line}")
        .map_err(|error| Failure::io("cannot write to standard output", error))
}

/// Tells the operator why this process ends: in the log where there is one, in plain text otherwise.
fn report(failure: &Failure) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!(
            reason = "failed",
            status = failure.exit as u8,
            "{}",
            failure.story()
        );
    } else {
        // A closed standard error is no reason to end otherwise than so.
        drop(writeln!(io::stderr(), "memory-router: {}", failure.story()));
    }
}
