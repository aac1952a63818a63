//! Worker, directory broker and link agent: where a space lives, and the data socket to it.

use memory_wire::Did;
use memory_wire::ids::Ticket;

use super::packets;

packets! {
    /// Worker to directory broker.
    pub enum WorkerToBroker {
        /// Asks for the data socket of the toolshed where a space lives.
        b"wpl1" + 0 => Place {
            /// Number of this request.
            sequence: u32,
            /// The space to open.
            space: Did,
            /// Who opens it.
            principal: Did,
        };
        /// Takes back an assignment whose setup failed before a binding was issued. Answer: [`BrokerToWorker::Confirmed`].
        b"mdf1" + 0 => Rollback {
            /// The toolshed, by its place in the directory.
            index: u16,
            /// The ticket of the assignment.
            ticket: Ticket,
        };
        /// Keeps an assignment whose data socket is set up. Answer: [`BrokerToWorker::Confirmed`].
        b"mdc1" + 0 => Commit {
            /// The toolshed, by its place in the directory.
            index: u16,
            /// The ticket of the assignment.
            ticket: Ticket,
        };
    }
}

packets! {
    /// Directory broker to worker.
    pub enum BrokerToWorker and Confirmed {
        /// The space lives on a toolshed to which the worker already has a data socket.
        b"wpe1" + 0 => Existing {
            /// Number of the request.
            sequence: u32,
            /// The toolshed, by its place in the directory.
            index: u16,
        };
        /// A new data socket. Descriptor: the connected socket, on which nothing was sent or read yet.
        b"wps1" + 1 => Socket {
            /// Number of the request.
            sequence: u32,
            /// The toolshed, by its place in the directory.
            index: u16,
            /// The right to bind the socket.
            ticket: Ticket,
            /// The identity that the toolshed has to prove.
            toolshed: Did,
            /// The name to ask for in TLS.
            server_name: String,
            /// The pinned certificate (DER) of the toolshed or of its issuer.
            certificate: Vec<u8>,
        };
        /// The request was refused.
        b"wrf1" + 0 => Refused {
            /// Number of the request.
            sequence: u32,
            /// Code of a `memory_wire::Reason`.
            reason: u8,
        };
        /// The request was refused because another of this worker is being set up. Nothing of it is kept: it may be made
        /// again when that other one is over.
        b"wpp1" + 0 => Behind {
            /// Number of the request.
            sequence: u32,
            /// The toolshed where the space lives, by its place in the directory.
            index: u16,
            /// Number of the request that is being set up, at that toolshed or another.
            ahead: u32,
        };
    }
}

packets! {
    /// Directory broker to link agent, on the channel of one connection.
    pub enum BrokerToLinkAgent {
        /// Admit the context to a space at a toolshed, and get a ticket if it has no data socket there.
        b"bad1" + 0 => Admit {
            /// Number of this request.
            sequence: u32,
            /// The toolshed, by its place in the directory.
            index: u16,
            /// The space to open.
            space: Did,
            /// Placement epoch of the space.
            epoch: u64,
            /// Who opens it.
            principal: Did,
        };
        /// Take a ticket back, if no binding was issued for it. Answer: [`LinkAgentToBroker::Confirmed`].
        b"mdf1" + 0 => Rollback {
            /// The toolshed, by its place in the directory.
            index: u16,
            /// The ticket.
            ticket: Ticket,
        };
    }
}

packets! {
    /// Link agent to directory broker, on the channel of one connection.
    pub enum LinkAgentToBroker and Confirmed {
        /// The context is admitted.
        b"bat1" + 0 => Admitted {
            /// Number of the request.
            sequence: u32,
            /// The right to bind one data socket; none when the context is bound there already.
            ticket: Option<Ticket>,
        };
        /// The request was refused.
        b"wrf1" + 0 => Refused {
            /// Number of the request.
            sequence: u32,
            /// Code of a `memory_wire::Reason`.
            reason: u8,
        };
    }
}
