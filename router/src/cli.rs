//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const AFTER_HELP: &str = "\
Exit statuses:
   0  success
   1  failure at run time
   2  wrong usage
  69  something this process depends on is unavailable
  75  a passing condition; try again
  77  permission denied
  78  invalid configuration

Environment:
  MEMORY_ROUTER_LOG  which log lines are written, as a level or as directives such as
                     \"info,memory_link_agent=debug\" [default: info]

Log lines are JSON objects on standard error.";

/// Routes the Memory connections of many clients to the toolsheds that own their spaces.
///
/// One executable plays every role. On a host without a service manager, `run` starts and supervises all of them; with one,
/// each role is a unit of its own.
#[derive(Debug, Parser)]
#[command(name = "memory-router", version, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start and supervise every role on this host
    ///
    /// Prints the line `memory-router-ready` on standard error when clients are served. A role that dies is started again.
    /// SIGTERM and SIGINT stop accepting, let the connections finish for at most `timeouts.drain`, and end with status 0; a
    /// second one ends at once.
    Run(ConfigArgs),
    /// Look for everything that is wrong with a configuration, its files and this host
    ///
    /// All findings in one run, each with its place and how to mend it. Changes nothing, so it is safe beside a router that
    /// runs. Ends with 0 when there is no error, and with 78 otherwise.
    Check(CheckArgs),
    /// Accept public connections and admit them by source
    Listener(ConfigArgs),
    /// Start a worker process for every admitted connection
    Spawner(ConfigArgs),
    /// Serve one public connection (started by the spawner only)
    ///
    /// Takes no configuration: its channel is standard input, and everything else comes over it.
    Worker,
    /// Hold the TLS private key and sign handshakes with it
    KeyAgent(ConfigArgs),
    /// Hold the router's identity and the control links to the toolsheds
    LinkAgent(ConfigArgs),
    /// Say which toolshed owns a space, and dial it
    DirectoryBroker(ConfigArgs),
    /// Serve what the other roles show to Prometheus, on loopback
    ///
    /// Answers `GET /metrics` at `metrics_listen`. Started by `run` where that is set.
    Metrics(ConfigArgs),
    /// Show how the router is: roles, connections, links, budgets, refusals, latencies
    ///
    /// Asks every role on this host. Ends with 0 when all answer, with 75 when some do not, and with 69 when none does.
    Status(crate::status::StatusArgs),
    /// Make a new identity: write its seed to a file and print its DID
    Keygen {
        /// The file to make, readable by its owner only; refused when it exists
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Print the DID of a seed file
    Did {
        /// A seed file: exactly 32 bytes, as `keygen` writes it
        #[arg(long, value_name = "FILE")]
        seed: PathBuf,
    },
    /// Shut a principal out, admit it again, or print who is out
    ///
    /// Changes the revocation list in `state_dir`. The router need not run; when it does, the change is in force within 500 ms,
    /// without a restart: a revoked principal's connections are closed and its signatures are refused for good.
    Revoke(crate::revoke::RevokeArgs),
    /// Show the whole thing at work on loopback, with throw-away keys and two toolsheds
    ///
    /// Starts two toolsheds and the router with all its roles as separate processes, holds a conversation of two keys in three
    /// spaces through them, tells what happened, and stops everything.
    #[cfg(feature = "demo")]
    Demo(crate::demo::DemoArgs),
    /// One toolshed of the demonstration (started by `demo` only)
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    DemoToolshed {
        /// Its argument file
        fixture: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The configuration file, router.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// The policy file of a toolshed, to be compared: once for each toolshed
    #[arg(long, value_name = "FILE")]
    pub(crate) toolshed_policy: Vec<PathBuf>,
    /// Read the named files only, and ask nothing of this host
    #[arg(long = "static", conflicts_with = "live")]
    pub(crate) static_only: bool,
    /// Dial each toolshed too, up to its signed greeting
    #[arg(long)]
    pub(crate) live: bool,
    /// Count warnings as errors
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file, router.toml
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
