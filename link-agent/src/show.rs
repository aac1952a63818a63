//! What the link agent shows of itself. A toolshed is its place in the directory.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use memory_admin::{BudgetState, Family, Snapshot, socket_path};

use crate::Shared;
use crate::clock::Moment;
use crate::links::{LINK_STATES, Shown};

/// Shows the role for ever to these users.
pub(crate) async fn serve(shared: Rc<Shared>, allowed: [u32; 2]) {
    let started = SystemTime::now();
    let socket = socket_path(&shared.config.borrow().ipc_dir, "link-agent");
    memory_admin::serve(&socket, &allowed, || {
        let snapshot = Snapshot::new("link-agent", started);
        let refusals = Family::counter(
            "admission_refusals_total",
            "Requests of workers and brokers that the link agent refused, by reason",
        );
        shared
            .agent
            .borrow()
            .show(snapshot, Moment::now().monotonic)
            .family(refusals.by("reason", &shared.refusals))
    })
    .await;
}

/// Numbers that are about no toolshed.
pub(crate) struct Numbers {
    pub(crate) contexts: usize,
    pub(crate) statements: u64,
    pub(crate) revoked: usize,
}

/// With those.
pub(crate) fn agent(snapshot: Snapshot, numbers: &Numbers) -> Snapshot {
    snapshot
        .family(
            Family::gauge("contexts", "Connections that the link agent knows")
                .value(count(numbers.contexts)),
        )
        .family(
            Family::counter("statements_total", "Statements that were accepted")
                .value(numbers.statements),
        )
        .family(
            Family::gauge("revoked_principals", "Principals on the revocation list")
                .value(count(numbers.revoked)),
        )
}

/// With what there is to tell of each link.
pub(crate) fn links<'a>(
    mut snapshot: Snapshot,
    links: impl Iterator<Item = Shown<'a>>,
) -> Snapshot {
    let mut state = Family::gauge(
        "link_state",
        "1 for the state that the link to a toolshed is in",
    );
    let mut age = Family::gauge("link_age_seconds", "How long the link has stood");
    let mut unanswered = Family::gauge(
        "link_unanswered_requests",
        "Control requests that a toolshed owes an answer",
    );
    let mut round_trip = Family::gauge(
        "link_round_trip_seconds",
        "How long the last control request took",
    );
    let mut skew = Family::gauge(
        "toolshed_clock_skew_seconds",
        "By how much a toolshed's clock was ahead at its last greeting",
    );
    let mut epochs = Family::counter("link_epochs_total", "Links that were made to a toolshed");
    let mut refusals = Family::counter(
        "control_refusals_total",
        "Control requests that a toolshed refused",
    );
    let mut timeouts = Family::counter(
        "control_timeouts_total",
        "Control requests that waited too long, to be sent or to be answered",
    );
    let mut answers = Family::histogram(
        "control_request_seconds",
        "From a control request to its answer",
    );
    for link in links {
        let index = link.index.to_string();
        let of = [("toolshed", index.as_str())];
        for known in LINK_STATES {
            let labels = [of[0], ("state", known)];
            state = state.sample(&labels, known == link.state);
        }
        if let Some(stood) = link.age {
            age = age.sample(&of, seconds(stood));
        }
        let history = link.history;
        if let Some(took) = history.last_answer.get() {
            round_trip = round_trip.sample(&of, seconds(took));
        }
        if let Some(ahead) = history.skew.get() {
            skew = skew.sample(&of, signed(ahead));
        }
        unanswered = unanswered.sample(&of, count(link.unanswered));
        epochs = epochs.sample(&of, history.epochs.get());
        refusals = refusals.sample(&of, history.refusals.get());
        timeouts = timeouts.sample(&of, history.timeouts.get());
        answers = answers.sample(&of, history.answers.totals());
        let waiters = BudgetState::from(&history.waiters);
        snapshot = snapshot.budget(waiters.with("toolshed", link.index));
    }
    let families = [
        state, age, unanswered, round_trip, skew, epochs, refusals, timeouts, answers,
    ];
    families.into_iter().fold(snapshot, Snapshot::family)
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// A clock's skew is at most some minutes, or the greeting is refused; whatever it is, this is near enough.
#[expect(clippy::cast_precision_loss, reason = "a skew past 2^53 s is none")]
fn signed(seconds: i64) -> f64 {
    seconds as f64
}
