//! Where a file's content comes from.

use std::path::{Path, PathBuf};

use crate::address::parse_host;

/// Prefix of a file value that names a credential of the service manager.
const CREDENTIAL_PREFIX: &str = "credential:";

/// A file that a key names: a path, or a credential of the service manager.
///
/// A credential is looked up when the file is used, not when the configuration is loaded: the service manager gives
/// each role its own credentials only, and a role must not fail over a file that it never reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSource {
    /// A path; a relative one was already joined to the configuration file's folder.
    Path(PathBuf),
    /// `credential:NAME`, a file name inside the credential folder.
    Credential(String),
}

impl FileSource {
    /// The path to open.
    ///
    /// # Errors
    /// When it is a credential and the service manager gave this process no credential folder.
    pub fn path(&self) -> Result<PathBuf, CredentialError> {
        self.path_in(credentials_directory().as_deref())
    }

    /// As [`FileSource::path`], with the credential folder given.
    ///
    /// # Errors
    /// When it is a credential and there is no folder.
    pub fn path_in(&self, credentials: Option<&Path>) -> Result<PathBuf, CredentialError> {
        match self {
            Self::Path(path) => Ok(path.clone()),
            Self::Credential(name) => match credentials {
                Some(folder) => Ok(folder.join(name)),
                None => Err(CredentialError { name: name.clone() }),
            },
        }
    }

    /// Reads a file value; relative paths start at `folder`.
    pub(crate) fn parse(text: &str, folder: &Path) -> Option<Self> {
        match text.strip_prefix(CREDENTIAL_PREFIX) {
            Some(name) => is_credential_name(name).then(|| Self::Credential(name.to_owned())),
            None => parse_path(text, folder).map(Self::Path),
        }
    }
}

impl Default for FileSource {
    fn default() -> Self {
        Self::Path(PathBuf::new())
    }
}

impl std::fmt::Display for FileSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => std::fmt::Display::fmt(&path.display(), formatter),
            Self::Credential(name) => write!(formatter, "{CREDENTIAL_PREFIX}{name}"),
        }
    }
}

/// A credential is named and the service manager passed no credential folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("credential:{name}: no credential folder ($CREDENTIALS_DIRECTORY is not set)")]
pub struct CredentialError {
    /// The name after `credential:`.
    pub name: String,
}

/// Where placement comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectorySource {
    /// A directory file, `docs/protocol.md` section 6.5. Never a credential: those are not refreshed while a role runs.
    File(PathBuf),
    /// An etcd cluster.
    Etcd {
        /// `host:port` of each member, in the order of the file.
        endpoints: Vec<String>,
        /// Key prefix, starting with `/`.
        prefix: String,
    },
}

impl DirectorySource {
    /// Reads a path or `etcd://host:port[,host:port]/prefix`.
    pub(crate) fn parse(text: &str, folder: &Path) -> Option<Self> {
        let Some(rest) = text.strip_prefix("etcd://") else {
            let plain = !text.starts_with(CREDENTIAL_PREFIX);
            return plain
                .then(|| parse_path(text, folder).map(Self::File))
                .flatten();
        };
        let (members, prefix) = rest.split_at_checked(rest.find('/')?)?;
        let endpoint = |member: &str| {
            parse_host(member).filter(|host| host.contains(':') && !host.ends_with(']'))
        };
        let endpoints: Vec<String> = members.split(',').map(endpoint).collect::<Option<_>>()?;
        let printable = prefix.len() > 1 && prefix.bytes().all(|byte| byte.is_ascii_graphic());
        printable.then(|| Self::Etcd {
            endpoints,
            prefix: prefix.to_owned(),
        })
    }
}

impl Default for DirectorySource {
    fn default() -> Self {
        Self::File(PathBuf::new())
    }
}

/// The service manager's credential folder, from `$CREDENTIALS_DIRECTORY`. The only place where the environment is
/// read.
pub fn credentials_directory() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
}

/// A path; a relative one is joined to `folder`.
pub(crate) fn parse_path(text: &str, folder: &Path) -> Option<PathBuf> {
    (!text.is_empty() && !text.contains('\0')).then(|| folder.join(text))
}

/// A credential is one file name: no separator and nothing hidden, so that it cannot leave the folder.
fn is_credential_name(name: &str) -> bool {
    matches!(name.len(), 1..=255)
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_paths_and_credentials() {
        let folder = Path::new("/etc/memory-router");
        let relative = FileSource::parse("tls.pem", folder).unwrap();
        assert_eq!(
            relative.path_in(None).unwrap(),
            Path::new("/etc/memory-router/tls.pem")
        );
        let absolute = FileSource::parse("/a/b", folder).unwrap();
        assert_eq!(absolute.path_in(None).unwrap(), Path::new("/a/b"));
        let credential = FileSource::parse("credential:tls-key", folder).unwrap();
        assert_eq!(
            credential.path_in(Some(Path::new("/run/c"))).unwrap(),
            Path::new("/run/c/tls-key")
        );
        assert_eq!(
            credential.path_in(None).unwrap_err().to_string(),
            "credential:tls-key: no credential folder ($CREDENTIALS_DIRECTORY is not set)"
        );
        for bad in [
            "",
            "credential:",
            "credential:../x",
            "credential:a/b",
            "credential:.x",
            "a\0b",
        ] {
            assert_eq!(FileSource::parse(bad, folder), None, "{bad:?}");
        }
    }

    #[test]
    fn reads_etcd_sources() {
        let folder = Path::new("/");
        let source = DirectorySource::parse("etcd://a:2379,[::1]:2379/memory/x", folder).unwrap();
        let DirectorySource::Etcd { endpoints, prefix } = source else {
            panic!("not etcd")
        };
        assert_eq!(endpoints, ["a:2379", "[::1]:2379"]);
        assert_eq!(prefix, "/memory/x");
        for bad in [
            "etcd://",
            "etcd://a:1",
            "etcd://a/p",
            "etcd://a:1/",
            "etcd://a:1,,b:1/p",
            "etcd://[::1]/p",
            "etcd://a:1/p q",
        ] {
            assert_eq!(DirectorySource::parse(bad, folder), None, "{bad}");
        }
    }
}
