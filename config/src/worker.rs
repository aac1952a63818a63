//! What a worker is told: its slice of the configuration, over its channel. It reads no file.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::router::RouterConfig;

/// Bytes of streamed upload that a client may have in flight (`docs/protocol.md` section 5).
pub const UPLOAD_WINDOW: u32 = 262_144;

/// Settings of a worker, passed as JSON. Times are milliseconds; `None` is no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSettings {
    /// Expected `Host` header.
    pub host: String,
    /// Allowed `Origin` values.
    pub origins: Vec<String>,
    /// Whether an upgrade without `Origin` is refused.
    pub require_origin: bool,
    /// Whether namespaces, control groups and UIDs may be missing.
    pub development: bool,
    /// The deployment's wire mode.
    pub modern_cell_rep: bool,
    /// Whether DIDs may stand in events.
    pub log_identifiers: bool,
    /// The public certificate chain, DER, end entity first.
    pub certificate_chain: Vec<Vec<u8>>,
    /// TLS signature schemes that the key agent signs with, in its order.
    pub schemes: Vec<u16>,
    /// For TLS, upgrade and hello, each from accept.
    pub handshake_ms: u64,
    /// From hello to the first verified statement.
    pub authenticate_ms: u64,
    /// Quiet time after which the client is pinged.
    pub ping_interval_ms: u64,
    /// How long the client may leave a ping unanswered.
    pub ping_timeout_ms: u64,
    /// For one upload, beyond what `upload_min_rate` grants.
    pub upload_ms: u64,
    /// Bytes per second that an upload must keep up.
    pub upload_min_rate: u64,
    /// How long a request may wait for a toolshed's request credit.
    pub admission_ms: u64,
    /// How long an open without a live lease is held.
    pub hold_open_ms: u64,
    /// How long a control request waits for its turn on a link.
    pub control_wait_ms: u64,
    /// How long a control request may stay unanswered.
    pub control_request_ms: u64,
    /// For a data socket's TLS, upgrade and handshake.
    pub data_handshake_ms: u64,
    /// `TCP_USER_TIMEOUT` of the client socket.
    pub tcp_user_ms: u64,
    /// How long live work has to finish.
    pub drain_ms: u64,
    /// Bytes of streamed upload in flight.
    pub upload_window: u32,
    /// Dedicated connections of one space; the link agent counts them.
    pub max_connections_per_space: Option<u64>,
    /// Open sessions.
    pub max_sessions_per_connection: Option<u64>,
    /// Distinct spaces over the connection's life.
    pub max_spaces_per_connection: Option<u64>,
    /// Principals active at once.
    pub max_principals_per_connection: u64,
    /// Principals remembered until their statements expire.
    pub max_principal_history: u64,
    /// Principals that may sign one challenge.
    pub max_principals_per_challenge: u64,
    /// Unanswered requests.
    pub max_requests_per_connection: u64,
    /// Logical messages per second.
    pub max_messages_per_second: Option<u64>,
    /// Burst of the same bucket.
    pub message_burst: Option<u64>,
    /// Watches of one session.
    pub max_watches_per_session: Option<u64>,
    /// Watches and views.
    pub max_watches_per_connection: Option<u64>,
    /// Holdings.
    pub max_holdings_per_connection: Option<u64>,
    /// JSON values in one frame.
    pub max_frame_slots: Option<u64>,
}

impl WorkerSettings {
    /// A worker's slice of the configuration, with what the key agent announced.
    pub fn from_config(config: &RouterConfig, chain: Vec<Vec<u8>>, schemes: Vec<u16>) -> Self {
        let (timeouts, limits) = (&config.timeouts, &config.limits);
        Self {
            host: config.host.clone(),
            origins: config.origins.clone(),
            require_origin: config.require_origin,
            development: config.development,
            modern_cell_rep: config.modern_cell_rep,
            log_identifiers: config.log_identifiers,
            certificate_chain: chain,
            schemes,
            handshake_ms: millis(timeouts.handshake),
            authenticate_ms: millis(timeouts.authenticate),
            ping_interval_ms: millis(timeouts.ping_interval),
            ping_timeout_ms: millis(timeouts.ping_timeout),
            upload_ms: millis(timeouts.upload),
            upload_min_rate: timeouts.upload_min_rate,
            admission_ms: millis(timeouts.admission),
            hold_open_ms: millis(timeouts.hold_open),
            control_wait_ms: millis(timeouts.control_wait),
            control_request_ms: millis(timeouts.control_request),
            data_handshake_ms: millis(timeouts.data_handshake),
            tcp_user_ms: millis(timeouts.tcp_user),
            drain_ms: millis(timeouts.drain),
            upload_window: UPLOAD_WINDOW,
            max_connections_per_space: limits.max_connections_per_space.get(),
            max_sessions_per_connection: limits.max_sessions_per_connection.get(),
            max_spaces_per_connection: limits.max_spaces_per_connection.get(),
            max_principals_per_connection: limits.max_principals_per_connection,
            max_principal_history: limits.max_principal_history,
            max_principals_per_challenge: limits.max_principals_per_challenge,
            max_requests_per_connection: limits.max_requests_per_connection,
            max_messages_per_second: limits.max_messages_per_second.get(),
            message_burst: limits.message_burst.get(),
            max_watches_per_session: limits.max_watches_per_session.get(),
            max_watches_per_connection: limits.max_watches_per_connection.get(),
            max_holdings_per_connection: limits.max_holdings_per_connection.get(),
            max_frame_slots: limits.max_frame_slots.get(),
        }
    }
}

/// Configured durations are at most a day, so this never saturates.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
