//! The TLS private key with its certificate chain: loading, checking that they belong together, signing.

use std::fmt;
use std::sync::Arc;

use memory_config::{FileSource, load_certificates, load_private_key};
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::CertificateDer;
use rustls::sign::{CertifiedKey, SigningKey};

use crate::KeyAgentError;
use crate::input::VerifyInput;

/// Schemes that a TLS 1.3 server may sign its CertificateVerify with, in the order of our preference (RFC 8446 section
/// 4.2.3). RSASSA-PKCS1-v1_5 is not among them: TLS 1.3 forbids it there, although a ring key could make one.
const SCHEMES: [SignatureScheme; 7] = [
    SignatureScheme::ED25519,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
];

/// The key, what it can do, and the chain that vouches for it.
pub(crate) struct TlsKey {
    key: Arc<dyn SigningKey>,
    schemes: Vec<SignatureScheme>,
    chain: Vec<CertificateDer<'static>>,
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TlsKey")
            .field("schemes", &self.schemes)
            .finish_non_exhaustive()
    }
}

/// The key did not sign, although the scheme is one of those it announced.
#[derive(Debug, thiserror::Error)]
#[error("the key did not sign")]
pub(crate) struct SigningFailed(#[source] rustls::Error);

impl TlsKey {
    pub(crate) fn load(certificate: &FileSource, key: &FileSource) -> Result<Self, KeyAgentError> {
        let certificate = certificate.path().map_err(KeyAgentError::Credential)?;
        let key = key.path().map_err(KeyAgentError::Credential)?;
        let chain = load_certificates(&certificate).map_err(KeyAgentError::Certificate)?;
        let key = load_private_key(&key).map_err(KeyAgentError::PrivateKey)?;
        let key = any_supported_type(&key).map_err(KeyAgentError::UnsupportedKey)?;
        Self::of(chain, key)
    }

    fn of(
        chain: Vec<CertificateDer<'static>>,
        key: Arc<dyn SigningKey>,
    ) -> Result<Self, KeyAgentError> {
        let pair = CertifiedKey::new(chain, key);
        pair.keys_match().map_err(KeyAgentError::Mismatch)?;
        let CertifiedKey {
            cert: chain, key, ..
        } = pair;
        let schemes: Vec<_> = SCHEMES
            .into_iter()
            .filter(|scheme| key.choose_scheme(&[*scheme]).is_some())
            .collect();
        if schemes.is_empty() {
            return Err(KeyAgentError::NoScheme);
        }
        Ok(Self {
            key,
            schemes,
            chain,
        })
    }

    /// The schemes that [`TlsKey::sign`] signs with, best first, by their TLS numbers.
    pub(crate) fn scheme_numbers(&self) -> Vec<u16> {
        self.schemes
            .iter()
            .map(|scheme| u16::from(*scheme))
            .collect()
    }

    /// The announced scheme with this TLS number.
    pub(crate) fn scheme(&self, number: u16) -> Option<SignatureScheme> {
        self.schemes
            .iter()
            .copied()
            .find(|scheme| u16::from(*scheme) == number)
    }

    /// Signs the one thing that this key signs.
    pub(crate) fn sign(
        &self,
        scheme: SignatureScheme,
        input: &VerifyInput<'_>,
    ) -> Result<Vec<u8>, SigningFailed> {
        let signer = self.key.choose_scheme(&[scheme]).ok_or_else(|| {
            SigningFailed(rustls::Error::General("scheme not available".to_owned()))
        })?;
        signer.sign(input.as_bytes()).map_err(SigningFailed)
    }

    /// The chain as announced: each certificate (DER) behind its length in four bytes.
    ///
    /// # Errors
    /// [`KeyAgentError::CertificateTooLong`]; a file of that size is not loaded to begin with.
    pub(crate) fn encoded_chain(&self) -> Result<Vec<u8>, KeyAgentError> {
        let mut encoded = Vec::new();
        for certificate in &self.chain {
            let length =
                u32::try_from(certificate.len()).map_err(|_| KeyAgentError::CertificateTooLong)?;
            encoded.extend_from_slice(&length.to_be_bytes());
            encoded.extend_from_slice(certificate);
        }
        Ok(encoded)
    }
}
