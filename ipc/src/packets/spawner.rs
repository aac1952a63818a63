//! Listener, spawner and agents: who is served, and by which descriptors.

use std::net::SocketAddr;

use memory_wire::ids::ConnectionId;

use super::packets;
use crate::WorkerOutcome;

packets! {
    /// Listener to spawner, on the spawner's named socket.
    pub enum ListenerToSpawner {
        /// A connection to serve. Descriptor: the accepted socket.
        b"ncn1" + 1 => NewConnection {
            /// The connection's name in every log.
            connection: ConnectionId,
            /// Where it came from.
            peer: SocketAddr,
            /// Unix milliseconds at which it was accepted.
            accepted_unix_ms: u64,
        };
        /// No more connections will come: tell the workers to drain.
        b"drn1" + 0 => Drain;
    }
}

packets! {
    /// Spawner to listener.
    pub enum SpawnerToListener {
        /// Whether connections can be served. The listener accepts only while they can.
        b"rdy1" + 0 => Ready {
            /// True when key agent, link agent and broker are there and the offer is frozen.
            accepting: bool,
        };
        /// A connection has proved who it is, and counts against other limits from now on.
        b"aut1" + 0 => Authenticated {
            /// Which.
            connection: ConnectionId,
        };
        /// A connection's worker is gone.
        b"end1" + 0 => Ended {
            /// Which.
            connection: ConnectionId,
            /// How it ended.
            outcome: WorkerOutcome,
        };
        /// A connection got no worker; its socket has been closed.
        b"ref1" + 0 => Refused {
            /// Which.
            connection: ConnectionId,
            /// Code of a `memory_wire::Reason`.
            reason: u8,
        };
    }
}

packets! {
    /// Spawner to key agent, on the key agent's named socket.
    pub enum SpawnerToKeyAgent {
        /// A worker was made. Descriptor: the key agent's end of its channel to that worker.
        b"reg1" + 1 => Register {
            /// The connection that the worker serves.
            connection: ConnectionId,
            /// Number of the announcement whose chain that worker shows: it needs signatures of that chain's key.
            announcement: u32,
        };
    }
}

packets! {
    /// Key agent to spawner.
    pub enum KeyAgentToSpawner {
        /// First packet after the spawner connected, and again whenever another certificate is in force. Descriptor: a sealed
        /// memory file with the certificate chain, each certificate (DER) behind its length in four bytes.
        b"kal1" + 1 => KeyAnnounce {
            /// Number of the announcement, larger than that of the one before.
            announcement: u32,
            /// TLS `SignatureScheme` numbers that the key can sign with, best first (RFC 8446 section 4.2.3).
            schemes: Vec<u16>,
        };
    }
}

packets! {
    /// Spawner to link agent, on the link agent's named socket.
    pub enum SpawnerToLinkAgent {
        /// A worker was made. Descriptors: the link agent's end of its channel to that worker, then its end of the channel to
        /// the broker for that connection.
        b"reg1" + 2 => Register {
            /// The connection that the worker serves.
            connection: ConnectionId,
        };
        /// Another broker serves a connection from now on. Descriptor: the link agent's end of its channel to that broker for
        /// that connection, which takes the place of the one before.
        b"bro1" + 1 => Broker {
            /// The connection; it may have ended meanwhile.
            connection: ConnectionId,
        };
    }
}

packets! {
    /// Link agent to spawner.
    pub enum LinkAgentToSpawner {
        /// Whether contexts can be made.
        b"rdy1" + 0 => Ready {
            /// True once the public offer is frozen.
            accepting: bool,
        };
        /// A connection has proved who it is.
        b"aut1" + 0 => Authenticated {
            /// Which.
            connection: ConnectionId,
        };
    }
}

packets! {
    /// Spawner to directory broker, on the broker's named socket.
    pub enum SpawnerToBroker {
        /// A worker was made, or lives on from the time of an earlier broker. Descriptors: the broker's end of its channel to
        /// that worker, then its end of the channel to the link agent for that connection.
        b"reg1" + 2 => Register {
            /// The connection that the worker serves.
            connection: ConnectionId,
        };
    }
}
