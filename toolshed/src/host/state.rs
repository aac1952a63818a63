//! Everything the routed host knows, without a socket and without a clock.
//!
//! Its subjects have files of their own: [`super::control`] what a link may ask, [`super::bind`] how a data socket comes to a
//! context, [`super::request`] what a client's request has to pass, [`super::lifecycle`] how all of it ends.

use super::audit::Audit;
use super::closer::Closer;
use super::context::Context;
use super::ledger::Ledger;
use super::ownership::Ownership;
use super::tickets::Tickets;
use super::usage::Usage;
use crate::memory::{BackendId, Memory};
use memory_config::{Identity, ToolshedLimits};
use memory_wire::Did;
use memory_wire::flags::{self, Flags};
use memory_wire::ids::{ContextId, EpochId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::rc::Rc;

/// A control link's number in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinkId(u64);

impl LinkId {
    pub(crate) const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// What does not change while the host runs.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) identity: Identity,
    pub(crate) deployment: String,
    /// Allowed routers and the addresses each may come from.
    pub(crate) routers: BTreeMap<Did, Vec<Ipv4Addr>>,
    pub(crate) limits: ToolshedLimits,
    /// This toolshed's public capabilities.
    pub(crate) flags: Flags,
}

impl Settings {
    /// Whether some router may come from this address.
    pub(crate) fn knows_peer(&self, peer: Ipv4Addr) -> bool {
        self.routers.values().any(|peers| peers.contains(&peer))
    }

    /// Routers that may come from this address.
    pub(crate) fn routers_at(&self, peer: Ipv4Addr) -> impl Iterator<Item = &Did> {
        let here = move |(_, peers): &(&Did, &Vec<Ipv4Addr>)| peers.contains(&peer);
        self.routers.iter().filter(here).map(|(router, _)| router)
    }

    /// What a client must say of itself to be served here.
    pub(crate) fn accepts_client(&self, client: &Flags) -> Result<(), &'static str> {
        if !client.is_true(flags::CONNECTION_AUTH) || !client.is_true(flags::ROUTED_AUTH_V1) {
            return Err("client-flags");
        }
        if client.modern_cell_rep() != self.flags.modern_cell_rep() {
            return Err("cell-mode");
        }
        Ok(())
    }
}

/// An admitted control link.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) router: Did,
    pub(crate) epoch: EpochId,
    /// Sequence of the last request.
    pub(crate) sequence: u64,
    pub(crate) closer: Rc<Closer>,
    pub(crate) contexts: HashMap<ContextId, Context>,
}

/// The host's state.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) ledger: Ledger,
    pub(crate) ownership: Ownership,
    pub(crate) memory: Memory,
    pub(crate) audit: Audit,
    pub(crate) links: BTreeMap<LinkId, Link>,
    pub(crate) tickets: Tickets,
    pub(crate) usage: Usage,
    /// Whose data socket each backend is.
    pub(crate) backends: HashMap<BackendId, (LinkId, ContextId)>,
    /// Ends of leases, soonest first. A renewal adds an entry and leaves the old one, which then finds nothing to end.
    pub(crate) expiries: BTreeSet<(u64, LinkId, ContextId, Did)>,
    pub(crate) next_link: u64,
}

impl State {
    pub(crate) fn new(
        settings: Settings,
        ledger: Ledger,
        ownership: Ownership,
        memory: Memory,
        audit: Audit,
    ) -> Self {
        Self {
            tickets: Tickets::new(settings.limits.tickets),
            usage: Usage::new(&settings.limits),
            settings,
            ledger,
            ownership,
            memory,
            audit,
            links: BTreeMap::new(),
            backends: HashMap::new(),
            expiries: BTreeSet::new(),
            next_link: 1,
        }
    }

    pub(crate) fn context(&self, link: LinkId, context: &ContextId) -> Option<&Context> {
        self.links.get(&link)?.contexts.get(context)
    }

    pub(crate) fn context_mut(
        &mut self,
        link: LinkId,
        context: &ContextId,
    ) -> Option<&mut Context> {
        self.links.get_mut(&link)?.contexts.get_mut(context)
    }
}
