//! What `run` shows of the roles that it keeps.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::SystemTime;

use memory_admin::{Family, Snapshot};
use memory_budget::{Budget, Limit, Permit};

use crate::survey;

/// One role, over all its processes.
#[derive(Debug)]
pub(crate) struct Kept {
    role: &'static str,
    starts: Cell<u64>,
    running: Budget,
}

impl Kept {
    pub(crate) fn new(role: &'static str) -> Self {
        Self {
            role,
            starts: Cell::new(0),
            running: Budget::new("running", Limit::Unlimited),
        }
    }

    /// A process of it runs, until the permit is dropped.
    pub(crate) fn started(&self) -> Permit {
        self.starts.set(self.starts.get().saturating_add(1));
        self.running.adopt(1)
    }
}

/// Shows `run` for ever.
pub(crate) async fn show(ipc_dir: PathBuf, kept: Vec<Rc<Kept>>) {
    let started = SystemTime::now();
    survey::show(&ipc_dir, "run", || {
        let running = Family::gauge("role_running", "Whether a process of a role runs");
        let restarts = Family::counter(
            "role_restarts_total",
            "Times that a role was started again after it died",
        );
        let (running, restarts) =
            kept.iter()
                .fold((running, restarts), |(running, restarts), kept| {
                    let labels = [("child", kept.role)];
                    (
                        running.sample(&labels, kept.running.current()),
                        restarts.sample(&labels, kept.starts.get().saturating_sub(1)),
                    )
                });
        Snapshot::new("run", started)
            .family(running)
            .family(restarts)
    })
    .await;
}
