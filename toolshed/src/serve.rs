//! A toolshed by its policy file, until a signal stops it.

use crate::host::{Host, HostError, HostOptions};
use memory_config::ToolshedPolicy;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Serves by `policy` until SIGTERM or SIGINT.
///
/// # Errors
/// [`HostError`].
pub fn serve(policy: &ToolshedPolicy, options: HostOptions) -> Result<(), HostError> {
    let runtime = crate::runtime()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(HostError::Runtime)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(HostError::Runtime)?;
        let host = Host::bind(policy, options).await?;
        if let Ok(address) = host.address() {
            tracing::info!(reason = "listening", %address);
        }
        host.run(either(&mut terminate, &mut interrupt)).await;
        Ok(())
    })
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
