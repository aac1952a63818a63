//! The toolshed under the exercise (`docs/operations.md`): one JSON file in, a ready line out, commands on standard input.

use crate::host::{Host, HostError, HostOptions, Operator};
use memory_config::{
    ConfigErrors, Directory, Fixture, IdentityError, ToolshedLimits, ToolshedPolicy,
};
use memory_wire::Did;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use thiserror::Error;
use tokio::sync::mpsc;

/// Commands that may wait to be carried out. Whoever writes more waits.
const MAX_COMMANDS: usize = 64;

/// Why a fixture did not run.
#[derive(Debug, Error)]
pub enum FixtureError {
    /// The fixture or the directory file is not good.
    #[error("{0}")]
    Config(#[from] ConfigErrors),
    /// The seed is not good.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// The store folder cannot be made.
    #[error("store folder: {0}")]
    Store(#[source] io::Error),
    /// The host did not start.
    #[error("{0}")]
    Host(#[from] HostError),
    /// The standard output is gone.
    #[error("standard output: {0}")]
    Output(#[source] io::Error),
}

/// Runs a toolshed as the file at `path` says, until standard input ends. Standard output carries the ready line and one
/// acknowledgement per command, nothing else.
///
/// # Errors
/// [`FixtureError`].
pub fn run(path: &Path) -> Result<(), FixtureError> {
    let fixture = Fixture::load(path)?;
    let runtime = crate::runtime()?;
    runtime.block_on(serve(fixture))
}

async fn serve(fixture: Fixture) -> Result<(), FixtureError> {
    std::fs::create_dir_all(&fixture.store).map_err(FixtureError::Store)?;
    let (directory, _) = Directory::load(&fixture.directory, None)?;
    let policy = ToolshedPolicy {
        deployment: directory.deployment().to_owned(),
        hostname: Ipv4Addr::LOCALHOST,
        port: fixture.port,
        certificate: fixture.certificate,
        key: fixture.key,
        directory: fixture.directory,
        epoch_ledger: fixture.store.join("router-epochs.jsonl"),
        routers: BTreeMap::from([(fixture.router, vec![Ipv4Addr::LOCALHOST])]),
        limits: ToolshedLimits::default(),
    };
    let options = HostOptions {
        identity: fixture.seed.identity()?,
        store: fixture.store,
        modern_cell_rep: fixture.modern_cell_rep,
    };
    let host = Host::bind(&policy, options).await?;
    if let Some(space) = &fixture.space {
        let seeded = host.seed(space, &first_commit(space, &fixture.principals));
        seeded.map_err(HostError::from)?;
    }
    say(&json!({"ready": true, "port": policy.port})).map_err(FixtureError::Output)?;
    let operator = host.operator();
    let commands = read_commands();
    host.run(obey(operator, commands)).await;
    Ok(())
}

/// The space's ACL and one document to read.
fn first_commit(space: &Did, principals: &[Did]) -> [Value; 2] {
    let owners: Map<String, Value> = principals
        .iter()
        .map(|did| (did.to_string(), "OWNER".into()))
        .collect();
    [
        json!({"op": "set", "id": format!("of:{space}"), "value": {"value": owners}}),
        json!({"op": "set", "id": "of:fixture-data", "value": {"value": {
            "message": "existing space", "principalCount": principals.len(),
        }}}),
    ]
}

/// Carries out commands until there are no more.
async fn obey(operator: Operator, mut commands: mpsc::Receiver<String>) {
    while let Some(line) = commands.recv().await {
        let command: Value = serde_json::from_str(&line).unwrap_or_default();
        let router = command.get("revoke").and_then(Value::as_str);
        if let Some(router) = router.and_then(|text| Did::parse(text).ok())
            && let Err(error) = operator.revoke(&router)
        {
            tracing::error!(reason = error.reason(), %error);
        }
        if command.get("fence") == Some(&Value::Bool(true)) {
            operator.fence();
        }
        if let Err(error) = say(&json!({"acknowledged": true})) {
            tracing::error!(reason = "stdout", %error);
            return;
        }
    }
}

/// Reads standard input on a thread of its own: it cannot be polled everywhere.
fn read_commands() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(MAX_COMMANDS);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else {
                return;
            };
            if !line.trim().is_empty() && sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn say(line: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
