//! One worker's channel: at most a few signatures, then nothing more.

use std::rc::Rc;
use std::time::Duration;

use memory_admin::Count;
use memory_ipc::packets::{KeyAgentToWorker, WorkerToKeyAgent};
use memory_ipc::{Channel, ChannelError};
use memory_wire::Reason;
use tokio::time::{Instant, timeout_at};

use crate::input::VerifyInput;
use crate::keys::TlsKey;

/// Signatures given on one worker's channel. A TLS 1.3 handshake takes one; a worker that was taken over can get no more
/// than this out of the key, whatever it does.
pub(crate) const MAX_SIGNATURES: u32 = 2;

/// `status` of a [`KeyAgentToWorker::Signed`] that carries a signature.
const SIGNED: u8 = 0;

/// `status` when the key itself failed to sign.
const FAILED: u8 = 1;

/// How a worker's channel came to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelEnd {
    /// The worker closed it, or died.
    #[error("closed by the worker")]
    Closed,
    /// The time for a handshake is over: who has not asked by now will not.
    #[error("time for the handshake is over")]
    TimeOver,
    #[error("something else than a TLS 1.3 server CertificateVerify was to be signed")]
    Input,
    #[error("scheme {0:#06x} was not announced")]
    Scheme(u16),
    #[error("more than {MAX_SIGNATURES} signatures were asked for")]
    TooMany,
    #[error("the channel failed")]
    Channel(#[from] ChannelError),
}

impl ChannelEnd {
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Closed => "channel-closed",
            Self::TimeOver => Reason::HandshakeTimeout.as_str(),
            Self::Input | Self::Scheme(_) | Self::TooMany => Reason::SigningRefused.as_str(),
            Self::Channel(error) => error.reason(),
        }
    }

    /// Whether a worker that works as it should ends its channel like this.
    pub(crate) fn is_regular(&self) -> bool {
        matches!(
            self,
            Self::Closed | Self::TimeOver | Self::Channel(ChannelError::Closed)
        )
    }
}

/// Signs for one worker until its channel ends, at the latest `patience` from now; counts the signatures.
pub(crate) async fn serve(
    channel: &Channel,
    key: &Rc<TlsKey>,
    patience: Duration,
    signatures: &Count,
) -> ChannelEnd {
    let deadline = Instant::now() + patience;
    let mut left = MAX_SIGNATURES;
    loop {
        let request = match timeout_at(deadline, channel.recv_packet::<WorkerToKeyAgent>()).await {
            Err(_) => return ChannelEnd::TimeOver,
            Ok(Err(error)) => return error.into(),
            Ok(Ok(None)) => return ChannelEnd::Closed,
            Ok(Ok(Some((request, _)))) => request,
        };
        let WorkerToKeyAgent::Sign {
            sequence,
            scheme,
            input,
        } = request;
        match left.checked_sub(1) {
            Some(rest) => left = rest,
            None => return ChannelEnd::TooMany,
        }
        let Some(scheme) = key.scheme(scheme) else {
            return ChannelEnd::Scheme(scheme);
        };
        let Ok(input) = VerifyInput::parse(&input) else {
            return ChannelEnd::Input;
        };
        let answer = match key.sign(scheme, &input) {
            Ok(signature) => {
                signatures.add(1);
                KeyAgentToWorker::Signed {
                    sequence,
                    status: SIGNED,
                    signature,
                }
            }
            Err(error) => {
                tracing::error!(
                    reason = Reason::Internal.as_str(),
                    error = &error as &dyn std::error::Error,
                    "the key failed"
                );
                KeyAgentToWorker::Signed {
                    sequence,
                    status: FAILED,
                    signature: Vec::new(),
                }
            }
        };
        // A worker waits for its answer, so that a full channel is its own doing.
        if let Err(error) = channel.try_send_packet(&answer, &[]) {
            return error.into();
        }
    }
}
