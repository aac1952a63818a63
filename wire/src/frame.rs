//! WebSocket frames (RFC 6455 section 5): headers, masking, fragmentation and the rules of the payloads.
//!
//! Frames, not messages: a header is decoded as soon as its bytes are there, and what a payload costs is for the caller to
//! charge as its bytes arrive. No extension is ever negotiated, so every reserved bit is an error.

mod close;
mod fragment;
mod mask;
mod utf8;

pub use close::{Close, MAX_CLOSE_REASON_LEN, decode_close, encode_close, is_close_code};
pub use fragment::{FragmentState, Step};
pub use mask::apply_mask;
pub use utf8::Utf8Check;

/// Bytes of the longest frame header: two, eight of length, four of mask.
pub const MAX_HEADER_LEN: usize = 14;

/// Payload bytes of a control frame (RFC 6455 section 5.5).
pub const MAX_CONTROL_LEN: u64 = 125;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// Which end of the connection reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Reads unmasked frames and sends masked ones.
    Client,
    /// Reads masked frames and sends unmasked ones.
    Server,
}

/// The kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// More of the message that is open.
    Continuation,
    /// The start of a text message.
    Text,
    /// The start of a binary message.
    Binary,
    /// The end of the connection.
    Close,
    /// Asks for a pong.
    Ping,
    /// Answers a ping.
    Pong,
}

impl Opcode {
    /// Whether it is a control frame, which may stand between the fragments of a message.
    pub const fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }

    const fn bits(self) -> u8 {
        match self {
            Self::Continuation => 0,
            Self::Text => 1,
            Self::Binary => 2,
            Self::Close => 8,
            Self::Ping => 9,
            Self::Pong => 10,
        }
    }

    const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Continuation),
            1 => Some(Self::Text),
            2 => Some(Self::Binary),
            8 => Some(Self::Close),
            9 => Some(Self::Ping),
            10 => Some(Self::Pong),
            _ => None,
        }
    }
}

/// What stands in front of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whether the frame ends its message.
    pub fin: bool,
    /// Its kind.
    pub opcode: Opcode,
    /// Bytes of payload, below 2^63. As declared by the peer: not to be reserved.
    pub length: u64,
    /// The key its payload is masked with.
    pub mask: Option<[u8; 4]>,
}

/// How a peer broke RFC 6455.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FrameFault {
    /// A reserved bit is set although no extension was negotiated.
    #[error("frame-reserved-bit")]
    ReservedBit,
    /// The opcode is not defined.
    #[error("frame-opcode")]
    Opcode,
    /// A client's frame without a mask, or a server's with one.
    #[error("frame-mask")]
    Mask,
    /// The length is not in its shortest form, or its top bit is set.
    #[error("frame-length")]
    Length,
    /// A control frame in fragments or over [`MAX_CONTROL_LEN`].
    #[error("frame-control")]
    Control,
    /// A continuation with nothing to continue, or a new message inside another.
    #[error("frame-fragment")]
    Fragment,
    /// A close payload of one byte, or with a code that may not be sent.
    #[error("frame-close")]
    Close,
    /// A text or a close reason that is not UTF-8.
    #[error("invalid-utf8")]
    InvalidUtf8,
}

impl FrameFault {
    /// The fixed reason of this fault, the same in log, metric and test.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::ReservedBit => "frame-reserved-bit",
            Self::Opcode => "frame-opcode",
            Self::Mask => "frame-mask",
            Self::Length => "frame-length",
            Self::Control => "frame-control",
            Self::Fragment => "frame-fragment",
            Self::Close => "frame-close",
            Self::InvalidUtf8 => "invalid-utf8",
        }
    }
}

/// Decodes the header at the start of `bytes` for a reader in `role`; gives it with its own length in bytes. `None` when more
/// bytes are needed. Every fault is reported on the first byte that shows it.
///
/// # Errors
///
/// [`FrameFault::ReservedBit`], [`FrameFault::Opcode`], [`FrameFault::Mask`], [`FrameFault::Length`],
/// [`FrameFault::Control`].
pub fn decode_header(bytes: &[u8], role: Role) -> Result<Option<(FrameHeader, usize)>, FrameFault> {
    let Some((&first, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    if first & RESERVED != 0 {
        return Err(FrameFault::ReservedBit);
    }
    let opcode = Opcode::from_bits(first & OPCODE).ok_or(FrameFault::Opcode)?;
    let fin = first & FIN != 0;
    if opcode.is_control() && !fin {
        return Err(FrameFault::Control);
    }
    let Some((&second, rest)) = rest.split_first() else {
        return Ok(None);
    };
    let is_masked = second & MASKED != 0;
    if is_masked != (role == Role::Server) {
        return Err(FrameFault::Mask);
    }
    if opcode.is_control() && u64::from(second & LENGTH) > MAX_CONTROL_LEN {
        return Err(FrameFault::Control);
    }
    let (length, rest) = match second & LENGTH {
        LENGTH_16 => {
            let Some((length, rest)) = rest.split_first_chunk() else {
                return Ok(None);
            };
            match u16::from_be_bytes(*length) {
                0..=125 => return Err(FrameFault::Length),
                length => (u64::from(length), rest),
            }
        }
        LENGTH_64 => {
            let Some((length, rest)) = rest.split_first_chunk() else {
                return Ok(None);
            };
            match u64::from_be_bytes(*length) {
                length @ 0x1_0000..=0x7fff_ffff_ffff_ffff => (length, rest),
                _ => return Err(FrameFault::Length),
            }
        }
        length => (u64::from(length), rest),
    };
    let (mask, rest) = if is_masked {
        let Some((mask, rest)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        (Some(*mask), rest)
    } else {
        (None, rest)
    };
    let header = FrameHeader {
        fin,
        opcode,
        length,
        mask,
    };
    Ok(Some((header, bytes.len().saturating_sub(rest.len()))))
}

/// Encodes a header, its length in the shortest form.
pub fn encode_header(header: &FrameHeader) -> EncodedHeader {
    let mut encoded = EncodedHeader {
        bytes: [0; MAX_HEADER_LEN],
        len: 0,
    };
    let fin = if header.fin { FIN } else { 0 };
    let masked = if header.mask.is_some() { MASKED } else { 0 };
    encoded.push(&[fin | header.opcode.bits()]);
    match header.length {
        length @ 0..=125 => {
            let [.., low] = length.to_be_bytes();
            encoded.push(&[masked | low]);
        }
        length @ 126..=0xffff => {
            let [.., high, low] = length.to_be_bytes();
            encoded.push(&[masked | LENGTH_16, high, low]);
        }
        length => {
            encoded.push(&[masked | LENGTH_64]);
            encoded.push(&length.to_be_bytes());
        }
    }
    if let Some(mask) = &header.mask {
        encoded.push(mask);
    }
    encoded
}

/// A header in its bytes, at most [`MAX_HEADER_LEN`] of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedHeader {
    bytes: [u8; MAX_HEADER_LEN],
    len: usize,
}

impl EncodedHeader {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Appends `part`. The longest header fills the array exactly, so that nothing is ever cut off.
    fn push(&mut self, part: &[u8]) {
        for (slot, byte) in self.bytes.iter_mut().skip(self.len).zip(part) {
            *slot = *byte;
        }
        self.len = self.len.saturating_add(part.len()).min(MAX_HEADER_LEN);
    }
}

#[cfg(test)]
mod tests;
