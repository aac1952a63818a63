//! What a role does differently under `run`.

use crate::exit::{Exit, Failure};

/// Set by `run` for its children, to its process ID.
pub(crate) const VARIABLE: &str = "MEMORY_ROUTER_SUPERVISOR";

/// Ties the life of this process to that of its supervisor, if it has one: it must not outlive it. Returns whether it has.
///
/// # Errors
/// When the variable holds something else than a process ID, or the supervisor is gone already.
pub(crate) fn follow_supervisor() -> Result<bool, Failure> {
    let Some(value) = std::env::var_os(VARIABLE) else {
        return Ok(false);
    };
    let supervisor: u32 = value
        .to_str()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| {
            Failure::new(
                Exit::Usage,
                format!("{VARIABLE} is for `memory-router run` to set"),
            )
        })?;
    memory_sandbox::die_with_parent(Some(supervisor)).map_err(|error| {
        Failure::because(Exit::Unavailable, "cannot follow the supervisor", error)
    })?;
    Ok(true)
}
