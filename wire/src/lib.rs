//! Wire formats and sans-IO state machines of routed Memory.
//!
//! Everything here is a function over bytes: no input or output, no clock, no randomness and no private key. Callers pass
//! the time and random bytes in and get values back, so every rule can be tested without a socket. What a format means
//! is decided in `docs/protocol.md`; the section is named beside the code that holds to it.
//!
//! | module | subject |
//! | --- | --- |
//! | [`codec`] | bounded reader and writer of fixed binary records |
//! | [`did`], [`ids`], [`base64url`] | identities, identifiers and their texts |
//! | [`records`], [`admission`] | canonical binary records, signed and plain, and the rules that admit a statement or a proof |
//! | [`flags`] | capability descriptors: canonical form, public offer, negotiation |
//! | [`json`], [`message`], [`envelope`] | strict JSON, text messages and the compression envelope |
//! | [`stream`], [`credit`] | streamed records and both directions of credit |
//! | [`frame`], [`upgrade`] | WebSocket frames and the HTTP upgrade before them |
//! | [`reason`] | every reason a connection or a request is refused, in one table |
#![forbid(unsafe_code)]

pub mod admission;
pub mod base64url;
pub mod codec;
pub mod credit;
pub mod did;
pub mod envelope;
pub mod flags;
pub mod frame;
pub mod ids;
pub mod json;
pub mod message;
pub mod reason;
pub mod records;
pub mod stream;
pub mod upgrade;

pub use did::Did;
pub use reason::Reason;
