//! Tests of `snapshot`; compiled under `#[cfg(test)]` alone.

use super::*;
use std::fs;
use std::io::Write;
use tempfile::TempDir;

/// A folder with a self-signed certificate, in which directories are written.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificate = rcgen::generate_simple_self_signed(["toolshed.test".to_owned()]).unwrap();
        fs::write(folder.path().join("toolshed.pem"), certificate.cert.pem()).unwrap();
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("directory.json")
    }

    /// Replaces the directory as a careful writer does.
    fn replace(&self, text: &str) {
        let next = self.folder.path().join("next");
        let mut file = fs::File::create(&next).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        fs::rename(next, self.path()).unwrap();
    }

    fn load(&self) -> Result<Directory, ConfigErrors> {
        Directory::load(&self.path(), None).map(|(directory, _)| directory)
    }
}

fn did(byte: u8) -> Did {
    memory_config::Identity::from_seed([byte; 32])
        .unwrap()
        .did()
}

fn directory(port: u16, epoch: u64) -> String {
    format!(
        r#"{{"version":1,"deployment":"test-stage","toolsheds":[{{"name":"one","did":"{}","address":"127.0.0.1:{port}",
        "server_name":"toolshed.test","certificate":"toolshed.pem"}}],"spaces":{{"{}":{{"toolshed":0,"epoch":{epoch}}}}}}}"#,
        did(20),
        did(100)
    )
}

#[test]
fn follows_placements_and_refuses_another_topology_until_restart() {
    let files = Files::new();
    files.replace(&directory(9001, 5));
    let mut snapshot = Snapshot::new(files.load().unwrap());
    assert_eq!(
        snapshot.place(&did(100)),
        Ok(Placement {
            toolshed: 0,
            epoch: 5
        })
    );
    assert_eq!(snapshot.place(&did(101)), Err(Reason::Unplaced));

    files.replace(&directory(9001, 6));
    assert_eq!(snapshot.apply(Ok(Some(files.load().unwrap()))), None);
    assert_eq!(
        snapshot.place(&did(100)),
        Ok(Placement {
            toolshed: 0,
            epoch: 6
        })
    );

    files.replace(&directory(9002, 7));
    assert_eq!(
        snapshot.apply(Ok(Some(files.load().unwrap()))),
        Some(Reason::RestartNeeded)
    );
    assert_eq!(snapshot.place(&did(100)), Err(Reason::RestartNeeded));
    assert_eq!(
        snapshot.toolshed(0).map(|toolshed| toolshed.address.port()),
        Some(9001)
    );

    // The version that the snapshot is of is good again when it comes back.
    assert_eq!(snapshot.apply(Ok(None)), None);
    assert_eq!(
        snapshot.place(&did(100)),
        Ok(Placement {
            toolshed: 0,
            epoch: 6
        })
    );
}

#[test]
fn refuses_another_rule_for_unlisted_spaces_until_restart() {
    let base58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    let all: Vec<String> = base58.chars().map(|c| format!("\"{c}\":0")).collect();
    let with_rule = |epoch: u64| {
        let rule = format!(
            r#","unlisted":{{"epoch":{epoch},"last_character":{{{}}}}}}}"#,
            all.join(",")
        );
        let text = directory(9001, 5);
        format!("{}{rule}", text.strip_suffix('}').unwrap())
    };
    let files = Files::new();
    files.replace(&with_rule(1));
    let mut snapshot = Snapshot::new(files.load().unwrap());
    assert!(snapshot.place(&did(101)).is_ok());

    // Its epoch is placement, as a space's is.
    files.replace(&with_rule(2));
    assert_eq!(snapshot.apply(Ok(Some(files.load().unwrap()))), None);
    assert_eq!(
        snapshot.place(&did(101)).map(|placement| placement.epoch),
        Ok(2)
    );

    files.replace(&directory(9001, 5));
    assert_eq!(
        snapshot.apply(Ok(Some(files.load().unwrap()))),
        Some(Reason::RestartNeeded)
    );
    for space in [100, 101] {
        assert_eq!(snapshot.place(&did(space)), Err(Reason::RestartNeeded));
    }
}

#[test]
fn refuses_new_opens_while_the_newest_version_is_invalid() {
    let files = Files::new();
    files.replace(&directory(9001, 5));
    let mut snapshot = Snapshot::new(files.load().unwrap());
    files.replace("{\"version\":1,");
    assert_eq!(
        snapshot.apply(files.load().map(Some).map_err(|_| ())),
        Some(Reason::DirectoryUnreadable)
    );
    assert_eq!(snapshot.place(&did(100)), Err(Reason::DirectoryUnreadable));
    assert!(snapshot.toolshed(0).is_some());
    files.replace(&directory(9001, 6));
    assert_eq!(snapshot.apply(files.load().map(Some).map_err(|_| ())), None);
    assert_eq!(
        snapshot.place(&did(100)),
        Ok(Placement {
            toolshed: 0,
            epoch: 6
        })
    );
}

#[test]
fn reads_what_changed_and_what_failed_a_while_ago() {
    let files = Files::new();
    let now = Instant::now();
    let identity = |text: &str| {
        files.replace(text);
        FileIdentity::of(&files.path()).unwrap()
    };
    let first = identity("first");
    let mut schedule = Schedule::new(first);
    assert!(!schedule.is_due(Some(&first), now + RETRY * 10));
    assert!(schedule.is_due(None, now));
    let second = identity("second, longer");
    assert!(schedule.is_due(Some(&second), now));
    schedule.failed(Some(second), now);
    assert!(!schedule.is_due(Some(&second), now));
    assert!(schedule.is_due(Some(&second), now + RETRY));
    assert!(schedule.is_due(Some(&first), now));
    schedule.failed(None, now);
    assert!(!schedule.is_due(None, now));
    schedule.succeeded(second);
    assert!(!schedule.is_due(Some(&second), now + RETRY * 10));
    assert_eq!(schedule.good, second);
}

#[tokio::test(flavor = "current_thread")]
async fn the_file_is_watched() {
    let files = Files::new();
    files.replace(&directory(9001, 5));
    let (directory_file, identity) = Directory::load(&files.path(), None).unwrap();
    let snapshot = Rc::new(RefCell::new(Snapshot::new(directory_file)));
    let watching = watch(files.path(), Rc::clone(&snapshot), identity);
    let becomes = |wanted: Result<Placement, Reason>| {
        let snapshot = Rc::clone(&snapshot);
        async move {
            let read = Rc::clone(&snapshot.borrow().read);
            while snapshot.borrow().place(&did(100)) != wanted {
                read.notified().await;
            }
        }
    };
    let story = async {
        files.replace("half");
        becomes(Err(Reason::DirectoryUnreadable)).await;
        files.replace(&directory(9001, 6));
        becomes(Ok(Placement {
            toolshed: 0,
            epoch: 6,
        }))
        .await;
        fs::remove_file(files.path()).unwrap();
        becomes(Err(Reason::DirectoryUnreadable)).await;
        files.replace(&directory(9009, 7));
        becomes(Err(Reason::RestartNeeded)).await;
        files.replace(&directory(9001, 8));
        becomes(Ok(Placement {
            toolshed: 0,
            epoch: 8,
        }))
        .await;
    };
    tokio::select! {
        () = watching => {}
        done = tokio::time::timeout(Duration::from_secs(20), story) => done.expect("followed in time"),
    }
}
