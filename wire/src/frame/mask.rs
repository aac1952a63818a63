//! Masking (RFC 6455 section 5.3), a word at a time.

/// Masks or unmasks `payload` in place. `offset` is where it starts within the whole payload of its frame, so that a payload
/// can be treated in parts.
pub fn apply_mask(payload: &mut [u8], mask: [u8; 4], offset: usize) {
    let [a, b, c, d] = mask;
    // The key as it stands at the first byte of this part.
    let key = match offset % 4 {
        0 => [a, b, c, d],
        1 => [b, c, d, a],
        2 => [c, d, a, b],
        _ => [d, a, b, c],
    };
    let [a, b, c, d] = key;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, tail) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, key) in tail.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}
