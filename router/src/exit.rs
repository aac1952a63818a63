//! How a process of this executable ends: its exit statuses, and which failure gives which.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use memory_ipc::ChannelError;
use rustix::io::Errno;

/// An exit status (`docs/operations.md`, exit statuses). Parents and service managers decide by it: 78 is not worth a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done, or stopped as asked.
    Success = 0,
    /// Failure at run time.
    Failure = 1,
    /// Wrong usage: what clap exits with too.
    Usage = 2,
    /// Something this process depends on is unavailable.
    Unavailable = 69,
    /// A passing condition.
    TryAgain = 75,
    /// The system denied permission.
    Permission = 77,
    /// The configuration, or a file it names, is invalid.
    Configuration = 78,
}

impl Exit {
    /// The status of a system call that failed.
    pub(crate) fn of_io(error: &io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::ACCESS | Errno::PERM) => Self::Permission,
            Some(
                Errno::ADDRINUSE
                | Errno::MFILE
                | Errno::NFILE
                | Errno::NOMEM
                | Errno::NOBUFS
                | Errno::AGAIN
                | Errno::NOSPC,
            ) => Self::TryAgain,
            Some(Errno::ADDRNOTAVAIL) => Self::Unavailable,
            _ => Self::Failure,
        }
    }

    /// The status with this number, if it is one of ours.
    pub(crate) fn from_code(code: i32) -> Option<Self> {
        [
            Self::Success,
            Self::Failure,
            Self::Usage,
            Self::Unavailable,
            Self::TryAgain,
            Self::Permission,
            Self::Configuration,
        ]
        .into_iter()
        .find(|exit| i32::from(*exit as u8) == code)
    }

    /// Whether starting the process again cannot help: somebody has to change something first.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Usage | Self::Permission | Self::Configuration)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a process ends other than well, and the status it ends with.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// What was being done, for the operator.
    what: String,
    #[source]
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self {
            exit,
            what: what.into(),
            source: None,
        }
    }

    pub(crate) fn because(
        exit: Exit,
        what: impl Into<String>,
        source: impl Error + Send + Sync + 'static,
    ) -> Self {
        Self {
            exit,
            what: what.into(),
            source: Some(Box::new(source)),
        }
    }

    /// A system call that failed, with the status that its error number calls for.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::because(Exit::of_io(&source), what, source)
    }

    /// A channel or a named socket that cannot be had.
    pub(crate) fn channel(what: impl Into<String>, source: ChannelError) -> Self {
        let exit = match &source {
            ChannelError::DirectoryNotPrivate { .. } => Exit::Permission,
            ChannelError::PathInvalid { .. } => Exit::Configuration,
            ChannelError::PathInUse { .. } => Exit::TryAgain,
            ChannelError::Bind { source, .. } => Exit::of_io(source),
            _ => Exit::Failure,
        };
        Self::because(exit, what, source)
    }

    /// The whole story in one line: what was being done, and each cause.
    pub(crate) fn story(&self) -> String {
        story(self)
    }
}

/// An error and its causes in one line. Causes that their error already tells are not told twice.
pub(crate) fn story(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_get_the_documented_status() {
        for (errno, exit) in [
            (Errno::ACCESS, Exit::Permission),
            (Errno::PERM, Exit::Permission),
            (Errno::ADDRINUSE, Exit::TryAgain),
            (Errno::MFILE, Exit::TryAgain),
            (Errno::ADDRNOTAVAIL, Exit::Unavailable),
            (Errno::IO, Exit::Failure),
        ] {
            assert_eq!(Exit::of_io(&errno.into()), exit, "{errno:?}");
        }
    }

    #[test]
    fn a_failure_tells_each_cause_once() {
        let cause = io::Error::from(Errno::ADDRINUSE);
        let text = cause.to_string();
        let failure = Failure::io("cannot listen on 127.0.0.1:1", cause);
        assert_eq!(
            failure.story(),
            format!("cannot listen on 127.0.0.1:1: {text}")
        );
        assert_eq!(failure.exit, Exit::TryAgain);
    }
}
