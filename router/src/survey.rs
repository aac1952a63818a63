//! Roles seen from outside: each shows itself on its admin socket, and whoever may look asks all of them at once.

use std::path::Path;
use std::time::Duration;

use memory_admin::{FetchError, Snapshot, fetch, serve, socket_path};
use memory_config::RouterConfig;
use rustix::process::geteuid;
use tokio::task::JoinSet;

/// Every role that shows itself, from the outside in.
pub(crate) const ROLES: [&str; 7] = [
    "run",
    "listener",
    "spawner",
    "key-agent",
    "link-agent",
    "directory-broker",
    "metrics",
];

/// How long a role may take to answer.
const DEADLINE: Duration = Duration::from_secs(2);

/// Shows this role for ever, to its own user and to root.
pub(crate) async fn show(ipc_dir: &Path, role: &str, snapshot: impl Fn() -> Snapshot) {
    let allowed = [geteuid().as_raw(), 0];
    serve(&socket_path(ipc_dir, role), &allowed, snapshot).await;
}

/// What was seen of a role.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) role: &'static str,
    pub(crate) state: Result<Snapshot, FetchError>,
}

/// Asks every role that this configuration has, all at once, and gives their answers in the order of [`ROLES`].
///
/// A supervisor other than `run` has no socket, and is not missed; nor are the metrics where they are off.
pub(crate) async fn survey(config: &RouterConfig) -> Vec<Seen> {
    let mut asked = JoinSet::new();
    for (place, role) in ROLES.into_iter().enumerate() {
        let path = socket_path(&config.ipc_dir, role);
        let is_optional = match role {
            "run" => true,
            "metrics" => config.metrics_listen.is_none(),
            _ => false,
        };
        if is_optional && !path.exists() {
            continue;
        }
        asked.spawn(async move {
            let state = fetch(&path, DEADLINE).await;
            (place, Seen { role, state })
        });
    }
    let mut seen = asked.join_all().await;
    seen.sort_by_key(|(place, _)| *place);
    seen.into_iter().map(|(_, seen)| seen).collect()
}
