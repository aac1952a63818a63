//! The signals that ask a process to stop.

use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Failure;

/// A signal that comes sooner than this after the first is the same request: `timeout`, terminals and service managers signal
/// a process and its group both.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// SIGTERM and SIGINT, and SIGHUP where nothing is reloaded by it. From its making on, none of them ends the process by itself.
#[derive(Debug)]
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
    requests: Requests,
}

impl StopSignals {
    pub(crate) fn new() -> Result<Self, Failure> {
        let handle =
            |kind| signal(kind).map_err(|error| Failure::io("cannot handle signals", error));
        Ok(Self {
            terminate: handle(SignalKind::terminate())?,
            interrupt: handle(SignalKind::interrupt())?,
            hangup: None,
            requests: Requests::default(),
        })
    }

    /// For a command on a terminal, which it ends with.
    pub(crate) fn of_command() -> Result<Self, Failure> {
        let hangup = signal(SignalKind::hangup())
            .map_err(|error| Failure::io("cannot handle signals", error))?;
        Ok(Self {
            hangup: Some(hangup),
            ..Self::new()?
        })
    }

    /// Waits for the next request to stop. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
                () = hung_up(&mut self.hangup) => {}
            }
            if self.requests.is_new(Instant::now()) {
                return;
            }
        }
    }
}

async fn hung_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

/// Which signals are requests of their own.
#[derive(Debug, Default)]
struct Requests {
    first: Option<Instant>,
}

impl Requests {
    /// Whether a signal at `now` asks for something that no signal has asked for before.
    fn is_new(&mut self, now: Instant) -> bool {
        match self.first {
            None => {
                self.first = Some(now);
                true
            }
            Some(first) => now.saturating_duration_since(first) >= SAME_REQUEST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_soon_after_the_first_is_the_same_request() {
        let start = Instant::now();
        let mut requests = Requests::default();
        assert!(requests.is_new(start));
        assert!(!requests.is_new(start));
        assert!(!requests.is_new(start + SAME_REQUEST - Duration::from_millis(1)));
        assert!(requests.is_new(start + SAME_REQUEST));
        assert!(requests.is_new(start + SAME_REQUEST));
    }
}
