//! What the listener shows of itself.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Instant, SystemTime};

use memory_admin::{Family, Snapshot};

use super::Listener;
use super::socket::AcceptFailure;
use crate::survey;

/// Shows the listener for ever.
pub(super) async fn show(listener: Rc<Listener>, ipc_dir: PathBuf) {
    let started = SystemTime::now();
    survey::show(&ipc_dir, "listener", || snapshot(&listener, started)).await;
}

fn snapshot(listener: &Listener, started: SystemTime) -> Snapshot {
    let now = Instant::now();
    let mut admission = listener.admission.borrow_mut();
    let mut snapshot = Snapshot::new("listener", started);
    snapshot.budgets = admission.budgets(now);
    snapshot.families.extend(admission.families(now));
    let drops = listener.drops.borrow();
    let drops = drops.totals().fold(
        Family::counter(
            "connections_dropped_total",
            "Connections dropped before a byte was read, by reason",
        ),
        |family, (refusal, count)| family.sample(&[("reason", refusal.reason().as_str())], count),
    );
    snapshot.families.push(drops);
    let is_accepting = *listener.accepting.borrow();
    let accepting = Family::gauge("accepting", "Whether clients are accepted").value(is_accepting);
    snapshot.families.push(accepting);
    snapshot.families.extend(listener.counts.families());
    snapshot
}

/// What is counted here and nowhere else.
#[derive(Debug, Default)]
pub(super) struct Counts {
    accepted: Cell<u64>,
    not_handed_over: Cell<u64>,
    health_checks: Cell<u64>,
    /// For want of descriptors, of memory, of something else.
    failures: [Cell<u64>; 3],
}

impl Counts {
    pub(super) fn accepted(&self) {
        add_one(&self.accepted);
    }

    pub(super) fn not_handed_over(&self) {
        add_one(&self.not_handed_over);
    }

    pub(super) fn health_check(&self) {
        add_one(&self.health_checks);
    }

    pub(super) fn accept_failed(&self, failure: AcceptFailure) {
        let [descriptors, memory, other] = &self.failures;
        add_one(match failure {
            AcceptFailure::Descriptors(_) => descriptors,
            AcceptFailure::Memory(_) => memory,
            AcceptFailure::Other(_) => other,
        });
    }

    fn families(&self) -> Vec<Family> {
        let [descriptors, memory, other] = self.failures.each_ref().map(Cell::get);
        vec![
            Family::counter(
                "connections_accepted_total",
                "Connections accepted from the kernel",
            )
            .value(self.accepted.get()),
            Family::counter(
                "connections_not_handed_over_total",
                "Connections that the spawner did not take",
            )
            .value(self.not_handed_over.get()),
            Family::counter(
                "health_checks_total",
                "Connections of a balancer that only looked",
            )
            .value(self.health_checks.get()),
            Family::counter(
                "accept_failures_total",
                "Times that nothing could be accepted, by what was missing",
            )
            .sample(&[("missing", "descriptors")], descriptors)
            .sample(&[("missing", "memory")], memory)
            .sample(&[("missing", "other")], other),
        ]
    }
}

fn add_one(count: &Cell<u64>) {
    count.set(count.get().saturating_add(1));
}
