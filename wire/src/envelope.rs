//! The compression envelope `mcmp` version 2 (protocol section 3).
//!
//! ```text
//! "mcmp" | 02 | expanded length u32 | hint length u16 | hint | one gzip member
//! ```
//!
//! The member is read by hand around a raw deflate stream: that is how its header, its end and its trailer are known to be
//! the only ones. Expansion is bounded while it runs, and memory grows with what came out.

use flate2::{Compress, Compression, Crc, Decompress, FlushCompress, FlushDecompress, Status};

use crate::message::{MAX_EXPANDED_LEN, Message};
use crate::stream::has_did_shape;

/// What every envelope starts with: `mcmp` and the version.
pub const ENVELOPE_MAGIC: [u8; 5] = *b"mcmp\x02";

/// Bytes in front of the hint.
pub const ENVELOPE_HEADER_LEN: usize = 11;

/// Bytes of the shortest gzip member.
pub const MIN_MEMBER_LEN: usize = 18;

/// How many times its gzip member's length a message may expand to.
pub const MAX_EXPANSION: usize = 32;

/// Bytes of the shortest message worth compressing.
pub const MIN_COMPRESSED_LEN: usize = 1024;

/// Bytes of the longest hint that the format has room for.
const MAX_HINT_LEN: usize = 64;

/// A gzip header without optional fields (RFC 1952 section 2.3); time, extra flags and system follow and mean nothing here.
const GZIP_START: [u8; 4] = [0x1f, 0x8b, 0x08, 0x00];
const GZIP_HEADER_LEN: usize = 10;
const GZIP_TRAILER_LEN: usize = 8;
/// No time, no extra flags, unknown system.
const GZIP_HEADER: [u8; GZIP_HEADER_LEN] = [0x1f, 0x8b, 0x08, 0x00, 0, 0, 0, 0, 0, 0xff];

/// Room that expansion starts with, in bytes.
const FIRST_ROOM: usize = 16 << 10;

/// An expanded envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The message, `fvj1:` included; neither its prefix nor its encoding is checked yet.
    pub text: Vec<u8>,
    /// The space it claims to name, of the shape of a DID; [`check_hint`] compares it with the message.
    pub hint: Option<String>,
}

/// Why an envelope is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EnvelopeFault {
    /// It does not start with `mcmp`.
    #[error("envelope-magic")]
    Magic,
    /// Another version than 2.
    #[error("envelope-version")]
    Version,
    /// It ends before its fields, or before the shortest member.
    #[error("envelope-truncated")]
    Truncated,
    /// The hint is not of the shape of a DID, or differs from the message.
    #[error("envelope-hint")]
    Hint,
    /// The expanded length is over its bound, or over 32 times the member's length.
    #[error("envelope-expansion")]
    Expansion,
    /// The member's header has optional fields or another method, its deflate stream is broken, or bytes follow it.
    #[error("envelope-member")]
    Member,
    /// What came out is not as long as declared.
    #[error("envelope-length")]
    Length,
    /// The checksum or the length in the trailer is wrong.
    #[error("envelope-crc")]
    Crc,
}

impl EnvelopeFault {
    /// The fixed reason of this fault, the same in log, metric and test.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Magic => "envelope-magic",
            Self::Version => "envelope-version",
            Self::Truncated => "envelope-truncated",
            Self::Hint => "envelope-hint",
            Self::Expansion => "envelope-expansion",
            Self::Member => "envelope-member",
            Self::Length => "envelope-length",
            Self::Crc => "envelope-crc",
        }
    }
}

/// Puts a message, `fvj1:` included, into an envelope whose hint is its `space`.
///
/// `None` when the message is to be sent as text: under [`MIN_COMPRESSED_LEN`], over 16 MiB, expanding past
/// [`MAX_EXPANSION`], not made smaller, or a space that is no DID.
pub fn encode(text: &[u8], space: Option<&str>) -> Option<Vec<u8>> {
    let hint = space.unwrap_or_default();
    if !(MIN_COMPRESSED_LEN..=MAX_EXPANDED_LEN).contains(&text.len())
        || !(hint.is_empty() || has_did_shape(hint))
    {
        return None;
    }
    let mut envelope = Vec::with_capacity(text.len() / 4);
    envelope.extend_from_slice(&ENVELOPE_MAGIC);
    envelope.extend_from_slice(&u32::try_from(text.len()).ok()?.to_be_bytes());
    envelope.extend_from_slice(&u16::try_from(hint.len()).ok()?.to_be_bytes());
    envelope.extend_from_slice(hint.as_bytes());
    let member_start = envelope.len();
    envelope.extend_from_slice(&GZIP_HEADER);
    // Past this the envelope is not smaller than the text.
    let most = text.len().checked_sub(GZIP_TRAILER_LEN + 1)?;
    deflate(text, &mut envelope, most)?;
    envelope.extend_from_slice(&checksum(text).to_le_bytes());
    envelope.extend_from_slice(&u32::try_from(text.len()).ok()?.to_le_bytes());
    let member_len = envelope.len().checked_sub(member_start)?;
    (text.len() <= member_len.saturating_mul(MAX_EXPANSION)).then_some(envelope)
}

/// Expands an envelope to at most `max_expanded` bytes, and never over 16 MiB.
///
/// # Errors
///
/// The first [`EnvelopeFault`] found, in the order of the format.
pub fn decode(bytes: &[u8], max_expanded: usize) -> Result<Opened, EnvelopeFault> {
    let (magic, rest) = bytes.split_first_chunk().ok_or(EnvelopeFault::Magic)?;
    let [known_magic @ .., known_version] = ENVELOPE_MAGIC;
    if *magic != known_magic {
        return Err(EnvelopeFault::Magic);
    }
    let (version, rest) = rest.split_first().ok_or(EnvelopeFault::Truncated)?;
    if *version != known_version {
        return Err(EnvelopeFault::Version);
    }
    let (expanded, rest) = rest.split_first_chunk().ok_or(EnvelopeFault::Truncated)?;
    let expanded =
        usize::try_from(u32::from_be_bytes(*expanded)).map_err(|_| EnvelopeFault::Expansion)?;
    let (hint_len, rest) = rest.split_first_chunk().ok_or(EnvelopeFault::Truncated)?;
    let hint_len = usize::from(u16::from_be_bytes(*hint_len));
    if hint_len > MAX_HINT_LEN {
        return Err(EnvelopeFault::Hint);
    }
    let (hint, member) = rest
        .split_at_checked(hint_len)
        .ok_or(EnvelopeFault::Truncated)?;
    let hint = match std::str::from_utf8(hint) {
        Ok("") => None,
        Ok(hint) if has_did_shape(hint) => Some(hint.to_owned()),
        _ => return Err(EnvelopeFault::Hint),
    };
    if member.len() < MIN_MEMBER_LEN {
        return Err(EnvelopeFault::Truncated);
    }
    if expanded > max_expanded.min(MAX_EXPANDED_LEN)
        || expanded > member.len().saturating_mul(MAX_EXPANSION)
    {
        return Err(EnvelopeFault::Expansion);
    }
    let text = gunzip(member, expanded)?;
    Ok(Opened { text, hint })
}

/// Compares the hint with the space that the message inside names: equal, or both absent.
///
/// # Errors
///
/// [`EnvelopeFault::Hint`].
pub fn check_hint(opened: &Opened, message: &Message) -> Result<(), EnvelopeFault> {
    if opened.hint == message.space {
        Ok(())
    } else {
        Err(EnvelopeFault::Hint)
    }
}

/// Compresses `text` behind what `out` holds; `None` when `out` would pass `most` bytes.
fn deflate(text: &[u8], out: &mut Vec<u8>, most: usize) -> Option<()> {
    // The fastest level: a message waits for this, and the bodies are JSON, which it already makes several times smaller.
    let mut stream = Compress::new(Compression::fast(), false);
    loop {
        let room = out
            .capacity()
            .max(FIRST_ROOM)
            .min(most.saturating_sub(out.len()));
        if room == 0 {
            return None;
        }
        out.reserve(room);
        let consumed = usize::try_from(stream.total_in()).ok()?;
        let rest = text.get(consumed..)?;
        let status = stream.compress_vec(rest, out, FlushCompress::Finish);
        if out.len() > most {
            return None;
        }
        match status {
            Ok(Status::StreamEnd) => return Some(()),
            Ok(Status::Ok | Status::BufError) => {}
            Err(_) => return None,
        }
    }
}

/// Expands one gzip member to exactly `expanded` bytes.
fn gunzip(member: &[u8], expanded: usize) -> Result<Vec<u8>, EnvelopeFault> {
    if !member.starts_with(&GZIP_START) {
        return Err(EnvelopeFault::Member);
    }
    let body = member.get(GZIP_HEADER_LEN..).unwrap_or_default();
    let (text, used) = inflate(body, expanded)?;
    let trailer = body.get(used..).unwrap_or_default();
    let (crc, rest) = trailer
        .split_first_chunk()
        .ok_or(EnvelopeFault::Truncated)?;
    let (size, rest) = rest.split_first_chunk().ok_or(EnvelopeFault::Truncated)?;
    if !rest.is_empty() {
        return Err(EnvelopeFault::Member);
    }
    let is_size = usize::try_from(u32::from_le_bytes(*size)) == Ok(expanded);
    if u32::from_le_bytes(*crc) != checksum(&text) || !is_size {
        return Err(EnvelopeFault::Crc);
    }
    Ok(text)
}

/// Inflates a raw deflate stream that has to give exactly `expanded` bytes; tells how many bytes of input it took.
fn inflate(body: &[u8], expanded: usize) -> Result<(Vec<u8>, usize), EnvelopeFault> {
    let mut stream = Decompress::new(false);
    let mut text = Vec::new();
    loop {
        let consumed = usize::try_from(stream.total_in()).map_err(|_| EnvelopeFault::Member)?;
        // One byte of room past the declared length: it shows a stream that goes on, and lets one that ends there end.
        let room_left = expanded.saturating_add(1).saturating_sub(text.len());
        text.reserve_exact(text.len().max(FIRST_ROOM).min(room_left));
        let rest = body.get(consumed..).unwrap_or_default();
        let produced_before = text.len();
        let status = stream
            .decompress_vec(rest, &mut text, FlushDecompress::None)
            .map_err(|_| EnvelopeFault::Member)?;
        if text.len() > expanded {
            return Err(EnvelopeFault::Length);
        }
        let consumed_after =
            usize::try_from(stream.total_in()).map_err(|_| EnvelopeFault::Member)?;
        if status == Status::StreamEnd {
            return if text.len() == expanded {
                Ok((text, consumed_after))
            } else {
                Err(EnvelopeFault::Length)
            };
        }
        // There was room, so a step that moves nothing lacks input.
        if text.len() == produced_before && consumed_after == consumed {
            return Err(EnvelopeFault::Truncated);
        }
    }
}

fn checksum(text: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(text);
    crc.sum()
}

#[cfg(test)]
mod tests;
