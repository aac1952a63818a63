//! Sequenced-packet channels between the roles.
//!
//! A channel is an `AF_UNIX` `SOCK_SEQPACKET` socket pair: packets keep their borders, descriptors travel with the packet
//! they belong to, and the death of the peer is end of file. The channel itself is the identity of who speaks on it.
//!
//! - [`Channel`] sends and receives inside a tokio runtime, [`BlockingChannel`] outside of one, with a deadline.
//! - [`NamedListener`] and [`connect`] make channels between processes that do not descend from one another.
//! - [`StreamListener`] names a byte stream in the same way, for those who are no roles.
//! - [`packets`] holds every packet of every channel: one enum per direction.
//! - [`memfd`] carries what is larger than a packet.
//! - [`since_acknowledged`] tells of a TCP socket that was passed whether anybody is left at its far end.
//!
//! Whatever arrives is bounded before memory is taken for it: a packet by [`MAX_PACKET_LEN`], its descriptors by
//! [`MAX_DESCRIPTORS`]. Descriptors are close-on-exec from the moment they exist here, and every one that arrives without
//! being expected is closed before the error is returned.
#![deny(unsafe_code)]

pub mod memfd;
pub mod packets;

mod acknowledged;
mod blocking;
mod channel;
mod counters;
mod credentials;
mod error;
mod listener;
mod message;
mod named;
mod outcome;
mod registration;
mod stream;

pub use acknowledged::since_acknowledged;
pub use blocking::BlockingChannel;
pub use channel::{Channel, take_stdin};
pub use counters::{Counters, counters};
pub use credentials::PeerCredentials;
pub use error::ChannelError;
pub use listener::{NamedListener, connect};
pub use message::{MAX_DESCRIPTORS, MAX_PACKET_LEN, Received};
pub use outcome::WorkerOutcome;
pub use packets::{Packet, PacketError};
pub use stream::StreamListener;
