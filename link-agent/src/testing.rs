//! Helpers of the unit tests; compiled under `#[cfg(test)]` alone.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use memory_config::{Identity, RouterConfig, Toolshed};
use memory_wire::Did;
use memory_wire::ids::Challenge;
use memory_wire::records::{Statement, attach};

use crate::clock::Moment;
use crate::signer::Signer;

pub(crate) const DEPLOYMENT: &str = "test-stage";

pub(crate) fn identity(byte: u8) -> Identity {
    Identity::from_seed([byte; 32]).unwrap()
}

pub(crate) fn did(byte: u8) -> Did {
    identity(byte).did()
}

pub(crate) fn signer() -> Signer {
    Signer::new(identity(250), DEPLOYMENT.to_owned())
}

pub(crate) fn moment() -> Moment {
    Moment {
        monotonic: Instant::now(),
        unix: 1_700_000_000,
    }
}

/// A statement of principal `byte` for `challenge`, issued at `iat` for `lease` seconds.
pub(crate) fn sign_statement(
    byte: u8,
    router: &Signer,
    challenge: &Challenge,
    iat: u64,
    lease: u64,
) -> Vec<u8> {
    let statement = Statement {
        principal: did(byte),
        router: *router.router(),
        deployment: router.deployment().to_owned(),
        challenge: *challenge,
        iat,
        exp: iat + lease,
    };
    let input = statement.signing_input().unwrap();
    let signature = identity(byte).sign(&input);
    attach(input, signature)
}

/// A configuration with `limits` lines in its `[limits]` section.
pub(crate) fn config(limits: &str) -> RouterConfig {
    let text = format!(
        "version = 1\nlisten = [\"127.0.0.1:8443\"]\nhost = \"router.test\"\norigins = []\ndirectory = \"directory.json\"\n\
         public_certificate = \"chain.pem\"\ntls_key = \"key.pem\"\nrouter_seed = \"seed\"\n[limits]\n{limits}\n"
    );
    RouterConfig::parse(&text, Path::new("/nowhere/router.toml")).unwrap()
}

pub(crate) fn toolshed(byte: u8) -> Toolshed {
    Toolshed {
        name: format!("toolshed-{byte}"),
        did: did(byte),
        address: SocketAddr::from(([127, 0, 0, 1], 9000 + u16::from(byte))),
        server_name: "toolshed.test".to_owned(),
        certificate: Vec::new(),
    }
}

/// What a toolshed of the tests can do.
pub(crate) const TOOLSHED_FLAGS: &[u8] = br#"{"codecs":["a@1","b@1"],"connectionAuth":true,"modernCellRep":false,"presenceV1":true,"routedAuthV1":true,"routerEncodingNegotiation":true,"routerRequestCredit":true,"serverExecution":true}"#;

/// What a client of the tests can do.
pub(crate) const CLIENT_FLAGS: &[u8] =
    br#"{"codecs":["b@1","c@1"],"connectionAuth":true,"presenceV1":false,"routedAuthV1":true,"unknown":true}"#;
