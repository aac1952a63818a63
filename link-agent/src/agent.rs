//! Everything the link agent remembers, without a socket: contexts, links, the offer. Time and random bytes are passed in.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use memory_admin::{Count, Snapshot};
use memory_config::{RevocationList, RouterConfig, Toolshed};
use memory_wire::admission::MAX_SKEW;
use memory_wire::ids::{Challenge, ConnectionId, ContextId, Digest, Ticket};
use memory_wire::records::DataHello;
use memory_wire::{Did, Reason};

use crate::clock::Moment;
use crate::context::{Admission, ClientFlags, Context, ContextLimits, Signals, Surroundings};
use crate::error::LinkFault;
use crate::links::Links;
use crate::queue::{Class, QueueLimits};
use crate::registry::PrincipalRegistry;
use crate::revocation::Revocations;
use crate::show;
use crate::signer::{Bound, Signer};
use crate::spaces::SpaceRegistry;
use crate::ticket::BindFault;
use crate::upstream::Task;

/// How far a toolshed's clock may be from ours in its greetings, seconds (`docs/protocol.md` section 6.1).
pub(crate) const MAX_HELLO_AGE: u64 = 60;

const _: () = assert!(MAX_HELLO_AGE <= MAX_SKEW);

/// How often the log is told of greetings whose time is off.
const SKEW_INTERVAL: Duration = Duration::from_secs(10);

/// The state of the role.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) signer: Signer,
    pub(crate) links: Links,
    limits: ContextLimits,
    registry: PrincipalRegistry,
    spaces: SpaceRegistry,
    pub(crate) revocations: Revocations,
    pub(crate) contexts: HashMap<ContextId, Context>,
    /// Statements that were accepted, the same ones again left out.
    accepted: Count,
    /// When the log was told last of a data socket's greeting whose time is off.
    skew_told: Option<Instant>,
}

/// Why a worker's request was not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is refused and the worker is told.
    Refused(Reason),
    /// No honest worker asks for it: its context ends. The text says what it was.
    Violation(&'static str),
}

impl From<Reason> for Fault {
    fn from(reason: Reason) -> Self {
        Self::Refused(reason)
    }
}

/// A challenge, as its context's worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Issued {
    pub(crate) value: Challenge,
    /// Unix seconds.
    pub(crate) expires: u64,
}

/// A signed binding, and the canonical flags that it names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SignedBinding {
    pub(crate) binding: Vec<u8>,
    pub(crate) negotiated: Vec<u8>,
}

impl Agent {
    pub(crate) fn new(signer: Signer, toolsheds: Vec<Toolshed>, config: &RouterConfig) -> Self {
        Self {
            signer,
            links: Links::new(
                toolsheds,
                queue_limits(config),
                config.modern_cell_rep,
                config.timeouts.startup_grace,
            ),
            limits: ContextLimits::from(&config.limits),
            registry: PrincipalRegistry::new(config.limits.max_connections_per_principal),
            spaces: SpaceRegistry::new(config.limits.max_connections_per_space),
            revocations: Revocations::default(),
            contexts: HashMap::new(),
            accepted: Count::default(),
            skew_told: None,
        }
    }

    /// Takes other limits for what comes from now on. Contexts keep those they were made with, as their workers do.
    pub(crate) fn configure(&mut self, config: &RouterConfig) {
        self.limits = ContextLimits::from(&config.limits);
        self.registry
            .set_limit(config.limits.max_connections_per_principal);
        self.spaces
            .set_limit(config.limits.max_connections_per_space);
        self.links.set_limits(queue_limits(config));
    }

    /// What it shows of its state, in `snapshot`.
    pub(crate) fn show(&self, snapshot: Snapshot, now: Instant) -> Snapshot {
        let snapshot = snapshot
            .budget(self.spaces.fullest())
            .budget(self.registry.fullest());
        show::agent(
            show::links(snapshot, self.links.shown(now)),
            &show::Numbers {
                contexts: self.contexts.len(),
                statements: self.accepted.get(),
                revoked: self.revocations.len(),
            },
        )
    }

    /// Makes a context under a random identifier. `false` if it exists: the caller draws another.
    pub(crate) fn open(&mut self, connection: ConnectionId, id: ContextId) -> Option<Rc<Signals>> {
        if self.contexts.contains_key(&id) {
            return None;
        }
        let context = Context::new(connection, id, self.limits);
        let signals = Rc::clone(&context.signals);
        self.contexts.insert(id, context);
        Some(signals)
    }

    /// Ends a context: every toolshed that knows it is told.
    pub(crate) fn close(&mut self, id: &ContextId, now: Moment) {
        let Some(mut context) = self.contexts.remove(id) else {
            return;
        };
        if let Some(place) = context.place.take() {
            self.spaces.leave(place);
        }
        context.leave(&mut self.registry);
        for index in context.known_at() {
            self.links
                .push(index, *id, Task::Close, Class::Kept, None, now.monotonic);
        }
    }

    /// Puts another state of the revocation list in force. Every context that remembers somebody on it ends at once: its worker
    /// is told, and so is every toolshed that knows it, whatever the worker does. Returns how many ended.
    pub(crate) fn apply(&mut self, list: RevocationList, now: Moment) -> usize {
        let list = self.revocations.replace(list);
        let mut ended = Vec::new();
        for (id, context) in &self.contexts {
            let revoked = context.remembered().filter(|did| list.contains(did));
            let revoked: Vec<Did> = revoked.copied().collect();
            if let Some(first) = revoked.first() {
                // Before the toolsheds, so that the worker knows why it loses them.
                context.signals.revoke(*first);
                ended.push((*id, revoked));
            }
        }
        for (id, revoked) in &ended {
            for principal in revoked {
                let context = self.contexts.get(id);
                let holders: Vec<u16> = context
                    .map(|context| context.holders(principal).collect())
                    .unwrap_or_default();
                let task = Task::Revoke {
                    principal: *principal,
                };
                for index in holders {
                    self.links
                        .push(index, *id, task, Class::Kept, None, now.monotonic);
                }
            }
            self.close(id, now);
        }
        ended.len()
    }

    /// Gives a context, before its hello, a place among the connections of the one space that it is for. The place is its own
    /// until it is closed.
    ///
    /// # Errors
    /// [`Reason::TenantCap`] at `max_connections_per_space`; a second time, and after hello.
    pub(crate) fn dedicate(&mut self, id: &ContextId, space: Did) -> Result<(), Fault> {
        let context = self.contexts.get_mut(id).ok_or(NO_CONTEXT)?;
        if context.client.is_some() {
            return Err(Fault::Violation("dedicated after hello"));
        }
        if context.place.is_some() {
            return Err(Fault::Violation("dedicated twice"));
        }
        let place = self.spaces.enter(space).map_err(|_| Reason::TenantCap)?;
        context.place = Some(place);
        Ok(())
    }

    /// Takes the client's flags and issues the first challenge.
    ///
    /// # Errors
    /// [`Reason::IncompatibleFlags`], [`Reason::UpstreamUnavailable`] before the offer is frozen, a second hello.
    pub(crate) fn hello(
        &mut self,
        id: &ContextId,
        flags: Vec<u8>,
        challenge: Challenge,
        now: Moment,
    ) -> Result<Issued, Fault> {
        let context = self.contexts.get_mut(id).ok_or(NO_CONTEXT)?;
        if context.client.is_some() {
            return Err(Fault::Violation("second hello"));
        }
        let offer = self.links.offer().ok_or(Reason::UpstreamUnavailable)?;
        context.client = Some(ClientFlags::new(flags, offer)?);
        self.challenge(id, challenge, now)
    }

    /// Issues a challenge.
    ///
    /// # Errors
    /// A request before hello.
    pub(crate) fn challenge(
        &mut self,
        id: &ContextId,
        value: Challenge,
        now: Moment,
    ) -> Result<Issued, Fault> {
        let epochs = self.links.epochs();
        let issue = self.ready(id)?.challenges.issue(value, epochs, now);
        Ok(Issued {
            value,
            expires: issue.expires,
        })
    }

    /// Judges a statement. A new one is sent at once to every toolshed that holds an earlier one of its principal.
    ///
    /// # Errors
    /// The reasons of `docs/protocol.md` section 4.4; a request before hello.
    pub(crate) fn authenticate(
        &mut self,
        id: &ContextId,
        statement: &[u8],
        now: Moment,
    ) -> Result<Admission, Fault> {
        self.ready(id)?;
        let context = self.contexts.get_mut(id).ok_or(NO_CONTEXT)?;
        let around = Surroundings {
            signer: &self.signer,
            registry: &mut self.registry,
            revocations: &self.revocations,
            is_linked: self.links.is_any_usable(),
            now,
        };
        let admission = context.authenticate(statement, around)?;
        if admission.is_new {
            self.accepted.add(1);
            let task = Task::Verified {
                principal: admission.principal,
            };
            for index in context.announce(&task) {
                self.links
                    .push(index, *id, task, Class::Kept, None, now.monotonic);
            }
        }
        Ok(admission)
    }

    /// Releases a principal, here and wherever it is held. It need not be known.
    ///
    /// # Errors
    /// A request before hello.
    pub(crate) fn release(
        &mut self,
        id: &ContextId,
        principal: Did,
        now: Moment,
    ) -> Result<(), Fault> {
        self.ready(id)?;
        let context = self.contexts.get_mut(id).ok_or(NO_CONTEXT)?;
        context.release(&principal, &mut self.registry);
        let task = Task::Release { principal };
        for index in context.announce(&task) {
            self.links
                .push(index, *id, task, Class::Kept, None, now.monotonic);
        }
        Ok(())
    }

    /// Signs the binding of a data socket: after this the ticket cannot be rolled back.
    ///
    /// # Errors
    /// [`Reason::UpstreamUnavailable`] for a link that is gone or a greeting that does not verify,
    /// [`Reason::UpstreamIncompatible`], [`Reason::TicketWindow`], [`Reason::PrincipalRevoked`]; a ticket bound before, a toolshed that does not exist.
    pub(crate) fn bind(
        &mut self,
        id: &ContextId,
        index: u16,
        ticket: Ticket,
        hello: &[u8],
        now: Moment,
    ) -> Result<SignedBinding, Fault> {
        self.ready(id)?;
        let toolshed = *self
            .links
            .did(index)
            .ok_or(Fault::Violation("no such toolshed"))?;
        let epoch = *self.links.usable(index)?;
        let hello = DataHello::verify(hello, &toolshed).map_err(|_| Reason::UpstreamUnavailable)?;
        let skew = now.skew(hello.issued);
        if skew.unsigned_abs() > MAX_HELLO_AGE {
            // Nobody is told why but the log, and that not at every attempt: a worker can show an old greeting at will.
            let told = self.skew_told.replace(now.monotonic);
            if told.is_none_or(|told| now.since(told) >= SKEW_INTERVAL) {
                tracing::warn!(
                    reason = %Reason::DataHandshake,
                    toolshed = index,
                    detail = %LinkFault::HelloAge(skew),
                    "a data socket's greeting is refused"
                );
            } else {
                self.skew_told = told;
            }
            return Err(Reason::UpstreamUnavailable.into());
        }
        let context = self.contexts.get_mut(id).ok_or(NO_CONTEXT)?;
        // A data socket serves everybody of the context.
        for principal in context.remembered() {
            context.confirm(principal, &self.revocations)?;
        }
        let Some(client) = &context.client else {
            return Err(NO_CONTEXT);
        };
        let binding = self.signer.binding(&Bound {
            hello: &hello,
            epoch: &epoch,
            context: id,
            ticket,
            client_flags: Digest::of(&client.original),
            negotiated_flags: Digest::of(&client.negotiated),
        });
        let binding = binding.map_err(|_| Reason::Internal)?;
        let negotiated = client.negotiated.clone();
        // The signature is only now let out: whether it may be is decided here, in one step with marking the ticket.
        match context.upstream_mut(index).bind(ticket, now.monotonic) {
            Ok(()) => Ok(SignedBinding {
                binding,
                negotiated,
            }),
            Err(BindFault::TooOld) => Err(Reason::TicketWindow.into()),
            // The link may have been replaced since the ticket was given, and with it every ticket.
            Err(BindFault::Unknown) => Err(Reason::UpstreamUnavailable.into()),
            Err(BindFault::Again) => Err(Fault::Violation("ticket bound twice")),
        }
    }

    /// Whether the broker may take an assignment back: unless its ticket's binding has been signed. The ticket stays and can
    /// be used again.
    pub(crate) fn roll_back(&self, id: &ContextId, index: u16, ticket: Ticket) -> bool {
        let upstream = self
            .contexts
            .get(id)
            .and_then(|context| context.upstream(index));
        !upstream.is_some_and(|upstream| upstream.was_bound(ticket))
    }

    /// Notes that the link to a toolshed is gone, and everything with it.
    pub(crate) fn link_down(&mut self, index: u16) {
        self.links.down(index);
        for context in self.contexts.values_mut() {
            context.lose(index);
        }
    }

    /// The context, if its hello has been taken.
    fn ready(&mut self, id: &ContextId) -> Result<&mut Context, Fault> {
        let context = self.contexts.get_mut(id).ok_or(NO_CONTEXT)?;
        if context.client.is_none() {
            return Err(Fault::Violation("request before hello"));
        }
        Ok(context)
    }
}

fn queue_limits(config: &RouterConfig) -> QueueLimits {
    let limits = &config.limits;
    QueueLimits {
        waiters: limits.max_link_waiters,
        wait: config.timeouts.control_wait,
        request: config.timeouts.control_request,
        rate: limits
            .max_admissions_per_second
            .get()
            .map(|rate| u32::try_from(rate).unwrap_or(u32::MAX)),
    }
}

const NO_CONTEXT: Fault = Fault::Violation("no context");

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
