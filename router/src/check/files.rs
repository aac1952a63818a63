//! Files that the configuration names: there, regular, and open to nobody who has no business with them.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use memory_config::{DirectorySource, FileSource, RevocationFile, RevocationList};
use rustix::process::geteuid;

use super::finding::Finding;
use super::subject::{Reach, Subject};

/// Longest path of a UNIX socket, bytes without the zero at its end (unix(7)).
const MAX_SOCKET_PATH_LEN: usize = 107;
/// The role socket with the longest name.
const LONGEST_SOCKET: &str = "admin/directory-broker.sock";
/// Access of group and others.
const NOT_OWNER: u32 = 0o077;
/// Access of others.
const OTHERS: u32 = 0o007;
const WRITE_BY_OTHERS: u32 = 0o002;

/// The path of a file that a key names, once it is known to be a regular file. What is wrong with it is found.
pub(super) fn regular(
    subject: &Subject<'_>,
    key: &str,
    source: &FileSource,
    findings: &mut Vec<Finding>,
) -> Option<(PathBuf, Metadata)> {
    if !subject.is_sound(&[key]) {
        return None;
    }
    let path = match source.path() {
        Ok(path) => path,
        Err(error) => {
            let finding = match subject.reach {
                Reach::Start => Finding::error("a credential is not there"),
                _ => Finding::warning("a credential cannot be looked at from here"),
            };
            findings.push(
                subject
                    .at(key, finding)
                    .found(error.to_string())
                    .allowed("a file in the service manager's credential folder")
                    .mend("check as part of the service, or set CREDENTIALS_DIRECTORY to a folder with the same files"),
            );
            return None;
        }
    };
    let wrong = |found: String| {
        subject
            .at(key, Finding::error("a file that is needed cannot be used"))
            .found(found)
            .allowed("a regular file that this user can read")
            .mend(format!("put the file there, or change {key}"))
    };
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => Some((path, metadata)),
        Ok(_) => {
            findings.push(wrong(format!("{}, which is no file", path.display())));
            None
        }
        Err(error) => {
            findings.push(wrong(format!("{}: {}", path.display(), told(&error))));
            None
        }
    }
}

/// A file with a secret in it: nobody but its role may read it.
pub(super) fn secret(
    subject: &Subject<'_>,
    key: &str,
    source: &FileSource,
    role_uid: u32,
    findings: &mut Vec<Finding>,
) -> Option<PathBuf> {
    let (path, metadata) = regular(subject, key, source, findings)?;
    let shown = path.display();
    let mode = metadata.mode() & 0o7777;
    // A service manager passes credentials by an access control list, whose mask shows as the mode of the group.
    let (open_to, allowed) = match source {
        FileSource::Path(_) => (NOT_OWNER, "no access for group and others"),
        FileSource::Credential(_) => (OTHERS, "no access for others"),
    };
    if mode & open_to != 0 {
        findings.push(
            subject
                .at(key, Finding::error("a secret is open to other users"))
                .found(format!("{shown} with mode {mode:04o}"))
                .allowed(allowed)
                .mend(format!(
                    "chmod 600 {shown}; if others could read it until now, replace the secret"
                )),
        );
    }
    let me = geteuid().as_raw();
    let owner = metadata.uid();
    if ![0, me, role_uid].contains(&owner) {
        findings.push(
            subject
                .at(key, Finding::error("a secret belongs to another user"))
                .found(format!("{shown} of UID {owner}"))
                .allowed(format!(
                    "UID {me}, which asks, root, or the role's {role_uid}"
                ))
                .mend(format!(
                    "chown {shown} to the user that runs the router, and check as that user"
                )),
        );
    }
    Some(path)
}

/// No file is named twice, and those that decide who may do what are not for everybody to write.
pub(super) fn relations(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    let mut named: Vec<(&str, PathBuf)> = vec![("", subject.file.to_owned())];
    if let (DirectorySource::File(path), true) =
        (&subject.config.directory, subject.is_sound(&["directory"]))
    {
        named.push(("directory", path.clone()));
    }
    for (key, source) in subject.named_files() {
        if let (Ok(path), true) = (source.path(), subject.is_sound(&[key])) {
            named.push((key, path));
        }
    }
    let known: Vec<(&str, &Path, Metadata)> = named
        .iter()
        .filter_map(|(key, path)| Some((*key, path.as_path(), fs::metadata(path).ok()?)))
        .filter(|(_, _, metadata)| metadata.is_file())
        .collect();
    for (index, (key, path, metadata)) in known.iter().enumerate() {
        let same = known
            .iter()
            .take(index)
            .find(|(_, _, other)| (other.dev(), other.ino()) == (metadata.dev(), metadata.ino()));
        if let Some((other, ..)) = same {
            let other = match *other {
                "" => "the configuration itself",
                other => other,
            };
            findings.push(
                subject
                    .at(key, Finding::error("one file is named twice"))
                    .found(format!("{}, which is also {other}", path.display()))
                    .allowed("a file of its own")
                    .mend(format!("change {key} or {other}")),
            );
        }
        let is_secret = matches!(*key, "tls_key" | "router_seed");
        if !is_secret && metadata.mode() & WRITE_BY_OTHERS != 0 {
            findings.push(
                subject
                    .at(
                        key,
                        Finding::warning("every user can change a file that is trusted"),
                    )
                    .found(format!(
                        "{} with mode {:04o}",
                        path.display(),
                        metadata.mode() & 0o7777
                    ))
                    .allowed("no write access for others")
                    .mend(format!("chmod o-w {}", path.display())),
            );
        }
    }
    if subject.is_sound(&["ipc_dir", "state_dir"])
        && subject.config.ipc_dir == subject.config.state_dir
    {
        findings.push(
            subject
                .at("state_dir", Finding::error("one folder is named twice"))
                .found(format!(
                    "{}, which is also ipc_dir",
                    subject.config.state_dir.display()
                ))
                .allowed("a folder of its own: ipc_dir goes when the host restarts")
                .mend("change state_dir"),
        );
    }
}

/// The folders of the role sockets and of the state.
pub(super) fn folders(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    let config = subject.config;
    if subject.is_sound(&["ipc_dir"]) {
        let longest = config.ipc_dir.join(LONGEST_SOCKET).as_os_str().len();
        if longest > MAX_SOCKET_PATH_LEN {
            let room = MAX_SOCKET_PATH_LEN - LONGEST_SOCKET.len() - 1;
            findings.push(
                subject
                    .at(
                        "ipc_dir",
                        Finding::error("the path is too long for sockets in it"),
                    )
                    .found(format!("{} bytes", config.ipc_dir.as_os_str().len()))
                    .allowed(format!("at most {room} bytes"))
                    .mend("choose a shorter ipc_dir"),
            );
        }
        if subject.reach != Reach::Files {
            ipc_folder(subject, findings);
        }
    }
    if subject.reach != Reach::Files
        && subject.is_sound(&["state_dir"])
        && let Ok(metadata) = fs::metadata(&config.state_dir)
        && !metadata.is_dir()
    {
        findings.push(not_a_folder(subject, "state_dir", &config.state_dir));
    }
}

/// The revocation list, which need not be there. While it is not good nobody new is admitted; the roles run all the same,
/// for it may be mended meanwhile.
pub(super) fn revocations(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    if subject.reach == Reach::Files || !subject.is_sound(&["state_dir"]) {
        return;
    }
    let path = RevocationFile::new(&subject.config.state_dir).path();
    if let Err(errors) = RevocationList::load(&path) {
        let faults = errors.0.into_iter().map(Finding::from);
        findings.extend(faults.map(Finding::confined));
    }
}

/// The folder of the role sockets, which is made when it is missing.
fn ipc_folder(subject: &Subject<'_>, findings: &mut Vec<Finding>) {
    let path = &subject.config.ipc_dir;
    let shown = path.display();
    let Ok(metadata) = fs::metadata(path) else {
        return;
    };
    if !metadata.is_dir() {
        findings.push(not_a_folder(subject, "ipc_dir", path));
        return;
    }
    let mode = metadata.mode() & 0o7777;
    if mode & NOT_OWNER != 0 {
        findings.push(
            subject
                .at(
                    "ipc_dir",
                    Finding::error("the folder of the role sockets is open to others"),
                )
                .found(format!("{shown} with mode {mode:04o}"))
                .allowed("0700")
                .mend(format!("chmod 700 {shown}")),
        );
    }
    let (me, owner) = (geteuid().as_raw(), metadata.uid());
    // Root may check for whoever runs the router.
    if me != 0 && owner != me {
        findings.push(
            subject
                .at(
                    "ipc_dir",
                    Finding::warning("the folder of the role sockets belongs to another user"),
                )
                .found(format!("{shown} of UID {owner}"))
                .allowed(format!("UID {me}, if that is who runs the router"))
                .mend("check as the user that runs the router"),
        );
    }
}

fn not_a_folder(subject: &Subject<'_>, key: &str, path: &Path) -> Finding {
    subject
        .at(key, Finding::error("a folder that is needed is none"))
        .found(format!("{}, which is no folder", path.display()))
        .allowed("a folder, or nothing yet")
        .mend(format!("change {key}, or move away what is there"))
}

/// An error of the system in a few words.
pub(super) fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file".to_owned(),
        io::ErrorKind::PermissionDenied => "no permission".to_owned(),
        _ => error.to_string(),
    }
}
