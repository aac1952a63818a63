//! `status`: how the router is, on a terminal or as JSON.
//!
//! It asks every role on its admin socket, changes nothing, and needs no role in particular.

mod json;
mod reading;
mod screen;
mod table;
mod text;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use memory_config::RouterConfig;
use tokio::runtime::Builder;
use tokio::time::{MissedTickBehavior, interval};

use crate::exit::{Exit, Failure};
use crate::signals::StopSignals;
use crate::survey::survey;

use reading::Reading;
use screen::Screen;

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The configuration file, router.toml: its `ipc_dir` has the sockets
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Print JSON, one object a line for each look
    #[arg(long)]
    json: bool,
    /// Look again and again, every 2 s or so many (1 to 3600), until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

/// Looks at every role and prints what it sees. What it saw is in the status: [`Exit::Unavailable`] when no role answers,
/// [`Exit::TryAgain`] when some do not, [`Exit::Permission`] when this user may look at none.
///
/// # Errors
/// [`Exit::Configuration`] for an invalid configuration, and when standard output cannot be written to.
pub(crate) fn run(args: &StatusArgs) -> Result<Exit, Failure> {
    let config = RouterConfig::load(&args.config)
        .map_err(|errors| Failure::because(Exit::Configuration, "invalid configuration", errors))?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start the runtime", error))?;
    runtime.block_on(async {
        match args.watch {
            None => {
                let reading = Reading::new(survey(&config).await);
                let text = render(args, &reading, None)?;
                written(io::stdout().write_all(text.as_bytes()))?;
                Ok(reading.exit())
            }
            Some(seconds) => watch(args, &config, Duration::from_secs(seconds)).await,
        }
    })
}

async fn watch(args: &StatusArgs, config: &RouterConfig, every: Duration) -> Result<Exit, Failure> {
    let mut signals = StopSignals::of_command()?;
    let mut screen = Screen::new(args.json);
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut former: Option<Reading> = None;
    loop {
        let look = async {
            ticks.tick().await;
            Reading::new(survey(config).await)
        };
        let reading = tokio::select! {
            reading = look => reading,
            () = signals.next() => break,
        };
        let text = render(args, &reading, former.as_ref())?;
        let is_read = written(screen.show(&text))?;
        former = Some(reading);
        if !is_read {
            break;
        }
    }
    drop(screen);
    Ok(former.map_or(Exit::Success, |reading| reading.exit()))
}

fn render(
    args: &StatusArgs,
    reading: &Reading,
    former: Option<&Reading>,
) -> Result<String, Failure> {
    if args.json {
        json::render(reading)
            .map_err(|error| Failure::because(Exit::Failure, "cannot write JSON", error))
    } else {
        Ok(text::render(reading, former))
    }
}

/// Whether somebody reads it: a reader that has seen enough, such as `head`, is no failure.
fn written(outcome: io::Result<()>) -> Result<bool, Failure> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        // Not a status that says how the router is.
        Err(error) => Err(Failure::because(
            Exit::Failure,
            "cannot write to standard output",
            error,
        )),
    }
}
