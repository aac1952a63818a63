//! The looking side.

use std::io;
use std::path::Path;
use std::time::Duration;

use memory_budget::latency::LATENCY_COUNTS;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::{Family, Kind, Labels, Number, Snapshot};

/// Bytes of one document at most.
pub const MAX_SNAPSHOT_LEN: usize = 1024 * 1024;

/// Bytes of a name, and of a label's value.
const MAX_NAME_LEN: usize = 256;

/// Why a role was not seen.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nobody listens there: the role does not run, or is only starting.
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// The connection broke.
    #[error("cannot read")]
    Read(#[source] io::Error),
    /// It did not answer in time: it does not run as it should.
    #[error("no answer within the deadline")]
    Late,
    /// More than [`MAX_SNAPSHOT_LEN`] bytes.
    #[error("the answer is over {MAX_SNAPSHOT_LEN} bytes")]
    TooLong,
    /// Nothing, and the end of the stream: the user may not look, or the role ended meanwhile.
    #[error("closed without an answer: another user's, or just ending")]
    Empty,
    /// No snapshot: most likely of another version.
    #[error("the answer is no snapshot")]
    Malformed(#[source] serde_json::Error),
    /// A snapshot that breaks the rules for one.
    #[error("the answer has {0}")]
    Invalid(&'static str),
}

impl FetchError {
    /// The word for a folder that this user may not look into.
    pub const DENIED: &str = "denied";

    /// A word for it: `absent` where nobody listens.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Connect(error) if error.kind() == io::ErrorKind::PermissionDenied => Self::DENIED,
            Self::Connect(_) => "absent",
            Self::Read(_) | Self::Empty => "closed",
            Self::Late => "late",
            Self::TooLong | Self::Malformed(_) | Self::Invalid(_) => "malformed",
        }
    }
}

/// Asks the role that shows itself at `path`, within `deadline` in all.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch(path: &Path, deadline: Duration) -> Result<Snapshot, FetchError> {
    let document = timeout(deadline, read(path))
        .await
        .map_err(|_| FetchError::Late)??;
    if document.len() > MAX_SNAPSHOT_LEN {
        return Err(FetchError::TooLong);
    }
    if document.is_empty() {
        return Err(FetchError::Empty);
    }
    let snapshot: Snapshot = serde_json::from_slice(&document).map_err(FetchError::Malformed)?;
    check(&snapshot).map_err(FetchError::Invalid)?;
    Ok(snapshot)
}

async fn read(path: &Path) -> Result<Vec<u8>, FetchError> {
    let stream = UnixStream::connect(path)
        .await
        .map_err(FetchError::Connect)?;
    let mut document = Vec::new();
    let most = u64::try_from(MAX_SNAPSHOT_LEN).unwrap_or(u64::MAX);
    stream
        .take(most.saturating_add(1))
        .read_to_end(&mut document)
        .await
        .map_err(FetchError::Read)?;
    Ok(document)
}

/// Whether names can be names of metrics, and numbers numbers: whoever shows them writes them into other formats.
fn check(snapshot: &Snapshot) -> Result<(), &'static str> {
    for budget in &snapshot.budgets {
        check_value(&budget.name)?;
        check_labels(&budget.scope)?;
    }
    for family in &snapshot.families {
        check_name(&family.name)?;
        check_family(family)?;
    }
    check_value(&snapshot.role)?;
    check_value(&snapshot.version)
}

fn check_family(family: &Family) -> Result<(), &'static str> {
    for sample in &family.samples {
        check_labels(&sample.labels)?;
        let fits = match (&sample.value, family.kind) {
            (Number::Integer(_), Kind::Counter | Kind::Gauge) => true,
            (Number::Float(number), Kind::Counter | Kind::Gauge) => number.is_finite(),
            (Number::Histogram { counts, .. }, Kind::Histogram) => counts.len() == LATENCY_COUNTS,
            _ => false,
        };
        if !fits {
            return Err("a number of another kind than its family");
        }
    }
    Ok(())
}

fn check_labels(labels: &Labels) -> Result<(), &'static str> {
    for (label, value) in labels {
        check_name(label)?;
        check_value(value)?;
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), &'static str> {
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let begins = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_lowercase());
    if begins && name.len() <= MAX_NAME_LEN && name.bytes().all(is_good) {
        Ok(())
    } else {
        Err("a malformed name")
    }
}

fn check_value(value: &str) -> Result<(), &'static str> {
    if value.len() <= MAX_NAME_LEN && value.chars().all(|char| !char.is_control()) {
        Ok(())
    } else {
        Err("a malformed label")
    }
}
