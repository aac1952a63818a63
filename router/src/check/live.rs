//! `--live`: each toolshed is dialled, up to its signed greeting and no further.

use memory_config::{RouterConfig, Toolshed};
use memory_link_agent::{Greeting, MAX_CLOCK_SKEW, ProbeError, probe};
use memory_wire::Did;
use memory_wire::flags::{ROUTER_ENCODING_NEGOTIATION, ROUTER_REQUEST_CREDIT};
use serde::Serialize;
use serde_json::Value;
use tokio::task::{JoinSet, LocalSet};

use super::finding::Finding;
use super::placement::Placement;
use super::subject::Subject;
use crate::exit::Failure;

/// Difference of the clocks that is warned about, in seconds: a link still works.
const NOTABLE_SKEW: u64 = 5;

/// What a toolshed said of itself.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Seen {
    /// In the directory.
    pub(super) name: String,
    pub(super) address: String,
    /// Whether it greeted.
    pub(super) greeted: bool,
    /// Who signed the greeting.
    pub(super) did: Option<Did>,
    pub(super) modern_cell_rep: Option<bool>,
    /// Seconds that its clock is ahead of this host's.
    pub(super) clock_ahead: Option<i64>,
    pub(super) flags: Option<Value>,
}

/// Dials all of them at once.
pub(super) fn dial(
    subject: &Subject<'_>,
    placement: &Placement,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Seen>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("cannot start the runtime", error))?;
    let toolsheds = placement.directory.toolsheds();
    let timeouts = &subject.config.timeouts;
    let greetings = LocalSet::new().block_on(&runtime, async {
        let mut dials = JoinSet::new();
        for (index, toolshed) in toolsheds.iter().enumerate() {
            let (toolshed, timeouts) = (toolshed.clone(), timeouts.clone());
            dials.spawn_local(async move { (index, probe(&toolshed, &timeouts).await) });
        }
        let mut greetings: Vec<_> = Vec::new();
        while let Some(joined) = dials.join_next().await {
            // A dial neither panics nor is aborted.
            greetings.extend(joined.ok());
        }
        greetings.sort_by_key(|(index, _)| *index);
        greetings
    });
    runtime.shutdown_background();
    let mut seen = Vec::new();
    for (index, greeting) in greetings {
        let Some(toolshed) = toolsheds.get(index) else {
            continue;
        };
        match &greeting {
            Ok(greeting) => judge(subject, placement, index, toolshed, greeting, findings),
            Err(error) => findings.push(unseen(placement, index, toolshed, error)),
        }
        seen.push(told(toolshed, greeting.ok()));
    }
    Ok(seen)
}

fn told(toolshed: &Toolshed, greeting: Option<Greeting>) -> Seen {
    let greeting = greeting.as_ref();
    Seen {
        name: toolshed.name.clone(),
        address: toolshed.address.to_string(),
        greeted: greeting.is_some(),
        did: greeting.map(|greeting| greeting.did),
        modern_cell_rep: greeting.map(|greeting| greeting.flags.modern_cell_rep()),
        clock_ahead: greeting.map(ahead),
        flags: greeting.map(|greeting| greeting.flags.to_value()),
    }
}

/// Seconds that the toolshed's clock is ahead.
fn ahead(greeting: &Greeting) -> i64 {
    let seconds = i128::from(greeting.issued) - i128::from(greeting.received);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

fn unseen(placement: &Placement, index: usize, toolshed: &Toolshed, error: &ProbeError) -> Finding {
    let key = |member: &str| format!("toolsheds[{index}].{member}");
    let name = &toolshed.name;
    let (member, what, mend) = match error {
        ProbeError::Pin(_) => (
            "certificate",
            format!("the certificate of toolshed {name:?} cannot be pinned"),
            "take the certificate from the toolshed's own file",
        ),
        ProbeError::Unreachable(_) => (
            "address",
            format!("toolshed {name:?} cannot be reached"),
            "start it, correct the address, or let this host through its firewall",
        ),
        ProbeError::Untrusted(_) => (
            "certificate",
            format!("toolshed {name:?} shows another certificate than the directory pins"),
            "compare the toolshed's certificate, server_name and the pinned file",
        ),
        ProbeError::Protocol(_) => (
            "address",
            format!("toolshed {name:?} does not speak the protocol of a link"),
            "correct the address, or install a toolshed that serves routers",
        ),
        ProbeError::Unsigned => (
            "did",
            format!("the greeting of toolshed {name:?} is signed by nobody it names"),
            "find out who answers at that address",
        ),
    };
    placement
        .at(key(member), Finding::error(what))
        .found(format!("{}: {error}", toolshed.address))
        .allowed("a signed greeting")
        .mend(mend)
        .confined()
}

fn judge(
    subject: &Subject<'_>,
    placement: &Placement,
    index: usize,
    toolshed: &Toolshed,
    greeting: &Greeting,
    findings: &mut Vec<Finding>,
) {
    let key = |member: &str| format!("toolsheds[{index}].{member}");
    let name = &toolshed.name;
    if greeting.did != toolshed.did {
        findings.push(
            placement
                .at(
                    key("did"),
                    Finding::error(format!("toolshed {name:?} is somebody else")),
                )
                .found(greeting.did.to_string())
                .allowed(format!("{}, as the directory says", toolshed.did))
                .mend("correct the directory, or give the toolshed its seed back")
                .confined(),
        );
    }
    for flag in [ROUTER_ENCODING_NEGOTIATION, ROUTER_REQUEST_CREDIT] {
        if !greeting.flags.is_true(flag) {
            findings.push(
                placement
                    .at(
                        key("address"),
                        Finding::error(format!("toolshed {name:?} lacks what every router needs")),
                    )
                    .found(format!("no {flag} among its flags"))
                    .allowed(format!("{flag}: true"))
                    .mend("install a toolshed that serves routers")
                    .confined(),
            );
        }
    }
    if subject.is_sound(&["modern_cell_rep"]) {
        cell_mode(subject, subject.config, name, greeting, findings);
    }
    let skew = greeting.issued.abs_diff(greeting.received);
    let finding = match skew {
        _ if skew > MAX_CLOCK_SKEW => Finding::error(format!(
            "the clock of toolshed {name:?} is too far from this host's"
        )),
        _ if skew > NOTABLE_SKEW => {
            Finding::warning(format!("the clock of toolshed {name:?} is not this host's"))
        }
        _ => return,
    };
    let side = if ahead(greeting) > 0 {
        "ahead"
    } else {
        "behind"
    };
    findings.push(
        placement
            .at(key("address"), finding)
            .found(format!("{skew} s {side}"))
            .allowed(format!(
                "at most {MAX_CLOCK_SKEW} s for a link, {NOTABLE_SKEW} s where clocks are kept"
            ))
            .mend("have both hosts follow a time server")
            .confined(),
    );
}

fn cell_mode(
    subject: &Subject<'_>,
    config: &RouterConfig,
    name: &str,
    greeting: &Greeting,
    findings: &mut Vec<Finding>,
) {
    let theirs = greeting.flags.modern_cell_rep();
    if theirs != config.modern_cell_rep {
        findings.push(
            subject
                .at(
                    "modern_cell_rep",
                    Finding::error(format!("toolshed {name:?} has another cell mode")),
                )
                .found(config.modern_cell_rep.to_string())
                .allowed(format!("{theirs}, as the toolshed has it"))
                .mend("bring every toolshed, every client and the router to the same mode")
                .confined(),
        );
    }
}
