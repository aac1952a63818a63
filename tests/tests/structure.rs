//! The workspace's structure: which crate may use which, and where unsafe code may be.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

/// What each crate may use of the others. A role crate never uses another.
const ALLOWED: [(&str, &[&str]); 16] = [
    (
        "memory-admin",
        &["memory-budget", "memory-ipc", "memory-log"],
    ),
    ("memory-budget", &[]),
    ("memory-log", &[]),
    ("memory-wire", &[]),
    ("memory-sandbox", &[]),
    ("memory-config", &["memory-wire"]),
    ("memory-ipc", &["memory-wire"]),
    ("memory-transport", &["memory-wire"]),
    ("memory-worker", ROLE),
    ("memory-key-agent", AGENT),
    ("memory-link-agent", AGENT),
    ("memory-directory-broker", AGENT),
    ("memory-client", PEER),
    (
        "memory-toolshed",
        &[
            "memory-budget",
            "memory-config",
            "memory-log",
            "memory-transport",
            "memory-wire",
        ],
    ),
    (
        "memory-router",
        &[
            "memory-admin",
            "memory-budget",
            "memory-client",
            "memory-config",
            "memory-directory-broker",
            "memory-ipc",
            "memory-key-agent",
            "memory-link-agent",
            "memory-log",
            "memory-sandbox",
            "memory-toolshed",
            "memory-transport",
            "memory-wire",
            "memory-worker",
        ],
    ),
    (
        "memory-exercise",
        &[
            "memory-admin",
            "memory-client",
            "memory-config",
            "memory-sandbox",
            "memory-transport",
            "memory-wire",
        ],
    ),
];

const ROLE: &[&str] = &[
    "memory-budget",
    "memory-config",
    "memory-ipc",
    "memory-sandbox",
    "memory-transport",
    "memory-wire",
];

/// A role that shows itself.
const AGENT: &[&str] = &[
    "memory-admin",
    "memory-budget",
    "memory-config",
    "memory-ipc",
    "memory-sandbox",
    "memory-transport",
    "memory-wire",
];

const PEER: &[&str] = &[
    "memory-budget",
    "memory-config",
    "memory-transport",
    "memory-wire",
];

/// What the router may use only where a feature asks for it: the demo.
const OPTIONAL_IN_ROUTER: [&str; 2] = ["memory-client", "memory-toolshed"];

/// The crates with unsafe code.
const UNSAFE: [&str; 2] = ["memory-ipc", "memory-sandbox"];

#[test]
fn crates_use_only_what_they_may() {
    let allowed = BTreeMap::from(ALLOWED);
    let packages = packages();
    let names: BTreeSet<&str> = packages
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    let known: BTreeSet<&str> = allowed.keys().copied().collect();
    assert_eq!(names, known, "crates of the workspace and of the table");

    let mut faults = Vec::new();
    for package in &packages {
        for edge in package.edges() {
            if !names.contains(edge.to.as_str()) {
                continue;
            }
            if !allowed[package.name.as_str()].contains(&edge.to.as_str()) {
                faults.push(format!("{} uses {} ({})", package.name, edge.to, edge.kind));
            }
            let is_demo = package.name == "memory-router"
                && OPTIONAL_IN_ROUTER.contains(&edge.to.as_str())
                && edge.kind != "dev-dependencies";
            if is_demo && !edge.is_optional {
                faults.push(format!("{} must be optional in {}", edge.to, package.name));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    let mut faults = Vec::new();
    for package in packages() {
        let may = UNSAFE.contains(&package.name.as_str());
        for root in package.roots() {
            let text = fs::read_to_string(&root).unwrap();
            let wanted = if may {
                "#![deny(unsafe_code)]"
            } else {
                "#![forbid(unsafe_code)]"
            };
            if !text.lines().any(|line| line == wanted) {
                faults.push(format!("{} lacks {wanted}", root.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

struct Package {
    name: String,
    folder: PathBuf,
    manifest: Table,
}

struct Edge {
    to: String,
    kind: &'static str,
    is_optional: bool,
}

impl Package {
    /// The dependencies of every kind, also those of single targets.
    fn edges(&self) -> Vec<Edge> {
        let mut tables = vec![&self.manifest];
        if let Some(targets) = self.manifest.get("target").and_then(Value::as_table) {
            tables.extend(targets.values().filter_map(Value::as_table));
        }
        let mut edges = Vec::new();
        for table in tables {
            for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
                let Some(dependencies) = table.get(kind).and_then(Value::as_table) else {
                    continue;
                };
                for (key, value) in dependencies {
                    let renamed = value.get("package").and_then(Value::as_str);
                    let optional = value.get("optional").and_then(Value::as_bool);
                    edges.push(Edge {
                        to: renamed.unwrap_or(key).to_owned(),
                        kind,
                        is_optional: optional == Some(true),
                    });
                }
            }
        }
        edges
    }

    /// The files that are roots of a library or an executable.
    fn roots(&self) -> Vec<PathBuf> {
        let source = self.folder.join("src");
        let mut roots: Vec<PathBuf> = ["lib.rs", "main.rs"]
            .iter()
            .map(|name| source.join(name))
            .filter(|path| path.is_file())
            .collect();
        if let Ok(more) = fs::read_dir(source.join("bin")) {
            roots.extend(more.map(|entry| entry.unwrap().path()));
        }
        assert!(!roots.is_empty(), "{} has no root", self.name);
        roots
    }
}

fn packages() -> Vec<Package> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let members = manifest(workspace)["workspace"]["members"].clone();
    members
        .as_array()
        .unwrap()
        .iter()
        .map(|member| {
            let folder = workspace.join(member.as_str().unwrap());
            let manifest = manifest(&folder);
            Package {
                name: manifest["package"]["name"].as_str().unwrap().to_owned(),
                folder,
                manifest,
            }
        })
        .collect()
}

fn manifest(folder: &Path) -> Table {
    let path = folder.join("Cargo.toml");
    fs::read_to_string(&path)
        .unwrap()
        .parse()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
