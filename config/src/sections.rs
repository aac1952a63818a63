//! The sections of `router.toml`: `docs/operations.md`, key by key.

use std::path::PathBuf;
use std::time::Duration;

use crate::address::Network;
use crate::kinds::{Flag, List, Text, auto_size, bound, count, rate, size, time};
use crate::limit::Limit;
use crate::source::parse_path;
use crate::table::section;

/// Largest integer that every JSON reader keeps exactly.
const MAX_SAFE_INTEGER: u64 = (1 << 53) - 1;
/// Largest user ID: below 2^31, so that no tool reads it as negative.
const MAX_UID: u64 = (1 << 31) - 1;

const MILLISECONDS: u64 = 1;
const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

section! {
    /// `[isolation]`: who runs as whom, and what a worker may take.
    pub struct Isolation, "isolation" {
        /// UID and GID of the listener.
        listener_uid: u32 = count(990, 1, MAX_UID);
        /// UID and GID of the key agent.
        key_uid: u32 = count(991, 1, MAX_UID);
        /// UID and GID of the link agent.
        link_uid: u32 = count(992, 1, MAX_UID);
        /// UID and GID of the directory broker.
        directory_uid: u32 = count(993, 1, MAX_UID);
        /// UID and GID of the metrics role.
        metrics_uid: u32 = count(994, 1, MAX_UID);
        /// First UID of the workers; `limits.max_workers` of them follow.
        worker_uid_base: u32 = count(100_000, 1, MAX_UID);
        /// Control group that workers get theirs in; `None` (`"auto"`) is the spawner's own, as delegated to it.
        cgroup_root: Option<PathBuf> = Text {
            default: Some("auto"),
            allowed: "\"auto\" or an absolute path",
            parse: |text, folder| match text {
                "auto" => Some(None),
                _ if text.starts_with('/') => parse_path(text, folder).map(Some),
                _ => None,
            },
        };
        /// Bytes of memory of one worker (`memory.max`).
        worker_memory_max: u64 = size(64 * MIB, 4 * MIB, TIB);
        /// Processes and threads of one worker (`pids.max`).
        worker_pids_max: u64 = count(4, 1, 1024);
        /// Idle workers kept started.
        worker_pool: u64 = count(8, 1, 1024);
        /// Bytes of memory of all workers together; `None` (`"auto"`) is `max_workers * worker_memory_max`, at most
        /// physical memory.
        workers_memory_max: Option<u64> = auto_size(MIB, 64 * TIB);
    }
}

section! {
    /// `[timeouts]`.
    pub struct Timeouts, "timeouts" {
        /// For TLS, upgrade and hello, each from accept.
        handshake: Duration = time(10 * SECOND, 100 * MILLISECONDS, 5 * MINUTE);
        /// From hello to the first verified statement.
        authenticate: Duration = time(60 * SECOND, 100 * MILLISECONDS, HOUR);
        /// Quiet time after which the client is pinged.
        ping_interval: Duration = time(20 * SECOND, 100 * MILLISECONDS, HOUR);
        /// How long the client may leave a ping unanswered.
        ping_timeout: Duration = time(20 * SECOND, 100 * MILLISECONDS, HOUR);
        /// For one upload, beyond what `upload_min_rate` grants for its length.
        upload: Duration = time(30 * SECOND, 100 * MILLISECONDS, HOUR);
        /// Bytes per second that an upload must keep up.
        upload_min_rate: u64 = rate(16 * KIB, 1, TIB);
        /// How long a request may wait for a toolshed's request credit.
        admission: Duration = time(30 * SECOND, 100 * MILLISECONDS, HOUR);
        /// How long an open without a live lease is held for a signature.
        hold_open: Duration = time(60 * SECOND, 100 * MILLISECONDS, HOUR);
        /// How long a control request waits for its turn on a link.
        control_wait: Duration = time(5 * SECOND, 100 * MILLISECONDS, 5 * MINUTE);
        /// How long a control request may stay unanswered.
        control_request: Duration = time(10 * SECOND, 100 * MILLISECONDS, 5 * MINUTE);
        /// Silence after which a link is replaced.
        link_silence: Duration = time(90 * SECOND, SECOND, HOUR);
        /// For a link's TLS, upgrade and handshake.
        link_handshake: Duration = time(5 * SECOND, 100 * MILLISECONDS, 5 * MINUTE);
        /// For a data socket's TLS, upgrade and handshake.
        data_handshake: Duration = time(5 * SECOND, 100 * MILLISECONDS, 5 * MINUTE);
        /// `TCP_USER_TIMEOUT` of every socket.
        tcp_user: Duration = time(120 * SECOND, SECOND, HOUR);
        /// How long the first offer waits for every toolshed.
        startup_grace: Duration = time(10 * SECOND, 0, HOUR);
        /// How long a draining listener still accepts.
        pre_drain: Duration = time(0, 0, HOUR);
        /// How long live work has to finish.
        drain: Duration = time(10 * SECOND, 0, HOUR);
    }
}

section! {
    /// `[limits]`.
    pub struct Limits, "limits" {
        /// Connections, pending handshakes included.
        max_workers: u64 = count(512, 1, 30_000);
        /// Connections without a verified statement.
        max_unauthenticated: u64 = count(256, 1, 30_000);
        /// Connections of one source network.
        max_per_source: u64 = count(64, 1, 30_000);
        /// Prefix of an IPv4 source network, bits.
        ipv4_prefix: u8 = count(32, 8, 32);
        /// Prefix of an IPv6 source network, bits.
        ipv6_prefix: u8 = count(64, 16, 128);
        /// Connections of one source network without a verified statement.
        max_unauthenticated_per_source: u64 = count(16, 1, 30_000);
        /// Token bucket of all new connections, burst equal.
        max_new_connections_per_second: u64 = count(200, 1, 100_000);
        /// Token bucket of one source network's new connections, burst equal.
        max_new_connections_per_source_per_second: u64 = count(20, 1, 100_000);
        /// Dedicated sockets of one space.
        max_connections_per_space: Limit<u64> = bound(1000, 1, 30_000);
        /// Connections on which one key is active.
        max_connections_per_principal: Limit<u64> = bound(1000, 1, 30_000);
        /// Open sessions of one connection.
        max_sessions_per_connection: Limit<u64> = bound(1200, 1, 100_000);
        /// Distinct spaces over one connection's life.
        max_spaces_per_connection: Limit<u64> = bound(1200, 1, 100_000);
        /// Principals active at once on one connection.
        max_principals_per_connection: u64 = count(16, 1, 1024);
        /// Principals remembered until their statements expire.
        max_principal_history: u64 = count(128, 1, 8192);
        /// Principals that may sign one challenge.
        max_principals_per_challenge: u64 = count(64, 32, 1024);
        /// Unanswered requests of one connection.
        max_requests_per_connection: u64 = count(1024, 1, 65_536);
        /// Logical messages per second of one connection.
        max_messages_per_second: Limit<u64> = bound(1000, 1, 1_000_000);
        /// Burst of the same bucket.
        message_burst: Limit<u64> = bound(2000, 1, 1_000_000);
        /// Watches of one session.
        max_watches_per_session: Limit<u64> = bound(2048, 1, 1_000_000);
        /// Watches and views of one connection.
        max_watches_per_connection: Limit<u64> = bound(40_960, 1, 10_000_000);
        /// Holdings of one connection.
        max_holdings_per_connection: Limit<u64> = bound(327_680, 1, 100_000_000);
        /// JSON values in one frame.
        max_frame_slots: Limit<u64> = bound(150_000, 1, MAX_SAFE_INTEGER);
        /// Admissions per second at one toolshed.
        max_admissions_per_second: Limit<u64> = bound(200, 1, 100_000);
        /// Control requests waiting for one toolshed.
        max_link_waiters: u64 = count(1024, 1, 65_536);
        /// Data sockets being set up at once, of all workers.
        max_pending_dials: u64 = count(256, 1, 4096);
    }
}

section! {
    /// `[penalties]`: how long a source waits after it misbehaved.
    pub struct Penalties, "penalties" {
        /// Whether penalties are kept at all.
        enabled: bool = Flag(true);
        /// Sum past which a source is dropped before a byte is read.
        threshold: Duration = time(15 * SECOND, 100 * MILLISECONDS, 24 * HOUR);
        /// For a broken protocol rule.
        protocol_error: Duration = time(5 * SECOND, MILLISECONDS, 24 * HOUR);
        /// For a statement that did not verify.
        failed_authentication: Duration = time(5 * SECOND, MILLISECONDS, 24 * HOUR);
        /// For a handshake that did not finish in time.
        handshake_timeout: Duration = time(10 * SECOND, MILLISECONDS, 24 * HOUR);
        /// For a worker that crashed.
        worker_crash: Duration = time(60 * SECOND, MILLISECONDS, 24 * HOUR);
        /// The sum never grows past this.
        maximum: Duration = time(10 * MINUTE, 100 * MILLISECONDS, 24 * HOUR);
        /// Sources remembered; the oldest goes first.
        sources: u64 = count(65_536, 1, 16_777_216);
        /// Networks that are never penalised.
        exempt: Vec<Network> = List {
            required: false,
            min: 0,
            max: 64,
            elements: "networks",
            element: "a network, ADDRESS/PREFIX with no bit set past the prefix",
            parse: Network::parse,
        };
    }
}
