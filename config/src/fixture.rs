//! The argument file of a toolshed under the exercise (`docs/operations.md`): any toolshed takes the same one.

use std::path::{Path, PathBuf};

use memory_wire::Did;

use crate::directory::parse_did;
use crate::error::ConfigErrors;
use crate::identity::{Identity, IdentityError, SEED_LEN};
use crate::json::{Json, Member, Read, Stopped};
use crate::policy::{read_path, read_port};
use crate::read::read_text;
use crate::report::Report;

/// Longest fixture file, bytes.
const MAX_FIXTURE_FILE_LEN: u64 = 1 << 20;
/// Most principals of one fixture.
const MAX_PRINCIPALS: usize = 1024;

const MEMBERS: [Member; 10] = [
    ("port", true),
    ("seed", true),
    ("certificate", true),
    ("key", true),
    ("directory", true),
    ("store", true),
    ("router", true),
    ("space", false),
    ("principals", false),
    ("modernCellRep", false),
];

/// What the exercise tells a toolshed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixture {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// The toolshed's identity.
    pub seed: FixtureSeed,
    /// Path of its certificate, PEM; relative paths were joined to the file's folder, as below.
    pub certificate: PathBuf,
    /// Path of its private key, PEM.
    pub key: PathBuf,
    /// Path of the directory file.
    pub directory: PathBuf,
    /// Folder of its store and ledger; it may not exist yet.
    pub store: PathBuf,
    /// The one router it serves, from 127.0.0.1.
    pub router: Did,
    /// The space it creates if its store is empty.
    pub space: Option<Did>,
    /// Who owns that space.
    pub principals: Vec<Did>,
    /// Its wire mode; absent means false.
    pub modern_cell_rep: bool,
}

/// How a fixture gives the toolshed's seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FixtureSeed {
    /// 32 bytes that all equal this number: a key for tests only.
    Byte(u8),
    /// A seed file.
    File(PathBuf),
}

impl FixtureSeed {
    /// The identity.
    ///
    /// # Errors
    /// When the seed file cannot be used.
    pub fn identity(&self) -> Result<Identity, IdentityError> {
        match self {
            Self::Byte(byte) => Identity::from_seed([*byte; SEED_LEN]),
            Self::File(path) => Identity::from_seed_file(path),
        }
    }
}

impl Fixture {
    /// Reads and checks a fixture file.
    ///
    /// # Errors
    /// Every fault of the file.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::parse(&read_text(path, MAX_FIXTURE_FILE_LEN)?, path)
    }

    /// Checks the text of a fixture; `file` is its name in errors, and relative paths start from its folder.
    ///
    /// # Errors
    /// Every fault of the text.
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigErrors> {
        let mut report = Report::new(file, text);
        let mut draft = Draft::default();
        // A stop is in the report, which decides below.
        let _ = draft.read(&mut Json::new(&mut report, text));
        let errors = match draft.finish() {
            Some(fixture) => return report.finish(fixture),
            None => report.into_errors(),
        };
        Err(errors)
    }
}

/// A fixture while it is read. What stays `None` has been reported.
#[derive(Default)]
struct Draft {
    port: Option<u16>,
    seed: Option<FixtureSeed>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    directory: Option<PathBuf>,
    store: Option<PathBuf>,
    router: Option<Did>,
    space: Option<Did>,
    principals: Vec<Did>,
    modern_cell_rep: bool,
}

impl Draft {
    fn read(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        json.members(&MEMBERS, |json, member| {
            match member {
                "port" => self.port = read_port(json)?,
                "seed" => self.seed = read_seed(json)?,
                "certificate" => self.certificate = read_path(json)?,
                "key" => self.key = read_path(json)?,
                "directory" => self.directory = read_path(json)?,
                "store" => self.store = read_path(json)?,
                "router" => self.router = read_did(json)?,
                "space" if json.null()? => {}
                "space" => self.space = read_did(json)?,
                "principals" => self.read_principals(json)?,
                _ => self.modern_cell_rep = json.boolean()?.unwrap_or_default(),
            }
            Ok(())
        })?;
        json.end()
    }

    fn read_principals(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        let start = json.place();
        json.array("an array of DIDs", |json, index| {
            if index == MAX_PRINCIPALS {
                json.fault_here(start, "more than 1024 principals", "0..=1024");
                return Err(Stopped);
            }
            self.principals.extend(read_did(json)?);
            Ok(())
        })
        .map(drop)
    }

    fn finish(self) -> Option<Fixture> {
        Some(Fixture {
            port: self.port?,
            seed: self.seed?,
            certificate: self.certificate?,
            key: self.key?,
            directory: self.directory?,
            store: self.store?,
            router: self.router?,
            space: self.space,
            principals: self.principals,
            modern_cell_rep: self.modern_cell_rep,
        })
    }
}

/// A number stands for 32 equal bytes, a string for the path of a seed file.
fn read_seed(json: &mut Json<'_, '_>) -> Read<FixtureSeed> {
    if json.is_number() {
        let byte = json.integer(0, 255)?;
        return Ok(byte
            .and_then(|byte| u8::try_from(byte).ok())
            .map(FixtureSeed::Byte));
    }
    Ok(read_path(json)?.map(FixtureSeed::File))
}

fn read_did(json: &mut Json<'_, '_>) -> Read<Did> {
    json.string("a canonical did:key of an Ed25519 key", parse_did)
}
