//! A session outside of its process.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Did;

/// A session as it can be kept and opened again, also by another process. It holds the resume token: keep it as a secret.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedSession {
    /// The space.
    pub space: Did,
    /// Whose session it is.
    pub principal: Did,
    /// The toolshed's name for it.
    pub session_id: String,
    /// What resuming takes.
    pub session_token: String,
    /// The newest state of the space that the application has seen.
    pub seen_seq: u64,
    /// The `localSeq` of the next commit.
    pub next_local_seq: u64,
    /// Commits without a verdict, in order, exactly as sent.
    pub commits: Vec<Value>,
    /// What is watched, as in `session.watch.set`.
    pub watches: Vec<Value>,
    /// What the application has been given, as in `session.watch.set`. Empty it if the application did not keep that.
    pub holdings: Vec<Value>,
}

impl std::fmt::Debug for SavedSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedSession")
            .field("space", &self.space)
            .field("principal", &self.principal)
            .field("session_id", &self.session_id)
            .field("seen_seq", &self.seen_seq)
            .field("next_local_seq", &self.next_local_seq)
            .finish_non_exhaustive()
    }
}
