//! What a field of a packet can be, and its one encoding.

use std::fmt;
use std::net::SocketAddr;

use memory_wire::Did;
use memory_wire::codec::{DecodeError, EncodeError, Reader, Writer};
use memory_wire::ids::{Challenge, ConnectionId, Ticket};

use crate::WorkerOutcome;

/// Bytes of the longest [`Detail`].
pub const MAX_DETAIL_LEN: usize = 256;

/// TLS signature schemes that a key agent may announce; a key has two or three.
pub const MAX_SCHEMES: usize = 32;

/// A short text for the log, from a process that is not trusted: at most [`MAX_DETAIL_LEN`] bytes of anything.
///
/// `Display` escapes everything but printable ASCII.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Detail(Vec<u8>);

impl Detail {
    /// The beginning of a text, as much of it as fits.
    #[must_use]
    pub fn clipped(text: &str) -> Self {
        let mut end = text.len().min(MAX_DETAIL_LEN);
        while !text.is_char_boundary(end) {
            end = end.saturating_sub(1);
        }
        Self(text.as_bytes().iter().take(end).copied().collect())
    }

    /// The bytes as they came.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// True when there is nothing to say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Detail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().fmt(formatter)
    }
}

impl fmt::Debug for Detail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Detail(\"{self}\")")
    }
}

/// A type that can be a field.
pub(crate) trait Field: Sized {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError>;
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

impl Field for u8 {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.u8(*self))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u8()
    }
}

impl Field for u16 {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.u16(*self))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u16()
    }
}

impl Field for u32 {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.u32(*self))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u32()
    }
}

impl Field for u64 {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.time(*self))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.time()
    }
}

impl Field for bool {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.u8(u8::from(*self)))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value),
        }
    }
}

impl Field for WorkerOutcome {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.u8(self.code()))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::from_code(reader.u8()?).ok_or(DecodeError::Value)
    }
}

impl Field for String {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.text(self))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.text().map(str::to_owned)
    }
}

impl Field for Did {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.text(self.as_str()))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::parse(reader.text()?).map_err(|_| DecodeError::Did)
    }
}

impl Field for SocketAddr {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.text(&self.to_string()))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let text = reader.text()?;
        let address: Self = text.parse().map_err(|_| DecodeError::Value)?;
        // One encoding per address: not `[0::1]:80`, not `1.2.3.4:080`.
        if address.to_string() == text {
            Ok(address)
        } else {
            Err(DecodeError::Value)
        }
    }
}

impl Field for Vec<u8> {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.blob(self))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.blob().map(<[u8]>::to_vec)
    }
}

impl Field for Detail {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.blob(&self.0))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = reader.blob()?;
        if bytes.len() > MAX_DETAIL_LEN {
            return Err(DecodeError::BlobLength);
        }
        Ok(Self(bytes.to_vec()))
    }
}

impl Field for Vec<u16> {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        if self.is_empty() || self.len() > MAX_SCHEMES {
            return Err(EncodeError::BlobLength);
        }
        let bytes: Vec<u8> = self
            .iter()
            .flat_map(|number| number.to_be_bytes())
            .collect();
        Ok(writer.blob(&bytes))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (numbers, rest) = reader.blob()?.as_chunks::<2>();
        if numbers.is_empty() || numbers.len() > MAX_SCHEMES || !rest.is_empty() {
            return Err(DecodeError::BlobLength);
        }
        Ok(numbers.iter().copied().map(u16::from_be_bytes).collect())
    }
}

impl Field for ConnectionId {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.fixed(self.as_bytes()))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fixed().map(Self::from)
    }
}

impl Field for Challenge {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.fixed(self.as_bytes()))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fixed().map(Self::from)
    }
}

impl Field for Ticket {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.fixed(self.as_bytes()))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.fixed().map(Self::from)
    }
}

impl Field for Option<Ticket> {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        let bytes = self.as_ref().map_or(&NO_TICKET, Ticket::as_bytes);
        Ok(writer.u8(u8::from(self.is_some())).fixed(bytes))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let present = bool::read(reader)?;
        let bytes = reader.fixed()?;
        match present {
            true => Ok(Some(Ticket::from(bytes))),
            false if bytes == NO_TICKET => Ok(None),
            false => Err(DecodeError::Value),
        }
    }
}

const NO_TICKET: [u8; 32] = [0; 32];
