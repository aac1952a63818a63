//! The sending half of a WebSocket.

use std::io;

use memory_wire::frame::{self, FrameHeader, MAX_CONTROL_LEN, Opcode, Role};
use thiserror::Error;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::buffer::Buffer;

/// Why a frame was not sent.
#[derive(Debug, Error)]
pub enum WsWriteError {
    /// The transport failed. Later calls answer [`WsWriteError::Poisoned`].
    #[error("writing the socket: {0}")]
    Io(#[source] io::Error),
    /// An earlier write failed or was cancelled inside a frame: nothing that follows could be understood.
    #[error("an earlier frame was cut short")]
    Poisoned,
    /// Caller's misuse: a frame after the close frame.
    #[error("close frame already sent")]
    Closed,
    /// Caller's misuse: a control frame of more than 125 bytes.
    #[error("control frame over {MAX_CONTROL_LEN} bytes")]
    ControlTooLong,
    /// Caller's misuse: a close code that may not be sent (RFC 6455 section 7.4).
    #[error("close code may not be sent")]
    CloseCode,
    /// The system gave no random masking key.
    #[error("no random bytes")]
    Random,
}

/// Writes frames, each with one write call and then a flush, so that nothing waits in the TLS layer.
///
/// Not cancel-safe within a frame: dropping a call after some of its frame's bytes went out poisons the writer, and later
/// calls answer [`WsWriteError::Poisoned`]. Dropped before the first byte, the frame is simply not sent (its buffer's
/// contents are then unspecified); dropped during the flush, it is sent with the next write or flush. A task that owns the
/// writer and is fed by a queue avoids the question.
pub struct WsWriter<W> {
    io: W,
    role: Role,
    keys: MaskKeys,
    /// For payloads the caller only lends.
    scratch: Buffer,
    state: State,
    sent: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The close frame went out.
    Closed,
    /// Inside a frame. Left only when its last byte is out.
    Partial,
}

impl<W: AsyncWrite + Unpin> WsWriter<W> {
    /// A writer that plays `role`: a client masks every frame with a fresh key, a server none (RFC 6455 section 5.1).
    pub fn new(io: W, role: Role) -> Self {
        Self {
            io,
            role,
            keys: MaskKeys::default(),
            scratch: Buffer::new(),
            state: State::Open,
            sent: 0,
        }
    }

    /// Sends `buffer`'s payload as one frame. The header goes into its headroom and the mask over its bytes, so nothing is
    /// copied; afterwards the buffer is empty and keeps its memory. Fragments of a message are the caller's to order: first
    /// its opcode, then [`Opcode::Continuation`], `fin` on the last.
    ///
    /// # Errors
    /// See [`WsWriteError`].
    pub async fn frame(
        &mut self,
        opcode: Opcode,
        fin: bool,
        buffer: &mut Buffer,
    ) -> Result<(), WsWriteError> {
        self.seal(opcode, fin, buffer)?;
        let then = if opcode == Opcode::Close {
            State::Closed
        } else {
            State::Open
        };
        let result = self.write(buffer.payload(), then).await;
        buffer.clear();
        result
    }

    /// Sends a whole message or control frame from a borrowed payload, which is copied once.
    ///
    /// # Errors
    /// See [`WsWriteError`].
    pub async fn send_slice(&mut self, opcode: Opcode, payload: &[u8]) -> Result<(), WsWriteError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend(payload);
        let result = self.frame(opcode, true, &mut scratch).await;
        scratch.shrink();
        self.scratch = scratch;
        result
    }

    /// Sends a ping with at most 125 bytes.
    ///
    /// # Errors
    /// See [`WsWriteError`].
    pub async fn ping(&mut self, payload: &[u8]) -> Result<(), WsWriteError> {
        self.send_slice(Opcode::Ping, payload).await
    }

    /// Sends a pong, which repeats the ping's payload.
    ///
    /// # Errors
    /// See [`WsWriteError`].
    pub async fn pong(&mut self, payload: &[u8]) -> Result<(), WsWriteError> {
        self.send_slice(Opcode::Pong, payload).await
    }

    /// Sends the close frame; a reason over 123 bytes is cut at a character. No frame may follow. The transport stays open:
    /// see [`shutdown`](Self::shutdown).
    ///
    /// # Errors
    /// See [`WsWriteError`].
    pub async fn close(&mut self, code: u16, reason: &str) -> Result<(), WsWriteError> {
        let payload = frame::encode_close(code, reason).map_err(|_| WsWriteError::CloseCode)?;
        self.send_slice(Opcode::Close, &payload).await
    }

    /// Answers a close frame that had no code with an equally empty one.
    ///
    /// # Errors
    /// See [`WsWriteError`].
    pub async fn close_empty(&mut self) -> Result<(), WsWriteError> {
        self.send_slice(Opcode::Close, &[]).await
    }

    /// Hands everything written to the network. Only needed after a cancelled call.
    ///
    /// # Errors
    /// [`WsWriteError::Io`].
    pub async fn flush(&mut self) -> Result<(), WsWriteError> {
        self.io.flush().await.map_err(WsWriteError::Io)
    }

    /// Ends the transport's sending side: close_notify, then the TCP half-close.
    ///
    /// # Errors
    /// [`WsWriteError::Io`].
    pub async fn shutdown(&mut self) -> Result<(), WsWriteError> {
        self.io.shutdown().await.map_err(WsWriteError::Io)
    }

    /// Bytes accepted by the transport so far, headers included.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether the close frame was sent.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The transport, for its options.
    pub fn get_ref(&self) -> &W {
        &self.io
    }

    /// Gives the transport back.
    pub fn into_inner(self) -> W {
        self.io
    }

    /// Turns the payload into a frame in place.
    fn seal(&mut self, opcode: Opcode, fin: bool, buffer: &mut Buffer) -> Result<(), WsWriteError> {
        match self.state {
            State::Open => {}
            State::Closed => return Err(WsWriteError::Closed),
            State::Partial => return Err(WsWriteError::Poisoned),
        }
        if opcode.is_control() && buffer.len() as u64 > MAX_CONTROL_LEN {
            return Err(WsWriteError::ControlTooLong);
        }
        let mask = match self.role {
            Role::Client => Some(self.keys.next()?),
            Role::Server => None,
        };
        let header = FrameHeader {
            fin,
            opcode,
            length: buffer.len() as u64,
            mask,
        };
        if let Some(mask) = mask {
            frame::apply_mask(buffer.payload_mut(), mask, 0);
        }
        buffer.prepend(frame::encode_header(&header).as_slice());
        Ok(())
    }

    /// Writes a frame's bytes, which leaves the writer in the state `then`, and flushes.
    async fn write(&mut self, mut bytes: &[u8], then: State) -> Result<(), WsWriteError> {
        while !bytes.is_empty() {
            let count = match self.io.write(bytes).await {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                other => other,
            };
            let count = count
                .inspect_err(|_| self.state = State::Partial)
                .map_err(WsWriteError::Io)?;
            self.sent = self.sent.saturating_add(count as u64);
            bytes = bytes.get(count..).unwrap_or_default();
            self.state = if bytes.is_empty() {
                then
            } else {
                State::Partial
            };
        }
        self.flush().await
    }
}

impl<W> std::fmt::Debug for WsWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WsWriter")
            .field("role", &self.role)
            .field("state", &self.state)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

/// Masking keys, unpredictable and used once (RFC 6455 section 5.3), drawn sixteen at a time to spare system calls.
struct MaskKeys {
    pool: [u8; 64],
    used: usize,
}

impl Default for MaskKeys {
    fn default() -> Self {
        let pool = [0; 64];
        Self {
            used: pool.len(),
            pool,
        }
    }
}

impl MaskKeys {
    fn next(&mut self) -> Result<[u8; 4], WsWriteError> {
        if let Some(key) = self
            .pool
            .get(self.used..)
            .and_then(|rest| rest.first_chunk())
        {
            self.used += key.len();
            return Ok(*key);
        }
        self.used = self.pool.len(); // so that a failure leaves no old key to be used again
        getrandom::fill(&mut self.pool).map_err(|_| WsWriteError::Random)?;
        let key = self
            .pool
            .first_chunk()
            .copied()
            .ok_or(WsWriteError::Random)?;
        self.used = key.len();
        Ok(key)
    }
}
