//! What the command prints.

use serde::Serialize;

use super::finding::{Finding, Severity};
use super::live::Seen;

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// Whether the status is 0.
    pub(super) ok: bool,
    errors: usize,
    warnings: usize,
    /// Errors first, each kind in the order of the checks.
    findings: Vec<Finding>,
    /// With `--live`, in the order of the directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    toolsheds: Option<Vec<Seen>>,
}

impl Outcome {
    /// With `strict`, warnings count as errors do.
    pub(super) fn new(
        mut findings: Vec<Finding>,
        toolsheds: Option<Vec<Seen>>,
        strict: bool,
    ) -> Self {
        findings.sort_by_key(|finding| finding.severity);
        let count = |severity| {
            findings
                .iter()
                .filter(|finding| finding.severity == severity)
                .count()
        };
        let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
        Self {
            ok: errors == 0 && (warnings == 0 || !strict),
            errors,
            warnings,
            findings,
            toolsheds,
        }
    }

    /// A paragraph for each finding, a line for each toolshed, and the sum.
    pub(super) fn for_people(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            text.push_str(&finding.paragraph());
            text.push('\n');
        }
        for seen in self.toolsheds.iter().flatten() {
            text.push_str(&line(seen));
        }
        if self
            .toolsheds
            .as_ref()
            .is_some_and(|toolsheds| !toolsheds.is_empty())
        {
            text.push('\n');
        }
        text.push_str(&format!(
            "{}: {}, {}\n",
            if self.ok { "good" } else { "not good" },
            counted(self.errors, "error"),
            counted(self.warnings, "warning")
        ));
        text
    }
}

fn line(seen: &Seen) -> String {
    let Seen { name, address, .. } = seen;
    let (Some(did), Some(modern), Some(ahead)) =
        (&seen.did, seen.modern_cell_rep, seen.clock_ahead)
    else {
        return format!("toolshed {name} at {address}: no greeting\n");
    };
    let mode = if modern { "modern" } else { "legacy" };
    let flags = seen
        .flags
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default();
    format!(
        "toolshed {name} at {address}: {did}, {mode} cells, clock {ahead:+} s\n  flags    {flags}\n"
    )
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
