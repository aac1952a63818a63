//! Real TLS over loopback: who trusts whom, and what is switched off.

#![allow(clippy::unwrap_used, clippy::panic)] // a failed expectation is the verdict

mod common;

use std::sync::Arc;

use memory_transport::tls::{self, TlsError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, HandshakeKind, ProtocolVersion,
    ServerConfig,
};
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use common::{
    Identity, NAME, authority, deadline, handshake, issued, params, self_signed, tcp_pair,
};

fn pin(certificates: &[&CertificateDer<'static>]) -> Arc<ClientConfig> {
    tls::pinned_client_config(
        certificates
            .iter()
            .map(|&certificate| certificate.clone())
            .collect(),
    )
    .unwrap()
}

/// Runs a handshake that the client must refuse, and gives its reason.
async fn refused(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    name: &str,
) -> CertificateError {
    let (client, server) = handshake(client, server, name).await;
    assert!(server.is_err() || client.is_err());
    match client.map(drop).unwrap_err().fault() {
        Some(Error::InvalidCertificate(error)) => error.clone(),
        other => panic!("refused for another reason: {other:?}"),
    }
}

async fn accepted(client: Arc<ClientConfig>, server: Arc<ServerConfig>, name: &str) {
    let (client, server) = handshake(client, server, name).await;
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    client.write_all(b"ping").await.unwrap();
    server.write_all(b"pong").await.unwrap();
    let mut bytes = [0; 4];
    server.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"ping");
    client.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"pong");
}

fn expired() -> CertificateParams {
    let mut params = params(NAME);
    params.not_after = date_time_ymd(2021, 1, 1);
    params
}

fn premature() -> CertificateParams {
    let mut params = params(NAME);
    params.not_before = date_time_ymd(2119, 1, 1);
    params
}

#[tokio::test]
async fn accepts_the_pinned_certificate() {
    let identity = self_signed(params(NAME));
    let other = self_signed(params(NAME));
    accepted(pin(&[&identity.certificate]), identity.server(), NAME).await;
    accepted(
        pin(&[&other.certificate, &identity.certificate]),
        identity.server(),
        NAME,
    )
    .await;
}

#[tokio::test]
async fn accepts_a_pinned_certificate_by_address() {
    let identity = self_signed(params("127.0.0.1"));
    accepted(
        pin(&[&identity.certificate]),
        identity.server(),
        "127.0.0.1",
    )
    .await;
    let error = refused(
        pin(&[&identity.certificate]),
        identity.server(),
        "127.0.0.2",
    )
    .await;
    assert!(
        matches!(error, CertificateError::NotValidForNameContext { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn accepts_a_pinned_certificate_that_calls_itself_authority() {
    // What `openssl req -x509` makes unless told otherwise.
    let mut params = params(NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let identity = self_signed(params);
    accepted(pin(&[&identity.certificate]), identity.server(), NAME).await;
}

#[tokio::test]
async fn accepts_a_pinned_certificate_of_an_unknown_issuer() {
    let identity = issued(params(NAME), &authority());
    accepted(pin(&[&identity.certificate]), identity.server(), NAME).await;
}

#[tokio::test]
async fn refuses_another_certificate() {
    let (identity, other) = (self_signed(params(NAME)), self_signed(params(NAME)));
    let error = refused(pin(&[&other.certificate]), identity.server(), NAME).await;
    assert_eq!(error, CertificateError::UnknownIssuer);
}

#[tokio::test]
async fn refuses_another_certificate_of_the_same_key() {
    let key = KeyPair::generate().unwrap();
    let pinned = params(NAME).self_signed(&key).unwrap().der().clone();
    let mut renewed = params(NAME);
    renewed.not_after = date_time_ymd(2121, 1, 1);
    let certificate = renewed.self_signed(&key).unwrap().der().clone();
    let server = Identity {
        certificate,
        key: key.into(),
    }
    .server();
    assert_eq!(
        refused(pin(&[&pinned]), server, NAME).await,
        CertificateError::UnknownIssuer
    );
}

#[tokio::test]
async fn refuses_a_wrong_name() {
    let identity = self_signed(params("other.test"));
    let error = refused(pin(&[&identity.certificate]), identity.server(), NAME).await;
    assert!(
        matches!(error, CertificateError::NotValidForNameContext { .. }),
        "{error:?}"
    );
    let ca = authority();
    let identity = issued(params("other.test"), &ca);
    let error = refused(pin(&[ca.der()]), identity.server(), NAME).await;
    assert!(
        matches!(error, CertificateError::NotValidForNameContext { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn refuses_outside_the_validity_period() {
    let identity = self_signed(expired());
    assert_eq!(
        refused(pin(&[&identity.certificate]), identity.server(), NAME).await,
        CertificateError::Expired
    );
    let identity = self_signed(premature());
    assert_eq!(
        refused(pin(&[&identity.certificate]), identity.server(), NAME).await,
        CertificateError::NotValidYet
    );
    let ca = authority();
    let identity = issued(expired(), &ca);
    let error = refused(pin(&[ca.der()]), identity.server(), NAME).await;
    assert!(
        matches!(error, CertificateError::ExpiredContext { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn accepts_a_chain_to_a_pinned_authority() {
    let ca = authority();
    let identity = issued(params(NAME), &ca);
    accepted(pin(&[ca.der()]), identity.server(), NAME).await;
    let mut middle = params("intermediate.test");
    middle.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let middle = CertifiedIssuer::signed_by(middle, KeyPair::generate().unwrap(), &ca).unwrap();
    let identity = issued(params(NAME), &middle);
    accepted(
        pin(&[ca.der()]),
        identity.server_with_chain(&[middle.der().clone()]),
        NAME,
    )
    .await;
    assert_eq!(
        refused(pin(&[ca.der()]), identity.server(), NAME).await,
        CertificateError::UnknownIssuer
    );
}

#[tokio::test]
async fn refuses_a_chain_to_another_authority() {
    let (ca, other) = (authority(), authority());
    let identity = issued(params(NAME), &ca);
    let error = refused(pin(&[other.der()]), identity.server(), NAME).await;
    assert!(
        matches!(
            error,
            CertificateError::UnknownIssuer | CertificateError::BadSignature
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_pinned_leaf_vouches_for_nobody() {
    // The holder of a pinned, non-authority key signs a second certificate with it.
    let leaf = CertifiedIssuer::self_signed(params(NAME), KeyPair::generate().unwrap()).unwrap();
    let identity = issued(params(NAME), &leaf);
    assert_eq!(
        refused(pin(&[leaf.der()]), identity.server(), NAME).await,
        CertificateError::UnknownIssuer
    );
    let server = identity.server_with_chain(&[leaf.der().clone()]);
    let (client, _) = handshake(pin(&[leaf.der()]), server, NAME).await;
    let error = client.map(drop).unwrap_err();
    assert!(
        matches!(error.fault(), Some(Error::InvalidCertificate(_))),
        "{error:?}"
    );
}

#[tokio::test]
async fn refuses_a_server_without_the_pinned_key() {
    // Right certificate, wrong key: only the CertificateVerify signature can tell.
    let (identity, thief) = (self_signed(params(NAME)), KeyPair::generate().unwrap());
    let signer = rustls::crypto::ring::sign::any_supported_type(&thief.into()).unwrap();
    let certified = rustls::sign::CertifiedKey::new(vec![identity.certificate.clone()], signer);
    let server =
        tls::server_config(Arc::new(rustls::sign::SingleCertAndKey::from(certified))).unwrap();
    assert_eq!(
        refused(pin(&[&identity.certificate]), server, NAME).await,
        CertificateError::BadSignature
    );
}

#[tokio::test]
async fn root_client_checks_chain_and_name() {
    let ca = authority();
    let client = tls::root_client_config(vec![ca.der().clone()]).unwrap();
    let identity = issued(params(NAME), &ca);
    accepted(client.clone(), identity.server(), NAME).await;
    let error = refused(client.clone(), self_signed(params(NAME)).server(), NAME).await;
    assert_eq!(error, CertificateError::UnknownIssuer);
    let error = refused(client, identity.server(), "other.test").await;
    assert!(
        matches!(error, CertificateError::NotValidForNameContext { .. }),
        "{error:?}"
    );
}

#[test]
fn refuses_to_trust_nothing_or_nonsense() {
    let nonsense = CertificateDer::from(b"-----BEGIN CERTIFICATE-----".to_vec());
    assert!(matches!(
        tls::pinned_client_config(Vec::new()),
        Err(TlsError::NoCertificate)
    ));
    assert!(matches!(
        tls::root_client_config(Vec::new()),
        Err(TlsError::NoCertificate)
    ));
    let good = self_signed(params(NAME)).certificate;
    let list = vec![good, nonsense];
    assert!(matches!(
        tls::pinned_client_config(list.clone()),
        Err(TlsError::Certificate { index: 1 })
    ));
    assert!(matches!(
        tls::root_client_config(list),
        Err(TlsError::Certificate { index: 1 })
    ));
}

#[tokio::test]
async fn refuses_a_server_name_that_is_none() {
    let (client, _server) = tcp_pair().await;
    let config = pin(&[&self_signed(params(NAME)).certificate]);
    let result = tls::connect(client, config, "not a name", deadline()).await;
    assert!(matches!(result, Err(TlsError::ServerName)));
}

#[tokio::test]
async fn handshake_ends_at_its_deadline() {
    let (client, server) = tcp_pair().await;
    let identity = self_signed(params(NAME));
    let past = tokio::time::Instant::now();
    let result = tls::accept(server, identity.server(), past).await;
    assert!(matches!(result, Err(TlsError::Timeout)));
    let result = tls::connect(client, pin(&[&identity.certificate]), NAME, past).await;
    assert!(result.is_err());
}

#[tokio::test]
async fn negotiates_alpn() {
    let identity = self_signed(params(NAME));
    let offer = |protocols: &[&str]| {
        let mut config = ClientConfig::clone(&pin(&[&identity.certificate]));
        config.alpn_protocols = protocols
            .iter()
            .map(|protocol| protocol.as_bytes().to_vec())
            .collect();
        handshake(Arc::new(config), identity.server(), NAME)
    };
    for (protocols, chosen) in [
        (&["http/1.1"][..], Some(&b"http/1.1"[..])),
        (&["h2", "http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let (client, server) = offer(protocols).await;
        assert_eq!(client.unwrap().get_ref().1.alpn_protocol(), chosen);
        assert_eq!(server.unwrap().get_ref().1.alpn_protocol(), chosen);
    }
    let (client, server) = offer(&["h2", "http/1.0"]).await;
    let error = client.map(drop).unwrap_err();
    assert_eq!(
        error.fault(),
        Some(&Error::AlertReceived(
            AlertDescription::NoApplicationProtocol
        ))
    );
    let error = server.map(drop).unwrap_err();
    assert_eq!(error.fault(), Some(&Error::NoApplicationProtocol));
}

#[tokio::test]
async fn never_resumes() {
    let identity = self_signed(params(NAME));
    let mut client = ClientConfig::clone(&pin(&[&identity.certificate]));
    // A client that would resume, were it given a ticket.
    client.resumption = rustls::client::Resumption::in_memory_sessions(8);
    client.enable_early_data = true;
    let (client, server_config) = (Arc::new(client), identity.server());
    for _ in 0..2 {
        let (client, server) = handshake(client.clone(), server_config.clone(), NAME).await;
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        server.write_all(b"x").await.unwrap();
        client.read_u8().await.unwrap();
        let session = client.get_ref().1;
        assert_eq!(session.handshake_kind(), Some(HandshakeKind::Full));
        assert_eq!(session.tls13_tickets_received(), 0);
        assert_eq!(session.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    }
}

#[tokio::test]
async fn refuses_tls_1_2() {
    // A TLS 1.2 ClientHello by hand: the library here cannot make one.
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.extend([0]); // no session
    hello.extend([0, 2, 0xc0, 0x2b]); // ECDHE-ECDSA-AES128-GCM-SHA256
    hello.extend([1, 0]); // no compression
    let extensions = [
        &[0, 10, 0, 4, 0, 2, 0, 23][..], // P-256
        &[0, 13, 0, 4, 0, 2, 4, 3],      // ECDSA with P-256 and SHA-256
        &[0, 11, 0, 2, 1, 0],            // uncompressed points
        &[0, 23, 0, 0],                  // extended master secret
    ]
    .concat();
    hello.extend((extensions.len() as u16).to_be_bytes());
    hello.extend(extensions);
    let mut record = vec![22, 3, 1];
    record.extend((hello.len() as u16 + 4).to_be_bytes());
    record.extend([1, 0]);
    record.extend((hello.len() as u16).to_be_bytes());
    record.extend(hello);

    let (mut client, server) = tcp_pair().await;
    client.write_all(&record).await.unwrap();
    let error = tls::accept(server, self_signed(params(NAME)).server(), deadline())
        .await
        .map(drop)
        .unwrap_err();
    assert!(
        matches!(error.fault(), Some(Error::PeerIncompatible(_))),
        "{error:?}"
    );
    let mut alert = Vec::new();
    client.read_to_end(&mut alert).await.unwrap();
    assert_eq!(alert, [21, 3, 3, 0, 2, 2, 70]); // fatal, protocol_version
}
