//! Named sockets and sealed memory files.

// The lint lets test functions alone, but not the helpers around them.
#![allow(clippy::expect_used)]

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use memory_ipc::memfd::{self, MemfdError};
use memory_ipc::{ChannelError, NamedListener, connect};
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals};
use rustix::io::{Errno, FdFlags, fcntl_getfd};
use tempfile::TempDir;

#[tokio::test]
async fn a_named_socket_is_private_and_serves_allowed_users() {
    let (directory, path) = place();
    let listener = NamedListener::bind(&path, &[uid()]).expect("bind");
    assert_eq!(listener.path(), path);
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(&directory.path().join("run")), 0o700);
    let client = connect(&path).expect("connect");
    let server = listener.accept().await.expect("accept");
    for channel in [&client, &server] {
        let peer = channel.peer().expect("peer");
        assert_eq!((peer.pid, peer.uid), (std::process::id(), uid()));
    }
    client.send(b"question", &[]).await.expect("send");
    let mut packet = Vec::new();
    server
        .recv(&mut packet)
        .await
        .expect("recv")
        .expect("packet");
    assert_eq!(packet, b"question");
    server.send(b"answer", &[]).await.expect("send");
    client
        .recv(&mut packet)
        .await
        .expect("recv")
        .expect("packet");
    assert_eq!(packet, b"answer");
}

#[tokio::test]
async fn other_users_are_refused_and_their_connection_closed() {
    let (_directory, path) = place();
    let listener = NamedListener::bind(&path, &[uid() + 1]).expect("bind");
    let client = connect(&path).expect("connect");
    let error = listener.accept().await.expect_err("refused");
    assert!(matches!(error, ChannelError::PeerRefused { uid: refused } if refused == uid()));
    assert!(error.is_violation());
    assert!(client.recv(&mut Vec::new()).await.expect("recv").is_none());
    // Nobody at all is no special case.
    let (_directory, path) = place();
    let listener = NamedListener::bind(&path, &[]).expect("bind");
    let _client = connect(&path).expect("connect");
    assert!(listener.accept().await.is_err());
}

#[tokio::test]
async fn accepting_waits_and_can_be_cancelled() {
    let (_directory, path) = place();
    let listener = NamedListener::bind(&path, &[uid()]).expect("bind");
    tokio::select! {
        biased;
        _ = listener.accept() => panic!("nobody connected"),
        () = tokio::task::yield_now() => {}
    }
    let (accepted, connected) = tokio::join!(biased; listener.accept(), async { connect(&path) });
    accepted.expect("accept");
    connected.expect("connect");
}

#[tokio::test]
async fn a_named_socket_goes_with_its_listener() {
    let (_directory, path) = place();
    let error = connect(&path).expect_err("nobody is there");
    assert_eq!(connect_error(&error), Some(io::ErrorKind::NotFound));
    let listener = NamedListener::bind(&path, &[uid()]).expect("bind");
    drop(listener);
    assert!(!path.exists());
    // Another socket that has taken the place is not removed.
    let listener = NamedListener::bind(&path, &[uid()]).expect("bind");
    fs::remove_file(&path).expect("remove");
    let successor = NamedListener::bind(&path, &[uid()]).expect("bind");
    drop(listener);
    assert!(path.exists());
    connect(&path).expect("connect");
    drop(successor);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_socket_left_by_the_dead_is_replaced() {
    let (_directory, path) = place();
    let listener = NamedListener::bind(&path, &[uid()]).expect("bind");
    let other = path.with_extension("kept");
    fs::rename(&path, &other).expect("rename");
    drop(listener);
    fs::rename(&other, &path).expect("rename");
    let error = connect(&path).expect_err("nobody is there");
    assert_eq!(
        connect_error(&error),
        Some(io::ErrorKind::ConnectionRefused)
    );
    let _listener = NamedListener::bind(&path, &[uid()]).expect("bind");
    connect(&path).expect("connect");
}

#[tokio::test]
async fn what_is_alive_or_no_socket_is_not_replaced() {
    let in_use = |path: &Path| {
        let error = NamedListener::bind(path, &[uid()]).expect_err("in use");
        assert!(matches!(error, ChannelError::PathInUse { .. }), "{error}");
    };
    let (_directory, path) = place();
    let _listener = NamedListener::bind(&path, &[uid()]).expect("bind");
    in_use(&path);
    connect(&path).expect("still there");

    let (_directory, path) = place();
    make_private(path.parent().expect("parent"));
    fs::write(&path, "precious").expect("write");
    in_use(&path);
    assert_eq!(fs::read(&path).expect("read"), b"precious");

    let link = path.with_extension("link");
    symlink(&path, &link).expect("link");
    in_use(&link);

    let stream = path.with_extension("stream");
    let _stream = UnixListener::bind(&stream).expect("bind");
    in_use(&stream);
    assert!(stream.exists());
}

#[tokio::test]
async fn a_directory_open_to_others_is_refused() {
    for wrong in [0o701, 0o710, 0o750, 0o755, 0o777] {
        let (_directory, path) = place();
        let run = path.parent().expect("parent");
        make_private(run);
        fs::set_permissions(run, fs::Permissions::from_mode(wrong)).expect("chmod");
        let error = NamedListener::bind(&path, &[uid()]).expect_err("refused");
        assert!(matches!(error, ChannelError::DirectoryNotPrivate { .. }));
        assert!(!path.exists());
    }
    let (directory, path) = place();
    let real = directory.path().join("real");
    make_private(&real);
    symlink(&real, path.parent().expect("parent")).expect("link");
    let error = NamedListener::bind(&path, &[uid()]).expect_err("refused");
    assert!(matches!(error, ChannelError::DirectoryNotPrivate { .. }));
    let error = NamedListener::bind(&directory.path().join("no/such/place"), &[uid()]);
    assert!(matches!(error, Err(ChannelError::Bind { .. })));
}

#[tokio::test]
async fn paths_that_are_no_address_are_refused() {
    let (directory, _path) = place();
    let long = directory.path().join("n".repeat(200));
    for path in [Path::new(""), Path::new("/"), Path::new("a\0b"), &long] {
        assert!(matches!(
            NamedListener::bind(path, &[uid()]),
            Err(ChannelError::PathInvalid { .. })
        ));
        assert!(matches!(
            connect(path),
            Err(ChannelError::PathInvalid { .. })
        ));
    }
}

#[test]
fn a_sealed_memory_file_is_read_whole() {
    for length in [0, 1, 4096, 100_000] {
        let contents: Vec<u8> = (0..length).map(|byte: u32| byte.to_be_bytes()[3]).collect();
        let file = memfd::sealed("contents", &contents).expect("make");
        assert!(
            fcntl_getfd(&file)
                .expect("fcntl")
                .contains(FdFlags::CLOEXEC)
        );
        let again = file.try_clone().expect("dup");
        assert_eq!(memfd::read(file, contents.len()).expect("read"), contents);
        // The place where somebody else reads does not matter.
        assert_eq!(memfd::read(again, 1 << 20).expect("read"), contents);
    }
}

#[test]
fn a_sealed_memory_file_cannot_be_changed() {
    let file = memfd::sealed("contents", b"contents").expect("make");
    assert_eq!(rustix::io::write(&file, b"x"), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&file, 1), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&file, 100), Err(Errno::PERM));
    assert_eq!(
        fcntl_add_seals(&file, SealFlags::FUTURE_WRITE),
        Err(Errno::PERM)
    );
    assert!(
        fcntl_get_seals(&file)
            .expect("seals")
            .contains(SealFlags::SEAL)
    );
}

#[test]
fn a_memory_file_too_long_or_not_sealed_is_refused() {
    let file = memfd::sealed("contents", b"contents").expect("make");
    assert!(matches!(
        memfd::read(file, 7),
        Err(MemfdError::TooLong { length: 8, max: 7 })
    ));
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    for missing in all.iter() {
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("contents", flags).expect("make");
        fcntl_add_seals(&file, all.difference(missing)).expect("seal");
        assert!(matches!(memfd::read(file, 8), Err(MemfdError::NotSealed)));
    }
    let file = tempfile::tempfile().expect("file");
    assert!(matches!(
        memfd::read(file.into(), 8),
        Err(MemfdError::NotSealed)
    ));
    let (reader, _writer) = io::pipe().expect("pipe");
    assert!(matches!(
        memfd::read(reader.into(), 8),
        Err(MemfdError::NotSealed)
    ));
}

fn connect_error(error: &ChannelError) -> Option<io::ErrorKind> {
    match error {
        ChannelError::Connect { source, .. } => Some(source.kind()),
        _ => None,
    }
}

/// A path in a directory that is not there yet.
fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("run/role.sock");
    (directory, path)
}

fn make_private(directory: &Path) {
    fs::DirBuilder::new()
        .mode(0o700)
        .create(directory)
        .expect("directory");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path)
        .expect("metadata")
        .permissions()
        .mode()
        & 0o777
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
