//! `check`: everything that can be known to be wrong before it goes wrong, in one run; and each role's part of it at start.
//!
//! Nothing is changed by looking: no file is written, no lock taken, no port listened on, and a toolshed that is dialled
//! (`--live`) learns of no router. So it is safe beside a router that runs.
//!
//! | part | looks at |
//! | --- | --- |
//! | [`Part::Listener`] | addresses, sources |
//! | [`Part::Spawner`] | folders, users, tasks, memory, kernel |
//! | [`Part::KeyAgent`] | certificate and key |
//! | [`Part::LinkAgent`] | seed, directory, revocation list, times |
//! | [`Part::DirectoryBroker`] | directory |
//! | [`Part::Metrics`] | nothing of its own |
//!
//! and each at the descriptors that its role needs.

mod addresses;
pub(crate) mod calendar;
mod cgroup;
mod files;
mod finding;
mod identity;
mod kernel;
mod live;
mod output;
mod placement;
mod policies;
mod resources;
mod running;
mod subject;
mod times;
mod users;

use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use memory_config::{Examined, RouterConfig};

use crate::cli::CheckArgs;
use crate::exit::{Exit, Failure};
use finding::{Fatal, Finding, Severity};
use output::Outcome;
use placement::Placement;
use subject::{Reach, Subject};

/// What one role answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Listener,
    Spawner,
    KeyAgent,
    LinkAgent,
    DirectoryBroker,
    Metrics,
}

impl Part {
    /// All of them, as `run` and the command check them.
    pub(crate) const ALL: [Self; 6] = [
        Self::Listener,
        Self::Spawner,
        Self::KeyAgent,
        Self::LinkAgent,
        Self::DirectoryBroker,
        Self::Metrics,
    ];
}

/// The command. Everything found is printed on standard output.
///
/// # Errors
/// When it could not be carried out. What it found is in the status: [`Exit::Configuration`] for errors and, with
/// `--strict`, for warnings.
pub(crate) fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    let reach = if args.static_only {
        Reach::Files
    } else {
        Reach::Host
    };
    let examined = RouterConfig::examine(&args.config);
    let mut findings = faults(&examined);
    let mut toolsheds = None;
    if let Some(config) = &examined.config {
        let subject = subject(&args.config, &examined, config, reach);
        let looked = look(&subject, &Part::ALL, &mut findings);
        addresses::availability(&subject, &mut findings);
        let placement = looked.placement.as_ref();
        policies::compare(
            &subject,
            placement,
            looked.router,
            &args.toolshed_policy,
            &mut findings,
        );
        if let (true, Some(placement)) = (args.live, placement) {
            toolsheds = Some(live::dial(&subject, placement, &mut findings)?);
        }
    }
    let outcome = Outcome::new(findings, toolsheds, args.strict);
    let text = match args.json {
        true => {
            serde_json::to_string(&outcome).map_err(|error| {
                Failure::because(Exit::Failure, "cannot write the findings", error)
            })? + "\n"
        }
        false => outcome.for_people(),
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::io("cannot write to standard output", error))?;
    Ok(match outcome.ok {
        true => Exit::Success,
        false => Exit::Configuration,
    })
}

/// The configuration for a role that starts, as it was read, with what is to be said once there is a log.
///
/// # Errors
/// Every finding that keeps these parts from working.
pub(crate) fn at_start(
    file: &Path,
    examined: Examined,
    parts: &[Part],
) -> Result<(RouterConfig, Notes), Failure> {
    let mut findings = faults(&examined);
    if let Some(config) = &examined.config {
        let subject = subject(file, &examined, config, Reach::Start);
        look(&subject, parts, &mut findings);
    }
    let (fatal, notes): (Vec<_>, Vec<_>) = findings.into_iter().partition(Finding::is_fatal);
    match examined.config {
        Some(config) if fatal.is_empty() => Ok((config, Notes(notes))),
        _ => Err(Failure::because(
            Exit::Configuration,
            "invalid configuration",
            Fatal(fatal),
        )),
    }
}

/// Findings that keep no role from starting.
#[derive(Debug)]
#[must_use]
pub(crate) struct Notes(Vec<Finding>);

impl Notes {
    /// A log line for each.
    pub(crate) fn log(&self) {
        for finding in &self.0 {
            let Finding {
                what,
                file,
                line,
                column,
                key,
                found,
                allowed,
                mend,
                ..
            } = finding;
            macro_rules! log {
                ($level:ident) => {
                    tracing::$level!(
                        reason = "preflight",
                        what,
                        file,
                        line,
                        column,
                        key,
                        found,
                        allowed,
                        mend,
                        "the configuration is taken all the same"
                    )
                };
            }
            match finding.severity {
                Severity::Error => log!(error),
                Severity::Warning => log!(warn),
            }
        }
    }
}

fn faults(examined: &Examined) -> Vec<Finding> {
    examined.errors.iter().cloned().map(Finding::from).collect()
}

fn subject<'a>(
    file: &'a Path,
    examined: &'a Examined,
    config: &'a RouterConfig,
    reach: Reach,
) -> Subject<'a> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    Subject {
        file,
        examined,
        config,
        reach,
        now: i64::try_from(now).unwrap_or(i64::MAX),
    }
}

/// What was read on the way and is needed for more.
struct Looked {
    router: Option<memory_wire::Did>,
    placement: Option<Placement>,
}

/// Looks at everything that these parts answer for.
fn look(subject: &Subject<'_>, parts: &[Part], findings: &mut Vec<Finding>) -> Looked {
    let has = |part| parts.contains(&part);
    let mut router = None;
    let mut placement = None;
    if has(Part::Listener) {
        addresses::settings(subject, findings);
    }
    if has(Part::KeyAgent) {
        identity::pair(subject, findings);
    }
    if has(Part::LinkAgent) {
        router = identity::seed(subject, findings);
        files::revocations(subject, findings);
        times::check(subject, findings);
    }
    if has(Part::LinkAgent) || has(Part::DirectoryBroker) {
        placement = placement::directory(subject, router, findings);
    }
    if parts.len() == Part::ALL.len() {
        files::relations(subject, findings);
    }
    if has(Part::Spawner) {
        files::folders(subject, findings);
        users::check(subject, findings);
        resources::check_tasks(subject, findings);
        resources::check_memory(subject, findings);
        if subject.reach != Reach::Files {
            kernel::check(findings);
        }
    }
    resources::check_descriptors(subject, parts, findings);
    Looked { router, placement }
}
