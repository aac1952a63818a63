//! The document that a role shows.

use std::fmt::Display;
use std::time::{SystemTime, UNIX_EPOCH};

use memory_budget::Budget;
use memory_budget::latency::Totals;
use serde::{Deserialize, Serialize};

use crate::{CountBy, process};

/// Names and values that tell samples of one name apart: `("toolshed", "1")`.
pub type Labels = Vec<(String, String)>;

/// A role at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// The role's name, as on the command line: `listener`.
    pub role: String,
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// When it started, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// When this was made, likewise.
    pub now_unix_ms: u64,
    /// Everything that it reserves from.
    pub budgets: Vec<BudgetState>,
    /// Its other numbers.
    pub families: Vec<Family>,
}

impl Snapshot {
    /// One of this process, now, with nothing yet but what any process can tell of itself.
    #[must_use]
    pub fn new(role: &str, started: SystemTime) -> Self {
        Self {
            role: role.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_unix_ms: unix_millis(started),
            now_unix_ms: unix_millis(SystemTime::now()),
            budgets: Vec::new(),
            families: process::families(),
        }
    }

    /// With this budget.
    #[must_use]
    pub fn budget(mut self, budget: impl Into<BudgetState>) -> Self {
        self.budgets.push(budget.into());
        self
    }

    /// With this family. One without samples says that there is nothing to tell, such as no toolshed.
    #[must_use]
    pub fn family(mut self, family: Family) -> Self {
        self.families.push(family);
        self
    }
}

/// Milliseconds since 1970; 0 for what was before.
#[must_use]
pub fn unix_millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// A budget at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetState {
    /// The name of the setting that bounds it, where there is one, and a name of its own otherwise. Part of metrics' labels.
    pub name: String,
    /// Which of several of that name, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Labels,
    /// What is reserved.
    pub current: u64,
    /// The most that has ever been reserved.
    pub peak: u64,
    /// The bound in force; `None` is no bound.
    pub limit: Option<u64>,
    /// How often there was no room.
    pub refused: u64,
}

impl BudgetState {
    /// The state of a budget, under its own name.
    #[must_use]
    pub fn of(budget: memory_budget::Snapshot) -> Self {
        Self {
            name: budget.name.to_owned(),
            scope: Labels::new(),
            current: budget.current,
            peak: budget.peak,
            limit: budget.limit.get(),
            refused: budget.refused,
        }
    }

    /// One of several of its name: this one.
    #[must_use]
    pub fn with(mut self, label: &str, value: impl ToString) -> Self {
        self.scope.push((label.to_owned(), value.to_string()));
        self
    }

    /// Whether nothing more is admitted.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.limit.is_some_and(|limit| self.current >= limit)
    }
}

impl From<memory_budget::Snapshot> for BudgetState {
    fn from(budget: memory_budget::Snapshot) -> Self {
        Self::of(budget)
    }
}

impl From<&Budget> for BudgetState {
    fn from(budget: &Budget) -> Self {
        Self::of(budget.snapshot())
    }
}

/// Numbers of one name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Without `memory_router_` in front, with the unit as its suffix: `link_round_trip_seconds`; a counter ends in `_total`.
    pub name: String,
    /// What it counts, one sentence without its full stop.
    pub help: String,
    /// What may be done with it.
    pub kind: Kind,
    /// The numbers. No two have the same labels.
    pub samples: Vec<Sample>,
}

impl Family {
    /// What only grows while the role lives.
    #[must_use]
    pub fn counter(name: &str, help: &str) -> Self {
        Self::new(name, help, Kind::Counter)
    }

    /// What goes up and down.
    #[must_use]
    pub fn gauge(name: &str, help: &str) -> Self {
        Self::new(name, help, Kind::Gauge)
    }

    /// How long something takes.
    #[must_use]
    pub fn histogram(name: &str, help: &str) -> Self {
        Self::new(name, help, Kind::Histogram)
    }

    fn new(name: &str, help: &str, kind: Kind) -> Self {
        Self {
            name: name.to_owned(),
            help: help.to_owned(),
            kind,
            samples: Vec::new(),
        }
    }

    /// With its only number.
    #[must_use]
    pub fn value(self, value: impl Into<Number>) -> Self {
        self.sample(&[], value)
    }

    /// With a number for each word of `counts`, which is the value of `label`.
    #[must_use]
    pub fn by<K: Ord + Copy + Display>(self, label: &str, counts: &CountBy<K>) -> Self {
        counts
            .all()
            .into_iter()
            .fold(self, |family, (word, count)| {
                family.sample(&[(label, &word.to_string())], count)
            })
    }

    /// With one number more.
    #[must_use]
    pub fn sample(mut self, labels: &[(&str, &str)], value: impl Into<Number>) -> Self {
        self.samples.push(Sample {
            labels: labels
                .iter()
                .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()))
                .collect(),
            value: value.into(),
        });
        self
    }
}

/// What a family's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// They only grow.
    Counter,
    /// They go up and down.
    Gauge,
    /// They are histograms over [`crate::LATENCY_BUCKETS`].
    Histogram,
}

/// One number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// What it is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Labels,
    /// What it is.
    pub value: Number,
}

/// A number, or the numbers of a histogram.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub enum Number {
    /// A count.
    Integer(u64),
    /// A measure; finite.
    Float(f64),
    /// A latency.
    Histogram {
        /// As [`Totals::counts`].
        counts: Vec<u64>,
        /// Seconds of all observations together.
        sum_seconds: f64,
    },
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Integer(number)
    }
}

impl From<u32> for Number {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Self {
        Self::Integer(u64::try_from(number).unwrap_or(u64::MAX))
    }
}

impl From<bool> for Number {
    fn from(holds: bool) -> Self {
        Self::Integer(holds.into())
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<std::time::Duration> for Number {
    /// Seconds.
    fn from(duration: std::time::Duration) -> Self {
        Self::Float(duration.as_secs_f64())
    }
}

impl From<Totals> for Number {
    fn from(totals: Totals) -> Self {
        Self::Histogram {
            counts: totals.counts.to_vec(),
            sum_seconds: std::time::Duration::from_micros(totals.sum_micros).as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use memory_budget::Limit;
    use memory_budget::latency::Histogram;

    use super::*;

    #[test]
    fn a_snapshot_survives_its_journey() {
        let budget = Budget::new("max_workers", Limit::At(2));
        let _held = budget.reserve(2).unwrap();
        assert!(budget.reserve(1).is_err());
        let unlimited = Budget::new("max_spaces", Limit::Unlimited);
        let opens = Histogram::default();
        opens.observe(Duration::from_millis(2));
        let snapshot = Snapshot::new("spawner", SystemTime::now())
            .budget(&budget)
            .budget(BudgetState::of(unlimited.snapshot()).with("toolshed", 1))
            .family(Family::gauge("connections", "Connections").sample(&[("state", "idle")], 3_u64))
            .family(Family::gauge("clock_skew_seconds", "Skew").value(-0.25))
            .family(Family::counter("drops_total", "Drops"))
            .family(Family::histogram("open_seconds", "Opens").value(opens.totals()));
        assert!(snapshot.budgets[0].is_full() && !snapshot.budgets[1].is_full());
        assert_eq!(snapshot.budgets[0].refused, 1);
        let json = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&json).unwrap(), snapshot);
    }

    #[test]
    fn times_before_1970_are_zero() {
        assert_eq!(unix_millis(UNIX_EPOCH - Duration::from_secs(1)), 0);
        assert_eq!(unix_millis(UNIX_EPOCH + Duration::from_secs(1)), 1000);
    }
}
