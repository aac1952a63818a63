//! Nested quotas: what contexts, routers, principals and the toolshed have open (`docs/operations.md`).
//!
//! Three families are counted in four scopes each. Every bound can be switched off alone; a family none of whose scopes is
//! bounded is not counted at all.

use memory_config::ToolshedLimits;
use memory_wire::Did;
use std::collections::HashMap;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// Open sessions.
    Sessions,
    /// Watches and views.
    Watches,
    /// Documents that clients stated to hold.
    Holdings,
}

/// Amounts of each family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) sessions: u64,
    pub(crate) watches: u64,
    pub(crate) holdings: u64,
}

impl Amounts {
    fn get(&self, family: Family) -> u64 {
        match family {
            Family::Sessions => self.sessions,
            Family::Watches => self.watches,
            Family::Holdings => self.holdings,
        }
    }

    fn is_zero(&self) -> bool {
        *self == Self::default()
    }

    /// Adds `more` and takes `less` away.
    pub(crate) fn change(&mut self, more: &Self, less: &Self) {
        let change = |now: u64, more: u64, less: u64| now.saturating_add(more).saturating_sub(less);
        self.sessions = change(self.sessions, more.sessions, less.sessions);
        self.watches = change(self.watches, more.watches, less.watches);
        self.holdings = change(self.holdings, more.holdings, less.holdings);
    }
}

/// Bounds of one family.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    context: Option<u64>,
    router: Option<u64>,
    principal: Option<u64>,
    toolshed: Option<u64>,
}

impl Bounds {
    fn any(&self) -> bool {
        [self.context, self.router, self.principal, self.toolshed]
            .iter()
            .any(Option::is_some)
    }
}

/// Whose account is charged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account<'a> {
    /// What the context has now.
    pub(crate) context: &'a Amounts,
    pub(crate) router: &'a Did,
    pub(crate) principal: &'a Did,
}

/// The aggregate counters.
#[derive(Debug)]
pub(crate) struct Usage {
    sessions: Bounds,
    watches: Bounds,
    holdings: Bounds,
    routers: HashMap<Did, Amounts>,
    principals: HashMap<Did, Amounts>,
    total: Amounts,
}

impl Usage {
    pub(crate) fn new(limits: &ToolshedLimits) -> Self {
        Self {
            sessions: Bounds {
                context: limits.sessions_per_context,
                router: limits.sessions_per_router,
                principal: limits.sessions_per_principal,
                toolshed: limits.sessions_per_toolshed,
            },
            watches: Bounds {
                context: limits.watches_per_context,
                router: limits.watches_per_router,
                principal: limits.watches_per_principal,
                toolshed: limits.watches_per_toolshed,
            },
            holdings: Bounds {
                context: limits.holdings_per_context,
                router: limits.holdings_per_router,
                principal: limits.holdings_per_principal,
                toolshed: limits.holdings_per_toolshed,
            },
            routers: HashMap::new(),
            principals: HashMap::new(),
            total: Amounts::default(),
        }
    }

    /// Whether a family is bounded in any scope.
    pub(crate) fn counts(&self, family: Family) -> bool {
        self.bounds(family).any()
    }

    /// Whether an account may go from `now` to `then` of a family. Taking less is always allowed.
    pub(crate) fn admits(
        &self,
        family: Family,
        account: &Account<'_>,
        now: u64,
        then: u64,
    ) -> bool {
        let Some(more) = then.checked_sub(now).filter(|more| *more > 0) else {
            return true;
        };
        let bounds = self.bounds(family);
        let of = |amounts: Option<&Amounts>| amounts.map_or(0, |amounts| amounts.get(family));
        let fits = |bound: Option<u64>, held: u64| {
            bound.is_none_or(|bound| held.saturating_add(more) <= bound)
        };
        fits(bounds.context, account.context.get(family))
            && fits(bounds.router, of(self.routers.get(account.router)))
            && fits(bounds.principal, of(self.principals.get(account.principal)))
            && fits(bounds.toolshed, self.total.get(family))
    }

    /// Notes that a router's principal has `more` and no longer `less`.
    pub(crate) fn change(&mut self, router: &Did, principal: &Did, more: &Amounts, less: &Amounts) {
        let (more, less) = (self.counted(more), self.counted(less));
        if more.is_zero() && less.is_zero() {
            return;
        }
        self.total.change(&more, &less);
        for (map, key) in [
            (&mut self.routers, router),
            (&mut self.principals, principal),
        ] {
            let amounts = map.entry(*key).or_default();
            amounts.change(&more, &less);
            if amounts.is_zero() {
                map.remove(key);
            }
        }
    }

    /// What is held in all.
    #[cfg(test)]
    pub(crate) fn total(&self) -> Amounts {
        self.total
    }

    /// The amounts without the families that are not counted.
    fn counted(&self, amounts: &Amounts) -> Amounts {
        let keep = |family| {
            if self.counts(family) {
                amounts.get(family)
            } else {
                0
            }
        };
        Amounts {
            sessions: keep(Family::Sessions),
            watches: keep(Family::Watches),
            holdings: keep(Family::Holdings),
        }
    }

    fn bounds(&self, family: Family) -> &Bounds {
        match family {
            Family::Sessions => &self.sessions,
            Family::Watches => &self.watches,
            Family::Holdings => &self.holdings,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory_config::Identity;

    fn did(byte: u8) -> Did {
        Identity::from_seed([byte; 32]).unwrap().did()
    }

    fn sessions(sessions: u64) -> Amounts {
        Amounts {
            sessions,
            ..Amounts::default()
        }
    }

    #[test]
    fn each_scope_admits_exactly_its_bound() {
        for scope in 0..4 {
            let mut limits = ToolshedLimits {
                sessions_per_context: None,
                sessions_per_router: None,
                sessions_per_principal: None,
                sessions_per_toolshed: None,
                ..ToolshedLimits::default()
            };
            *[
                &mut limits.sessions_per_context,
                &mut limits.sessions_per_router,
                &mut limits.sessions_per_principal,
                &mut limits.sessions_per_toolshed,
            ][scope] = Some(3);
            let mut usage = Usage::new(&limits);
            let mut context = Amounts::default();
            let (router, principal) = (did(1), did(2));
            for round in 0..4 {
                let account = Account {
                    context: &context,
                    router: &router,
                    principal: &principal,
                };
                let admitted = usage.admits(Family::Sessions, &account, 0, 1);
                assert_eq!(admitted, round < 3, "scope {scope} round {round}");
                usage.change(&router, &principal, &sessions(1), &Amounts::default());
                context.change(&sessions(1), &Amounts::default());
            }
            usage.change(&router, &principal, &Amounts::default(), &sessions(4));
            assert_eq!(usage.total(), Amounts::default());
            assert!(usage.routers.is_empty() && usage.principals.is_empty());
        }
    }

    #[test]
    fn a_family_without_bounds_is_not_counted() {
        let limits = ToolshedLimits {
            watches_per_context: None,
            watches_per_router: None,
            watches_per_principal: None,
            watches_per_toolshed: None,
            ..ToolshedLimits::default()
        };
        let mut usage = Usage::new(&limits);
        let more = Amounts {
            sessions: 1,
            watches: 7,
            holdings: 3,
        };
        usage.change(&did(1), &did(2), &more, &Amounts::default());
        assert_eq!(usage.total().watches, 0);
        assert_eq!(usage.total().holdings, 3);
        assert!(!usage.counts(Family::Watches) && usage.counts(Family::Sessions));
    }
}
