//! Which lines are written, by an environment variable.

use std::env::VarError;

use thiserror::Error;
use tracing_subscriber::EnvFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// What is written when nobody chose.
const DEFAULT_LEVEL: &str = "info";

/// Why a choice of log lines cannot be followed.
#[derive(Debug, Error)]
pub enum LevelError {
    /// A word that is no level.
    #[error(
        "{variable}: found {found:?}, allowed off, error, warn, info, debug, trace, or directives such as \
         \"info,TARGET=debug\""
    )]
    Word {
        /// The variable.
        variable: &'static str,
        /// The word, clipped.
        found: String,
    },
    /// Not Unicode, or a directive that does not parse.
    #[error("{variable}: {cause}")]
    Directive {
        /// The variable.
        variable: &'static str,
        /// What is wrong.
        cause: String,
    },
}

/// The lines that the environment variable `variable` asks for: a level, or directives `target=level`, separated by commas.
/// Unset or empty means `info`.
///
/// # Errors
/// [`LevelError`] for a level that there is not. A word of its own that is no level would otherwise pass for a target, and
/// silence everything else.
pub fn filter(variable: &'static str) -> Result<EnvFilter, LevelError> {
    let text = match std::env::var(variable) {
        Ok(text) if !text.trim().is_empty() => text,
        Ok(_) | Err(VarError::NotPresent) => DEFAULT_LEVEL.to_owned(),
        Err(error) => {
            return Err(LevelError::Directive {
                variable,
                cause: error.to_string(),
            });
        }
    };
    parse(variable, &text)
}

fn parse(variable: &'static str, text: &str) -> Result<EnvFilter, LevelError> {
    for directive in text.split(',') {
        let level = directive.rsplit('=').next().unwrap_or(directive).trim();
        if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            return Err(LevelError::Word {
                variable,
                found: level.chars().take(64).collect(),
            });
        }
    }
    EnvFilter::try_new(text).map_err(|error| LevelError::Directive {
        variable,
        cause: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_directives_are_taken() {
        for text in [
            "off",
            "WARN",
            "info,memory_link_agent=debug",
            "error,memory_router=trace",
        ] {
            assert!(parse("VARIABLE", text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_with_those_that_are() {
        for text in [
            "loud",
            "info,loud",
            "memory_router=loud",
            "memory_router=",
            "a=b=c",
            "info,",
        ] {
            let told = parse("VARIABLE", text).unwrap_err().to_string();
            assert!(told.contains("VARIABLE"), "{told}");
            assert!(
                told.contains("off, error, warn, info, debug, trace"),
                "{told}"
            );
        }
    }
}
