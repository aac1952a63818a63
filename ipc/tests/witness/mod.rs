//! Descriptors to send away, and a sender that keeps to no rule.

use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// A descriptor to be sent away, and the means to see that nobody has it any more.
#[derive(Debug)]
pub(crate) struct Witness {
    reader: std::io::PipeReader,
    writer: OwnedFd,
}

impl Witness {
    pub(crate) fn new() -> Self {
        let (reader, writer) = std::io::pipe().expect("pipe");
        Self {
            reader,
            writer: writer.into(),
        }
    }

    pub(crate) fn some(count: usize) -> Vec<Self> {
        (0..count).map(|_| Self::new()).collect()
    }

    pub(crate) fn borrowed(witnesses: &[Self]) -> Vec<BorrowedFd<'_>> {
        witnesses
            .iter()
            .map(|witness| witness.writer.as_fd())
            .collect()
    }

    /// Waits for the end of file that comes when the last copy is closed. (A process started by another test may hold one
    /// for the moment between its fork and its exec.)
    pub(crate) fn assert_released(self) {
        let Self { mut reader, writer } = self;
        drop(writer);
        let timeout = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let ready = poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&timeout));
        assert_eq!(ready, Ok(1), "a copy of the descriptor is still open");
        assert_eq!(reader.read(&mut [0]).expect("read"), 0);
    }
}

/// Sends as a peer does that keeps to no rule.
pub(crate) fn send_raw(socket: BorrowedFd<'_>, packet: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let packet = [std::io::IoSlice::new(packet)];
    sendmsg(socket, &packet, &mut control, SendFlags::NOSIGNAL).expect("send");
}
