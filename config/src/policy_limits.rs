//! Limits of a toolshed (`docs/operations.md`).

use crate::json::{Json, Member, Stopped};
use crate::report::Report;

/// Largest integer that every JSON reader keeps exactly.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Makes the struct, its defaults and its reader from one line per limit.
macro_rules! limits {
    ($( $(#[$doc:meta])* $field:ident, $member:literal = $default:literal; )*) => {
        /// What a toolshed admits. `None` is off; what a policy omits has its default.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct ToolshedLimits { $( $(#[$doc])* pub $field: Option<u64>, )* }

        impl Default for ToolshedLimits {
            fn default() -> Self {
                Self { $( $field: Some($default), )* }
            }
        }

        const MEMBERS: &[Member] = &[ $( ($member, false), )* ];

        impl ToolshedLimits {
            /// Every limit with its name in a policy file, in the order of the documentation.
            pub fn entries(&self) -> Vec<(&'static str, Option<u64>)> {
                vec![ $( ($member, self.$field), )* ]
            }

            fn slot(&mut self, member: &str) -> Option<&mut Option<u64>> {
                match member {
                    $( $member => Some(&mut self.$field), )*
                    _ => None,
                }
            }
        }
    };
}

limits! {
    /// Contexts of one link.
    contexts_per_link, "contextsPerLink" = 512;
    /// Sockets in all, links included.
    sockets, "sockets" = 2048;
    /// Unspent tickets in all.
    tickets, "tickets" = 2048;
    /// Principals active at once in one context.
    principals_per_context, "principalsPerContext" = 16;
    /// Principals remembered in one context.
    principal_history_per_context, "principalHistoryPerContext" = 128;
    /// Proofs held in one context.
    proofs_per_context, "proofsPerContext" = 160;
    /// Unanswered requests of one context.
    requests_per_context, "requestsPerContext" = 1024;
    /// Distinct spaces over one context's life.
    spaces_per_context, "spacesPerContext" = 1200;
    /// Open sessions of one context.
    sessions_per_context, "sessionsPerContext" = 1200;
    /// Open sessions of one router.
    sessions_per_router, "sessionsPerRouter" = 8192;
    /// Open sessions in all.
    sessions_per_toolshed, "sessionsPerToolshed" = 16384;
    /// Open sessions of one principal.
    sessions_per_principal, "sessionsPerPrincipal" = 2400;
    /// Watches of one session.
    watches_per_session, "watchesPerSession" = 2048;
    /// Views of one session.
    views_per_session, "viewsPerSession" = 64;
    /// Watches and views of one context.
    watches_per_context, "watchesPerContext" = 40960;
    /// Watches and views of one router.
    watches_per_router, "watchesPerRouter" = 262144;
    /// Watches and views in all.
    watches_per_toolshed, "watchesPerToolshed" = 524288;
    /// Watches and views of one principal.
    watches_per_principal, "watchesPerPrincipal" = 81920;
    /// Holdings of one session.
    holdings_per_session, "holdingsPerSession" = 8192;
    /// Holdings of one context.
    holdings_per_context, "holdingsPerContext" = 327680;
    /// Holdings of one router.
    holdings_per_router, "holdingsPerRouter" = 2097152;
    /// Holdings in all.
    holdings_per_toolshed, "holdingsPerToolshed" = 4194304;
    /// Holdings of one principal.
    holdings_per_principal, "holdingsPerPrincipal" = 655360;
    /// Bytes of output queued on one data socket.
    output_bytes_per_socket, "outputBytesPerSocket" = 4194304;
    /// JSON values in one frame.
    frame_slots, "frameSlots" = 150000;
}

/// Pairs whose first may not exceed the second: context, router, toolshed; principal, toolshed; and within a context.
const ORDER: [(&str, &str); 14] = [
    ("sessionsPerContext", "sessionsPerRouter"),
    ("sessionsPerContext", "sessionsPerToolshed"),
    ("sessionsPerRouter", "sessionsPerToolshed"),
    ("sessionsPerPrincipal", "sessionsPerToolshed"),
    ("watchesPerContext", "watchesPerRouter"),
    ("watchesPerContext", "watchesPerToolshed"),
    ("watchesPerRouter", "watchesPerToolshed"),
    ("watchesPerPrincipal", "watchesPerToolshed"),
    ("holdingsPerContext", "holdingsPerRouter"),
    ("holdingsPerContext", "holdingsPerToolshed"),
    ("holdingsPerRouter", "holdingsPerToolshed"),
    ("holdingsPerPrincipal", "holdingsPerToolshed"),
    ("principalsPerContext", "principalHistoryPerContext"),
    ("watchesPerSession", "watchesPerContext"),
];

impl ToolshedLimits {
    /// Reads the `limits` object of a policy; faults are in the report.
    pub(crate) fn read(&mut self, json: &mut Json<'_, '_>) -> Result<(), Stopped> {
        json.members(MEMBERS, |json, member| {
            let offset = json.place();
            let key = json.key();
            json.report.sets(key.as_str(), offset);
            let value = match json.null()? {
                true => Some(None),
                false => json.integer_or("null", 1, MAX_SAFE_INTEGER)?.map(Some),
            };
            if let (Some(value), Some(slot)) = (value, self.slot(member)) {
                *slot = value;
            }
            Ok(())
        })
        .map(drop)
    }

    /// The order between limits. A comparison with one that is off is skipped.
    pub(crate) fn check(&self, routers: u64, report: &mut Report<'_>) {
        let entries = self.entries();
        let value = |name: &str| {
            entries
                .iter()
                .find(|(known, _)| *known == name)
                .and_then(|(_, value)| *value)
        };
        for (smaller, larger) in ORDER {
            if let (Some(low), Some(high)) = (value(smaller), value(larger))
                && low > high
            {
                let keys = [smaller, larger].map(|name| format!("limits.{name}"));
                let [smaller, larger] = &keys;
                report.conflict(
                    &[smaller, larger],
                    low.to_string(),
                    format!("at most {larger} = {high}"),
                );
            }
        }
        if let (Some(history), Some(active), Some(proofs)) = (
            self.principal_history_per_context,
            self.principals_per_context,
            self.proofs_per_context,
        ) && history.saturating_add(active) > proofs
        {
            let keys = [
                "limits.proofsPerContext",
                "limits.principalHistoryPerContext",
                "limits.principalsPerContext",
            ];
            let needed = history.saturating_add(active);
            let allowed = format!(
                "at least {needed}: limits.principalHistoryPerContext = {history} and a renewal for each of limits.principalsPerContext = {active}"
            );
            report.conflict(&keys, proofs.to_string(), allowed);
        }
        let Some(contexts) = self.contexts_per_link else {
            return;
        };
        let each = [
            (
                "limits.sockets",
                self.sockets,
                contexts.saturating_add(1),
                "(limits.contextsPerLink + 1)",
            ),
            (
                "limits.tickets",
                self.tickets,
                contexts,
                "limits.contextsPerLink",
            ),
        ];
        for (key, value, per_router, what) in each {
            let needed = routers.saturating_mul(per_router);
            if let Some(value) = value
                && value < needed
            {
                let allowed = format!(
                    "at least {needed}: {routers} routers * {what}, with contextsPerLink = {contexts}"
                );
                report.conflict(
                    &[key, "limits.contextsPerLink", "routers"],
                    value.to_string(),
                    allowed,
                );
            }
        }
    }
}
