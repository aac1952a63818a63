//! What can go wrong on a channel, and whose fault it is.

use std::io;
use std::path::PathBuf;

use crate::packets::PacketError;

/// A failed action on a channel or on a named socket.
///
/// No variant carries a byte of what was sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The descriptor is not a connected UNIX sequenced-packet socket.
    #[error("the descriptor is not a connected UNIX sequenced-packet socket")]
    NotAChannel,
    /// The socket could not be made or prepared.
    #[error("the channel could not be set up")]
    Setup(#[source] io::Error),
    /// The kernel refused to send.
    #[error("the packet could not be sent")]
    Send(#[source] io::Error),
    /// The kernel refused to receive.
    #[error("the packet could not be received")]
    Receive(#[source] io::Error),
    /// The peer is gone; nothing was sent.
    #[error("the peer has closed the channel")]
    Closed,
    /// The peer does not read: the channel is full. Only the `try_` methods return this.
    #[error("the channel is full")]
    WouldBlock,
    /// The deadline passed first. Only [`crate::BlockingChannel`] returns this.
    #[error("the deadline passed")]
    Deadline,
    /// A packet without a byte: it could not be told from end of file.
    #[error("a packet must not be empty")]
    EmptyPacket,
    /// A packet longer than [`crate::MAX_PACKET_LEN`]. When received, it has been dropped with its descriptors.
    #[error("a packet of {length} bytes is over the limit of {max} bytes", max = crate::MAX_PACKET_LEN)]
    PacketTooLong {
        /// Bytes of the packet.
        length: usize,
    },
    /// More descriptors given to send than [`crate::MAX_DESCRIPTORS`].
    #[error("{count} descriptors are over the limit of {max} for one packet", max = crate::MAX_DESCRIPTORS)]
    TooManyDescriptors {
        /// Descriptors given.
        count: usize,
    },
    /// The kernel could not hand over every descriptor: too many were sent, or this process is at its descriptor
    /// limit. Those that did arrive have been closed.
    #[error(
        "descriptors were lost in passing: too many were sent, or this process is at RLIMIT_NOFILE"
    )]
    DescriptorsLost,
    /// The packet came with another number of descriptors than its tag calls for. They have been closed.
    #[error("the packet came with {received} descriptors instead of {expected}")]
    DescriptorCount {
        /// What the tag calls for.
        expected: usize,
        /// What came or, when sending, was given.
        received: usize,
    },
    /// The packet's bytes are not a packet of this channel.
    #[error("the packet is malformed")]
    Packet(#[from] PacketError),
    /// The peer that connected runs under a user ID that is not allowed here. Its connection has been closed.
    #[error("user {uid} may not connect here")]
    PeerRefused {
        /// User ID of the peer at the time it connected.
        uid: u32,
    },
    /// The path cannot be the name of a socket (longer than 107 bytes, or with a zero byte in it).
    #[error("{path:?} cannot be the path of a socket, which has 1 to 107 bytes, none of them zero")]
    PathInvalid {
        /// The path as given.
        path: PathBuf,
    },
    /// The directory of a named socket is not a directory of our own with mode 0700.
    #[error("{path:?} is not a directory of this user with mode 0700")]
    DirectoryNotPrivate {
        /// The directory.
        path: PathBuf,
    },
    /// The path of a named socket is in use: somebody answers there, or it is something else than a socket.
    #[error("{path:?} is in use")]
    PathInUse {
        /// The path.
        path: PathBuf,
    },
    /// The named socket could not be made.
    #[error("could not listen on {path:?}")]
    Bind {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No connection could be accepted (out of descriptors, mostly).
    #[error("could not accept a connection")]
    Accept(#[source] io::Error),
    /// Nobody answers at the path, or not now.
    #[error("could not connect to {path:?}")]
    Connect {
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl ChannelError {
    /// The fixed word for logs, metrics and tests.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotAChannel => "channel-not-seqpacket",
            Self::Setup(_) => "channel-setup",
            Self::Send(_) => "channel-send",
            Self::Receive(_) => "channel-receive",
            Self::Closed => "channel-closed",
            Self::WouldBlock => "channel-full",
            Self::Deadline => "channel-deadline",
            Self::EmptyPacket => "channel-empty-packet",
            Self::PacketTooLong { .. } => "channel-packet-length",
            Self::TooManyDescriptors { .. } | Self::DescriptorCount { .. } => {
                "channel-descriptor-count"
            }
            Self::DescriptorsLost => "channel-descriptors-lost",
            Self::Packet(error) => error.reason(),
            Self::PeerRefused { .. } => "channel-peer-refused",
            Self::PathInvalid { .. } => "socket-path",
            Self::DirectoryNotPrivate { .. } => "socket-directory",
            Self::PathInUse { .. } => "socket-in-use",
            Self::Bind { .. } => "socket-bind",
            Self::Accept(_) => "socket-accept",
            Self::Connect { .. } => "socket-connect",
        }
    }

    /// True when the peer broke the rules of the channel, so that it has to be closed.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        matches!(
            self,
            Self::EmptyPacket
                | Self::PacketTooLong { .. }
                | Self::TooManyDescriptors { .. }
                | Self::DescriptorCount { .. }
                | Self::Packet(_)
                | Self::PeerRefused { .. }
        )
    }
}
