//! What was seen of the roles, as Prometheus' text.

use std::collections::BTreeMap;
use std::fmt;

use memory_admin::{BudgetState, Family, Kind, LATENCY_BUCKETS, Labels, Number, Sample, Snapshot};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

use crate::survey::Seen;

/// In front of every name.
const PREFIX: &str = "memory_router";

/// The text of everything that was seen.
pub(super) fn encode(seen: Vec<Seen>) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Survey(families(seen))));
    let mut text = String::new();
    match prometheus_text::encode(&mut text, &registry) {
        Ok(()) => text,
        // A string takes whatever is written to it.
        Err(fmt::Error) => String::new(),
    }
}

/// Every family once, with the numbers of all roles that have it, each with its role.
fn families(seen: Vec<Seen>) -> Vec<Family> {
    let mut up = Family::gauge("up", "Whether a role answers");
    let mut build = Family::gauge("build_info", "The version of a role; always 1");
    let mut started = Family::gauge(
        "start_time_seconds",
        "When the role's process started, Unix time",
    );
    let mut budgets = Budgets::new();
    let mut rest: BTreeMap<String, Family> = BTreeMap::new();
    for Seen { role, state } in seen {
        let here = [("role", role)];
        up = up.sample(&here, state.is_ok());
        let Ok(snapshot) = state else {
            continue;
        };
        let Snapshot {
            version,
            started_unix_ms,
            budgets: held,
            families,
            ..
        } = snapshot;
        build = build.sample(&[("role", role), ("version", &version)], 1_u64);
        started = started.sample(&here, std::time::Duration::from_millis(started_unix_ms));
        budgets.add(role, held);
        for family in families {
            let merged = rest.entry(family.name.clone()).or_insert_with(|| Family {
                samples: Vec::new(),
                ..family.clone()
            });
            // The same name for another kind of number: a role of another version. One of them has to give way.
            if merged.kind == family.kind {
                let samples = family.samples.into_iter();
                merged
                    .samples
                    .extend(samples.map(|sample| of_role(role, sample)));
            }
        }
    }
    let mut all = vec![up, build, started];
    all.extend(budgets.0);
    all.extend(rest.into_values());
    all
}

fn of_role(role: &str, mut sample: Sample) -> Sample {
    sample
        .labels
        .insert(0, ("role".to_owned(), role.to_owned()));
    sample
}

/// Budgets: what is held, the most that was, what may be, and how often there was no room.
struct Budgets([Family; 4]);

impl Budgets {
    fn new() -> Self {
        Self([
            Family::gauge("budget_current", "What is held of a budget"),
            Family::gauge("budget_peak", "The most that has been held of it"),
            Family::gauge(
                "budget_limit",
                "What may be held of it; absent where there is no bound",
            ),
            Family::counter("budget_refused_total", "How often there was no room in it"),
        ])
    }

    fn add(&mut self, role: &str, budgets: Vec<BudgetState>) {
        let [current, peak, limit, refused] = &mut self.0;
        for budget in budgets {
            let mut labels: Labels = vec![
                ("role".to_owned(), role.to_owned()),
                ("budget".to_owned(), budget.name),
            ];
            labels.extend(budget.scope);
            let numbers = [
                (&mut *current, Some(budget.current)),
                (&mut *peak, Some(budget.peak)),
                (&mut *limit, budget.limit),
                (&mut *refused, Some(budget.refused)),
            ];
            for (family, number) in numbers {
                if let Some(number) = number {
                    family.samples.push(Sample {
                        labels: labels.clone(),
                        value: Number::Integer(number),
                    });
                }
            }
        }
    }
}

#[derive(Debug)]
struct Survey(Vec<Family>);

impl Collector for Survey {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Those without samples too: that there is nothing to tell is something.
        for family in &self.0 {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            // The encoder writes the suffix itself.
            let name = match family.kind {
                Kind::Counter => family.name.strip_suffix("_total").unwrap_or(&family.name),
                Kind::Gauge | Kind::Histogram => &family.name,
            };
            let mut metric = encoder.encode_descriptor(name, &family.help, None, kind)?;
            for sample in &family.samples {
                let labels = sample.labels.as_slice();
                write(metric.encode_family(&labels)?, family.kind, &sample.value)?;
            }
        }
        Ok(())
    }
}

fn write(mut metric: MetricEncoder<'_>, kind: Kind, value: &Number) -> fmt::Result {
    const NO_EXEMPLAR: Option<&Exemplar<NoLabelSet, f64>> = None;
    match (kind, value) {
        (Kind::Counter, Number::Integer(number)) => metric.encode_counter(number, NO_EXEMPLAR),
        (Kind::Counter, Number::Float(number)) => metric.encode_counter(number, NO_EXEMPLAR),
        (Kind::Gauge, Number::Integer(number)) => metric.encode_gauge(number),
        (Kind::Gauge, Number::Float(number)) => metric.encode_gauge(number),
        (
            Kind::Histogram,
            Number::Histogram {
                counts,
                sum_seconds,
            },
        ) => {
            let bounds = LATENCY_BUCKETS
                .iter()
                .map(|micros| std::time::Duration::from_micros(*micros).as_secs_f64())
                .chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(counts.iter().copied()).collect();
            let count = counts
                .iter()
                .fold(0, |sum: u64, count| sum.saturating_add(*count));
            metric.encode_histogram::<NoLabelSet>(*sum_seconds, count, &buckets, None)
        }
        // `fetch` lets no other pair through.
        _ => Ok(()),
    }
}
