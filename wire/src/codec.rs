//! Bounded reader and writer of fixed binary records.
//!
//! A record is a four-byte ASCII tag and then fields in a fixed order, integers big-endian. The same fields serve the
//! canonical records of `docs/protocol.md` section 6 and the packets between roles. There is one encoding of every
//! value: a reader refuses what a writer would not have produced, and [`Reader::finish`] proves that nothing is left.

use thiserror::Error;

/// Bytes of the longest canonical record, its signature included. A link carries each in one message of this size.
pub const MAX_RECORD_LEN: usize = 4096;

/// Bytes of the longest text field; the shortest has one.
pub const MAX_TEXT_LEN: usize = 256;

/// Bytes of the longest blob field; a blob may be empty.
pub const MAX_BLOB_LEN: usize = 4096;

/// Largest time, sequence number or epoch: the largest integer that every JSON peer represents exactly.
pub const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;

/// Bytes of the tag that opens a record.
pub const TAG_LEN: usize = 4;

const _: () = assert!(MAX_TEXT_LEN <= u16::MAX as usize);
const _: () = assert!(MAX_BLOB_LEN <= u16::MAX as usize);

/// Takes the fields of one record off a byte slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Opens a canonical record: at most [`MAX_RECORD_LEN`] bytes that begin with `tag`.
    ///
    /// # Errors
    /// [`DecodeError::TooLong`], [`DecodeError::Truncated`] or [`DecodeError::WrongTag`].
    pub fn new(bytes: &'a [u8], tag: &[u8; TAG_LEN]) -> Result<Self, DecodeError> {
        Self::with_limit(bytes, tag, MAX_RECORD_LEN)
    }

    /// Opens a packet of at most `max` bytes, tag included, that begins with `tag`.
    ///
    /// # Errors
    /// As [`Reader::new`].
    pub fn with_limit(
        bytes: &'a [u8],
        tag: &[u8; TAG_LEN],
        max: usize,
    ) -> Result<Self, DecodeError> {
        if bytes.len() > max {
            return Err(DecodeError::TooLong);
        }
        let mut reader = Self { rest: bytes };
        if reader.fixed::<TAG_LEN>()? != *tag {
            return Err(DecodeError::WrongTag);
        }
        Ok(reader)
    }

    /// Opens bytes that carry no tag.
    pub(crate) fn untagged(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Takes exactly `N` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (field, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*field)
    }

    /// Takes one byte.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.fixed().map(u8::from_be_bytes)
    }

    /// Takes a two-byte integer.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.fixed().map(u16::from_be_bytes)
    }

    /// Takes a four-byte integer.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.fixed().map(u32::from_be_bytes)
    }

    /// Takes an eight-byte integer of at most [`MAX_SAFE_INTEGER`]: a Unix second, a sequence number or an epoch.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] or [`DecodeError::UnsafeInteger`].
    pub fn time(&mut self) -> Result<u64, DecodeError> {
        let value = self.fixed().map(u64::from_be_bytes)?;
        if value > MAX_SAFE_INTEGER {
            return Err(DecodeError::UnsafeInteger);
        }
        Ok(value)
    }

    /// Takes a text: a two-byte length, then 1 to [`MAX_TEXT_LEN`] printable ASCII bytes (`!` to `~`).
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], [`DecodeError::TextLength`] or [`DecodeError::TextByte`].
    pub fn text(&mut self) -> Result<&'a str, DecodeError> {
        let length = usize::from(self.u16()?);
        if length == 0 || length > MAX_TEXT_LEN {
            return Err(DecodeError::TextLength);
        }
        let bytes = self.take(length)?;
        if !bytes.iter().all(u8::is_ascii_graphic) {
            return Err(DecodeError::TextByte);
        }
        std::str::from_utf8(bytes).map_err(|_| DecodeError::TextByte)
    }

    /// Takes a blob: a two-byte length, then at most [`MAX_BLOB_LEN`] bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] or [`DecodeError::BlobLength`].
    pub fn blob(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::from(self.u16()?);
        if length > MAX_BLOB_LEN {
            return Err(DecodeError::BlobLength);
        }
        self.take(length)
    }

    /// Proves that the record ends here.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`].
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Trailing)
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (field, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(field)
    }
}

/// Builds one record field by field. The first field that does not fit is remembered and reported by
/// [`Writer::finish`], so that a chain of fields needs one check.
#[derive(Debug, Clone)]
pub struct Writer {
    bytes: Vec<u8>,
    max: usize,
    fault: Option<EncodeError>,
}

impl Writer {
    /// Begins a canonical record: at most [`MAX_RECORD_LEN`] bytes, opened by `tag`.
    pub fn new(tag: &[u8; TAG_LEN]) -> Self {
        Self::with_limit(tag, MAX_RECORD_LEN)
    }

    /// Begins a packet of at most `max` bytes, tag included.
    pub fn with_limit(tag: &[u8; TAG_LEN], max: usize) -> Self {
        Self {
            bytes: tag.to_vec(),
            max,
            fault: None,
        }
    }

    /// Appends bytes as they are; the reader knows their number.
    #[must_use]
    pub fn fixed(mut self, bytes: &[u8]) -> Self {
        if self.bytes.len().saturating_add(bytes.len()) > self.max {
            return self.fail(EncodeError::TooLong);
        }
        if self.fault.is_none() {
            self.bytes.extend_from_slice(bytes);
        }
        self
    }

    /// Appends one byte.
    #[must_use]
    pub fn u8(self, value: u8) -> Self {
        self.fixed(&[value])
    }

    /// Appends a two-byte integer.
    #[must_use]
    pub fn u16(self, value: u16) -> Self {
        self.fixed(&value.to_be_bytes())
    }

    /// Appends a four-byte integer.
    #[must_use]
    pub fn u32(self, value: u32) -> Self {
        self.fixed(&value.to_be_bytes())
    }

    /// Appends an eight-byte integer of at most [`MAX_SAFE_INTEGER`].
    #[must_use]
    pub fn time(self, value: u64) -> Self {
        if value > MAX_SAFE_INTEGER {
            return self.fail(EncodeError::UnsafeInteger);
        }
        self.fixed(&value.to_be_bytes())
    }

    /// Appends a text of 1 to [`MAX_TEXT_LEN`] printable ASCII bytes (`!` to `~`) behind its two-byte length.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        if text.is_empty() || text.len() > MAX_TEXT_LEN {
            return self.fail(EncodeError::TextLength);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return self.fail(EncodeError::TextByte);
        }
        self.counted(text.as_bytes(), EncodeError::TextLength)
    }

    /// Appends a blob of at most [`MAX_BLOB_LEN`] bytes behind its two-byte length.
    #[must_use]
    pub fn blob(self, blob: &[u8]) -> Self {
        if blob.len() > MAX_BLOB_LEN {
            return self.fail(EncodeError::BlobLength);
        }
        self.counted(blob, EncodeError::BlobLength)
    }

    /// The record's bytes.
    ///
    /// # Errors
    /// The fault of the first field that did not fit.
    pub fn finish(self) -> Result<Vec<u8>, EncodeError> {
        match self.fault {
            None => Ok(self.bytes),
            Some(fault) => Err(fault),
        }
    }

    fn counted(self, bytes: &[u8], fault: EncodeError) -> Self {
        match u16::try_from(bytes.len()) {
            Ok(length) => self.u16(length).fixed(bytes),
            Err(_) => self.fail(fault),
        }
    }

    fn fail(mut self, fault: EncodeError) -> Self {
        self.fault.get_or_insert(fault);
        self
    }
}

/// Why bytes are not a record of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum DecodeError {
    /// The record is longer than its kind allows.
    #[error("record too long")]
    TooLong,
    /// The record ends inside a field.
    #[error("record truncated")]
    Truncated,
    /// The first four bytes are not the tag of the expected kind.
    #[error("wrong record tag")]
    WrongTag,
    /// Bytes follow the last field.
    #[error("bytes after the last field")]
    Trailing,
    /// A text is empty or longer than [`MAX_TEXT_LEN`].
    #[error("text length out of range")]
    TextLength,
    /// A text has a byte outside printable ASCII.
    #[error("text byte out of range")]
    TextByte,
    /// A blob is longer than its field allows.
    #[error("blob too long")]
    BlobLength,
    /// An integer is past [`MAX_SAFE_INTEGER`].
    #[error("integer out of range")]
    UnsafeInteger,
    /// A text that must be a canonical DID is not one.
    #[error("not a canonical DID")]
    Did,
    /// A field that may only have certain values has another.
    #[error("field value out of range")]
    Value,
}

/// Why fields cannot be written as a record. Always a mistake of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum EncodeError {
    /// The record would be longer than its kind allows.
    #[error("record too long")]
    TooLong,
    /// A text is empty or longer than [`MAX_TEXT_LEN`].
    #[error("text length out of range")]
    TextLength,
    /// A text has a byte outside printable ASCII.
    #[error("text byte out of range")]
    TextByte,
    /// A blob is longer than its field allows.
    #[error("blob too long")]
    BlobLength,
    /// An integer is past [`MAX_SAFE_INTEGER`].
    #[error("integer out of range")]
    UnsafeInteger,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAG: &[u8; 4] = b"tst1";

    fn sample() -> Vec<u8> {
        Writer::new(TAG)
            .u8(1)
            .u16(2)
            .u32(3)
            .time(4)
            .text("five")
            .blob(b"")
            .fixed(&[7; 3])
            .finish()
            .expect("sample")
    }

    fn read(bytes: &[u8]) -> Result<(), DecodeError> {
        let mut reader = Reader::new(bytes, TAG)?;
        reader.u8()?;
        reader.u16()?;
        reader.u32()?;
        reader.time()?;
        reader.text()?;
        reader.blob()?;
        reader.fixed::<3>()?;
        reader.finish()
    }

    #[test]
    fn reads_what_was_written_and_refuses_every_other_length() {
        let bytes = sample();
        assert_eq!(read(&bytes), Ok(()));
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), Err(DecodeError::Truncated));
        }
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(read(&longer), Err(DecodeError::Trailing));
    }

    #[test]
    fn refuses_a_wrong_tag_and_an_over_long_record() {
        assert_eq!(Reader::new(b"tst2", TAG).err(), Some(DecodeError::WrongTag));
        let mut bytes = TAG.to_vec();
        bytes.resize(MAX_RECORD_LEN, 0);
        assert!(Reader::new(&bytes, TAG).is_ok());
        bytes.push(0);
        assert_eq!(Reader::new(&bytes, TAG).err(), Some(DecodeError::TooLong));
        assert!(Reader::with_limit(&bytes, TAG, MAX_RECORD_LEN + 1).is_ok());
    }

    #[test]
    fn bounds_texts() {
        let write = |text: &str| Writer::new(TAG).text(text).finish();
        assert_eq!(write(""), Err(EncodeError::TextLength));
        assert!(write(&"a".repeat(MAX_TEXT_LEN)).is_ok());
        assert_eq!(
            write(&"a".repeat(MAX_TEXT_LEN + 1)),
            Err(EncodeError::TextLength)
        );
        for text in ["a b", "a\n", "a\u{7f}", "ä"] {
            assert_eq!(write(text), Err(EncodeError::TextByte));
        }
        for (field, fault) in [
            (&b"\x00\x00"[..], DecodeError::TextLength),
            (&b"\x01\x01"[..], DecodeError::TextLength),
            (&b"\x00\x01 "[..], DecodeError::TextByte),
            (&b"\x00\x01\x7f"[..], DecodeError::TextByte),
            (&b"\x00\x01\xff"[..], DecodeError::TextByte),
            (&b"\x00\x02a"[..], DecodeError::Truncated),
        ] {
            let bytes = [TAG.as_slice(), field].concat();
            let mut reader = Reader::new(&bytes, TAG).expect("tag");
            assert_eq!(reader.text(), Err(fault));
        }
    }

    #[test]
    fn bounds_blobs_and_integers() {
        let long = vec![0; MAX_BLOB_LEN + 1];
        let write = |blob: &[u8]| {
            Writer::with_limit(TAG, 2 * MAX_BLOB_LEN)
                .blob(blob)
                .finish()
        };
        assert!(write(&long[..MAX_BLOB_LEN]).is_ok());
        assert_eq!(write(&long), Err(EncodeError::BlobLength));
        let bytes = [TAG.as_slice(), b"\x10\x01"].concat();
        let mut reader = Reader::new(&bytes, TAG).expect("tag");
        assert_eq!(reader.blob(), Err(DecodeError::BlobLength));
        assert!(Writer::new(TAG).time(MAX_SAFE_INTEGER).finish().is_ok());
        assert_eq!(
            Writer::new(TAG).time(MAX_SAFE_INTEGER + 1).finish(),
            Err(EncodeError::UnsafeInteger)
        );
        let bytes = [TAG.as_slice(), &(MAX_SAFE_INTEGER + 1).to_be_bytes()].concat();
        let mut reader = Reader::new(&bytes, TAG).expect("tag");
        assert_eq!(reader.time(), Err(DecodeError::UnsafeInteger));
    }

    #[test]
    fn reports_the_first_fault_and_never_passes_the_limit() {
        let result = Writer::new(TAG).text("").time(u64::MAX).finish();
        assert_eq!(result, Err(EncodeError::TextLength));
        let result = Writer::with_limit(TAG, 5).u8(0).u8(0).finish();
        assert_eq!(result, Err(EncodeError::TooLong));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let tagged = [TAG.as_slice(), &bytes].concat();
            let _ = read(&bytes);
            let _ = read(&tagged);
        }
    }
}
