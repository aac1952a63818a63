//! Channels inside a tokio runtime.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::task::coop::consume_budget;

use crate::counters::{DESCRIPTOR_COUNTS_WRONG, PACKETS_MALFORMED, count};
use crate::credentials::peer_credentials;
use crate::message::{check_sizes, receive_now, send_now};
use crate::packets::Packet;
use crate::registration::Registered;
use crate::{ChannelError, PeerCredentials, Received};

/// One end of a channel, registered with the current tokio runtime.
///
/// Sending and receiving take `&self`, so that one task can send while another receives. Two tasks must not receive at
/// once (there is one reader per channel by design), two may send.
#[derive(Debug)]
pub struct Channel {
    socket: Registered,
}

impl Channel {
    /// Makes both ends of a channel, close-on-exec and non-blocking.
    ///
    /// # Errors
    /// What socketpair(2) says: out of descriptors, mostly.
    pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?)
    }

    /// Takes over one end of a channel: checks that it is one, and sets close-on-exec and non-blocking.
    ///
    /// # Errors
    /// [`ChannelError::NotAChannel`] for any other kind of descriptor, [`ChannelError::Setup`] when the kernel refuses,
    /// or outside of a tokio runtime with its IO driver enabled. The descriptor is closed then.
    pub fn from_fd(socket: OwnedFd) -> Result<Self, ChannelError> {
        prepare(socket.as_fd())?;
        let socket = Registered::new(socket).map_err(ChannelError::Setup)?;
        Ok(Self { socket })
    }

    /// Sends one packet with its descriptors, waiting while the channel is full. The descriptors stay open here.
    ///
    /// Cancel-safe: a packet goes out whole or not at all. To a peer that may choose not to read, use
    /// [`Channel::try_send`], so that it cannot make its sender wait.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] when the peer is gone, [`ChannelError::EmptyPacket`], [`ChannelError::PacketTooLong`] and
    /// [`ChannelError::TooManyDescriptors`] before anything is sent, [`ChannelError::Send`] otherwise.
    pub async fn send(
        &self,
        packet: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        check_sizes(packet, descriptors)?;
        loop {
            let mut ready = self
                .socket
                .get()
                .writable()
                .await
                .map_err(ChannelError::Send)?;
            match send_now(self.as_fd(), packet, descriptors) {
                Err(ChannelError::WouldBlock) => ready.clear_ready(),
                result => return result,
            }
        }
    }

    /// Sends one packet with its descriptors now, or not at all.
    ///
    /// # Errors
    /// [`ChannelError::WouldBlock`] when the channel is full: the peer does not read and should be dropped. Otherwise as
    /// [`Channel::send`].
    pub fn try_send(
        &self,
        packet: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        send_now(self.as_fd(), packet, descriptors)
    }

    /// Receives the next packet into `packet`, which is cleared first and grows to the packet's size at most. `None` is end
    /// of file: the peer has closed its end or died, and everything it sent before has been received.
    ///
    /// Cancel-safe: until it is ready, nothing has been taken from the channel.
    ///
    /// # Errors
    /// [`ChannelError::PacketTooLong`] and [`ChannelError::DescriptorsLost`] after closing everything that came with the
    /// packet (both are counted, see [`crate::counters`]), with the packet's own bytes left in `packet` for the latter;
    /// [`ChannelError::EmptyPacket`] for descriptors without a byte;
    /// [`ChannelError::Receive`] otherwise.
    pub async fn recv(&self, packet: &mut Vec<u8>) -> Result<Option<Received>, ChannelError> {
        // A peer that never stops sending must not keep the other tasks of this thread from running.
        consume_budget().await;
        loop {
            let mut ready = self
                .socket
                .get()
                .readable()
                .await
                .map_err(ChannelError::Receive)?;
            match receive_now(self.as_fd(), packet) {
                Err(ChannelError::WouldBlock) => ready.clear_ready(),
                result => return result,
            }
        }
    }

    /// Encodes and sends a packet with exactly the descriptors that its tag calls for.
    ///
    /// # Errors
    /// [`ChannelError::DescriptorCount`] for another number of descriptors, [`ChannelError::Packet`] when a field is over its
    /// bound; otherwise as [`Channel::send`].
    pub async fn send_packet<P: Packet>(
        &self,
        packet: &P,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let bytes = encode_for(packet, descriptors)?;
        self.send(&bytes, descriptors).await
    }

    /// Encodes and sends a packet with exactly the descriptors that its tag calls for, now or not at all.
    ///
    /// # Errors
    /// As [`Channel::send_packet`] and [`Channel::try_send`].
    pub fn try_send_packet<P: Packet>(
        &self,
        packet: &P,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let bytes = encode_for(packet, descriptors)?;
        self.try_send(&bytes, descriptors)
    }

    /// Receives and decodes the next packet and the descriptors that came with it, exactly as many as its tag calls for.
    /// `None` is end of file. Cancel-safe.
    ///
    /// # Errors
    /// [`ChannelError::DescriptorCount`] and [`ChannelError::Packet`] after closing everything that came with the packet (both
    /// are counted); otherwise as [`Channel::recv`]. Whatever the error, the peer is not to be trusted further.
    pub async fn recv_packet<P: Packet>(&self) -> Result<Option<(P, Vec<OwnedFd>)>, ChannelError> {
        let mut bytes = Vec::new();
        match self.recv(&mut bytes).await? {
            Some(received) => decode_for(&bytes, received).map(Some),
            None => Ok(None),
        }
    }

    /// As [`Channel::recv_packet`], for a receiver that owes the sender an answer also for a packet whose descriptors were lost
    /// in passing: `None` in their place. Everything that did arrive has been closed then.
    ///
    /// # Errors
    /// As [`Channel::recv_packet`], but for [`ChannelError::DescriptorsLost`].
    pub async fn recv_packet_or_loss<P: Packet>(
        &self,
    ) -> Result<Option<(P, Option<Vec<OwnedFd>>)>, ChannelError> {
        let mut bytes = Vec::new();
        match self.recv(&mut bytes).await {
            Ok(Some(received)) => {
                let (packet, descriptors) = decode_for(&bytes, received)?;
                Ok(Some((packet, Some(descriptors))))
            }
            Ok(None) => Ok(None),
            Err(ChannelError::DescriptorsLost) => {
                let packet = P::decode(&bytes).inspect_err(|_| count(&PACKETS_MALFORMED))?;
                Ok(Some((packet, None)))
            }
            Err(error) => Err(error),
        }
    }

    /// Who made or connected the other end.
    ///
    /// # Errors
    /// [`ChannelError::Setup`] when the kernel does not say, which it does for every connected UNIX socket.
    pub fn peer(&self) -> Result<PeerCredentials, ChannelError> {
        peer_credentials(self.as_fd()).map_err(ChannelError::Setup)
    }

    /// Gives the descriptor back and takes it out of the runtime.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.socket.into_fd()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.get().get_ref().as_fd()
    }
}

/// Takes the channel that a parent process handed over as descriptor 0, and puts `/dev/null` in its place.
///
/// To be called once, before anything else uses standard input. Whether it is a channel is checked by
/// [`Channel::from_fd`] or [`crate::BlockingChannel::from_fd`].
///
/// # Errors
/// When the descriptor cannot be duplicated (standard input is closed) or `/dev/null` cannot be opened.
pub fn take_stdin() -> io::Result<OwnedFd> {
    let channel = io::stdin().as_fd().try_clone_to_owned()?;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // Without this a second descriptor of the same socket would stay open, and the peer would wait for its end of file.
    rustix::stdio::dup2_stdin(&null)?;
    Ok(channel)
}

/// Checks that a descriptor is a channel, and makes it close-on-exec and non-blocking.
pub(crate) fn prepare(socket: BorrowedFd<'_>) -> Result<(), ChannelError> {
    use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};

    let is_channel = socket_domain(socket).is_ok_and(|domain| domain == AddressFamily::UNIX)
        && socket_type(socket).is_ok_and(|kind| kind == SocketType::SEQPACKET)
        && socket_acceptconn(socket).is_ok_and(|listens| !listens)
        // ENOTCONN for a socket that was never connected, and for one whose peer is already gone nothing: it has its
        // packets and its end of file still to be read.
        && rustix::net::getpeername(socket).is_ok();
    if !is_channel {
        return Err(ChannelError::NotAChannel);
    }
    prepare_flags(socket).map_err(|errno| ChannelError::Setup(errno.into()))
}

fn prepare_flags(socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
    fcntl_setfd(socket, fcntl_getfd(socket)? | FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(socket, true)
}

pub(crate) fn encode_for<P: Packet>(
    packet: &P,
    descriptors: &[BorrowedFd<'_>],
) -> Result<Vec<u8>, ChannelError> {
    let expected = packet.expected_descriptors();
    if expected != descriptors.len() {
        return Err(ChannelError::DescriptorCount {
            expected,
            received: descriptors.len(),
        });
    }
    Ok(packet.encode()?)
}

/// Decodes a packet; on any error the descriptors are closed as `received` is dropped.
pub(crate) fn decode_for<P: Packet>(
    bytes: &[u8],
    received: Received,
) -> Result<(P, Vec<OwnedFd>), ChannelError> {
    let packet = P::decode(bytes).inspect_err(|_| count(&PACKETS_MALFORMED))?;
    let expected = packet.expected_descriptors();
    if expected != received.descriptors.len() {
        count(&DESCRIPTOR_COUNTS_WRONG);
        return Err(ChannelError::DescriptorCount {
            expected,
            received: received.descriptors.len(),
        });
    }
    Ok((packet, received.descriptors))
}
