//! `router.toml`: top level, loading, and the checks between keys.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::de::DeTable;

use crate::address::{Network, parse_host, parse_origin};
use crate::error::{ConfigError, ConfigErrors};
use crate::kinds::{Flag, List, Text, required_count, time};
use crate::limit::Limit;
use crate::places::Places;
use crate::read::read_text;
use crate::report::Report;
use crate::sections::{Isolation, Limits, Penalties, Timeouts};
use crate::source::{DirectorySource, FileSource, parse_path};
use crate::table::{KeyInfo, Section, section};

/// Longest `router.toml`, bytes. It is written by hand; a longer one is something else.
const MAX_ROUTER_FILE_LEN: u64 = 1 << 20;

/// Names of the sections.
const SECTIONS: [&str; 4] = ["isolation", "timeouts", "limits", "penalties"];

/// Everything `router.toml` says. `docs/operations.md` tells ranges and meaning of each key.
#[derive(Clone, Debug, PartialEq)]
pub struct RouterConfig {
    /// Public TLS listeners, 1..=16.
    pub listen: Vec<SocketAddr>,
    /// Expected `Host` header, lower case, with its port if it has one.
    pub host: String,
    /// Allowed `Origin` values, exact, 0..=64.
    pub origins: Vec<String>,
    /// Whether an upgrade without `Origin` is refused.
    pub require_origin: bool,
    /// Where placement comes from.
    pub directory: DirectorySource,
    /// etcd only: how old a snapshot may be for new opens.
    pub directory_max_staleness: Duration,
    /// The public certificate chain.
    pub public_certificate: FileSource,
    /// The public private key; the key agent alone reads it.
    pub tls_key: FileSource,
    /// The router's Ed25519 seed; the link agent alone reads it.
    pub router_seed: FileSource,
    /// Folder of the role sockets.
    pub ipc_dir: PathBuf,
    /// Folder of the revocation list.
    pub state_dir: PathBuf,
    /// The deployment's wire mode.
    pub modern_cell_rep: bool,
    /// Whether a PROXY header comes first on public connections.
    pub proxy_protocol: ProxyProtocol,
    /// Who may send a PROXY header.
    pub proxy_trusted: Vec<Network>,
    /// Prometheus endpoint, a loopback address.
    pub metrics_listen: Option<SocketAddr>,
    /// Whether DIDs may stand in logs.
    pub log_identifiers: bool,
    /// Whether to run without UIDs, control groups and namespaces when not root.
    pub development: bool,
    /// `[isolation]`.
    pub isolation: Isolation,
    /// `[timeouts]`.
    pub timeouts: Timeouts,
    /// `[limits]`.
    pub limits: Limits,
    /// `[penalties]`.
    pub penalties: Penalties,
}

impl RouterConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Every fault of the file. The caller exits with status 78.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::parse(&Self::read_file(path)?, path)
    }

    /// Reads the text of a file, which has a bounded length.
    ///
    /// # Errors
    /// One fault: that it cannot be read.
    pub fn read_file(path: &Path) -> Result<String, ConfigErrors> {
        read_text(path, MAX_ROUTER_FILE_LEN)
    }

    /// Checks the text of a file; `file` is its name in errors, and its folder is where relative paths start.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigErrors> {
        Self::parse_then(text, file, |config, _| config)
    }

    /// As [`RouterConfig::parse`], with a last step that may find faults too. It is not taken when there are others.
    pub(crate) fn parse_then<T>(
        text: &str,
        file: &Path,
        last: impl FnOnce(Self, &mut Report<'_>) -> T,
    ) -> Result<T, ConfigErrors> {
        let mut report = Report::new(file, text);
        let (config, _) = Self::walk(text, &mut report);
        if !report.is_clean() {
            return Err(report.into_errors());
        }
        let value = last(config, &mut report);
        report.finish(value)
    }

    /// Reads a file as [`RouterConfig::load`] does, for a caller that goes on to what the file names: it gets every fault
    /// beside what could be read.
    pub fn examine(path: &Path) -> Examined {
        match Self::read_file(path) {
            Ok(text) => Self::examine_text(&text, path),
            Err(errors) => Examined {
                config: None,
                places: Places::default(),
                errors: errors.0,
            },
        }
    }

    /// As [`RouterConfig::examine`], for the text of the file.
    pub fn examine_text(text: &str, file: &Path) -> Examined {
        let mut report = Report::new(file, text);
        let (config, complete) = Self::walk(text, &mut report);
        let places = report.places();
        let errors = match report.is_clean() {
            true => Vec::new(),
            false => report.into_errors().0,
        };
        Examined {
            config: complete.then_some(config),
            places,
            errors,
        }
    }

    /// Reads everything, with stand-ins for what is wrong; whether the syntax was right. Faults are in the report.
    fn walk(text: &str, report: &mut Report<'_>) -> (Self, bool) {
        let (root, syntax_errors) = DeTable::parse_recoverable(text);
        for error in &syntax_errors {
            let offset = error.span().map_or(0, |span| span.start);
            report.syntax_error(
                offset,
                key_before(text, offset),
                error.message().replace('\n', ", "),
                "valid TOML",
            );
        }
        let root = root.get_ref();
        let complete = syntax_errors.is_empty();
        let keys = Self::keys();

        let mut section = Section::root(report, root, complete);
        section.refuse_unknown(&keys);
        let top = Top::read(&mut section);
        macro_rules! read {
            ($type:ty, $name:literal) => {{
                let mut section = Section::of(report, root, $name, complete);
                section.refuse_unknown(&keys);
                <$type>::read(&mut section)
            }};
        }
        let isolation = read!(Isolation, "isolation");
        let timeouts = read!(Timeouts, "timeouts");
        let limits = read!(Limits, "limits");
        let penalties = read!(Penalties, "penalties");
        let config = Self {
            listen: top.listen,
            host: top.host,
            origins: top.origins,
            require_origin: top.require_origin,
            directory: top.directory,
            directory_max_staleness: top.directory_max_staleness,
            public_certificate: top.public_certificate,
            tls_key: top.tls_key,
            router_seed: top.router_seed,
            ipc_dir: top.ipc_dir,
            state_dir: top.state_dir,
            modern_cell_rep: top.modern_cell_rep,
            proxy_protocol: top.proxy_protocol,
            proxy_trusted: top.proxy_trusted,
            metrics_listen: top.metrics_listen,
            log_identifiers: top.log_identifiers,
            development: top.development,
            isolation,
            timeouts,
            limits,
            penalties,
        };
        if complete {
            config.check(report);
        }
        (config, complete)
    }

    /// Every key of the file, in the order of the documentation.
    pub fn keys() -> Vec<KeyInfo> {
        let mut keys = Top::keys();
        keys.extend(Isolation::keys());
        keys.extend(Timeouts::keys());
        keys.extend(Limits::keys());
        keys.extend(Penalties::keys());
        keys
    }

    /// The checks between keys that need nothing but the file.
    pub(crate) fn check(&self, report: &mut Report<'_>) {
        self.check_top(report);
        self.check_limits(report);
        self.check_users(report);
        let (threshold, maximum) = (self.penalties.threshold, self.penalties.maximum);
        if threshold > maximum {
            report.conflict(
                &["penalties.threshold", "penalties.maximum"],
                crate::units::show_duration(threshold),
                format!(
                    "at most penalties.maximum = {}",
                    crate::units::show_duration(maximum)
                ),
            );
        }
    }

    fn check_top(&self, report: &mut Report<'_>) {
        let public = self
            .listen
            .iter()
            .find(|address| !address.ip().to_canonical().is_loopback());
        if let (true, Some(address)) = (self.development, public) {
            report.conflict(
                &["development", "listen"],
                "true",
                format!("false, or loopback addresses only in listen (it has {address})"),
            );
        }
        if self.proxy_protocol == ProxyProtocol::V2 && self.proxy_trusted.is_empty() {
            report.conflict(
                &["proxy_trusted", "proxy_protocol"],
                "an empty list",
                "at least one network with proxy_protocol = \"v2\"",
            );
        }
    }

    fn check_limits(&self, report: &mut Report<'_>) {
        let limits = &self.limits;
        let at = Limit::At;
        let ordered = [
            (
                "max_unauthenticated",
                at(limits.max_unauthenticated),
                "max_workers",
                at(limits.max_workers),
            ),
            (
                "max_per_source",
                at(limits.max_per_source),
                "max_workers",
                at(limits.max_workers),
            ),
            (
                "max_unauthenticated_per_source",
                at(limits.max_unauthenticated_per_source),
                "max_workers",
                at(limits.max_workers),
            ),
            (
                "max_principals_per_connection",
                at(limits.max_principals_per_connection),
                "max_principal_history",
                at(limits.max_principal_history),
            ),
            (
                "max_watches_per_session",
                limits.max_watches_per_session,
                "max_watches_per_connection",
                limits.max_watches_per_connection,
            ),
        ];
        for (smaller, low, larger, high) in ordered {
            // A comparison with a limit that is off is skipped.
            if let (Some(low), Some(high)) = (low.get(), high.get())
                && low > high
            {
                let keys = [smaller, larger].map(|name| format!("limits.{name}"));
                let [smaller, larger] = &keys;
                report.conflict(
                    &[smaller, larger],
                    low.to_string(),
                    format!("at most {larger} = {high}"),
                );
            }
        }
    }

    fn check_users(&self, report: &mut Report<'_>) {
        let isolation = &self.isolation;
        let base = u64::from(isolation.worker_uid_base);
        let end = base + self.limits.max_workers;
        let limit = 1_u64 << 31;
        if end > limit {
            report.conflict(
                &["isolation.worker_uid_base", "limits.max_workers"],
                base.to_string(),
                format!(
                    "at most {}, so that limits.max_workers UIDs stay below 2^31",
                    limit - self.limits.max_workers
                ),
            );
        }
        let roles = [
            ("isolation.listener_uid", isolation.listener_uid),
            ("isolation.key_uid", isolation.key_uid),
            ("isolation.link_uid", isolation.link_uid),
            ("isolation.directory_uid", isolation.directory_uid),
            ("isolation.metrics_uid", isolation.metrics_uid),
        ];
        for (index, (key, uid)) in roles.iter().enumerate() {
            let taken = roles.iter().take(index).find(|(_, other)| other == uid);
            if let Some((other, _)) = taken {
                report.conflict(
                    &[key, other],
                    uid.to_string(),
                    format!("a UID of its own, this one is {other}"),
                );
            } else if (base..end).contains(&u64::from(*uid)) {
                report.conflict(
                    &[key, "isolation.worker_uid_base", "limits.max_workers"],
                    uid.to_string(),
                    format!("a UID outside the workers' {base}..{end}"),
                );
            }
        }
    }
}

/// A file as far as it could be read.
#[derive(Clone, Debug)]
pub struct Examined {
    /// What it says, with stand-ins where it is wrong; `None` when it could not be read, or is not TOML.
    pub config: Option<RouterConfig>,
    /// Where its values stand.
    pub places: Places,
    /// Every fault, in the order of the file.
    pub errors: Vec<ConfigError>,
}

impl Examined {
    /// Whether the value of a key is the file's own or the default, and no stand-in.
    pub fn is_sound(&self, key: &str) -> bool {
        let part_of = |rest: &str| rest.is_empty() || rest.starts_with(['[', '.']);
        let concerns = |error: &ConfigError| error.key.strip_prefix(key).is_some_and(part_of);
        self.config.is_some() && !self.errors.iter().any(concerns)
    }
}

/// `proxy_protocol`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// The peer address is the socket's.
    #[default]
    Off,
    /// A PROXY protocol version 2 header comes first, from `proxy_trusted` only.
    V2,
}

/// What a file may be.
const FILE: Text<FileSource> = Text {
    default: None,
    allowed: "a path or \"credential:NAME\"",
    parse: FileSource::parse,
};

section! {
    /// The keys before the first section.
    pub(crate) struct Top, "" {
        /// Version of the format.
        version: u64 = required_count(1, 1);
        /// See [`RouterConfig`], as for every key below.
        listen: Vec<SocketAddr> = List {
            required: true,
            min: 1,
            max: 16,
            elements: "socket addresses",
            element: "IP:port with a port of 1..=65535, IPv6 in brackets",
            parse: parse_listen,
        };
        host: String = Text {
            default: None,
            allowed: "host or host:port",
            parse: |text, _| parse_host(text),
        };
        origins: Vec<String> = List {
            required: true,
            min: 0,
            max: 64,
            elements: "origins",
            element: "scheme://host or scheme://host:port in lower case, without path and without the scheme's own port",
            parse: parse_origin,
        };
        require_origin: bool = Flag(false);
        directory: DirectorySource = Text {
            default: None,
            allowed: "a path or etcd://host:port[,host:port]/prefix",
            parse: DirectorySource::parse,
        };
        directory_max_staleness: Duration = time(30_000, 1_000, 3_600_000);
        public_certificate: FileSource = FILE;
        tls_key: FileSource = FILE;
        router_seed: FileSource = FILE;
        ipc_dir: PathBuf = Text {
            default: Some("/run/memory-router"),
            allowed: "a path",
            parse: parse_path,
        };
        state_dir: PathBuf = Text {
            default: Some("/var/lib/memory-router"),
            allowed: "a path",
            parse: parse_path,
        };
        modern_cell_rep: bool = Flag(false);
        proxy_protocol: ProxyProtocol = Text {
            default: Some("off"),
            allowed: "\"off\" or \"v2\"",
            parse: |text, _| match text {
                "off" => Some(ProxyProtocol::Off),
                "v2" => Some(ProxyProtocol::V2),
                _ => None,
            },
        };
        proxy_trusted: Vec<Network> = List {
            required: false,
            min: 0,
            max: 64,
            elements: "networks",
            element: "a network, ADDRESS/PREFIX with no bit set past the prefix",
            parse: Network::parse,
        };
        metrics_listen: Option<SocketAddr> = Text {
            default: Some("off"),
            allowed: "\"off\" or a loopback IP:port",
            parse: |text, _| match text {
                "off" => Some(None),
                _ => parse_listen(text).filter(|address| address.ip().is_loopback()).map(Some),
            },
        };
        log_identifiers: bool = Flag(false);
        development: bool = Flag(false);
    }
}

/// An address to listen on. Port 0 would be a different one at each start.
fn parse_listen(text: &str) -> Option<SocketAddr> {
    text.parse()
        .ok()
        .filter(|address: &SocketAddr| address.port() != 0)
}

/// The key that the line at `offset` sets, for errors that stop before there is a value.
fn key_before(text: &str, offset: usize) -> String {
    let line_end = |from: usize| {
        text.get(from..)
            .and_then(|rest| rest.find('\n'))
            .map_or(text.len(), |at| from + at)
    };
    let before = text
        .get(..line_end(offset.min(text.len())))
        .unwrap_or_default();
    let mut lines = before.lines().rev();
    let name = lines
        .next()
        .and_then(|line| line.split_once('='))
        .map_or("", |(name, _)| name.trim());
    let section = lines.find_map(|line| {
        line.trim()
            .strip_prefix('[')?
            .split_once(']')
            .map(|(name, _)| name)
    });
    match (section.filter(|section| SECTIONS.contains(section)), name) {
        (_, "") => String::new(),
        (None, name) => crate::report::clipped(name),
        (Some(section), name) => format!("{section}.{}", crate::report::clipped(name)),
    }
}
