//! Key, certificate and seed of the router itself.

use memory_config::{Identity, load_certificates, load_private_key};
use memory_transport::certificate::{Certificate, KeyFault, check_key};
use memory_wire::Did;

use super::calendar::{DAY, length, utc};
use super::files;
use super::finding::Finding;
use super::subject::Subject;

/// How long before its end a certificate is warned about: renewals are commonly tried a month before, so something is
/// wrong then.
pub(super) const RENEWAL: i64 = 14 * DAY;

/// The public certificate and its key.
pub(super) fn pair(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    let config = subject.config;
    let certificate = files::regular(
        subject,
        "public_certificate",
        &config.public_certificate,
        findings,
    );
    let key = files::secret(
        subject,
        "tls_key",
        &config.tls_key,
        config.isolation.key_uid,
        findings,
    );
    let chain = certificate.and_then(|(path, _)| match load_certificates(&path) {
        Ok(chain) => Some(chain),
        Err(error) => {
            findings.push(
                subject
                    .at(
                        "public_certificate",
                        Finding::error("the certificate cannot be read"),
                    )
                    .found(error.to_string())
                    .allowed("a certificate chain, PEM, or one certificate, DER")
                    .mend("put the chain there, the server's own certificate first"),
            );
            None
        }
    });
    let key = key.and_then(|path| match load_private_key(&path) {
        Ok(key) => Some(key),
        Err(error) => {
            findings.push(
                subject
                    .at("tls_key", Finding::error("the private key cannot be read"))
                    .found(error.to_string())
                    .allowed("a private key: PKCS#8, PKCS#1 or SEC1 as PEM, or PKCS#8 as DER")
                    .mend("put the key of public_certificate there"),
            );
            None
        }
    });
    let Some(chain) = chain else { return };
    let parsed: Option<Vec<Certificate>> = chain.iter().map(Certificate::parse).collect();
    match parsed {
        Some(parsed) => public_chain(subject, &parsed, findings),
        None => findings.push(
            subject
                .at(
                    "public_certificate",
                    Finding::error("a certificate cannot be used"),
                )
                .found("something that is no X.509 certificate of version 3")
                .allowed("X.509 certificates")
                .mend("have the certificate made anew"),
        ),
    }
    if let Some(fault) = key.and_then(|key| check_key(chain, &key).err()) {
        let finding = match fault {
            KeyFault::Unsupported => Finding::error("the private key cannot be used"),
            KeyFault::Mismatch => Finding::error("certificate and key do not belong together"),
        };
        findings.push(
            subject
                .at("tls_key", finding)
                .found(fault.to_string())
                .allowed("the key of public_certificate: Ed25519, ECDSA P-256 or P-384, or RSA of 2048 bits and more")
                .mend("replace both files together"),
        );
    }
}

/// Validity, name and order of the public chain.
fn public_chain(subject: &Subject<'_>, chain: &[Certificate], findings: &mut Vec<Finding>) {
    for (index, certificate) in chain.iter().enumerate() {
        let whose = match index {
            0 => "the public certificate".to_owned(),
            index => format!("certificate {} of the public chain", index + 1),
        };
        if let Some(finding) = validity(&whose, certificate, subject.now) {
            findings.push(
                subject
                    .at("public_certificate", finding)
                    .mend("renew it, and replace certificate and key together"),
            );
        }
    }
    let out_of_order = chain
        .windows(2)
        .position(|pair| matches!(pair, [child, parent] if !child.is_issued_by(parent)));
    if let Some(index) = out_of_order {
        findings.push(
            subject
                .at(
                    "public_certificate",
                    Finding::warning("the chain is out of order"),
                )
                .found(format!(
                    "certificate {} is not issued by certificate {}",
                    index + 1,
                    index + 2
                ))
                .allowed("each certificate followed by its issuer's")
                .mend("sort the file, and add what is missing"),
        );
    }
    let Some(first) = chain.first().filter(|_| subject.is_sound(&["host"])) else {
        return;
    };
    let name = host_name(&subject.config.host);
    if !first.is_valid_for(name) {
        findings.push(
            subject
                .at(
                    "public_certificate",
                    Finding::error("the certificate is not for this host"),
                )
                .found(format!("no name that stands for {name:?}"))
                .allowed(format!("a certificate for host ({})", subject.cite("host")))
                .mend("have it made for that name too, or correct host"),
        );
    }
}

/// What is wrong with a certificate's time, if anything.
pub(super) fn validity(whose: &str, certificate: &Certificate, now: i64) -> Option<Finding> {
    let (begin, end) = (certificate.not_before(), certificate.not_after());
    let allowed = "a certificate that is valid now";
    if now < begin {
        let wait = length(begin - now);
        return Some(
            Finding::error(format!("{whose} is not valid yet"))
                .found(format!("valid from {}, in {wait}", utc(begin)))
                .allowed(allowed),
        );
    }
    if now > end {
        let ago = length(now - end);
        return Some(
            Finding::error(format!("{whose} has expired"))
                .found(format!("valid until {}, {ago} ago", utc(end)))
                .allowed(allowed),
        );
    }
    (end - now < RENEWAL).then(|| {
        Finding::warning(format!("{whose} expires soon"))
            .found(format!(
                "valid until {}, for {} more",
                utc(end),
                length(end - now)
            ))
            .allowed(format!("at least {}", length(RENEWAL)))
    })
}

/// The name in a `Host` value, without port and brackets.
fn host_name(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    }
}

/// The router's seed; its DID when it can be had.
pub(super) fn seed(subject: &Subject<'_>, findings: &mut Vec<Finding>) -> Option<Did> {
    let path = files::secret(
        subject,
        "router_seed",
        &subject.config.router_seed,
        subject.config.isolation.link_uid,
        findings,
    )?;
    match Identity::from_seed_file(&path) {
        Ok(identity) => Some(identity.did()),
        Err(error) => {
            findings.push(
                subject
                    .at("router_seed", Finding::error("the seed cannot be used"))
                    .found(error.to_string())
                    .allowed("a file of exactly 32 bytes, raw")
                    .mend("make one with memory-router keygen, and list its DID in every toolshed's policy"),
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_name_out_of_a_host() {
        for (host, name) in [
            ("a.example", "a.example"),
            ("a.example:8443", "a.example"),
            ("10.0.0.1:1", "10.0.0.1"),
            ("[::1]", "::1"),
            ("[::1]:8443", "::1"),
        ] {
            assert_eq!(host_name(host), name);
        }
    }
}
