//! What the writer hands to its transport, and what cancellation does to it.

#![allow(clippy::unwrap_used)] // a failed expectation is the verdict

mod common;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use memory_transport::{Buffer, Incoming, ReadLimits, WsReader, WsWriteError, WsWriter};
use memory_wire::frame::{Opcode, Role};
use tokio::io::{AsyncReadExt, AsyncWrite, duplex};

use common::poll_once;

/// Accepts `room` bytes in all and counts the calls.
#[derive(Default)]
struct Sink {
    room: usize,
    bytes: Vec<u8>,
    writes: usize,
    flushes: usize,
    failing: bool,
}

impl AsyncWrite for Sink {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.failing {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = bytes.len().min(self.room);
        if count == 0 {
            return Poll::Pending;
        }
        self.room -= count;
        self.writes += 1;
        self.bytes.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes += 1;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn writes_each_frame_in_one_call_and_flushes() {
    let mut writer = WsWriter::new(
        Sink {
            room: 1 << 20,
            ..Sink::default()
        },
        Role::Client,
    );
    let mut buffer = Buffer::from(vec![7; 70_000].as_slice());
    writer
        .frame(Opcode::Text, false, &mut buffer)
        .await
        .unwrap();
    writer.ping(b"p").await.unwrap();
    writer
        .frame(Opcode::Continuation, true, &mut buffer)
        .await
        .unwrap();
    writer.close(1000, "").await.unwrap();
    let sink = writer.into_inner();
    assert_eq!((sink.writes, sink.flushes), (4, 4));
}

#[tokio::test]
async fn client_masks_each_frame_with_another_key() {
    let mut writer = WsWriter::new(
        Sink {
            room: 1 << 20,
            ..Sink::default()
        },
        Role::Client,
    );
    for _ in 0..100 {
        writer.send_slice(Opcode::Binary, &[0; 8]).await.unwrap();
    }
    let bytes = writer.into_inner().bytes;
    let mut keys: Vec<_> = bytes.chunks(14).map(|frame| frame[2..6].to_vec()).collect();
    for frame in bytes.chunks(14) {
        assert_eq!(
            (frame[1], &frame[6..10], &frame[10..14]),
            (0x88, &frame[2..6], &frame[2..6])
        );
    }
    keys.sort();
    keys.dedup();
    assert!(keys.len() >= 98, "{} different keys in 100", keys.len());
}

#[tokio::test]
async fn cancelling_inside_a_frame_poisons() {
    for room in [1, 2, 50] {
        let mut writer = WsWriter::new(
            Sink {
                room,
                ..Sink::default()
            },
            Role::Server,
        );
        assert!(poll_once(writer.send_slice(Opcode::Binary, &[0; 100])).is_none());
        assert!(matches!(
            writer.ping(b"").await,
            Err(WsWriteError::Poisoned)
        ));
        assert!(matches!(
            writer.close(1001, "").await,
            Err(WsWriteError::Poisoned)
        ));
    }
}

#[tokio::test]
async fn cancelling_before_a_frame_does_not() {
    let (mut far, near) = duplex(8);
    let mut writer = WsWriter::new(near, Role::Server);
    writer.send_slice(Opcode::Binary, b"123456").await.unwrap(); // fills the pipe
    assert!(poll_once(writer.send_slice(Opcode::Binary, b"never sent")).is_none());
    let mut bytes = [0; 8];
    far.read_exact(&mut bytes).await.unwrap();
    writer.send_slice(Opcode::Binary, b"abcdef").await.unwrap();
    far.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"\x82\x06abcdef");
}

#[tokio::test]
async fn refuses_to_write_after_failure_or_close() {
    let mut writer = WsWriter::new(
        Sink {
            failing: true,
            ..Sink::default()
        },
        Role::Server,
    );
    assert!(matches!(writer.ping(b"").await, Err(WsWriteError::Io(_))));
    assert!(matches!(
        writer.ping(b"").await,
        Err(WsWriteError::Poisoned)
    ));

    let mut writer = WsWriter::new(
        Sink {
            room: 1000,
            ..Sink::default()
        },
        Role::Server,
    );
    assert!(matches!(
        writer.ping(&[0; 126]).await,
        Err(WsWriteError::ControlTooLong)
    ));
    assert!(matches!(
        writer.close(1005, "").await,
        Err(WsWriteError::CloseCode)
    ));
    writer.ping(&[0; 125]).await.unwrap();
    writer.close_empty().await.unwrap();
    assert!(writer.is_closed());
    assert!(matches!(writer.pong(b"").await, Err(WsWriteError::Closed)));
    assert!(matches!(
        writer.close(1000, "").await,
        Err(WsWriteError::Closed)
    ));
    assert!(writer.get_ref().bytes.ends_with(b"\x88\x00"));
}

#[tokio::test]
async fn cuts_a_long_close_reason_at_a_character() {
    let mut writer = WsWriter::new(
        Sink {
            room: 1000,
            ..Sink::default()
        },
        Role::Server,
    );
    writer.close(1008, &"\u{20ac}".repeat(60)).await.unwrap();
    let bytes = writer.into_inner().bytes;
    let mut reader = WsReader::new(&bytes[..], Role::Client, ReadLimits::new(0), b"");
    let close = Incoming::Close {
        code: Some(1008),
        reason: "\u{20ac}".repeat(41),
    };
    assert_eq!(reader.next().await.unwrap(), close);
}
