//! How a worker ended: what it said of itself, weighed against what the kernel says.

use std::os::unix::process::ExitStatusExt as _;

use memory_ipc::WorkerOutcome;
use memory_wire::Reason;

use super::process::Reaped;

/// Why the spawner killed a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kill {
    /// It was to end for this reason ([`super::registry::Order`]) and did not in its time.
    Ordered(Reason),
    /// It held an unauthenticated connection longer than a worker that works as it should.
    Unauthenticated,
    /// It said something that a worker may not say.
    Violation,
}

/// What a worker said last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Finish {
    pub(super) outcome: WorkerOutcome,
    /// `None` when it gave no reason, or none that is known.
    pub(super) reason: Option<Reason>,
}

/// How a worker's end goes into log and penalties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) outcome: WorkerOutcome,
    pub(super) reason: Option<Reason>,
}

impl Verdict {
    pub(super) fn of(finish: Option<Finish>, kill: Option<Kill>, reaped: &Reaped) -> Self {
        let verdict = |outcome, reason| Self {
            outcome,
            reason: Some(reason),
        };
        match (kill, finish) {
            (Some(Kill::Ordered(Reason::Drain)), _) => {
                verdict(WorkerOutcome::Drained, Reason::Drain)
            }
            (Some(Kill::Ordered(reason)), _) => verdict(WorkerOutcome::Internal, reason),
            (Some(Kill::Unauthenticated), _) => verdict(
                WorkerOutcome::FailedAuthentication,
                Reason::AuthenticateTimeout,
            ),
            (Some(Kill::Violation), _) => verdict(WorkerOutcome::Crash, Reason::ChannelProtocol),
            // It had said everything; that it then lingered is the spawner's to log, not the source's to pay for.
            (None, Some(Finish { outcome, reason })) if reaped.is_success() || reaped.killed => {
                Self { outcome, reason }
            }
            // Died by a signal or a panic, possibly after its last words, or left without any.
            (None, _) => verdict(WorkerOutcome::Crash, Reason::WorkerCrash),
        }
    }

    /// The fixed word for the log.
    pub(super) fn word(self) -> &'static str {
        self.reason.map_or(self.outcome.as_str(), Reason::as_str)
    }
}

impl Reaped {
    /// The exit status, if there was one.
    pub(super) fn code(&self) -> Option<i32> {
        self.status
            .as_ref()
            .ok()
            .and_then(std::process::ExitStatus::code)
    }

    /// The signal that ended it, if one did.
    pub(super) fn signal(&self) -> Option<i32> {
        self.status
            .as_ref()
            .ok()
            .and_then(std::process::ExitStatus::signal)
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    const CLEAN: Finish = Finish {
        outcome: WorkerOutcome::Clean,
        reason: Some(Reason::ClientClosed),
    };

    fn ended(raw: i32, killed: bool) -> Reaped {
        Reaped {
            status: Ok(ExitStatus::from_raw(raw)),
            killed,
        }
    }

    #[test]
    fn a_worker_that_ends_well_is_believed() {
        let verdict = Verdict::of(Some(CLEAN), None, &ended(0, false));
        assert_eq!(
            verdict,
            Verdict {
                outcome: WorkerOutcome::Clean,
                reason: Some(Reason::ClientClosed)
            }
        );
        assert_eq!(verdict.word(), "client-closed");
    }

    #[test]
    fn a_worker_that_dies_is_a_crash_whatever_it_said() {
        // Segmentation fault, abort, exit status 101 of a panic, SIGKILL by somebody else (out of memory).
        for raw in [11, 6, 101 << 8, 9] {
            for finish in [None, Some(CLEAN)] {
                let verdict = Verdict::of(finish, None, &ended(raw, false));
                assert_eq!(verdict.outcome, WorkerOutcome::Crash, "{raw} {finish:?}");
            }
        }
    }

    #[test]
    fn leaving_without_a_word_is_a_crash() {
        assert_eq!(
            Verdict::of(None, None, &ended(0, false)).outcome,
            WorkerOutcome::Crash
        );
        assert_eq!(
            Verdict::of(None, None, &ended(9, true)).outcome,
            WorkerOutcome::Crash
        );
    }

    #[test]
    fn lingering_after_the_last_word_is_not() {
        assert_eq!(
            Verdict::of(Some(CLEAN), None, &ended(9, true)).outcome,
            WorkerOutcome::Clean
        );
    }

    #[test]
    fn a_killed_worker_ends_for_the_reason_it_was_killed_for() {
        for (kill, outcome, word) in [
            (
                Kill::Ordered(Reason::Drain),
                WorkerOutcome::Drained,
                "drain",
            ),
            (
                Kill::Ordered(Reason::LinkAgentLost),
                WorkerOutcome::Internal,
                "link-agent-lost",
            ),
            (
                Kill::Unauthenticated,
                WorkerOutcome::FailedAuthentication,
                "authenticate-timeout",
            ),
            (Kill::Violation, WorkerOutcome::Crash, "channel-protocol"),
        ] {
            let verdict = Verdict::of(Some(CLEAN), Some(kill), &ended(9, true));
            assert_eq!((verdict.outcome, verdict.word()), (outcome, word));
        }
    }
}
