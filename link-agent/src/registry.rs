//! On how many connections a key is active.

use std::collections::HashMap;
use std::time::Instant;

use memory_budget::{Budget, Permit, Refused, Snapshot};
use memory_config::Limit;
use memory_wire::Did;
use memory_wire::ids::ContextId;

/// Counts, for every principal, the contexts on which it is active.
#[derive(Debug)]
pub(crate) struct PrincipalRegistry {
    limit: Limit<u64>,
    active: HashMap<Did, Contexts>,
}

const NAME: &str = "max_connections_per_principal";

/// Of budgets that come and go, the one that most is reserved of; an empty one if there is none.
pub(crate) fn fullest<'a>(
    name: &'static str,
    limit: Limit<u64>,
    budgets: impl Iterator<Item = &'a Budget>,
) -> Snapshot {
    budgets.max_by_key(|budget| budget.current()).map_or_else(
        || Budget::new(name, limit.get().into()).snapshot(),
        Budget::snapshot,
    )
}

/// The contexts on which one principal is active.
#[derive(Debug)]
struct Contexts {
    budget: Budget,
    leases: HashMap<ContextId, Lease>,
}

#[derive(Debug)]
struct Lease {
    /// By monotonic clock.
    ends: Instant,
    _place: Permit,
}

impl PrincipalRegistry {
    pub(crate) fn new(limit: Limit<u64>) -> Self {
        Self {
            limit,
            active: HashMap::new(),
        }
    }

    /// Bounds a principal's contexts differently from now on. Those that it is active on stay.
    pub(crate) fn set_limit(&mut self, limit: Limit<u64>) {
        self.limit = limit;
        for contexts in self.active.values() {
            contexts.budget.set_limit(limit.get().into());
        }
    }

    /// Notes that `principal` is active on `context` until `ends`. Leases that have ended by `now` do not count, and are
    /// forgotten when there is no room otherwise.
    ///
    /// # Errors
    /// [`Refused`] when it is active on as many others as it may; nothing has changed then.
    pub(crate) fn enter(
        &mut self,
        principal: Did,
        context: ContextId,
        ends: Instant,
        now: Instant,
    ) -> Result<(), Refused> {
        let limit = self.limit.get();
        let contexts = self.active.entry(principal).or_insert_with(|| Contexts {
            budget: Budget::new(NAME, limit.into()),
            leases: HashMap::new(),
        });
        if let Some(lease) = contexts.leases.get_mut(&context) {
            lease.ends = ends;
            return Ok(());
        }
        if limit.is_some_and(|limit| contexts.budget.current() >= limit) {
            contexts.leases.retain(|_, lease| lease.ends > now);
        }
        let place = contexts.budget.reserve(1)?;
        let lease = Lease {
            ends,
            _place: place,
        };
        contexts.leases.insert(context, lease);
        Ok(())
    }

    /// The principal that is active on most connections.
    pub(crate) fn fullest(&self) -> Snapshot {
        fullest(
            NAME,
            self.limit,
            self.active.values().map(|contexts| &contexts.budget),
        )
    }

    /// Notes that `principal` is no longer active on `context`.
    pub(crate) fn remove(&mut self, principal: &Did, context: &ContextId) {
        if let Some(contexts) = self.active.get_mut(principal) {
            contexts.leases.remove(context);
            if contexts.leases.is_empty() {
                self.active.remove(principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::did;
    use std::time::Duration;

    fn context(byte: u8) -> ContextId {
        ContextId::new([byte; 16])
    }

    #[test]
    fn admits_exactly_its_limit() {
        let now = Instant::now();
        let ends = now + Duration::from_secs(10);
        let mut registry = PrincipalRegistry::new(Limit::At(2));
        for byte in [1, 2] {
            assert!(registry.enter(did(1), context(byte), ends, now).is_ok());
        }
        assert!(registry.enter(did(1), context(3), ends, now).is_err());
        assert!(registry.enter(did(1), context(2), ends, now).is_ok());
        assert!(registry.enter(did(2), context(3), ends, now).is_ok());
        registry.remove(&did(1), &context(1));
        assert!(registry.enter(did(1), context(3), ends, now).is_ok());
        assert!(registry.enter(did(1), context(1), ends, now).is_err());
    }

    #[test]
    fn another_limit_leaves_those_that_are_there() {
        let now = Instant::now();
        let ends = now + Duration::from_secs(10);
        let mut registry = PrincipalRegistry::new(Limit::Unlimited);
        for byte in [1, 2] {
            assert!(registry.enter(did(1), context(byte), ends, now).is_ok());
        }
        registry.set_limit(Limit::At(2));
        assert!(registry.enter(did(1), context(3), ends, now).is_err());
        assert!(registry.enter(did(1), context(1), ends, now).is_ok());
        registry.set_limit(Limit::At(3));
        assert!(registry.enter(did(1), context(3), ends, now).is_ok());
    }

    #[test]
    fn forgets_leases_that_have_ended() {
        let now = Instant::now();
        let mut registry = PrincipalRegistry::new(Limit::At(1));
        let ends = now + Duration::from_secs(10);
        registry.enter(did(1), context(1), ends, now).unwrap();
        let mut enter = |now: Instant| registry.enter(did(1), context(2), ends, now);
        assert!(enter(now + Duration::from_secs(9)).is_err());
        assert!(enter(now + Duration::from_secs(10)).is_ok());
    }
}
