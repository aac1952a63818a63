//! What is checked: the configuration file as far as it could be read, and how far a check may go.

use std::path::Path;

use memory_config::{Examined, FileSource, Places, RouterConfig};

use super::finding::Finding;

/// How far a check goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The configuration file and the files that it names.
    Files,
    /// This host too.
    Host,
    /// As `Host`, by a role at its start: what it cannot have now it cannot do without.
    Start,
}

/// The configuration while it is checked.
pub(crate) struct Subject<'a> {
    pub(crate) file: &'a Path,
    pub(crate) examined: &'a Examined,
    pub(crate) config: &'a RouterConfig,
    pub(crate) reach: Reach,
    /// Unix seconds.
    pub(crate) now: i64,
}

impl Subject<'_> {
    /// Whether the values of all of these keys are the file's own or defaults. A check of a stand-in would tell nonsense.
    pub(crate) fn is_sound(&self, keys: &[&str]) -> bool {
        keys.iter().all(|key| self.examined.is_sound(key))
    }

    pub(crate) fn places(&self) -> &Places {
        &self.examined.places
    }

    /// A finding at a key of the configuration.
    pub(crate) fn at(&self, key: &str, finding: Finding) -> Finding {
        finding.at(self.file, self.places(), key)
    }

    /// Where a key stands, for findings at other files.
    pub(crate) fn cite(&self, key: &str) -> String {
        let file = self.file.display();
        match self.places().of(key) {
            Some((line, column)) => format!("{file}:{line}:{column}"),
            None => format!("{file}, the default"),
        }
    }

    /// The files that the configuration names, by key.
    pub(crate) fn named_files(&self) -> [(&'static str, &FileSource); 3] {
        [
            ("public_certificate", &self.config.public_certificate),
            ("tls_key", &self.config.tls_key),
            ("router_seed", &self.config.router_seed),
        ]
    }
}
