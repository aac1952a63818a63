//! UTF-8 of a text that arrives in parts, cut anywhere.

use super::FrameFault;

/// Checks a text part by part, so that a fragmented message need not be held to be checked and a fault is found at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Utf8Check {
    /// The start of a character whose rest has not come: at most three bytes.
    open: [u8; 4],
    open_len: usize,
}

impl Utf8Check {
    /// The start of a text.
    pub const fn new() -> Self {
        Self {
            open: [0; 4],
            open_len: 0,
        }
    }

    /// Takes up the next bytes of the text.
    ///
    /// # Errors
    ///
    /// [`FrameFault::InvalidUtf8`] as soon as no continuation could make the text valid.
    pub fn feed(&mut self, mut part: &[u8]) -> Result<(), FrameFault> {
        while self.open_len > 0 {
            let Some((byte, rest)) = part.split_first() else {
                return Ok(());
            };
            let slot = self
                .open
                .get_mut(self.open_len)
                .ok_or(FrameFault::InvalidUtf8)?;
            *slot = *byte;
            self.open_len += 1;
            part = rest;
            let known = self.open.get(..self.open_len).unwrap_or_default();
            match std::str::from_utf8(known) {
                Ok(_) => self.open_len = 0,
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return Err(FrameFault::InvalidUtf8),
            }
        }
        match std::str::from_utf8(part) {
            Ok(_) => Ok(()),
            Err(error) if error.error_len().is_none() => {
                let tail = part.get(error.valid_up_to()..).unwrap_or_default();
                for (slot, byte) in self.open.iter_mut().zip(tail) {
                    *slot = *byte;
                }
                self.open_len = tail.len().min(self.open.len());
                Ok(())
            }
            Err(_) => Err(FrameFault::InvalidUtf8),
        }
    }

    /// The text ended.
    ///
    /// # Errors
    ///
    /// [`FrameFault::InvalidUtf8`] inside a character.
    pub fn finish(&mut self) -> Result<(), FrameFault> {
        match std::mem::take(&mut self.open_len) {
            0 => Ok(()),
            _ => Err(FrameFault::InvalidUtf8),
        }
    }
}
