//! How the listener tells its parent whether clients are served: one line per change on standard output.

use std::io::{self, Write as _};

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announcement {
    /// Connections are accepted.
    Serving,
    /// They are not: an agent is missing, or the offer is not frozen yet.
    Waiting,
}

impl Announcement {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Waiting => "waiting",
        }
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        [Self::Serving, Self::Waiting]
            .into_iter()
            .find(|announcement| announcement.as_str() == line)
    }

    /// Writes it for the parent. A parent that does not listen any more is no reason to stop serving.
    pub(super) fn write(self) {
        let mut output = io::stdout().lock();
        drop(writeln!(output, "{}", self.as_str()).and_then(|()| output.flush()));
    }
}
