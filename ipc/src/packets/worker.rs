//! Spawner and worker: what the worker needs, and what becomes of it.

use std::net::SocketAddr;

use memory_wire::ids::ConnectionId;

use super::{Detail, Report, packets};
use crate::WorkerOutcome;

packets! {
    /// Spawner to worker, on the worker's descriptor 0.
    pub enum SpawnerToWorker {
        /// Once, first. Descriptor: a sealed memory file with the worker's settings as JSON.
        b"set1" + 1 => Settings;
        /// Once, after [`WorkerToSpawner::Idle`]. Descriptors: the client's socket, then the worker's ends of its channels to
        /// key agent, link agent and broker.
        b"srt1" + 4 => Start {
            /// The connection's name in every log.
            connection: ConnectionId,
            /// Where it came from.
            peer: SocketAddr,
            /// Unix milliseconds at which it was accepted.
            accepted_unix_ms: u64,
        };
        /// Another broker is there. Descriptor: the worker's end of its channel to it, which takes the place of the one before.
        /// Any number of times after [`SpawnerToWorker::Start`].
        b"bro1" + 1 => Broker;
        /// The router shuts down: no new opens, answers in flight are delivered, then close.
        b"drn1" + 0 => Drain;
    }
}

packets! {
    /// Worker to spawner.
    pub enum WorkerToSpawner {
        /// Settings have been read; the worker can be given a connection.
        b"idl1" + 0 => Idle;
        /// Something for the log, which a worker cannot write itself.
        b"evt1" + 0 => Event {
            /// 1 error, 2 warning, 3 information, 4 debugging. The spawner checks it.
            level: u8,
            /// Code of a `memory_wire::Reason`, or 0.
            reason: u8,
            /// What it is about. Not trusted: print it with its `Display`.
            detail: Detail,
            /// Bytes read from the client so far.
            bytes_in: u64,
            /// Bytes written to the client so far.
            bytes_out: u64,
        };
        /// Totals of the connection since it began. When something changed, at most once a second, and before
        /// [`WorkerToSpawner::Finished`]. A lost one costs nothing: the next states the same totals or more.
        b"rpt1" + 0 => Report {
            /// The totals: a claim, of which the spawner takes differences.
            report: Box<Report>,
        };
        /// The worker's last packet.
        b"fin1" + 0 => Finished {
            /// How it ends.
            outcome: WorkerOutcome,
            /// Code of a `memory_wire::Reason`, or 0.
            reason: u8,
        };
    }
}
