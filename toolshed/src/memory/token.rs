//! Session identifiers and resume tokens: random UUIDs (version 4).

use super::store::StoreError;
use std::fmt::Write as _;

/// A fresh UUID.
pub(super) fn uuid() -> Result<String, StoreError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(StoreError::Random)?;
    let bits = u128::from_be_bytes(bytes);
    // Version 4 in bits 48..52, variant 10 in bits 64..66.
    let bits = (bits & !(0xf << 76)) | (0x4 << 76);
    let bits = (bits & !(0x3 << 62)) | (0x2 << 62);
    let mut text = String::with_capacity(36);
    for (position, byte) in bits.to_be_bytes().into_iter().enumerate() {
        if matches!(position, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// Compares tokens in time that depends on their lengths alone.
pub(super) fn same_token(left: &str, right: &str) -> bool {
    left.len() == right.len()
        && left
            .bytes()
            .zip(right.bytes())
            .fold(0, |difference, (l, r)| difference | (l ^ r))
            == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_version_4() {
        let one = uuid().expect("random");
        let two = uuid().expect("random");
        assert_ne!(one, two);
        for text in [&one, &two] {
            let parts: Vec<_> = text.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12]);
            assert_eq!(&text[14..15], "4");
            assert!("89ab".contains(&text[19..20]));
        }
        assert!(same_token(&one, &one.clone()));
        assert!(!same_token(&one, &two));
        assert!(!same_token(&one, ""));
    }
}
