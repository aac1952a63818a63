//! Upload credit: record bytes from client to router.

use super::{CreditFault, MAX_UPLOAD_WINDOW, MIN_UPLOAD_WINDOW};

/// The client's side: what it has sent and not had back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadSender {
    window: u32,
    /// At most `window`.
    outstanding: u32,
}

impl UploadSender {
    /// A fresh socket with the window its router offered.
    ///
    /// # Errors
    ///
    /// [`CreditFault::Window`] outside [`MIN_UPLOAD_WINDOW`]..=[`MAX_UPLOAD_WINDOW`].
    pub fn new(window: u32) -> Result<Self, CreditFault> {
        Ok(Self {
            window: check_window(window)?,
            outstanding: 0,
        })
    }

    /// Whether the whole record of `record_len` bytes may be sent now.
    pub fn can_send(&self, record_len: usize) -> bool {
        u32::try_from(record_len).is_ok_and(|len| len <= self.available())
    }

    /// Charges one record, before it is sent.
    ///
    /// # Errors
    ///
    /// [`CreditFault::Overdraw`] when the credit does not cover it; nothing is charged then.
    pub fn spend(&mut self, record_len: usize) -> Result<(), CreditFault> {
        self.outstanding = charged(self.outstanding, record_len, self.window)?;
        Ok(())
    }

    /// Takes up credit that the router gave back.
    ///
    /// # Errors
    ///
    /// [`CreditFault::Amount`] for zero, [`CreditFault::Excess`] past what is outstanding.
    pub fn credit(&mut self, amount: u32) -> Result<(), CreditFault> {
        if amount == 0 {
            return Err(CreditFault::Amount);
        }
        self.outstanding = self
            .outstanding
            .checked_sub(amount)
            .ok_or(CreditFault::Excess)?;
        Ok(())
    }

    /// Bytes sent and not had back.
    pub const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Bytes that may still be sent.
    pub const fn available(&self) -> u32 {
        self.window.saturating_sub(self.outstanding)
    }
}

/// The router's side: what arrived, what of it was accepted, and what is owed back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadReceiver {
    window: u32,
    /// Received and not accepted yet. With `owed` at most `window`.
    pending: u32,
    /// Accepted and not given back yet.
    owed: u32,
}

impl UploadReceiver {
    /// A fresh socket with the window that its hello offers.
    ///
    /// # Errors
    ///
    /// [`CreditFault::Window`] outside [`MIN_UPLOAD_WINDOW`]..=[`MAX_UPLOAD_WINDOW`].
    pub fn new(window: u32) -> Result<Self, CreditFault> {
        Ok(Self {
            window: check_window(window)?,
            pending: 0,
            owed: 0,
        })
    }

    /// Takes up one record of `record_len` bytes.
    ///
    /// # Errors
    ///
    /// [`CreditFault::Overdraw`] when it passes the window: the client broke the protocol.
    pub fn receive(&mut self, record_len: usize) -> Result<(), CreditFault> {
        let held = charged(self.outstanding(), record_len, self.window)?;
        self.pending = held.saturating_sub(self.owed);
        Ok(())
    }

    /// Accepts a record that was received: its bytes are owed to the client from now on. More than was received counts as
    /// what was.
    pub fn accept(&mut self, record_len: usize) {
        let len = u32::try_from(record_len).map_or(self.pending, |len| len.min(self.pending));
        self.pending = self.pending.saturating_sub(len);
        self.owed = self.owed.saturating_add(len);
    }

    /// The credit to send now, if any: when at least a quarter of the window is owed, or all that is owed when the worker
    /// has nothing more to read (`flush`). It counts as given back from this call on.
    pub fn take_due(&mut self, flush: bool) -> Option<u32> {
        if self.owed == 0 || (!flush && self.owed < self.window / 4) {
            return None;
        }
        Some(std::mem::take(&mut self.owed))
    }

    /// Bytes accepted and not given back.
    pub const fn owed(&self) -> u32 {
        self.owed
    }

    /// Bytes received and not given back, accepted or not.
    pub const fn outstanding(&self) -> u32 {
        self.pending.saturating_add(self.owed)
    }
}

impl Default for UploadReceiver {
    /// The window this router offers, [`MAX_UPLOAD_WINDOW`].
    fn default() -> Self {
        Self {
            window: MAX_UPLOAD_WINDOW,
            pending: 0,
            owed: 0,
        }
    }
}

fn check_window(window: u32) -> Result<u32, CreditFault> {
    if (MIN_UPLOAD_WINDOW..=MAX_UPLOAD_WINDOW).contains(&window) {
        Ok(window)
    } else {
        Err(CreditFault::Window)
    }
}

/// `held` with one more record, unless that passes the window.
fn charged(held: u32, record_len: usize, window: u32) -> Result<u32, CreditFault> {
    u32::try_from(record_len)
        .ok()
        .and_then(|len| held.checked_add(len))
        .filter(|held| *held <= window)
        .ok_or(CreditFault::Overdraw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admits_exactly_the_window() {
        let mut sender = UploadSender::new(MIN_UPLOAD_WINDOW).unwrap();
        let mut receiver = UploadReceiver::new(MIN_UPLOAD_WINDOW).unwrap();
        let window = MIN_UPLOAD_WINDOW as usize;
        assert!(sender.can_send(window) && !sender.can_send(window + 1));
        sender.spend(window).unwrap();
        receiver.receive(window).unwrap();
        assert_eq!(sender.spend(1), Err(CreditFault::Overdraw));
        assert_eq!(receiver.receive(1), Err(CreditFault::Overdraw));
        assert_eq!(sender.credit(0), Err(CreditFault::Amount));
        assert_eq!(
            sender.credit(MIN_UPLOAD_WINDOW + 1),
            Err(CreditFault::Excess)
        );
        receiver.accept(window);
        assert_eq!(receiver.take_due(false), Some(MIN_UPLOAD_WINDOW));
        sender.credit(MIN_UPLOAD_WINDOW).unwrap();
        assert_eq!((sender.outstanding(), receiver.outstanding()), (0, 0));
    }

    #[test]
    fn joins_credit_until_a_quarter_or_a_flush() {
        let mut receiver = UploadReceiver::default();
        let quarter = (MAX_UPLOAD_WINDOW / 4) as usize;
        receiver.receive(quarter).unwrap();
        assert_eq!(receiver.take_due(true), None);
        receiver.accept(quarter - 1);
        assert_eq!(receiver.take_due(false), None);
        receiver.accept(usize::MAX);
        assert_eq!(receiver.take_due(false), Some(MAX_UPLOAD_WINDOW / 4));
        receiver.receive(1).unwrap();
        receiver.accept(1);
        assert_eq!(receiver.take_due(false), None);
        assert_eq!(receiver.take_due(true), Some(1));
    }

    #[test]
    fn rejects_windows_outside_their_range() {
        for window in [0, MIN_UPLOAD_WINDOW - 1, MAX_UPLOAD_WINDOW + 1, u32::MAX] {
            assert_eq!(UploadSender::new(window), Err(CreditFault::Window));
            assert_eq!(UploadReceiver::new(window), Err(CreditFault::Window));
        }
    }
}
