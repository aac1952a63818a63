//! A payload with room in front of it.

/// Bytes kept free in front of a payload: a frame header (at most 14 bytes, RFC 6455 section 5.2) is written there in place.
pub const HEADROOM: usize = 16;

/// A growable payload whose front can be extended and cut without moving the rest.
///
/// ```text
///  bytes:  | headroom            | payload                    |
///          0                     start                        bytes.len()
/// ```
///
/// An empty new buffer owns no memory. Growth is driven by the bytes that arrive (amortised doubling), never by a length a
/// peer declared.
pub struct Buffer {
    bytes: Vec<u8>,
    /// Where the payload begins: `HEADROOM` at first, more after `drop_front`, less after `prepend`. May lie past the end
    /// of `bytes` while there is no payload, so that an empty buffer needs no allocation.
    start: usize,
}

impl Default for Buffer {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            start: HEADROOM,
        }
    }
}

impl Buffer {
    /// An empty buffer that owns no memory yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// The payload, writable.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }

    /// Payload length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len().saturating_sub(self.start)
    }

    /// Whether there is no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes free in front of the payload.
    pub fn headroom(&self) -> usize {
        self.start
    }

    /// Bytes of memory held, headroom included.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Forgets the payload and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.start = HEADROOM;
    }

    /// Appends to the payload.
    pub fn extend(&mut self, more: &[u8]) {
        self.growable().extend_from_slice(more);
    }

    /// Drops the first `n` payload bytes in place; they become headroom. More than there is empties the payload.
    pub fn drop_front(&mut self, n: usize) {
        if n >= self.len() {
            self.clear();
        } else {
            self.start += n;
        }
    }

    /// Drops every payload byte after the first `n`.
    pub fn truncate(&mut self, n: usize) {
        if n < self.len() {
            self.bytes.truncate(self.start.saturating_add(n));
        }
    }

    /// Puts `front` before the payload: in place when the headroom holds it, else by moving the payload once.
    pub fn prepend(&mut self, front: &[u8]) {
        self.growable();
        if self.start < front.len() {
            let missing = front.len() - self.start;
            self.bytes.splice(0..0, std::iter::repeat_n(0, missing));
            self.start += missing;
        }
        let begin = self.start - front.len();
        if let Some(room) = self.bytes.get_mut(begin..self.start) {
            room.copy_from_slice(front);
        }
        self.start = begin;
    }

    /// Gives memory back: all of it when the payload is empty and more than `IDLE_CAPACITY` is held, else what exceeds
    /// twice the payload.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            self.clear();
            if self.bytes.capacity() > IDLE_CAPACITY {
                self.bytes = Vec::new();
            }
        } else if self.bytes.capacity() > IDLE_CAPACITY
            && self.bytes.capacity() / 2 > self.bytes.len()
        {
            self.bytes.shrink_to_fit();
        }
    }

    /// The backing vector, headroom in place, for a read that appends. Callers only append.
    pub(crate) fn growable(&mut self) -> &mut Vec<u8> {
        if self.bytes.len() < self.start {
            self.bytes.resize(self.start, 0);
        }
        &mut self.bytes
    }
}

impl From<&[u8]> for Buffer {
    fn from(payload: &[u8]) -> Self {
        let mut buffer = Self::new();
        buffer.extend(payload);
        buffer
    }
}

impl std::fmt::Debug for Buffer {
    /// Sizes only: payloads never reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len())
            .field("headroom", &self.headroom())
            .field("capacity", &self.capacity())
            .finish()
    }
}

/// Memory an empty buffer may keep when its owner goes idle, in bytes: small controls then need no allocation.
const IDLE_CAPACITY: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_buffer_owns_nothing() {
        let buffer = Buffer::new();
        assert_eq!(buffer.payload(), b"");
        assert_eq!(
            (buffer.len(), buffer.capacity(), buffer.headroom()),
            (0, 0, HEADROOM)
        );
    }

    #[test]
    fn dropped_front_serves_as_headroom() {
        let mut buffer = Buffer::from(b"mrt\x01\x01body".as_slice());
        buffer.drop_front(5);
        assert_eq!(
            (buffer.payload(), buffer.headroom()),
            (b"body".as_slice(), HEADROOM + 5)
        );
        buffer.prepend(&[7; 14]);
        assert_eq!(buffer.headroom(), HEADROOM + 5 - 14);
        assert_eq!(buffer.payload(), [&[7; 14][..], b"body"].concat());
    }

    #[test]
    fn prepend_without_room_moves_the_payload() {
        let mut buffer = Buffer::from(b"body".as_slice());
        buffer.prepend(&[1; HEADROOM]);
        buffer.prepend(&[2; 3]);
        assert_eq!(
            buffer.payload(),
            [&[2; 3][..], &[1; HEADROOM], b"body"].concat()
        );
        let mut empty = Buffer::new();
        empty.prepend(b"x");
        assert_eq!(empty.payload(), b"x");
    }

    #[test]
    fn dropping_everything_resets() {
        for n in [4, 5, usize::MAX] {
            let mut buffer = Buffer::from(b"body".as_slice());
            buffer.drop_front(n);
            assert_eq!((buffer.len(), buffer.headroom()), (0, HEADROOM));
            buffer.extend(b"next");
            assert_eq!(buffer.payload(), b"next");
        }
    }

    #[test]
    fn truncates_payload_only() {
        let mut buffer = Buffer::from(b"body".as_slice());
        buffer.truncate(9);
        assert_eq!(buffer.payload(), b"body");
        buffer.drop_front(1);
        buffer.truncate(2);
        assert_eq!(buffer.payload(), b"od");
        buffer.truncate(0);
        assert!(buffer.is_empty());
        Buffer::new().truncate(0);
    }

    #[test]
    fn shrink_returns_memory_when_idle() {
        let mut buffer = Buffer::from(vec![1; 32 * 1024].as_slice());
        buffer.shrink();
        assert_eq!(buffer.len(), 32 * 1024);
        buffer.truncate(10);
        buffer.shrink();
        assert_eq!(buffer.payload(), [1; 10]);
        assert!(buffer.capacity() < 1024);
        buffer.extend(&[1; 4096]);
        buffer.clear();
        assert!(buffer.capacity() >= 4096);
        buffer.shrink();
        assert_eq!(buffer.capacity(), 0);
    }
}
