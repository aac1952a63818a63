//! What a worker tells of its connection: totals since it began, as a claim of a process that is not trusted.

use memory_wire::codec::{DecodeError, EncodeError, Reader, Writer};

use super::fields::Field;

/// Names of the budgets in a [`Report`], in its order.
///
/// Counts but for the last two: `open-bytes` are bytes of opens that are being worked on, `answer-bytes` those of answers
/// that wait for the client to read.
pub const REPORTED_BUDGETS: [&str; 12] = [
    "sessions",
    "spaces",
    "principals",
    "principal-history",
    "requests",
    "watches",
    "holdings",
    "live-requests",
    "data-requests",
    "messages",
    "open-bytes",
    "answer-bytes",
];

/// Names of the latencies in a [`Report`], in its order: from accept to the upgrade, and from a statement, an open or an
/// ordinary request to the first byte of its answer.
pub const REPORTED_LATENCIES: [&str; 4] = ["upgrade", "authentication", "open", "request"];

/// Counts of one latency: one for each bucket, the overflow last.
pub const REPORTED_BUCKETS: usize = 17;

/// Refusal reasons that one [`Report`] may state.
pub const MAX_REPORTED_REFUSALS: usize = 64;

/// Totals of one connection since it was accepted. Every number is at most 2^53 - 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Bytes read from the client.
    pub bytes_in: u64,
    /// Payload bytes written to the client.
    pub bytes_out: u64,
    /// Messages of the client that began.
    pub messages_in: u64,
    /// Messages to the client that began.
    pub messages_out: u64,
    /// The connection's budgets, as named in [`REPORTED_BUDGETS`].
    pub budgets: [BudgetUse; REPORTED_BUDGETS.len()],
    /// Its latencies, as named in [`REPORTED_LATENCIES`].
    pub latencies: [Latency; REPORTED_LATENCIES.len()],
    /// How often each reason refused something: codes of `memory_wire::Reason` ascending, each once, at most
    /// [`MAX_REPORTED_REFUSALS`], no count zero. The receiver checks that a code is one.
    pub refusals: Vec<(u8, u64)>,
}

/// One budget of a [`Report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetUse {
    /// What is reserved now.
    pub current: u64,
    /// The most that was.
    pub peak: u64,
    /// How often there was no room.
    pub refused: u64,
}

/// One latency of a [`Report`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Observations by bucket, not cumulative, the overflow last.
    pub counts: [u64; REPORTED_BUCKETS],
    /// Their sum in microseconds.
    pub sum_micros: u64,
}

impl Field for BudgetUse {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(writer.time(self.current).time(self.peak).time(self.refused))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            current: reader.time()?,
            peak: reader.time()?,
            refused: reader.time()?,
        })
    }
}

impl Field for Latency {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        Ok(self.counts.write(writer)?.time(self.sum_micros))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            counts: Field::read(reader)?,
            sum_micros: reader.time()?,
        })
    }
}

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        self.iter()
            .try_fold(writer, |writer, item| item.write(writer))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut items = [T::default(); N];
        for item in &mut items {
            *item = T::read(reader)?;
        }
        Ok(items)
    }
}

impl Field for Vec<(u8, u64)> {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        let count = u8::try_from(self.len()).map_err(|_| EncodeError::BlobLength)?;
        if self.len() > MAX_REPORTED_REFUSALS || !is_canonical(self) {
            return Err(EncodeError::BlobLength);
        }
        Ok(self.iter().fold(writer.u8(count), |writer, (code, times)| {
            writer.u8(*code).time(*times)
        }))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = usize::from(reader.u8()?);
        if count > MAX_REPORTED_REFUSALS {
            return Err(DecodeError::BlobLength);
        }
        let mut refusals = Self::with_capacity(count);
        for _ in 0..count {
            refusals.push((reader.u8()?, reader.time()?));
        }
        if is_canonical(&refusals) {
            Ok(refusals)
        } else {
            Err(DecodeError::Value)
        }
    }
}

/// Whether the codes ascend and no count is zero: one encoding for one content.
fn is_canonical(refusals: &[(u8, u64)]) -> bool {
    refusals.is_sorted_by(|one, next| one.0 < next.0)
        && refusals.iter().all(|(_, times)| *times > 0)
}

impl Field for Box<Report> {
    fn write(&self, writer: Writer) -> Result<Writer, EncodeError> {
        let writer = writer
            .time(self.bytes_in)
            .time(self.bytes_out)
            .time(self.messages_in)
            .time(self.messages_out);
        let writer = self.budgets.write(writer)?;
        let writer = self.latencies.write(writer)?;
        self.refusals.write(writer)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self::new(Report {
            bytes_in: reader.time()?,
            bytes_out: reader.time()?,
            messages_in: reader.time()?,
            messages_out: reader.time()?,
            budgets: Field::read(reader)?,
            latencies: Field::read(reader)?,
            refusals: Field::read(reader)?,
        }))
    }
}
