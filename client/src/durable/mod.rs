//! The durable layer: sessions that survive the connections they run on.
//!
//! State machines without a socket ([`retry`], [`commits`], [`watches`], [`holdings`], [`budget`], [`placement`], [`events`],
//! together [`machine`]) and two kinds of tasks that move them: one for every connection ([`lane`]), one for every session
//! ([`driver`]).

mod budget;
mod client;
mod commits;
mod driver;
mod events;
mod holdings;
mod lane;
mod machine;
mod placement;
mod retry;
mod saved;
mod session;
mod watches;

pub use client::{Client, ClientOptions, ConnectionStatus, SessionOptions, Topology};
pub use events::Event;
pub use saved::SavedSession;
pub use session::{DurableSession, Submitted};
