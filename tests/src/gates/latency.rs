//! What a neighbour sees of a gate: how long its requests take.

use std::time::Duration;

use tokio::time::Instant;

use super::acts::Seat;
use crate::raw::{Framing, Speaker};
use crate::report::{Figures, figure};
use crate::stage::Space;
use crate::{GateError, Stage};

/// Somebody who asks for the same small document over and over, and takes the time.
pub(super) struct Neighbour {
    speaker: Speaker,
    seat: Seat,
}

/// How long a row of requests took.
#[derive(Debug, Clone, Default)]
pub(super) struct Times(Vec<Duration>);

impl Neighbour {
    /// A connection of its own, with a session of a space.
    pub(super) async fn arrive(stage: &Stage, space: &Space) -> Result<Self, GateError> {
        let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
        let seat = Seat::take(&mut speaker, space).await?;
        Ok(Self { speaker, seat })
    }

    /// Asks once.
    pub(super) async fn ask(&mut self, times: &mut Times) -> Result<(), GateError> {
        let began = Instant::now();
        self.seat.reads_fixture(&mut self.speaker).await?;
        times.0.push(began.elapsed());
        Ok(())
    }

    /// Asks so many times.
    pub(super) async fn ask_often(&mut self, count: usize) -> Result<Times, GateError> {
        let mut times = Times::default();
        for _ in 0..count {
            self.ask(&mut times).await?;
        }
        Ok(times)
    }

    pub(super) fn leave(self) -> Result<(), GateError> {
        self.speaker.client.reset()
    }
}

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// The time that this share of the requests did not exceed, of 100.
    pub(super) fn percentile(&self, share: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let place = (sorted.len() * share / 100).min(sorted.len().saturating_sub(1));
        sorted.get(place).copied().unwrap_or_default()
    }

    /// Median and 99th percentile, microseconds.
    pub(super) fn figures(&self, name: &str) -> Figures {
        let micros = |share| u64::try_from(self.percentile(share).as_micros()).unwrap_or(u64::MAX);
        let mut figures = figure(&format!("{name}_p50_us"), micros(50));
        figures.extend(figure(&format!("{name}_p99_us"), micros(99)));
        figures
    }

    /// Demands that the median did not move: other programs of the host may slow both rows down.
    pub(super) fn is_like(&self, before: &Self) -> Result<(), GateError> {
        const NOISE: Duration = Duration::from_millis(5);
        let (now, then) = (self.percentile(50), before.percentile(50));
        crate::error::holds(
            "a neighbour's median latency",
            now <= then * 3 + NOISE,
            format!("about {then:?}, as before"),
            format!("{now:?}"),
        )
    }
}
