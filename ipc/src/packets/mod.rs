//! Every packet of every channel: one enum per direction, one module per pair of roles.
//!
//! A packet is a four-byte ASCII tag and its fields in the order in which they are declared, nothing between and nothing
//! after, integers big-endian, as [`memory_wire::codec`] reads and writes them:
//!
//! | type of the field | bytes |
//! | --- | --- |
//! | `u8`, `u16`, `u32` | 1, 2, 4 |
//! | `u64` | 8, at most 2^53 - 1 (a time or a count) |
//! | `bool`, [`crate::WorkerOutcome`] | 1, other values refused |
//! | `String` | 2 of length, then 1 to 256 of printable ASCII without space |
//! | [`memory_wire::Did`], [`std::net::SocketAddr`] | a `String` in the one canonical form |
//! | `Vec<u8>` | 2 of length, then at most 4096 |
//! | [`Detail`] | 2 of length, then at most 256 |
//! | `Vec<u16>` | 2 of length in bytes, then 1 to 32 numbers |
//! | an identifier | its bytes |
//! | `Option<Ticket>` | 1 (0 or 1), then 32 (zero when there is none) |
//! | [`Report`] | its numbers in order, each a `u64`, then 1 of length and 9 for each reason that refused something |
//!
//! `sequence` numbers a request within its channel; the answer carries the number of its request. Whatever does not decode,
//! or comes with another number of descriptors than stated at its tag, ends the channel.
//!
//! The packets that end or keep a data-socket assignment are older than this scheme: they have no number, and their answer
//! is the single byte zero ([`CONFIRMATION`]), so at most one may be outstanding on a channel.

mod broker;
mod fields;
mod key;
mod link;
mod report;
mod spawner;
mod worker;

pub use broker::{BrokerToLinkAgent, BrokerToWorker, LinkAgentToBroker, WorkerToBroker};
pub use fields::{Detail, MAX_DETAIL_LEN, MAX_SCHEMES};
pub use key::{KeyAgentToWorker, WorkerToKeyAgent};
pub use link::{LinkAgentToWorker, WorkerToLinkAgent};
pub use report::{
    BudgetUse, Latency, MAX_REPORTED_REFUSALS, REPORTED_BUCKETS, REPORTED_BUDGETS,
    REPORTED_LATENCIES, Report,
};
pub use spawner::{
    KeyAgentToSpawner, LinkAgentToSpawner, ListenerToSpawner, SpawnerToBroker, SpawnerToKeyAgent,
    SpawnerToLinkAgent, SpawnerToListener,
};
pub use worker::{SpawnerToWorker, WorkerToSpawner};

use memory_wire::codec::{DecodeError, EncodeError};

/// The whole packet that confirms a rollback or a commit of a data-socket assignment.
pub const CONFIRMATION: [u8; 1] = [0];

/// The packets that go one way on one kind of channel.
pub trait Packet: Sized {
    /// The bytes of this packet.
    ///
    /// # Errors
    /// [`PacketError::Encode`] when a field is over its bound: a mistake of the caller.
    fn encode(&self) -> Result<Vec<u8>, PacketError>;

    /// Reads a packet. The bytes have to be exactly one.
    ///
    /// # Errors
    /// [`PacketError::UnknownTag`], or [`PacketError::Decode`] for fields that are short, long, or out of range.
    fn decode(bytes: &[u8]) -> Result<Self, PacketError>;

    /// How many descriptors go with this packet.
    fn expected_descriptors(&self) -> usize;
}

/// Why bytes are not a packet, or fields not the fields of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The tag is not one of this direction of this channel, or there is none.
    #[error("unknown packet tag")]
    UnknownTag,
    /// A field is missing, too long, out of range, or something follows the last.
    #[error("malformed packet")]
    Decode(#[from] DecodeError),
    /// A field given to encode is over its bound.
    #[error("packet cannot be encoded")]
    Encode(#[from] EncodeError),
}

impl PacketError {
    /// The fixed word for logs, metrics and tests.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::UnknownTag => "packet-unknown-tag",
            Self::Decode(_) => "packet-malformed",
            Self::Encode(_) => "packet-encode",
        }
    }
}

/// Declares an enum of packets: tag, number of descriptors, fields in order of their bytes.
///
/// `and NAME` adds the one-byte packet. `Debug` prints the name alone, because packets carry tickets and statements.
macro_rules! packets {
    (
        $(#[$meta:meta])*
        pub enum $name:ident $(and $confirmation:ident)? {
            $(
                $(#[$variant_meta:meta])*
                $tag:literal + $descriptors:literal => $variant:ident
                $({ $( $(#[$field_meta:meta])* $field:ident: $type:ty, )* })?;
            )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq)]
        pub enum $name {
            $(
                $(#[$variant_meta])*
                $variant $({ $( $(#[$field_meta])* $field: $type, )* })?,
            )*
            $(
                /// A rollback or commit has been done: the one-byte packet.
                $confirmation,
            )?
        }

        impl $crate::packets::Packet for $name {
            fn encode(&self) -> Result<Vec<u8>, $crate::packets::PacketError> {
                match self {
                    $(
                        Self::$variant $({ $( $field, )* })? => {
                            let writer = memory_wire::codec::Writer::with_limit(
                                $tag,
                                $crate::MAX_PACKET_LEN,
                            );
                            $($( let writer = $crate::packets::fields::Field::write($field, writer)?; )*)?
                            Ok(writer.finish()?)
                        }
                    )*
                    $( Self::$confirmation => Ok($crate::packets::CONFIRMATION.to_vec()), )?
                }
            }

            fn decode(bytes: &[u8]) -> Result<Self, $crate::packets::PacketError> {
                $(
                    if *bytes == $crate::packets::CONFIRMATION {
                        return Ok(Self::$confirmation);
                    }
                )?
                match bytes.first_chunk::<4>() {
                    $(
                        Some($tag) => {
                            #[allow(unused_mut)]
                            let mut reader = memory_wire::codec::Reader::with_limit(
                                bytes,
                                $tag,
                                $crate::MAX_PACKET_LEN,
                            )?;
                            $($( let $field = $crate::packets::fields::Field::read(&mut reader)?; )*)?
                            reader.finish()?;
                            Ok(Self::$variant $({ $( $field, )* })?)
                        }
                    )*
                    _ => Err($crate::packets::PacketError::UnknownTag),
                }
            }

            fn expected_descriptors(&self) -> usize {
                match self {
                    $( Self::$variant $({ $( $field: _, )* })? => $descriptors, )*
                    $( Self::$confirmation => 0, )?
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(match self {
                    $(
                        Self::$variant $({ $( $field: _, )* })? => {
                            concat!(stringify!($name), "::", stringify!($variant))
                        }
                    )*
                    $(
                        Self::$confirmation => {
                            concat!(stringify!($name), "::", stringify!($confirmation))
                        }
                    )?
                })
            }
        }
    };
}
use packets;
