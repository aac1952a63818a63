//! Reading `router.toml` again over what runs.

use std::path::Path;

use memory_config::{ConfigErrors, Reloaded, RouterConfig};

const FILE: &str = "/etc/memory-router/router.toml";

fn text(listen: &str, host: &str, rest: &str) -> String {
    format!(
        "version = 1\nlisten = [\"{listen}\"]\nhost = \"{host}\"\norigins = []\ndirectory = \"directory.json\"\n\
         public_certificate = \"public.pem\"\ntls_key = \"tls.pem\"\nrouter_seed = \"seed\"\n{rest}"
    )
}

fn reload(before: &str, after: &str) -> Result<Reloaded, ConfigErrors> {
    let running = RouterConfig::parse(before, Path::new(FILE)).unwrap();
    RouterConfig::parse_over(after, Path::new(FILE), &running)
}

#[test]
fn an_unchanged_file_changes_nothing() {
    let same = text("127.0.0.1:1", "a", "");
    let reloaded = reload(&same, &same).unwrap();
    assert!(reloaded.changed.is_empty() && reloaded.ignored.is_empty());
}

#[test]
fn what_takes_effect_and_what_waits_are_named() {
    let before = text("127.0.0.1:1", "a", "");
    let after = text(
        "127.0.0.1:2",
        "b",
        "ipc_dir = \"elsewhere\"\n[isolation]\nworker_pool = 3\nkey_uid = 7\n[timeouts]\ndrain = \"1s\"\n\
         [limits]\nmax_workers = 300\n[penalties]\nenabled = false\n",
    );
    let reloaded = reload(&before, &after).unwrap();
    assert_eq!(
        reloaded.changed,
        [
            "host",
            "isolation.worker_pool",
            "timeouts.drain",
            "limits.max_workers",
            "penalties.enabled"
        ]
    );
    assert_eq!(reloaded.ignored, ["listen", "ipc_dir", "isolation.key_uid"]);
    let config = reloaded.config;
    assert_eq!(config.listen[0].port(), 1);
    assert_eq!(config.isolation.key_uid, 991);
    assert_eq!(
        (config.host.as_str(), config.limits.max_workers),
        ("b", 300)
    );
    // Known keys all of them.
    let known: Vec<_> = RouterConfig::keys()
        .iter()
        .map(|key| match key.section {
            "" => key.name.to_owned(),
            section => format!("{section}.{}", key.name),
        })
        .collect();
    for key in reloaded.changed.iter().chain(&reloaded.ignored) {
        assert!(known.iter().any(|name| name == key), "{key}");
    }
}

#[test]
fn a_fault_is_placed_as_at_the_start() {
    let before = text("127.0.0.1:1", "a", "");
    let after = text(
        "127.0.0.1:1",
        "a",
        "[limits]\nmax_workers = 0\nmax_worker = 1\n",
    );
    let errors = reload(&before, &after).unwrap_err();
    let places: Vec<_> = errors
        .0
        .iter()
        .map(|error| (error.line, error.column, error.key.as_str()))
        .collect();
    assert_eq!(
        places,
        [(10, 15, "limits.max_workers"), (11, 1, "limits.max_worker")]
    );
}

#[test]
fn checks_between_keys_hold_for_what_runs_from_now_on() {
    // The file alone is good, but the range of UIDs cannot move while workers run, and cannot grow over another's.
    let before = text("127.0.0.1:1", "a", "[isolation]\nworker_uid_base = 100\n");
    let after = text(
        "127.0.0.1:1",
        "a",
        "[isolation]\nworker_uid_base = 5000\n[limits]\nmax_workers = 900\n",
    );
    let errors = reload(&before, &after).unwrap_err();
    assert!(
        errors
            .0
            .iter()
            .any(|error| error.key == "isolation.worker_uid_base"
                || error.key == "isolation.listener_uid"),
        "{errors}"
    );
}
