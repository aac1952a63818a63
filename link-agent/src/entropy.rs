//! Random bytes from the system.

/// `N` random bytes. `None` when the system gives none, which it does at boot only.
pub(crate) fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}
