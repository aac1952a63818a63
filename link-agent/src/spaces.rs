//! How many connections are dedicated to a space.

use std::collections::HashMap;

use memory_budget::{Budget, Permit, Refused, Snapshot};
use memory_config::Limit;
use memory_wire::Did;

use crate::registry::fullest;

/// Counts, for every space, the connections that are for it alone (`max_connections_per_space`). A space without any takes no
/// memory, so that there are never more entries than connections, whatever spaces clients ask for.
#[derive(Debug)]
pub(crate) struct SpaceRegistry {
    limit: Limit<u64>,
    spaces: HashMap<Did, Budget>,
}

const NAME: &str = "max_connections_per_space";

/// A connection's place at its space. [`SpaceRegistry::leave`] takes it back.
#[derive(Debug)]
pub(crate) struct Place {
    space: Did,
    permit: Permit,
}

impl SpaceRegistry {
    pub(crate) fn new(limit: Limit<u64>) -> Self {
        Self {
            limit,
            spaces: HashMap::new(),
        }
    }

    /// Bounds the connections of a space differently from now on. Those that are there stay.
    pub(crate) fn set_limit(&mut self, limit: Limit<u64>) {
        self.limit = limit;
        for budget in self.spaces.values() {
            budget.set_limit(limit.get().into());
        }
    }

    /// Takes a place at `space`.
    ///
    /// # Errors
    /// [`Refused`] when as many connections are there as may.
    pub(crate) fn enter(&mut self, space: Did) -> Result<Place, Refused> {
        let limit = self.limit.get().into();
        let budget = self
            .spaces
            .entry(space)
            .or_insert_with(|| Budget::new(NAME, limit));
        budget.reserve(1).map(|permit| Place { space, permit })
    }

    /// The space that most connections are for.
    pub(crate) fn fullest(&self) -> Snapshot {
        fullest(NAME, self.limit, self.spaces.values())
    }

    /// Gives a place back.
    pub(crate) fn leave(&mut self, place: Place) {
        let Place { space, permit } = place;
        drop(permit);
        if self
            .spaces
            .get(&space)
            .is_some_and(|budget| budget.current() == 0)
        {
            self.spaces.remove(&space);
        }
    }
}

#[cfg(test)]
impl SpaceRegistry {
    pub(crate) fn is_empty(&self) -> bool {
        self.spaces.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::did;

    #[test]
    fn admits_exactly_its_limit_and_forgets_empty_spaces() {
        let mut spaces = SpaceRegistry::new(Limit::At(2));
        let first = spaces.enter(did(1)).unwrap();
        let second = spaces.enter(did(1)).unwrap();
        assert!(spaces.enter(did(1)).is_err());
        let other = spaces.enter(did(2)).unwrap();
        spaces.leave(first);
        let third = spaces.enter(did(1)).unwrap();
        assert!(spaces.enter(did(1)).is_err());
        for place in [second, third, other] {
            spaces.leave(place);
        }
        assert!(spaces.is_empty());
    }

    #[test]
    fn another_limit_leaves_those_that_are_there() {
        let mut spaces = SpaceRegistry::new(Limit::Unlimited);
        let first = spaces.enter(did(1)).unwrap();
        let _second = spaces.enter(did(1)).unwrap();
        spaces.set_limit(Limit::At(1));
        assert!(spaces.enter(did(1)).is_err());
        spaces.leave(first);
        assert!(spaces.enter(did(1)).is_err());
        spaces.set_limit(Limit::At(2));
        assert!(spaces.enter(did(1)).is_ok());
    }
}
