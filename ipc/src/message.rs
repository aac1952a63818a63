//! One packet in or out, without waiting: the only place that calls `sendmsg` and `recvmsg`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};

use crate::ChannelError;
use crate::counters::{DESCRIPTORS_LOST, PACKETS_TOO_LONG, count};

/// Bytes of the longest packet, in both directions. The longest one defined (a certificate of 4 KiB with its names)
/// stays well below; what is larger goes into a [`crate::memfd`].
pub const MAX_PACKET_LEN: usize = 8192;

/// Descriptors that may come with one packet. The kernel's own bound is 253; the packets defined need at most 4.
pub const MAX_DESCRIPTORS: usize = 8;

/// What came with a packet beside its bytes.
#[derive(Debug, Default)]
pub struct Received {
    /// The descriptors, in the order in which they were sent, all close-on-exec.
    pub descriptors: Vec<OwnedFd>,
}

/// Sends one packet or fails at once.
///
/// # Errors
/// [`ChannelError::WouldBlock`] when the channel is full; see [`check_sizes`] for what is refused before the kernel is asked.
pub(crate) fn send_now(
    socket: BorrowedFd<'_>,
    packet: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), ChannelError> {
    check_sizes(packet, descriptors)?;
    let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(ChannelError::TooManyDescriptors {
            count: descriptors.len(),
        });
    }
    loop {
        // A sequenced packet goes out whole or not at all, so the count that comes back says nothing new.
        return match sendmsg(
            socket,
            &[IoSlice::new(packet)],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(_) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Err(ChannelError::WouldBlock),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(ChannelError::Closed),
            Err(errno) => Err(ChannelError::Send(errno.into())),
        };
    }
}

/// Receives one packet into `packet`, which is cleared first, or fails at once. `None` is end of file.
///
/// Must not run at the same time as another receive on the same socket: the packet that was measured would not be the one
/// received (which is then noticed, and refused as too long).
///
/// # Errors
/// [`ChannelError::WouldBlock`] when nothing is there; [`ChannelError::PacketTooLong`] and [`ChannelError::DescriptorsLost`]
/// after closing everything that came with the packet. Its bytes are left in `packet` with the latter alone.
pub(crate) fn receive_now(
    socket: BorrowedFd<'_>,
    packet: &mut Vec<u8>,
) -> Result<Option<Received>, ChannelError> {
    packet.clear();
    let length = peek_length(socket)?;
    if length > MAX_PACKET_LEN {
        drop_packet(socket)?;
        count(&PACKETS_TOO_LONG);
        return Err(ChannelError::PacketTooLong { length });
    }
    packet.resize(length, 0);
    let mut space = [MaybeUninit::uninit(); CONTROL_LEN];
    // Dropping this closes the descriptors that were not taken out of it, on every path.
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = retrying(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(packet)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        )
    })?;
    let mut descriptors = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = item {
            descriptors.extend(rights);
        }
    }
    packet.truncate(message.bytes);
    if message.flags.contains(ReturnFlags::TRUNC) {
        packet.clear();
        count(&PACKETS_TOO_LONG);
        return Err(ChannelError::PacketTooLong { length });
    }
    // Alignment may leave room for one descriptor more than was asked for: that one was one too many all the same.
    if message.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MAX_DESCRIPTORS {
        count(&DESCRIPTORS_LOST);
        return Err(ChannelError::DescriptorsLost);
    }
    if packet.is_empty() {
        return if descriptors.is_empty() {
            Ok(None)
        } else {
            Err(ChannelError::EmptyPacket)
        };
    }
    Ok(Some(Received { descriptors }))
}

/// Refuses what no peer would accept.
pub(crate) fn check_sizes(
    packet: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), ChannelError> {
    if packet.is_empty() {
        return Err(ChannelError::EmptyPacket);
    }
    if packet.len() > MAX_PACKET_LEN {
        return Err(ChannelError::PacketTooLong {
            length: packet.len(),
        });
    }
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(ChannelError::TooManyDescriptors {
            count: descriptors.len(),
        });
    }
    Ok(())
}

/// Bytes of the packet at the head of the queue, which stays there; 0 at end of file.
fn peek_length(socket: BorrowedFd<'_>) -> Result<usize, ChannelError> {
    let mut nothing = [0_u8; 0];
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
    retrying(|| recv(socket, &mut nothing[..], flags)).map(|(_, length)| length)
}

/// Takes the packet at the head of the queue and drops it. Without room for control data its descriptors are never
/// installed here: the kernel lets go of them.
fn drop_packet(socket: BorrowedFd<'_>) -> Result<(), ChannelError> {
    let mut nothing = [0_u8; 0];
    retrying(|| recv(socket, &mut nothing[..], RecvFlags::DONTWAIT)).map(|_| ())
}

/// Repeats an interrupted receive, and one that reports a reset: a peer that dies with packets of ours unread leaves
/// `ECONNRESET` in front of the packets that it sent before. The kernel reports it once, and then gives the packets.
fn retrying<T>(mut receive: impl FnMut() -> rustix::io::Result<T>) -> Result<T, ChannelError> {
    loop {
        return match receive() {
            Ok(value) => Ok(value),
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(Errno::AGAIN) => Err(ChannelError::WouldBlock),
            Err(errno) => Err(ChannelError::Receive(io::Error::from(errno))),
        };
    }
}

const CONTROL_LEN: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));
