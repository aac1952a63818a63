//! What a worker is told.

use std::path::Path;

use memory_config::{RouterConfig, WorkerSettings};

fn settings() -> WorkerSettings {
    let text = include_str!("../../examples/router.toml")
        .replace(
            "# max_frame_slots = 150000",
            "max_frame_slots = \"unlimited\"",
        )
        .replace("# handshake = \"10s\"", "handshake = \"1500ms\"");
    let config = RouterConfig::parse(&text, Path::new("router.toml")).unwrap();
    WorkerSettings::from_config(&config, vec![vec![1, 2], vec![3]], vec![0x0807, 0x0403])
}

#[test]
fn carries_the_configuration() {
    let settings = settings();
    assert_eq!(settings.host, "localhost:8443");
    assert_eq!(settings.origins, ["https://stage.example"]);
    assert_eq!(settings.handshake_ms, 1500);
    assert_eq!(settings.authenticate_ms, 60_000);
    assert_eq!(settings.upload_window, 262_144);
    assert_eq!(settings.max_frame_slots, None);
    assert_eq!(settings.max_sessions_per_connection, Some(1200));
    assert_eq!(settings.certificate_chain, [vec![1, 2], vec![3]]);
    assert_eq!(settings.schemes, [0x0807, 0x0403]);
}

#[test]
fn survives_its_channel() {
    let settings = settings();
    let text = serde_json::to_string(&settings).unwrap();
    assert_eq!(
        serde_json::from_str::<WorkerSettings>(&text).unwrap(),
        settings
    );
    let unknown = text.replacen('{', "{\"extra\":1,", 1);
    assert!(serde_json::from_str::<WorkerSettings>(&unknown).is_err());
    let missing = text.replacen("\"require_origin\":false,", "", 1);
    assert!(serde_json::from_str::<WorkerSettings>(&missing).is_err());
}
