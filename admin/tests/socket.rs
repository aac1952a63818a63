//! Showing and looking, over real sockets.

// The lint lets test functions alone, but not the helpers around them.
#![allow(clippy::expect_used)]

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use memory_admin::{
    Family, FetchError, Kind, MAX_SNAPSHOT_LEN, Number, Snapshot, fetch, serve, socket_path,
};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// Long enough for whatever a busy machine does in between.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_role_is_seen_as_it_is() {
    let stage = Stage::new();
    let served = stage.serve(uid());
    let seen = stage.wait().await;
    assert_eq!(seen.role, "listener");
    assert_eq!(seen.pid, std::process::id());
    let connections = Family::gauge("connections", "All").value(7_u64);
    assert!(seen.families.contains(&connections));
    assert_eq!(mode(&stage.path), 0o600);
    assert_eq!(mode(stage.path.parent().expect("parent")), 0o700);
    served.abort();
    assert!(served.await.expect_err("aborted").is_cancelled());
    let error = fetch(&stage.path, PATIENCE).await.expect_err("gone");
    assert_eq!(error.word(), "absent");
}

#[tokio::test]
async fn another_user_gets_nothing_and_the_role_goes_on() {
    let stage = Stage::new();
    let _served = stage.serve(uid() + 1);
    loop {
        match fetch(&stage.path, PATIENCE).await.expect_err("refused") {
            FetchError::Connect(_) => tokio::task::yield_now().await,
            error => {
                assert_eq!(error.word(), "closed", "{error}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn peers_that_do_not_read_keep_nobody_out() {
    let stage = Stage::new();
    // Larger than what the kernel keeps of a stream that nobody reads.
    let _served = stage.serve_with(uid(), || {
        let labels: Vec<_> = (0..4000).map(|number| number.to_string()).collect();
        labels.iter().fold(snapshot(), |snapshot, label| {
            snapshot.family(Family::gauge("x", &"h".repeat(64)).sample(&[("n", label)], 1_u64))
        })
    });
    stage.wait().await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(UnixStream::connect(&stage.path).await.expect("connect"));
    }
    let seen = fetch(&stage.path, PATIENCE).await.expect("served");
    assert!(seen.families.len() > 4000);
}

#[tokio::test]
async fn what_is_no_snapshot_is_refused() {
    let mut other = snapshot();
    last(&mut other).kind = Kind::Histogram;
    let mut named = snapshot();
    last(&mut named).name = "a b".to_owned();
    let mut labelled = snapshot();
    last(&mut labelled).samples[0].labels = vec![("a".to_owned(), "\n".to_owned())];
    let mut short = snapshot();
    last(&mut short).kind = Kind::Histogram;
    last(&mut short).samples[0].value = Number::Histogram {
        counts: vec![1],
        sum_seconds: 0.0,
    };
    let mut documents: Vec<Vec<u8>> = [other, named, labelled, short]
        .iter()
        .map(|snapshot| serde_json::to_vec(snapshot).expect("JSON"))
        .collect();
    documents.push(b"{}".to_vec());
    documents.push(vec![b' '; MAX_SNAPSHOT_LEN + 1]);
    for document in documents {
        let answer = answered(document).await.expect_err("refused");
        assert_eq!(answer.word(), "malformed", "{answer}");
    }
    let empty = answered(Vec::new()).await.expect_err("refused");
    assert_eq!(empty.word(), "closed");
    let good = serde_json::to_vec(&snapshot()).expect("JSON");
    assert!(answered(good).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_role_that_does_not_answer_is_late() {
    let stage = Stage::new();
    std::fs::create_dir(stage.path.parent().expect("parent")).expect("directory");
    let _listener = UnixListener::bind(&stage.path).expect("bind");
    let error = fetch(&stage.path, Duration::from_secs(2))
        .await
        .expect_err("late");
    assert_eq!(error.word(), "late");
}

struct Stage {
    _folder: TempDir,
    path: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let folder = TempDir::new().expect("folder");
        let path = socket_path(folder.path(), "listener");
        Self {
            _folder: folder,
            path,
        }
    }

    fn serve(&self, allowed: u32) -> JoinHandle<()> {
        self.serve_with(allowed, snapshot)
    }

    fn serve_with(
        &self,
        allowed: u32,
        snapshot: impl Fn() -> Snapshot + Send + Sync + 'static,
    ) -> JoinHandle<()> {
        let path = self.path.clone();
        tokio::spawn(async move { serve(&path, &[allowed], snapshot).await })
    }

    /// What is shown, as soon as something is.
    async fn wait(&self) -> Snapshot {
        loop {
            match fetch(&self.path, PATIENCE).await {
                Ok(seen) => return seen,
                Err(FetchError::Connect(_)) => tokio::task::yield_now().await,
                Err(error) => assert_eq!(error.word(), "absent"),
            }
        }
    }
}

/// What [`fetch`] makes of an answer.
async fn answered(document: Vec<u8>) -> Result<Snapshot, FetchError> {
    let folder = TempDir::new().expect("folder");
    let path = folder.path().join("x.sock");
    let listener = UnixListener::bind(&path).expect("bind");
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accept");
        // Whoever has had enough closes.
        let _ = stream.write_all(&document).await;
    });
    let answer = fetch(&path, PATIENCE).await;
    answering.await.expect("answered");
    answer
}

fn last(snapshot: &mut Snapshot) -> &mut Family {
    snapshot.families.last_mut().expect("a family")
}

fn snapshot() -> Snapshot {
    Snapshot::new("listener", SystemTime::now())
        .family(Family::gauge("connections", "All").value(7_u64))
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("there").permissions().mode() & 0o777
}
