//! The pong that is still owed.
//!
//! Who reads a socket must never wait for its writing side: a peer that reads again only after it was read would wait for
//! ever. So the reader leaves the pong here, and a task of its own sends it between two frames. Of several pings only the
//! last is answered (RFC 6455 section 5.5.3).

use std::cell::RefCell;

use tokio::sync::Notify;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct OwedPong {
    payload: RefCell<Option<Vec<u8>>>,
    owed: Notify,
}

impl OwedPong {
    /// A ping with this payload (at most 125 bytes) is to be answered.
    pub(crate) fn owe(&self, payload: &[u8]) {
        *self.payload.borrow_mut() = Some(payload.to_vec());
        self.owed.notify_one();
    }

    /// Waits for a pong to send.
    pub(crate) async fn next(&self) -> Vec<u8> {
        loop {
            if let Some(payload) = self.payload.borrow_mut().take() {
                return payload;
            }
            self.owed.notified().await;
        }
    }
}
