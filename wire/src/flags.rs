//! Capability descriptors: what a client, a toolshed and the router's public offer say they can do
//! (`docs/protocol.md` sections 4.2 and 6).
//!
//! A descriptor maps names to a boolean or to a set of names. Names that this code has never seen travel unchanged, so a
//! new capability needs no new router. Every descriptor has one canonical form, compact JSON with keys sorted bytewise
//! and arrays in their order, whose digest is what the router signs.

use crate::ids::Digest;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::collections::btree_map;
use thiserror::Error;

/// Capabilities of one descriptor, at most.
pub const MAX_CAPABILITIES: usize = 64;

/// Names of one capability, at most.
pub const MAX_NAMES: usize = 16;

/// Bytes of a capability's name and of a name in its set, at most.
pub const MAX_NAME_LEN: usize = 64;

/// Bytes of a canonical form, at most.
pub const MAX_CANONICAL_LEN: usize = 2048;

/// How a deployment represents cells on the wire: a mode that all sides share, not something to negotiate.
pub const MODERN_CELL_REP: &str = "modernCellRep";

/// Required of every public client.
pub const CONNECTION_AUTH: &str = "connectionAuth";

/// Required of every public client.
pub const ROUTED_AUTH_V1: &str = "routedAuthV1";

/// Required of every toolshed on its link, never offered to clients.
pub const ROUTER_ENCODING_NEGOTIATION: &str = "routerEncodingNegotiation";

/// Required of every toolshed on its link, never offered to clients.
pub const ROUTER_REQUEST_CREDIT: &str = "routerRequestCredit";

/// A toolshed's execution posture. Toolsheds may differ and change, so a routed connection never states one.
pub const SERVER_EXECUTION: &str = "serverExecution";

/// Names that neither the public offer nor negotiated flags contain.
pub const PRIVATE_NAMES: [&str; 3] = [
    SERVER_EXECUTION,
    ROUTER_ENCODING_NEGOTIATION,
    ROUTER_REQUEST_CREDIT,
];

/// What is said about one capability.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Capability {
    /// Whether it is supported.
    Flag(bool),
    /// Which members of it are supported: at most [`MAX_NAMES`] distinct ones, in their declared order.
    Names(Vec<String>),
}

impl Capability {
    /// What both support, set members in the order of `self`. `None` when one is a boolean and the other a set.
    fn intersect(&self, other: &Self) -> Option<Self> {
        match (self, other) {
            (Self::Flag(mine), Self::Flag(theirs)) => Some(Self::Flag(*mine && *theirs)),
            (Self::Names(mine), Self::Names(theirs)) => {
                let common = mine.iter().filter(|name| theirs.contains(name));
                Some(Self::Names(common.cloned().collect()))
            }
            (Self::Flag(_), Self::Names(_)) | (Self::Names(_), Self::Flag(_)) => None,
        }
    }

    /// Whether `other` supports everything this supports. False and the empty set claim nothing.
    fn is_covered_by(&self, other: Option<&Self>) -> bool {
        match (self, other) {
            (Self::Flag(false), _) => true,
            (Self::Flag(true), Some(Self::Flag(theirs))) => *theirs,
            (Self::Names(mine), Some(Self::Names(theirs))) => {
                mine.iter().all(|name| theirs.contains(name))
            }
            (Self::Names(mine), None | Some(Self::Flag(_))) => mine.is_empty(),
            (Self::Flag(true), None | Some(Self::Names(_))) => false,
        }
    }

    fn from_value(value: &Value) -> Result<Self, FlagsError> {
        match value {
            Value::Bool(flag) => Ok(Self::Flag(*flag)),
            Value::Array(members) => {
                if members.len() > MAX_NAMES {
                    return Err(FlagsError::TooManyNames);
                }
                let name = |member: &Value| member.as_str().map(str::to_owned);
                let names: Option<Vec<_>> = members.iter().map(name).collect();
                names.map(Self::Names).ok_or(FlagsError::Kind)
            }
            _ => Err(FlagsError::Kind),
        }
    }

    fn check(&self) -> Result<(), FlagsError> {
        let Self::Names(names) = self else {
            return Ok(());
        };
        if names.len() > MAX_NAMES {
            return Err(FlagsError::TooManyNames);
        }
        for (index, name) in names.iter().enumerate() {
            if !is_name(name) {
                return Err(FlagsError::Name);
            }
            if names.iter().take(index).any(|earlier| earlier == name) {
                return Err(FlagsError::DuplicateName);
            }
        }
        Ok(())
    }

    fn write(&self, text: &mut String) {
        match self {
            Self::Flag(flag) => text.push_str(if *flag { "true" } else { "false" }),
            Self::Names(names) => {
                text.push('[');
                for (index, name) in names.iter().enumerate() {
                    separate(text, index);
                    write_name(text, name);
                }
                text.push(']');
            }
        }
    }
}

/// A capability descriptor that keeps every bound of this module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// Ordered bytewise, as the canonical form is.
    capabilities: BTreeMap<String, Capability>,
}

impl Flags {
    /// A descriptor that claims nothing.
    pub const fn new() -> Self {
        Self {
            capabilities: BTreeMap::new(),
        }
    }

    /// Reads a descriptor from a strictly parsed JSON value.
    ///
    /// # Errors
    /// [`FlagsError`].
    pub fn from_value(value: &Value) -> Result<Self, FlagsError> {
        let object = value.as_object().ok_or(FlagsError::Kind)?;
        if object.len() > MAX_CAPABILITIES {
            return Err(FlagsError::TooManyCapabilities);
        }
        let mut flags = Self::new();
        for (name, capability) in object {
            flags.place(name, Capability::from_value(capability)?)?;
        }
        flags.check_length()?;
        Ok(flags)
    }

    /// Reads a canonical form, and nothing that merely means the same.
    ///
    /// # Errors
    /// [`FlagsError`].
    pub fn from_canonical(bytes: &[u8]) -> Result<Self, FlagsError> {
        if bytes.len() > MAX_CANONICAL_LEN {
            return Err(FlagsError::TooLong);
        }
        let value = serde_json::from_slice(bytes).map_err(|_| FlagsError::Syntax)?;
        let flags = Self::from_value(&value)?;
        // Catches duplicate keys too: the parser keeps one of them.
        if flags.canonical() != bytes {
            return Err(FlagsError::NotCanonical);
        }
        Ok(flags)
    }

    /// The canonical form, at most [`MAX_CANONICAL_LEN`] bytes.
    pub fn canonical(&self) -> Vec<u8> {
        // Names need no escapes: their alphabet has neither quotes nor backslashes nor anything beyond ASCII.
        let mut text = String::from("{");
        for (index, (name, capability)) in self.capabilities.iter().enumerate() {
            separate(&mut text, index);
            write_name(&mut text, name);
            text.push(':');
            capability.write(&mut text);
        }
        text.push('}');
        text.into_bytes()
    }

    /// SHA-256 of the canonical form.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.canonical())
    }

    /// The descriptor as a JSON object.
    pub fn to_value(&self) -> Value {
        let capability = |capability: &Capability| match capability {
            Capability::Flag(flag) => Value::from(*flag),
            Capability::Names(names) => Value::from(names.clone()),
        };
        let members = self.capabilities.iter();
        Value::Object(Map::from_iter(
            members.map(|(name, value)| (name.clone(), capability(value))),
        ))
    }

    /// What is said about `name`.
    pub fn get(&self, name: &str) -> Option<&Capability> {
        self.capabilities.get(name)
    }

    /// Whether `name` is a boolean and true.
    pub fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some(&Capability::Flag(true))
    }

    /// Every capability, names ascending bytewise.
    pub fn iter(&self) -> btree_map::Iter<'_, String, Capability> {
        self.capabilities.iter()
    }

    /// Number of capabilities.
    pub fn len(&self) -> usize {
        self.capabilities.len()
    }

    /// Whether nothing is said about any capability.
    pub fn is_empty(&self) -> bool {
        self.capabilities.is_empty()
    }

    /// Says something about `name`, in place of what was said before.
    ///
    /// # Errors
    /// [`FlagsError`]; the descriptor is then as it was.
    pub fn insert(&mut self, name: &str, capability: Capability) -> Result<(), FlagsError> {
        let mut changed = self.clone();
        changed.place(name, capability)?;
        changed.check_length()?;
        *self = changed;
        Ok(())
    }

    /// Takes back what was said about `name`.
    pub fn remove(&mut self, name: &str) -> Option<Capability> {
        self.capabilities.remove(name)
    }

    /// The cell mode; absence means legacy.
    pub fn modern_cell_rep(&self) -> bool {
        self.is_true(MODERN_CELL_REP)
    }

    /// What every endpoint supports: booleans by logical AND, sets by intersection in the order of the first endpoint. A
    /// capability that an endpoint omits, or gives as the other kind, is left out, and so are [`PRIVATE_NAMES`].
    pub fn public_offer(endpoints: &[&Self]) -> Self {
        let Some((first, others)) = endpoints.split_first() else {
            return Self::new();
        };
        let first = first.capabilities.iter();
        let capabilities = first.filter_map(|(name, capability)| {
            let mut common = (!is_private(name)).then(|| capability.clone())?;
            for other in others {
                common = common.intersect(other.get(name)?)?;
            }
            Some((name.clone(), common))
        });
        Self {
            capabilities: capabilities.collect(),
        }
    }

    /// What a client's connection uses: for each capability of `offer` that the client also has, booleans by logical AND
    /// and set members in the offer's order. An empty set is kept. [`PRIVATE_NAMES`] are left out.
    pub fn negotiate(client: &Self, offer: &Self) -> Self {
        let offered = offer.capabilities.iter();
        let capabilities =
            offered
                .filter(|(name, _)| !is_private(name))
                .filter_map(|(name, capability)| {
                    let common = capability.intersect(client.get(name)?)?;
                    Some((name.clone(), common))
                });
        Self {
            capabilities: capabilities.collect(),
        }
    }

    /// Whether `other` supports every true boolean and every set member of this.
    pub fn subset_of(&self, other: &Self) -> bool {
        let mut mine = self.capabilities.iter();
        mine.all(|(name, capability)| capability.is_covered_by(other.get(name)))
    }

    /// Whether `endpoint` can serve clients to whom this offer was made: [`Self::subset_of`], at the same cell mode.
    pub fn is_supported_by(&self, endpoint: &Self) -> bool {
        self.subset_of(endpoint) && self.modern_cell_rep() == endpoint.modern_cell_rep()
    }

    /// Whether this names a capability that only links may name.
    pub fn has_private_names(&self) -> bool {
        PRIVATE_NAMES.iter().any(|name| self.get(name).is_some())
    }

    fn place(&mut self, name: &str, capability: Capability) -> Result<(), FlagsError> {
        if !is_capability_name(name) {
            return Err(FlagsError::Name);
        }
        if name == MODERN_CELL_REP && !matches!(capability, Capability::Flag(_)) {
            return Err(FlagsError::Kind);
        }
        capability.check()?;
        self.capabilities.insert(name.to_owned(), capability);
        if self.capabilities.len() > MAX_CAPABILITIES {
            return Err(FlagsError::TooManyCapabilities);
        }
        Ok(())
    }

    fn check_length(&self) -> Result<(), FlagsError> {
        if self.canonical().len() > MAX_CANONICAL_LEN {
            return Err(FlagsError::TooLong);
        }
        Ok(())
    }
}

impl<'a> IntoIterator for &'a Flags {
    type Item = (&'a String, &'a Capability);
    type IntoIter = btree_map::Iter<'a, String, Capability>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Why something is not a capability descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum FlagsError {
    /// The bytes are not JSON.
    #[error("capability descriptor is not JSON")]
    Syntax,
    /// The descriptor is not an object of booleans and string arrays, or the cell mode is not a boolean.
    #[error("capability descriptor has a value of the wrong kind")]
    Kind,
    /// A name is empty, too long or has a character outside `[A-Za-z0-9_@.:/-]`, or a capability's name may be mistaken
    /// for a tagged value or a prototype.
    #[error("capability name out of range")]
    Name,
    /// A set has a member twice.
    #[error("capability set has a duplicate")]
    DuplicateName,
    /// A set has more than [`MAX_NAMES`] members.
    #[error("capability set is too large")]
    TooManyNames,
    /// More than [`MAX_CAPABILITIES`] capabilities.
    #[error("too many capabilities")]
    TooManyCapabilities,
    /// The canonical form is longer than [`MAX_CANONICAL_LEN`].
    #[error("capability descriptor is too long")]
    TooLong,
    /// The bytes are a descriptor, but not its canonical form.
    #[error("capability descriptor is not canonical")]
    NotCanonical,
}

fn is_private(name: &str) -> bool {
    PRIVATE_NAMES.contains(&name)
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_@.:/-".contains(&byte);
    (1..=MAX_NAME_LEN).contains(&name.len()) && name.bytes().all(allowed)
}

/// A capability's name is an object key, so what strict JSON refuses of keys (section 2) holds here as well.
fn is_capability_name(name: &str) -> bool {
    is_name(name)
        && !name.starts_with('/')
        && !matches!(name, "__proto__" | "constructor" | "prototype")
}

fn separate(text: &mut String, index: usize) {
    if index > 0 {
        text.push(',');
    }
}

fn write_name(text: &mut String, name: &str) {
    text.push('"');
    text.push_str(name);
    text.push('"');
}

#[cfg(test)]
mod tests;
