//! `router.toml`: defaults, ranges, and the exact words of every fault.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper that panics fails its test"
)]

mod examine;
mod faults;
mod reload;
mod values;

use std::path::Path;

use memory_config::{ConfigErrors, RouterConfig};

/// The least that a file must say, on lines 1 to 8.
const REQUIRED: &str = "version = 1\nlisten = [\"127.0.0.1:8443\"]\nhost = \"localhost\"\norigins = []\n\
    directory = \"directory.json\"\npublic_certificate = \"public.pem\"\ntls_key = \"tls.pem\"\nrouter_seed = \"seed\"\n";

fn parse(text: &str) -> Result<RouterConfig, ConfigErrors> {
    RouterConfig::parse(text, Path::new("/etc/memory/router.toml"))
}

/// The faults of a text, without the file's folder.
fn faults(text: &str) -> Vec<String> {
    let errors = RouterConfig::parse(text, Path::new("router.toml")).unwrap_err();
    errors.0.iter().map(ToString::to_string).collect()
}

/// The faults of the required keys with more text after them; the first line after them is line 9.
fn faults_with(more: &str) -> Vec<String> {
    faults(&format!("{REQUIRED}{more}"))
}
