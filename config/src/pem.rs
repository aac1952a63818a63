//! Certificates and private keys from files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::read::read_bounded;

/// Longest certificate or key file, bytes.
const MAX_PEM_FILE_LEN: u64 = 256 * 1024;
/// Most certificates of one file.
const MAX_CERTIFICATES: usize = 16;
/// First byte of a DER sequence, which certificates and keys are.
const DER_SEQUENCE: u8 = 0x30;

/// A certificate or key file that cannot be used. Never shows what a file holds.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// The file could not be read.
    #[error("{file}: cannot be read: {source}", file = file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A folder, a pipe or a device, but no file.
    #[error("{file}: is not a file", file = file.display())]
    NotAFile {
        /// What is not a file.
        file: PathBuf,
    },
    /// The file is longer than any certificate chain or key.
    #[error("{file}: found more than {MAX_PEM_FILE_LEN} bytes", file = file.display())]
    TooLong {
        /// The file.
        file: PathBuf,
    },
    /// It holds no certificate, or something that is not one.
    #[error("{file}: found no certificate, allowed 1..={MAX_CERTIFICATES} as PEM, or one as DER", file = file.display())]
    NoCertificate {
        /// The file.
        file: PathBuf,
    },
    /// It holds more certificates than allowed.
    #[error("{file}: found more than {MAX_CERTIFICATES} certificates", file = file.display())]
    TooManyCertificates {
        /// The file.
        file: PathBuf,
    },
    /// It holds no private key.
    #[error("{file}: found no private key, allowed PKCS#8, PKCS#1 or SEC1 as PEM, or PKCS#8 as DER", file = file.display())]
    NoPrivateKey {
        /// The file.
        file: PathBuf,
    },
}

/// Certificates of a PEM file in their order, or the one of a DER file; never empty.
///
/// # Errors
/// When the file is unreadable, longer than 256 KiB, or holds none or more than 16.
pub fn load_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let file = || path.to_owned();
    let bytes = read(path)?;
    if bytes.first() == Some(&DER_SEQUENCE) {
        return match der_fills(&bytes) {
            true => Ok(vec![CertificateDer::from(bytes.to_vec())]),
            false => Err(PemError::NoCertificate { file: file() }),
        };
    }
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match parsed {
        Ok(certificates) if certificates.len() > MAX_CERTIFICATES => {
            Err(PemError::TooManyCertificates { file: file() })
        }
        Ok(certificates)
            if !certificates.is_empty() && certificates.iter().all(|each| der_fills(each)) =>
        {
            Ok(certificates)
        }
        _ => Err(PemError::NoCertificate { file: file() }),
    }
}

/// The first private key of a PEM file, or the one of a DER file.
///
/// # Errors
/// When the file is unreadable, longer than 256 KiB, or holds none.
pub fn load_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, PemError> {
    let bytes = read(path)?;
    let key = if bytes.first() == Some(&DER_SEQUENCE) {
        PrivateKeyDer::try_from(bytes.to_vec()).ok()
    } else {
        PrivateKeyDer::from_pem_slice(&bytes).ok()
    };
    key.ok_or_else(|| PemError::NoPrivateKey {
        file: path.to_owned(),
    })
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, PemError> {
    let unreadable = |source| PemError::Unreadable {
        file: path.to_owned(),
        source,
    };
    // Asked first: opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(PemError::NotAFile {
            file: path.to_owned(),
        });
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let bytes = read_bounded(&mut file, MAX_PEM_FILE_LEN).map_err(unreadable)?;
    let bytes = bytes.ok_or_else(|| PemError::TooLong {
        file: path.to_owned(),
    })?;
    Ok(Zeroizing::new(bytes))
}

/// Whether one DER sequence fills `bytes` exactly; what is inside is the verifier's business.
fn der_fills(bytes: &[u8]) -> bool {
    let [DER_SEQUENCE, first, rest @ ..] = bytes else {
        return false;
    };
    let (len, body) = match *first {
        short if short < 0x80 => (usize::from(short), rest),
        long @ 0x81..=0x84 => {
            let Some((len, body)) = rest.split_at_checked(usize::from(long - 0x80)) else {
                return false;
            };
            (
                len.iter()
                    .fold(0, |len, byte| (len << 8) | usize::from(*byte)),
                body,
            )
        }
        _ => return false,
    };
    len == body.len()
}
