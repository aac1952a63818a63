//! One encoding per field type, and the macros that make records of fields.

use crate::codec::{DecodeError, Reader, Writer};
use crate::did::Did;
use crate::ids::{Challenge, ContextId, Digest, EpochId, Nonce, Ticket};

/// A value with one place and one encoding in a record.
pub(super) trait Field: Sized {
    /// Appends the value.
    fn put(&self, writer: Writer) -> Writer;

    /// Takes the value.
    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

impl Field for Did {
    fn put(&self, writer: Writer) -> Writer {
        writer.text(self.as_str())
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Did::parse(reader.text()?).map_err(|_| DecodeError::Did)
    }
}

/// A text field.
impl Field for String {
    fn put(&self, writer: Writer) -> Writer {
        writer.text(self)
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.text().map(str::to_owned)
    }
}

/// A time field.
impl Field for u64 {
    fn put(&self, writer: Writer) -> Writer {
        writer.time(*self)
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.time()
    }
}

impl Field for u8 {
    fn put(&self, writer: Writer) -> Writer {
        writer.u8(*self)
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u8()
    }
}

/// A blob field.
impl Field for Vec<u8> {
    fn put(&self, writer: Writer) -> Writer {
        writer.blob(self)
    }

    fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.blob().map(<[u8]>::to_vec)
    }
}

macro_rules! fixed_fields {
    ($($name:ident),*) => {$(
        impl Field for $name {
            fn put(&self, writer: Writer) -> Writer {
                writer.fixed(self.as_bytes())
            }

            fn take(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                reader.fixed().map(Self::from_bytes)
            }
        }
    )*};
}

fixed_fields!(Challenge, ContextId, Digest, EpochId, Nonce, Ticket);

/// Gives a record without signature its `encode` and `decode`: the tag, then the named fields in the order written.
macro_rules! plain_record {
    ($name:ident, $tag:literal, [$($field:ident),+]) => {
        impl $name {
            /// The four bytes that open this record.
            pub const TAG: &'static [u8; 4] = $tag;

            /// The record's bytes.
            ///
            /// # Errors
            /// A field that does not fit, or a record past [`crate::codec::MAX_RECORD_LEN`].
            pub fn encode(&self) -> Result<Vec<u8>, crate::codec::EncodeError> {
                let writer = crate::codec::Writer::new(Self::TAG);
                $(let writer = crate::records::field::Field::put(&self.$field, writer);)+
                writer.finish()
            }

            /// Reads the whole of `bytes` as this record.
            ///
            /// # Errors
            /// Any byte that [`Self::encode`] would not have written.
            pub fn decode(bytes: &[u8]) -> Result<Self, crate::codec::DecodeError> {
                let mut reader = crate::codec::Reader::new(bytes, Self::TAG)?;
                $(let $field = crate::records::field::Field::take(&mut reader)?;)+
                reader.finish()?;
                Ok(Self { $($field),+ })
            }
        }
    };
}

/// Gives a signed record its `signing_input` and `verify`. With `signer $named`, that field must be the signer's DID.
/// With `ends $byte`, one byte of that value follows the last field.
macro_rules! signed_record {
    ($name:ident, $tag:literal, [$($field:ident),+] $(, signer $named:ident)? $(, ends $byte:literal)?) => {
        impl $name {
            /// The four bytes that open this record.
            pub const TAG: &'static [u8; 4] = $tag;

            /// The bytes to sign: the whole record but its signature.
            ///
            /// # Errors
            /// A field that does not fit, or a record past [`crate::codec::MAX_RECORD_LEN`].
            pub fn signing_input(&self) -> Result<Vec<u8>, crate::codec::EncodeError> {
                let writer = crate::codec::Writer::with_limit(
                    Self::TAG,
                    crate::records::MAX_SIGNING_INPUT_LEN,
                );
                $(let writer = crate::records::field::Field::put(&self.$field, writer);)+
                $(let writer = writer.u8($byte);)?
                writer.finish()
            }

            /// Reads the whole of `bytes` as this record, after checking that `signer` signed it.
            ///
            /// # Errors
            /// [`RecordError`](crate::records::RecordError): the signature is judged before any field.
            pub fn verify(
                bytes: &[u8],
                signer: &crate::did::Did,
            ) -> Result<Self, crate::records::RecordError> {
                let input = crate::records::check_signature(bytes, signer)?;
                let mut reader = crate::codec::Reader::new(input, Self::TAG)?;
                $(let $field = crate::records::field::Field::take(&mut reader)?;)+
                $(
                    if reader.u8()? != $byte {
                        return Err(crate::codec::DecodeError::Value.into());
                    }
                )?
                reader.finish()?;
                let record = Self { $($field),+ };
                $(
                    if record.$named != *signer {
                        return Err(crate::records::RecordError::Signer);
                    }
                )?
                Ok(record)
            }
        }
    };
}

pub(super) use {plain_record, signed_record};
