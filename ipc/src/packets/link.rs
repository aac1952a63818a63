//! Worker and link agent: the context of one public connection.

use memory_wire::Did;
use memory_wire::ids::{Challenge, Ticket};

use super::packets;

packets! {
    /// Worker to link agent. The channel is the context: no packet names one.
    pub enum WorkerToLinkAgent {
        /// Before [`WorkerToLinkAgent::Hello`], at most once: this connection is for one space alone. Answer:
        /// [`LinkAgentToWorker::Ack`], and a place among the dedicated connections of the space for as long as the channel lives.
        b"wsd1" + 0 => Dedicate {
            /// Number of this request.
            sequence: u32,
            /// The space.
            space: Did,
        };
        /// Once, first: makes the context.
        b"whl1" + 0 => Hello {
            /// Number of this request.
            sequence: u32,
            /// The client's flags, canonical.
            flags: Vec<u8>,
        };
        /// Asks for the next challenge.
        b"wch1" + 0 => ChallengeRequest {
            /// Number of this request.
            sequence: u32,
        };
        /// Gives a statement of a principal.
        b"wau1" + 0 => Authenticate {
            /// Number of this request.
            sequence: u32,
            /// The exact bytes of the statement (`mra1`).
            statement: Vec<u8>,
        };
        /// The principal's last session ended.
        b"wrl1" + 0 => Release {
            /// Number of this request.
            sequence: u32,
            /// Whose.
            principal: Did,
        };
        /// Asks for the binding of a data socket.
        b"wbd1" + 0 => Bind {
            /// Number of this request.
            sequence: u32,
            /// The toolshed, by its place in the directory.
            index: u16,
            /// The ticket that came with the data socket.
            ticket: Ticket,
            /// The exact bytes of the toolshed's hello (`rdh1`).
            hello: Vec<u8>,
        };
    }
}

packets! {
    /// Link agent to worker.
    pub enum LinkAgentToWorker {
        /// Answer to [`WorkerToLinkAgent::Hello`].
        b"who1" + 0 => HelloOk {
            /// Number of the request.
            sequence: u32,
            /// Name of the deployment.
            deployment: String,
            /// The router's identity.
            router: Did,
            /// The public offer of flags, canonical.
            offer: Vec<u8>,
            /// What the first statement has to sign.
            challenge: Challenge,
            /// Unix seconds until which the challenge is good.
            expires: u64,
            /// Unix seconds at the link agent.
            now: u64,
        };
        /// Answer to [`WorkerToLinkAgent::ChallengeRequest`].
        b"wcr1" + 0 => ChallengeIssued {
            /// Number of the request.
            sequence: u32,
            /// What the next statement has to sign.
            challenge: Challenge,
            /// Unix seconds until which the challenge is good.
            expires: u64,
            /// Unix seconds at the link agent.
            now: u64,
        };
        /// Any request was refused.
        b"wrf1" + 0 => Refused {
            /// Number of the request.
            sequence: u32,
            /// Code of a `memory_wire::Reason`.
            reason: u8,
        };
        /// Answer to [`WorkerToLinkAgent::Authenticate`].
        b"war1" + 0 => Authenticated {
            /// Number of the request.
            sequence: u32,
            /// Who was admitted.
            principal: Did,
            /// Unix seconds until which the admission is good.
            expires: u64,
        };
        /// Answer to [`WorkerToLinkAgent::Release`] and [`WorkerToLinkAgent::Dedicate`].
        b"wak1" + 0 => Ack {
            /// Number of the request.
            sequence: u32,
        };
        /// Answer to [`WorkerToLinkAgent::Bind`].
        b"wbr1" + 0 => Bound {
            /// Number of the request.
            sequence: u32,
            /// The signed binding (`rdb1`).
            binding: Vec<u8>,
            /// The negotiated flags that the binding names, canonical.
            negotiated: Vec<u8>,
        };
        /// Unasked: the link to a toolshed was lost, and every session there with it.
        b"wls1" + 0 => LinkLost {
            /// The toolshed, by its place in the directory.
            index: u16,
        };
        /// Unasked, last: an operator revoked a principal of this context, which is over.
        b"wrv1" + 0 => Revoked {
            /// Whom.
            principal: Did,
        };
    }
}
