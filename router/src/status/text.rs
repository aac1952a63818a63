//! What was seen, for people.

use std::collections::BTreeMap;

use memory_admin::latency::quantile;
use memory_admin::{Number, Sample};

use crate::check::calendar;

use super::reading::{Reading, value_of};
use super::table::{Align, Table};

use Align::{Left, Right};

/// Everything, in the order in which one would ask. With a former look, rates since then.
pub(super) fn render(reading: &Reading, former: Option<&Reading>) -> String {
    let mut text = format!("memory-router at {}\n", utc(reading.unix_ms));
    let sections = [
        ("Roles", roles(reading)),
        ("Connections", connections(reading)),
        ("Toolsheds", toolsheds(reading)),
        ("Traffic", traffic(reading, former)),
        ("Latency", latencies(reading, former)),
        ("Refusals and drops", reasons(reading)),
        ("Budgets", budgets(reading)),
        (
            "Budgets that each connection has",
            connection_budgets(reading),
        ),
    ];
    for (heading, table) in sections {
        if !table.is_empty() {
            text.push('\n');
            text.push_str(heading);
            text.push('\n');
            text.push_str(&table.render());
        }
    }
    text
}

fn roles(reading: &Reading) -> Table {
    let mut table = Table::new([
        ("role", Left),
        ("state", Left),
        ("pid", Right),
        ("uptime", Right),
        ("memory", Right),
        ("descriptors", Right),
        ("restarts", Right),
    ]);
    for seen in &reading.seen {
        let restarts = reading.count("role_restarts_total", Some(("child", seen.role)));
        let restarts = restarts.map_or_else(String::new, |count| count.to_string());
        let row = match &seen.state {
            Ok(snapshot) => {
                let uptime = snapshot
                    .now_unix_ms
                    .saturating_sub(snapshot.started_unix_ms);
                let number = |name: &str| reading.of_role(seen.role, name);
                [
                    "up".to_owned(),
                    snapshot.pid.to_string(),
                    lasting(uptime / 1000),
                    number("resident_memory_bytes").map_or_else(String::new, bytes),
                    number("open_descriptors").map_or_else(String::new, |count| count.to_string()),
                ]
            }
            Err(error) => [
                format!("DOWN ({})", error.word()),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ],
        };
        let cells = std::iter::once(seen.role.to_owned()).chain(row);
        table.row(cells.chain([restarts]));
    }
    table
}

/// Connections and workers by state, those of each in one row.
fn connections(reading: &Reading) -> Table {
    let mut table = Table::new([("what", Left), ("state", Left), ("now", Right)]);
    for (name, what) in [("connections", "connections"), ("workers", "workers")] {
        let families = reading.families().filter(|(_, family)| family.name == name);
        for sample in families.flat_map(|(_, family)| &family.samples) {
            let state = value_of(sample, "state").unwrap_or_default().to_owned();
            table.row([what.to_owned(), state, number(&sample.value)]);
        }
    }
    table
}

/// A row for each toolshed, a column for each family that is about toolsheds.
fn toolsheds(reading: &Reading) -> Table {
    let mut columns: Vec<String> = Vec::new();
    let mut rows: BTreeMap<u64, BTreeMap<String, String>> = BTreeMap::new();
    for (_, family) in reading.families() {
        for sample in &family.samples {
            let Some(toolshed) = value_of(sample, "toolshed") else {
                continue;
            };
            let state = value_of(sample, "state");
            if state.is_some() && sample.value != Number::Integer(1) {
                continue;
            }
            let column = column(&family.name, sample);
            let cell = match state {
                Some(state) => state.to_owned(),
                None => measured(&family.name, &sample.value),
            };
            if !columns.contains(&column) {
                columns.push(column.clone());
            }
            let row = rows
                .entry(toolshed.parse().unwrap_or(u64::MAX))
                .or_default();
            row.insert(column, cell);
        }
    }
    let heading = std::iter::once(("toolshed".to_owned(), Right));
    let mut table = Table::new(heading.chain(columns.iter().map(|name| (name.clone(), Right))));
    for (toolshed, row) in rows {
        let cells = columns
            .iter()
            .map(|column| row.get(column).cloned().unwrap_or_default());
        table.row(std::iter::once(toolshed.to_string()).chain(cells));
    }
    table
}

/// The heading of a family about toolsheds: its name without what all have, with labels that tell its numbers apart.
fn column(name: &str, sample: &Sample) -> String {
    let short = name
        .trim_start_matches("link_")
        .trim_start_matches("toolshed_");
    let short = ["_seconds", "_total"]
        .iter()
        .fold(short, |short, suffix| {
            short.strip_suffix(suffix).unwrap_or(short)
        })
        .replace('_', " ");
    let mut labels = sample
        .labels
        .iter()
        .filter(|(label, _)| label != "toolshed" && label != "state");
    match labels.next() {
        Some((_, value)) => format!("{short} {value}"),
        None => short,
    }
}

fn measured(name: &str, value: &Number) -> String {
    match value {
        Number::Float(seconds) if name.ends_with("_seconds") => duration(*seconds),
        Number::Integer(seconds) if name.ends_with("_seconds") => lasting(*seconds),
        Number::Histogram { counts, .. } => {
            quantile(counts, 0.5).map_or_else(|| "-".to_owned(), |micros| duration(micros / 1e6))
        }
        value => number(value),
    }
}

fn traffic(reading: &Reading, former: Option<&Reading>) -> Table {
    let mut table = Table::new([("what", Left), ("in all", Right), ("a second", Right)]);
    let seconds = former.map_or(0.0, |former| reading.seconds_since(former));
    let of = |way| Some(("direction", way));
    for (what, name, label, is_bytes) in [
        ("connections", "connections_accepted_total", None, false),
        ("messages in", "client_messages_total", of("in"), false),
        ("messages out", "client_messages_total", of("out"), false),
        ("bytes in", "client_bytes_total", of("in"), true),
        ("bytes out", "client_bytes_total", of("out"), true),
    ] {
        let Some(total) = reading.count(name, label) else {
            continue;
        };
        let rate = former
            .and_then(|former| former.count(name, label))
            .filter(|_| seconds > 0.0)
            .map(|before| as_f64(total.saturating_sub(before)) / seconds);
        let shown = |number: f64| match is_bytes {
            true => bytes_f64(number),
            false => format!("{number:.1}"),
        };
        table.row([
            what.to_owned(),
            if is_bytes {
                bytes(total)
            } else {
                total.to_string()
            },
            rate.map_or_else(String::new, shown),
        ]);
    }
    table
}

/// With a former look, of what was observed since then, where something was.
fn latencies(reading: &Reading, former: Option<&Reading>) -> Table {
    let mut table = Table::new([
        ("what", Left),
        ("count", Right),
        ("p50", Right),
        ("p99", Right),
        ("of", Left),
    ]);
    for what in memory_ipc::packets::REPORTED_LATENCIES {
        let name = format!("{what}_seconds");
        let Some(all) = reading.latency(&name) else {
            continue;
        };
        let before = former.and_then(|former| former.latency(&name));
        let since: Vec<u64> = before.map_or_else(Vec::new, |before| {
            let pairs = all.iter().zip(before);
            pairs
                .map(|(now, before)| now.saturating_sub(*before))
                .collect()
        });
        let is_busy = since.iter().any(|count| *count > 0);
        let (counts, of) = match is_busy {
            true => (since.as_slice(), "since the last look"),
            false => (all, "since the start"),
        };
        let count: u64 = counts
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count));
        let part = |part| {
            quantile(counts, part).map_or_else(|| "-".to_owned(), |micros| duration(micros / 1e6))
        };
        table.row([
            what.to_owned(),
            count.to_string(),
            part(0.5),
            part(0.99),
            of.to_owned(),
        ]);
    }
    table
}

fn reasons(reading: &Reading) -> Table {
    let mut table = Table::new([
        ("what", Left),
        ("role", Left),
        ("reason", Left),
        ("count", Right),
    ]);
    for (name, role, reason, count) in reading.reasons() {
        let what = name.trim_end_matches("_total").replace('_', " ");
        table.row([what, role.to_owned(), reason.to_owned(), count.to_string()]);
    }
    table
}

fn budgets(reading: &Reading) -> Table {
    let mut table = Table::new([
        ("role", Left),
        ("budget", Left),
        ("current", Right),
        ("peak", Right),
        ("limit", Right),
        ("refused", Right),
        ("", Left),
    ]);
    for snapshot in reading.snapshots() {
        for budget in &snapshot.budgets {
            let scope = budget.scope.iter();
            let scope: String = scope
                .map(|(label, value)| format!(" {label} {value}"))
                .collect();
            table.row([
                snapshot.role.clone(),
                format!("{}{scope}", budget.name),
                budget.current.to_string(),
                budget.peak.to_string(),
                budget
                    .limit
                    .map_or_else(|| "-".to_owned(), |limit| limit.to_string()),
                budget.refused.to_string(),
                if budget.is_full() { "FULL" } else { "" }.to_owned(),
            ]);
        }
    }
    table
}

/// These are of one connection each, so that the sum may pass the limit, and the peak says whether one was full.
fn connection_budgets(reading: &Reading) -> Table {
    let mut table = Table::new([
        ("budget", Left),
        ("all together", Right),
        ("most of one", Right),
        ("limit of one", Right),
        ("refused", Right),
        ("", Left),
    ]);
    for name in memory_ipc::packets::REPORTED_BUDGETS {
        let number = |kind: &str| {
            let family = format!("connection_budget_{kind}");
            reading.count(&family, Some(("budget", name)))
        };
        let (Some(current), Some(peak)) = (number("current"), number("peak")) else {
            continue;
        };
        let limit = number("limit");
        table.row([
            name.to_owned(),
            current.to_string(),
            peak.to_string(),
            limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string()),
            number("refused_total").unwrap_or_default().to_string(),
            match limit {
                Some(limit) if peak >= limit => "was full",
                _ => "",
            }
            .to_owned(),
        ]);
    }
    table
}

fn number(value: &Number) -> String {
    match value {
        Number::Integer(number) => number.to_string(),
        Number::Float(number) => format!("{number:.3}"),
        Number::Histogram { .. } => String::new(),
    }
}

/// Seconds as far as they matter: `3d 4h`, `5m 6s`.
fn lasting(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if days > 0 => format!("{days}d {}h", hours % 24),
        () if hours > 0 => format!("{hours}h {}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m {}s", seconds % 60),
        () => format!("{seconds}s"),
    }
}

/// A measured time, three digits or so.
fn duration(seconds: f64) -> String {
    match seconds.abs() {
        size if size >= 100.0 => {
            let whole = std::time::Duration::try_from_secs_f64(seconds.abs()).unwrap_or_default();
            let sign = if seconds < 0.0 { "-" } else { "" };
            format!("{sign}{}", lasting(whole.as_secs()))
        }
        size if size >= 1.0 || size == 0.0 => format!("{seconds:.1} s"),
        size if size >= 0.001 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{:.0} us", seconds * 1e6),
    }
}

fn bytes(count: u64) -> String {
    bytes_f64(as_f64(count))
}

fn bytes_f64(count: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut units = UNITS.into_iter();
    let mut unit = units.next().unwrap_or_default();
    let mut count = count;
    for larger in units {
        if count < 1024.0 {
            break;
        }
        count /= 1024.0;
        unit = larger;
    }
    match unit {
        "B" => format!("{count:.0} B"),
        unit => format!("{count:.1} {unit}"),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "shown with fewer digits than are kept"
)]
const fn as_f64(number: u64) -> f64 {
    number as f64
}

/// A time of day, seconds, UTC.
fn utc(unix_ms: u64) -> String {
    calendar::utc(i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use memory_admin::{BudgetState, Family, FetchError, Histogram, Snapshot};

    use super::*;
    use crate::survey::Seen;

    fn reading() -> Reading {
        let opens = Histogram::default();
        opens.observe(Duration::from_millis(2));
        let started = SystemTime::now() - Duration::from_secs(65);
        let spawner = Snapshot::new("spawner", started)
            .budget(BudgetState {
                name: "max_workers".to_owned(),
                scope: Vec::new(),
                current: 4,
                peak: 4,
                limit: Some(4),
                refused: 9,
            })
            .family(Family::histogram("open_seconds", "").value(opens.totals()))
            .family(
                Family::counter("refusals_total", "")
                    .sample(&[("reason", "session-limit")], 3_u64)
                    .sample(&[("reason", "drain")], 0_u64),
            )
            .family(
                Family::gauge("connection_budget_current", "")
                    .sample(&[("budget", "sessions")], 30_u64),
            )
            .family(
                Family::gauge("connection_budget_peak", "")
                    .sample(&[("budget", "sessions")], 20_u64),
            )
            .family(
                Family::gauge("connection_budget_limit", "")
                    .sample(&[("budget", "sessions")], 20_u64),
            );
        let link_agent = Snapshot::new("link-agent", started)
            .family(
                Family::gauge("link_state", "")
                    .sample(&[("toolshed", "0"), ("state", "up")], 1_u64)
                    .sample(&[("toolshed", "0"), ("state", "down")], 0_u64)
                    .sample(&[("toolshed", "1"), ("state", "up")], 0_u64)
                    .sample(&[("toolshed", "1"), ("state", "down")], 1_u64),
            )
            .family(
                Family::gauge("link_round_trip_seconds", "").sample(&[("toolshed", "0")], 0.0025),
            );
        let state = |state: Result<Snapshot, FetchError>, role| Seen { role, state };
        Reading::new(vec![
            state(Ok(spawner), "spawner"),
            state(Err(FetchError::Late), "key-agent"),
            state(Ok(link_agent), "link-agent"),
        ])
    }

    /// Words of the line that begins with these.
    fn line<'a>(text: &'a str, begins: &[&str]) -> Vec<&'a str> {
        let lines = text.lines().map(|line| line.split_whitespace().collect());
        let mut found = lines.filter(|words: &Vec<&str>| words.starts_with(begins));
        found
            .next()
            .unwrap_or_else(|| panic!("no {begins:?}: {text}"))
    }

    #[test]
    fn everything_that_was_seen_is_told() {
        let reading = reading();
        assert_eq!(reading.exit(), crate::exit::Exit::TryAgain);
        let text = render(&reading, None);
        assert_eq!(line(&text, &["key-agent"])[1..], ["DOWN", "(late)"]);
        assert_eq!(line(&text, &["spawner", "up"])[3..5], ["1m", "5s"]);
        let budget = line(&text, &["spawner", "max_workers"]);
        assert_eq!(budget[2..], ["4", "4", "4", "9", "FULL"]);
        let sessions = line(&text, &["sessions"]);
        assert_eq!(sessions[1..], ["30", "20", "20", "0", "was", "full"]);
        assert_eq!(
            line(&text, &["refusals"])[1..],
            ["spawner", "session-limit", "3"]
        );
        assert!(!text.contains("drain"), "{text}");
        assert_eq!(line(&text, &["toolshed", "state"])[2..], ["round", "trip"]);
        assert_eq!(line(&text, &["0"])[1..], ["up", "2.5", "ms"]);
        assert_eq!(line(&text, &["1"])[1..], ["down"]);
        assert_eq!(line(&text, &["open", "1"])[6..], ["since", "the", "start"]);
    }

    #[test]
    fn with_a_former_look_latencies_are_of_what_came_since() {
        let (former, now) = (reading(), reading());
        let text = render(&now, Some(&former));
        assert!(text.contains("since the start"), "nothing came: {text}");
        let before = Reading::new(Vec::new());
        assert!(render(&now, Some(&before)).contains("since the start"));
    }

    #[test]
    fn numbers_are_short() {
        for (seconds, expected) in [
            (5, "5s"),
            (65, "1m 5s"),
            (7_265, "2h 1m"),
            (100_000, "1d 3h"),
        ] {
            assert_eq!(lasting(seconds), expected);
        }
        for (count, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
        for (seconds, expected) in [
            (0.0, "0.0 s"),
            (0.000_25, "250 us"),
            (0.012_34, "12.3 ms"),
            (-0.5, "-500.0 ms"),
            (1.25, "1.2 s"),
            (125.0, "2m 5s"),
            (-125.0, "-2m 5s"),
        ] {
            assert_eq!(duration(seconds), expected, "{seconds}");
        }
    }
}
