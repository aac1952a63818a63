//! `demo`: a whole deployment on loopback, made up on the spot, and a real conversation through it.
//!
//! Everything it starts is a process of its own, as in a deployment: the router with all its roles, and two toolsheds. It is
//! a feature of the executable because only it needs the toolshed and the client; a package for servers leaves it out.

mod account;
mod processes;
mod stage;
mod story;

use std::path::Path;

use clap::Args;
use tokio::runtime::Builder;

use crate::exit::{Exit, Failure};
use crate::signals::StopSignals;

/// Options of `memory-router demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Stay up afterwards, print how to connect, and the router's log on standard error; an interrupt ends it
    #[arg(long)]
    keep: bool,
    /// Print the account as JSON, one object
    #[arg(long)]
    json: bool,
}

/// Runs the demonstration.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start the runtime", error))?;
    runtime.block_on(tokio::task::LocalSet::new().run_until(demonstrate(args)))
}

async fn demonstrate(args: &DemoArgs) -> Result<(), Failure> {
    let mut account = account::Account::new(args.json);
    let mut signals = StopSignals::of_command()?;
    let told = tokio::select! {
        told = tell(&mut account) => told,
        () = signals.next() => return Err(Failure::new(Exit::Failure, "interrupted")),
    };
    let (deployment, stage) = told?;
    account.print(args.keep.then_some(&stage))?;
    if args.keep {
        deployment.show_log();
        signals.next().await;
    }
    deployment.stop().await
}

/// Every step in turn; each names itself before it is done, so that a failure says where it was.
async fn tell(
    account: &mut account::Account,
) -> Result<(processes::Deployment, stage::Stage), Failure> {
    let stage = account
        .step("make keys, certificates and a directory", async {
            stage::Stage::make()
        })
        .await?;
    account.note(format!("in {}", stage.folder().display()));
    let mut deployment = processes::Deployment::new();
    for index in 0..stage::TOOLSHEDS {
        let what = format!("start toolshed {index} with a store of its own");
        account
            .step(&what, deployment.start_toolshed(&stage, index))
            .await?;
    }
    account
        .step(
            "start the router, a process for every role",
            deployment.start_router(&stage),
        )
        .await?;
    let idle = story::converse(account, &stage).await?;
    account
        .step("look at the processes", async { deployment.survey() })
        .await
        .map(|survey| account.processes(survey))?;
    idle.close().await;
    Ok((deployment, stage))
}

/// One of the demo's toolsheds, in a process of its own.
pub(crate) fn toolshed(fixture: &Path) -> Result<(), Failure> {
    memory_sandbox::die_with_parent(None)
        .map_err(|error| Failure::because(Exit::Unavailable, "cannot follow the demo", error))?;
    memory_toolshed::fixture::run(fixture)
        .map_err(|error| Failure::because(Exit::Failure, "the toolshed cannot serve", error))
}
