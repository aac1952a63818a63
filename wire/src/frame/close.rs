//! The payload of a close frame (RFC 6455 sections 5.5.1 and 7.4).

use super::FrameFault;

/// Bytes of a close reason: a control frame's payload without the code.
pub const MAX_CLOSE_REASON_LEN: usize = 123;

/// A close frame that states a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close<'a> {
    /// Why, as a number.
    pub code: u16,
    /// Why, as a text; may be empty.
    pub reason: &'a str,
}

/// Decodes the payload of a close frame; `None` when it states nothing.
///
/// # Errors
///
/// [`FrameFault::Close`] for a single byte or a code that may not be sent, [`FrameFault::InvalidUtf8`] for the reason.
pub fn decode_close(payload: &[u8]) -> Result<Option<Close<'_>>, FrameFault> {
    if payload.is_empty() {
        return Ok(None);
    }
    let (code, reason) = payload.split_first_chunk().ok_or(FrameFault::Close)?;
    let code = u16::from_be_bytes(*code);
    if !is_close_code(code) || reason.len() > MAX_CLOSE_REASON_LEN {
        return Err(FrameFault::Close);
    }
    let reason = std::str::from_utf8(reason).map_err(|_| FrameFault::InvalidUtf8)?;
    Ok(Some(Close { code, reason }))
}

/// Encodes the payload of a close frame. A reason over [`MAX_CLOSE_REASON_LEN`] is cut at a character.
///
/// # Errors
///
/// [`FrameFault::Close`] for a code that may not be sent.
pub fn encode_close(code: u16, reason: &str) -> Result<Vec<u8>, FrameFault> {
    if !is_close_code(code) {
        return Err(FrameFault::Close);
    }
    let reason = reason
        .get(..reason.floor_char_boundary(MAX_CLOSE_REASON_LEN))
        .unwrap_or_default();
    let mut payload = Vec::with_capacity(2 + reason.len());
    payload.extend_from_slice(&code.to_be_bytes());
    payload.extend_from_slice(reason.as_bytes());
    Ok(payload)
}

/// Whether a close frame may state `code`: those that RFC 6455 and its registry define for the wire, and the ranges for
/// libraries and applications.
pub const fn is_close_code(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rejects_codes_that_may_not_be_sent() {
        for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, u16::MAX] {
            assert_eq!(decode_close(&code.to_be_bytes()), Err(FrameFault::Close));
            assert_eq!(encode_close(code, ""), Err(FrameFault::Close));
        }
        assert_eq!(decode_close(b"x"), Err(FrameFault::Close));
        assert_eq!(decode_close(b""), Ok(None));
        assert_eq!(decode_close(b"\x03\xe8\xff"), Err(FrameFault::InvalidUtf8));
    }

    proptest! {
        #[test]
        fn round_trips_and_fits_a_control_frame(code in any::<u16>().prop_filter("sendable", |code| is_close_code(*code)), reason in ".{0,200}") {
            let payload = encode_close(code, &reason).unwrap();
            prop_assert!(payload.len() <= 125);
            let close = decode_close(&payload).unwrap().unwrap();
            prop_assert_eq!(close.code, code);
            prop_assert!(reason.starts_with(close.reason));
        }

        #[test]
        fn never_panics_on_any_bytes(payload in proptest::collection::vec(any::<u8>(), 0..130)) {
            let _ = decode_close(&payload);
        }
    }
}
