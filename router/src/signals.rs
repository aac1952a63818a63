//! The signals that ask a process to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

/// SIGTERM and SIGINT. From its making on, neither ends the process by itself.
#[derive(Debug)]
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn new() -> Result<Self, Failure> {
        let handle =
            |kind| signal(kind).map_err(|error| Failure::io("cannot handle signals", error));
        Ok(Self {
            terminate: handle(SignalKind::terminate())?,
            interrupt: handle(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next of them. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
