//! Credit in both directions: who may send how much before the other side gives room back.
//!
//! | records | from | to | counts | window |
//! | --- | --- | --- | --- | --- |
//! | `mrc\x01` | router | client | bytes of whole upload records | 32,773 to 262,144 bytes |
//! | `mri\x02` | toolshed | router | declared body bytes of requests | 4 MiB |
//!
//! Each record is eight bytes: magic and a positive big-endian amount. Credit is additive and belongs to one socket. In
//! every state machine here the parts of the window always add up to it: what is given back is what was taken, once.

mod request;
mod upload;

pub use request::{RequestReceiver, RequestSender};
pub use upload::{UploadReceiver, UploadSender};

/// Bytes of a credit record.
pub const CREDIT_RECORD_LEN: usize = 8;

/// The smallest upload window a client accepts: one full record.
pub const MIN_UPLOAD_WINDOW: u32 = 32_773;

/// The largest upload window, and the one this router offers.
pub const MAX_UPLOAD_WINDOW: u32 = 262_144;

/// The window of declared body bytes on a data socket: 4 MiB.
pub const REQUEST_WINDOW: u32 = 4 << 20;

const UPLOAD_MAGIC: [u8; 4] = *b"mrc\x01";
const REQUEST_MAGIC: [u8; 4] = *b"mri\x02";

/// How credit was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CreditFault {
    /// Not eight bytes, or another magic.
    #[error("credit-malformed")]
    Malformed,
    /// An amount of zero, or over the largest window.
    #[error("credit-amount")]
    Amount,
    /// A window outside its range.
    #[error("credit-window")]
    Window,
    /// More credit than the sender has outstanding, or than the window holds.
    #[error("credit-excess")]
    Excess,
    /// A record or body that the credit held does not cover.
    #[error("credit-overdraw")]
    Overdraw,
    /// A request ordinal that is not the next one.
    #[error("request-ordinal")]
    Ordinal,
}

impl CreditFault {
    /// The fixed reason of this fault, the same in log, metric and test.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "credit-malformed",
            Self::Amount => "credit-amount",
            Self::Window => "credit-window",
            Self::Excess => "credit-excess",
            Self::Overdraw => "credit-overdraw",
            Self::Ordinal => "request-ordinal",
        }
    }
}

/// The record that gives `amount` of upload credit back.
pub const fn encode_upload_credit(amount: u32) -> [u8; CREDIT_RECORD_LEN] {
    encode(UPLOAD_MAGIC, amount)
}

/// The amount of an upload credit record, at most [`MAX_UPLOAD_WINDOW`].
///
/// # Errors
///
/// [`CreditFault::Malformed`] or [`CreditFault::Amount`].
pub fn decode_upload_credit(bytes: &[u8]) -> Result<u32, CreditFault> {
    decode(UPLOAD_MAGIC, MAX_UPLOAD_WINDOW, bytes)
}

/// The record that grants `amount` of request credit.
pub const fn encode_request_credit(amount: u32) -> [u8; CREDIT_RECORD_LEN] {
    encode(REQUEST_MAGIC, amount)
}

/// The amount of a request credit record, at most [`REQUEST_WINDOW`].
///
/// # Errors
///
/// [`CreditFault::Malformed`] or [`CreditFault::Amount`].
pub fn decode_request_credit(bytes: &[u8]) -> Result<u32, CreditFault> {
    decode(REQUEST_MAGIC, REQUEST_WINDOW, bytes)
}

/// Whether `bytes` start as request credit does; tells it from a streaming record on a data socket.
pub fn is_request_credit(bytes: &[u8]) -> bool {
    bytes.starts_with(&REQUEST_MAGIC)
}

const fn encode(magic: [u8; 4], amount: u32) -> [u8; CREDIT_RECORD_LEN] {
    let [m, r, kind, version] = magic;
    let [a, b, c, d] = amount.to_be_bytes();
    [m, r, kind, version, a, b, c, d]
}

fn decode(magic: [u8; 4], most: u32, bytes: &[u8]) -> Result<u32, CreditFault> {
    let record = <[u8; CREDIT_RECORD_LEN]>::try_from(bytes).map_err(|_| CreditFault::Malformed)?;
    let [m, r, kind, version, a, b, c, d] = record;
    if [m, r, kind, version] != magic {
        return Err(CreditFault::Malformed);
    }
    match u32::from_be_bytes([a, b, c, d]) {
        0 => Err(CreditFault::Amount),
        amount if amount > most => Err(CreditFault::Amount),
        amount => Ok(amount),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn writes_the_bytes_of_the_specification() {
        assert_eq!(
            encode_upload_credit(0x0102_0304),
            [0x6d, 0x72, 0x63, 1, 1, 2, 3, 4]
        );
        assert_eq!(
            encode_request_credit(REQUEST_WINDOW),
            [0x6d, 0x72, 0x69, 2, 0, 0x40, 0, 0]
        );
    }

    #[test]
    fn rejects_amounts_outside_the_window() {
        for amount in [0, MAX_UPLOAD_WINDOW + 1, u32::MAX] {
            let record = encode_upload_credit(amount);
            assert_eq!(decode_upload_credit(&record), Err(CreditFault::Amount));
        }
        for amount in [0, REQUEST_WINDOW + 1, u32::MAX] {
            let record = encode_request_credit(amount);
            assert_eq!(decode_request_credit(&record), Err(CreditFault::Amount));
        }
    }

    proptest! {
        #[test]
        fn round_trips_and_refuses_every_prefix(amount in 1..=MAX_UPLOAD_WINDOW) {
            let record = encode_upload_credit(amount);
            prop_assert_eq!(decode_upload_credit(&record), Ok(amount));
            prop_assert_eq!(decode_request_credit(&record), Err(CreditFault::Malformed));
            for end in 0..record.len() {
                prop_assert_eq!(decode_upload_credit(&record[..end]), Err(CreditFault::Malformed));
            }
            let mut longer = record.to_vec();
            longer.push(0);
            prop_assert_eq!(decode_upload_credit(&longer), Err(CreditFault::Malformed));
        }

        #[test]
        fn never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..12)) {
            let _ = decode_upload_credit(&bytes);
            let _ = decode_request_credit(&bytes);
        }
    }
}
