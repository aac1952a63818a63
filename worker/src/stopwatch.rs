//! Time spent in one state, also while it lasts.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// Adds up the times for which something went on.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    past: Cell<Duration>,
    since: Cell<Option<Instant>>,
}

/// Stops its stopwatch when dropped.
#[derive(Debug)]
pub(crate) struct Running<'a>(&'a Stopwatch);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Stopwatch {
    /// It goes on from now, if it did not yet.
    pub(crate) fn start(&self) {
        if self.since.get().is_none() {
            self.since.set(Some(Instant::now()));
        }
    }

    /// It is over, if it went on.
    pub(crate) fn stop(&self) {
        self.past.set(self.total());
        self.since.set(None);
    }

    /// It goes on until the value returned is dropped.
    pub(crate) fn run(&self) -> Running<'_> {
        self.start();
        Running(self)
    }

    /// How long it has gone on since it last began; zero while it does not.
    pub(crate) fn current(&self) -> Duration {
        self.since
            .get()
            .map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// How long it has gone on in all.
    pub(crate) fn total(&self) -> Duration {
        self.past.get().saturating_add(self.current())
    }
}
