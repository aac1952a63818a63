//! Which spaces this toolshed owns, and since which epoch: its view of the directory (`docs/protocol.md` section 6.5).

use memory_config::{ConfigErrors, Directory, FileIdentity};
use memory_wire::Did;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// What a look at the directory file found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refreshed {
    /// The same file as before, good or not.
    Unchanged,
    /// Another good one: contexts may hold spaces that moved.
    Changed,
    /// The file became unreadable, invalid or meant for another topology. The last good state stays for what was admitted.
    Failed(String),
}

/// The directory, read anew when its file changes.
#[derive(Debug)]
pub(crate) struct Ownership {
    path: PathBuf,
    snapshot: Directory,
    /// The last file looked at; `None` when there was none.
    seen: Option<FileIdentity>,
    /// Whether `snapshot` is what the file says now.
    current: bool,
    /// This toolshed's index. Read once, as the rule for unlisted spaces is: a change needs a restart.
    index: u16,
}

impl Ownership {
    /// Reads the directory. `own` is this toolshed's DID; `deployment` must be the file's, when given.
    ///
    /// # Errors
    /// Every fault of the file, or that it does not list this toolshed.
    pub(crate) fn load(
        path: &Path,
        deployment: Option<&str>,
        own: &Did,
    ) -> Result<Self, OwnershipError> {
        let (snapshot, seen) = Directory::load(path, deployment)?;
        let index = snapshot.toolshed_index(own);
        Ok(Self {
            path: path.to_owned(),
            index: index.ok_or_else(|| OwnershipError::NotListed {
                file: path.to_owned(),
                did: *own,
            })?,
            snapshot,
            seen: Some(seen),
            current: true,
        })
    }

    /// Where the directory sends routers that look for this toolshed.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let own = self.snapshot.toolshed(self.index);
        own.map(|toolshed| toolshed.address)
    }

    /// Looks at the file again. Cheap while it is unchanged: the file is not opened.
    pub(crate) fn refresh(&mut self) -> Refreshed {
        let found = match FileIdentity::of(&self.path) {
            Ok(found) => found,
            Err(error) => return self.fail(None, || error.to_string()),
        };
        if self.seen == Some(found) {
            return Refreshed::Unchanged;
        }
        let mut nothing_seen = found;
        nothing_seen.len = found.len.wrapping_add(1); // no file has this identity: the read is never skipped
        match self.snapshot.read_if_changed(&self.path, &nothing_seen) {
            Err(errors) => self.fail(Some(found), || errors.to_string()),
            Ok(None) => Refreshed::Unchanged,
            Ok(Some((next, seen))) => {
                let same_index = next.toolshed(self.index).map(|toolshed| toolshed.did)
                    == self
                        .snapshot
                        .toolshed(self.index)
                        .map(|toolshed| toolshed.did);
                if !same_index || !next.same_unlisted_rule(&self.snapshot) {
                    return self.fail(Some(seen), || {
                        "this toolshed's index or the rule for unlisted spaces changed: restart"
                            .to_owned()
                    });
                }
                let changed = next != self.snapshot || !self.current;
                self.snapshot = next;
                self.seen = Some(seen);
                self.current = true;
                if changed {
                    Refreshed::Changed
                } else {
                    Refreshed::Unchanged
                }
            }
        }
    }

    /// Whether a space may be admitted at this epoch: the directory is good now and places it here so.
    pub(crate) fn admits(&self, space: &Did, epoch: u64) -> bool {
        self.current && self.owns(space, epoch)
    }

    /// Whether the last good directory places the space here at this epoch.
    pub(crate) fn owns(&self, space: &Did, epoch: u64) -> bool {
        let place = self.snapshot.place(space);
        place.is_some_and(|place| place.toolshed == self.index && place.epoch == epoch)
    }

    /// Whether the last good directory places the space here, at whatever epoch.
    pub(crate) fn places_here(&self, space: &Did) -> bool {
        let place = self.snapshot.place(space);
        place.is_some_and(|place| place.toolshed == self.index)
    }

    /// Whether the space is not listed and the rule places it here.
    pub(crate) fn may_create(&self, space: &Did) -> bool {
        let place = self.snapshot.place(space);
        self.current
            && !self.snapshot.is_listed(space)
            && place.is_some_and(|place| place.toolshed == self.index)
    }

    fn fail(&mut self, seen: Option<FileIdentity>, why: impl FnOnce() -> String) -> Refreshed {
        let repeated = !self.current && self.seen == seen;
        self.seen = seen;
        self.current = false;
        if repeated {
            Refreshed::Unchanged
        } else {
            Refreshed::Failed(why())
        }
    }
}

/// Why there is no ownership to speak of.
#[derive(Debug, thiserror::Error)]
pub enum OwnershipError {
    /// The directory file is not good.
    #[error("{0}")]
    Directory(#[from] ConfigErrors),
    /// The directory does not list this toolshed's DID.
    #[error("{file}: lists no toolshed with this one's DID, {did}", file = file.display())]
    NotListed {
        /// The directory file.
        file: PathBuf,
        /// Who this is.
        did: Did,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_config::Identity;
    use serde_json::{Map, Value, json};
    use tempfile::TempDir;

    const BASE58: &str = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

    fn did(byte: u8) -> Did {
        Identity::from_seed([byte; 32]).unwrap().did()
    }

    /// A directory of two toolsheds; `unlisted` names the toolshed of every unlisted space.
    fn directory(listed: &[(u8, u16, u64)], unlisted: Option<u16>, swapped: bool) -> String {
        let toolshed = |byte: u8| {
            json!({"name": format!("t{byte}"), "did": did(byte).as_str(), "server_name": "localhost",
                "address": format!("127.0.0.1:{}", 9000 + u16::from(byte)), "certificate": "tls.pem"})
        };
        let mut toolsheds = vec![toolshed(11), toolshed(12)];
        if swapped {
            toolsheds.reverse();
        }
        let spaces: Map<String, Value> = listed
            .iter()
            .map(|(space, toolshed, epoch)| {
                let place = json!({"toolshed": toolshed, "epoch": epoch});
                (did(*space).to_string(), place)
            })
            .collect();
        let mut root =
            json!({"version": 1, "deployment": "d", "toolsheds": toolsheds, "spaces": spaces});
        if let Some(toolshed) = unlisted {
            let rule: Map<String, Value> = BASE58
                .chars()
                .map(|character| (character.to_string(), toolshed.into()))
                .collect();
            root["unlisted"] = json!({"epoch": 1, "last_character": rule});
        }
        root.to_string()
    }

    fn replace(folder: &TempDir, text: &str) {
        let next = folder.path().join("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, folder.path().join("directory.json")).unwrap();
    }

    fn load(text: &str) -> (TempDir, Result<Ownership, OwnershipError>) {
        let folder = TempDir::new().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(folder.path().join("tls.pem"), made.cert.pem()).unwrap();
        replace(&folder, text);
        let path = folder.path().join("directory.json");
        let ownership = Ownership::load(&path, Some("d"), &did(11));
        (folder, ownership)
    }

    #[test]
    fn follows_the_file_and_keeps_the_last_good_state() {
        let (folder, ownership) = load(&directory(&[(31, 0, 7)], None, false));
        let mut ownership = ownership.unwrap();
        assert_eq!(ownership.refresh(), Refreshed::Unchanged);
        assert!(ownership.admits(&did(31), 7) && !ownership.admits(&did(31), 8));
        replace(&folder, "{");
        assert!(matches!(ownership.refresh(), Refreshed::Failed(_)));
        assert_eq!(ownership.refresh(), Refreshed::Unchanged, "said once");
        assert!(ownership.owns(&did(31), 7) && !ownership.admits(&did(31), 7));
        std::fs::remove_file(folder.path().join("directory.json")).unwrap();
        assert!(ownership.owns(&did(31), 7));
        replace(&folder, &directory(&[(31, 0, 8)], None, false));
        assert_eq!(ownership.refresh(), Refreshed::Changed);
        assert!(ownership.admits(&did(31), 8) && !ownership.owns(&did(31), 7));
    }

    #[test]
    fn rule_and_index_are_read_once() {
        let (folder, ownership) = load(&directory(&[(31, 0, 7)], Some(0), false));
        let mut ownership = ownership.unwrap();
        assert!(ownership.may_create(&did(99)) && ownership.admits(&did(99), 1));
        assert!(
            !ownership.may_create(&did(31)),
            "a listed space is never created"
        );
        for changed in [
            directory(&[(31, 0, 7)], Some(1), false),
            directory(&[(31, 0, 7)], None, false),
            directory(&[(31, 0, 7)], Some(0), true),
        ] {
            replace(&folder, &changed);
            assert!(matches!(ownership.refresh(), Refreshed::Failed(_)));
            assert!(!ownership.may_create(&did(99)) && ownership.owns(&did(31), 7));
        }
        replace(
            &folder,
            &directory(&[(31, 0, 7), (99, 1, 2)], Some(0), false),
        );
        assert_eq!(ownership.refresh(), Refreshed::Changed);
        assert!(!ownership.may_create(&did(99)) && !ownership.owns(&did(99), 2));
    }

    #[test]
    fn a_toolshed_must_be_listed() {
        let text = directory(&[], None, false).replace(did(11).as_str(), did(13).as_str());
        assert!(matches!(
            load(&text).1,
            Err(OwnershipError::NotListed { .. })
        ));
    }
}
