//! The policy file of a toolshed: whom it serves, and how much (`docs/protocol.md` section 6.4).

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use memory_wire::Did;

use crate::directory::{parse_deployment, parse_did};
use crate::error::ConfigErrors;
use crate::json::{Json, Member, Read, Stopped};
use crate::places::Places;
use crate::policy_limits::ToolshedLimits;
use crate::read::read_text;
use crate::report::Report;
use crate::source::parse_path;

/// Longest policy file, bytes.
const MAX_POLICY_FILE_LEN: u64 = 1 << 20;
/// Most routers of one toolshed.
const MAX_ROUTERS: usize = 16;
/// Most addresses of one router.
const MAX_PEERS: usize = 4;

const MEMBERS: [Member; 10] = [
    ("version", true),
    ("deployment", true),
    ("hostname", true),
    ("port", true),
    ("certificate", true),
    ("key", true),
    ("directory", true),
    ("epochLedger", true),
    ("routers", true),
    ("limits", false),
];

/// A toolshed's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolshedPolicy {
    /// The deployment's name.
    pub deployment: String,
    /// Where it listens: a private or loopback IPv4 address.
    pub hostname: Ipv4Addr,
    /// Its port.
    pub port: u16,
    /// Its certificate chain; relative paths were joined to the policy file's folder, as below.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The directory file.
    pub directory: PathBuf,
    /// The epoch ledger.
    pub epoch_ledger: PathBuf,
    /// Allowed routers, 1..=16, and the addresses each may come from, 1..=4.
    pub routers: BTreeMap<Did, Vec<Ipv4Addr>>,
    /// What it admits.
    pub limits: ToolshedLimits,
}

impl ToolshedPolicy {
    /// Reads and checks a policy file.
    ///
    /// # Errors
    /// Every fault of the file.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::parse(&read_text(path, MAX_POLICY_FILE_LEN)?, path)
    }

    /// Checks the text of a policy; `file` is its name in errors, and relative paths start from its folder.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigErrors> {
        let mut report = Report::new(file, text);
        let policy = Self::walk(text, &mut report);
        report.finish(policy)
    }

    /// As [`ToolshedPolicy::load`], with where its values stand: each member, each router (`routers.DID`), each limit.
    ///
    /// # Errors
    /// Every fault of the file.
    pub fn load_with_places(path: &Path) -> Result<(Self, Places), ConfigErrors> {
        let text = read_text(path, MAX_POLICY_FILE_LEN)?;
        let mut report = Report::new(path, &text);
        let policy = Self::walk(&text, &mut report);
        let places = report.places();
        report.finish((policy, places))
    }

    /// Reads everything; faults are in the report.
    fn walk<'a>(text: &'a str, report: &mut Report<'a>) -> Self {
        let mut policy = Self {
            deployment: String::new(),
            hostname: Ipv4Addr::UNSPECIFIED,
            port: 0,
            certificate: PathBuf::new(),
            key: PathBuf::new(),
            directory: PathBuf::new(),
            epoch_ledger: PathBuf::new(),
            routers: BTreeMap::new(),
            limits: ToolshedLimits::default(),
        };
        // A stop is in the report, which decides.
        let whole = policy.read(&mut Json::new(report, text)).is_ok();
        if whole {
            let routers = u64::try_from(policy.routers.len()).unwrap_or(u64::MAX);
            policy.limits.check(routers, report);
        }
        policy
    }

    fn read(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        json.members(&MEMBERS, |json, member| {
            let offset = json.place();
            json.report.sets(member, offset);
            match member {
                "version" => drop(json.integer(1, 1)?),
                "deployment" => {
                    let allowed = "1..=256 printable ASCII characters without blanks";
                    self.deployment = json.string(allowed, parse_deployment)?.unwrap_or_default();
                }
                "hostname" => {
                    let address =
                        json.string("a private or loopback IPv4 address", parse_private)?;
                    self.hostname = address.unwrap_or(Ipv4Addr::UNSPECIFIED);
                }
                "port" => self.port = read_port(json)?.unwrap_or_default(),
                "certificate" => self.certificate = read_path(json)?.unwrap_or_default(),
                "key" => self.key = read_path(json)?.unwrap_or_default(),
                "directory" => self.directory = read_path(json)?.unwrap_or_default(),
                "epochLedger" => self.epoch_ledger = read_path(json)?.unwrap_or_default(),
                "routers" => self.read_routers(json)?,
                _ => self.limits.read(json)?,
            }
            Ok(())
        })?;
        json.end()
    }

    fn read_routers(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        let start = json.place();
        let mut count = 0;
        let read = json.map("an object of 1..=16 routers", |json, name, offset| {
            count += 1;
            let (place, key) = (json.place(), json.key());
            json.report.sets(key, place);
            let did = parse_did(name);
            if did.is_none() {
                json.fault_here(
                    offset,
                    "a name that is no DID",
                    "a canonical did:key of an Ed25519 key",
                );
            }
            let peers = read_peers(json)?;
            if let Some(did) = did
                && self.routers.insert(did, peers).is_some()
            {
                json.fault_here(offset, "a duplicate router", "each router once");
            }
            Ok(())
        })?;
        if read.is_some() && !(1..=MAX_ROUTERS).contains(&count) {
            json.fault_here(start, &format!("{count} routers"), "1..=16");
        }
        Ok(())
    }
}

/// The addresses a router may come from.
fn read_peers(json: &mut Json<'_, '_>) -> Result<Vec<Ipv4Addr>, Stopped> {
    let start = json.place();
    let allowed = "an array of 1..=4 private or loopback IPv4 addresses";
    let mut peers = Vec::new();
    let mut count = 0;
    let read = json.array(allowed, |json, index| {
        count = index + 1;
        let offset = json.place();
        let Some(peer) = json.string("a private or loopback IPv4 address", parse_private)? else {
            return Ok(());
        };
        if peers.contains(&peer) {
            json.fault_here(offset, "a duplicate address", "each address once");
        }
        if peers.len() < MAX_PEERS {
            peers.push(peer);
        }
        Ok(())
    })?;
    if read.is_some() && !(1..=MAX_PEERS).contains(&count) {
        json.fault_here(start, &format!("{count} addresses"), "1..=4");
    }
    Ok(peers)
}

/// A path, relative ones joined to the folder of the file being read.
pub(crate) fn read_path(json: &mut Json<'_, '_>) -> Read<PathBuf> {
    let folder = json.report.folder();
    json.string("a path", |text| parse_path(text, folder))
}

/// A port.
pub(crate) fn read_port(json: &mut Json<'_, '_>) -> Read<u16> {
    let port = json.integer(1, 65_535)?;
    Ok(port.and_then(|port| u16::try_from(port).ok()))
}

fn parse_private(text: &str) -> Option<Ipv4Addr> {
    text.parse()
        .ok()
        .filter(|address: &Ipv4Addr| address.is_private() || address.is_loopback())
}
