//! Each role checks its own part at start, by the same code, and nothing of the others'.

use std::process::Command;

use rustix::process::{Resource, getrlimit};

use crate::support::EXECUTABLE;
use crate::world::World;

const ROLES: [&str; 6] = [
    "run",
    "listener",
    "spawner",
    "key-agent",
    "link-agent",
    "directory-broker",
];

/// The status of a role that is not expected to start, and what it says.
fn refused(world: &World, role: &str) -> (Option<i32>, String) {
    let output = world.run(role, &[]);
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_role_that_finds_an_error_of_its_part_ends_with_78() {
    type Break = fn(&World);
    let cases: [(Break, &[&str], &str); 5] = [
        (
            |world| {
                world.edit(
                    "router.toml",
                    "[\"127.0.0.1:8443\"]",
                    "[\"127.0.0.1:8443\", \"0.0.0.0:8443\"]",
                )
            },
            &["run", "listener"],
            "router.toml:2:29: listen[1]: two listeners want one address: found",
        ),
        (
            |world| world.take("expired.pem", "public.pem"),
            &["run", "key-agent"],
            "router.toml:6:22: public_certificate: the public certificate has expired: found",
        ),
        (
            |world| world.mode("router.seed", 0o644),
            &["run", "link-agent"],
            "router.toml:8:15: router_seed: a secret is open to other users: found",
        ),
        (
            |world| world.edit("directory.json", "\"epoch\": 1", "\"epoch\": 0"),
            &["run", "link-agent", "directory-broker"],
            "directory.json:14:",
        ),
        (
            |world| {
                world.edit(
                    "router.toml",
                    "\"ipc\"",
                    &format!("\"{}\"", "i".repeat(100)),
                )
            },
            &["run", "spawner"],
            "router.toml:9:11: ipc_dir: the path is too long for sockets in it: found",
        ),
    ];
    for (change, roles, line) in cases {
        let world = World::good();
        change(&world);
        for role in roles {
            let (status, said) = refused(&world, role);
            assert_eq!(status, Some(78), "{role}: {said}");
            assert!(said.contains(line), "{role}: {said}");
        }
    }
}

#[test]
fn every_role_says_what_is_wrong_with_the_file_itself() {
    let world = World::good();
    world.edit("router.toml", "max_workers = 64", "max_workers = 0");
    for role in ROLES {
        let (status, said) = refused(&world, role);
        assert_eq!(status, Some(78), "{role}");
        assert!(
            said.contains("router.toml:19:15: limits.max_workers: found 0, allowed"),
            "{role}: {said}"
        );
    }
}

#[test]
fn a_role_needs_descriptors_for_its_connections() {
    let world = World::good();
    world.edit("router.toml", "max_workers = 64", "max_workers = 1000");
    let hard = getrlimit(Resource::Nofile).maximum;
    if hard.is_some_and(|hard| hard < 1000) {
        println!("left out, for this process has too few descriptors itself");
        return;
    }
    for (role, needs) in [
        ("spawner", "too few file descriptors for the spawner"),
        ("link-agent", "too few file descriptors for the link-agent"),
        (
            "directory-broker",
            "too few file descriptors for the directory-broker",
        ),
    ] {
        let mut command = Command::new("/bin/sh");
        command
            .args([
                "-c",
                "ulimit -n 1000 && exec \"$0\" \"$@\"",
                EXECUTABLE,
                role,
                "--config",
                "router.toml",
            ])
            .current_dir(world.folder.path());
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains(needs), "{said}");
        assert!(
            said.contains("router.toml:19:15: limits.max_workers"),
            "{said}"
        );
    }
}
