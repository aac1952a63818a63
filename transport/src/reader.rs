//! The receiving half of a WebSocket.

use std::future::poll_fn;
use std::io;
use std::mem::{self, MaybeUninit};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use memory_wire::frame::{
    self, FragmentState, FrameFault, FrameHeader, MAX_CONTROL_LEN, Opcode, Role, Step, Utf8Check,
};
use memory_wire::reason::close;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};

use crate::buffer::Buffer;

/// What a reader takes from its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// Bytes of one data message, all its fragments together. A frame that would pass it is refused at its header, before
    /// anything is allocated for it. Driven by the peer; RFC 6455 allows 2^63.
    pub max_message: usize,
    /// Whether a binary message must be one frame, as records are (`docs/protocol.md` section 5).
    pub unfragmented_binary: bool,
}

impl ReadLimits {
    /// Messages of at most `max_message` bytes, fragmented or not.
    pub const fn new(max_message: usize) -> Self {
        Self {
            max_message,
            unfragmented_binary: false,
        }
    }

    /// The same, but every binary message is one frame.
    pub const fn with_unfragmented_binary(mut self) -> Self {
        self.unfragmented_binary = true;
        self
    }
}

/// One complete message or control frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// A text message, valid UTF-8, in [`WsReader::buffer`].
    Text,
    /// A binary message, in [`WsReader::buffer`].
    Binary,
    /// A ping whose payload, to be sent back, is in [`WsReader::control`].
    Ping,
    /// A pong whose payload is in [`WsReader::control`].
    Pong,
    /// The peer's close frame. Nothing comes after it.
    Close {
        /// The code; `None` when the frame was empty (1005 in the terms of RFC 6455 section 7.1.5).
        code: Option<u16>,
        /// The peer's own words, at most 123 bytes: escape before logging.
        reason: String,
    },
}

/// Why reading ended. Every error is final: later calls answer [`WsReadError::Ended`].
#[derive(Debug, Error)]
pub enum WsReadError {
    /// The transport failed, or TLS ended without close_notify.
    #[error("reading the socket: {0}")]
    Io(#[source] io::Error),
    /// Peer's fault: a frame against RFC 6455, text that is not UTF-8 included.
    #[error("WebSocket frame: {0}")]
    Frame(#[from] FrameFault),
    /// Peer's fault: a message of more than `max_message` bytes.
    #[error("message over {limit} bytes")]
    TooLarge {
        /// The bound it passed.
        limit: usize,
    },
    /// Peer's fault: a fragmented binary message where that is not allowed.
    #[error("fragmented binary message")]
    FragmentedBinary,
    /// The stream ended between messages without a close frame.
    #[error("stream ended without a close frame")]
    EndOfStream,
    /// The stream ended inside a frame or a fragmented message.
    #[error("stream ended inside a message")]
    Truncated,
    /// Caller's misuse: reading on after the close frame or an error.
    #[error("already ended")]
    Ended,
}

impl WsReadError {
    /// The close code that answers this error (`docs/protocol.md` section 4.6); `None` when there is nobody left to tell.
    pub fn close_code(&self) -> Option<u16> {
        match self {
            Self::TooLarge { .. } => Some(close::MESSAGE_TOO_BIG),
            Self::Frame(_) | Self::FragmentedBinary => Some(close::POLICY_VIOLATION),
            Self::Io(_) | Self::EndOfStream | Self::Truncated | Self::Ended => None,
        }
    }

    /// The fixed detail that a log line states.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Io(_) => "socket",
            Self::Frame(fault) => fault.reason(),
            Self::TooLarge { .. } => "message-too-large",
            Self::FragmentedBinary => "frame-fragmented-binary",
            Self::EndOfStream => "end-of-stream",
            Self::Truncated => "truncated",
            Self::Ended => "ended",
        }
    }
}

/// Reads whole messages, with control frames between their fragments as they come.
///
/// Memory: what was received of the message in progress (at most doubled by growth, plus 4 KiB), and less than 2 KiB of
/// what follows it. While nothing arrives and no message is in progress it holds no payload buffer at all.
pub struct WsReader<R> {
    io: R,
    role: Role,
    limits: ReadLimits,
    /// Received bytes not yet looked at: `inbox[taken..]`. Never more than one stack read and a partial header.
    inbox: Vec<u8>,
    taken: usize,
    /// The frame whose payload is being read. `None` between frames.
    frame: Option<Frame>,
    fragments: FragmentState,
    /// The data message in progress. Kept apart from `delivered` so that a caller who is shown a ping between fragments
    /// cannot disturb it.
    message: Buffer,
    delivered: Buffer,
    utf8: Utf8Check,
    control: [u8; CONTROL_ROOM],
    control_len: usize,
    received: u64,
    keeps_memory: bool,
    ended: bool,
}

#[derive(Clone, Copy)]
struct Frame {
    header: FrameHeader,
    step: Step,
    /// Payload bytes already taken; also the offset into the mask.
    done: u64,
}

impl<R: AsyncRead + Unpin> WsReader<R> {
    /// A reader that plays `role` (a server demands masked frames, a client refuses them). `leftover` is what was read past
    /// the end of the HTTP head.
    pub fn new(io: R, role: Role, limits: ReadLimits, leftover: &[u8]) -> Self {
        Self {
            io,
            role,
            limits,
            inbox: leftover.to_vec(),
            taken: 0,
            frame: None,
            fragments: FragmentState::default(),
            message: Buffer::new(),
            delivered: Buffer::new(),
            utf8: Utf8Check::default(),
            control: [0; CONTROL_ROOM],
            control_len: 0,
            received: 0,
            keeps_memory: false,
            ended: false,
        }
    }

    /// The next complete message or control frame. What the previous call delivered is gone with the call.
    ///
    /// Cancel-safe: dropping the future loses no byte; the next call goes on where it stopped.
    ///
    /// # Errors
    /// See [`WsReadError`]; each is final.
    pub async fn next(&mut self) -> Result<Incoming, WsReadError> {
        if self.ended {
            return Err(WsReadError::Ended);
        }
        self.reclaim();
        let result = self.advance().await;
        if matches!(result, Err(_) | Ok(Incoming::Close { .. })) {
            self.ended = true;
            self.message = Buffer::new();
            self.inbox = Vec::new();
            self.taken = 0;
        }
        result
    }

    /// Payload of the data message that the last call of [`next`](Self::next) delivered; empty otherwise.
    pub fn buffer(&mut self) -> &mut Buffer {
        &mut self.delivered
    }

    /// Takes the delivered payload and leaves `buffer` (its contents dropped, its memory reused) in its place.
    pub fn swap_buffer(&mut self, buffer: &mut Buffer) {
        mem::swap(&mut self.delivered, buffer);
        self.delivered.clear();
    }

    /// Payload, at most 125 bytes, of the ping or pong that the last call of [`next`](Self::next) delivered.
    pub fn control(&self) -> &[u8] {
        self.control.get(..self.control_len).unwrap_or_default()
    }

    /// Bytes received so far, headers included, the HTTP head not.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether a data message has begun and is not complete.
    pub fn is_mid_message(&self) -> bool {
        let in_data = matches!(
            self.frame,
            Some(Frame {
                step: Step::Data { .. },
                ..
            })
        );
        in_data || self.fragments.is_open()
    }

    /// Bytes of memory held for received data.
    pub fn memory(&self) -> usize {
        self.inbox.capacity() + self.message.capacity() + self.delivered.capacity()
    }

    /// From now on, buffers are kept while nothing arrives, until [`shrink`](Self::shrink): for an owner that has its own clock
    /// of quiet times, and does not want to grow them anew for every record of a stream.
    pub fn keep_memory(&mut self) {
        self.keeps_memory = true;
    }

    /// Gives back what a reader that waits does not need. What is in progress stays.
    pub fn shrink(&mut self) {
        self.release();
    }

    /// Reads and drops at most `most` bytes, below all framing, until the peer ends the stream: for the last moments of a
    /// socket, which a reset must not cut short. Also after [`next`](Self::next) has failed; nothing can be read afterwards.
    pub async fn discard(&mut self, most: u64) {
        self.ended = true;
        let mut rest = (&mut self.io).take(most);
        // However it ends, nobody looks at these bytes.
        let _ = tokio::io::copy(&mut rest, &mut tokio::io::sink()).await;
    }

    /// Other limits from the next frame header on.
    pub fn set_limits(&mut self, limits: ReadLimits) {
        self.limits = limits;
    }

    /// The transport, for its options.
    pub fn get_ref(&self) -> &R {
        &self.io
    }

    /// Gives the transport back; bytes received and not delivered are lost.
    pub fn into_inner(self) -> R {
        self.io
    }

    /// Forgets what was delivered and reuses its memory for the next message. What is in progress stays: `next` may have
    /// been cancelled inside a control frame.
    fn reclaim(&mut self) {
        if !self
            .frame
            .is_some_and(|frame| frame.header.opcode.is_control())
        {
            self.control_len = 0;
        }
        self.delivered.clear();
        if self.message.capacity() == 0 {
            mem::swap(&mut self.message, &mut self.delivered);
        }
    }

    /// The loop behind `next`. All progress is in `self`, and changes only in the same poll as the read that caused it:
    /// that is what makes `next` cancel-safe.
    async fn advance(&mut self) -> Result<Incoming, WsReadError> {
        loop {
            let Some(frame) = self.frame else {
                if !self.begin_frame()? {
                    self.fill().await?;
                }
                continue;
            };
            let remaining = frame.header.length.saturating_sub(frame.done);
            if remaining == 0 {
                self.frame = None;
                if let Some(incoming) = self.complete_frame(frame)? {
                    return Ok(incoming);
                }
            } else if !self.pending().is_empty() {
                self.take_payload(frame, remaining)?;
            } else if remaining >= STACK_READ as u64 && !frame.header.opcode.is_control() {
                self.read_payload(frame, remaining).await?;
            } else {
                self.fill().await?;
            }
        }
    }

    /// Decodes and judges the next header; false when more bytes are needed.
    fn begin_frame(&mut self) -> Result<bool, WsReadError> {
        let Some((header, used)) = frame::decode_header(self.pending(), self.role)? else {
            return Ok(false);
        };
        let step = self.fragments.accept(&header)?;
        if let Step::Data { kind, first, last } = step {
            let limit = self.limits.max_message;
            let total = header.length.saturating_add(self.message.len() as u64);
            if total > limit as u64 {
                return Err(WsReadError::TooLarge { limit });
            }
            if kind == Opcode::Binary && !last && self.limits.unfragmented_binary {
                return Err(WsReadError::FragmentedBinary);
            }
            if first {
                self.utf8 = Utf8Check::new();
            }
        }
        self.consume(used);
        self.frame = Some(Frame {
            header,
            step,
            done: 0,
        });
        Ok(true)
    }

    /// Moves payload from the inbox to where the frame belongs.
    fn take_payload(&mut self, frame: Frame, remaining: u64) -> Result<(), WsReadError> {
        let pending = self.inbox.get(self.taken..).unwrap_or_default();
        let count =
            usize::try_from(remaining).map_or(pending.len(), |most| most.min(pending.len()));
        let part = pending.get(..count).unwrap_or_default();
        if frame.header.opcode.is_control() {
            let end = self.control_len + count;
            // Cannot miss: a control frame of more than CONTROL_ROOM does not decode.
            if let Some(room) = self.control.get_mut(self.control_len..end) {
                room.copy_from_slice(part);
                if let Some(mask) = frame.header.mask {
                    frame::apply_mask(room, mask, self.control_len);
                }
                self.control_len = end;
            }
            self.consume(count);
            self.frame = Some(frame.advanced(count));
            Ok(())
        } else {
            let before = self.message.len();
            self.message.extend(part);
            self.consume(count);
            self.arrived(frame, before)
        }
    }

    /// Reads payload straight into the message, past the inbox.
    async fn read_payload(&mut self, frame: Frame, remaining: u64) -> Result<(), WsReadError> {
        let before = self.message.len();
        let bytes = self.message.growable();
        if bytes.len() == bytes.capacity() {
            let most = usize::try_from(remaining).unwrap_or(usize::MAX);
            bytes.reserve_exact(most.min(before.max(MIN_GROWTH)));
        }
        let count = (&mut self.io)
            .take(remaining)
            .read_buf(bytes)
            .await
            .map_err(WsReadError::Io)?;
        if count == 0 {
            return Err(WsReadError::Truncated);
        }
        self.received = self.received.saturating_add(count as u64);
        self.arrived(frame, before)
    }

    /// Unmasks and checks the data payload that was appended at `before`.
    fn arrived(&mut self, frame: Frame, before: usize) -> Result<(), WsReadError> {
        let part = self
            .message
            .payload_mut()
            .get_mut(before..)
            .unwrap_or_default();
        if let Some(mask) = frame.header.mask {
            // Only the offset modulo 4 matters.
            frame::apply_mask(part, mask, (frame.done % 4) as usize);
        }
        if matches!(
            frame.step,
            Step::Data {
                kind: Opcode::Text,
                ..
            }
        ) {
            self.utf8.feed(part)?;
        }
        let count = part.len();
        self.frame = Some(frame.advanced(count));
        Ok(())
    }

    /// What a frame with all its payload means to the caller; `None` for a fragment that is not the last.
    fn complete_frame(&mut self, frame: Frame) -> Result<Option<Incoming>, WsReadError> {
        let incoming = match (frame.step, frame.header.opcode) {
            (Step::Data { last: false, .. }, _) => return Ok(None),
            (Step::Data { kind, .. }, _) => {
                let text = kind == Opcode::Text;
                if text {
                    self.utf8.finish()?;
                }
                mem::swap(&mut self.message, &mut self.delivered);
                if text {
                    Incoming::Text
                } else {
                    Incoming::Binary
                }
            }
            (Step::Control, Opcode::Ping) => Incoming::Ping,
            (Step::Control, Opcode::Pong) => Incoming::Pong,
            (Step::Control, _) => match frame::decode_close(self.control())? {
                Some(close) => Incoming::Close {
                    code: Some(close.code),
                    reason: close.reason.to_owned(),
                },
                None => Incoming::Close {
                    code: None,
                    reason: String::new(),
                },
            },
        };
        Ok(Some(incoming))
    }

    fn pending(&self) -> &[u8] {
        self.inbox.get(self.taken..).unwrap_or_default()
    }

    fn consume(&mut self, count: usize) {
        self.taken += count;
        if self.taken >= self.inbox.len() {
            self.inbox.clear();
            self.taken = 0;
        }
    }

    /// Adds what arrived to the inbox.
    async fn fill(&mut self) -> Result<(), WsReadError> {
        poll_fn(|cx| self.poll_fill(cx)).await
    }

    /// Reads over a stack buffer, so that waiting owns no heap memory however many sockets wait.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), WsReadError>> {
        let mut room = [const { MaybeUninit::<u8>::uninit() }; STACK_READ];
        let mut arrived = ReadBuf::uninit(&mut room);
        let polled = Pin::new(&mut self.io).poll_read(cx, &mut arrived);
        if polled.is_pending() && !self.keeps_memory {
            self.release();
        }
        ready!(polled).map_err(WsReadError::Io)?;
        if arrived.filled().is_empty() {
            let between =
                self.pending().is_empty() && self.frame.is_none() && !self.fragments.is_open();
            return Poll::Ready(Err(if between {
                WsReadError::EndOfStream
            } else {
                WsReadError::Truncated
            }));
        }
        self.received = self.received.saturating_add(arrived.filled().len() as u64);
        self.inbox.drain(..self.taken);
        self.taken = 0;
        self.inbox.extend_from_slice(arrived.filled());
        Poll::Ready(Ok(()))
    }

    /// Gives back what an idle reader does not need.
    fn release(&mut self) {
        if self.inbox.is_empty() {
            self.inbox = Vec::new();
        }
        if !self.is_mid_message() {
            self.message.shrink();
        }
        self.delivered.shrink();
    }
}

impl<R> std::fmt::Debug for WsReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WsReader")
            .field("role", &self.role)
            .field("limits", &self.limits)
            .field("message", &self.message)
            .field("received", &self.received)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Frame {
    fn advanced(self, count: usize) -> Self {
        Self {
            done: self.done.saturating_add(count as u64),
            ..self
        }
    }
}

/// Bytes read at once where headers and small messages are expected. A payload of at least as many still to come is read
/// straight into the message.
const STACK_READ: usize = 2048;

/// [`MAX_CONTROL_LEN`] as an array length.
const CONTROL_ROOM: usize = MAX_CONTROL_LEN as usize;

/// Smallest step by which a message in progress grows.
const MIN_GROWTH: usize = 4096;
