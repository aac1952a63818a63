//! What a role shows of itself: its numbers, on a socket of its own, to those who may look.
//!
//! - A role makes a [`Snapshot`] when it is asked, from [`BudgetState`]s and [`Family`]s, and [`serve`]s it.
//! - `memory-router status` and the metrics role [`fetch`] it.
//!
//! The socket takes no input, so that reading changes nothing. It is `ipc_dir/admin/ROLE.sock` ([`socket_path`]): whoever connects
//! gets one JSON document and the end of the stream.
//!
//! Every snapshot has what any process can tell of itself: memory, descriptors, lost log lines, faults on its channels.
//!
//! Names and label values come from closed sets of the code: never a DID, never an address.
#![forbid(unsafe_code)]

mod count;
mod fetch;
mod process;
mod serve;
mod snapshot;

pub use count::{Count, CountBy};
pub use fetch::{FetchError, MAX_SNAPSHOT_LEN, fetch};
pub use memory_budget::latency;
pub use memory_budget::latency::{Histogram, LATENCY_BUCKETS};
pub use serve::{serve, socket_path};
pub use snapshot::{BudgetState, Family, Kind, Labels, Number, Sample, Snapshot, unix_millis};
