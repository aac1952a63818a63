//! What every worker is told when it starts, as one sealed file that all of them read.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use memory_config::{RouterConfig, WorkerSettings};
use memory_ipc::memfd::{self, MemfdError};

/// Bytes of certificates that a key agent may announce; its own limit per file is 256 KiB.
const MAX_CHAIN_LEN: usize = 512 * 1024;

/// The settings of workers for one announcement of the key agent and one configuration.
#[derive(Debug)]
pub(crate) struct Settings {
    file: OwnedFd,
    /// What the file says.
    json: Vec<u8>,
    certificates: Vec<Vec<u8>>,
    schemes: Vec<u16>,
    unauthenticated: Duration,
}

/// An announcement of the key agent that cannot be passed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("the certificate chain cannot be read, or the settings not written")]
    File(#[from] MemfdError),
    #[error("the certificate chain is malformed")]
    Chain,
    #[error("the settings cannot be written as JSON")]
    Json(#[source] serde_json::Error),
}

impl Settings {
    /// The settings for a chain (a sealed file: each certificate behind its length in four bytes) and the schemes that the
    /// key signs with.
    pub(crate) fn announced(
        config: &RouterConfig,
        chain: OwnedFd,
        schemes: Vec<u16>,
    ) -> Result<Self, SettingsError> {
        let chain = memfd::read(chain, MAX_CHAIN_LEN)?;
        let certificates = split_chain(&chain).ok_or(SettingsError::Chain)?;
        Self::new(config, certificates, schemes)
    }

    /// The settings for the same announcement and another configuration.
    pub(crate) fn configured(&self, config: &RouterConfig) -> Result<Self, SettingsError> {
        Self::new(config, self.certificates.clone(), self.schemes.clone())
    }

    fn new(
        config: &RouterConfig,
        certificates: Vec<Vec<u8>>,
        schemes: Vec<u16>,
    ) -> Result<Self, SettingsError> {
        let settings = WorkerSettings::from_config(config, certificates.clone(), schemes.clone());
        let json = serde_json::to_vec(&settings).map_err(SettingsError::Json)?;
        Ok(Self {
            file: memfd::sealed("worker-settings", &json)?,
            json,
            certificates,
            schemes,
            unauthenticated: config.timeouts.handshake + config.timeouts.authenticate,
        })
    }

    /// How long a worker with these settings lets a connection be unauthenticated.
    pub(crate) fn unauthenticated(&self) -> Duration {
        self.unauthenticated
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether a worker with these settings may serve where the others are in force.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        self.json == other.json
    }
}

/// Takes a chain apart; at least one certificate, none of them empty.
fn split_chain(mut chain: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut certificates = Vec::new();
    while !chain.is_empty() {
        let (length, rest) = chain.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length))
            .ok()
            .filter(|length| *length > 0)?;
        let (certificate, rest) = rest.split_at_checked(length)?;
        certificates.push(certificate.to_vec());
        chain = rest;
    }
    (!certificates.is_empty()).then_some(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_chain_apart() {
        assert_eq!(
            split_chain(&[0, 0, 0, 2, 7, 8, 0, 0, 0, 1, 9]),
            Some(vec![vec![7, 8], vec![9]])
        );
    }

    #[test]
    fn refuses_chains_that_do_not_add_up() {
        for bad in [
            &[][..],
            &[0],
            &[0, 0, 0, 0],
            &[0, 0, 0, 2, 7],
            &[0, 0, 0, 1, 7, 0],
            &[0, 0, 0, 1, 7, 0, 0, 0, 0],
            &[0xff, 0xff, 0xff, 0xff, 7],
        ] {
            assert_eq!(split_chain(bad), None, "{bad:?}");
        }
    }
}
