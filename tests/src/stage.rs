//! A throw-away deployment: keys, certificates, directory, configuration, and the processes that use them.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use memory_client::{Connection, Did, Endpoint, Identity, Options};
use rcgen::{
    CertificateParams, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SignatureAlgorithm,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::processes::{Router, Toolshed, ToolshedCommand};
use crate::{Context, GateError};

/// The deployment's name. Every toolshed under the exercise has it hard-wired.
pub const DEPLOYMENT: &str = "local-mode-a";

/// The one origin that browsers may come from.
pub const ORIGIN: &str = "https://stage.example";

/// Names in certificates, and in front of the port in the router's `host`.
const SERVER_NAME: &str = "localhost";

/// The document that every toolshed seeds beside the ACL.
pub const FIXTURE_DOCUMENT: &str = "of:fixture-data";

/// Seed of a space that the directory does not place and nobody owns.
pub const UNKNOWN_SPACE: u8 = 99;

/// Random schedules that are played where nobody says how many.
pub const SCHEDULES: u32 = 40;

/// Ports of the stage: below what the kernel gives to outgoing connections, so that none takes one meanwhile.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The programs under test.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `memory-router`.
    pub router: PathBuf,
    /// How a toolshed is started.
    pub toolshed: ToolshedCommand,
    /// How long the gate that stalls a toolshed under many clients does so.
    pub stall: Duration,
    /// How many random schedules are played.
    pub schedules: u32,
    /// The one schedule to play again instead.
    pub seed: Option<u64>,
}

/// What a stage may have different.
#[derive(Debug, Clone, Default)]
pub struct StageOptions {
    /// Whether the directory has an `unlisted` rule: it gives every DID that it does not list to the first toolshed.
    pub unlisted: bool,
    /// Lines appended to the `[limits]` of `router.toml`.
    pub limits: String,
    /// Lines appended to its `[timeouts]`.
    pub timeouts: String,
    /// Which toolsheds run when the router starts, in the directory's order.
    pub seats: [Seat; 2],
}

/// How a toolshed's place is taken at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seat {
    /// It runs.
    #[default]
    Taken,
    /// It does not run.
    Empty,
}

/// A space with its place and its owner.
#[derive(Debug, Clone)]
pub struct Space {
    /// Its DID.
    pub did: Did,
    /// Its place in the directory's list of toolsheds.
    pub toolshed: usize,
    /// The one principal in its ACL.
    pub owner: Arc<Identity>,
}

/// Everything of one deployment, running. Dropped, it is gone.
#[derive(Debug)]
pub struct Stage {
    /// Alice owns the first space.
    pub alice: Arc<Identity>,
    /// Bob owns the second space.
    pub bob: Arc<Identity>,
    /// The router's identity: the audience of every statement.
    pub audience: Did,
    /// One on each toolshed, in order.
    pub spaces: [Space; 2],
    /// The router.
    pub router: Router,
    /// The toolsheds, in the directory's order.
    pub toolsheds: [Toolshed; 2],
    public: PublicSide,
    programs: Programs,
    // Last, so that the processes are gone before their files are.
    folder: TempDir,
}

/// Where clients connect to, and what they trust.
#[derive(Debug, Clone)]
pub struct PublicSide {
    /// The listener's address.
    pub address: SocketAddr,
    /// The router's `host`.
    pub host: String,
    /// The certificate it presents, DER.
    pub certificate: Vec<u8>,
}

impl Stage {
    /// Sets a stage up and waits until the router serves clients.
    ///
    /// # Errors
    /// When a file cannot be written or a program does not start.
    pub async fn set(programs: &Programs, options: StageOptions) -> Result<Self, GateError> {
        let folder = tempfile::Builder::new()
            .prefix("exercise-")
            .tempdir()
            .during("making the stage's folder")?;
        let [alice, bob] = [identity(41)?, identity(42)?].map(Arc::new);
        let router = identity(21)?;
        let spaces = [
            Space {
                did: identity(31)?.did(),
                toolshed: 0,
                owner: Arc::clone(&alice),
            },
            Space {
                did: identity(32)?.did(),
                toolshed: 1,
                owner: Arc::clone(&bob),
            },
        ];
        let [public_port, first_port, second_port] = free_ports()?;
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));

        let mut fixtures = Vec::new();
        let mut entries = Vec::new();
        for (space, (seed, port)) in spaces.iter().zip([(11_u8, first_port), (12, second_port)]) {
            let name = format!("toolshed-{}", space.toolshed);
            make_certificate(folder.path(), &name, &PKCS_ED25519)?;
            let file = |suffix: &str| folder.path().join(format!("{name}{suffix}"));
            let fixture = json!({
                "port": port,
                "seed": seed,
                "certificate": file(".pem"),
                "key": file(".key"),
                "directory": folder.path().join("directory.json"),
                "store": file("-store"),
                "router": router.did(),
                "space": space.did,
                "principals": [space.owner.did()],
                "modernCellRep": false,
            });
            write(&file(".json"), fixture.to_string().as_bytes())?;
            fixtures.push(file(".json"));
            entries.push(json!({
                "name": name,
                "did": identity(seed)?.did(),
                "address": loopback(port),
                "server_name": SERVER_NAME,
                "certificate": format!("{name}.pem"),
            }));
        }
        let directory = directory(&entries, &spaces, options.unlisted);
        write(
            &folder.path().join("directory.json"),
            directory.to_string().as_bytes(),
        )?;

        let public = PublicSide {
            address: loopback(public_port),
            host: format!("{SERVER_NAME}:{public_port}"),
            certificate: make_certificate(folder.path(), "public", &PKCS_ECDSA_P256_SHA256)?,
        };
        router
            .write_seed_file(&folder.path().join("router.seed"))
            .during("writing router.seed")?;
        fs::create_dir(folder.path().join("state")).during("making the state folder")?;
        let config = folder.path().join("router.toml");
        write(&config, router_toml(&public, &options).as_bytes())?;

        let mut toolsheds = Vec::new();
        for (fixture, seat) in fixtures.iter().zip(options.seats) {
            let mut toolshed = Toolshed::absent(&programs.toolshed, fixture);
            if seat == Seat::Taken {
                toolshed.launch().await?;
            }
            toolsheds.push(toolshed);
        }
        let toolsheds = <[Toolshed; 2]>::try_from(toolsheds)
            .map_err(|_| GateError::new("toolsheds", "two", "another number"))?;
        let audience = router.did();
        let router = Router::start(&programs.router, &config, public.address).await?;
        Ok(Self {
            alice,
            bob,
            audience,
            spaces,
            router,
            toolsheds,
            public,
            programs: programs.clone(),
            folder,
        })
    }

    /// Where clients connect to.
    pub fn public(&self) -> &PublicSide {
        &self.public
    }

    /// The programs it runs, for a gate that needs a stage of its own.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A client library's connection.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn connect(&self, options: Options) -> Result<Connection, GateError> {
        let endpoint = self.endpoint_at(self.public.address)?;
        Connection::connect(&endpoint, options)
            .await
            .during("connecting")
    }

    /// The router, as clients find it at an address: its own, or that of a proxy in front of it.
    ///
    /// # Errors
    /// Never for an address and a certificate of this stage.
    pub fn endpoint_at(&self, address: SocketAddr) -> Result<Endpoint, GateError> {
        let trusted = vec![self.public.certificate.clone()];
        Endpoint::new(self.public.host.clone(), address, trusted).during("the client's endpoint")
    }

    /// The directory file.
    pub fn directory_file(&self) -> PathBuf {
        self.folder().join("directory.json")
    }

    /// Starts the router again, after it has ended.
    ///
    /// # Errors
    /// When it does not serve.
    pub async fn start_router_again(&mut self) -> Result<(), GateError> {
        let config = self.folder().join("router.toml");
        let address = self.public.address;
        self.router = Router::start(&self.programs.router, &config, address).await?;
        Ok(())
    }

    /// Stops the router, then the toolsheds, and demands that each ends well.
    ///
    /// # Errors
    /// When one does not.
    pub async fn strike(mut self) -> Result<(), GateError> {
        let status = self.router.stop().await?;
        crate::error::same("the router's exit status", status.code(), Some(0))?;
        for toolshed in &mut self.toolsheds {
            toolshed.stop().await?;
        }
        Ok(())
    }
}

/// The identity of 32 equal bytes.
///
/// # Errors
/// Never for the bytes that the exercise uses.
pub fn identity(byte: u8) -> Result<Identity, GateError> {
    Identity::from_seed([byte; 32]).during(format!("the identity of seed {byte}"))
}

fn directory(entries: &[Value], spaces: &[Space], unlisted: bool) -> Value {
    let placed: serde_json::Map<String, Value> = spaces
        .iter()
        .map(|space| {
            let place = json!({ "toolshed": space.toolshed, "epoch": 1 });
            (space.did.to_string(), place)
        })
        .collect();
    let mut directory = json!({
        "version": 1,
        "deployment": DEPLOYMENT,
        "toolsheds": entries,
        "spaces": placed,
    });
    if unlisted {
        const BASE58: &str = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
        let all: serde_json::Map<String, Value> = BASE58
            .chars()
            .map(|character| (character.to_string(), json!(0)))
            .collect();
        if let Value::Object(members) = &mut directory {
            let rule = json!({ "epoch": 1, "last_character": all });
            members.insert("unlisted".to_owned(), rule);
        }
    }
    directory
}

fn router_toml(public: &PublicSide, options: &StageOptions) -> String {
    let PublicSide { address, host, .. } = public;
    let StageOptions {
        limits, timeouts, ..
    } = options;
    // Every client of the exercise comes from one address and several misbehave: the listener must not mind here.
    format!(
        r#"version = 1
development = true
listen = ["{address}"]
host = "{host}"
origins = ["{ORIGIN}"]
directory = "directory.json"
public_certificate = "public.pem"
tls_key = "public.key"
router_seed = "router.seed"
ipc_dir = "ipc"
state_dir = "state"

[timeouts]
{timeouts}

[limits]
max_new_connections_per_second = 10000
max_new_connections_per_source_per_second = 10000
max_unauthenticated_per_source = 256
{limits}

[penalties]
exempt = ["127.0.0.0/8"]
"#
    )
}

/// Makes a self-signed certificate `NAME.pem` with its key `NAME.key`; gives the certificate in DER.
fn make_certificate(
    folder: &Path,
    name: &str,
    algorithm: &'static SignatureAlgorithm,
) -> Result<Vec<u8>, GateError> {
    let step = || format!("the certificate {name}");
    let key = KeyPair::generate_for(algorithm).during(step())?;
    let mut params = CertificateParams::new([SERVER_NAME.to_owned()]).during(step())?;
    params.is_ca = IsCa::ExplicitNoCa;
    let certificate = params.self_signed(&key).during(step())?;
    write(
        &folder.join(format!("{name}.pem")),
        certificate.pem().as_bytes(),
    )?;
    write(
        &folder.join(format!("{name}.key")),
        key.serialize_pem().as_bytes(),
    )?;
    Ok(certificate.der().to_vec())
}

/// Writes a new file that only this user can read: some are keys.
fn write(path: &Path, bytes: &[u8]) -> Result<(), GateError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .during(format!("writing {}", path.display()))
}

/// Ports that are free now, each another.
fn free_ports<const N: usize>() -> Result<[u16; N], GateError> {
    let count = u32::from(PORTS.end - PORTS.start);
    // Stages of several processes start at different places, and so do those of this one: a port may be free for now only
    // because the toolshed that it belongs to does not run.
    static BEFORE: AtomicU32 = AtomicU32::new(0);
    let before = BEFORE.fetch_add(N as u32, Ordering::Relaxed);
    let start = std::process::id().wrapping_mul(97).wrapping_add(before) % count;
    let mut held = Vec::new();
    for step in 0..count {
        let offset = u16::try_from((start + step) % count).unwrap_or_default();
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, PORTS.start + offset)) {
            held.push((PORTS.start + offset, listener));
        }
        if held.len() == N {
            break;
        }
    }
    let ports: Vec<u16> = held.iter().map(|(port, _)| *port).collect();
    <[u16; N]>::try_from(ports).map_err(|_| GateError::new("ports", "some free ones", "too few"))
}
