//! What was seen, as JSON: the schema stands in `docs/operations.md`.

use std::collections::BTreeMap;

use memory_admin::latency::quantile;
use memory_admin::{Labels, Number};
use serde::Serialize;

use super::reading::Reading;

/// Of the schema. A new member is no new version.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Status<'a> {
    version: u32,
    unix_ms: u64,
    roles: Vec<Role<'a>>,
    budgets: Vec<Budget<'a>>,
    families: Vec<Family<'a>>,
}

#[derive(Serialize)]
struct Role<'a> {
    role: &'a str,
    up: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a str>,
    #[serde(flatten)]
    process: Option<Process<'a>>,
}

#[derive(Serialize)]
struct Process<'a> {
    pid: u32,
    version: &'a str,
    started_unix_ms: u64,
    uptime_ms: u64,
}

#[derive(Serialize)]
struct Budget<'a> {
    role: &'a str,
    name: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    current: u64,
    peak: u64,
    limit: Option<u64>,
    refused: u64,
    full: bool,
}

#[derive(Serialize)]
struct Family<'a> {
    role: &'a str,
    name: &'a str,
    help: &'a str,
    kind: memory_admin::Kind,
    samples: Vec<Sample<'a>>,
}

#[derive(Serialize)]
struct Sample<'a> {
    labels: BTreeMap<&'a str, &'a str>,
    value: Value<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Value<'a> {
    Integer(u64),
    Float(f64),
    Latency {
        counts: &'a [u64],
        sum_seconds: f64,
        p50_seconds: Option<f64>,
        p99_seconds: Option<f64>,
    },
}

/// One object, one line.
pub(super) fn render(reading: &Reading) -> serde_json::Result<String> {
    let status = Status {
        version: VERSION,
        unix_ms: reading.unix_ms,
        roles: roles(reading),
        budgets: budgets(reading),
        families: families(reading),
    };
    Ok(serde_json::to_string(&status)? + "\n")
}

fn roles(reading: &Reading) -> Vec<Role<'_>> {
    let role = |seen: &'_ crate::survey::Seen| (seen.role, seen.state.is_ok());
    reading
        .seen
        .iter()
        .map(|seen| {
            let (role, up) = role(seen);
            Role {
                role,
                up,
                fault: seen.state.as_ref().err().map(|error| error.word()),
                process: seen.state.as_ref().ok().map(|snapshot| Process {
                    pid: snapshot.pid,
                    version: &snapshot.version,
                    started_unix_ms: snapshot.started_unix_ms,
                    uptime_ms: snapshot
                        .now_unix_ms
                        .saturating_sub(snapshot.started_unix_ms),
                }),
            }
        })
        .collect()
}

fn budgets(reading: &Reading) -> Vec<Budget<'_>> {
    let mut all = Vec::new();
    for snapshot in reading.snapshots() {
        all.extend(snapshot.budgets.iter().map(|budget| Budget {
            role: &snapshot.role,
            name: &budget.name,
            labels: labels(&budget.scope),
            current: budget.current,
            peak: budget.peak,
            limit: budget.limit,
            refused: budget.refused,
            full: budget.is_full(),
        }));
    }
    all
}

fn families(reading: &Reading) -> Vec<Family<'_>> {
    reading
        .families()
        .map(|(role, family)| Family {
            role,
            name: &family.name,
            help: &family.help,
            kind: family.kind,
            samples: family
                .samples
                .iter()
                .map(|sample| Sample {
                    labels: labels(&sample.labels),
                    value: value(&sample.value),
                })
                .collect(),
        })
        .collect()
}

fn labels(labels: &Labels) -> BTreeMap<&str, &str> {
    labels
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect()
}

fn value(number: &Number) -> Value<'_> {
    match number {
        Number::Integer(number) => Value::Integer(*number),
        Number::Float(number) => Value::Float(*number),
        Number::Histogram {
            counts,
            sum_seconds,
        } => {
            let seconds = |part| quantile(counts, part).map(|micros| micros / 1e6);
            Value::Latency {
                counts,
                sum_seconds: *sum_seconds,
                p50_seconds: seconds(0.5),
                p99_seconds: seconds(0.99),
            }
        }
    }
}
