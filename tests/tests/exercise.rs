//! The whole exercise, against the executables as they are now.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memory_exercise::processes::ToolshedCommand;
use memory_exercise::report::Outcome;
use memory_exercise::{Programs, gates, report, stage};
use tokio::runtime::Builder;

#[test]
fn every_gate_passes() {
    let programs = build();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let running = memory_exercise::run(&programs, None, |outcome| println!("{}", outcome.line()));
    let outcomes = runtime
        .block_on(running)
        .unwrap_or_else(|error| panic!("{error}"));
    println!("{}", report::verdict(&outcomes));
    let failed: Vec<String> = outcomes
        .iter()
        .filter(|outcome| !outcome.passed())
        .map(Outcome::line)
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(outcomes.len(), gates::ALL.len());
}

/// Builds the programs in the profile and the target folder that this test was built in.
///
/// A test of a package is not given the executables of others, and stale ones would be worse than none.
fn build() -> Programs {
    let own = std::env::current_exe().unwrap();
    // target/PROFILE/deps/exercise-HASH
    let output = own.ancestors().nth(2).unwrap();
    let target = output.parent().unwrap();
    let profile = match output.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        name => name,
    };
    let status = Command::new(env!("CARGO"))
        .args(["build", "-p", "memory-router", "-p", "memory-toolshed"])
        .args(["--profile", profile])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(status.success(), "the programs do not build");
    Programs {
        router: program(output, "memory-router"),
        toolshed: ToolshedCommand::Reference(program(output, "memory-toolshed")),
        stall: Duration::from_secs(15),
        schedules: stage::SCHEDULES,
        seed: None,
    }
}

fn program(output: &Path, name: &str) -> PathBuf {
    let path = output.join(name);
    assert!(path.is_file(), "no {}", path.display());
    path
}
