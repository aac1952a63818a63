//! Toolsheds' policies against the router's configuration and the directory.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use memory_config::{Limits, Places, Toolshed, ToolshedPolicy, load_certificates};
use memory_transport::certificate::{Certificate, is_pinned};
use memory_wire::Did;

use super::finding::Finding;
use super::identity::validity;
use super::placement::Placement;
use super::subject::{Reach, Subject};

/// One policy.
struct Policy {
    path: PathBuf,
    policy: ToolshedPolicy,
    places: Places,
}

impl Policy {
    fn at(&self, key: impl Into<String>, finding: Finding) -> Finding {
        finding.at(&self.path, &self.places, key)
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.policy.hostname), self.policy.port)
    }
}

/// Compares every policy; and every toolshed of the directory has one, when any is given.
pub(super) fn compare(
    subject: &Subject<'_>,
    placement: Option<&Placement>,
    router: Option<Did>,
    files: &[PathBuf],
    findings: &mut Vec<Finding>,
) {
    let mut policies = Vec::new();
    for path in files {
        match ToolshedPolicy::load_with_places(path) {
            Ok((policy, places)) => policies.push(Policy {
                path: path.clone(),
                policy,
                places,
            }),
            Err(errors) => findings.extend(errors.0.into_iter().map(Finding::from)),
        }
    }
    for policy in &policies {
        limits(subject, policy, findings);
        if let Some(router) = router {
            listed(subject, policy, router, findings);
        }
        if let Some(placement) = placement {
            entry(subject, placement, policy, findings);
        }
    }
    if let Some(placement) = placement.filter(|_| policies.len() == files.len()) {
        pairing(placement, &policies, findings);
    }
}

/// How a router's limit relates to a toolshed's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Equal,
    AtMost,
}

/// The table of limits that must match or cover. `None` is a limit that is off.
fn rows(limits: &Limits) -> [(&'static str, Option<u64>, &'static str, Rule); 10] {
    use Rule::{AtMost, Equal};
    [
        (
            "max_frame_slots",
            limits.max_frame_slots.get(),
            "frameSlots",
            Equal,
        ),
        (
            "max_watches_per_session",
            limits.max_watches_per_session.get(),
            "watchesPerSession",
            Equal,
        ),
        (
            "max_workers",
            Some(limits.max_workers),
            "contextsPerLink",
            AtMost,
        ),
        (
            "max_sessions_per_connection",
            limits.max_sessions_per_connection.get(),
            "sessionsPerContext",
            AtMost,
        ),
        (
            "max_spaces_per_connection",
            limits.max_spaces_per_connection.get(),
            "spacesPerContext",
            AtMost,
        ),
        (
            "max_principals_per_connection",
            Some(limits.max_principals_per_connection),
            "principalsPerContext",
            AtMost,
        ),
        (
            "max_principal_history",
            Some(limits.max_principal_history),
            "principalHistoryPerContext",
            AtMost,
        ),
        (
            "max_requests_per_connection",
            Some(limits.max_requests_per_connection),
            "requestsPerContext",
            AtMost,
        ),
        (
            "max_watches_per_connection",
            limits.max_watches_per_connection.get(),
            "watchesPerContext",
            AtMost,
        ),
        (
            "max_holdings_per_connection",
            limits.max_holdings_per_connection.get(),
            "holdingsPerContext",
            AtMost,
        ),
    ]
}

fn limits(subject: &Subject<'_>, policy: &Policy, findings: &mut Vec<Finding>) {
    let entries = policy.policy.limits.entries();
    for (name, ours, member, rule) in rows(&subject.config.limits) {
        let key = format!("limits.{name}");
        let theirs = entries
            .iter()
            .find(|(known, _)| *known == member)
            .and_then(|(_, value)| *value);
        let holds = match (rule, ours, theirs) {
            (Rule::Equal, ours, theirs) => ours == theirs,
            (Rule::AtMost, _, None) => true,
            (Rule::AtMost, None, Some(_)) => false,
            (Rule::AtMost, Some(ours), Some(theirs)) => ours <= theirs,
        };
        if holds || !subject.is_sound(&[&key]) {
            continue;
        }
        let (what, relation) = match rule {
            Rule::Equal => ("a limit is not the router's", "equal to"),
            Rule::AtMost => ("a limit does not cover the router's", "at least"),
        };
        let member_key = format!("limits.{member}");
        let default = match policy.places.of(&member_key) {
            Some(_) => "",
            None => " (the default)",
        };
        let ours_shown = ours.map_or("\"unlimited\", here null".to_owned(), |ours| {
            ours.to_string()
        });
        findings.push(
            policy
                .at(member_key.as_str(), Finding::error(what))
                .found(format!(
                    "{}{default}",
                    theirs.map_or("null".to_owned(), |theirs| theirs.to_string())
                ))
                .allowed(format!(
                    "{relation} {key} = {ours_shown} ({})",
                    subject.cite(&key)
                ))
                .mend(format!(
                    "change {member_key} of the toolshed, or {key} of the router"
                )),
        );
    }
}

/// The toolshed knows this router, at the address that it will come from.
fn listed(subject: &Subject<'_>, policy: &Policy, router: Did, findings: &mut Vec<Finding>) {
    let Some(peers) = policy.policy.routers.get(&router) else {
        findings.push(
            policy
                .at("routers", Finding::error("the toolshed does not know this router"))
                .found(format!("{} other routers", policy.policy.routers.len()))
                .allowed(format!("{router}, the DID of router_seed"))
                .mend("add the DID with the addresses that the router comes from, and restart the toolshed"),
        );
        return;
    };
    if subject.reach == Reach::Files {
        return;
    }
    let key = format!("routers.{router}");
    match source_address(policy.address()) {
        Some(IpAddr::V4(source)) if peers.contains(&source) => {}
        Some(source) => findings.push(
            policy
                .at(key, Finding::error("the toolshed does not expect the router from here"))
                .found(format!("{peers:?}"))
                .allowed(format!("{source}, from which this host reaches {}", policy.address()))
                .mend("add the address to the router's entry, or check on the host that the router runs on"),
        ),
        None => findings.push(
            policy
                .at("hostname", Finding::warning("this host has no way to the toolshed"))
                .found(policy.address().to_string())
                .allowed("an address with a route")
                .mend("check on the host that the router runs on"),
        ),
    }
}

/// The address that this host would come from. Connecting a datagram socket sends nothing: it asks the routing table.
fn source_address(toolshed: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((IpAddr::from([0, 0, 0, 0]), 0)).ok()?;
    socket.connect(toolshed).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// The directory's entry of that toolshed says the same.
fn entry(
    subject: &Subject<'_>,
    placement: &Placement,
    policy: &Policy,
    findings: &mut Vec<Finding>,
) {
    let deployment = placement.directory.deployment();
    if policy.policy.deployment != deployment {
        findings.push(
            policy
                .at(
                    "deployment",
                    Finding::error("the toolshed is of another deployment"),
                )
                .found(format!("{:?}", policy.policy.deployment))
                .allowed(format!("{deployment:?}, as the directory says"))
                .mend("correct whichever of the two is wrong"),
        );
    }
    let address = policy.address();
    let toolsheds = placement.directory.toolsheds();
    match toolsheds
        .iter()
        .find(|toolshed| toolshed.address == address)
    {
        Some(toolshed) => certificate(subject, policy, toolshed, findings),
        None => findings.push(
            policy
                .at(
                    "hostname",
                    Finding::error("no toolshed of the directory has this address"),
                )
                .found(address.to_string())
                .allowed("the address of a toolshed in the directory")
                .mend("correct hostname and port, or the directory"),
        ),
    }
}

/// What the toolshed will show is what the router pins, for the name that the router asks for.
fn certificate(
    subject: &Subject<'_>,
    policy: &Policy,
    toolshed: &Toolshed,
    findings: &mut Vec<Finding>,
) {
    let path = &policy.policy.certificate;
    let at = |finding: Finding| policy.at("certificate", finding);
    let chain = match load_certificates(path) {
        Ok(chain) => chain,
        Err(error) => {
            findings.push(
                at(Finding::warning(
                    "the toolshed's certificate cannot be compared from here",
                ))
                .found(error.to_string())
                .allowed("the toolshed's certificate file, where its policy says")
                .mend("bring it beside the policy, or check with --live"),
            );
            return;
        }
    };
    let Some(parsed) = chain.first().and_then(Certificate::parse) else {
        findings.push(
            at(Finding::error("a certificate cannot be used"))
                .found("something that is no X.509 certificate of version 3")
                .allowed("an X.509 certificate")
                .mend("have the certificate made anew"),
        );
        return;
    };
    if let Some(finding) = validity("the toolshed's certificate", &parsed, subject.now) {
        findings.push(
            at(finding)
                .mend("renew it, and replace the file that the directory pins")
                .confined(),
        );
    }
    if !parsed.is_valid_for(&toolshed.server_name) {
        findings.push(
            at(Finding::error(
                "the toolshed's certificate is not for its name",
            ))
            .found(format!(
                "no name that stands for {:?}",
                toolshed.server_name
            ))
            .allowed("server_name of the directory")
            .mend("have it made for that name, or correct server_name"),
        );
    } else if !is_pinned(
        &toolshed.certificate,
        &chain,
        &toolshed.server_name,
        subject.now,
    ) {
        findings.push(
            at(Finding::error(
                "the router does not trust the toolshed's certificate",
            ))
            .found(path.display().to_string())
            .allowed(
                "a certificate that the directory pins, or one issued by an authority that it pins",
            )
            .mend("put this certificate into the file that the directory names"),
        );
    }
}

/// One policy for each toolshed.
fn pairing(placement: &Placement, policies: &[Policy], findings: &mut Vec<Finding>) {
    for (index, policy) in policies.iter().enumerate() {
        let earlier: Option<&Path> = policies
            .iter()
            .take(index)
            .find(|other| other.address() == policy.address())
            .map(|other| other.path.as_path());
        if let Some(earlier) = earlier {
            findings.push(
                policy
                    .at("port", Finding::error("two policies are for one address"))
                    .found(policy.address().to_string())
                    .allowed(format!(
                        "an address other than that of {}",
                        earlier.display()
                    ))
                    .mend("give each toolshed's policy once"),
            );
        }
    }
    if policies.is_empty() {
        return;
    }
    for (index, toolshed) in placement.directory.toolsheds().iter().enumerate() {
        if !policies
            .iter()
            .any(|policy| policy.address() == toolshed.address)
        {
            findings.push(
                placement
                    .at(
                        format!("toolsheds[{index}].address"),
                        Finding::warning("a toolshed was not compared"),
                    )
                    .found(format!("no policy for toolshed {:?}", toolshed.name))
                    .allowed("a --toolshed-policy for each toolshed")
                    .mend("give its policy too"),
            );
        }
    }
}
