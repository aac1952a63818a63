//! What a certificate of the operator's own files says: for checks before it is used, with the rules by which it is used.

use std::time::Duration;

use rustls::CertificateError;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::client::verify_server_name;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use thiserror::Error;

use crate::der::CertificateFields;
use crate::tls::PinnedVerifier;

/// An X.509 certificate that was read from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    der: CertificateDer<'static>,
    fields: CertificateFields,
}

impl Certificate {
    /// Reads one; `None` when it is no version 3 certificate that TLS could use.
    pub fn parse(der: &CertificateDer<'static>) -> Option<Self> {
        // An authority needs not be readable as a server's certificate.
        let fields = CertificateFields::parse(der)?;
        (fields.is_authority || ParsedCertificate::try_from(der).is_ok()).then(|| Self {
            der: der.clone(),
            fields,
        })
    }

    /// First valid Unix second.
    pub fn not_before(&self) -> i64 {
        self.fields.not_before
    }

    /// Last valid Unix second.
    pub fn not_after(&self) -> i64 {
        self.fields.not_after
    }

    /// Whether it may vouch for other certificates.
    pub fn is_authority(&self) -> bool {
        self.fields.is_authority
    }

    /// Whether it names `host`, a DNS name or an IP address without brackets, among its subject alternative names.
    pub fn is_valid_for(&self, host: &str) -> bool {
        let name = ServerName::try_from(host);
        let parsed = ParsedCertificate::try_from(&self.der);
        matches!((name, parsed), (Ok(name), Ok(parsed)) if verify_server_name(&parsed, &name).is_ok())
    }

    /// Whether its issuer is the subject of `other`: what makes two neighbours of a chain. Signatures are not looked at.
    pub fn is_issued_by(&self, other: &Self) -> bool {
        let issuer = CertificateFields::names(&self.der).map(|(issuer, _)| issuer);
        let subject = CertificateFields::names(&other.der).map(|(_, subject)| subject);
        issuer.is_some() && issuer == subject
    }
}

/// Why a private key cannot be used with a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyFault {
    /// TLS cannot use a key of this kind or size.
    #[error("a key of a kind that is not supported")]
    Unsupported,
    /// The certificate holds the public key of another one.
    #[error("a key that is not the certificate's")]
    Mismatch,
}

/// Checks that a key can be used, and is that of the first certificate of a chain.
///
/// # Errors
/// [`KeyFault`].
pub fn check_key(
    chain: Vec<CertificateDer<'static>>,
    key: &PrivateKeyDer<'_>,
) -> Result<(), KeyFault> {
    let key = any_supported_type(key).map_err(|_| KeyFault::Unsupported)?;
    CertifiedKey::new(chain, key)
        .keys_match()
        .map_err(|_| KeyFault::Mismatch)
}

/// Whether a client with these pins would trust a server that shows `chain` under `server_name`, at the Unix second `now`.
/// The time of the certificates themselves is left out: it passes, and is told by itself.
pub fn is_pinned(
    pins: &[CertificateDer<'static>],
    chain: &[CertificateDer<'static>],
    server_name: &str,
    now: i64,
) -> bool {
    let Some((end_entity, rest)) = chain.split_first() else {
        return false;
    };
    let (Ok(verifier), Ok(name)) = (
        PinnedVerifier::new(pins.to_vec()),
        ServerName::try_from(server_name),
    ) else {
        return false;
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now).unwrap_or(0)));
    match verifier.verify_server_cert(end_entity, rest, &name, &[], now) {
        Ok(_) => true,
        Err(rustls::Error::InvalidCertificate(fault)) => matches!(
            fault,
            CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }
        ),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ED25519};

    use super::*;

    fn key() -> KeyPair {
        KeyPair::generate_for(&PKCS_ED25519).unwrap()
    }

    fn params(names: &[&str]) -> CertificateParams {
        CertificateParams::new(
            names
                .iter()
                .map(|name| (*name).to_owned())
                .collect::<Vec<_>>(),
        )
        .unwrap()
    }

    #[test]
    fn names_are_matched_as_tls_matches_them() {
        let made = params(&["memory.example", "*.wild.example", "10.0.0.1"])
            .self_signed(&key())
            .unwrap();
        let certificate = Certificate::parse(made.der()).unwrap();
        for good in [
            "memory.example",
            "MEMORY.example",
            "a.wild.example",
            "10.0.0.1",
        ] {
            assert!(certificate.is_valid_for(good), "{good}");
        }
        for bad in [
            "other.example",
            "wild.example",
            "a.b.wild.example",
            "10.0.0.2",
            "",
            "a b",
        ] {
            assert!(!certificate.is_valid_for(bad), "{bad}");
        }
    }

    #[test]
    fn neighbours_of_a_chain_are_known() {
        let mut root = params(&[]);
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.distinguished_name.push(DnType::CommonName, "root");
        let root_key = key();
        let root_der = root.self_signed(&root_key).unwrap();
        let leaf = params(&["a.example"])
            .signed_by(&key(), &Issuer::from_params(&root, &root_key))
            .unwrap();
        let leaf = Certificate::parse(leaf.der()).unwrap();
        let root = Certificate::parse(root_der.der()).unwrap();
        assert!(leaf.is_issued_by(&root) && root.is_issued_by(&root));
        assert!(!root.is_issued_by(&leaf));
        assert!(root.is_authority() && !leaf.is_authority());
        let (pins, chain) = ([root.der.clone()], [leaf.der.clone()]);
        assert!(is_pinned(&pins, &chain, "a.example", 1_800_000_000));
        assert!(is_pinned(&chain, &chain, "a.example", 99_999_999_999));
        assert!(!is_pinned(&pins, &chain, "b.example", 1_800_000_000));
        assert!(!is_pinned(&chain, &pins, "a.example", 1_800_000_000));
        assert!(!is_pinned(&pins, &[], "a.example", 1_800_000_000));
    }

    #[test]
    fn a_key_belongs_to_its_certificate_alone() {
        let (mine, other) = (key(), key());
        let chain = vec![params(&["a"]).self_signed(&mine).unwrap().der().clone()];
        let der = |pair: &KeyPair| PrivateKeyDer::try_from(pair.serialize_der()).unwrap();
        assert_eq!(check_key(chain.clone(), &der(&mine)), Ok(()));
        assert_eq!(
            check_key(chain.clone(), &der(&other)),
            Err(KeyFault::Mismatch)
        );
        let nonsense = PrivateKeyDer::Pkcs8(vec![0x30, 0].into());
        assert_eq!(check_key(chain, &nonsense), Err(KeyFault::Unsupported));
    }
}
