//! Reading files: opened once, bounded, and known by identity.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::ConfigErrors;
use crate::report::Report;

/// What tells one state of a file from another: a writer that replaces it by rename changes the inode, one that
/// writes in place changes the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Modification time, seconds.
    pub modified_seconds: i64,
    /// Modification time, nanoseconds of the second.
    pub modified_nanoseconds: i64,
    /// Length in bytes.
    pub len: u64,
}

impl FileIdentity {
    /// The identity of the file at `path` now.
    ///
    /// # Errors
    /// When it cannot be examined.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&std::fs::metadata(path)?))
    }
}

impl From<&Metadata> for FileIdentity {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_seconds: metadata.mtime(),
            modified_nanoseconds: metadata.mtime_nsec(),
            len: metadata.len(),
        }
    }
}

/// Reads a text file of at most `max_len` bytes.
pub(crate) fn read_text(path: &Path, max_len: u64) -> Result<String, ConfigErrors> {
    read_text_unless(path, max_len, None)
        .map(|read| read.map_or_else(String::new, |(text, _)| text))
}

/// Reads a text file and its identity, or nothing when it still is the one already `seen`.
///
/// The file is opened once, so that identity and content belong together; a file that changes while it is read is
/// refused.
pub(crate) fn read_text_unless(
    path: &Path,
    max_len: u64,
    seen: Option<&FileIdentity>,
) -> Result<Option<(String, FileIdentity)>, ConfigErrors> {
    let unreadable =
        |error: io::Error| ConfigErrors::of_file(path, describe(&error), "a readable file");
    // Asked first: opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(ConfigErrors::of_file(
            path,
            "something that is not a file",
            "a readable file",
        ));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let identity = FileIdentity::from(&metadata);
    if seen == Some(&identity) {
        return Ok(None);
    }
    let bytes = read_bounded(&mut file, max_len).map_err(unreadable)?;
    let Some(bytes) = bytes else {
        return Err(ConfigErrors::of_file(
            path,
            format!("more than {max_len} bytes"),
            format!("at most {max_len} bytes"),
        ));
    };
    let after = FileIdentity::from(&file.metadata().map_err(unreadable)?);
    if after != identity {
        return Err(ConfigErrors::of_file(
            path,
            "a file that changed while it was read",
            "one replaced by rename",
        ));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        let text = String::from_utf8_lossy(bytes.get(..valid).unwrap_or_default());
        let mut report = Report::new(path, &text);
        report.fault(valid, "", "a byte that is not UTF-8", "UTF-8 text");
        report.into_errors()
    })?;
    Ok(Some((text, identity)))
}

/// Reads to the end; `None` when there is more than `max_len`.
pub(crate) fn read_bounded(source: &mut impl Read, max_len: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    source
        .take(max_len.saturating_add(1))
        .read_to_end(&mut bytes)?;
    let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    Ok((len <= max_len).then_some(bytes))
}

/// An input-output error in a few words, without its number.
pub(crate) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "a file without read permission".to_owned(),
        io::ErrorKind::IsADirectory => "something that is not a file".to_owned(),
        _ => format!("a file that cannot be read ({error})"),
    }
}
