//! Memory the allocator keeps after a burst.

/// Gives free pages of the heap back to the system. The allocator keeps what was freed below its highest live block, which
/// after a burst can be far more than a process needs while it waits; for a process per connection that adds up.
///
/// Takes some microseconds per MiB of heap: to be called when nothing is going on. Does nothing where the C library has no
/// such call.
#[allow(
    unsafe_code,
    reason = "the allocator's own call, which no safe wrapper offers"
)]
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a size to keep, has no preconditions, and locks the heaps it walks.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_what_lies_below_a_live_block() {
        // Blocks below the mmap threshold, freed but for the last: the top of the heap stays in use.
        let mut blocks: Vec<Vec<u8>> = (0..512).map(|_| vec![1; 16 * 1024]).collect();
        let last = blocks.pop();
        let before = crate::memory_of(std::process::id()).expect("own memory");
        drop(blocks);
        release_free_memory();
        let after = crate::memory_of(std::process::id()).expect("own memory");
        assert!(
            after.private_kib + 4096 < before.private_kib,
            "{before:?} {after:?}"
        );
        drop(last);
    }
}
