//! Randomness for spreading retries: not for secrets.

/// 64 random bits; the middle of the range when the system has none.
pub(crate) fn bits() -> u64 {
    getrandom::u64().unwrap_or(1 << 63)
}
