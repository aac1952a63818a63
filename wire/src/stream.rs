//! Streaming records `mrt\x01`: a message cut into a header, chunks and a completion (protocol section 5).
//!
//! One binary WebSocket message carries one record:
//!
//! ```text
//! 6d 72 74 01 | kind | payload
//!               0      JSON header, the whole record at most 4,096 bytes
//!               1      1..=32,768 bytes of the body
//!               2      nothing; only after exactly the declared bytes
//! ```

mod body;
mod header;

pub use body::{BodyAssembler, BodyProgress};
pub use header::{Direction, Header, Route, has_did_shape};

/// Bytes in front of every payload: four of magic and the kind.
pub const RECORD_PREFIX_LEN: usize = 5;

/// Bytes of a header record, prefix included.
pub const MAX_HEADER_RECORD_LEN: usize = 4096;

/// Body bytes of one chunk.
pub const MAX_CHUNK_LEN: usize = 32_768;

/// Bytes of the longest record: a full chunk with its prefix.
pub const MAX_STREAM_RECORD_LEN: usize = RECORD_PREFIX_LEN + MAX_CHUNK_LEN;

/// Chunks of one message.
pub const MAX_CHUNKS: u32 = 512;

/// Body bytes of one message: 8 MiB.
pub const MAX_BODY_LEN: u32 = 8 << 20;

/// The record that ends a body.
pub const COMPLETION: [u8; RECORD_PREFIX_LEN] = prefix(KIND_COMPLETION);

const MAGIC: [u8; 4] = *b"mrt\x01";
const KIND_HEADER: u8 = 0;
const KIND_CHUNK: u8 = 1;
const KIND_COMPLETION: u8 = 2;

/// One record, still in the bytes it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// The JSON of a header, not yet parsed.
    Header(&'a [u8]),
    /// Body bytes; at least one.
    Chunk(&'a [u8]),
    /// The end of the body.
    Completion,
}

/// Why a record, or its place in the stream, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum StreamFault {
    /// Too short for a prefix, or the magic is wrong.
    #[error("record-magic")]
    Magic,
    /// The kind is unknown.
    #[error("record-kind")]
    Kind,
    /// A header or chunk record longer than its bound, an empty chunk, or a completion with a payload.
    #[error("record-length")]
    RecordLength,
    /// The header is not UTF-8 or not JSON.
    #[error("header-syntax")]
    HeaderSyntax,
    /// The header has a member twice.
    #[error("header-duplicate-key")]
    DuplicateKey,
    /// The header has a member that is not defined, or not in this direction.
    #[error("header-member")]
    Member,
    /// The header lacks a required member.
    #[error("header-incomplete")]
    Incomplete,
    /// A member of the header has a value outside its type or range.
    #[error("header-value")]
    Value,
    /// The declared length is zero or over [`MAX_BODY_LEN`].
    #[error("body-length")]
    BodyLength,
    /// A header inside a body.
    #[error("header-inside-body")]
    HeaderInsideBody,
    /// A chunk or a completion without a header.
    #[error("no-body")]
    NoBody,
    /// A chunk reaches past the declared length.
    #[error("body-overrun")]
    Overrun,
    /// A body of more than [`MAX_CHUNKS`] chunks.
    #[error("too-many-chunks")]
    TooManyChunks,
    /// A completion before the declared length.
    #[error("body-truncated")]
    Truncated,
}

impl StreamFault {
    /// The fixed reason of this fault, the same in log, metric and test.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Magic => "record-magic",
            Self::Kind => "record-kind",
            Self::RecordLength => "record-length",
            Self::HeaderSyntax => "header-syntax",
            Self::DuplicateKey => "header-duplicate-key",
            Self::Member => "header-member",
            Self::Incomplete => "header-incomplete",
            Self::Value => "header-value",
            Self::BodyLength => "body-length",
            Self::HeaderInsideBody => "header-inside-body",
            Self::NoBody => "no-body",
            Self::Overrun => "body-overrun",
            Self::TooManyChunks => "too-many-chunks",
            Self::Truncated => "body-truncated",
        }
    }
}

/// Takes the prefix off one binary message and checks its length for its kind.
///
/// # Errors
///
/// [`StreamFault::Magic`], [`StreamFault::Kind`] or [`StreamFault::RecordLength`].
pub fn decode_record(bytes: &[u8]) -> Result<Record<'_>, StreamFault> {
    let (magic, rest) = bytes.split_first_chunk().ok_or(StreamFault::Magic)?;
    if *magic != MAGIC {
        return Err(StreamFault::Magic);
    }
    let (kind, payload) = rest.split_first().ok_or(StreamFault::Kind)?;
    match *kind {
        KIND_HEADER if bytes.len() <= MAX_HEADER_RECORD_LEN => Ok(Record::Header(payload)),
        KIND_CHUNK if (1..=MAX_CHUNK_LEN).contains(&payload.len()) => Ok(Record::Chunk(payload)),
        KIND_COMPLETION if payload.is_empty() => Ok(Record::Completion),
        KIND_HEADER | KIND_CHUNK | KIND_COMPLETION => Err(StreamFault::RecordLength),
        _ => Err(StreamFault::Kind),
    }
}

/// What stands in front of the body bytes of a chunk record.
pub const fn chunk_prefix() -> [u8; RECORD_PREFIX_LEN] {
    prefix(KIND_CHUNK)
}

const fn prefix(kind: u8) -> [u8; RECORD_PREFIX_LEN] {
    let [m, r, t, version] = MAGIC;
    [m, r, t, version, kind]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rejects_every_prefix_of_a_record_but_its_own_kinds() {
        assert_eq!(decode_record(b""), Err(StreamFault::Magic));
        assert_eq!(decode_record(b"mrt"), Err(StreamFault::Magic));
        assert_eq!(decode_record(b"mrc\x01\x00"), Err(StreamFault::Magic));
        assert_eq!(decode_record(b"mrt\x01"), Err(StreamFault::Kind));
        assert_eq!(decode_record(b"mrt\x01\x03"), Err(StreamFault::Kind));
        assert_eq!(decode_record(&COMPLETION), Ok(Record::Completion));
        assert_eq!(
            decode_record(b"mrt\x01\x02x"),
            Err(StreamFault::RecordLength)
        );
        assert_eq!(
            decode_record(&chunk_prefix()),
            Err(StreamFault::RecordLength)
        );
        assert_eq!(decode_record(b"mrt\x01\x01x"), Ok(Record::Chunk(b"x")));
    }

    #[test]
    fn holds_each_kind_to_its_length() {
        for (kind, most) in [
            (KIND_HEADER, MAX_HEADER_RECORD_LEN),
            (KIND_CHUNK, MAX_STREAM_RECORD_LEN),
        ] {
            let mut record = prefix(kind).to_vec();
            record.resize(most, b'x');
            assert!(decode_record(&record).is_ok());
            record.push(b'x');
            assert_eq!(decode_record(&record), Err(StreamFault::RecordLength));
        }
    }

    proptest! {
        #[test]
        fn never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64), magic: bool) {
            let mut record = if magic { MAGIC.to_vec() } else { Vec::new() };
            record.extend(bytes);
            let _ = decode_record(&record);
        }
    }
}
