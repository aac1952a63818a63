//! What this process had to drop on its channels, since it started.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts over all channels of this process. Each only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets of which descriptors were lost in passing (truncated control data).
    pub descriptors_lost: u64,
    /// Packets that came with another number of descriptors than their tag calls for.
    pub descriptor_counts_wrong: u64,
    /// Packets refused for their length.
    pub packets_too_long: u64,
    /// Packets refused for their bytes.
    pub packets_malformed: u64,
}

/// The counts as they are now.
#[must_use]
pub fn counters() -> Counters {
    Counters {
        descriptors_lost: DESCRIPTORS_LOST.load(Ordering::Relaxed),
        descriptor_counts_wrong: DESCRIPTOR_COUNTS_WRONG.load(Ordering::Relaxed),
        packets_too_long: PACKETS_TOO_LONG.load(Ordering::Relaxed),
        packets_malformed: PACKETS_MALFORMED.load(Ordering::Relaxed),
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(crate) static DESCRIPTORS_LOST: AtomicU64 = AtomicU64::new(0);
pub(crate) static DESCRIPTOR_COUNTS_WRONG: AtomicU64 = AtomicU64::new(0);
pub(crate) static PACKETS_TOO_LONG: AtomicU64 = AtomicU64::new(0);
pub(crate) static PACKETS_MALFORMED: AtomicU64 = AtomicU64::new(0);
