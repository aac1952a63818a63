//! The directory file, and the certificates that it pins.

use std::path::{Path, PathBuf};

use memory_config::{Directory, DirectorySource, Places, Toolshed};
use memory_transport::certificate::Certificate;
use memory_wire::Did;

use super::finding::{Finding, Severity};
use super::identity::validity;
use super::subject::Subject;

/// Listed spaces past which other toolsheds refuse the file (`docs/protocol.md` section 6.5).
const PEER_SPACES: usize = 10_000;

/// The directory as it was read.
pub(super) struct Placement {
    pub(super) path: PathBuf,
    pub(super) directory: Directory,
    pub(super) places: Places,
}

impl Placement {
    /// A finding at a key of the directory file.
    pub(super) fn at(&self, key: impl Into<String>, finding: Finding) -> Finding {
        finding.at(&self.path, &self.places, key)
    }
}

/// Reads the directory; what is wrong with it is found. `router` is the router's own DID, as far as it is known.
pub(super) fn directory(
    subject: &Subject<'_>,
    router: Option<Did>,
    findings: &mut Vec<Finding>,
) -> Option<Placement> {
    if !subject.is_sound(&["directory"]) {
        return None;
    }
    let DirectorySource::File(path) = &subject.config.directory else {
        findings.push(
            subject
                .at("directory", Finding::error("this version has no etcd"))
                .found("an etcd source")
                .allowed("a path")
                .mend("name a directory file"),
        );
        return None;
    };
    let placement = match Directory::load_with_places(path) {
        Ok((directory, places)) => Placement {
            path: path.clone(),
            directory,
            places,
        },
        Err(errors) => {
            findings.extend(
                errors
                    .0
                    .into_iter()
                    .map(|error| unreadable(subject, path, error.into())),
            );
            return None;
        }
    };
    sizes(&placement, findings);
    for (index, toolshed) in placement.directory.toolsheds().iter().enumerate() {
        own(subject, &placement, index, toolshed, router, findings);
        pins(subject, &placement, index, toolshed, findings);
    }
    Some(placement)
}

/// A fault of the file as a whole is at the key that names it: the file has no line to show.
fn unreadable(subject: &Subject<'_>, path: &Path, finding: Finding) -> Finding {
    if finding.line > 0 || !finding.key.is_empty() {
        return finding;
    }
    subject
        .at(
            "directory",
            Finding::error("a file that is needed cannot be used"),
        )
        .found(format!("{}: {}", path.display(), finding.found))
        .allowed(finding.allowed)
        .mend("put the file there, or change directory")
}

fn sizes(placement: &Placement, findings: &mut Vec<Finding>) {
    let spaces = placement.directory.space_count();
    if spaces > PEER_SPACES {
        findings.push(
            placement
                .at("spaces", Finding::warning("other toolsheds stop at fewer spaces"))
                .found(format!("{spaces} spaces"))
                .allowed(format!("at most {PEER_SPACES}"))
                .mend("let the unlisted rule place what it can, or make sure that every toolshed reads more"),
        );
    }
    if spaces == 0 && !placement.directory.has_unlisted() {
        findings.push(
            placement
                .at("spaces", Finding::warning("the directory places no space"))
                .found("no listed space, and no unlisted rule")
                .allowed("a place for somebody")
                .mend("list spaces, or add the unlisted rule"),
        );
    }
}

/// A toolshed is somebody else than the router.
fn own(
    subject: &Subject<'_>,
    placement: &Placement,
    index: usize,
    toolshed: &Toolshed,
    router: Option<Did>,
    findings: &mut Vec<Finding>,
) {
    if router == Some(toolshed.did) {
        findings.push(
            placement
                .at(
                    format!("toolsheds[{index}].did"),
                    Finding::error("a toolshed has the router's own DID"),
                )
                .found(toolshed.did.to_string())
                .allowed("a DID other than that of router_seed")
                .mend("give the toolshed its own seed; a seed is never shared"),
        );
    }
    if subject.is_sound(&["listen"]) && subject.config.listen.contains(&toolshed.address) {
        findings.push(
            placement
                .at(
                    format!("toolsheds[{index}].address"),
                    Finding::error("a toolshed has the router's own address"),
                )
                .found(toolshed.address.to_string())
                .allowed(format!(
                    "an address other than those of listen ({})",
                    subject.cite("listen")
                ))
                .mend("correct the toolshed's address"),
        );
    }
}

/// What the directory pins for a toolshed: at least one certificate that can be used now, for its name.
fn pins(
    subject: &Subject<'_>,
    placement: &Placement,
    index: usize,
    toolshed: &Toolshed,
    findings: &mut Vec<Finding>,
) {
    let key = format!("toolsheds[{index}].certificate");
    let at = |finding: Finding| placement.at(key.as_str(), finding);
    let mut pins = Vec::new();
    for (number, der) in toolshed.certificate.iter().enumerate() {
        match Certificate::parse(der) {
            Some(pin) => pins.push(pin),
            // The link agent cannot do without: it pins all of them or does not start.
            None => findings.push(
                at(Finding::error("a pinned certificate cannot be used"))
                    .found(format!(
                        "certificate {} is no X.509 of version 3",
                        number + 1
                    ))
                    .allowed("X.509 certificates")
                    .mend("take the certificate from the toolshed's own file"),
            ),
        }
    }
    if pins.len() < toolshed.certificate.len() {
        return;
    }
    let whose = format!("a certificate of toolshed {:?}", toolshed.name);
    let judged: Vec<Option<Finding>> = pins
        .iter()
        .map(|pin| validity(&whose, pin, subject.now))
        .collect();
    let is_good = |finding: &Option<Finding>| {
        finding
            .as_ref()
            .is_none_or(|finding| finding.severity == Severity::Warning)
    };
    // While a certificate is replaced, the file holds the one before and the next.
    let replaced = judged.iter().any(is_good);
    for mut finding in judged.into_iter().flatten() {
        if replaced {
            finding.severity = Severity::Warning;
        }
        findings.push(
            at(finding)
                .mend("renew it at the toolshed, and replace the file of the directory")
                .confined(),
        );
    }
    let fits = |pin: &Certificate| pin.is_authority() || pin.is_valid_for(&toolshed.server_name);
    if !pins.iter().any(fits) {
        findings.push(
            placement
                .at(
                    format!("toolsheds[{index}].server_name"),
                    Finding::error("no pinned certificate is for this name"),
                )
                .found(format!("{:?}", toolshed.server_name))
                .allowed("a name of the pinned certificate, or a certificate of the authority that issues it")
                .mend("correct server_name, or have the toolshed's certificate made for it")
                .confined(),
        );
    }
}
