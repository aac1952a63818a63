//! On how many connections a key is active.

use std::collections::HashMap;
use std::time::Instant;

use memory_config::Limit;
use memory_wire::Did;
use memory_wire::ids::ContextId;

/// Counts, for every principal, the contexts on which it is active.
#[derive(Debug)]
pub(crate) struct PrincipalRegistry {
    limit: Limit<u64>,
    /// When the lease on each context ends, by monotonic clock.
    active: HashMap<Did, HashMap<ContextId, Instant>>,
}

impl PrincipalRegistry {
    pub(crate) fn new(limit: Limit<u64>) -> Self {
        Self {
            limit,
            active: HashMap::new(),
        }
    }

    /// Whether `principal` may be active on `context` too. Leases that have ended do not count, and are forgotten here.
    pub(crate) fn admits(&mut self, principal: &Did, context: &ContextId, now: Instant) -> bool {
        let (Some(limit), Some(contexts)) = (self.limit.get(), self.active.get_mut(principal))
        else {
            return true;
        };
        if contexts.contains_key(context) || (contexts.len() as u64) < limit {
            return true;
        }
        contexts.retain(|_, ends| *ends > now);
        (contexts.len() as u64) < limit
    }

    /// Notes that `principal` is active on `context` until `ends`.
    pub(crate) fn insert(&mut self, principal: Did, context: ContextId, ends: Instant) {
        self.active
            .entry(principal)
            .or_default()
            .insert(context, ends);
    }

    /// Notes that `principal` is no longer active on `context`.
    pub(crate) fn remove(&mut self, principal: &Did, context: &ContextId) {
        if let Some(contexts) = self.active.get_mut(principal) {
            contexts.remove(context);
            if contexts.is_empty() {
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
            assert!(registry.admits(&did(1), &context(byte), now));
            registry.insert(did(1), context(byte), ends);
        }
        assert!(!registry.admits(&did(1), &context(3), now));
        assert!(registry.admits(&did(1), &context(2), now));
        assert!(registry.admits(&did(2), &context(3), now));
        registry.remove(&did(1), &context(1));
        assert!(registry.admits(&did(1), &context(3), now));
    }

    #[test]
    fn forgets_leases_that_have_ended() {
        let now = Instant::now();
        let mut registry = PrincipalRegistry::new(Limit::At(1));
        registry.insert(did(1), context(1), now + Duration::from_secs(10));
        assert!(!registry.admits(&did(1), &context(2), now + Duration::from_secs(9)));
        assert!(registry.admits(&did(1), &context(2), now + Duration::from_secs(10)));
    }
}
