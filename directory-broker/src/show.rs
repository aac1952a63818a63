//! What the directory broker shows of itself.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::SystemTime;

use memory_admin::{Family, Snapshot, socket_path};

use crate::worker::{Shared, Tally};

const ROLE: &str = "directory-broker";

/// Shows the role for ever to these users.
pub(crate) async fn serve(shared: Rc<Shared>, ipc_dir: PathBuf, allowed: [u32; 2]) {
    let started = SystemTime::now();
    memory_admin::serve(&socket_path(&ipc_dir, ROLE), &allowed, || {
        let shown = Snapshot::new(ROLE, started).budget(&shared.dials);
        let families = directory(&shared).into_iter().chain(sockets(&shared.tally));
        families.fold(shown, Snapshot::family)
    })
    .await;
}

fn directory(shared: &Shared) -> [Family; 4] {
    let (is_usable, spaces, age, failures) = shared.snapshot.borrow().shown();
    let spaces = u64::try_from(spaces).unwrap_or(u64::MAX);
    [
        Family::gauge(
            "directory_usable",
            "Whether the newest version of the directory is the one that opens are placed by",
        )
        .value(is_usable),
        Family::gauge("directory_spaces", "Spaces that the directory lists").value(spaces),
        Family::gauge(
            "directory_age_seconds",
            "How long opens have been placed by this version of the directory",
        )
        .value(age.as_secs_f64()),
        Family::counter(
            "directory_failures_total",
            "Times that the directory became unusable",
        )
        .value(failures),
    ]
}

fn sockets(tally: &Tally) -> [Family; 4] {
    [
        Family::counter(
            "placement_refusals_total",
            "Opens that got no data socket, by reason",
        )
        .by("reason", &tally.refused),
        Family::histogram("dial_seconds", "How long a connection to a toolshed took")
            .value(tally.dialled.totals()),
        Family::counter(
            "dial_failures_total",
            "Connections to a toolshed that did not come about, by reason",
        )
        .by("reason", &tally.failed),
        Family::counter("data_sockets_total", "Data sockets by what became of them")
            .sample(&[("outcome", "committed")], tally.committed.get())
            .sample(&[("outcome", "rolled-back")], tally.rolled_back.get())
            .sample(&[("outcome", "unsettled")], tally.unsettled.get()),
    ]
}
