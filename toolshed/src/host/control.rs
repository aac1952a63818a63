//! Operations of a control link (`docs/protocol.md` section 6.2). A refusal is status 1 with an empty payload; why is in the
//! log. A proof that fails closes its whole context: no honest router offers one.

use super::audit::{About, Verdict};
use super::context::Context;
use super::state::{LinkId, State};
use memory_wire::Did;
use memory_wire::admission::{ProofContext, ProofError, verify_proof};
use memory_wire::flags::Flags;
use memory_wire::ids::{ContextId, Ticket};
use memory_wire::records::{
    CloseRequest, ContextProof, ControlRequest, ControlResponse, Operation, Proof, ReleaseRequest,
    SpaceRequest, TicketProof, TicketRequest,
};

/// Why a request is refused, and whom that is about.
struct Denied {
    reason: &'static str,
    context: Option<ContextId>,
    /// Boxed: results are small where nothing is refused.
    space: Option<Box<Did>>,
}

impl Denied {
    const fn new(reason: &'static str) -> Self {
        Self {
            reason,
            context: None,
            space: None,
        }
    }

    const fn of(reason: &'static str, context: ContextId) -> Self {
        Self {
            reason,
            context: Some(context),
            space: None,
        }
    }

    fn with_space(mut self, space: Did) -> Self {
        self.space = Some(Box::new(space));
        self
    }
}

impl State {
    /// Handles one request of a link. `fresh` are random bytes for a ticket, used once.
    ///
    /// # Errors
    /// The reason for which the link has to close: the sequence is not the next one.
    pub(crate) fn control(
        &mut self,
        link: LinkId,
        request: &ControlRequest,
        fresh: Ticket,
        now: u64,
    ) -> Result<ControlResponse, &'static str> {
        let state = self.links.get_mut(&link).ok_or("link-closed")?;
        if request.sequence != state.sequence.saturating_add(1) {
            return Err("control-sequence");
        }
        state.sequence = request.sequence;
        let router = state.router;
        let payload = request.payload.as_slice();
        let outcome = match request.operation {
            Operation::Ticket => self.issue_ticket(link, payload, fresh, now),
            Operation::Proof => self.prove_ticket(link, payload, now),
            Operation::Close => self.close_by_router(link, payload),
            Operation::Release => self.release(link, payload),
            Operation::Space => self.admit_space(link, payload),
            Operation::VerifiedProof => self.prove_context(link, payload, now),
        };
        let (status, payload) = match outcome {
            Ok(payload) => (ControlResponse::SUCCESS, payload),
            Err(denied) => {
                let about = About {
                    router: Some(&router),
                    context: denied.context.as_ref(),
                    space: denied.space.as_deref(),
                };
                self.audit
                    .verdict(Verdict::ControlDenied, about, denied.reason);
                (ControlResponse::REFUSED, Vec::new())
            }
        };
        Ok(ControlResponse {
            sequence: request.sequence,
            status,
            payload,
        })
    }

    /// Operation 1: admits a context and a space, and issues a ticket.
    fn issue_ticket(
        &mut self,
        link: LinkId,
        payload: &[u8],
        fresh: Ticket,
        now: u64,
    ) -> Result<Vec<u8>, Denied> {
        let request = TicketRequest::decode(payload).map_err(|_| Denied::new("malformed"))?;
        let TicketRequest {
            context,
            flags,
            space,
            epoch,
        } = request;
        let denied = |reason| Denied::of(reason, context).with_space(space);
        let flags = Flags::from_canonical(&flags).map_err(|_| denied("flags-malformed"))?;
        self.look_at_directory();
        if !self.ownership.admits(&space, epoch) {
            return Err(denied("space-not-owned"));
        }
        if !self.tickets.has_room(now) {
            return Err(denied("ticket-limit"));
        }
        let limit = self.settings.limits.spaces_per_context;
        let entry = self.enter_context(link, context, flags).map_err(denied)?;
        entry.admit_space(space, epoch, limit).map_err(denied)?;
        self.tickets.issue(fresh, link, context, now);
        Ok(fresh.as_bytes().to_vec())
    }

    /// Operation 2: authenticates the principal that opens with a ticket. A ticket that was spent proves nothing.
    fn prove_ticket(&mut self, link: LinkId, payload: &[u8], now: u64) -> Result<Vec<u8>, Denied> {
        let TicketProof { ticket, proof } =
            TicketProof::decode(payload).map_err(|_| Denied::new("malformed"))?;
        let issued = self
            .tickets
            .look_up(&ticket, now)
            .filter(|issued| issued.link == link);
        let issued = issued.ok_or(Denied::new("ticket-unknown"))?;
        self.prove(link, issued.context, &proof, now)
    }

    /// Operation 3: forgets a context; one that is not known is forgotten already.
    fn close_by_router(&mut self, link: LinkId, payload: &[u8]) -> Result<Vec<u8>, Denied> {
        let request = CloseRequest::decode(payload).map_err(|_| Denied::new("malformed"))?;
        self.close_context(link, &request.context, "router-closed", None);
        Ok(Vec::new())
    }

    /// Operation 4: takes a principal's authority for new opens away.
    fn release(&mut self, link: LinkId, payload: &[u8]) -> Result<Vec<u8>, Denied> {
        let ReleaseRequest { context, principal } =
            ReleaseRequest::decode(payload).map_err(|_| Denied::new("malformed"))?;
        let known = self.context_mut(link, &context);
        let known = known.ok_or(Denied::of("context-unknown", context))?;
        known.principals.release(&principal);
        Ok(Vec::new())
    }

    /// Operation 5: admits another space to a context.
    fn admit_space(&mut self, link: LinkId, payload: &[u8]) -> Result<Vec<u8>, Denied> {
        let SpaceRequest {
            context,
            space,
            epoch,
        } = SpaceRequest::decode(payload).map_err(|_| Denied::new("malformed"))?;
        let denied = |reason| Denied::of(reason, context).with_space(space);
        self.look_at_directory();
        if !self.ownership.admits(&space, epoch) {
            return Err(denied("space-not-owned"));
        }
        let limit = self.settings.limits.spaces_per_context;
        let known = self.context_mut(link, &context);
        let known = known.ok_or_else(|| denied("context-unknown"))?;
        known.admit_space(space, epoch, limit).map_err(denied)?;
        Ok(Vec::new())
    }

    /// Operation 6: authenticates a principal without a space, in a context that may be new here.
    fn prove_context(&mut self, link: LinkId, payload: &[u8], now: u64) -> Result<Vec<u8>, Denied> {
        let ContextProof {
            context,
            flags,
            proof,
        } = ContextProof::decode(payload).map_err(|_| Denied::new("malformed"))?;
        let denied = |reason| Denied::of(reason, context);
        let flags = Flags::from_canonical(&flags).map_err(|_| denied("flags-malformed"))?;
        self.enter_context(link, context, flags).map_err(denied)?;
        self.prove(link, context, &proof, now)
    }

    /// The context with these client flags; made when it is new.
    fn enter_context(
        &mut self,
        link: LinkId,
        context: ContextId,
        flags: Flags,
    ) -> Result<&mut Context, &'static str> {
        self.settings.accepts_client(&flags)?;
        let limit = self.settings.limits.contexts_per_link;
        let contexts = &mut self.links.get_mut(&link).ok_or("link-closed")?.contexts;
        let held = u64::try_from(contexts.len()).unwrap_or(u64::MAX);
        if !contexts.contains_key(&context) && limit.is_some_and(|limit| held >= limit) {
            return Err("context-limit");
        }
        let entry = contexts
            .entry(context)
            .or_insert_with(|| Context::new(flags.clone()));
        if entry.flags == flags {
            Ok(entry)
        } else {
            Err("flags-changed")
        }
    }

    /// Judges a proof and takes it up; closes the context when it fails.
    fn prove(
        &mut self,
        link: LinkId,
        context: ContextId,
        proof: &[u8],
        now: u64,
    ) -> Result<Vec<u8>, Denied> {
        match self.try_prove(link, &context, proof, now) {
            Ok(()) => Ok(Vec::new()),
            Err(reason) => {
                let router = self.links.get(&link).map(|link| link.router);
                let about = About {
                    router: router.as_ref(),
                    context: Some(&context),
                    space: None,
                };
                self.audit.verdict(Verdict::ProofDenied, about, reason);
                self.close_context(link, &context, reason, None);
                Err(Denied::of("proof-denied", context))
            }
        }
    }

    fn try_prove(
        &mut self,
        link: LinkId,
        context: &ContextId,
        proof: &[u8],
        now: u64,
    ) -> Result<(), &'static str> {
        let settings = &self.settings;
        let state = self.links.get_mut(&link).ok_or("link-closed")?;
        let proof = Proof::decode(proof).map_err(|_| "proof-malformed")?;
        let verified = verify_proof(
            &proof,
            &ProofContext {
                router: &state.router,
                deployment: &settings.deployment,
                epoch: &state.epoch,
                context,
                now,
            },
        )
        .map_err(proof_reason)?;
        let principal = verified.statement.principal;
        if settings.routers.contains_key(&principal) {
            return Err("router-principal");
        }
        let known = state.contexts.get_mut(context).ok_or("context-unknown")?;
        let expires = known
            .principals
            .accept(&verified, &settings.limits, now)
            .map_err(|refusal| refusal.reason())?;
        self.expiries.insert((expires, link, *context, principal));
        Ok(())
    }
}

/// The fixed reason of a proof that does not verify.
const fn proof_reason(error: ProofError) -> &'static str {
    match error {
        ProofError::Statement(_) => "proof-statement",
        ProofError::Issuance(_) => "proof-issuance",
        ProofError::Receipt(_) => "proof-receipt",
        ProofError::WrongDeployment => "proof-deployment",
        ProofError::WrongEpoch => "proof-epoch",
        ProofError::WrongContext => "proof-context",
        ProofError::Mismatch => "proof-mismatch",
        ProofError::ChallengeLifetime => "proof-challenge-lifetime",
        ProofError::ReceivedOutsideChallenge => "proof-challenge-expired",
        ProofError::ReceivedInFuture => "proof-future",
        ProofError::Expired => "statement-expired",
        ProofError::Fault(fault) => fault.reason().as_str(),
    }
}
