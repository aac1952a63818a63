//! Verdicts: one JSON line on standard error for each decision of the routed host that went against somebody, and for
//! every context that closed. No line carries message content, statements, tickets or error texts.

use memory_wire::Did;
use memory_wire::ids::ContextId;
use serde_json::{Map, Value};
use std::fmt;
use std::io::Write;

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A link was admitted.
    LinkAdmitted,
    /// A link was refused before it was one.
    LinkDenied,
    /// A link ended.
    LinkClosed,
    /// A control request was refused.
    ControlDenied,
    /// A proof was refused; its context closes.
    ProofDenied,
    /// A data socket was refused.
    DataDenied,
    /// A request was answered with a denial.
    RequestRefused,
    /// A context is over.
    ContextClosed,
    /// A router's key was revoked.
    RouterRevoked,
}

impl Verdict {
    const fn as_str(self) -> &'static str {
        match self {
            Self::LinkAdmitted => "link-admitted",
            Self::LinkDenied => "link-denied",
            Self::LinkClosed => "link-closed",
            Self::ControlDenied => "control-denied",
            Self::ProofDenied => "proof-denied",
            Self::DataDenied => "data-denied",
            Self::RequestRefused => "request-refused",
            Self::ContextClosed => "context-closed",
            Self::RouterRevoked => "router-revoked",
        }
    }
}

/// Whom a verdict is about, as far as known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct About<'a> {
    pub(crate) router: Option<&'a Did>,
    pub(crate) context: Option<&'a ContextId>,
    pub(crate) space: Option<&'a Did>,
}

/// Where verdicts go.
pub(crate) struct Audit {
    toolshed: Did,
    sink: Box<dyn FnMut(&Value)>,
}

impl Audit {
    /// Lines on standard error.
    pub(crate) fn to_stderr(toolshed: Did) -> Self {
        Self::new(toolshed, |line| {
            // It does not fail: what cannot be written is counted.
            let _ = memory_log::stderr().write_all(format!("{line}\n").as_bytes());
        })
    }

    pub(crate) fn new(toolshed: Did, sink: impl FnMut(&Value) + 'static) -> Self {
        Self {
            toolshed,
            sink: Box::new(sink),
        }
    }

    /// Writes a verdict.
    pub(crate) fn verdict(&mut self, verdict: Verdict, about: About<'_>, reason: &str) {
        self.verdict_with(verdict, about, reason, None);
    }

    /// Writes a verdict with the snapshot of an exhausted output bound.
    pub(crate) fn verdict_with(
        &mut self,
        verdict: Verdict,
        about: About<'_>,
        reason: &str,
        output_limit: Option<&Value>,
    ) {
        let mut line = Map::new();
        let mut put = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                line.insert(name.to_owned(), value.into());
            }
        };
        put("event", Some("routed-memory-verdict".to_owned()));
        put("router", about.router.map(Did::to_string));
        put("context", about.context.map(ContextId::to_hex));
        put("toolshed", Some(self.toolshed.to_string()));
        put("space", about.space.map(Did::to_string));
        put("verdict", Some(verdict.as_str().to_owned()));
        put("reason", Some(reason.to_owned()));
        if let Some(snapshot) = output_limit {
            line.insert("outputLimit".to_owned(), snapshot.clone());
        }
        (self.sink)(&Value::Object(line));
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Audit")
            .field("toolshed", &self.toolshed)
            .finish_non_exhaustive()
    }
}
