//! What is said about wrong files.

use std::path::Path;

use memory_config::RouterConfig;

use crate::{REQUIRED, faults, faults_with, parse};

#[test]
fn names_each_fault_exactly() {
    let table: [(&str, &str); 48] = [
        (
            "require_origin = 1",
            "9:18: require_origin: found 1, allowed true or false",
        ),
        (
            "require_origin = \"yes\"",
            "9:18: require_origin: found \"yes\", allowed true or false",
        ),
        (
            "requires_origin = true",
            "9:1: requires_origin: found an unknown key (= true), allowed a known key, the nearest is require_origin",
        ),
        (
            "max_workers = 5",
            "9:1: max_workers: found an unknown key (= 5), allowed max_workers in [limits]",
        ),
        (
            "[limit]\nmax_workers = 5",
            "9:2: limit: found an unknown section, allowed a known key, the nearest is limits",
        ),
        (
            "[limits]\nmax_wrokers = 5",
            "10:1: limits.max_wrokers: found an unknown key (= 5), allowed a known key, the nearest is max_workers",
        ),
        (
            "[limits]\nhost = \"a\"",
            "10:1: limits.host: found an unknown key (= \"a\"), allowed host at top level (before the first section)",
        ),
        (
            "[limits]\nhandshake = \"1s\"",
            "10:1: limits.handshake: found an unknown key (= \"1s\"), allowed handshake in [timeouts]",
        ),
        (
            "[limits]\nmax_workers = \"many\"",
            "10:15: limits.max_workers: found \"many\", allowed 1..=30000",
        ),
        (
            "[limits]\nmax_workers = \"unlimited\"",
            "10:15: limits.max_workers: found \"unlimited\", allowed 1..=30000",
        ),
        (
            "[limits]\nmax_workers = -1",
            "10:15: limits.max_workers: found -1, allowed 1..=30000",
        ),
        (
            "[limits]\nmax_workers = 1.5",
            "10:15: limits.max_workers: found 1.5, allowed 1..=30000",
        ),
        (
            "[limits]\nmax_workers = 99999999999999999999999",
            "10:15: limits.max_workers: found 99999999999999999999999, allowed 1..=30000",
        ),
        (
            "[limits]\nmax_workers = [1]",
            "10:15: limits.max_workers: found a list of 1, allowed 1..=30000",
        ),
        (
            "[limits]\nmax_frame_slots = 0",
            "10:19: limits.max_frame_slots: found 0, allowed 1..=9007199254740991 or \"unlimited\"",
        ),
        (
            "[limits]\nmax_frame_slots = \"off\"",
            "10:19: limits.max_frame_slots: found \"off\", allowed 1..=9007199254740991 or \"unlimited\"",
        ),
        (
            "[limits]\nipv4_prefix = 33",
            "10:15: limits.ipv4_prefix: found 33, allowed 8..=32",
        ),
        (
            "[limits]\nipv6_prefix = 0",
            "10:15: limits.ipv6_prefix: found 0, allowed 16..=128",
        ),
        (
            "limits = 3",
            "9:10: limits: found 3, allowed a table: [limits]",
        ),
        (
            "[timeouts]\nhandshake = 10",
            "10:13: timeouts.handshake: found 10, allowed \"100ms\"..=\"5m\", with a unit (ms, s, m, h, d)",
        ),
        (
            "[timeouts]\nlink_silence = \"90\"",
            "10:16: timeouts.link_silence: found \"90\", allowed \"1s\"..=\"1h\", with a unit (ms, s, m, h, d)",
        ),
        (
            "[timeouts]\nupload_min_rate = \"16 KiB\"",
            "10:19: timeouts.upload_min_rate: found \"16 KiB\", allowed \"1 B/s\"..=\"1 TiB/s\" or an integer (bytes per second)",
        ),
        (
            "[isolation]\nworker_memory_max = \"64 MB\"",
            "10:21: isolation.worker_memory_max: found \"64 MB\", allowed \"4 MiB\"..=\"1 TiB\" or an integer (bytes)",
        ),
        (
            "[isolation]\nworkers_memory_max = 0",
            "10:22: isolation.workers_memory_max: found 0, allowed \"auto\", \"1 MiB\"..=\"64 TiB\" or an integer (bytes)",
        ),
        (
            "[isolation]\ncgroup_root = \"workers\"",
            "10:15: isolation.cgroup_root: found \"workers\", allowed \"auto\" or an absolute path",
        ),
        (
            "[isolation]\nkey_uid = 0",
            "10:11: isolation.key_uid: found 0, allowed 1..=2147483647",
        ),
        (
            "[isolation]\nkey_uid = 990",
            "10:11: isolation.key_uid: found 990, allowed a UID of its own, this one is isolation.listener_uid",
        ),
        (
            "[isolation]\nlink_uid = 100511",
            "10:12: isolation.link_uid: found 100511, allowed a UID outside the workers' 100000..100512",
        ),
        (
            "[isolation]\nworker_uid_base = 2147483647",
            "10:19: isolation.worker_uid_base: found 2147483647, allowed at most 2147483136, so that limits.max_workers UIDs stay below 2^31",
        ),
        (
            "[limits]\nmax_unauthenticated = 513",
            "10:23: limits.max_unauthenticated: found 513, allowed at most limits.max_workers = 512",
        ),
        (
            "[limits]\nmax_workers = 255",
            "10:15: limits.max_unauthenticated: found 256 (the default), allowed at most limits.max_workers = 255",
        ),
        (
            "[limits]\nmax_per_source = 513",
            "10:18: limits.max_per_source: found 513, allowed at most limits.max_workers = 512",
        ),
        (
            "[limits]\nmax_unauthenticated_per_source = 513",
            "10:34: limits.max_unauthenticated_per_source: found 513, allowed at most limits.max_workers = 512",
        ),
        (
            "[limits]\nmax_principals_per_connection = 129",
            "10:33: limits.max_principals_per_connection: found 129, allowed at most limits.max_principal_history = 128",
        ),
        (
            "[limits]\nmax_principals_per_challenge = 31",
            "10:32: limits.max_principals_per_challenge: found 31, allowed 32..=1024",
        ),
        (
            "[limits]\nmax_watches_per_session = 40961",
            "10:27: limits.max_watches_per_session: found 40961, allowed at most limits.max_watches_per_connection = 40960",
        ),
        (
            "[penalties]\nthreshold = \"11m\"",
            "10:13: penalties.threshold: found 11m, allowed at most penalties.maximum = 10m",
        ),
        (
            "[penalties]\nexempt = \"10.0.0.0/8\"",
            "10:10: penalties.exempt: found \"10.0.0.0/8\", allowed a list of 0..=64 networks",
        ),
        (
            "[penalties]\nexempt = [\"10.0.0.0/8\", \"10.0.0.1/8\"]",
            "10:25: penalties.exempt[1]: found \"10.0.0.1/8\", allowed a network, ADDRESS/PREFIX with no bit set past the prefix",
        ),
        (
            "[penalties]\nexempt = [\"::/0\", \"::/0\"]",
            "10:19: penalties.exempt[1]: found \"::/0\", allowed each value once",
        ),
        (
            "proxy_protocol = \"v1\"",
            "9:18: proxy_protocol: found \"v1\", allowed \"off\" or \"v2\"",
        ),
        (
            "proxy_protocol = \"v2\"",
            "9:18: proxy_trusted: found an empty list (the default), allowed at least one network with proxy_protocol = \"v2\"",
        ),
        (
            "metrics_listen = \"0.0.0.0:9464\"",
            "9:18: metrics_listen: found \"0.0.0.0:9464\", allowed \"off\" or a loopback IP:port",
        ),
        (
            "ipc_dir = \"\"",
            "9:11: ipc_dir: found \"\", allowed a path",
        ),
        (
            "directory_max_staleness = \"2h\"",
            "9:27: directory_max_staleness: found \"2h\", allowed \"1s\"..=\"1h\", with a unit (ms, s, m, h, d)",
        ),
        (
            "version = 1",
            "9:1: version: found duplicate key, allowed valid TOML",
        ),
        (
            "log_identifiers = 2026-01-01",
            "9:19: log_identifiers: found a date, allowed true or false",
        ),
        (
            "\"a\\u0007b\" = 1",
            "9:1: a\\u{7}b: found an unknown key (= 1), allowed a known key, the nearest is host",
        ),
    ];
    for (more, expected) in table {
        assert_eq!(
            faults_with(more),
            [format!("router.toml:{expected}")],
            "{more}"
        );
    }
}

#[test]
fn names_each_fault_of_required_keys_exactly() {
    let table = [
        (
            "version = 1",
            "version = 2",
            "1:11: version: found 2, allowed 1",
        ),
        (
            "[\"127.0.0.1:8443\"]",
            "[]",
            "2:10: listen: found an empty list, allowed a list of 1..=16 socket addresses",
        ),
        (
            "[\"127.0.0.1:8443\"]",
            "\"127.0.0.1:8443\"",
            "2:10: listen: found \"127.0.0.1:8443\", allowed a list of 1..=16 socket addresses",
        ),
        (
            "127.0.0.1:8443",
            "localhost:8443",
            "2:11: listen[0]: found \"localhost:8443\", allowed IP:port with a port of 1..=65535, IPv6 in brackets",
        ),
        (
            "127.0.0.1:8443",
            "127.0.0.1:0",
            "2:11: listen[0]: found \"127.0.0.1:0\", allowed IP:port with a port of 1..=65535, IPv6 in brackets",
        ),
        (
            "\"127.0.0.1:8443\"",
            "true",
            "2:11: listen[0]: found true, allowed IP:port with a port of 1..=65535, IPv6 in brackets",
        ),
        (
            "\"localhost\"",
            "\"https://localhost\"",
            "3:8: host: found \"https://localhost\", allowed host or host:port",
        ),
        (
            "origins = []",
            "origins = [\"https://a/\"]",
            "4:12: origins[0]: found \"https://a/\", allowed scheme://host or scheme://host:port in lower case, without path and without the scheme's own port",
        ),
        (
            "origins = []",
            "origins = [\"*\"]",
            "4:12: origins[0]: found \"*\", allowed scheme://host or scheme://host:port in lower case, without path and without the scheme's own port",
        ),
        (
            "\"directory.json\"",
            "\"etcd://a/x\"",
            "5:13: directory: found \"etcd://a/x\", allowed a path or etcd://host:port[,host:port]/prefix",
        ),
        (
            "\"public.pem\"",
            "\"credential:../x\"",
            "6:22: public_certificate: found \"credential:../x\", allowed a path or \"credential:NAME\"",
        ),
        (
            "tls_key = \"tls.pem\"\n",
            "",
            "1:1: tls_key: found nothing (the key is required), allowed a path or \"credential:NAME\"",
        ),
        (
            "host = \"localhost\"",
            "host = \"a",
            "3:10: host: found invalid basic string, expected `\"`, allowed valid TOML",
        ),
    ];
    for (from, to, expected) in table {
        assert_eq!(
            faults(&REQUIRED.replacen(from, to, 1)),
            [format!("router.toml:{expected}")],
            "{to}"
        );
    }
}

#[test]
fn refuses_development_on_a_public_address() {
    for public in ["0.0.0.0:8443", "[::]:8443", "192.0.2.1:8443"] {
        let text = format!("{REQUIRED}development = true").replace("127.0.0.1:8443", public);
        let expected = format!(
            "router.toml:9:15: development: found true, allowed false, or loopback addresses only in listen (it has {public})"
        );
        assert_eq!(faults(&text), [expected]);
    }
    assert!(parse(&format!("{REQUIRED}development = true")).is_ok());
    let loopback = REQUIRED.replace("127.0.0.1:8443\"", "[::1]:8443\", \"127.9.9.9:1\"");
    assert!(parse(&format!("{loopback}development = true")).is_ok());
}

#[test]
fn reports_all_faults_in_the_order_of_the_file() {
    let text = "version = 3\nlisten = [\"x\", \"127.0.0.1:1\", \"y\"]\nlog_identifier = true\n\
        [limits]\nmax_workers = 0\nmax_unauthenticated = 9000\nmax_watches_per_session = \"unlimited\"\n\
        max_principals_per_connection = 200\n[timeouts]\ndrain = 5\n[penalty]\n";
    let keys: Vec<_> = RouterConfig::parse(text, Path::new("r"))
        .unwrap_err()
        .0
        .into_iter()
        .map(|error| (error.line, error.key))
        .collect();
    let expected = [
        (1, "host"),
        (1, "origins"),
        (1, "directory"),
        (1, "public_certificate"),
        (1, "tls_key"),
        (1, "router_seed"),
        (1, "version"),
        (2, "listen[0]"),
        (2, "listen[2]"),
        (3, "log_identifier"),
        // max_workers is wrong itself, so nothing is compared with its stand-in.
        (5, "limits.max_workers"),
        (8, "limits.max_principals_per_connection"),
        (10, "timeouts.drain"),
        (11, "penalty"),
    ];
    assert_eq!(keys, expected.map(|(line, key)| (line, key.to_owned())));
}

#[test]
fn reports_syntax_errors_beside_wrong_values() {
    let faults = faults("version = 9\nhost = \nlisten == 3\n");
    assert!(faults.len() >= 3, "{faults:?}");
    assert_eq!(
        faults.first().unwrap(),
        "router.toml:1:11: version: found 9, allowed 1"
    );
    assert!(
        faults.iter().any(
            |fault| fault.starts_with("router.toml:2:") && fault.contains("allowed valid TOML")
        )
    );
    assert!(
        !faults.iter().any(|fault| fault.contains("required")),
        "{faults:?}"
    );
}

#[test]
fn one_fault_is_one_line() {
    let errors = parse("version = 2\nlisten = []").unwrap_err();
    assert_eq!(errors.to_string().lines().count(), errors.0.len());
}

#[test]
fn names_a_file_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("router.toml");
    let shown = path.display();
    let load = || RouterConfig::load(&path).unwrap_err().to_string();
    assert_eq!(
        load(),
        format!("{shown}: found no such file, allowed a readable file")
    );
    std::fs::write(&path, b"version = 1\nhost = \"\xff\"").unwrap();
    assert_eq!(
        load(),
        format!("{shown}:2:9: found a byte that is not UTF-8, allowed UTF-8 text")
    );
    std::fs::write(&path, vec![b'\n'; (1 << 20) + 1]).unwrap();
    assert_eq!(
        load(),
        format!("{shown}: found more than 1048576 bytes, allowed at most 1048576 bytes")
    );
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert_eq!(
        load(),
        format!("{shown}: found something that is not a file, allowed a readable file")
    );
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, REQUIRED).unwrap();
    let config = RouterConfig::load(&path).unwrap();
    assert_eq!(
        config.router_seed.path_in(None).unwrap(),
        folder.path().join("seed")
    );
}
