//! One line of the ledger.

use memory_wire::Did;
use memory_wire::codec::MAX_SAFE_INTEGER;
use memory_wire::ids::EpochId;
use serde_json::{Value, json};

/// What one line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// A link took this epoch.
    Epoch(Did, EpochId),
    /// The epoch's link ended at this Unix second.
    Retire(Did, EpochId, u64),
    /// The key may never link again.
    Revoke(Did),
    /// Written by an earlier toolshed; means nothing any more.
    Claim,
}

impl Line {
    /// The line with its line feed.
    pub(super) fn to_text(self) -> String {
        let value = match self {
            Self::Epoch(router, epoch) => json!(["epoch", router.as_str(), epoch.to_hex()]),
            Self::Retire(router, epoch, when) => {
                json!(["retire", router.as_str(), epoch.to_hex(), when])
            }
            Self::Revoke(router) => json!(["revoke", router.as_str(), "permanent"]),
            Self::Claim => json!(["claim"]),
        };
        format!("{value}\n")
    }

    /// Reads a line, its line feed included: one that was cut short is damaged.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let text = bytes
            .strip_suffix(b"\n")
            .ok_or("not ended by a line feed")?;
        let value: Value = serde_json::from_slice(text).map_err(|_| "not JSON")?;
        let fields = value.as_array().ok_or("not an array")?;
        let text = |index: usize| fields.get(index).and_then(Value::as_str);
        let router = || {
            text(1)
                .and_then(|did| Did::parse(did).ok())
                .ok_or("no router")
        };
        let epoch = || {
            text(2)
                .and_then(|hex| EpochId::from_hex(hex).ok())
                .ok_or("no epoch")
        };
        match (text(0), fields.len()) {
            (Some("epoch"), 3) => Ok(Self::Epoch(router()?, epoch()?)),
            (Some("retire"), 4) => {
                let when = fields.get(3).and_then(Value::as_u64);
                let when = when
                    .filter(|when| *when <= MAX_SAFE_INTEGER)
                    .ok_or("no time")?;
                Ok(Self::Retire(router()?, epoch()?, when))
            }
            (Some("revoke"), 3) if text(2) == Some("permanent") => Ok(Self::Revoke(router()?)),
            (Some("claim"), _) => Ok(Self::Claim),
            _ => Err("unknown record"),
        }
    }
}
