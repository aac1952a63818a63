//! One public connection, as its router's link tells of it.

use super::outlet::Outlet;
use super::principals::Principals;
use super::usage::Amounts;
use crate::memory::BackendId;
use memory_wire::Did;
use memory_wire::flags::Flags;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A session's name.
pub(crate) type SessionKey = (Did, String);

/// What the host mirrors of a session: what the engine has answered, for quotas.
#[derive(Debug, Clone)]
pub(crate) struct SessionMirror {
    pub(crate) principal: Did,
    /// Watch identifiers; empty when no quota needs them.
    pub(crate) watches: HashSet<String>,
    pub(crate) views: u64,
    pub(crate) holdings: u64,
}

impl SessionMirror {
    pub(crate) fn new(principal: Did) -> Self {
        Self {
            principal,
            watches: HashSet::new(),
            views: 0,
            holdings: 0,
        }
    }

    /// What it takes of the quotas.
    pub(crate) fn amounts(&self) -> Amounts {
        let watches = u64::try_from(self.watches.len()).unwrap_or(u64::MAX);
        Amounts {
            sessions: 1,
            watches: watches.saturating_add(self.views),
            holdings: self.holdings,
        }
    }
}

/// The data socket of a context.
#[derive(Debug, Clone)]
pub(crate) struct Socket {
    pub(crate) backend: BackendId,
    pub(crate) outlet: Rc<Outlet>,
    /// Whether its client takes compressed bodies.
    pub(crate) compress: bool,
    /// Whether its client may send compressed bodies.
    pub(crate) expand: bool,
}

/// The state of one context.
#[derive(Debug)]
pub(crate) struct Context {
    /// The client's own capabilities, as the router relayed them.
    pub(crate) flags: Flags,
    /// Spaces admitted, and the ownership epoch of each. Never shrinks.
    pub(crate) spaces: HashMap<Did, u64>,
    pub(crate) principals: Principals,
    pub(crate) sessions: HashMap<SessionKey, SessionMirror>,
    /// Sum over `sessions`.
    pub(crate) amounts: Amounts,
    pub(crate) socket: Option<Socket>,
}

impl Context {
    pub(crate) fn new(flags: Flags) -> Self {
        Self {
            flags,
            spaces: HashMap::new(),
            principals: Principals::default(),
            sessions: HashMap::new(),
            amounts: Amounts::default(),
            socket: None,
        }
    }

    /// Admits a space; one admitted before keeps its epoch.
    ///
    /// # Errors
    /// A fixed reason.
    pub(crate) fn admit_space(
        &mut self,
        space: Did,
        epoch: u64,
        limit: Option<u64>,
    ) -> Result<(), &'static str> {
        match self.spaces.get(&space) {
            Some(admitted) if *admitted == epoch => Ok(()),
            Some(_) => Err("space-epoch"),
            None => {
                let held = u64::try_from(self.spaces.len()).unwrap_or(u64::MAX);
                if limit.is_some_and(|limit| held >= limit) {
                    return Err("space-limit");
                }
                self.spaces.insert(space, epoch);
                Ok(())
            }
        }
    }
}
