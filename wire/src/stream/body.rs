//! Where a stream stands between a header and its completion.

use super::{MAX_BODY_LEN, MAX_CHUNK_LEN, MAX_CHUNKS, StreamFault};

/// The state of one direction of one socket: idle, or inside the one body that may be active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BodyProgress {
    /// `None` while idle.
    active: Option<Active>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Active {
    remaining: u32,
    chunks_left: u32,
}

impl BodyProgress {
    /// An idle stream.
    pub const fn new() -> Self {
        Self { active: None }
    }

    /// Idle to active: a header declared `bytes` of body.
    ///
    /// # Errors
    ///
    /// [`StreamFault::HeaderInsideBody`] when a body is active, [`StreamFault::BodyLength`] when `bytes` is zero or over
    /// [`MAX_BODY_LEN`].
    pub fn begin(&mut self, bytes: u32) -> Result<(), StreamFault> {
        if self.active.is_some() {
            return Err(StreamFault::HeaderInsideBody);
        }
        if !(1..=MAX_BODY_LEN).contains(&bytes) {
            return Err(StreamFault::BodyLength);
        }
        self.active = Some(Active {
            remaining: bytes,
            chunks_left: MAX_CHUNKS,
        });
        Ok(())
    }

    /// Active to active: a chunk of `len` body bytes. Returns the bytes that are still to come.
    ///
    /// # Errors
    ///
    /// [`StreamFault::NoBody`] while idle, [`StreamFault::RecordLength`] when `len` is zero or over [`MAX_CHUNK_LEN`],
    /// [`StreamFault::TooManyChunks`], [`StreamFault::Overrun`].
    pub fn chunk(&mut self, len: usize) -> Result<u32, StreamFault> {
        let active = self.active.as_mut().ok_or(StreamFault::NoBody)?;
        if !(1..=MAX_CHUNK_LEN).contains(&len) {
            return Err(StreamFault::RecordLength);
        }
        let chunks_left = active
            .chunks_left
            .checked_sub(1)
            .ok_or(StreamFault::TooManyChunks)?;
        let remaining = u32::try_from(len)
            .ok()
            .and_then(|len| active.remaining.checked_sub(len))
            .ok_or(StreamFault::Overrun)?;
        *active = Active {
            remaining,
            chunks_left,
        };
        Ok(remaining)
    }

    /// Active to idle: the completion record.
    ///
    /// # Errors
    ///
    /// [`StreamFault::NoBody`] while idle, [`StreamFault::Truncated`] when bytes are still to come.
    pub fn complete(&mut self) -> Result<(), StreamFault> {
        match self.active {
            None => Err(StreamFault::NoBody),
            Some(Active { remaining: 0, .. }) => {
                self.active = None;
                Ok(())
            }
            Some(_) => Err(StreamFault::Truncated),
        }
    }

    /// Whether a header was seen whose completion was not.
    pub const fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Body bytes still to come; zero while idle.
    pub const fn remaining(&self) -> u32 {
        match self.active {
            Some(active) => active.remaining,
            None => 0,
        }
    }
}

/// Collects a body. What it holds grows with the bytes received: a header alone reserves nothing.
#[derive(Debug, Default)]
pub struct BodyAssembler {
    progress: BodyProgress,
    declared: usize,
    body: Vec<u8>,
}

impl BodyAssembler {
    /// An idle assembler.
    pub const fn new() -> Self {
        Self {
            progress: BodyProgress::new(),
            declared: 0,
            body: Vec::new(),
        }
    }

    /// As [`BodyProgress::begin`].
    ///
    /// # Errors
    ///
    /// As [`BodyProgress::begin`].
    pub fn begin(&mut self, bytes: u32) -> Result<(), StreamFault> {
        self.progress.begin(bytes)?;
        self.declared = usize::try_from(bytes).map_err(|_| StreamFault::BodyLength)?;
        self.body = Vec::new();
        Ok(())
    }

    /// Takes up the bytes of one chunk; returns how many are still to come.
    ///
    /// # Errors
    ///
    /// As [`BodyProgress::chunk`].
    pub fn chunk(&mut self, bytes: &[u8]) -> Result<u32, StreamFault> {
        let remaining = self.progress.chunk(bytes.len())?;
        let free = self.body.capacity() - self.body.len();
        if free < bytes.len() {
            // Doubling keeps copies few; the declared length keeps the last doubling from overshooting.
            let doubled = self.body.capacity().saturating_mul(2);
            let wanted = doubled
                .min(self.declared)
                .max(self.body.len().saturating_add(bytes.len()));
            self.body
                .reserve_exact(wanted.saturating_sub(self.body.len()));
        }
        self.body.extend_from_slice(bytes);
        Ok(remaining)
    }

    /// Ends the body and hands it over.
    ///
    /// # Errors
    ///
    /// As [`BodyProgress::complete`].
    pub fn complete(&mut self) -> Result<Vec<u8>, StreamFault> {
        self.progress.complete()?;
        Ok(std::mem::take(&mut self.body))
    }

    /// Whether a header was seen whose completion was not.
    pub const fn is_active(&self) -> bool {
        self.progress.is_active()
    }

    /// Body bytes still to come; zero while idle.
    pub const fn remaining(&self) -> u32 {
        self.progress.remaining()
    }

    /// Body bytes received so far.
    pub const fn received(&self) -> usize {
        self.body.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_from_header_to_completion() {
        let mut body = BodyProgress::new();
        assert_eq!(body.chunk(1), Err(StreamFault::NoBody));
        assert_eq!(body.complete(), Err(StreamFault::NoBody));
        assert_eq!(body.begin(0), Err(StreamFault::BodyLength));
        assert_eq!(body.begin(MAX_BODY_LEN + 1), Err(StreamFault::BodyLength));
        body.begin(10).unwrap();
        assert_eq!(body.begin(10), Err(StreamFault::HeaderInsideBody));
        assert_eq!(body.chunk(4), Ok(6));
        assert_eq!(body.complete(), Err(StreamFault::Truncated));
        assert_eq!(body.chunk(7), Err(StreamFault::Overrun));
        assert_eq!(body.chunk(0), Err(StreamFault::RecordLength));
        assert_eq!(body.chunk(6), Ok(0));
        assert_eq!(body.chunk(1), Err(StreamFault::Overrun));
        body.complete().unwrap();
        assert!(!body.is_active());
    }

    #[test]
    fn bounds_the_number_of_chunks() {
        let mut body = BodyProgress::new();
        body.begin(MAX_CHUNKS + 1).unwrap();
        for _ in 0..MAX_CHUNKS {
            body.chunk(1).unwrap();
        }
        assert_eq!(body.chunk(1), Err(StreamFault::TooManyChunks));
    }

    #[test]
    fn allocates_with_what_was_received() {
        let mut body = BodyAssembler::new();
        body.begin(MAX_BODY_LEN).unwrap();
        assert_eq!(body.body.capacity(), 0);
        for _ in 0..256 {
            body.chunk(&[7; MAX_CHUNK_LEN]).unwrap();
            assert!(body.body.capacity() <= body.received().saturating_mul(2));
            assert!(body.body.capacity() <= MAX_BODY_LEN as usize);
        }
        assert_eq!(body.complete().unwrap().len(), MAX_BODY_LEN as usize);
        assert_eq!(body.received(), 0);
    }
}
