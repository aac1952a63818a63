//! What workers have to say, in the log: they cannot write there themselves.

use std::net::SocketAddr;
use std::time::Duration;

use memory_ipc::packets::Detail;
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use memory_wire::reason::Severity;

use super::process::Reaped;
use super::verdict::Verdict;

/// Events of one connection that are logged; the rest is counted. A worker that was taken over cannot fill the log.
const MAX_EVENTS: u32 = 64;

/// Events of one connection that are read. A worker sends as many as are logged, and a last one: one that sends more than
/// this would keep the spawner busy.
const MAX_SUPPRESSED: u64 = 64;

/// Writes a log line at a level that is known only at run time.
macro_rules! log_at {
    ($severity:expr, $($line:tt)+) => {
        match $severity {
            Severity::Error => tracing::error!($($line)+),
            Severity::Warn => tracing::warn!($($line)+),
            Severity::Info => tracing::info!($($line)+),
            Severity::Debug => tracing::debug!($($line)+),
        }
    };
}

/// The events of one connection.
#[derive(Debug)]
pub(super) struct EventLog {
    connection: ConnectionId,
    peer: SocketAddr,
    left: u32,
    suppressed: u64,
    /// From and to the client, as the worker last told.
    bytes: (u64, u64),
}

impl EventLog {
    pub(super) fn new(connection: ConnectionId, peer: SocketAddr) -> Self {
        Self {
            connection,
            peer,
            left: MAX_EVENTS,
            suppressed: 0,
            bytes: (0, 0),
        }
    }

    /// Logs an event, or counts it when there were too many. False when there were more than a worker sends.
    pub(super) fn note(
        &mut self,
        level: u8,
        reason: Option<Reason>,
        detail: &Detail,
        bytes_in: u64,
        bytes_out: u64,
    ) -> bool {
        self.carried((bytes_in, bytes_out));
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => {
                self.suppressed = self.suppressed.saturating_add(1);
                return self.suppressed <= MAX_SUPPRESSED;
            }
        }
        let severity = match level {
            1 => Severity::Error,
            3 => Severity::Info,
            4 => Severity::Debug,
            _ => Severity::Warn,
        };
        let Self {
            connection, peer, ..
        } = self;
        let reason = reason.map(Reason::as_str);
        log_at!(severity, role = "worker", reason, %connection, %peer, %detail, bytes_in, bytes_out, "event");
        true
    }

    /// Notes bytes from the client and to it; they never become less.
    pub(super) fn carried(&mut self, (bytes_in, bytes_out): (u64, u64)) {
        let (former_in, former_out) = self.bytes;
        self.bytes = (former_in.max(bytes_in), former_out.max(bytes_out));
    }

    /// Logs what a worker said although no worker may.
    pub(super) fn violation(&self, error: &(dyn std::error::Error + 'static)) {
        let Self {
            connection, peer, ..
        } = self;
        let reason = Reason::ChannelProtocol.as_str();
        tracing::error!(role = "worker", reason, %connection, %peer, error, "broke the rules of its channel");
    }
}

/// Logs the end of a connection.
pub(super) fn log_end(events: &EventLog, verdict: Verdict, reaped: &Reaped, lived: Duration) {
    let EventLog {
        connection,
        peer,
        suppressed,
        bytes: (bytes_in, bytes_out),
        ..
    } = events;
    // Debugging is for what happens all day; that a connection ended is worth a line each.
    let severity = verdict
        .reason
        .map_or(Severity::Info, Reason::severity)
        .max(Severity::Info);
    log_at!(
        severity,
        role = "worker",
        reason = verdict.word(),
        outcome = verdict.outcome.as_str(),
        %connection,
        %peer,
        status = reaped.code(),
        signal = reaped.signal(),
        killed = reaped.killed,
        bytes_in,
        bytes_out,
        suppressed_events = suppressed,
        milliseconds = u64::try_from(lived.as_millis()).unwrap_or(u64::MAX),
        "connection ended"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_says_more_than_one_does_is_told_apart() {
        let mut events = EventLog::new(ConnectionId::new(1, [0; 4]), ([192, 0, 2, 1], 1).into());
        let mut note = |number: u64| events.note(4, None, &Detail::clipped("x"), number, 2);
        // All that is logged, the last event, and as many again as there is patience for.
        assert!((0..128).all(&mut note));
        assert!(!note(1));
        assert_eq!(events.suppressed, 65);
        // A number that goes down is not taken.
        assert_eq!(events.bytes, (127, 2));
        events.carried((5, 7));
        assert_eq!(events.bytes, (127, 7));
    }
}
