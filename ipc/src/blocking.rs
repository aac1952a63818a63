//! Channels outside of a runtime, with a deadline for every wait.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::channel::{decode_for, encode_for, prepare};
use crate::credentials::peer_credentials;
use crate::message::{receive_now, send_now};
use crate::{ChannelError, Packet, PeerCredentials, Received};

/// One end of a channel for code that cannot be asynchronous, such as a signer called by the TLS library.
#[derive(Debug)]
pub struct BlockingChannel {
    socket: OwnedFd,
}

impl BlockingChannel {
    /// Takes over one end of a channel, as [`crate::Channel::from_fd`] does.
    ///
    /// # Errors
    /// [`ChannelError::NotAChannel`] for any other kind of descriptor, [`ChannelError::Setup`] when the kernel refuses. The
    /// descriptor is closed then.
    pub fn from_fd(socket: OwnedFd) -> Result<Self, ChannelError> {
        prepare(socket.as_fd())?;
        Ok(Self { socket })
    }

    /// Sends one packet with its descriptors, waiting until `deadline` while the channel is full. A deadline that has
    /// passed already still allows what needs no wait.
    ///
    /// # Errors
    /// [`ChannelError::Deadline`]; otherwise as [`crate::Channel::send`].
    pub fn send(
        &self,
        packet: &[u8],
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), ChannelError> {
        loop {
            match send_now(self.as_fd(), packet, descriptors) {
                Err(ChannelError::WouldBlock) => {
                    self.wait(PollFlags::OUT, deadline, ChannelError::Send)?;
                }
                result => return result,
            }
        }
    }

    /// Receives the next packet into `packet`, waiting for it until `deadline`. `None` is end of file. A deadline that has
    /// passed already still allows what needs no wait.
    ///
    /// # Errors
    /// [`ChannelError::Deadline`]; otherwise as [`crate::Channel::recv`].
    pub fn recv(
        &self,
        packet: &mut Vec<u8>,
        deadline: Instant,
    ) -> Result<Option<Received>, ChannelError> {
        loop {
            match receive_now(self.as_fd(), packet) {
                Err(ChannelError::WouldBlock) => {
                    self.wait(PollFlags::IN, deadline, ChannelError::Receive)?;
                }
                result => return result,
            }
        }
    }

    /// Encodes and sends a packet with exactly the descriptors that its tag calls for.
    ///
    /// # Errors
    /// As [`crate::Channel::send_packet`] and [`BlockingChannel::send`].
    pub fn send_packet<P: Packet>(
        &self,
        packet: &P,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), ChannelError> {
        let bytes = encode_for(packet, descriptors)?;
        self.send(&bytes, descriptors, deadline)
    }

    /// Receives and decodes the next packet and its descriptors, exactly as many as its tag calls for. `None` is end of file.
    ///
    /// # Errors
    /// As [`crate::Channel::recv_packet`] and [`BlockingChannel::recv`].
    pub fn recv_packet<P: Packet>(
        &self,
        deadline: Instant,
    ) -> Result<Option<(P, Vec<OwnedFd>)>, ChannelError> {
        let mut bytes = Vec::new();
        match self.recv(&mut bytes, deadline)? {
            Some(received) => decode_for(&bytes, received).map(Some),
            None => Ok(None),
        }
    }

    /// Who made or connected the other end.
    ///
    /// # Errors
    /// [`ChannelError::Setup`] when the kernel does not say, which it does for every connected UNIX socket.
    pub fn peer(&self) -> Result<PeerCredentials, ChannelError> {
        peer_credentials(self.as_fd()).map_err(ChannelError::Setup)
    }

    /// Gives the descriptor back.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.socket
    }

    /// Returns when the socket is ready, or by an interruption; the caller tries again in both cases.
    fn wait(
        &self,
        wanted: PollFlags,
        deadline: Instant,
        failed: fn(std::io::Error) -> ChannelError,
    ) -> Result<(), ChannelError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChannelError::Deadline);
        }
        // Out of the range of a timespec only for a deadline billions of years away: wait without one then.
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&self.socket, wanted)], timeout.as_ref()) {
            Ok(0) => Err(ChannelError::Deadline),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

impl AsFd for BlockingChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
