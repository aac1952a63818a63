//! Throw-away keys, certificates and files of the demonstration, in a temporary folder that goes when it ends.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memory_config::{Identity, SEED_LEN};
use memory_wire::Did;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SignatureAlgorithm};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::exit::{Exit, Failure};

/// How many toolsheds share the spaces.
pub(crate) const TOOLSHEDS: usize = 2;
const BASE58: &str = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/// Longest path of a socket, bytes (`sun_path` without its zero).
const MAX_SOCKET_PATH: usize = 107;

/// The deployment's files and identities.
pub(crate) struct Stage {
    folder: TempDir,
    /// Where clients connect.
    pub(crate) public: SocketAddr,
    /// Where the router's metrics are.
    pub(crate) metrics: SocketAddr,
    /// The router's certificate, DER.
    pub(crate) certificate: Vec<u8>,
    pub(crate) alice: Arc<Identity>,
    pub(crate) bob: Arc<Identity>,
    /// A listed space of each toolshed: Alice's, Bob's.
    pub(crate) spaces: [Did; TOOLSHEDS],
    /// The key of the space that is created during the conversation.
    pub(crate) created: Arc<Identity>,
}

impl Stage {
    pub(crate) fn make() -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("memory-router-demo-")
            .tempdir()
            .map_err(|error| Failure::io("cannot make a temporary folder", error))?;
        let path = folder.path().to_path_buf();
        let longest = path
            .join("ipc/admin/directory-broker.sock")
            .as_os_str()
            .len();
        if longest > MAX_SOCKET_PATH {
            return Err(Failure::new(
                Exit::Configuration,
                format!(
                    "TMPDIR is too long: sockets below {} would have paths of {longest} bytes, of {MAX_SOCKET_PATH} allowed; \
                     try TMPDIR=/tmp",
                    path.display()
                ),
            ));
        }
        let [public, metrics, first, second] = free_addresses()?;

        let router = identity()?;
        router
            .write_seed_file(&path.join("router.seed"))
            .map_err(|error| Failure::because(Exit::Failure, "cannot write router.seed", error))?;
        let certificate = certificate(&path, "public", &PKCS_ECDSA_P256_SHA256)?;
        let (alice, bob) = (identity()?, identity()?);
        let (spaces, owners) = (
            [identity()?.did(), identity()?.did()],
            [alice.did(), bob.did()],
        );
        let created = identity()?;

        let mut toolsheds = Vec::new();
        for (index, address) in [first, second].into_iter().enumerate() {
            let name = format!("toolshed-{index}");
            let toolshed = identity()?;
            certificate_file(&path, &name, &PKCS_ED25519)?;
            let seed = path.join(format!("{name}.seed"));
            toolshed
                .write_seed_file(&seed)
                .map_err(|error| Failure::because(Exit::Failure, "cannot write a seed", error))?;
            let fixture = json!({
                "port": address.port(),
                "seed": seed,
                "certificate": path.join(format!("{name}.pem")),
                "key": path.join(format!("{name}.key")),
                "directory": path.join("directory.json"),
                "store": path.join(format!("{name}-store")),
                "router": router.did(),
                "space": spaces.get(index),
                "principals": [owners.get(index)],
                "modernCellRep": false,
            });
            write(&path, &format!("{name}.json"), &fixture.to_string())?;
            toolsheds.push(json!({
                "name": name,
                "did": toolshed.did(),
                "address": address.to_string(),
                "server_name": "localhost",
                "certificate": format!("{name}.pem"),
            }));
        }
        write(
            &path,
            "directory.json",
            &directory(&toolsheds, &spaces).to_string(),
        )?;
        write(&path, "router.toml", &router_toml(&path, public, metrics))?;
        Ok(Self {
            folder,
            public,
            metrics,
            certificate,
            alice: Arc::new(alice),
            bob: Arc::new(bob),
            spaces,
            created: Arc::new(created),
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The router's configuration.
    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("router.toml")
    }

    /// The argument file of a toolshed.
    pub(crate) fn fixture(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("toolshed-{index}.json"))
    }

    /// What clients put into `Host`.
    pub(crate) fn host(&self) -> String {
        format!("localhost:{}", self.public.port())
    }
}

fn directory(toolsheds: &[Value], spaces: &[Did]) -> Value {
    let spaces: Map<String, Value> = spaces
        .iter()
        .enumerate()
        .map(|(index, space)| (space.to_string(), json!({ "toolshed": index, "epoch": 1 })))
        .collect();
    // A space nobody listed lives where the last character of its DID says.
    let last_character: Map<String, Value> = BASE58
        .chars()
        .enumerate()
        .map(|(place, character)| (character.to_string(), json!(place % TOOLSHEDS)))
        .collect();
    json!({
        "version": 1,
        "deployment": "demo",
        "toolsheds": toolsheds,
        "spaces": spaces,
        "unlisted": { "epoch": 1, "last_character": last_character },
    })
}

fn router_toml(folder: &Path, public: SocketAddr, metrics: SocketAddr) -> String {
    let port = public.port();
    let place = |name: &str| format!("{:?}", folder.join(name).display().to_string());
    format!(
        "version = 1\n\
         listen = [\"{public}\"]\n\
         host = \"localhost:{port}\"\n\
         origins = []\n\
         metrics_listen = \"{metrics}\"\n\
         directory = {}\n\
         public_certificate = {}\n\
         tls_key = {}\n\
         router_seed = {}\n\
         ipc_dir = {}\n\
         state_dir = {}\n\
         development = true\n",
        place("directory.json"),
        place("public.pem"),
        place("public.key"),
        place("router.seed"),
        place("ipc"),
        place("state"),
    )
}

fn identity() -> Result<Identity, Failure> {
    let mut entropy = [0; SEED_LEN];
    getrandom::fill(&mut entropy)
        .map_err(|error| Failure::because(Exit::Failure, "no random bytes", error))?;
    Identity::generate(entropy)
        .map_err(|error| Failure::because(Exit::Failure, "cannot make an identity", error))
}

/// Addresses that were free a moment ago: each toolshed's must stand in the directory before it starts.
fn free_addresses() -> Result<[SocketAddr; 4], Failure> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let failed = |error| Failure::io("cannot find a free port on loopback", error);
    let sockets = [
        bind().map_err(failed)?,
        bind().map_err(failed)?,
        bind().map_err(failed)?,
        bind().map_err(failed)?,
    ];
    let [first, second, third, fourth] = sockets.each_ref().map(TcpListener::local_addr);
    Ok([
        first.map_err(failed)?,
        second.map_err(failed)?,
        third.map_err(failed)?,
        fourth.map_err(failed)?,
    ])
}

/// Writes `NAME.pem` and `NAME.key` and returns the certificate in DER.
fn certificate(
    folder: &Path,
    name: &str,
    algorithm: &'static SignatureAlgorithm,
) -> Result<Vec<u8>, Failure> {
    let failed =
        |error: rcgen::Error| Failure::because(Exit::Failure, "cannot make a certificate", error);
    let key = KeyPair::generate_for(algorithm).map_err(failed)?;
    let params = CertificateParams::new(vec!["localhost".to_owned()]).map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    write(folder, &format!("{name}.pem"), &certificate.pem())?;
    write(folder, &format!("{name}.key"), &key.serialize_pem())?;
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(folder.join(format!("{name}.key")), private)
        .map_err(|error| Failure::io(format!("cannot protect {name}.key"), error))?;
    Ok(certificate.der().to_vec())
}

fn certificate_file(
    folder: &Path,
    name: &str,
    algorithm: &'static SignatureAlgorithm,
) -> Result<(), Failure> {
    certificate(folder, name, algorithm).map(drop)
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    fs::write(folder.join(name), text)
        .map_err(|error| Failure::io(format!("cannot write {name}"), error))
}
