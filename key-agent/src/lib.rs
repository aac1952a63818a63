//! The key agent: holds the private key of the public TLS certificate and signs handshakes with it for the workers.
//!
//! A worker that was taken over can ask for signatures, so the agent knows what it signs: the input of a TLS 1.3 server
//! CertificateVerify (RFC 8446 section 4.4.3) and nothing else, [`MAX_SIGNATURES_PER_WORKER`] times per connection.
//! Anything else on a worker's channel ends that channel and is logged.
#![forbid(unsafe_code)]

mod agent;
mod input;
mod keys;
mod worker_channel;

pub use agent::{KeyAgentError, SOCKET_NAME, run};

/// Signatures that one connection's worker can have. A handshake takes one.
pub const MAX_SIGNATURES_PER_WORKER: u32 = worker_channel::MAX_SIGNATURES;

#[cfg(test)]
mod tests;
