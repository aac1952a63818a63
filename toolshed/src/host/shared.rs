//! What all tasks of a host share.

use super::state::State;
use memory_wire::ids::{Nonce, Ticket};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

/// Handle of every task. Borrows of the state never live across an await.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) state: RefCell<State>,
    /// Effects wait in the engine.
    pub(crate) effects: Notify,
    /// Sockets open now, those in their handshake included.
    sockets: Cell<u64>,
    clock: fn() -> u64,
}

impl Shared {
    pub(crate) fn new(state: State, clock: fn() -> u64) -> Rc<Self> {
        Rc::new(Self {
            state: RefCell::new(state),
            effects: Notify::new(),
            sockets: Cell::new(0),
            clock,
        })
    }

    /// The Unix second.
    pub(crate) fn now(&self) -> u64 {
        (self.clock)()
    }

    /// Wakes the effects task when there is something for it.
    pub(crate) fn note_effects(&self) {
        if self.state.borrow().memory.has_pending() {
            self.effects.notify_one();
        }
    }

    /// Takes one of the sockets that may be open at once; `None` when there are none left.
    pub(crate) fn admit_socket(self: &Rc<Self>) -> Option<SocketPermit> {
        let limit = self.state.borrow().settings.limits.sockets;
        let held = self.sockets.get();
        if limit.is_some_and(|limit| held >= limit) {
            return None;
        }
        self.sockets.set(held + 1);
        Some(SocketPermit(Rc::clone(self)))
    }
}

/// One open socket. Given back when dropped.
#[derive(Debug)]
pub(crate) struct SocketPermit(Rc<Shared>);

impl Drop for SocketPermit {
    fn drop(&mut self) {
        self.0.sockets.set(self.0.sockets.get().saturating_sub(1));
    }
}

/// The system's clock, in Unix seconds.
pub(crate) fn system_clock() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |elapsed| elapsed.as_secs())
}

/// 32 random bytes; `None` when the system gives none.
fn random() -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

/// A fresh nonce.
pub(crate) fn nonce() -> Option<Nonce> {
    random().map(Nonce::new)
}

/// Fresh bytes for a ticket.
pub(crate) fn ticket() -> Option<Ticket> {
    random().map(Ticket::new)
}
