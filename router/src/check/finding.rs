//! What was found: one entry per thing to mend.

use std::fmt;
use std::path::Path;

use memory_config::{ConfigError, Places};
use serde::Serialize;

/// Whether the router can do what its configuration asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// It cannot.
    Error,
    /// It can, but hardly as it was meant.
    Warning,
}

impl Severity {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One thing that is wrong, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// What is wrong, in a few words.
    pub(crate) what: String,
    /// The file that says so; empty when it is the host.
    pub(crate) file: String,
    /// From 1; 0 when it is the file as a whole, a default, or the host.
    pub(crate) line: usize,
    /// In characters, from 1; 0 with `line` 0.
    pub(crate) column: usize,
    /// The key, in full; empty when there is none.
    pub(crate) key: String,
    pub(crate) found: String,
    pub(crate) allowed: String,
    /// What to change.
    pub(crate) mend: String,
    /// Concerns one toolshed: the others can be served all the same, so no role refuses to start over it.
    #[serde(skip)]
    pub(crate) confined: bool,
    /// The loader of the file found it: what is wrong is said by what was found and what is allowed.
    #[serde(skip)]
    of_loader: bool,
}

impl Finding {
    pub(crate) fn error(what: impl Into<String>) -> Self {
        Self::new(Severity::Error, what.into())
    }

    pub(crate) fn warning(what: impl Into<String>) -> Self {
        Self::new(Severity::Warning, what.into())
    }

    fn new(severity: Severity, what: String) -> Self {
        Self {
            severity,
            what,
            file: String::new(),
            line: 0,
            column: 0,
            key: String::new(),
            found: String::new(),
            allowed: String::new(),
            mend: String::new(),
            confined: false,
            of_loader: false,
        }
    }

    /// At a key of a file. A key that the file leaves to its default has no line.
    pub(crate) fn at(mut self, file: &Path, places: &Places, key: impl Into<String>) -> Self {
        self.key = key.into();
        (self.line, self.column) = places.of(&self.key).unwrap_or_default();
        self.file = file.display().to_string();
        self
    }

    pub(crate) fn found(mut self, found: impl Into<String>) -> Self {
        self.found = found.into();
        self
    }

    pub(crate) fn allowed(mut self, allowed: impl Into<String>) -> Self {
        self.allowed = allowed.into();
        self
    }

    pub(crate) fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = mend.into();
        self
    }

    pub(crate) fn confined(mut self) -> Self {
        self.confined = true;
        self
    }

    /// Whether no role may start with it.
    pub(crate) fn is_fatal(&self) -> bool {
        self.severity == Severity::Error && !self.confined
    }

    fn place(&self) -> String {
        match (self.file.as_str(), self.line) {
            ("", _) => String::new(),
            (file, 0) => file.to_owned(),
            (file, line) => format!("{file}:{line}:{}", self.column),
        }
    }

    /// As a paragraph, without an empty line after it.
    pub(crate) fn paragraph(&self) -> String {
        let mut text = format!("{}: {}\n", self.severity.as_str(), self.what);
        let place = match (self.place(), self.key.as_str()) {
            (place, "") => place,
            (place, key) if place.is_empty() => key.to_owned(),
            (place, key) => format!("{place}, {key}"),
        };
        let lines = [
            ("where", place.as_str()),
            ("found", &self.found),
            ("allowed", &self.allowed),
            ("mend", &self.mend),
        ];
        for (name, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
            text.push_str(&format!("  {name:<8} {value}\n"));
        }
        text
    }
}

/// A line, as a role that does not start writes it.
impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place();
        for part in [place.as_str(), self.key.as_str()] {
            if !part.is_empty() {
                write!(formatter, "{part}: ")?;
            }
        }
        if !self.of_loader {
            write!(formatter, "{}: ", self.what)?;
        }
        write!(formatter, "found {}, allowed {}", self.found, self.allowed)
    }
}

impl From<ConfigError> for Finding {
    fn from(error: ConfigError) -> Self {
        let (key, found) = (error.key.as_str(), error.found.as_str());
        let (what, mend) = if error.line == 0 && key.is_empty() {
            (
                "a file that is needed cannot be used",
                "put a good file there".to_owned(),
            )
        } else if found.starts_with("nothing") {
            (
                "something that is required is missing",
                format!("add {key}"),
            )
        } else if found.starts_with("an unknown") {
            (
                "nothing has this name",
                format!("remove {key}, or spell it as what was meant"),
            )
        } else if key.is_empty() {
            (
                "the file is not well-formed",
                "correct the file there".to_owned(),
            )
        } else {
            (
                "a value is not allowed",
                format!("change {key} to what is allowed"),
            )
        };
        Self {
            file: error.file.display().to_string(),
            line: error.line,
            column: error.column,
            mend,
            of_loader: true,
            key: error.key,
            found: error.found,
            allowed: error.allowed,
            ..Self::error(what)
        }
    }
}

/// Findings that keep a role from starting, a line each.
#[derive(Debug, thiserror::Error)]
#[error("{}", lines(.0))]
pub(crate) struct Fatal(pub(crate) Vec<Finding>);

fn lines(findings: &[Finding]) -> String {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_as_a_paragraph_and_as_a_line() {
        let finding = Finding {
            file: "router.toml".to_owned(),
            line: 3,
            column: 8,
            ..Finding::error("the name does not fit")
        };
        let finding = finding.found("a").allowed("b").mend("change it");
        assert_eq!(
            finding.paragraph(),
            "error: the name does not fit\n  where    router.toml:3:8\n  found    a\n  allowed  b\n  mend     change it\n"
        );
        assert_eq!(
            finding.to_string(),
            "router.toml:3:8: the name does not fit: found a, allowed b"
        );
        let host = Finding::warning("no").found("x").allowed("y");
        assert_eq!(host.to_string(), "no: found x, allowed y");
    }
}
