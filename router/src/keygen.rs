//! `keygen` and `did`: making and naming identities.

use std::io;
use std::path::Path;

use memory_config::{Identity, IdentityError, SEED_LEN};

use crate::exit::{Exit, Failure};

/// Makes a seed file of mode 0600 and returns the DID of its identity.
///
/// # Errors
/// When the file exists (a seed is never overwritten: its identity could not be had back) or cannot be made.
pub(crate) fn keygen(out: &Path) -> Result<String, Failure> {
    let mut seed = [0_u8; SEED_LEN];
    getrandom::fill(&mut seed).map_err(|error| {
        Failure::because(Exit::Failure, "the system gave no random bytes", error)
    })?;
    let identity = Identity::from_seed(seed)
        .map_err(|error| Failure::because(Exit::Failure, "the seed gives no identity", error))?;
    identity
        .write_seed_file(out)
        .map_err(|error| failure(error, Exit::Failure))?;
    Ok(identity.did().to_string())
}

/// The DID of a seed file.
///
/// # Errors
/// When the file cannot be read or is not a seed.
pub(crate) fn did(seed: &Path) -> Result<String, Failure> {
    let identity =
        Identity::from_seed_file(seed).map_err(|error| failure(error, Exit::Configuration))?;
    Ok(identity.did().to_string())
}

/// The status of an identity that cannot be had: that of the system's error where there is one, `otherwise` else.
fn failure(error: IdentityError, otherwise: Exit) -> Failure {
    let system =
        std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
    let exit = match system.map(Exit::of_io) {
        None | Some(Exit::Failure) => otherwise,
        Some(exit) => exit,
    };
    Failure::because(exit, "no identity", error)
}
