//! The directory file: which toolshed owns which space (`docs/protocol.md` section 6.5).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;

use memory_wire::Did;
use rustls_pki_types::CertificateDer;

use crate::address::is_host_name;
use crate::error::ConfigErrors;
use crate::json::{Json, Member, Read, Stopped};
use crate::pem::load_certificates;
use crate::places::Places;
use crate::read::{FileIdentity, read_text, read_text_unless};
use crate::report::Report;
use crate::source::parse_path;
use crate::space_key::{BASE58, base58_value, space_key};

/// Most toolsheds of one directory.
pub const MAX_TOOLSHEDS: usize = 32;
/// Most listed spaces of one directory. Other toolsheds stop at 10,000.
pub const MAX_SPACES: usize = 1_000_000;

/// Longest directory file, bytes: a million spaces take about 110 MB.
const MAX_DIRECTORY_FILE_LEN: u64 = 256 << 20;
/// Largest epoch: an integer that every JSON reader keeps exactly.
const MAX_EPOCH: u64 = (1 << 53) - 1;
/// Bits of a packed placement that hold the toolshed's index.
const INDEX_BITS: u32 = 5;

const _: () = assert!(MAX_TOOLSHEDS == 1 << INDEX_BITS);

/// One good state of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    deployment: String,
    toolsheds: Vec<Toolshed>,
    /// Public key of each listed space, and where it is.
    spaces: HashMap<[u8; 32], Packed>,
    unlisted: Option<Unlisted>,
}

/// A toolshed of the directory. Its index in the list is what placements name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolshed {
    /// A name for people, distinct.
    pub name: String,
    /// Its identity, distinct.
    pub did: Did,
    /// Where it listens for routers, distinct.
    pub address: SocketAddr,
    /// The name its TLS certificate must be valid for.
    pub server_name: String,
    /// The pin, DER: its end-entity certificate or the CA that issues it. Never empty.
    pub certificate: Vec<CertificateDer<'static>>,
}

/// Where a space is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Index of the toolshed, below 32.
    pub toolshed: u16,
    /// Epoch of the placement, a positive safe integer; it grows when the space moves.
    pub epoch: u64,
}

impl Directory {
    /// Reads and checks a directory file. With `deployment`, the file must be of that deployment.
    ///
    /// # Errors
    /// Every fault of the file.
    pub fn load(
        path: &Path,
        deployment: Option<&str>,
    ) -> Result<(Self, FileIdentity), ConfigErrors> {
        let read = read_text_unless(path, MAX_DIRECTORY_FILE_LEN, None)?;
        let (text, identity) =
            read.ok_or_else(|| ConfigErrors::of_file(path, "nothing", "a directory"))?;
        Ok((Self::parse(&text, path, deployment, None)?, identity))
    }

    /// Reads the file again when it is no longer the one already `seen`; `None` while it is.
    ///
    /// # Errors
    /// Every fault of the new file; `self`, the last good snapshot, stays good for open sessions.
    pub fn read_if_changed(
        &self,
        path: &Path,
        seen: &FileIdentity,
    ) -> Result<Option<(Self, FileIdentity)>, ConfigErrors> {
        match read_text_unless(path, MAX_DIRECTORY_FILE_LEN, Some(seen))? {
            Some((text, identity)) => {
                let next = Self::parse(&text, path, Some(&self.deployment), Some(self))?;
                Ok(Some((next, identity)))
            }
            None => Ok(None),
        }
    }

    /// Checks the text of a directory; `file` is its name in errors, and relative paths start from its folder.
    /// `previous` saves the checks of keys that it already holds.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse(
        text: &str,
        file: &Path,
        deployment: Option<&str>,
        previous: Option<&Self>,
    ) -> Result<Self, ConfigErrors> {
        let mut report = Report::new(file, text);
        let directory = Self::walk(text, &mut report, deployment, previous);
        report.finish(directory)
    }

    /// As [`Directory::load`], with where its values stand: `deployment`, `spaces`, and each member of each toolshed.
    ///
    /// # Errors
    /// Every fault of the file.
    pub fn load_with_places(path: &Path) -> Result<(Self, Places), ConfigErrors> {
        let text = read_text(path, MAX_DIRECTORY_FILE_LEN)?;
        let mut report = Report::new(path, &text);
        let directory = Self::walk(&text, &mut report, None, None);
        let places = report.places();
        report.finish((directory, places))
    }

    /// Reads everything; faults are in the report.
    fn walk<'a>(
        text: &'a str,
        report: &mut Report<'a>,
        deployment: Option<&str>,
        previous: Option<&Self>,
    ) -> Self {
        let mut draft = Draft {
            expected: deployment,
            previous,
            ..Draft::default()
        };
        // A stop is in the report, which decides.
        let _ = draft.read(&mut Json::new(report, text));
        draft.check_indices(report);
        Self {
            deployment: draft.deployment,
            toolsheds: draft.toolsheds,
            spaces: draft.spaces,
            unlisted: draft.unlisted,
        }
    }

    /// The deployment's name.
    pub fn deployment(&self) -> &str {
        &self.deployment
    }

    /// The toolsheds, 1..=32, in the order of the file.
    pub fn toolsheds(&self) -> &[Toolshed] {
        &self.toolsheds
    }

    /// A toolshed by its index.
    pub fn toolshed(&self, index: u16) -> Option<&Toolshed> {
        self.toolsheds.get(usize::from(index))
    }

    /// Index of the toolshed with this identity.
    pub fn toolshed_index(&self, did: &Did) -> Option<u16> {
        let index = self
            .toolsheds
            .iter()
            .position(|toolshed| toolshed.did == *did)?;
        u16::try_from(index).ok()
    }

    /// Where a space is: as listed, else by the `unlisted` rule, else nowhere.
    pub fn place(&self, space: &Did) -> Option<Placement> {
        match self.spaces.get(space.key()) {
            Some(packed) => Some(packed.placement()),
            None => self.unlisted.as_ref().and_then(|rule| rule.place(space)),
        }
    }

    /// The placement epoch of a space.
    pub fn epoch_of(&self, space: &Did) -> Option<u64> {
        self.place(space).map(|placement| placement.epoch)
    }

    /// How many spaces are listed.
    pub fn space_count(&self) -> usize {
        self.spaces.len()
    }

    /// The listed spaces, in no order.
    pub fn spaces(&self) -> impl Iterator<Item = (Did, Placement)> + '_ {
        let listed = |(key, packed): (&[u8; 32], &Packed)| {
            Some((Did::from_key(key).ok()?, packed.placement()))
        };
        self.spaces.iter().filter_map(listed)
    }

    /// Whether unlisted spaces have a place.
    pub fn has_unlisted(&self) -> bool {
        self.unlisted.is_some()
    }

    /// Whether the space has an entry of its own.
    pub fn is_listed(&self, space: &Did) -> bool {
        self.spaces.contains_key(space.key())
    }

    /// Whether unlisted spaces go to the same toolsheds; the epoch may differ.
    pub fn same_unlisted_rule(&self, other: &Self) -> bool {
        let toolsheds = |directory: &Self| directory.unlisted.as_ref().map(|rule| rule.toolsheds);
        toolsheds(self) == toolsheds(other)
    }

    /// Whether deployment and toolsheds are the same, pins included. Placements may differ.
    pub fn same_topology(&self, other: &Self) -> bool {
        self.deployment == other.deployment && self.toolsheds == other.toolsheds
    }
}

/// A placement in one word: a million of them stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed(u64);

impl Packed {
    fn new(toolshed: u16, epoch: u64) -> Self {
        Self((epoch << INDEX_BITS) | u64::from(toolshed))
    }

    fn placement(self) -> Placement {
        let index = self.0 & ((1 << INDEX_BITS) - 1);
        Placement {
            toolshed: u16::try_from(index).unwrap_or_default(),
            epoch: self.0 >> INDEX_BITS,
        }
    }
}

/// Where a space goes that is not listed: by the last character of its DID.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unlisted {
    epoch: u64,
    /// By the character's value in base58btc.
    toolsheds: [u16; 58],
}

impl Unlisted {
    fn place(&self, space: &Did) -> Option<Placement> {
        let value = base58_value(space.last_character())?;
        let toolshed = *self.toolsheds.get(value)?;
        Some(Placement {
            toolshed,
            epoch: self.epoch,
        })
    }
}

/// A directory while it is read.
#[derive(Default)]
struct Draft<'p> {
    expected: Option<&'p str>,
    previous: Option<&'p Directory>,
    deployment: String,
    toolsheds: Vec<Toolshed>,
    /// Entries of `toolsheds`, good or not: the bound of indices.
    toolshed_count: usize,
    spaces: HashMap<[u8; 32], Packed>,
    unlisted: Option<Unlisted>,
    /// Where each index is named first: toolsheds may come after what points at them.
    indices: [Option<(usize, String)>; MAX_TOOLSHEDS],
}

const ROOT: [Member; 5] = [
    ("version", true),
    ("deployment", true),
    ("toolsheds", true),
    ("spaces", true),
    ("unlisted", false),
];
const TOOLSHED: [Member; 5] = [
    ("name", true),
    ("did", true),
    ("address", true),
    ("server_name", true),
    ("certificate", true),
];
const SPACE: [Member; 2] = [("toolshed", true), ("epoch", true)];
const UNLISTED: [Member; 2] = [("epoch", true), ("last_character", true)];

impl Draft<'_> {
    fn read(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        json.members(&ROOT, |json, member| {
            let offset = json.place();
            json.report.sets(member, offset);
            match member {
                "version" => drop(json.integer(1, 1)?),
                "deployment" => self.read_deployment(json)?,
                "toolsheds" => self.read_toolsheds(json)?,
                "spaces" => self.read_spaces(json)?,
                _ => self.read_unlisted(json)?,
            }
            Ok(())
        })?;
        json.end()
    }

    fn read_deployment(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        let offset = json.place();
        let read = json.string(
            "1..=256 printable ASCII characters without blanks",
            parse_deployment,
        )?;
        self.deployment = read.unwrap_or_default();
        match self.expected {
            Some(expected) if !self.deployment.is_empty() && self.deployment != expected => {
                let found = crate::report::quoted(&self.deployment);
                json.fault_here(offset, &found, &format!("the deployment \"{expected}\""));
            }
            _ => {}
        }
        Ok(())
    }

    fn read_toolsheds(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        let offset = json.place();
        let allowed = "an array of 1..=32 toolsheds";
        let mut count = 0;
        let read = json.array(allowed, |json, index| {
            count = index + 1;
            if count > MAX_TOOLSHEDS {
                return json.skip().map(drop);
            }
            self.read_toolshed(json)
        })?;
        if read.is_some() && !(1..=MAX_TOOLSHEDS).contains(&count) {
            json.fault_here(offset, &format!("{count} toolsheds"), "1..=32");
        }
        self.toolshed_count = count;
        Ok(())
    }

    fn read_toolshed(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        let (mut name, mut did, mut address, mut server_name, mut certificate) =
            (None, None, None, None, None);
        json.members(&TOOLSHED, |json, member| {
            let (offset, key) = (json.place(), json.key());
            json.report.sets(key, offset);
            let mut repeated = false;
            match member {
                "name" => {
                    name = json.string(
                        "1..=64 printable ASCII characters without blanks",
                        parse_name,
                    )?;
                    repeated = self
                        .toolsheds
                        .iter()
                        .any(|other| Some(&other.name) == name.as_ref());
                }
                "did" => {
                    did = json.string("a canonical did:key of an Ed25519 key", parse_did)?;
                    repeated = self.toolsheds.iter().any(|other| Some(other.did) == did);
                }
                "address" => {
                    address = json.string(
                        "IP:port with a port of 1..=65535, IPv6 in brackets",
                        parse_address,
                    )?;
                    repeated = self
                        .toolsheds
                        .iter()
                        .any(|other| Some(other.address) == address);
                }
                "server_name" => {
                    server_name = json.string("a host name or an IP address", parse_server_name)?
                }
                _ => certificate = read_certificate(json)?,
            }
            if repeated {
                json.fault_here(
                    offset,
                    "a value that an earlier toolshed has",
                    "a distinct one",
                );
            }
            Ok(())
        })?;
        if let (Some(name), Some(did), Some(address), Some(server_name), Some(certificate)) =
            (name, did, address, server_name, certificate)
        {
            self.toolsheds.push(Toolshed {
                name,
                did,
                address,
                server_name,
                certificate,
            });
        }
        Ok(())
    }

    fn read_spaces(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        json.map("an object of spaces", |json, name, offset| {
            let Some(key) = space_key(name, self.previous.map(|previous| &previous.spaces)) else {
                json.fault_here(
                    offset,
                    "a name that is no DID",
                    "a canonical did:key of an Ed25519 key",
                );
                return json.skip().map(drop);
            };
            if self.spaces.len() >= MAX_SPACES {
                json.fault_here(offset, "more than 1000000 spaces", "at most 1000000");
                return Err(Stopped);
            }
            let (mut toolshed, mut epoch) = (None, None);
            json.members(&SPACE, |json, member| {
                match member {
                    "toolshed" => toolshed = self.read_index(json)?,
                    _ => epoch = json.integer(1, MAX_EPOCH)?,
                }
                Ok(())
            })?;
            let packed = Packed::new(toolshed.unwrap_or_default(), epoch.unwrap_or_default());
            if self.spaces.insert(key, packed).is_some() {
                json.fault_here(offset, "a duplicate space", "each space once");
            }
            Ok(())
        })
        .map(drop)
    }

    fn read_unlisted(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        let mut epoch = None;
        let mut toolsheds = [None; 58];
        json.members(&UNLISTED, |json, member| {
            if member == "epoch" {
                epoch = json.integer(1, MAX_EPOCH)?;
                return Ok(());
            }
            let start = json.place();
            let read = json.map(
                "an object of the 58 base58btc characters",
                |json, name, offset| {
                    let slot = single(name)
                        .and_then(base58_value)
                        .and_then(|value| toolsheds.get_mut(value));
                    let Some(slot) = slot else {
                        json.fault_here(
                            offset,
                            "a name that is no base58btc character",
                            "one base58btc character",
                        );
                        return json.skip().map(drop);
                    };
                    if slot.is_some() {
                        json.fault_here(offset, "a duplicate character", "each character once");
                    }
                    *slot = Some(self.read_index(json)?.unwrap_or_default());
                    Ok(())
                },
            )?;
            let missing = BASE58
                .iter()
                .zip(&toolsheds)
                .filter(|(_, toolshed)| toolshed.is_none());
            let missing: String = missing
                .map(|(character, _)| char::from(*character))
                .collect();
            if read.is_some() && !missing.is_empty() {
                json.fault_here(
                    start,
                    &format!("no entry for {missing}"),
                    "all 58 base58btc characters",
                );
            }
            Ok(())
        })?;
        if let Some(epoch) = epoch {
            self.unlisted = Some(Unlisted {
                epoch,
                toolsheds: toolsheds.map(Option::unwrap_or_default),
            });
        }
        Ok(())
    }

    /// Reads a toolshed's index and notes where it stands; the list may not be known yet.
    fn read_index(&mut self, json: &mut Json<'_, '_>) -> Read<u16> {
        let offset = json.place();
        let Some(index) = json.integer(0, 31)? else {
            return Ok(None);
        };
        let slot = usize::try_from(index)
            .ok()
            .and_then(|index| self.indices.get_mut(index));
        if let Some(slot) = slot
            && slot.is_none()
        {
            *slot = Some((offset, json.key()));
        }
        Ok(u16::try_from(index).ok())
    }

    /// Every index names a toolshed; each wrong one is reported where it stands first.
    fn check_indices(&self, report: &mut Report<'_>) {
        let count = self.toolshed_count;
        if count == 0 {
            return;
        }
        for (index, place) in self.indices.iter().enumerate().skip(count) {
            if let Some((offset, key)) = place {
                report.fault(
                    *offset,
                    key.as_str(),
                    index.to_string(),
                    format!("0..={}, the toolsheds", count - 1),
                );
            }
        }
    }
}

/// Reads a certificate's path and the certificates in it.
fn read_certificate(json: &mut Json<'_, '_>) -> Read<Vec<CertificateDer<'static>>> {
    let offset = json.place();
    let folder = json.report.folder();
    let Some(path) = json.string("the path of a certificate file", |text| {
        parse_path(text, folder)
    })?
    else {
        return Ok(None);
    };
    match load_certificates(&path) {
        Ok(certificates) => Ok(Some(certificates)),
        Err(error) => {
            let found = crate::report::quoted(&path.to_string_lossy());
            json.fault_here(offset, &found, &format!("a file of certificates ({error})"));
            Ok(None)
        }
    }
}

fn single(text: &str) -> Option<char> {
    let mut characters = text.chars();
    characters.next().filter(|_| characters.next().is_none())
}

pub(crate) fn parse_deployment(text: &str) -> Option<String> {
    let fits = matches!(text.len(), 1..=256) && text.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| text.to_owned())
}

pub(crate) fn parse_did(text: &str) -> Option<Did> {
    Did::parse(text).ok()
}

fn parse_name(text: &str) -> Option<String> {
    let fits = matches!(text.len(), 1..=64) && text.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| text.to_owned())
}

fn parse_address(text: &str) -> Option<SocketAddr> {
    text.parse()
        .ok()
        .filter(|address: &SocketAddr| address.port() != 0 && !address.ip().is_unspecified())
}

fn parse_server_name(text: &str) -> Option<String> {
    let fits = is_host_name(text) || text.parse::<std::net::IpAddr>().is_ok();
    fits.then(|| text.to_owned())
}
