//! Refusals in the log: a line each, but not without end.

use std::cell::Cell;
use std::rc::Rc;

use memory_admin::CountBy;
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;

/// Refusals of one channel that are logged. Who asks for what is refused, as fast as it can, must not fill the log.
const MAX_LINES: u32 = 64;

/// The refusals of one channel.
#[derive(Debug)]
pub(crate) struct Refusals {
    connection: ConnectionId,
    count: Cell<u32>,
    /// Those of all channels.
    all: Rc<CountBy<Reason>>,
}

impl Refusals {
    pub(crate) fn new(connection: ConnectionId, all: &Rc<CountBy<Reason>>) -> Self {
        Self {
            connection,
            count: Cell::new(0),
            all: Rc::clone(all),
        }
    }

    /// Counts a refusal, and logs it, of an open at a toolshed or of something else, unless there were too many.
    pub(crate) fn note(&self, reason: Reason, toolshed: Option<u16>) {
        let connection = self.connection;
        let count = self.count.get().saturating_add(1);
        self.count.set(count);
        self.all.add(reason, 1);
        if count <= MAX_LINES {
            tracing::info!(%reason, %connection, toolshed, "refused");
        }
        if count == MAX_LINES {
            tracing::info!(%reason, %connection, "further refusals on this channel are not logged");
        }
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        let (connection, count) = (self.connection, self.count.get());
        if count > MAX_LINES {
            tracing::info!(%connection, count, "refusals on a channel that ended");
        }
    }
}
