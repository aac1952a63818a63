//! SIGHUP: `router.toml` is read again, and what may change while roles run takes effect.
//!
//! Each role reads the file for itself, as strictly as at its start. A file with a fault changes nothing. Keys that need a
//! restart keep their running values, and are named once, by the role that they belong to.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use memory_config::{ConfigErrors, Reloaded, RouterConfig};
use memory_wire::Reason;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::accepted::Accepted;
use crate::exit::Failure;

/// The configuration as it is, and as it becomes.
pub(crate) type Changes = watch::Receiver<Arc<RouterConfig>>;

/// SIGHUP. From its making on, it does not end the process: so it is made before the configuration is read, and who sends
/// it can be sure that a process that does not catch it yet has still to read the file.
#[derive(Debug)]
pub(crate) struct Hangups(Signal);

impl Hangups {
    pub(crate) fn new() -> Result<Self, Failure> {
        let hangups = signal(SignalKind::hangup());
        hangups
            .map(Self)
            .map_err(|error| Failure::io("cannot handle signals", error))
    }

    /// Waits for the next. Those that come before they are waited for count as one. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// Reads the file whenever it is asked to.
#[derive(Debug)]
pub(crate) struct Reloader {
    role: &'static str,
    file: PathBuf,
    hangups: Hangups,
    config: watch::Sender<Arc<RouterConfig>>,
    accepted: Rc<Accepted>,
}

impl Reloader {
    pub(crate) fn new(
        role: &'static str,
        file: &Path,
        hangups: Hangups,
        config: RouterConfig,
        accepted: Accepted,
    ) -> Self {
        Self {
            role,
            file: file.to_owned(),
            hangups,
            config: watch::Sender::new(Arc::new(config)),
            accepted: Rc::new(accepted),
        }
    }

    /// What the configuration is made of, now and after each reload.
    pub(crate) fn accepted(&self) -> Rc<Accepted> {
        Rc::clone(&self.accepted)
    }

    pub(crate) fn changes(&self) -> Changes {
        self.config.subscribe()
    }

    /// Follows SIGHUP for ever.
    pub(crate) async fn follow(mut self) {
        loop {
            self.next().await;
        }
    }

    /// Waits for the next SIGHUP and reads the file; whether it was taken. A second signal that comes meanwhile has it read
    /// once more, so that the last state of the file wins.
    pub(crate) async fn next(&mut self) -> bool {
        self.hangups.next().await;
        let running = Arc::clone(&self.config.borrow());
        match self.accepted.reload(&self.file, &running) {
            Ok(reloaded) => {
                self.report(&reloaded);
                // Also when the file says nothing new: what it names may be new.
                self.config.send_replace(Arc::new(reloaded.config));
                true
            }
            Err(errors) => {
                report_faults(&errors);
                false
            }
        }
    }

    fn report(&self, reloaded: &Reloaded) {
        for key in &reloaded.ignored {
            if owner(key) == self.role {
                tracing::warn!(
                    reason = Reason::RestartNeeded.as_str(),
                    key,
                    "a changed setting takes effect at the next start only"
                );
            }
        }
        tracing::info!(
            reason = "reloaded",
            changed = ?reloaded.changed,
            "the configuration was read again"
        );
    }
}

/// One line for each fault.
fn report_faults(errors: &ConfigErrors) {
    for error in &errors.0 {
        tracing::error!(
            reason = "reload-refused",
            file = %error.file.display(),
            line = error.line,
            column = error.column,
            key = error.key,
            found = error.found,
            allowed = error.allowed,
            "the configuration is invalid; the one in force stays"
        );
    }
}

/// The role that names a key that cannot change while it runs.
fn owner(key: &str) -> &'static str {
    match key {
        "listen" | "proxy_protocol" => "listener",
        "directory" => "directory-broker",
        "router_seed" | "modern_cell_rep" | "timeouts.startup_grace" => "link-agent",
        _ => "spawner",
    }
}
