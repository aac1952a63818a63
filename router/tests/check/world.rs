//! A good deployment in a folder, made of `good/` and keys made for the run; and what to break it with.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memory_config::Identity;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PKCS_ED25519, date_time_ymd,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::EXECUTABLE;

const DAY: u64 = 86_400;

/// Where the files of this test are.
pub(crate) fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check")
}

/// What can be had for a deployment: keys and certificates, good and bad, made once.
static POOL: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    fill(folder.path());
    folder
});

fn fill(folder: &Path) {
    let put = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    };
    let key = || KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let (public, one, other) = (key(), key(), key());
    put("tls.key", &public.serialize_pem());
    put("one.key", &one.serialize_pem());
    put("other.key", &other.serialize_pem());
    // PKCS#8 of an X25519 key (RFC 8410), with which nothing is signed.
    let mut agreement =
        b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x6e\x04\x22\x04\x20".to_vec();
    agreement.extend([7; 32]);
    fs::write(folder.join("agreement.key"), agreement).unwrap();
    put(
        "nonsense.pem",
        "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
    );

    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let certificate = |name: &str, subject: &str, from: u64, until: u64| {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, subject);
        let second = |unix: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(unix);
        (params.not_before, params.not_after) = (second(from), second(until));
        params
    };
    let (past, far) = (now - 400 * DAY, now + 400 * DAY);
    for (prefix, name, key) in [
        ("", "memory.example", &public),
        ("one-", "toolshed.example", &one),
    ] {
        let signed = |params: CertificateParams| params.self_signed(key).unwrap().pem();
        let good = signed(certificate(name, name, past, far));
        let expired = signed(certificate(name, name, past, now - 10 * DAY));
        put(
            if prefix.is_empty() {
                "public.pem"
            } else {
                "one.pem"
            },
            &good,
        );
        put(&format!("{prefix}expired.pem"), &expired);
        put(&format!("{prefix}both.pem"), &format!("{expired}{good}"));
        put(
            &format!("{prefix}future.pem"),
            &signed(certificate(name, name, now + 10 * DAY, far)),
        );
        put(
            &format!("{prefix}soon.pem"),
            &signed(certificate(name, name, past, now + 10 * DAY + 100)),
        );
        put(
            &format!("{prefix}elsewhere.pem"),
            &signed(certificate("elsewhere.example", "x", past, far)),
        );
    }
    let mut authority = certificate("authority.example", "authority", past, far);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = authority.self_signed(&other).unwrap().pem();
    put("authority.pem", &root);
    let issuer = Issuer::from_params(&authority, &other);
    let issued = |name: &str, key: &KeyPair| {
        certificate(name, name, past, far)
            .signed_by(key, &issuer)
            .unwrap()
            .pem()
    };
    put("one-issued.pem", &issued("toolshed.example", &one));
    let leaf = issued("memory.example", &public);
    let stranger = certificate("stranger", "stranger", past, far)
        .self_signed(&one)
        .unwrap()
        .pem();
    put("chain.pem", &format!("{leaf}{root}"));
    put("disordered.pem", &format!("{leaf}{stranger}{root}"));
}

/// A folder with a deployment.
pub(crate) struct World {
    pub(crate) folder: TempDir,
}

impl World {
    /// A good one.
    pub(crate) fn good() -> Self {
        let world = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        for name in ["router.toml", "directory.json", "policy.json"] {
            fs::copy(here().join("good").join(name), world.path(name)).unwrap();
        }
        for name in ["public.pem", "tls.key", "one.pem"] {
            world.take(name, name);
        }
        Identity::from_seed([1; 32])
            .unwrap()
            .write_seed_file(&world.path("router.seed"))
            .unwrap();
        world
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a file of the pool here.
    pub(crate) fn take(&self, from: &str, to: &str) {
        fs::copy(POOL.path().join(from), self.path(to)).unwrap();
    }

    /// Changes a text that a file has once.
    pub(crate) fn edit(&self, file: &str, from: &str, to: &str) {
        let path = self.path(file);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(from).count(), 1, "{from:?} in {file}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
    }

    pub(crate) fn write(&self, file: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(file), bytes).unwrap();
    }

    pub(crate) fn mode(&self, file: &str, mode: u32) {
        fs::set_permissions(self.path(file), Permissions::from_mode(mode)).unwrap();
    }

    /// Runs a command of the executable in the folder, with `--config router.toml`.
    pub(crate) fn run(&self, command: &str, arguments: &[&str]) -> Output {
        Command::new(EXECUTABLE)
            .args([command, "--config", "router.toml"])
            .args(arguments)
            .current_dir(self.folder.path())
            .env_remove("CREDENTIALS_DIRECTORY")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs `check --json`; its status, and what it printed.
    pub(crate) fn check(&self, arguments: &[&str]) -> (i32, Value) {
        let output = self.run("check", &[arguments, &["--json"]].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let json = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{errors}"));
        (output.status.code().unwrap(), json)
    }
}

/// Findings of an outcome.
pub(crate) fn findings(outcome: &Value) -> &[Value] {
    outcome["findings"].as_array().unwrap()
}
