//! The Ed25519 identity of a router, a toolshed or a principal.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signer, SigningKey};
use memory_wire::Did;
use zeroize::{Zeroize, Zeroizing};

use crate::read::read_bounded;

/// Length of a seed file, bytes: raw, nothing else in it (`docs/protocol.md` section 1).
pub const SEED_LEN: usize = 32;

/// A signing key and its DID. Wiped when dropped; neither shown nor copied.
pub struct Identity {
    key: SigningKey,
    did: Did,
}

impl Identity {
    /// The identity of a seed.
    ///
    /// # Errors
    /// [`IdentityError::UnusableKey`] when the public key has no canonical DID, which no known seed leads to.
    pub fn from_seed(seed: [u8; SEED_LEN]) -> Result<Self, IdentityError> {
        let seed = Zeroizing::new(seed);
        let key = SigningKey::from_bytes(&seed);
        let did = Did::from_key(key.verifying_key().as_bytes())
            .map_err(|_| IdentityError::UnusableKey)?;
        Ok(Self { key, did })
    }

    /// A new identity from 32 bytes of the system's random generator.
    ///
    /// # Errors
    /// As [`Identity::from_seed`].
    pub fn generate(entropy: [u8; SEED_LEN]) -> Result<Self, IdentityError> {
        Self::from_seed(entropy)
    }

    /// The identity of a seed file.
    ///
    /// # Errors
    /// When the file is unreadable or not exactly 32 bytes.
    pub fn from_seed_file(path: &Path) -> Result<Self, IdentityError> {
        let unreadable = |source| IdentityError::Unreadable {
            file: path.to_owned(),
            source,
        };
        let mut file = File::open(path).map_err(unreadable)?;
        let len = file.metadata().map_err(unreadable)?.len();
        let limit = u64::try_from(SEED_LEN).unwrap_or(u64::MAX);
        let bytes = read_bounded(&mut file, limit)
            .map_err(unreadable)?
            .map(Zeroizing::new);
        let wrong = |found| IdentityError::WrongLength {
            file: path.to_owned(),
            found,
        };
        let bytes = bytes.ok_or_else(|| wrong(len))?;
        let mut seed = <[u8; SEED_LEN]>::try_from(bytes.as_slice())
            .map_err(|_| wrong(u64::try_from(bytes.len()).unwrap_or(u64::MAX)))?;
        let identity = Self::from_seed(seed);
        seed.zeroize();
        identity
    }

    /// Who this is.
    pub fn did(&self) -> Did {
        self.did
    }

    /// Signs exactly these bytes. The caller built them: a key holder signs what it understands.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.key.sign(message).to_bytes()
    }

    /// Writes the seed to a new file of mode 0600 and makes it durable. An existing file is never touched; one that could not be
    /// written whole is removed.
    ///
    /// # Errors
    /// When the file exists or cannot be written.
    pub fn write_seed_file(&self, path: &Path) -> Result<(), IdentityError> {
        let failed = |source| IdentityError::Unwritable {
            file: path.to_owned(),
            source,
        };
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        let seed = Zeroizing::new(self.key.to_bytes());
        let written = file
            .write_all(seed.as_slice())
            .and_then(|()| file.sync_all());
        written.map_err(|error| {
            // It would be in the way of the next attempt; what stopped the writing is told in any case.
            drop(std::fs::remove_file(path));
            failed(error)
        })
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Identity")
            .field("did", &self.did)
            .finish_non_exhaustive()
    }
}

/// An identity that cannot be had. Never shows key material.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The seed file could not be read.
    #[error("{file}: cannot be read: {source}", file = file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The seed file is not 32 raw bytes.
    #[error("{file}: found {found} bytes, allowed exactly {SEED_LEN}, raw", file = file.display())]
    WrongLength {
        /// The file.
        file: PathBuf,
        /// Its length in bytes.
        found: u64,
    },
    /// The seed file could not be made.
    #[error("{file}: cannot be written: {source}", file = file.display())]
    Unwritable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The public key has no canonical DID.
    #[error("the key has no canonical DID")]
    UnusableKey,
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn signs_as_its_did() {
        let identity = Identity::from_seed([7; 32]).unwrap();
        let signature = identity.sign(b"bytes");
        assert!(identity.did().verify(b"bytes", &signature));
        assert!(!identity.did().verify(b"bytez", &signature));
        assert_eq!(
            format!("{identity:?}"),
            format!("Identity {{ did: {:?}, .. }}", identity.did())
        );
    }

    #[test]
    fn writes_a_private_seed_file_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seed");
        let identity = Identity::generate([9; 32]).unwrap();
        identity.write_seed_file(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(
            Identity::from_seed_file(&path).unwrap().did(),
            identity.did()
        );
        assert!(matches!(
            identity.write_seed_file(&path),
            Err(IdentityError::Unwritable { .. })
        ));
    }

    #[test]
    fn refuses_other_lengths() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seed");
        for len in [0, 31, 33, 64] {
            std::fs::write(&path, vec![1; len]).unwrap();
            let error = Identity::from_seed_file(&path).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "{}: found {len} bytes, allowed exactly 32, raw",
                    path.display()
                )
            );
        }
        let missing = Identity::from_seed_file(&folder.path().join("none")).unwrap_err();
        assert!(matches!(missing, IdentityError::Unreadable { .. }));
    }
}
