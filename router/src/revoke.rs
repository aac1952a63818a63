//! `revoke`: shutting principals out, letting them in again, and saying who is out.
//!
//! It changes one file, which the link agent follows: the router may run or not.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{ArgGroup, Args};
use memory_config::{
    Identity, Revocation, RevocationError, RevocationFile, RevocationList, RouterConfig,
    parse_reason,
};
use memory_wire::Did;

use crate::exit::{Exit, Failure};

/// Arguments of `revoke`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["principal", "remove", "list"]))]
pub(crate) struct RevokeArgs {
    /// The configuration file, router.toml: its `state_dir` has the list
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The principal to revoke: its connections are closed, and it is refused for good
    #[arg(value_name = "DID", value_parser = did)]
    principal: Option<Did>,
    /// Why, for whoever reads the list: 1 to 256 bytes without control characters
    #[arg(long, value_name = "TEXT", requires = "principal", conflicts_with_all = ["remove", "list"], value_parser = reason)]
    reason: Option<String>,
    /// A principal to admit again
    #[arg(long, value_name = "DID", value_parser = did)]
    remove: Option<Did>,
    /// Print the list
    #[arg(long)]
    list: bool,
    /// Print it as one JSON object
    #[arg(long, requires = "list", conflicts_with_all = ["principal", "remove"])]
    json: bool,
}

/// Changes or prints the list.
///
/// # Errors
/// [`Exit::Usage`] for the router's own DID; [`Exit::Configuration`] for an invalid configuration or list, which is never
/// written over; [`Exit::TryAgain`] when another process changes the list for long; the system's errors.
pub(crate) fn run(args: &RevokeArgs) -> Result<(), Failure> {
    let config = RouterConfig::load(&args.config)
        .map_err(|errors| Failure::because(Exit::Configuration, "invalid configuration", errors))?;
    let file = RevocationFile::new(&config.state_dir);
    let text = if let Some(principal) = args.principal {
        refuse_own(&config, &principal)?;
        revoke(&file, principal, args.reason.clone())?
    } else if let Some(principal) = args.remove {
        restore(&file, &principal)?
    } else {
        let path = file.path();
        let (list, _) = RevocationList::load(&path)
            .map_err(|errors| failure(RevocationError::Invalid(errors)))?;
        if args.json {
            list.to_text()
        } else {
            table(&list, &path)
        }
    };
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::io("cannot write to standard output", error))
}

fn revoke(
    file: &RevocationFile,
    principal: Did,
    reason: Option<String>,
) -> Result<String, Failure> {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let already = file
        .revoke(principal, Revocation { since, reason })
        .map_err(failure)?;
    Ok(match already {
        None => format!(
            "revoked {principal}\nIts connections are closed within 500 ms, without a restart, and it is refused from then on.\n"
        ),
        Some(already) => format!(
            "already revoked {principal}{}\nNothing was changed.\n",
            about(&already)
        ),
    })
}

fn restore(file: &RevocationFile, principal: &Did) -> Result<String, Failure> {
    Ok(match file.restore(principal).map_err(failure)? {
        Some(was) => format!(
            "no longer revoked {principal}{}\nIt is admitted again within 500 ms, without a restart.\n",
            about(&was)
        ),
        None => format!("not revoked {principal}\nNothing was changed.\n"),
    })
}

fn table(list: &RevocationList, path: &Path) -> String {
    if list.is_empty() {
        return format!("nobody is revoked in {}\n", path.display());
    }
    list.iter()
        .map(|(principal, revocation)| format!("{principal}{}\n", about(revocation)))
        .collect()
}

/// Since when, and why.
fn about(revocation: &Revocation) -> String {
    let reason = revocation.reason.as_deref();
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    format!(" since {}{reason}", utc(revocation.since))
}

/// A Unix second as people read it; one past the year 9999 as it is.
fn utc(second: u64) -> String {
    const DAY: u64 = 86_400;
    // Days of 400 years, 100 years and 4 years of the Gregorian calendar, counted from 1 March 0000.
    const ERA: u64 = 146_097;
    const CENTURY: u64 = 36_524;
    const LEAP_CYCLE: u64 = 1_461;
    const EPOCH: u64 = 719_468;
    let days = second / DAY + EPOCH;
    let (era, day_of_era) = (days / ERA, days % ERA);
    let year_of_era = (day_of_era - day_of_era / (LEAP_CYCLE - 1) + day_of_era / CENTURY
        - day_of_era / (ERA - 1))
        / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    if year > 9999 {
        return second.to_string();
    }
    let (hour, minute, second) = (second % DAY / 3600, second % 3600 / 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The router's own key is no principal: it is refused always, and whoever revokes it means another.
fn refuse_own(config: &RouterConfig, principal: &Did) -> Result<(), Failure> {
    let seed = config.router_seed.path().ok();
    match seed.and_then(|seed| Identity::from_seed_file(&seed).ok()) {
        Some(identity) if identity.did() == *principal => Err(Failure::new(
            Exit::Usage,
            "that is the router's own DID, which is refused always; toolsheds revoke a router's key",
        )),
        Some(_) => Ok(()),
        None => {
            // A credential, or a file for the link agent alone. The entry would do no harm.
            let note = "memory-router: router_seed cannot be read here: not compared with the router's own DID\n";
            // A closed standard error is no reason to end.
            drop(io::stderr().write_all(note.as_bytes()));
            Ok(())
        }
    }
}

fn failure(error: RevocationError) -> Failure {
    let exit = match &error {
        RevocationError::System { source, .. } => Exit::of_io(source),
        RevocationError::Busy => Exit::TryAgain,
        RevocationError::Invalid(_) => Exit::Configuration,
        RevocationError::Full => Exit::Failure,
    };
    Failure::because(exit, "the list stays as it is", error)
}

fn did(text: &str) -> Result<Did, String> {
    Did::parse(text).map_err(|_| "not a canonical did:key of an Ed25519 key".to_owned())
}

fn reason(text: &str) -> Result<String, String> {
    parse_reason(text).ok_or_else(|| "not 1..=256 bytes without control characters".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_read_as_dates() {
        for (second, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_760_000_000, "2025-10-09T08:53:20Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
            (253_402_300_800, "253402300800"),
            ((1 << 53) - 1, "9007199254740991"),
        ] {
            assert_eq!(utc(second), date);
        }
    }
}
