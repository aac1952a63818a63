//! What the spawner shows of itself.

use std::rc::Rc;
use std::time::SystemTime;

use memory_admin::{Family, Snapshot};
use memory_config::WorkerSettings;
use memory_ipc::packets::{REPORTED_BUDGETS, REPORTED_LATENCIES};

use super::Spawner;
use super::agents::Agent;
use crate::survey;

/// Shows the spawner for ever.
pub(super) async fn show(spawner: Rc<Spawner>) {
    let started = SystemTime::now();
    let ipc_dir = spawner.config().ipc_dir.clone();
    survey::show(&ipc_dir, "spawner", || snapshot(&spawner, started)).await;
}

fn snapshot(spawner: &Spawner, started: SystemTime) -> Snapshot {
    let mut snapshot = Snapshot::new("spawner", started);
    let (registry, pool, tally) = (
        spawner.registry.borrow(),
        spawner.pool.borrow(),
        &spawner.tally,
    );
    let [starting, idle, waiting] = pool.budgets();
    for budget in [registry.places(), starting, idle, waiting] {
        snapshot = snapshot.budget(budget);
    }
    let workers = Family::gauge("workers", "Worker processes by what they do")
        .sample(&[("state", "starting")], starting.current())
        .sample(&[("state", "idle")], idle.current())
        .sample(&[("state", "serving")], tally.serving.current())
        .sample(&[("state", "ending")], tally.ending.current());
    let outcomes = tally.outcomes().fold(
        Family::counter(
            "connections_ended_total",
            "Connections that ended, by outcome",
        ),
        |family, (outcome, count)| family.sample(&[("outcome", outcome.as_str())], count),
    );
    let agents = spawner.agents.borrow();
    let agents = Agent::ALL.into_iter().fold(
        Family::gauge(
            "agent_ready",
            "Whether the spawner reaches an agent and it can serve",
        ),
        |family, agent| family.sample(&[("agent", agent.name())], agents.is_ready(agent)),
    );
    let own = [
        workers,
        Family::counter(
            "workers_started_total",
            "Worker processes that were started",
        )
        .value(tally.started.get()),
        Family::counter(
            "worker_start_failures_total",
            "Workers that did not start, or died before they had a connection",
        )
        .value(tally.start_failures.get()),
        Family::counter(
            "worker_breaches_total",
            "Workers that were killed for what they said to the spawner",
        )
        .value(tally.breaches.get()),
        Family::counter(
            "connections_refused_total",
            "Connections that got no worker, by reason",
        )
        .by("reason", &tally.refused),
        outcomes,
        Family::counter(
            "connections_ended_by_reason_total",
            "Connections that ended, by reason",
        )
        .by("reason", &tally.ended),
        agents,
    ];
    for family in own.into_iter().chain(reported(spawner)) {
        snapshot = snapshot.family(family);
    }
    snapshot
}

/// What all workers together say of their connections.
fn reported(spawner: &Spawner) -> Vec<Family> {
    let sums = &spawner.tally.reported;
    let [bytes_in, bytes_out, messages_in, messages_out] =
        sums.carried.each_ref().map(|count| count.get());
    let mut families = vec![
        Family::counter(
            "client_bytes_total",
            "Bytes from clients and to them, inside of TLS",
        )
        .sample(&[("direction", "in")], bytes_in)
        .sample(&[("direction", "out")], bytes_out),
        Family::counter("client_messages_total", "Messages from clients and to them")
            .sample(&[("direction", "in")], messages_in)
            .sample(&[("direction", "out")], messages_out),
        Family::counter(
            "refusals_total",
            "Requests and upgrades that the router refused, by reason",
        )
        .by("reason", &sums.refusals),
    ];
    let helps = [
        "From accept to the upgrade of a connection",
        "From a statement to its answer",
        "From an open to the first byte of its answer",
        "From an ordinary request to the first byte of its answer",
    ];
    for ((name, help), latency) in REPORTED_LATENCIES.iter().zip(helps).zip(&sums.latencies) {
        let family = Family::histogram(&format!("{name}_seconds"), help);
        families.push(family.value(latency.totals()));
    }

    let config = spawner.config();
    let settings = WorkerSettings::from_config(&config, Vec::new(), Vec::new());
    let limits = memory_worker::connection_limits(&settings);
    let [mut current, mut peak, mut limit, mut refused] = [
        Family::gauge(
            "connection_budget_current",
            "What all connections together hold of a budget that each has",
        ),
        Family::gauge(
            "connection_budget_peak",
            "The most that any one connection has held of it",
        ),
        Family::gauge(
            "connection_budget_limit",
            "What each connection may hold of it",
        ),
        Family::counter(
            "connection_budget_refused_total",
            "How often a connection had no room in it",
        ),
    ];
    for ((name, budget), bound) in REPORTED_BUDGETS.iter().zip(&sums.budgets).zip(limits) {
        let labels = [("budget", *name)];
        current = current.sample(&labels, budget.held.current());
        peak = peak.sample(&labels, budget.peak.get());
        refused = refused.sample(&labels, budget.refused.get());
        if let Some(bound) = bound {
            limit = limit.sample(&labels, bound);
        }
    }
    families.extend([current, peak, limit, refused]);
    families
}
