//! One public connection: what its client can do, who authenticated on it, and what each toolshed knows of it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use memory_config::Limits;
use memory_wire::admission::{StatementContext, StatementFault, judge_statement};
use memory_wire::codec::EncodeError;
use memory_wire::flags::Flags;
use memory_wire::ids::{ConnectionId, ContextId, Digest, EpochId};
use memory_wire::records::{
    CloseRequest, ContextProof, ReleaseRequest, SpaceRequest, Statement, TicketProof, TicketRequest,
};
use memory_wire::{Did, Reason};
use tokio::sync::Notify;

use crate::challenge::{ChallengeBook, Signer as ChallengeSigner};
use crate::clock::Moment;
use crate::principal::{Accepted, Principals};
use crate::registry::PrincipalRegistry;
use crate::revocation::Revocations;
use crate::signer::Signer;
use crate::spaces::Place;
use crate::ticket::TicketUse;
use crate::upstream::{Open, Step, Task, Upstream};

/// The flags of a context's client, fixed by its hello.
#[derive(Debug)]
pub(crate) struct ClientFlags {
    /// What the client sent, canonical.
    pub(crate) original: Vec<u8>,
    /// Its intersection with the frozen offer, canonical.
    pub(crate) negotiated: Vec<u8>,
}

impl ClientFlags {
    /// Reads canonical flags and intersects them with the offer.
    ///
    /// # Errors
    /// [`Reason::IncompatibleFlags`] for a descriptor that is malformed or lacks routed authentication.
    pub(crate) fn new(original: Vec<u8>, offer: &Flags) -> Result<Self, Reason> {
        let flags = Flags::from_canonical(&original).map_err(|_| Reason::IncompatibleFlags)?;
        if !flags.is_true("connectionAuth") || !flags.is_true("routedAuthV1") {
            return Err(Reason::IncompatibleFlags);
        }
        Ok(Self {
            original,
            negotiated: Flags::negotiate(&flags, offer).canonical(),
        })
    }
}

/// Limits of one context, from the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextLimits {
    principals: usize,
    history: usize,
    signers: usize,
    spaces: Option<usize>,
}

impl From<&Limits> for ContextLimits {
    fn from(limits: &Limits) -> Self {
        let count = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        Self {
            principals: count(limits.max_principals_per_connection),
            history: count(limits.max_principal_history),
            signers: count(limits.max_principals_per_challenge),
            spaces: limits.max_spaces_per_connection.get().map(count),
        }
    }
}

/// A context. Its identity is the channel it was registered with: nothing a worker sends names one.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) connection: ConnectionId,
    pub(crate) id: ContextId,
    limits: ContextLimits,
    /// Set once, by the worker's hello.
    pub(crate) client: Option<ClientFlags>,
    /// Its place among the connections of the one space that it is for.
    pub(crate) place: Option<Place>,
    pub(crate) challenges: ChallengeBook,
    principals: Principals,
    /// What each toolshed knows, by index. An entry ends with the link.
    upstreams: BTreeMap<u16, Upstream>,
    /// Whether a principal has authenticated yet.
    authenticated: bool,
    /// Toolsheds whose loss the worker has not been told yet.
    lost: BTreeSet<u16>,
    /// Told when `lost` grows, and when an operator ends it.
    pub(crate) signals: Rc<Signals>,
}

/// What the task of a context waits for beside its channels.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// Woken when a toolshed was lost.
    pub(crate) lost: Notify,
    revoked: Cell<Option<Did>>,
    ended: Notify,
}

impl Signals {
    /// Tells that an operator revoked this principal, and the context is over. The first one stands.
    pub(crate) fn revoke(&self, principal: Did) {
        if self.revoked.get().is_none() {
            self.revoked.set(Some(principal));
            self.ended.notify_one();
        }
    }

    /// Waits for that.
    pub(crate) async fn revoked(&self) -> Did {
        loop {
            if let Some(principal) = self.revoked.get() {
                return principal;
            }
            self.ended.notified().await;
        }
    }
}

/// A statement that was accepted, or had been before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) principal: Did,
    /// End of the lease, Unix seconds.
    pub(crate) expires: u64,
    /// Whether it is new: a repeat changes nothing.
    pub(crate) is_new: bool,
    /// Whether it is the first of the connection.
    pub(crate) is_first: bool,
}

/// What a context needs to know beyond itself to judge a statement.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) signer: &'a Signer,
    pub(crate) registry: &'a mut PrincipalRegistry,
    pub(crate) revocations: &'a Revocations,
    /// Whether a compatible toolshed is linked.
    pub(crate) is_linked: bool,
    pub(crate) now: Moment,
}

impl Context {
    pub(crate) fn new(connection: ConnectionId, id: ContextId, limits: ContextLimits) -> Self {
        Self {
            connection,
            id,
            limits,
            client: None,
            place: None,
            challenges: ChallengeBook::default(),
            principals: Principals::new(limits.principals, limits.history),
            upstreams: BTreeMap::new(),
            authenticated: false,
            lost: BTreeSet::new(),
            signals: Rc::default(),
        }
    }

    /// Judges a statement by the table of `docs/protocol.md` section 4.4, and remembers it if it is good.
    ///
    /// # Errors
    /// The first reason against it. Nothing has changed then.
    pub(crate) fn authenticate(
        &mut self,
        bytes: &[u8],
        around: Surroundings<'_>,
    ) -> Result<Admission, Reason> {
        let Surroundings {
            signer,
            registry,
            revocations,
            is_linked,
            now,
        } = around;
        let statement = Statement::verify(bytes).map_err(|_| Reason::ClientProtocol)?;
        let principal = statement.principal;
        let digest = Digest::of(bytes);
        let judged = judge_statement(
            &statement,
            &StatementContext {
                router: signer.router(),
                deployment: signer.deployment(),
                challenge: &statement.challenge,
                received: now.unix,
            },
        );
        // What ends the connection goes before everything that passes.
        if let Err(
            fault @ (StatementFault::WrongRouter
            | StatementFault::WrongDeployment
            | StatementFault::Backwards),
        ) = judged
        {
            return Err(fault.reason());
        }
        // Before a repeat is answered: what was granted is granted no more.
        let granted = revocations.admits(&principal);
        if granted == Err(Reason::PrincipalRevoked) {
            return Err(Reason::PrincipalRevoked);
        }
        let is_released = self.principals.is_released(&principal);
        let challenge = self
            .challenges
            .find(&statement.challenge)
            .ok_or(Reason::ChallengeExpired)?;
        match challenge.signer(&principal) {
            // The same bytes again are answered as the first time. After a release they must not bring back what it took.
            Some(signed) if signed.statement == digest && !is_released => {
                return Ok(Admission {
                    principal,
                    expires: signed.expires,
                    is_new: false,
                    is_first: false,
                });
            }
            _ if !challenge.is_fresh(now) => return Err(Reason::ChallengeExpired),
            _ => {}
        }
        judged.map_err(StatementFault::reason)?;
        if challenge.signer(&principal).is_some() {
            return Err(Reason::ChallengeReused);
        }
        if challenge.signers() >= self.limits.signers {
            return Err(Reason::ChallengeSigners);
        }
        self.principals.admits(&principal, now)?;
        let granted = granted?;
        if !is_linked {
            return Err(Reason::UpstreamUnavailable);
        }
        let ends = now.monotonic + Duration::from_secs(statement.exp.saturating_sub(now.unix));
        registry
            .enter(principal, self.id, ends, now.monotonic)
            .map_err(|_| Reason::PrincipalConnectionLimit)?;

        // Accepted: from here on nothing fails.
        challenge.sign(ChallengeSigner {
            principal,
            statement: digest,
            expires: statement.exp,
        });
        let accepted = Accepted {
            statement: bytes.into(),
            digest,
            expires: statement.exp,
            ends,
            received: now.unix,
            issue: Rc::clone(&challenge.issue),
            granted,
        };
        if let Some(forgotten) = self.principals.accept(principal, Rc::new(accepted), now) {
            registry.remove(&forgotten, &self.id);
            // Its lease is over at the toolsheds too.
            for upstream in self.upstreams.values_mut() {
                upstream.forget(&forgotten);
            }
        }
        let is_first = !std::mem::replace(&mut self.authenticated, true);
        Ok(Admission {
            principal,
            expires: statement.exp,
            is_new: true,
            is_first,
        })
    }

    /// Takes a principal's authority for new opens away.
    pub(crate) fn release(&mut self, principal: &Did, registry: &mut PrincipalRegistry) {
        self.principals.release(principal);
        registry.remove(principal, &self.id);
    }

    /// Forgets this connection in the registry.
    pub(crate) fn leave(&self, registry: &mut PrincipalRegistry) {
        for principal in self.principals.remembered() {
            registry.remove(principal, &self.id);
        }
    }

    /// Whether a principal's lease stands under the revocation list as it is now.
    ///
    /// # Errors
    /// [`Reason::PrincipalRevoked`].
    pub(crate) fn confirm(&self, principal: &Did, revocations: &Revocations) -> Result<(), Reason> {
        match self.principals.newest(principal) {
            Some(newest) => revocations.confirms(principal, newest.granted),
            None => Ok(()),
        }
    }

    /// Everybody who signed here and is remembered.
    pub(crate) fn remembered(&self) -> impl Iterator<Item = &Did> {
        self.principals.remembered()
    }

    /// The next step of an open at a toolshed whose link is `epoch`.
    pub(crate) fn plan(&self, open: &Open, epoch: &EpochId, now: Moment) -> Step {
        let newest = match self.principals.lease(&open.principal, now) {
            Ok(newest) if newest.issue.covers(open.index, epoch) => newest,
            // Signed before this link stood: no issuance for it can be made.
            Ok(_) => return Step::Refuse(Reason::PrincipalRenewal),
            Err(reason) => return Step::Refuse(reason),
        };
        let fresh = Upstream::default();
        let upstream = self.upstreams.get(&open.index).unwrap_or(&fresh);
        let spaces: usize = self.upstreams.values().map(Upstream::spaces).sum();
        if self.limits.spaces.is_some_and(|limit| spaces >= limit) && !upstream.counts(&open.space)
        {
            return Step::Refuse(Reason::SpaceLimit);
        }
        match upstream.plan(open, &newest.digest, now.monotonic) {
            // Each of these sends a proof, or leads to one.
            Step::Alone(_) if !newest.outlasts_the_way(now) => {
                Step::Refuse(Reason::PrincipalRenewal)
            }
            step => step,
        }
    }

    /// Whether `principal` may open at all: before asking whether its toolshed is there.
    ///
    /// # Errors
    /// [`Reason::PrincipalUnknown`].
    pub(crate) fn knows(&self, principal: &Did, now: Moment) -> Result<(), Reason> {
        match self.principals.lease(principal, now) {
            Err(Reason::PrincipalUnknown) => Err(Reason::PrincipalUnknown),
            _ => Ok(()),
        }
    }

    /// The payload of `task` as things stand now, and the statement in it. `None`: there is nothing left to say, which for a
    /// proof that nobody asked for (`is_push`) includes that its statement has been sent already.
    ///
    /// # Errors
    /// When a record does not fit its bound, which none does that this context admitted.
    pub(crate) fn payload(
        &self,
        (index, epoch): (u16, &EpochId),
        task: &Task,
        is_push: bool,
        signer: &Signer,
        now: Moment,
    ) -> Result<Option<Payload>, EncodeError> {
        let Some(client) = &self.client else {
            return Ok(None);
        };
        let upstream = self.upstreams.get(&index);
        let plain = |bytes| {
            Ok(Some(Payload {
                bytes,
                statement: None,
            }))
        };
        match *task {
            Task::Ticket { space, epoch } => {
                let flags = client.original.clone();
                plain(
                    TicketRequest {
                        context: self.id,
                        flags,
                        space,
                        epoch,
                    }
                    .encode()?,
                )
            }
            Task::Space { space, epoch } => plain(
                SpaceRequest {
                    context: self.id,
                    space,
                    epoch,
                }
                .encode()?,
            ),
            Task::Close => plain(CloseRequest { context: self.id }.encode()?),
            Task::Revoke { principal } => plain(
                ReleaseRequest {
                    context: self.id,
                    principal,
                }
                .encode()?,
            ),
            Task::Release { principal } => {
                if !upstream.is_some_and(|upstream| upstream.holds(&principal)) {
                    return Ok(None);
                }
                plain(
                    ReleaseRequest {
                        context: self.id,
                        principal,
                    }
                    .encode()?,
                )
            }
            Task::Proof { principal } | Task::Verified { principal } => {
                let Ok(newest) = self.principals.lease(&principal, now) else {
                    return Ok(None);
                };
                let was_sent =
                    upstream.is_some_and(|upstream| upstream.was_sent(&principal, &newest.digest));
                if !newest.issue.covers(index, epoch)
                    || !newest.outlasts_the_way(now)
                    || (is_push && was_sent)
                {
                    return Ok(None);
                }
                let proof = signer.proof(&principal, newest, &self.id, epoch)?;
                let bytes = if matches!(task, Task::Verified { .. }) {
                    ContextProof {
                        context: self.id,
                        flags: client.original.clone(),
                        proof,
                    }
                    .encode()?
                } else {
                    let ticket = upstream.map(|upstream| upstream.ticket().judge(now.monotonic));
                    let Some(TicketUse::Reuse(ticket)) = ticket else {
                        return Ok(None);
                    };
                    TicketProof { ticket, proof }.encode()?
                };
                Ok(Some(Payload {
                    bytes,
                    statement: Some(newest.digest),
                }))
            }
        }
    }

    /// What a toolshed knows, to change it.
    pub(crate) fn upstream_mut(&mut self, index: u16) -> &mut Upstream {
        self.upstreams.entry(index).or_default()
    }

    /// What a toolshed knows, if it may know anything.
    pub(crate) fn upstream(&self, index: u16) -> Option<&Upstream> {
        self.upstreams.get(&index)
    }

    /// The toolsheds that may know this context.
    pub(crate) fn known_at(&self) -> impl Iterator<Item = u16> {
        self.upstreams
            .iter()
            .filter(|(_, upstream)| upstream.is_known())
            .map(|(index, _)| *index)
    }

    /// The toolsheds that may hold a proof of `principal`.
    pub(crate) fn holders(&self, principal: &Did) -> impl Iterator<Item = u16> {
        self.upstreams
            .iter()
            .filter(|(_, upstream)| upstream.holds(principal))
            .map(|(index, _)| *index)
    }

    /// The toolsheds that are to be told this of a principal because they hold a proof of it; not those that it waits for
    /// already.
    pub(crate) fn announce(&mut self, task: &Task) -> Vec<u16> {
        self.upstreams
            .iter_mut()
            .filter_map(|(index, upstream)| upstream.announce(task).then_some(*index))
            .collect()
    }

    /// Forgets what a toolshed knew, since its link is gone, and has the worker told if it knew anything.
    pub(crate) fn lose(&mut self, index: u16) {
        if self
            .upstreams
            .remove(&index)
            .is_some_and(|upstream| upstream.is_known())
        {
            self.lost.insert(index);
            self.signals.lost.notify_one();
        }
    }

    /// The next toolshed whose loss the worker is to be told.
    pub(crate) fn take_lost(&mut self) -> Option<u16> {
        self.lost.pop_first()
    }
}

/// The payload of a control request.
#[derive(Debug)]
pub(crate) struct Payload {
    pub(crate) bytes: Vec<u8>,
    /// The statement that it carries the proof of.
    pub(crate) statement: Option<Digest>,
}

#[cfg(test)]
#[path = "context_tests.rs"]
mod tests;
