//! The policy file.

use std::net::Ipv4Addr;
use std::path::Path;

use memory_config::{ToolshedLimits, ToolshedPolicy};

use crate::{did, lines};

/// A good policy with its limits on line 4.
fn text(limits: &str) -> String {
    let router = did(21);
    format!(
        "{{\"version\":1,\"deployment\":\"local-mode-a\",\"hostname\":\"10.0.0.5\",\"port\":8444,\"certificate\":\"c.pem\",\n\
        \"key\":\"k.pem\",\"directory\":\"/d.json\",\"epochLedger\":\"ledger.jsonl\",\n\
        \"routers\":{{\"{router}\":[\"127.0.0.1\",\"192.168.1.1\"]}},\n{limits}}}"
    )
}

fn with_limits(limits: &str) -> String {
    text(&format!("\"limits\":{{{limits}}}"))
}

fn without_limits() -> String {
    text("").replace(",\n}", "}")
}

fn parse(text: &str) -> Result<ToolshedPolicy, Vec<String>> {
    let parsed = ToolshedPolicy::parse(text, Path::new("/etc/t/p"));
    parsed.map_err(|errors| {
        lines(&errors)
            .iter()
            .map(|line| line.replace("/etc/t/p:", ""))
            .collect()
    })
}

#[test]
fn reads_a_policy() {
    let policy = parse(&without_limits()).unwrap();
    assert_eq!(policy.deployment, "local-mode-a");
    assert_eq!(
        (policy.hostname, policy.port),
        (Ipv4Addr::new(10, 0, 0, 5), 8444)
    );
    assert_eq!(policy.certificate, Path::new("/etc/t/c.pem"));
    assert_eq!(policy.key, Path::new("/etc/t/k.pem"));
    assert_eq!(policy.directory, Path::new("/d.json"));
    assert_eq!(policy.epoch_ledger, Path::new("/etc/t/ledger.jsonl"));
    let peers: Vec<_> = policy
        .routers
        .values()
        .flatten()
        .map(ToString::to_string)
        .collect();
    assert_eq!(peers, ["127.0.0.1", "192.168.1.1"]);
    assert_eq!(policy.limits, ToolshedLimits::default());
}

#[test]
fn defaults_are_those_of_the_documentation() {
    let expected = [
        ("contextsPerLink", 512),
        ("sockets", 2048),
        ("tickets", 2048),
        ("principalsPerContext", 16),
        ("principalHistoryPerContext", 128),
        ("proofsPerContext", 160),
        ("requestsPerContext", 1024),
        ("spacesPerContext", 1200),
        ("sessionsPerContext", 1200),
        ("sessionsPerRouter", 8192),
        ("sessionsPerToolshed", 16384),
        ("sessionsPerPrincipal", 2400),
        ("watchesPerSession", 2048),
        ("viewsPerSession", 64),
        ("watchesPerContext", 40960),
        ("watchesPerRouter", 262_144),
        ("watchesPerToolshed", 524_288),
        ("watchesPerPrincipal", 81920),
        ("holdingsPerSession", 8192),
        ("holdingsPerContext", 327_680),
        ("holdingsPerRouter", 2_097_152),
        ("holdingsPerToolshed", 4_194_304),
        ("holdingsPerPrincipal", 655_360),
        ("outputBytesPerSocket", 4_194_304),
        ("frameSlots", 150_000),
    ];
    assert_eq!(
        ToolshedLimits::default().entries(),
        expected.map(|(name, value)| (name, Some(value)))
    );
}

#[test]
fn null_switches_each_limit_off() {
    for (name, _) in ToolshedLimits::default().entries() {
        let policy = parse(&with_limits(&format!("\"{name}\":null"))).unwrap();
        for (other, value) in policy.limits.entries() {
            assert_eq!(value.is_none(), other == name);
        }
        for bad in ["0", "-1", "1.5", "\"5\"", "9007199254740992", "[]"] {
            let faults = parse(&with_limits(&format!("\"{name}\":{bad}"))).unwrap_err();
            let found = if bad == "[]" { "an array" } else { bad };
            let column = name.len() + 14;
            assert_eq!(
                faults,
                [format!(
                    "4:{column}: limits.{name}: found {found}, allowed 1..=9007199254740991 or null"
                )]
            );
        }
    }
    let all: Vec<_> = ToolshedLimits::default()
        .entries()
        .iter()
        .map(|(name, _)| format!("\"{name}\":null"))
        .collect();
    assert!(parse(&with_limits(&all.join(","))).is_ok());
}

#[test]
fn names_each_broken_order() {
    let table = [
        (
            "\"sessionsPerContext\":8193",
            "4:32: limits.sessionsPerContext: found 8193, allowed at most limits.sessionsPerRouter = 8192",
        ),
        (
            "\"sessionsPerRouter\":16385",
            "4:31: limits.sessionsPerRouter: found 16385, allowed at most limits.sessionsPerToolshed = 16384",
        ),
        (
            "\"sessionsPerRouter\":null,\"sessionsPerContext\":16385",
            "4:57: limits.sessionsPerContext: found 16385, allowed at most limits.sessionsPerToolshed = 16384",
        ),
        (
            "\"sessionsPerPrincipal\":16385",
            "4:34: limits.sessionsPerPrincipal: found 16385, allowed at most limits.sessionsPerToolshed = 16384",
        ),
        (
            "\"watchesPerContext\":262145",
            "4:31: limits.watchesPerContext: found 262145, allowed at most limits.watchesPerRouter = 262144",
        ),
        (
            "\"watchesPerRouter\":524289",
            "4:30: limits.watchesPerRouter: found 524289, allowed at most limits.watchesPerToolshed = 524288",
        ),
        (
            "\"watchesPerPrincipal\":524289",
            "4:33: limits.watchesPerPrincipal: found 524289, allowed at most limits.watchesPerToolshed = 524288",
        ),
        (
            "\"holdingsPerContext\":2097153",
            "4:32: limits.holdingsPerContext: found 2097153, allowed at most limits.holdingsPerRouter = 2097152",
        ),
        (
            "\"holdingsPerRouter\":4194305",
            "4:31: limits.holdingsPerRouter: found 4194305, allowed at most limits.holdingsPerToolshed = 4194304",
        ),
        (
            "\"holdingsPerPrincipal\":4194305",
            "4:34: limits.holdingsPerPrincipal: found 4194305, allowed at most limits.holdingsPerToolshed = 4194304",
        ),
        (
            "\"principalsPerContext\":129,\"proofsPerContext\":null",
            "4:34: limits.principalsPerContext: found 129, allowed at most limits.principalHistoryPerContext = 128",
        ),
        (
            "\"watchesPerContext\":2047",
            "4:31: limits.watchesPerSession: found 2048 (the default), allowed at most limits.watchesPerContext = 2047",
        ),
        (
            "\"proofsPerContext\":143",
            "4:30: limits.proofsPerContext: found 143, allowed at least 144: limits.principalHistoryPerContext = 128 and a renewal for each of limits.principalsPerContext = 16",
        ),
        (
            "\"sockets\":512",
            "4:21: limits.sockets: found 512, allowed at least 513: 1 routers * (limits.contextsPerLink + 1), with contextsPerLink = 512",
        ),
        (
            "\"tickets\":511",
            "4:21: limits.tickets: found 511, allowed at least 512: 1 routers * limits.contextsPerLink, with contextsPerLink = 512",
        ),
    ];
    for (limits, expected) in table {
        assert_eq!(
            parse(&with_limits(limits)).unwrap_err(),
            [expected],
            "{limits}"
        );
    }
    for good in [
        "\"sockets\":513",
        "\"tickets\":512",
        "\"proofsPerContext\":144",
        "\"contextsPerLink\":null,\"sockets\":1",
        "\"sessionsPerRouter\":null",
        "\"sessionsPerContext\":null",
    ] {
        assert!(parse(&with_limits(good)).is_ok(), "{good}");
    }
}

#[test]
fn sockets_and_tickets_cover_every_router() {
    let many = |count: u8| {
        let routers: Vec<_> = (0..count)
            .map(|byte| format!("\"{}\":[\"127.0.0.1\"]", did(byte)))
            .collect();
        let own = format!("\"{}\":[\"127.0.0.1\",\"192.168.1.1\"]", did(21));
        without_limits().replace(&own, &routers.join(","))
    };
    assert!(parse(&many(3)).is_ok());
    let faults = parse(&many(4)).unwrap_err();
    assert_eq!(
        faults,
        [
            "3:11: limits.sockets: found 2048 (the default), allowed at least 2052: 4 routers * (limits.contextsPerLink + 1), with contextsPerLink = 512"
        ]
    );
    assert_eq!(
        parse(&many(0)).unwrap_err(),
        ["3:11: routers: found 0 routers, allowed 1..=16"]
    );
    assert!(
        parse(&many(17))
            .unwrap_err()
            .contains(&"3:11: routers: found 17 routers, allowed 1..=16".to_owned())
    );
}

#[test]
fn names_each_fault_exactly() {
    let router = did(21);
    let table = [
        ("10.0.0.5", "8.8.8.8", "1:53: hostname: found \"8.8.8.8\", allowed a private or loopback IPv4 address".to_owned()),
        ("10.0.0.5", "::1", "1:53: hostname: found \"::1\", allowed a private or loopback IPv4 address".to_owned()),
        ("8444", "0", "1:71: port: found 0, allowed 1..=65535".to_owned()),
        ("8444", "65536", "1:71: port: found 65536, allowed 1..=65535".to_owned()),
        ("8444", "\"8444\"", "1:71: port: found \"8444\", allowed 1..=65535".to_owned()),
        ("\"k.pem\"", "\"\"", "2:7: key: found \"\", allowed a path".to_owned()),
        ("\"key\":\"k.pem\",", "", "1:1: key: found nothing, allowed this member, it is required".to_owned()),
        ("epochLedger", "epoch_ledger", String::new()),
        ("\"192.168.1.1\"", "\"127.0.0.1\"", format!("3:84: routers.{router}[1]: found a duplicate address, allowed each address once")),
        ("\"192.168.1.1\"", "\"1.1.1.1\"", format!("3:84: routers.{router}[1]: found \"1.1.1.1\", allowed a private or loopback IPv4 address")),
        ("[\"127.0.0.1\",\"192.168.1.1\"]", "[]", format!("3:71: routers.{router}: found 0 addresses, allowed 1..=4")),
        ("[\"127.0.0.1\",\"192.168.1.1\"]", "\"127.0.0.1\"", format!("3:71: routers.{router}: found \"127.0.0.1\", allowed an array of 1..=4 private or loopback IPv4 addresses")),
        ("[\"127.0.0.1\",\"192.168.1.1\"]", "[\"10.0.0.1\",\"10.0.0.2\",\"10.0.0.3\",\"10.0.0.4\",\"10.0.0.5\"]", format!("3:71: routers.{router}: found 5 addresses, allowed 1..=4")),
        (&router, "did:key:zz", "3:12: routers.did:key:zz: found a name that is no DID, allowed a canonical did:key of an Ed25519 key".to_owned()),
    ];
    for (from, to, expected) in table {
        let faults = parse(&without_limits().replacen(from, to, 1)).unwrap_err();
        if expected.is_empty() {
            let unknown = "2:37: epoch_ledger: found an unknown member (= \"ledger.jsonl\"), allowed a known member, the nearest is epochLedger";
            assert_eq!(
                faults,
                [
                    "1:1: epochLedger: found nothing, allowed this member, it is required",
                    unknown
                ]
            );
        } else {
            assert_eq!(faults, [expected], "{to}");
        }
    }
    let limits = [
        (
            "\"limits\":null",
            "4:10: limits: found null, allowed an object",
        ),
        (
            "\"limits\":{\"socket\":1}",
            "4:11: limits.socket: found an unknown member (= 1), allowed a known member, the nearest is sockets",
        ),
        (
            "\"limits\":{\"sockets\":2048,\"sockets\":2048}",
            "4:26: limits.sockets: found a duplicate member, allowed each member once",
        ),
    ];
    for (limits, expected) in limits {
        assert_eq!(parse(&text(limits)).unwrap_err(), [expected], "{limits}");
    }
}
