//! What each role is called and gives up before anything else: one function per role, called first thing in `main`.

use memory_sandbox::{SandboxError, set_process_name};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Parses nothing and holds no key; passes public sockets on.
pub(crate) fn listener() -> Result<(), SandboxError> {
    set_process_name(c"mr-listener");
    memory_sandbox::prepare_agent(&[])
}

/// Starts workers; reads nothing of the network.
pub(crate) fn spawner() -> Result<(), SandboxError> {
    set_process_name(c"mr-spawner");
    memory_sandbox::prepare_agent(&[])
}

/// Parses every public byte; keeps its channel, descriptor 0, and nothing else.
pub(crate) fn worker() -> Result<(), SandboxError> {
    set_process_name(c"mr-worker");
    memory_sandbox::prepare_worker()
}

/// Holds the TLS private key.
pub(crate) fn key_agent() -> Result<(), SandboxError> {
    set_process_name(c"mr-key-agent");
    memory_sandbox::prepare_key_holder(&[])
}

/// Holds the router's seed.
pub(crate) fn link_agent() -> Result<(), SandboxError> {
    set_process_name(c"mr-link-agent");
    memory_sandbox::prepare_key_holder(&[])
}

/// Dials toolsheds, and sees no byte of what flows there.
pub(crate) fn directory_broker() -> Result<(), SandboxError> {
    set_process_name(c"mr-broker");
    memory_sandbox::prepare_agent(&[])
}

/// Reads what the other roles show, and serves it on loopback.
pub(crate) fn metrics() -> Result<(), SandboxError> {
    set_process_name(c"mr-metrics");
    memory_sandbox::prepare_agent(&[])
}

/// Starts the other roles.
pub(crate) fn run() -> Result<(), SandboxError> {
    set_process_name(c"mr-run");
    memory_sandbox::prepare_agent(&[])
}

/// Raises this process's own limit of file descriptors to what it is allowed. The customary 1,024 is fewer than the spawner
/// and the agents need for a few hundred connections.
pub(crate) fn raise_descriptor_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(error) = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    ) {
        tracing::warn!(reason = "descriptor-limit", current, maximum, %error, "cannot raise the limit of descriptors");
    }
}
