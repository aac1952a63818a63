//! The JSON files, certificates and worker settings: what is taken, and the exact words of every fault.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper that panics fails its test"
)]

mod directory;
mod fixture;
mod pem;
mod policy;
mod strict;
mod worker;

use memory_config::{ConfigErrors, Identity};

/// The DID of a key made of equal bytes.
fn did(byte: u8) -> String {
    Identity::from_seed([byte; 32])
        .unwrap()
        .did()
        .as_str()
        .to_owned()
}

/// Each fault as its line.
fn lines(errors: &ConfigErrors) -> Vec<String> {
    errors.0.iter().map(ToString::to_string).collect()
}

/// A self-signed certificate as PEM.
fn certificate(name: &str) -> String {
    rcgen::generate_simple_self_signed([name.to_owned()])
        .unwrap()
        .cert
        .pem()
}
