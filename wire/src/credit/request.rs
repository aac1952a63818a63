//! Request credit: declared body bytes from router to toolshed.

use super::{CreditFault, REQUEST_WINDOW};
use crate::codec::MAX_SAFE_INTEGER;

/// The router's side of one data socket: the credit it holds and the ordinal of its next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestSender {
    /// At most [`REQUEST_WINDOW`].
    held: u32,
    next_ordinal: u64,
}

impl RequestSender {
    /// A fresh data socket: no credit, ordinal 1.
    pub const fn new() -> Self {
        Self {
            held: 0,
            next_ordinal: 1,
        }
    }

    /// Takes up credit that the toolshed granted.
    ///
    /// # Errors
    ///
    /// [`CreditFault::Amount`] for zero, [`CreditFault::Excess`] when it would pass the window.
    pub fn grant(&mut self, amount: u32) -> Result<(), CreditFault> {
        if amount == 0 {
            return Err(CreditFault::Amount);
        }
        self.held = self
            .held
            .checked_add(amount)
            .filter(|held| *held <= REQUEST_WINDOW)
            .ok_or(CreditFault::Excess)?;
        Ok(())
    }

    /// Spends credit for a body of `bytes` and gives the ordinal of its header, which has to be sent next. `None` while the
    /// credit does not cover it, for a body of no bytes, and once the ordinals of the socket are used up.
    pub fn try_reserve(&mut self, bytes: u32) -> Option<u64> {
        if bytes == 0 || self.next_ordinal > MAX_SAFE_INTEGER {
            return None;
        }
        self.held = self.held.checked_sub(bytes)?;
        let ordinal = self.next_ordinal;
        self.next_ordinal = ordinal.saturating_add(1);
        Some(ordinal)
    }

    /// Declared body bytes that may be sent now.
    pub const fn held(&self) -> u32 {
        self.held
    }

    /// Whether a body of `bytes` is ever covered; one over the window is refused for good.
    pub const fn can_ever_send(&self, bytes: u32) -> bool {
        bytes <= REQUEST_WINDOW
    }
}

impl Default for RequestSender {
    fn default() -> Self {
        Self::new()
    }
}

/// The toolshed's side of one data socket. The four parts always add up to [`REQUEST_WINDOW`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestReceiver {
    /// Granted, written and not spent by the router.
    available: u32,
    /// Reserved by requests whose turn has not ended.
    in_use: u32,
    /// To be granted.
    owed: u32,
    /// Taken to be granted and not written yet: the router cannot have received it.
    unwritten: u32,
    next_ordinal: u64,
}

impl RequestReceiver {
    /// A fresh data socket: the whole window is owed.
    pub const fn new() -> Self {
        Self {
            available: 0,
            in_use: 0,
            owed: REQUEST_WINDOW,
            unwritten: 0,
            next_ordinal: 1,
        }
    }

    /// The grant that follows `router.ready`, the whole window. As after [`Self::take_owed`], [`Self::written`] has to be
    /// called once the record is handed to the socket.
    pub fn initial_grant(&mut self) -> u32 {
        self.take_owed().unwrap_or(0)
    }

    /// Takes up a request header and reserves its declared body.
    ///
    /// # Errors
    ///
    /// [`CreditFault::Ordinal`] when the ordinal is not the next one, [`CreditFault::Amount`] for no bytes,
    /// [`CreditFault::Overdraw`] past the credit that the router can have received.
    pub fn header(&mut self, ordinal: u64, bytes: u32) -> Result<(), CreditFault> {
        if ordinal != self.next_ordinal || ordinal > MAX_SAFE_INTEGER {
            return Err(CreditFault::Ordinal);
        }
        if bytes == 0 {
            return Err(CreditFault::Amount);
        }
        self.available = self
            .available
            .checked_sub(bytes)
            .ok_or(CreditFault::Overdraw)?;
        self.in_use = self.in_use.saturating_add(bytes);
        self.next_ordinal = ordinal.saturating_add(1);
        Ok(())
    }

    /// The turn of a request ended, answered or refused: its declared `bytes` are owed again. More than is in use counts as
    /// what is.
    pub fn finish(&mut self, bytes: u32) {
        let bytes = bytes.min(self.in_use);
        self.in_use = self.in_use.saturating_sub(bytes);
        self.owed = self.owed.saturating_add(bytes);
    }

    /// All credit that is owed, joined into one record to write at the next record boundary.
    pub fn take_owed(&mut self) -> Option<u32> {
        let amount = std::mem::take(&mut self.owed);
        self.unwritten = self.unwritten.saturating_add(amount);
        (amount > 0).then_some(amount)
    }

    /// A record of `amount` was handed to the socket; from now on the router may spend it. Call it as the bytes are
    /// handed over, before waiting for them to be flushed: the router may be quicker than the flush.
    pub fn written(&mut self, amount: u32) {
        let amount = amount.min(self.unwritten);
        self.unwritten = self.unwritten.saturating_sub(amount);
        self.available = self.available.saturating_add(amount);
    }

    /// Declared bytes of requests whose turn has not ended.
    pub const fn in_use(&self) -> u32 {
        self.in_use
    }

    /// Credit to be granted and not taken yet.
    pub const fn owed(&self) -> u32 {
        self.owed
    }

    /// Credit the router can have and has not spent.
    pub const fn available(&self) -> u32 {
        self.available
    }

    /// Whether all credit is back: nothing in use, nothing on its way.
    pub const fn is_idle(&self) -> bool {
        self.in_use == 0 && self.owed == 0 && self.unwritten == 0
    }
}

impl Default for RequestReceiver {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipelines_up_to_the_window() {
        let mut router = RequestSender::new();
        let mut toolshed = RequestReceiver::new();
        assert_eq!(router.try_reserve(1), None);
        let grant = toolshed.initial_grant();
        assert_eq!(grant, REQUEST_WINDOW);
        assert_eq!(toolshed.header(1, 1), Err(CreditFault::Overdraw));
        toolshed.written(grant);
        router.grant(grant).unwrap();
        assert_eq!(router.grant(1), Err(CreditFault::Excess));
        assert_eq!(router.grant(0), Err(CreditFault::Amount));
        assert_eq!(router.try_reserve(0), None);
        assert_eq!(router.try_reserve(REQUEST_WINDOW - 1), Some(1));
        assert_eq!(router.try_reserve(2), None);
        assert_eq!(router.try_reserve(1), Some(2));
        assert_eq!(toolshed.header(2, 1), Err(CreditFault::Ordinal));
        toolshed.header(1, REQUEST_WINDOW - 1).unwrap();
        toolshed.header(2, 1).unwrap();
        assert_eq!(toolshed.header(2, 1), Err(CreditFault::Ordinal));
        assert_eq!(toolshed.header(3, 1), Err(CreditFault::Overdraw));
        toolshed.finish(1);
        assert_eq!(toolshed.take_owed(), Some(1));
        assert_eq!(toolshed.take_owed(), None);
    }

    #[test]
    fn stops_at_the_last_safe_ordinal() {
        let mut router = RequestSender {
            held: 2,
            next_ordinal: MAX_SAFE_INTEGER,
        };
        assert_eq!(router.try_reserve(1), Some(MAX_SAFE_INTEGER));
        assert_eq!(router.try_reserve(1), None);
        let mut toolshed = RequestReceiver {
            available: 2,
            in_use: 0,
            owed: REQUEST_WINDOW - 2,
            unwritten: 0,
            next_ordinal: MAX_SAFE_INTEGER,
        };
        toolshed.header(MAX_SAFE_INTEGER, 1).unwrap();
        assert_eq!(
            toolshed.header(MAX_SAFE_INTEGER + 1, 1),
            Err(CreditFault::Ordinal)
        );
    }

    #[test]
    fn knows_what_the_window_can_never_cover() {
        let router = RequestSender::new();
        assert!(router.can_ever_send(REQUEST_WINDOW));
        assert!(!router.can_ever_send(REQUEST_WINDOW + 1));
    }
}
