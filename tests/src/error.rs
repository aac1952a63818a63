//! Why a gate failed, in the words of its reader: what was expected and what came.

use std::fmt::{Debug, Display};
use std::future::Future;
use std::time::Duration;

use tokio::time::timeout;

/// How long anything may take that happens within milliseconds on an idle machine.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// A gate that did not pass.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}: expected {expected}, found {found}{log}")]
pub struct GateError {
    what: String,
    expected: String,
    found: String,
    /// The router's last lines.
    log: String,
}

impl GateError {
    /// `what` is the step or the fact in question.
    pub fn new(what: impl Display, expected: impl Display, found: impl Display) -> Self {
        Self {
            what: what.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
            log: String::new(),
        }
    }

    /// The same, with what the router logged meanwhile, unless that is there already.
    #[must_use]
    pub fn with_log(mut self, lines: impl Display) -> Self {
        if self.log.is_empty() {
            self.log = format!("; the router logged {lines}");
        }
        self
    }

    /// The same, seen as part of a larger step.
    #[must_use]
    pub fn within(mut self, step: impl Display) -> Self {
        self.what = format!("{step}: {}", self.what);
        self
    }
}

/// Turns the error of a step into the gate's.
pub trait Context<T> {
    /// Says which step it was. The step was expected to succeed.
    ///
    /// # Errors
    /// The error, with its step.
    fn during(self, step: impl Display) -> Result<T, GateError>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn during(self, step: impl Display) -> Result<T, GateError> {
        self.map_err(|error| GateError::new(step, "success", error))
    }
}

impl<T> Context<T> for Option<T> {
    fn during(self, step: impl Display) -> Result<T, GateError> {
        self.ok_or_else(|| GateError::new(step, "a value", "none"))
    }
}

/// Demands that two values are equal.
///
/// # Errors
/// When they differ.
pub fn same<T: PartialEq<U> + Debug, U: Debug>(
    what: impl Display,
    found: T,
    expected: U,
) -> Result<(), GateError> {
    if found == expected {
        Ok(())
    } else {
        Err(GateError::new(
            what,
            short(&expected).as_str(),
            short(&found),
        ))
    }
}

/// Demands that a condition holds.
///
/// # Errors
/// When it does not.
pub fn holds(
    what: impl Display,
    condition: bool,
    expected: impl Display,
    found: impl Display,
) -> Result<(), GateError> {
    if condition {
        Ok(())
    } else {
        Err(GateError::new(what, expected, found))
    }
}

/// Bounds a step in time.
///
/// # Errors
/// When it takes longer than [`DEADLINE`].
pub async fn soon<T>(step: impl Display, event: impl Future<Output = T>) -> Result<T, GateError> {
    timeout(DEADLINE, event)
        .await
        .map_err(|_| GateError::new(step, format!("within {DEADLINE:?}"), "nothing"))
}

/// Documents of megabytes do not belong in a message.
fn short(value: &impl Debug) -> String {
    const MOST: usize = 400;
    let mut text = format!("{value:?}");
    if text.len() > MOST {
        let total = text.len();
        text.truncate(text.floor_char_boundary(MOST));
        text = format!("{text}... ({total} bytes)");
    }
    text
}
