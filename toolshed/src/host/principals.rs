//! The principals of one context: accepted statements, and what each principal may do until when.
//!
//! A grant is more than a lease: *released* means that it opens nothing any more while the sessions it opened go on until
//! it ends; *expired* stays known for a while, so that a request which was on its way gets the refusal that passes.

use memory_config::ToolshedLimits;
use memory_wire::Did;
use memory_wire::admission::VerifiedProof;
use memory_wire::ids::{Challenge, Digest};
use std::collections::{HashMap, HashSet};

/// Expired grants remembered in one context beside those that count.
const MAX_EXPIRED: usize = 1024;

/// What a principal may do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Open and use sessions.
    Active,
    /// Use the sessions it has.
    Released,
    /// Nothing; it may sign again.
    Expired,
    /// Nothing; it never authenticated here.
    Unknown,
}

/// Why a good proof is not accepted. Each ends the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProofRefusal {
    /// The context holds as many proofs as it may.
    Proofs,
    /// As many principals are active as may be.
    Principals,
    /// As many principals are remembered as may be.
    History,
    /// Another statement of this principal answered the challenge.
    Replay,
}

impl ProofRefusal {
    /// The fixed reason of the verdict.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Proofs => "proof-limit",
            Self::Principals => "principal-limit",
            Self::History => "principal-history-limit",
            Self::Replay => "challenge-reused",
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Grant {
    /// Unix second at which it ends.
    expires: u64,
    /// When the router received the newest statement behind it.
    received: u64,
    released: bool,
}

#[derive(Debug, Clone, Copy)]
struct Accepted {
    digest: Digest,
    expires: u64,
}

/// Grants and accepted statements of one context.
#[derive(Debug, Default)]
pub(crate) struct Principals {
    grants: HashMap<Did, Grant>,
    /// Kept until the statement itself expires: after that no proof of it verifies.
    statements: HashMap<(Did, Challenge), Accepted>,
}

impl Principals {
    /// Takes up a proof that verified. An exact repeat changes nothing. Answers the end of the principal's lease.
    pub(crate) fn accept(
        &mut self,
        proof: &VerifiedProof,
        limits: &ToolshedLimits,
        now: u64,
    ) -> Result<u64, ProofRefusal> {
        self.prune(now);
        let statement = &proof.statement;
        let principal = statement.principal;
        let key = (principal, statement.challenge);
        if let Some(known) = self.statements.get(&key) {
            if known.digest != proof.statement_digest {
                return Err(ProofRefusal::Replay);
            }
            let grant = self.grants.get(&principal);
            return Ok(grant.map_or(statement.exp, |grant| grant.expires));
        }
        self.check_room(&principal, limits, now)?;
        self.statements.insert(
            key,
            Accepted {
                digest: proof.statement_digest,
                expires: statement.exp,
            },
        );
        let grant = self.grants.entry(principal).or_insert(Grant {
            expires: 0,
            received: 0,
            released: false,
        });
        // One signed before the newest adds nothing: least of all does it undo a release.
        if proof.received >= grant.received {
            grant.released = false;
            grant.received = proof.received;
            grant.expires = grant.expires.max(statement.exp);
        }
        Ok(grant.expires)
    }

    fn check_room(
        &self,
        principal: &Did,
        limits: &ToolshedLimits,
        now: u64,
    ) -> Result<(), ProofRefusal> {
        let full = |limit: Option<u64>, held: usize| {
            limit.is_some_and(|limit| u64::try_from(held).unwrap_or(u64::MAX) >= limit)
        };
        if full(limits.proofs_per_context, self.statements.len()) {
            return Err(ProofRefusal::Proofs);
        }
        if self.standing(principal, now) != Standing::Active {
            let active = self
                .grants
                .keys()
                .filter(|did| self.standing(did, now) == Standing::Active);
            if full(limits.principals_per_context, active.count()) {
                return Err(ProofRefusal::Principals);
            }
        }
        let remembered: HashSet<&Did> = self.statements.keys().map(|(did, _)| did).collect();
        if !remembered.contains(principal)
            && full(limits.principal_history_per_context, remembered.len())
        {
            return Err(ProofRefusal::History);
        }
        Ok(())
    }

    /// Takes the authority for new opens away. The lease of what is open stays.
    pub(crate) fn release(&mut self, principal: &Did) {
        if let Some(grant) = self.grants.get_mut(principal) {
            grant.released = true;
        }
    }

    /// What the principal may do at `now`.
    pub(crate) fn standing(&self, principal: &Did, now: u64) -> Standing {
        match self.grants.get(principal) {
            None => Standing::Unknown,
            Some(Grant { expires, .. }) if *expires <= now => Standing::Expired,
            Some(Grant { released: true, .. }) => Standing::Released,
            Some(_) => Standing::Active,
        }
    }

    /// End of the principal's lease, also of one that was released or is over.
    pub(crate) fn lease(&self, principal: &Did) -> Option<u64> {
        self.grants.get(principal).map(|grant| grant.expires)
    }

    /// Statements held.
    #[cfg(test)]
    pub(crate) fn proofs(&self) -> usize {
        self.statements.len()
    }

    fn prune(&mut self, now: u64) {
        self.statements.retain(|_, accepted| now < accepted.expires);
        let released_and_over = |grant: &Grant| grant.released && grant.expires <= now;
        self.grants.retain(|_, grant| !released_and_over(grant));
        let mut expired: Vec<(u64, Did)> = self
            .grants
            .iter()
            .filter(|(_, grant)| grant.expires <= now)
            .map(|(did, grant)| (grant.expires, *did))
            .collect();
        if expired.len() > MAX_EXPIRED {
            expired.sort_unstable();
            let surplus = expired.len() - MAX_EXPIRED;
            for (_, did) in expired.into_iter().take(surplus) {
                self.grants.remove(&did);
            }
        }
    }
}
