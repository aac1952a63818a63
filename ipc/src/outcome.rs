//! How a worker ended.

/// How a worker ended: reported by the worker, or found by the spawner when it reaps. The listener turns some of these into
/// penalties for the source (`docs/operations.md`, `[penalties]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WorkerOutcome {
    /// The connection ended as connections do: the client closed, or was closed without having done anything wrong.
    Clean = 0,
    /// The client broke the protocol.
    ProtocolError = 1,
    /// The client did not prove who it is.
    FailedAuthentication = 2,
    /// TLS, upgrade or hello did not finish in time.
    HandshakeTimeout = 3,
    /// The worker died by a signal or with an exit status that it has no reason for.
    Crash = 4,
    /// TLS could not be agreed on, or the upgrade was refused with an HTTP answer, and nothing worse.
    Refused = 5,
    /// A toolshed with open sessions of this client was lost.
    UpstreamLost = 6,
    /// The client was idle or silent for too long.
    Timeout = 7,
    /// A limit of the router, not a fault of the client, ended the connection.
    Overload = 8,
    /// The router shuts down.
    Drained = 9,
    /// Something of the router or its host failed.
    Internal = 10,
}

impl WorkerOutcome {
    /// Every outcome, by code.
    pub const ALL: [Self; 11] = [
        Self::Clean,
        Self::ProtocolError,
        Self::FailedAuthentication,
        Self::HandshakeTimeout,
        Self::Crash,
        Self::Refused,
        Self::UpstreamLost,
        Self::Timeout,
        Self::Overload,
        Self::Drained,
        Self::Internal,
    ];

    /// The byte on a channel.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The outcome of a byte on a channel, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The fixed word for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::ProtocolError => "protocol-error",
            Self::FailedAuthentication => "failed-authentication",
            Self::HandshakeTimeout => "handshake-timeout",
            Self::Crash => "worker-crash",
            Self::Refused => "refused",
            Self::UpstreamLost => "upstream-lost",
            Self::Timeout => "timeout",
            Self::Overload => "overload",
            Self::Drained => "drained",
            Self::Internal => "internal",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_positions() {
        for (position, outcome) in WorkerOutcome::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(outcome.code()), position);
            assert_eq!(WorkerOutcome::from_code(outcome.code()), Some(outcome));
        }
        assert_eq!(WorkerOutcome::from_code(11), None);
    }
}
