//! Why the role could not start, and why a link failed.

use std::io;

use memory_config::{ConfigErrors, CredentialError, IdentityError};
use memory_ipc::ChannelError;
use memory_sandbox::SandboxError;
use memory_transport::tls::TlsError;
use memory_transport::{ConnectError, WsReadError, WsWriteError};
use memory_wire::codec::EncodeError;
use memory_wire::flags::FlagsError;
use memory_wire::records::RecordError;
use memory_wire::{Did, Reason};
use thiserror::Error;

use crate::control::AnswerFault;
use crate::links::Unsuitable;

/// A failure of the role as a whole. What fails for one link or one connection is logged and ends that alone.
#[derive(Debug, Error)]
pub enum Error {
    /// The host's fault: the process cannot keep its memory to itself, so it does not read its key.
    #[error("the process cannot be protected")]
    Sandbox(#[source] SandboxError),
    /// The operator's fault: the service manager did not pass the router's seed. Exit status 78.
    #[error("the router's seed: {0}")]
    Credential(#[source] CredentialError),
    /// The operator's fault: the router's seed cannot be used. Exit status 78.
    #[error("the router's seed: {0}")]
    Seed(#[source] IdentityError),
    /// The operator's fault: the directory cannot be read at start. Exit status 78.
    #[error("the directory cannot be used: {0}")]
    Directory(#[source] ConfigErrors),
    /// The operator's fault: placement comes from a source that this build does not follow. Exit status 78.
    #[error("placement from etcd is not supported by this build")]
    Source,
    /// The operator's fault: a toolshed's certificate cannot be pinned. Exit status 78.
    #[error("the certificate of toolshed {name:?} cannot be pinned")]
    Pin {
        /// Name of the toolshed in the directory.
        name: String,
        /// Why.
        #[source]
        source: TlsError,
    },
    /// The named socket cannot be made.
    #[error("the socket for the spawner cannot be made")]
    Listen(#[source] ChannelError),
}

/// Who a greeting was to be from, and who signed it.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) listed: Did,
    pub(crate) found: Did,
}

fn named(identities: &Option<Box<Named>>) -> String {
    identities.as_ref().map_or_else(String::new, |named| {
        format!(": {} instead of {}", named.found, named.listed)
    })
}

/// Why a link did not come about, or ended.
#[derive(Debug, Error)]
pub(crate) enum LinkFault {
    #[error("dialling: {0}")]
    Dial(#[source] io::Error),
    #[error("{0}")]
    Tls(#[source] TlsError),
    #[error("{0}")]
    Upgrade(#[source] ConnectError),
    #[error("the handshake timed out")]
    Timeout,
    #[error("greeting: {0}")]
    Hello(#[source] RecordError),
    #[error("the greeting is signed by another identity than the directory lists{}", named(.0))]
    OtherIdentity(Option<Box<Named>>),
    #[error(
        "the toolshed closed the link during the handshake, as one does that has another deployment or directory, or does not \
         list this router and the address it comes from under `routers` of its policy; its log says which"
    )]
    TurnedAway,
    #[error("the toolshed's clock is {0} s ahead of this host's, of which one must be wrong")]
    HelloAge(i64),
    #[error("greeting's flags: {0}")]
    Flags(#[source] FlagsError),
    #[error("the toolshed lacks what the private protocol needs, or has another cell mode")]
    Unsuitable(Unsuitable),
    #[error("the toolshed did not acknowledge the link")]
    Acknowledgement,
    #[error("no random bytes")]
    Random,
    #[error("{0}")]
    Encode(#[source] EncodeError),
    #[error("{0}")]
    Read(#[source] WsReadError),
    #[error("{0}")]
    Write(#[source] WsWriteError),
    #[error("the toolshed closed the link")]
    Closed,
    #[error("a message that is not binary")]
    NotBinary,
    #[error("{0}")]
    Answer(#[source] AnswerFault),
    #[error("nothing has been heard")]
    Silence,
}

impl LinkFault {
    /// The reason to log.
    pub(crate) const fn reason(&self) -> Reason {
        match self {
            Self::Dial(_) => Reason::DialFailed,
            Self::Tls(_)
            | Self::Upgrade(_)
            | Self::Timeout
            | Self::Hello(_)
            | Self::OtherIdentity(_)
            | Self::TurnedAway
            | Self::HelloAge(_)
            | Self::Flags(_)
            | Self::Acknowledgement => Reason::LinkHandshake,
            Self::Unsuitable(_) => Reason::UpstreamIncompatible,
            Self::Random | Self::Encode(_) => Reason::Internal,
            Self::Read(_) | Self::Write(_) | Self::Closed => Reason::LinkLost,
            Self::NotBinary | Self::Answer(_) => Reason::UpstreamProtocol,
            Self::Silence => Reason::LinkSilence,
        }
    }
}
