//! Reading a file for a caller that goes on to what it names.

use std::path::Path;

use memory_config::RouterConfig;

const TEXT: &str = "version = 1\nlisten = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\nhost = \"a\"\norigins = []\n\
    directory = \"d\"\npublic_certificate = \"c\"\ntls_key = \"k\"\nrouter_seed = \"s\"\n\
    [limits]\nmax_workers = 7\nmax_unauthenticated = 7\nmax_per_source = 7\nmax_unauthenticated_per_source = 7\n";

#[test]
fn places_are_those_of_the_values() {
    let examined = RouterConfig::examine_text(TEXT, Path::new("router.toml"));
    assert_eq!(examined.errors, []);
    let places = &examined.places;
    assert_eq!(places.of("version"), Some((1, 11)));
    assert_eq!(places.of("listen[1]"), Some((2, 26)));
    assert_eq!(places.of("limits.max_workers"), Some((10, 15)));
    assert_eq!(places.of("limits.max_watches_per_session"), None);
    let config = examined.config.unwrap();
    assert_eq!(
        config,
        RouterConfig::parse(TEXT, Path::new("router.toml")).unwrap()
    );
}

#[test]
fn what_is_wrong_is_not_sound_and_the_rest_is() {
    let text = TEXT
        .replace("127.0.0.1:2", "127.0.0.1")
        .replace("max_workers = 7", "max_workers = 0");
    let examined = RouterConfig::examine_text(&text, Path::new("router.toml"));
    let keys: Vec<&str> = examined
        .errors
        .iter()
        .map(|error| error.key.as_str())
        .collect();
    assert_eq!(keys, ["listen[1]", "limits.max_workers"]);
    for key in ["listen", "limits.max_workers", "limits"] {
        assert!(!examined.is_sound(key), "{key}");
        assert_eq!(examined.places.of(key), None);
    }
    for key in ["host", "list", "limits.max_per_source", "state_dir"] {
        assert!(examined.is_sound(key), "{key}");
    }
    assert!(examined.config.is_some());
}

#[test]
fn without_syntax_nothing_is_sound() {
    let examined = RouterConfig::examine_text("version = = 1\n", Path::new("router.toml"));
    assert!(examined.config.is_none() && !examined.errors.is_empty());
    assert!(!examined.is_sound("host"));
    let missing = RouterConfig::examine(Path::new("no-such-file.toml"));
    assert!(missing.config.is_none() && missing.errors.len() == 1);
}
