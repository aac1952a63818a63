//! Configuration files, their defaults and their checks (`docs/operations.md`, `docs/protocol.md` sections 6.4 and 6.5).
//!
//! Every loader is strict: unknown keys are refused, every fault of a file is reported in one run, and each report
//! names file, line, column, key, the value found and what is allowed. Nothing here opens a socket, and the
//! environment is read in one function, [`credentials_directory`].
#![forbid(unsafe_code)]

mod address;
mod directory;
mod error;
mod fixture;
mod identity;
mod json;
mod kinds;
mod limit;
mod pem;
mod places;
mod policy;
mod policy_limits;
mod read;
mod reload;
mod report;
mod revocation;
mod router;
mod sections;
mod source;
mod space_key;
mod table;
mod units;
mod worker;

pub use address::Network;
pub use directory::{Directory, MAX_SPACES, MAX_TOOLSHEDS, Placement, Toolshed};
pub use error::{ConfigError, ConfigErrors};
pub use fixture::{Fixture, FixtureSeed};
pub use identity::{Identity, IdentityError, SEED_LEN};
pub use limit::Limit;
pub use pem::{PemError, load_certificates, load_private_key};
pub use places::Places;
pub use policy::ToolshedPolicy;
pub use policy_limits::ToolshedLimits;
pub use read::FileIdentity;
pub use reload::Reloaded;
pub use revocation::{
    MAX_REASON_LEN, MAX_REVOCATIONS, REVOCATION_FILE, Revocation, RevocationError, RevocationFile,
    RevocationList, RevocationVersion, parse_reason,
};
pub use router::{Examined, ProxyProtocol, RouterConfig};
pub use sections::{Isolation, Limits, Penalties, Timeouts};
pub use source::{CredentialError, DirectorySource, FileSource, credentials_directory};
pub use table::KeyInfo;
pub use worker::{UPLOAD_WINDOW, WorkerSettings};
