//! What is wrong with a file, one entry per fault.

use std::fmt;
use std::path::PathBuf;

/// One fault of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as it was named by the caller.
    pub file: PathBuf,
    /// Line of the fault, from 1; 0 when the fault is the file itself (missing, unreadable, too long).
    pub line: usize,
    /// Column of the fault in characters, from 1; 0 with `line` 0.
    pub column: usize,
    /// Full key path, such as `limits.max_workers` or `toolsheds[2].did`; empty when the fault has none.
    pub key: String,
    /// What the file says there, clipped and with control characters escaped.
    pub found: String,
    /// What it may say.
    pub allowed: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(formatter, "{}:{}:", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(formatter, " {}:", self.key)?;
        }
        write!(formatter, " found {}, allowed {}", self.found, self.allowed)
    }
}

impl std::error::Error for ConfigError {}

/// Every fault of a file, in the order of the file; never empty. Displays one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            fmt::Display::fmt(error, formatter)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl ConfigErrors {
    /// The fault of a file that could not be read at all.
    pub(crate) fn of_file(
        file: &std::path::Path,
        found: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        Self(vec![ConfigError {
            file: file.to_owned(),
            line: 0,
            column: 0,
            key: String::new(),
            found: found.into(),
            allowed: allowed.into(),
        }])
    }
}
