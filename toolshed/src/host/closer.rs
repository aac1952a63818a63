//! How a socket's tasks learn that it is over.

use memory_wire::reason::close;
use tokio::sync::watch;

/// How a socket is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closing {
    /// Close code (RFC 6455 section 7.4).
    pub(crate) code: u16,
    /// Close reason. It tells the peer nothing: the verdict does that in the log.
    pub(crate) text: &'static str,
}

impl Closing {
    /// The one way in which the host ends a socket.
    pub(crate) const ENDED: Self = Self {
        code: close::POLICY_VIOLATION,
        text: "Routed memory connection ended",
    };

    /// The toolshed is shutting down.
    pub(crate) const SHUTDOWN: Self = Self {
        code: close::GOING_AWAY,
        text: "Routed memory host stopped",
    };
}

/// A switch that is thrown once.
#[derive(Debug)]
pub(crate) struct Closer(watch::Sender<Option<Closing>>);

impl Closer {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Throws it; only the first time counts.
    pub(crate) fn close(&self, closing: Closing) {
        self.0.send_if_modified(|state| {
            let first = state.is_none();
            if first {
                *state = Some(closing);
            }
            first
        });
    }

    /// Whether, and how, it was thrown.
    pub(crate) fn closing(&self) -> Option<Closing> {
        *self.0.borrow()
    }

    /// Waits until it is thrown.
    pub(crate) async fn closed(&self) -> Closing {
        let mut state = self.0.subscribe();
        loop {
            if let Some(closing) = *state.borrow_and_update() {
                return closing;
            }
            if state.changed().await.is_err() {
                // The sender lives in `self`.
                return Closing::ENDED;
            }
        }
    }
}
