//! How a connection ends: one value that carries the reason to the client, the log and the listener.

use std::borrow::Cow;

use memory_wire::reason::Reason;

/// Why this connection is over.
///
/// The first one raised by any task wins; everything after it is a consequence. `detail` is a fixed kebab-case word
/// (never peer bytes) that says which rule was broken, for the log alone: the wire only carries the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    /// The entry of the one reason table; it decides the WebSocket close code.
    pub(crate) reason: Reason,
    /// Which rule, element or step. Logged, never sent.
    pub(crate) detail: Cow<'static, str>,
}

impl End {
    /// An end with its fixed detail.
    pub(crate) fn new(reason: Reason, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            detail: detail.into(),
        }
    }

    /// The code of the close frame. A broken rule that is a size bound says so: the client need not try the same again, but
    /// something smaller may do (`docs/protocol.md` 4.6).
    pub(crate) fn close_code(&self) -> u16 {
        match Reason::from_text(&self.detail) {
            Some(rule) if self.reason == Reason::ClientProtocol => rule.close_code(),
            _ => self.reason.close_code(),
        }
    }

    /// The client broke a rule of the protocol.
    pub(crate) fn client(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::ClientProtocol, detail)
    }

    /// A toolshed was lost while this connection depended on it.
    pub(crate) fn upstream(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::UpstreamLost, detail)
    }

    /// A toolshed broke a rule of the private protocol.
    pub(crate) fn violation(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Reason::UpstreamProtocol, detail)
    }

    /// The same, naming the toolshed by its place in the directory, where it is the toolshed's doing. Whoever runs it wants
    /// to know which it was.
    pub(crate) fn of_toolshed(mut self, index: u16) -> Self {
        const NAMED: &str = " of toolshed ";
        let is_its_doing = matches!(
            self.reason,
            Reason::UpstreamLost | Reason::UpstreamProtocol | Reason::AdmissionTimeout
        );
        if is_its_doing && !self.detail.contains(NAMED) {
            self.detail = format!("{}{NAMED}{index}", self.detail).into();
        }
        self
    }
}
