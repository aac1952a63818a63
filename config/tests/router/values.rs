//! Defaults, ranges and forms of values.

use std::path::Path;
use std::time::Duration;

use memory_config::{DirectorySource, FileSource, Limit, Network, ProxyProtocol, RouterConfig};

use crate::{REQUIRED, faults, faults_with, parse};

const EXAMPLE: &str = include_str!("../../examples/router.toml");

/// The example with every commented-out key in force.
fn uncommented() -> String {
    let is_key = |rest: &str| {
        rest.split_once(" = ")
            .is_some_and(|(name, _)| RouterConfig::keys().iter().any(|key| key.name == name))
    };
    let line = |line: &'static str| {
        line.strip_prefix("# ")
            .filter(|rest| is_key(rest))
            .unwrap_or(line)
    };
    EXAMPLE.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn example_names_every_key_with_its_default() {
    let config = parse(EXAMPLE).unwrap();
    assert_eq!(parse(&uncommented()).unwrap(), config);
    let text = uncommented();
    for key in RouterConfig::keys() {
        let mut section = "";
        let mut found = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']');
            } else if let Some((name, value)) = line.split_once(" = ")
                && (section, name) == (key.section, key.name)
            {
                assert!(found.is_none(), "{} twice", key.name);
                found = Some(value);
            }
        }
        let found = found.unwrap_or_else(|| panic!("{} is not in the example", key.name));
        if let Some(default) = &key.default {
            assert_eq!(found, default, "{}", key.name);
        }
    }
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let config = parse(REQUIRED).unwrap();
    let seconds = Duration::from_secs;
    assert_eq!(config.listen, ["127.0.0.1:8443".parse().unwrap()]);
    assert_eq!(config.host, "localhost");
    assert!(
        !config.require_origin
            && !config.modern_cell_rep
            && !config.log_identifiers
            && !config.development
    );
    assert_eq!(
        config.directory,
        DirectorySource::File("/etc/memory/directory.json".into())
    );
    assert_eq!(
        config.tls_key,
        FileSource::Path("/etc/memory/tls.pem".into())
    );
    assert_eq!(config.directory_max_staleness, seconds(30));
    assert_eq!(config.ipc_dir, Path::new("/run/memory-router"));
    assert_eq!(config.state_dir, Path::new("/var/lib/memory-router"));
    assert_eq!(config.proxy_protocol, ProxyProtocol::Off);
    assert_eq!(
        (config.proxy_trusted.len(), config.metrics_listen),
        (0, None)
    );

    let isolation = &config.isolation;
    let uids = [
        isolation.listener_uid,
        isolation.key_uid,
        isolation.link_uid,
        isolation.directory_uid,
        isolation.metrics_uid,
    ];
    assert_eq!(uids, [990, 991, 992, 993, 994]);
    assert_eq!(isolation.worker_uid_base, 100_000);
    assert_eq!(
        (
            isolation.worker_memory_max,
            isolation.worker_pids_max,
            isolation.worker_pool
        ),
        (64 << 20, 4, 8)
    );
    assert_eq!(
        (&isolation.cgroup_root, isolation.workers_memory_max),
        (&None, None)
    );

    let timeouts = &config.timeouts;
    let table = [
        (timeouts.handshake, 10),
        (timeouts.authenticate, 60),
        (timeouts.ping_interval, 20),
        (timeouts.ping_timeout, 20),
        (timeouts.upload, 30),
        (timeouts.admission, 30),
        (timeouts.hold_open, 60),
        (timeouts.control_wait, 5),
        (timeouts.control_request, 10),
        (timeouts.link_silence, 90),
        (timeouts.link_handshake, 5),
        (timeouts.data_handshake, 5),
        (timeouts.tcp_user, 120),
        (timeouts.startup_grace, 10),
        (timeouts.pre_drain, 0),
        (timeouts.drain, 10),
    ];
    for (value, expected) in table {
        assert_eq!(value, seconds(expected));
    }
    assert_eq!(timeouts.upload_min_rate, 16 << 10);

    let limits = &config.limits;
    let table = [
        (limits.max_workers, 512),
        (limits.max_unauthenticated, 256),
        (limits.max_per_source, 64),
        (limits.max_unauthenticated_per_source, 16),
        (limits.max_new_connections_per_second, 200),
        (limits.max_new_connections_per_source_per_second, 20),
        (limits.max_principals_per_connection, 16),
        (limits.max_principal_history, 128),
        (limits.max_principals_per_challenge, 64),
        (limits.max_requests_per_connection, 1024),
        (limits.max_link_waiters, 1024),
        (limits.max_pending_dials, 256),
    ];
    for (value, expected) in table {
        assert_eq!(value, expected);
    }
    let table = [
        (limits.max_connections_per_space, 1000),
        (limits.max_connections_per_principal, 1000),
        (limits.max_sessions_per_connection, 1200),
        (limits.max_spaces_per_connection, 1200),
        (limits.max_messages_per_second, 1000),
        (limits.message_burst, 2000),
        (limits.max_watches_per_session, 2048),
        (limits.max_watches_per_connection, 40_960),
        (limits.max_holdings_per_connection, 327_680),
        (limits.max_frame_slots, 150_000),
        (limits.max_admissions_per_second, 200),
    ];
    for (value, expected) in table {
        assert_eq!(value, Limit::At(expected));
    }
    assert_eq!((limits.ipv4_prefix, limits.ipv6_prefix), (32, 64));

    let penalties = &config.penalties;
    assert!(penalties.enabled && penalties.exempt.is_empty());
    let table = [
        (penalties.threshold, 15),
        (penalties.protocol_error, 5),
        (penalties.failed_authentication, 5),
        (penalties.handshake_timeout, 10),
        (penalties.worker_crash, 60),
        (penalties.maximum, 600),
    ];
    for (value, expected) in table {
        assert_eq!(value, seconds(expected));
    }
    assert_eq!(penalties.sources, 65_536);
}

#[test]
fn takes_both_edges_of_every_count_and_nothing_past_them() {
    // Every count that stands in `docs/operations.md` with a range; other keys are set so that no comparison is in the way.
    let unlimited = [
        "max_connections_per_space",
        "max_connections_per_principal",
        "max_sessions_per_connection",
        "max_spaces_per_connection",
        "max_messages_per_second",
        "message_burst",
        "max_watches_per_session",
        "max_watches_per_connection",
        "max_holdings_per_connection",
        "max_frame_slots",
        "max_admissions_per_second",
    ];
    let table: [(&str, u64, u64, &str); 23] = [
        (
            "max_workers",
            1,
            30_000,
            "max_unauthenticated = 1\nmax_per_source = 1\nmax_unauthenticated_per_source = 1",
        ),
        ("max_unauthenticated", 1, 30_000, "max_workers = 30000"),
        ("max_per_source", 1, 30_000, "max_workers = 30000"),
        (
            "max_unauthenticated_per_source",
            1,
            30_000,
            "max_workers = 30000",
        ),
        ("max_new_connections_per_second", 1, 100_000, ""),
        ("max_new_connections_per_source_per_second", 1, 100_000, ""),
        ("max_connections_per_space", 1, 30_000, ""),
        ("max_connections_per_principal", 1, 30_000, ""),
        ("max_sessions_per_connection", 1, 100_000, ""),
        ("max_spaces_per_connection", 1, 100_000, ""),
        (
            "max_principals_per_connection",
            1,
            1024,
            "max_principal_history = 8192",
        ),
        (
            "max_principal_history",
            1,
            8192,
            "max_principals_per_connection = 1",
        ),
        ("max_principals_per_challenge", 32, 1024, ""),
        ("max_requests_per_connection", 1, 65_536, ""),
        ("max_messages_per_second", 1, 1_000_000, ""),
        ("message_burst", 1, 1_000_000, ""),
        (
            "max_watches_per_session",
            1,
            1_000_000,
            "max_watches_per_connection = 10000000",
        ),
        (
            "max_watches_per_connection",
            1,
            10_000_000,
            "max_watches_per_session = 1",
        ),
        ("max_holdings_per_connection", 1, 100_000_000, ""),
        ("max_frame_slots", 1, 9_007_199_254_740_991, ""),
        ("max_admissions_per_second", 1, 100_000, ""),
        ("max_link_waiters", 1, 65_536, ""),
        ("max_pending_dials", 1, 4096, ""),
    ];
    for (name, min, max, others) in table {
        let text = |value: &str| format!("[limits]\n{name} = {value}\n{others}\n");
        for good in [min, max] {
            let config = parse(&format!("{REQUIRED}{}", text(&good.to_string())));
            assert!(config.is_ok(), "{name} = {good}: {}", config.unwrap_err());
        }
        let may_be_off = unlimited.contains(&name);
        let or = if may_be_off { " or \"unlimited\"" } else { "" };
        for bad in [min - 1, max + 1] {
            let column = name.len() + 4;
            let expected = format!(
                "router.toml:10:{column}: limits.{name}: found {bad}, allowed {min}..={max}{or}"
            );
            assert_eq!(faults_with(&text(&bad.to_string())), [expected]);
        }
        assert_eq!(
            parse(&format!("{REQUIRED}{}", text("\"unlimited\""))).is_ok(),
            may_be_off,
            "{name}"
        );
    }
}

#[test]
fn takes_both_edges_of_every_duration_and_nothing_past_them() {
    let durations: Vec<_> = RouterConfig::keys()
        .into_iter()
        .filter(|key| key.allowed.ends_with("with a unit (ms, s, m, h, d)"))
        .collect();
    assert_eq!(durations.len(), 1 + 16 + 6);
    for key in durations {
        let edges: Vec<_> = key.allowed.split('"').collect();
        let [_, min, _, max, _] = edges[..] else {
            panic!("{}", key.allowed)
        };
        let path = if key.section.is_empty() {
            key.name.to_owned()
        } else {
            format!("{}.{}", key.section, key.name)
        };
        for (value, good) in [
            (min, true),
            (max, true),
            ("49h", false),
            ("0s", min == "0s"),
            ("0ms", min == "0s"),
        ] {
            // The one comparison between durations must not be in the way.
            let other = match key.name {
                "threshold" => "penalties.maximum = \"24h\"\n",
                "maximum" => "penalties.threshold = \"100ms\"\n",
                _ => "",
            };
            let result = parse(&format!("{path} = \"{value}\"\n{REQUIRED}{other}"));
            assert_eq!(result.is_ok(), good, "{path} = {value}: {result:?}");
        }
        let column = path.len() + 4;
        for bare in ["10", "\"10\"", "1.5"] {
            let expected = format!(
                "router.toml:1:{column}: {path}: found {bare}, allowed {}",
                key.allowed
            );
            assert_eq!(faults(&format!("{path} = {bare}\n{REQUIRED}")), [expected]);
        }
    }
}

#[test]
fn reads_every_form_of_value() {
    let text = format!(
        "{REQUIRED}proxy_protocol = \"v2\"\nproxy_trusted = [\"10.0.0.0/8\", \"fd00::/8\"]\nmetrics_listen = \"[::1]:9464\"\n\
        [isolation]\nworker_memory_max = 67108864\nworkers_memory_max = \"2 GiB\"\ncgroup_root = \"/sys/fs/cgroup/x\"\n\
        [timeouts]\nhandshake = \"500ms\"\nupload_min_rate = \"1 MiB/s\"\ntcp_user = \"2m\"\n\
        [limits]\nmax_workers = 0x200\nmax_frame_slots = \"unlimited\"\nmax_watches_per_session = 9_000\n"
    );
    let config = parse(&text).unwrap();
    assert_eq!(config.proxy_protocol, ProxyProtocol::V2);
    assert_eq!(
        config.proxy_trusted,
        ["10.0.0.0/8", "fd00::/8"].map(|text| Network::parse(text).unwrap())
    );
    assert_eq!(config.metrics_listen, "[::1]:9464".parse().ok());
    assert_eq!(config.isolation.worker_memory_max, 64 << 20);
    assert_eq!(config.isolation.workers_memory_max, Some(2 << 30));
    assert_eq!(
        config.isolation.cgroup_root.as_deref(),
        Some(Path::new("/sys/fs/cgroup/x"))
    );
    assert_eq!(config.timeouts.handshake, Duration::from_millis(500));
    assert_eq!(config.timeouts.upload_min_rate, 1 << 20);
    assert_eq!(config.timeouts.tcp_user, Duration::from_secs(120));
    assert_eq!(config.limits.max_workers, 512);
    assert_eq!(config.limits.max_frame_slots, Limit::Unlimited);
    assert_eq!(config.limits.max_watches_per_session, Limit::At(9000));
    let etcd = REQUIRED.replace(
        "directory.json",
        "etcd://10.0.0.1:2379,10.0.0.2:2379/memory",
    );
    let endpoints = vec!["10.0.0.1:2379".to_owned(), "10.0.0.2:2379".to_owned()];
    assert_eq!(
        parse(&etcd).unwrap().directory,
        DirectorySource::Etcd {
            endpoints,
            prefix: "/memory".to_owned()
        }
    );
}
