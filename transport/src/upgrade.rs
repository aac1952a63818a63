//! The HTTP/1.1 upgrade of a stream to a WebSocket, both ends (`docs/protocol.md` sections 4.1 and 6).
//!
//! Exactly one request is read; bytes behind its head go to the WebSocket's reader untouched, and after a refusal nobody
//! looks at them.

use std::io;
use std::time::Duration;

use memory_wire::frame::Role;
use memory_wire::upgrade::{
    MAX_HEAD_LEN, Parsed, RefusalBody, ResponseFault, UpgradePolicy, UpgradeRefusal,
    UpgradeRequest, client_request_with_origin, encode_key, parse_request, parse_response,
    refusal_response, switching_protocols,
};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::{Instant, timeout_at};

use crate::reader::{ReadLimits, WsReader};
use crate::writer::WsWriter;

/// Both halves of an open WebSocket.
#[derive(Debug)]
pub struct WebSocket<S> {
    /// The receiving half.
    pub reader: WsReader<ReadHalf<S>>,
    /// The sending half.
    pub writer: WsWriter<WriteHalf<S>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// A WebSocket over a stream whose upgrade is done, `leftover` having been read past its head.
    pub fn new(stream: S, role: Role, limits: ReadLimits, leftover: &[u8]) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self {
            reader: WsReader::new(read, role, limits, leftover),
            writer: WsWriter::new(write, role),
        }
    }
}

/// Why a server's upgrade did not happen.
#[derive(Debug, Error)]
pub enum AcceptError {
    /// Peer's fault: the request broke a rule. It was answered and the stream is shut down.
    #[error("upgrade refused: {0}")]
    Refused(#[from] UpgradeRefusal),
    /// The stream ended before the request did.
    #[error("stream ended inside the upgrade request")]
    EndOfStream,
    /// The deadline passed first. Nothing was answered.
    #[error("upgrade timed out")]
    Timeout,
    /// The transport failed.
    #[error("upgrading the socket: {0}")]
    Io(#[source] io::Error),
}

/// A client's request that keeps the rules and waits for its answer: the place for a decision that needs to know what was
/// asked, such as a tenant's cap. Dropped unanswered, it closes the stream.
#[derive(Debug)]
pub struct PendingUpgrade<S> {
    stream: S,
    request: UpgradeRequest,
    leftover: Vec<u8>,
    deadline: Instant,
}

impl<S: AsyncRead + AsyncWrite + Unpin> PendingUpgrade<S> {
    /// Reads a request and judges it by `policy`, all before `deadline`. A refusal is answered here, with `connection` (if
    /// given) in its body.
    ///
    /// # Errors
    /// See [`AcceptError`]; the stream is closed.
    pub async fn receive(
        mut stream: S,
        policy: &UpgradePolicy,
        connection: Option<&str>,
        deadline: Instant,
    ) -> Result<Self, AcceptError> {
        let read = read_head(&mut stream, |head| {
            Ok(match parse_request(head, policy)? {
                Parsed::Incomplete => None,
                Parsed::Complete { request, consumed } => Some((request, consumed)),
            })
        });
        let outcome = timeout_at(deadline, read)
            .await
            .map_err(|_| AcceptError::Timeout)?;
        match outcome {
            Ok((request, leftover)) => Ok(Self {
                stream,
                request,
                leftover,
                deadline,
            }),
            Err(HeadError::Io(error)) => Err(AcceptError::Io(error)),
            Err(HeadError::EndOfStream) => Err(AcceptError::EndOfStream),
            Err(HeadError::Fault(refusal, _)) => {
                let refusal: UpgradeRefusal = refusal;
                let body = RefusalBody {
                    error: refusal.reason.as_str(),
                    connection,
                    ..RefusalBody::default()
                };
                answer_and_close(stream, &refusal_response(refusal.status, &body), deadline).await;
                Err(refusal.into())
            }
        }
    }

    /// What was asked.
    pub fn request(&self) -> &UpgradeRequest {
        &self.request
    }

    /// Answers 101 and opens the WebSocket.
    ///
    /// # Errors
    /// [`AcceptError::Timeout`] or [`AcceptError::Io`].
    pub async fn accept(
        mut self,
        limits: ReadLimits,
    ) -> Result<(WebSocket<S>, UpgradeRequest), AcceptError> {
        let answer = switching_protocols(&self.request.key);
        timeout_at(self.deadline, write_flush(&mut self.stream, &answer))
            .await
            .map_err(|_| AcceptError::Timeout)?
            .map_err(AcceptError::Io)?;
        Ok((
            WebSocket::new(self.stream, Role::Server, limits, &self.leftover),
            self.request,
        ))
    }

    /// Answers with `status` and `body` and closes, as far as the peer lets it before the deadline.
    pub async fn refuse(self, status: u16, body: &RefusalBody<'_>) {
        answer_and_close(self.stream, &refusal_response(status, body), self.deadline).await;
    }
}

/// Receives a request and accepts it whenever it keeps the rules. To decide in between, use [`PendingUpgrade`].
///
/// # Errors
/// See [`AcceptError`].
pub async fn accept<S>(
    stream: S,
    policy: &UpgradePolicy,
    limits: ReadLimits,
    deadline: Instant,
) -> Result<(WebSocket<S>, UpgradeRequest), AcceptError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let pending = PendingUpgrade::receive(stream, policy, None, deadline).await?;
    pending.accept(limits).await
}

/// What a client asks for.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The `Host` field: name, and port where it is not the scheme's own.
    pub host: &'a str,
    /// Path with its query.
    pub path: &'a str,
    /// The `Origin` field, as a browser sends it. Never on the private side.
    pub origin: Option<&'a str>,
}

/// Why a client's upgrade did not happen.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The server refused with an HTTP answer.
    #[error("upgrade refused with status {status}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The `Retry-After` field, in seconds.
        retry_after: Option<u32>,
        /// The answer's body as far as it came, at most 4 KiB. The server's words: not for a log line.
        body: Vec<u8>,
    },
    /// Peer's fault: an answer against RFC 6455, or caller's misuse ([`ResponseFault::Request`]).
    #[error("upgrade: {0}")]
    Response(#[source] ResponseFault),
    /// The stream ended before the answer did.
    #[error("stream ended inside the upgrade answer")]
    EndOfStream,
    /// The deadline passed first.
    #[error("upgrade timed out")]
    Timeout,
    /// The transport failed.
    #[error("upgrading the socket: {0}")]
    Io(#[source] io::Error),
    /// The system gave no random key.
    #[error("no random bytes")]
    Random,
}

/// Asks the server behind `stream` for a WebSocket, before `deadline`.
///
/// # Errors
/// See [`ConnectError`]; the stream is closed.
pub async fn connect<S>(
    stream: S,
    target: Target<'_>,
    limits: ReadLimits,
    deadline: Instant,
) -> Result<WebSocket<S>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    timeout_at(deadline, connect_without_deadline(stream, target, limits))
        .await
        .map_err(|_| ConnectError::Timeout)?
}

async fn connect_without_deadline<S>(
    mut stream: S,
    target: Target<'_>,
    limits: ReadLimits,
) -> Result<WebSocket<S>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|_| ConnectError::Random)?;
    let key = encode_key(&random);
    let request = client_request_with_origin(target.host, target.path, &key, target.origin)
        .map_err(ConnectError::Response)?;
    write_flush(&mut stream, &request)
        .await
        .map_err(ConnectError::Io)?;
    let parse = |head: &[u8]| Ok(parse_response(head, &key)?.map(|consumed| ((), consumed)));
    match read_head(&mut stream, parse).await {
        Ok(((), leftover)) => Ok(WebSocket::new(stream, Role::Client, limits, &leftover)),
        Err(HeadError::Io(error)) => Err(ConnectError::Io(error)),
        Err(HeadError::EndOfStream) => Err(ConnectError::EndOfStream),
        Err(HeadError::Fault(
            ResponseFault::Refused {
                status,
                retry_after,
                head_len,
                body_len,
            },
            mut bytes,
        )) => {
            let declared = body_len.and_then(|len| usize::try_from(len).ok());
            let body_len = declared.map_or(MAX_REFUSAL_LEN, |len| len.min(MAX_REFUSAL_LEN));
            let mut body = bytes.split_off(head_len.min(bytes.len()));
            let missing = body_len.saturating_sub(body.len()) as u64;
            // A body cut short does not matter beside the refusal.
            let _ = (&mut stream).take(missing).read_to_end(&mut body).await;
            body.truncate(body_len);
            Err(ConnectError::Refused {
                status,
                retry_after,
                body,
            })
        }
        Err(HeadError::Fault(fault, _)) => Err(ConnectError::Response(fault)),
    }
}

/// Why a head was not read.
enum HeadError<F> {
    Io(io::Error),
    EndOfStream,
    /// What the parser said, and the bytes read.
    Fault(F, Vec<u8>),
}

/// Reads until `parse` gives a value and the length of its head; returns the value and what was read behind the head.
///
/// `parse` answers `None` for an incomplete head and refuses one of [`MAX_HEAD_LEN`]. It is asked only when a line ended or
/// the bound is reached, so that a peer who sends byte by byte cannot make it read the same head thousands of times.
async fn read_head<S, T, F>(
    stream: &mut S,
    parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, F>,
) -> Result<(T, Vec<u8>), HeadError<F>>
where
    S: AsyncRead + Unpin,
{
    let mut head = Vec::new();
    loop {
        let before = head.len();
        let count = (&mut *stream)
            .take(HEAD_READ)
            .read_buf(&mut head)
            .await
            .map_err(HeadError::Io)?;
        if count == 0 {
            return Err(HeadError::EndOfStream);
        }
        let fresh = head.get(before..).unwrap_or_default();
        if !fresh.contains(&b'\n') && head.len() < MAX_HEAD_LEN {
            continue;
        }
        match parse(&head) {
            Ok(None) => {}
            Ok(Some((value, consumed))) => {
                let leftover = head.split_off(consumed.min(head.len()));
                return Ok((value, leftover));
            }
            Err(fault) => return Err(HeadError::Fault(fault, head)),
        }
    }
}

async fn write_flush<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Sends a last answer, ends the sending side, and discards what still comes for a moment: a TCP socket closed over unread
/// bytes resets the connection, and the reset would overtake the answer.
async fn answer_and_close<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    answer: &[u8],
    deadline: Instant,
) {
    let close = async {
        write_flush(&mut stream, answer).await?;
        stream.shutdown().await?;
        let linger = deadline.min(Instant::now() + LINGER_TIMEOUT);
        let mut rest = (&mut stream).take(MAX_LINGER_LEN);
        let mut nowhere = tokio::io::sink();
        let discard = tokio::io::copy(&mut rest, &mut nowhere);
        timeout_at(linger, discard).await.unwrap_or(Ok(0))
    };
    // The peer is refused either way: whether it stayed to hear so is its own affair.
    let _ = timeout_at(deadline, close).await;
}

/// Bytes read at once of a head.
const HEAD_READ: u64 = 2048;

/// Bytes of a refusal's body that a client keeps.
const MAX_REFUSAL_LEN: usize = 4096;

/// Bytes discarded after a refusal. Driven by the peer; a browser sends none.
const MAX_LINGER_LEN: u64 = 64 * 1024;

/// Time given to a refused peer to read its answer and close.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
