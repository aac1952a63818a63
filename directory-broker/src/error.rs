//! Why the role could not start or go on.

use memory_config::ConfigErrors;
use memory_ipc::ChannelError;
use thiserror::Error;

/// A failure of the role as a whole. What fails for one connection is logged and ends that connection's channel only.
#[derive(Debug, Error)]
pub enum Error {
    /// The operator's fault: the directory cannot be read at start. Exit status 78.
    #[error("the directory cannot be used: {0}")]
    Directory(#[source] ConfigErrors),
    /// The operator's fault: placement comes from a source that this build does not follow. Exit status 78.
    #[error("placement from etcd is not supported by this build")]
    Source,
    /// The named socket cannot be made.
    #[error("the socket for the spawner cannot be made")]
    Listen(#[source] ChannelError),
}
