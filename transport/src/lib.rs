//! Asynchronous WebSocket (RFC 6455) over TLS 1.3 for every process that owns such a socket.
//!
//! The frame and upgrade formats are pure functions of `memory-wire`; this crate moves their bytes. It is glue with three
//! promises the roles build on:
//!
//! - reading is cancel-safe: a dropped [`WsReader::next`] loses nothing;
//! - memory follows received bytes, never a declared length, and idle sockets hold no payload buffer;
//! - a frame leaves in one write, its header and mask written in place around the payload ([`Buffer`]).
#![forbid(unsafe_code)]

mod buffer;
pub mod certificate;
mod der;
mod reader;
mod tcp;
pub mod tls;
pub mod upgrade;
mod writer;

pub use buffer::{Buffer, HEADROOM};
pub use reader::{Incoming, ReadLimits, WsReadError, WsReader};
pub use tcp::{KeepAlive, tune_tcp};
pub use upgrade::{AcceptError, ConnectError, PendingUpgrade, Target, WebSocket};
pub use writer::{WsWriteError, WsWriter};
