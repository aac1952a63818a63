//! `router.toml` read again while the router runs: what takes effect, and what waits for a restart.

use std::path::Path;

use crate::error::ConfigErrors;
use crate::router::RouterConfig;

/// What came of reading the file again.
#[derive(Clone, Debug, PartialEq)]
pub struct Reloaded {
    /// The configuration from now on: the file, with the running values of the keys that need a restart.
    pub config: RouterConfig,
    /// Keys that say something new, and take effect.
    pub changed: Vec<&'static str>,
    /// Keys that say something new, and take effect at the next start only.
    pub ignored: Vec<&'static str>,
}

/// Gives `$new` the values of `$running` for the named keys, and collects in `$ignored` those that differed.
macro_rules! keep {
    ($new:ident, $running:ident, $ignored:ident; $( $first:ident $(. $rest:ident)? ),* $(,)?) => {
        $(
            if $new.$first$(.$rest)? != $running.$first$(.$rest)? {
                $ignored.push(concat!(stringify!($first) $(, ".", stringify!($rest))?));
                $new.$first$(.$rest)?.clone_from(&$running.$first$(.$rest)?);
            }
        )*
    };
}

impl RouterConfig {
    /// Reads the file again, as strictly as [`RouterConfig::load`], over what runs.
    ///
    /// Some keys cannot change while processes run: who listens where, identities, and what has to be the same in every role
    /// at every moment. They keep their running values, and the checks between keys hold for the result.
    ///
    /// # Errors
    /// Every fault of the file. Nothing is to change then.
    pub fn reload(path: &Path, running: &Self) -> Result<Reloaded, ConfigErrors> {
        Self::parse_over(&Self::read_file(path)?, path, running)
    }

    /// As [`RouterConfig::reload`], for the text of the file.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse_over(text: &str, file: &Path, running: &Self) -> Result<Reloaded, ConfigErrors> {
        Self::parse_then(text, file, |new, report| {
            let (config, ignored) = new.over(running);
            if !ignored.is_empty() {
                config.check(report);
            }
            Reloaded {
                changed: config.differing(running),
                ignored,
                config,
            }
        })
    }

    fn over(mut self, running: &Self) -> (Self, Vec<&'static str>) {
        let new = &mut self;
        let mut ignored = Vec::new();
        keep!(new, running, ignored;
            listen, directory, router_seed, ipc_dir, state_dir, modern_cell_rep, proxy_protocol,
            metrics_listen, development,
            isolation.listener_uid, isolation.key_uid, isolation.link_uid, isolation.directory_uid,
            isolation.metrics_uid, isolation.worker_uid_base, isolation.cgroup_root,
            isolation.worker_memory_max, isolation.worker_pids_max, isolation.workers_memory_max,
            timeouts.startup_grace,
        );
        (self, ignored)
    }

    /// Every key that says something else in `other`.
    fn differing(&self, other: &Self) -> Vec<&'static str> {
        let mut keys = Vec::new();
        // Named one by one, so that a key that is added is not forgotten.
        let Self {
            listen,
            host,
            origins,
            require_origin,
            directory,
            directory_max_staleness,
            public_certificate,
            tls_key,
            router_seed,
            ipc_dir,
            state_dir,
            modern_cell_rep,
            proxy_protocol,
            proxy_trusted,
            metrics_listen,
            log_identifiers,
            development,
            isolation,
            timeouts,
            limits,
            penalties,
        } = self;
        macro_rules! compare {
            ($($name:ident),* $(,)?) => {
                $( if *$name != other.$name { keys.push(stringify!($name)); } )*
            };
        }
        compare!(
            listen,
            host,
            origins,
            require_origin,
            directory,
            directory_max_staleness,
            public_certificate,
            tls_key,
            router_seed,
            ipc_dir,
            state_dir,
            modern_cell_rep,
            proxy_protocol,
            proxy_trusted,
            metrics_listen,
            log_identifiers,
            development,
        );
        keys.extend(isolation.differing(&other.isolation));
        keys.extend(timeouts.differing(&other.timeouts));
        keys.extend(limits.differing(&other.limits));
        keys.extend(penalties.differing(&other.penalties));
        keys
    }
}
