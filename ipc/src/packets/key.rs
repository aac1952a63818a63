//! Worker and key agent: signatures of the public TLS key.

use super::packets;

packets! {
    /// Worker to key agent.
    pub enum WorkerToKeyAgent {
        /// Sign a TLS 1.3 server CertificateVerify input (RFC 8446 section 4.4.3). The agent signs nothing else.
        b"ksg1" + 0 => Sign {
            /// Number of this request.
            sequence: u32,
            /// TLS `SignatureScheme` to sign with.
            scheme: u16,
            /// 64 spaces, the context string, a zero byte and the transcript hash.
            input: Vec<u8>,
        };
    }
}

packets! {
    /// Key agent to worker.
    pub enum KeyAgentToWorker {
        /// Answer to [`WorkerToKeyAgent::Sign`].
        b"ksr1" + 0 => Signed {
            /// Number of the request.
            sequence: u32,
            /// 0 for a signature; anything else is a refusal, and the signature is empty.
            status: u8,
            /// The signature in the encoding of its scheme.
            signature: Vec<u8>,
        };
    }
}
