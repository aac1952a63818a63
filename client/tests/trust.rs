//! Endpoints that are wrong: what a client says of them, and that it does not try for ever.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use memory_client::{
    Client, ClientError, ClientOptions, Ended, Endpoint, Identity, SessionOptions, Topology,
};
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use support::{Act, Fake};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

/// What opening a session at `endpoint` comes to.
async fn open(endpoint: Endpoint) -> ClientError {
    let client = Client::new(endpoint, ClientOptions::default());
    let alice = Arc::new(Identity::from_seed([1; 32]).unwrap());
    let open = client.open(alice.did(), &alice, SessionOptions::default());
    timeout(PATIENCE, open)
        .await
        .expect("open hangs")
        .unwrap_err()
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_final() {
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let other = params.self_signed(&key).unwrap().der().to_vec();
    let endpoint = Endpoint::new("localhost", fake.address, vec![other]).unwrap();
    let error = open(endpoint).await;
    assert!(
        error.to_string().contains("none of those trusted"),
        "{error}"
    );
    let ClientError::Ended(Ended::Failed(cause)) = error else {
        panic!("{error:?}");
    };
    assert!(matches!(*cause, ClientError::Untrusted { .. }), "{cause:?}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_final() {
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let trusted = vec![fake.certificate.clone()];
    let endpoint = Endpoint::new("router.example:8443", fake.address, trusted).unwrap();
    let error = open(endpoint).await;
    assert!(error.to_string().contains("for another name"), "{error}");
}

#[tokio::test]
async fn a_host_that_the_router_does_not_have_is_final_and_told() {
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let trusted = vec![fake.certificate.clone()];
    let endpoint = Endpoint::new("localhost:1", fake.address, trusted).unwrap();
    let error = open(endpoint).await;
    assert!(error.to_string().contains("421: upgrade-host"), "{error}");
}

#[tokio::test]
async fn a_router_that_is_away_shows_in_the_status() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let fake = Fake::start(json!({}), |_, _| Act::Serve).await;
    let endpoint = Endpoint::new("localhost", address, vec![fake.certificate.clone()]).unwrap();
    let client = Client::new(
        endpoint,
        ClientOptions {
            topology: Topology::Shared,
            ..ClientOptions::default()
        },
    );
    let alice = Arc::new(Identity::from_seed([1; 32]).unwrap());
    let session = client
        .mount(alice.did(), &alice, SessionOptions::default())
        .unwrap();
    let told = async {
        loop {
            let status = client.connections();
            if let Some(error) = status.iter().find_map(|each| each.last_error.clone()) {
                return error;
            }
            tokio::task::yield_now().await;
        }
    };
    let error = timeout(PATIENCE, told).await.expect("nothing is told");
    assert!(error.starts_with("connect: "), "{error}");
    assert!(!session.is_open());
}

#[test]
fn a_host_is_a_name() {
    for host in ["", "https://router.example", "router.example:port"] {
        let endpoint = Endpoint::new(host, ("127.0.0.1", 1), Vec::new());
        assert!(matches!(endpoint, Err(ClientError::Usage(_))), "{host}");
    }
}
