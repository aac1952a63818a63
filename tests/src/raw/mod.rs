//! A client without manners: it sends any bytes, and shows every frame as it came.
//!
//! [`RawClient`] knows TLS, the upgrade and frames; [`Speaker`] on top of it knows messages, the three framings and the
//! account of upload credit, and nothing that would keep it from breaking a rule on purpose.

mod claim;
mod speaker;
mod upgrade;

pub use claim::{Claim, unix_now};
pub use speaker::{Framing, Ledger, Speaker, did, of_session, ok, text};
pub use upgrade::{UpgradeAnswer, browser_config, dial, dial_over, dial_with, request};

use std::net::SocketAddr;

use memory_wire::frame::{
    FrameHeader, Opcode, Role, apply_mask, decode_close, decode_header, encode_header,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::error::{holds, soon};
use crate::{Context, GateError, Stage};

/// Bytes asked of the socket at once.
const READ: usize = 64 << 10;

/// One frame as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Whether it ends its message.
    pub fin: bool,
    /// Its kind.
    pub opcode: Opcode,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// How the router closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closing {
    /// The code.
    pub code: u16,
    /// `<reason> <connection>`.
    pub text: String,
}

/// A WebSocket whose every byte is the gate's.
#[derive(Debug)]
pub struct RawClient {
    stream: TlsStream<TcpStream>,
    local: SocketAddr,
    /// Received and not yet taken.
    received: Vec<u8>,
    taken: usize,
}

impl RawClient {
    /// Connects and upgrades as an ordinary client does.
    ///
    /// # Errors
    /// When the upgrade is refused.
    pub async fn connect(stage: &Stage) -> Result<Self, GateError> {
        let answer = dial(stage, &upgrade::ordinary_request(stage)).await?;
        answer.into_client()
    }

    /// The same over a TCP connection to the router that is open already.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_over(stage: &Stage, stream: TcpStream) -> Result<Self, GateError> {
        let config = upgrade::ordinary_config(stage)?;
        let request = upgrade::ordinary_request(stage);
        dial_over(stream, config, &request).await?.into_client()
    }

    fn new(stream: TlsStream<TcpStream>, leftover: Vec<u8>) -> Result<Self, GateError> {
        let local = stream
            .get_ref()
            .0
            .local_addr()
            .during("the client's address")?;
        Ok(Self {
            stream,
            local,
            received: leftover,
            taken: 0,
        })
    }

    /// The address it has at the router.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn frame(
        &mut self,
        fin: bool,
        opcode: Opcode,
        payload: &[u8],
    ) -> Result<(), GateError> {
        // Any key is as good: nothing is between us and the router.
        let mask = [0x55, 0xaa, 0x0f, 0xf0];
        let header = FrameHeader {
            fin,
            opcode,
            length: payload.len() as u64,
            mask: Some(mask),
        };
        let mut bytes = encode_header(&header).as_slice().to_vec();
        let start = bytes.len();
        bytes.extend_from_slice(payload);
        apply_mask(bytes.get_mut(start..).unwrap_or_default(), mask, 0);
        self.bytes(&bytes).await
    }

    /// Sends bytes that need not be a frame.
    ///
    /// # Errors
    /// When the connection is gone.
    pub async fn bytes(&mut self, bytes: &[u8]) -> Result<(), GateError> {
        let write = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        soon("sending", write).await?.during("sending")
    }

    /// The next frame.
    ///
    /// # Errors
    /// When none comes in time, or the connection is gone.
    pub async fn next(&mut self) -> Result<Frame, GateError> {
        soon("a frame of the router", self.receive()).await?
    }

    async fn receive(&mut self) -> Result<Frame, GateError> {
        loop {
            let unread = self.received.get(self.taken..).unwrap_or_default();
            let header = decode_header(unread, Role::Client).during("a frame of the router")?;
            if let Some((header, len)) = header {
                let end = usize::try_from(header.length)
                    .ok()
                    .and_then(|length| length.checked_add(len))
                    .during("a frame of the router")?;
                if let Some(payload) = unread.get(len..end) {
                    let payload = payload.to_vec();
                    self.taken += end;
                    return Ok(Frame {
                        fin: header.fin,
                        opcode: header.opcode,
                        payload,
                    });
                }
            }
            self.received.drain(..self.taken);
            self.taken = 0;
            self.received.reserve(READ);
            let count = self
                .stream
                .read_buf(&mut self.received)
                .await
                .during("reading")?;
            holds("reading", count > 0, "a frame", "the end of the stream")?;
        }
    }

    /// Reads until the router closes; everything before is dropped.
    ///
    /// # Errors
    /// When it does not close, or not with a close frame.
    pub async fn closing(&mut self) -> Result<Closing, GateError> {
        let wait = async {
            loop {
                let frame = self.receive().await?;
                if frame.opcode == Opcode::Close {
                    return closing_of(&frame);
                }
            }
        };
        soon("a close frame of the router", wait).await?
    }

    /// Answers the router's close frame, after which it ends the connection.
    ///
    /// # Errors
    /// When it does not end it.
    pub async fn answer_closing(&mut self) -> Result<(), GateError> {
        // A router that has gone already does not need it.
        let _ = self.frame(true, Opcode::Close, &[]).await;
        let mut rest = Vec::new();
        // However it ends.
        let _ = soon("the end of the stream", self.stream.read_to_end(&mut rest)).await?;
        // A router that no longer understands the frames waits for this.
        let _ = self.stream.shutdown().await;
        Ok(())
    }

    /// Ends the connection with a TCP reset.
    ///
    /// # Errors
    /// When the option cannot be set.
    pub fn reset(self) -> Result<(), GateError> {
        let (stream, _) = self.stream.into_inner();
        reset(stream)
    }
}

/// Ends a TCP connection with a reset instead of an orderly end.
///
/// # Errors
/// When the option cannot be set.
pub fn reset(stream: TcpStream) -> Result<(), GateError> {
    socket2::SockRef::from(&stream)
        .set_linger(Some(std::time::Duration::ZERO))
        .during("asking for a reset")
    // Dropped here, which sends it.
}

/// What a close frame says.
///
/// # Errors
/// When it is malformed or says nothing.
pub fn closing_of(frame: &Frame) -> Result<Closing, GateError> {
    let close = decode_close(&frame.payload)
        .during("a close frame")?
        .during("the code of a close frame")?;
    Ok(Closing {
        code: close.code,
        text: close.reason.to_owned(),
    })
}
