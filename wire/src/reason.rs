//! Every reason to refuse, close or drop, in one table (`docs/protocol.md` sections 4.4 to 4.6).
//!
//! A reason is one fixed kebab-case text, the same in the log, the metric, the close frame and the test. Beside it stand
//! the byte that names it between roles, the close code and what a refusal with it means to the client. A code is
//! never given to another reason.

use crate::ids::ConnectionId;
use std::fmt;

/// Close codes of this protocol (RFC 6455 section 7.4.1). Each tells the client how to retry.
pub mod close {
    /// The router drains, the connection was idle, or its peer vanished or left: come back with jitter.
    pub const GOING_AWAY: u16 = 1001;
    /// The client broke a rule: doing the same again is useless.
    pub const POLICY_VIOLATION: u16 = 1008;
    /// A message is past a size bound.
    pub const MESSAGE_TOO_BIG: u16 = 1009;
    /// An upstream was lost or the router failed: reconnect with back-off.
    pub const INTERNAL_ERROR: u16 = 1011;
    /// A part of the router restarts: come back with jitter.
    pub const SERVICE_RESTART: u16 = 1012;
    /// No capacity now: back off.
    pub const TRY_AGAIN_LATER: u16 = 1013;
}

/// What a client may conclude from a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The condition passes: the denial is marked `retriable`.
    ForNow,
    /// The same request will be denied again.
    ForGood,
    /// Not answered: the connection closes, or is dropped before anything is read.
    Close,
}

/// How loudly a reason is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Happens all day on a healthy router.
    Debug,
    /// A peer's fault, or an event worth finding later.
    Info,
    /// A bound was reached or a peer is missing: an operator may want to act.
    Warn,
    /// This host failed.
    Error,
}

/// Declares the reasons: code, text, close code, refusal and severity of each.
macro_rules! reasons {
    ($(
        $(#[$doc:meta])+
        $name:ident = $code:literal, $text:literal, $close:ident, $refusal:ident, $severity:ident;
    )+) => {
        /// Why a request, a connection or a link was refused or ended.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])+ $name = $code,)+
        }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The kebab-case text.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            /// The reason with this text.
            pub fn from_text(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// The reason with this code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// The close code of a connection that ends for this reason, also where it usually only refuses.
            pub const fn close_code(self) -> u16 {
                match self {
                    $(Self::$name => close::$close,)+
                }
            }

            /// What the client may conclude.
            pub const fn refusal(self) -> Refusal {
                match self {
                    $(Self::$name => Refusal::$refusal,)+
                }
            }

            /// How loudly to log it.
            pub const fn severity(self) -> Severity {
                match self {
                    $(Self::$name => Severity::$severity,)+
                }
            }
        }
    };
}

impl Reason {
    /// The byte that names this reason between roles.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether a denial with this reason is marked `retriable`.
    pub const fn is_retriable(self) -> bool {
        matches!(self.refusal(), Refusal::ForNow)
    }

    /// The reason text of a close frame: `<reason> <connection>`, well under the 123 bytes a close frame has for it.
    pub fn close_text(self, connection: ConnectionId) -> String {
        format!("{self} {connection}")
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

reasons! {
    // How connections end without anybody's fault.

    /// The client closed the connection.
    ClientClosed = 1, "client-closed", GOING_AWAY, Close, Debug;
    /// The client's transport ended without a close frame.
    ClientLost = 2, "client-lost", GOING_AWAY, Close, Debug;
    /// The router is draining: no new opens, then the connection closes.
    Drain = 3, "drain", GOING_AWAY, ForNow, Debug;
    /// The connection carried nothing for too long.
    Idle = 4, "idle", GOING_AWAY, Close, Debug;
    /// The client answered no ping within `ping_timeout`.
    PingTimeout = 5, "ping-timeout", GOING_AWAY, Close, Info;

    // What a client did wrong (section 4.2 to 4.6).

    /// A message, record or frame that breaks the public protocol.
    ClientProtocol = 10, "client-protocol", POLICY_VIOLATION, Close, Info;
    /// The client's hello lacks `connectionAuth` or `routedAuthV1`, or its descriptor is malformed.
    IncompatibleFlags = 11, "incompatible-flags", POLICY_VIOLATION, Close, Info;
    /// One challenge was signed by more than `max_principals_per_challenge` keys.
    ChallengeSigners = 12, "challenge-signers", POLICY_VIOLATION, Close, Info;
    /// TLS, upgrade or hello took longer than `handshake`.
    HandshakeTimeout = 13, "handshake-timeout", POLICY_VIOLATION, Close, Info;
    /// No principal authenticated within `authenticate`.
    AuthenticateTimeout = 14, "authenticate-timeout", POLICY_VIOLATION, Close, Info;
    /// An upload moved slower than `upload` and `upload_min_rate` allow.
    UploadTimeout = 15, "upload-timeout", POLICY_VIOLATION, Close, Info;
    /// The TLS handshake failed.
    TlsHandshake = 16, "tls-handshake", POLICY_VIOLATION, Close, Info;
    /// A message is over its byte bound.
    MessageTooLarge = 17, "message-too-large", MESSAGE_TOO_BIG, Close, Info;
    /// A request is larger than the private window can ever cover.
    RequestTooLarge = 18, "request-too-large", MESSAGE_TOO_BIG, ForGood, Info;
    /// An operation that routed connections never carry.
    OperationDenied = 19, "operation-denied", POLICY_VIOLATION, ForGood, Info;

    // The HTTP upgrade (section 4.1); each is also the `error` of its HTTP answer.

    /// 400: the request is malformed.
    UpgradeMalformed = 30, "upgrade-malformed", POLICY_VIOLATION, Close, Info;
    /// 403: the origin is missing or not allowed.
    UpgradeOrigin = 31, "upgrade-origin", POLICY_VIOLATION, Close, Info;
    /// 404: no such path.
    UpgradePath = 32, "upgrade-path", POLICY_VIOLATION, Close, Info;
    /// 405: another method than GET.
    UpgradeMethod = 33, "upgrade-method", POLICY_VIOLATION, Close, Info;
    /// 421: the request is meant for another host.
    UpgradeHost = 34, "upgrade-host", POLICY_VIOLATION, Close, Info;
    /// 426: another WebSocket version than 13.
    UpgradeVersion = 35, "upgrade-version", POLICY_VIOLATION, Close, Info;
    /// 429: dedicated sockets of this space at `max_connections_per_space`.
    TenantCap = 36, "tenant-cap", TRY_AGAIN_LATER, ForNow, Warn;

    // What the listener drops before a byte is read (`docs/operations.md`, limits and penalties).

    /// Connections at `max_workers`.
    Capacity = 40, "capacity", TRY_AGAIN_LATER, Close, Warn;
    /// Unauthenticated connections at `max_unauthenticated`.
    UnauthenticatedLimit = 41, "unauthenticated-limit", TRY_AGAIN_LATER, Close, Warn;
    /// Connections of one source network at `max_per_source`.
    SourceLimit = 42, "source-limit", TRY_AGAIN_LATER, Close, Info;
    /// Unauthenticated connections of one source network at `max_unauthenticated_per_source`.
    SourceUnauthenticatedLimit = 43, "source-unauthenticated-limit", TRY_AGAIN_LATER, Close, Info;
    /// New connections faster than `max_new_connections_per_second`.
    Rate = 44, "rate", TRY_AGAIN_LATER, Close, Warn;
    /// New connections of one source network faster than `max_new_connections_per_source_per_second`.
    SourceRate = 45, "source-rate", TRY_AGAIN_LATER, Close, Info;
    /// The source misbehaved and its penalty has not decayed.
    Penalized = 46, "penalized", TRY_AGAIN_LATER, Close, Info;
    /// Out of file descriptors.
    DescriptorLimit = 47, "descriptor-limit", TRY_AGAIN_LATER, Close, Error;
    /// Out of processes.
    ProcessLimit = 48, "process-limit", TRY_AGAIN_LATER, Close, Error;
    /// A PROXY protocol header is missing, malformed or from an untrusted source.
    ProxyHeader = 49, "proxy-header", POLICY_VIOLATION, Close, Info;

    // Authentication (section 4.4).

    /// The challenge is unknown, expired or superseded.
    ChallengeExpired = 60, "challenge-expired", POLICY_VIOLATION, ForNow, Info;
    /// The client's clock is more than 120 s ahead.
    ClockSkew = 61, "clock-skew", POLICY_VIOLATION, ForNow, Info;
    /// The statement had expired when it came.
    StatementExpired = 62, "statement-expired", POLICY_VIOLATION, ForNow, Info;
    /// The lease is over 600 s from issue or receipt.
    LeaseTooLong = 63, "lease-too-long", POLICY_VIOLATION, ForGood, Info;
    /// Active principals at `max_principals_per_connection`.
    PrincipalLimit = 64, "principal-limit", TRY_AGAIN_LATER, ForNow, Info;
    /// Remembered principals at `max_principal_history`.
    PrincipalHistoryLimit = 65, "principal-history-limit", TRY_AGAIN_LATER, ForNow, Info;
    /// Connections of this principal at `max_connections_per_principal`.
    PrincipalConnectionLimit = 66, "principal-connection-limit", TRY_AGAIN_LATER, ForNow, Info;
    /// Another statement for the same challenge and principal.
    ChallengeReused = 67, "challenge-reused", POLICY_VIOLATION, ForGood, Info;
    /// An operator revoked the principal, or it is the router itself.
    PrincipalRevoked = 68, "principal-revoked", POLICY_VIOLATION, ForGood, Info;
    /// Proofs of a context or a link at their limit (toolshed).
    ProofLimit = 69, "proof-limit", TRY_AGAIN_LATER, Close, Warn;
    /// A proof does not hold (toolshed).
    ProofDenied = 70, "proof-denied", POLICY_VIOLATION, Close, Warn;
    /// The revocation list cannot be read: nobody is admitted who may stand in it.
    RevocationUnreadable = 71, "revocation-unreadable", INTERNAL_ERROR, ForNow, Error;

    // Sessions and routing (section 4.5).

    /// The directory does not place the space.
    Unplaced = 80, "unplaced", POLICY_VIOLATION, ForGood, Info;
    /// A dedicated socket was asked for another space.
    DedicatedSpace = 81, "dedicated-space", POLICY_VIOLATION, ForGood, Info;
    /// The principal never authenticated here, or was released.
    PrincipalUnknown = 82, "principal-unknown", POLICY_VIOLATION, ForGood, Info;
    /// The principal did not sign again in time.
    PrincipalRenewal = 83, "principal-renewal", POLICY_VIOLATION, ForNow, Info;
    /// The toolshed is down, its link is not ready, or no compatible toolshed is linked.
    UpstreamUnavailable = 84, "upstream-unavailable", INTERNAL_ERROR, ForNow, Warn;
    /// The directory cannot be read.
    DirectoryUnreadable = 85, "directory-unreadable", INTERNAL_ERROR, ForNow, Error;
    /// The space's placement changed.
    PlacementChanged = 86, "placement-changed", INTERNAL_ERROR, ForNow, Info;
    /// The directory's topology changed; the router must restart to follow it.
    RestartNeeded = 87, "restart-needed", INTERNAL_ERROR, ForNow, Error;
    /// The toolshed does not support the frozen offer, or has another cell mode.
    UpstreamIncompatible = 88, "upstream-incompatible", INTERNAL_ERROR, ForNow, Warn;
    /// The ticket is too old to bind and too young to replace.
    TicketWindow = 89, "ticket-window", INTERNAL_ERROR, ForNow, Info;
    /// A wait for admission was full or too long.
    AdmissionTimeout = 90, "admission-timeout", TRY_AGAIN_LATER, ForNow, Warn;
    /// Sessions at their limit.
    SessionLimit = 91, "session-limit", TRY_AGAIN_LATER, ForNow, Info;
    /// Spaces at `max_spaces_per_connection`.
    SpaceLimit = 92, "space-limit", TRY_AGAIN_LATER, ForNow, Info;
    /// The toolshed of an open session, or a bound data socket, was lost.
    UpstreamLost = 93, "upstream-lost", INTERNAL_ERROR, Close, Warn;
    /// The connection does not hold the session.
    SessionUnknown = 94, "session-unknown", POLICY_VIOLATION, ForGood, Info;
    /// One session would have too many watches or views.
    FrameLimit = 95, "frame-limit", POLICY_VIOLATION, ForGood, Info;
    /// Watches and views of the connection at their limit.
    WatchLimit = 96, "watch-limit", TRY_AGAIN_LATER, ForNow, Info;
    /// Holdings of the connection at their limit.
    HoldingsLimit = 97, "holdings-limit", TRY_AGAIN_LATER, ForNow, Info;
    /// Data sockets being set up at `max_pending_dials`.
    DialLimit = 98, "dial-limit", TRY_AGAIN_LATER, ForNow, Warn;
    /// The request table is full where waiting is not possible.
    RequestLimit = 99, "request-limit", TRY_AGAIN_LATER, ForNow, Info;

    // The toolshed's own verdicts.

    /// The principal's grant expired after the router forwarded the request.
    PrincipalExpired = 110, "principal-expired", POLICY_VIOLATION, ForNow, Info;
    /// The toolshed does not hold the session any more.
    SessionNotHeld = 111, "session-not-held", POLICY_VIOLATION, ForGood, Info;
    /// The toolshed does not hold the principal any more.
    PrincipalNotHeld = 112, "principal-not-held", POLICY_VIOLATION, ForGood, Info;
    /// Output of a data socket at its limit.
    OutputLimit = 113, "output-limit", INTERNAL_ERROR, Close, Warn;
    /// Input of a data socket past its request credit or decoding budget.
    DataQueueLimit = 114, "data-queue-limit", INTERNAL_ERROR, Close, Warn;
    /// A context was closed.
    ContextClosed = 115, "context-closed", INTERNAL_ERROR, Close, Debug;
    /// The space's owner refuses the principal.
    AccessDenied = 116, "access-denied", POLICY_VIOLATION, ForGood, Info;
    /// The epoch ledger cannot be written: nothing is admitted until restart.
    LedgerUnhealthy = 117, "ledger-unhealthy", INTERNAL_ERROR, Close, Error;
    /// The router's key was revoked, or the router is not on the allowlist.
    RouterDenied = 118, "router-denied", POLICY_VIOLATION, Close, Warn;

    // Links and data sockets, from the router's side.

    /// A toolshed broke the private protocol.
    UpstreamProtocol = 130, "upstream-protocol", INTERNAL_ERROR, Close, Warn;
    /// A control link's handshake failed.
    LinkHandshake = 131, "link-handshake", INTERNAL_ERROR, ForNow, Warn;
    /// Nothing came over a control link for `link_silence`.
    LinkSilence = 132, "link-silence", INTERNAL_ERROR, ForNow, Warn;
    /// A control link ended.
    LinkLost = 133, "link-lost", INTERNAL_ERROR, ForNow, Warn;
    /// Control requests waiting for a toolshed at `max_link_waiters`.
    LinkQueue = 134, "link-queue", TRY_AGAIN_LATER, ForNow, Warn;
    /// A control request was not answered within `control_request`.
    ControlTimeout = 135, "control-timeout", INTERNAL_ERROR, ForNow, Warn;
    /// A toolshed refused a control request.
    ControlRefused = 136, "control-refused", INTERNAL_ERROR, ForNow, Warn;
    /// A toolshed could not be dialled.
    DialFailed = 137, "dial-failed", INTERNAL_ERROR, ForNow, Warn;
    /// A data socket's handshake failed.
    DataHandshake = 138, "data-handshake", INTERNAL_ERROR, ForNow, Warn;

    // This host.

    /// A fault of the router that has no reason of its own.
    Internal = 150, "internal", INTERNAL_ERROR, Close, Error;
    /// A worker ended by a signal or with an unexpected status.
    WorkerCrash = 151, "worker-crash", INTERNAL_ERROR, Close, Error;
    /// A worker was killed for memory.
    WorkerMemory = 152, "worker-memory", INTERNAL_ERROR, Close, Error;
    /// A role sent a packet that its channel does not allow.
    ChannelProtocol = 153, "channel-protocol", INTERNAL_ERROR, Close, Error;
    /// The link agent is gone, and with it every context.
    LinkAgentLost = 154, "link-agent-lost", SERVICE_RESTART, Close, Error;
    /// The directory broker is gone: open data sockets go on.
    BrokerLost = 155, "broker-lost", SERVICE_RESTART, ForNow, Error;
    /// The key agent is gone: no TLS handshake succeeds.
    KeyAgentLost = 156, "key-agent-lost", SERVICE_RESTART, Close, Error;
    /// The spawner is gone, and its workers with it.
    SpawnerLost = 157, "spawner-lost", SERVICE_RESTART, Close, Error;
    /// A descriptor was lost in passing.
    DescriptorLost = 158, "descriptor-lost", INTERNAL_ERROR, ForNow, Error;
    /// The key agent was asked to sign something else than a TLS 1.3 server CertificateVerify.
    SigningRefused = 159, "signing-refused", INTERNAL_ERROR, Close, Error;

    // Malformed messages, by layer: what a reader of the log wants to know beyond `client-protocol`.

    /// JSON is over its byte bound.
    JsonTooLong = 170, "json-too-long", MESSAGE_TOO_BIG, Close, Info;
    /// A text is not UTF-8.
    InvalidUtf8 = 171, "invalid-utf8", POLICY_VIOLATION, Close, Info;
    /// Not JSON.
    JsonSyntax = 172, "json-syntax", POLICY_VIOLATION, Close, Info;
    /// An object has a key twice.
    JsonDuplicateKey = 173, "json-duplicate-key", POLICY_VIOLATION, Close, Info;
    /// A string has half of a surrogate pair.
    JsonLoneSurrogate = 174, "json-lone-surrogate", POLICY_VIOLATION, Close, Info;
    /// A key that could reach a prototype.
    JsonForbiddenKey = 175, "json-forbidden-key", POLICY_VIOLATION, Close, Info;
    /// A number is not finite.
    JsonNumberRange = 176, "json-number-range", POLICY_VIOLATION, Close, Info;
    /// JSON is nested too deep.
    JsonDepth = 177, "json-depth", POLICY_VIOLATION, Close, Info;
    /// More JSON values than `max_frame_slots`.
    JsonSlots = 178, "json-slots", MESSAGE_TOO_BIG, Close, Info;
    /// Bytes follow the JSON value.
    JsonTrailing = 179, "json-trailing", POLICY_VIOLATION, Close, Info;
    /// A text message does not begin with `fvj1:`.
    MessagePrefix = 180, "message-prefix", POLICY_VIOLATION, Close, Info;
    /// A message is not an object.
    MessageNotObject = 181, "message-not-object", POLICY_VIOLATION, Close, Info;
    /// A tagged value where only a plain one may stand.
    MessageTagged = 182, "message-tagged", POLICY_VIOLATION, Close, Info;
    /// A message type is missing or malformed.
    MessageType = 183, "message-type", POLICY_VIOLATION, Close, Info;
    /// An identifier is malformed.
    MessageIdentifier = 184, "message-identifier", POLICY_VIOLATION, Close, Info;
    /// A space or principal is not a canonical DID.
    MessageDid = 185, "message-did", POLICY_VIOLATION, Close, Info;
    /// A member of a message has the wrong kind.
    MessageMember = 186, "message-member", POLICY_VIOLATION, Close, Info;
    /// A binary message does not begin with `mcmp`.
    EnvelopeMagic = 190, "envelope-magic", POLICY_VIOLATION, Close, Info;
    /// An envelope has another version than 2.
    EnvelopeVersion = 191, "envelope-version", POLICY_VIOLATION, Close, Info;
    /// An envelope's hint is malformed or not the space inside.
    EnvelopeHint = 192, "envelope-hint", POLICY_VIOLATION, Close, Info;
    /// An envelope declares more than it may expand to.
    EnvelopeExpansion = 193, "envelope-expansion", MESSAGE_TOO_BIG, Close, Info;
    /// An envelope does not hold exactly one minimal gzip member.
    EnvelopeMember = 194, "envelope-member", POLICY_VIOLATION, Close, Info;
    /// An envelope's checksum does not match.
    EnvelopeCrc = 195, "envelope-crc", POLICY_VIOLATION, Close, Info;
    /// An envelope ends too early.
    EnvelopeTruncated = 196, "envelope-truncated", POLICY_VIOLATION, Close, Info;
    /// An envelope does not expand to its declared length.
    EnvelopeLength = 197, "envelope-length", POLICY_VIOLATION, Close, Info;
    /// A record does not begin with its magic.
    RecordMagic = 200, "record-magic", POLICY_VIOLATION, Close, Info;
    /// A record has an unknown kind.
    RecordKind = 201, "record-kind", POLICY_VIOLATION, Close, Info;
    /// A record is too short or too long for its kind.
    RecordLength = 202, "record-length", POLICY_VIOLATION, Close, Info;
    /// A record header is not the JSON it must be.
    HeaderSyntax = 203, "header-syntax", POLICY_VIOLATION, Close, Info;
    /// A record header has a key twice.
    HeaderDuplicateKey = 204, "header-duplicate-key", POLICY_VIOLATION, Close, Info;
    /// A record header has an unknown member.
    HeaderMember = 205, "header-member", POLICY_VIOLATION, Close, Info;
    /// A record header lacks a member.
    HeaderIncomplete = 206, "header-incomplete", POLICY_VIOLATION, Close, Info;
    /// A record header has a member out of range.
    HeaderValue = 207, "header-value", POLICY_VIOLATION, Close, Info;
    /// A header came before the body was complete.
    HeaderInsideBody = 208, "header-inside-body", POLICY_VIOLATION, Close, Info;
    /// A header's route is not that of the message.
    HeaderMismatch = 209, "header-mismatch", POLICY_VIOLATION, Close, Info;
    /// A chunk or completion came without a header.
    NoBody = 210, "no-body", POLICY_VIOLATION, Close, Info;
    /// A declared body length is zero or past its bound.
    BodyLength = 211, "body-length", MESSAGE_TOO_BIG, Close, Info;
    /// A body is longer than declared.
    BodyOverrun = 212, "body-overrun", POLICY_VIOLATION, Close, Info;
    /// A body is shorter than declared.
    BodyTruncated = 213, "body-truncated", POLICY_VIOLATION, Close, Info;
    /// A body has more than 512 chunks.
    TooManyChunks = 214, "too-many-chunks", POLICY_VIOLATION, Close, Info;
    /// A request ordinal is missing, misplaced or not the next.
    RequestOrdinal = 215, "request-ordinal", POLICY_VIOLATION, Close, Info;
    /// A credit record is malformed.
    CreditMalformed = 220, "credit-malformed", POLICY_VIOLATION, Close, Info;
    /// A credit is zero or past its window.
    CreditAmount = 221, "credit-amount", POLICY_VIOLATION, Close, Info;
    /// A credit is for more than is outstanding.
    CreditExcess = 222, "credit-excess", POLICY_VIOLATION, Close, Info;
    /// More was sent than the credit covered.
    CreditOverdraw = 223, "credit-overdraw", POLICY_VIOLATION, Close, Info;
    /// A window is out of range.
    CreditWindow = 224, "credit-window", POLICY_VIOLATION, Close, Info;
    /// A WebSocket frame has a reserved bit set.
    FrameReservedBit = 230, "frame-reserved-bit", POLICY_VIOLATION, Close, Info;
    /// A WebSocket frame has a reserved opcode.
    FrameOpcode = 231, "frame-opcode", POLICY_VIOLATION, Close, Info;
    /// A WebSocket control frame is fragmented or too long.
    FrameControl = 232, "frame-control", POLICY_VIOLATION, Close, Info;
    /// A WebSocket frame's length is not minimal or past its bound.
    FrameLength = 233, "frame-length", POLICY_VIOLATION, Close, Info;
    /// A WebSocket frame is masked where it must not be, or not where it must.
    FrameMask = 234, "frame-mask", POLICY_VIOLATION, Close, Info;
    /// A WebSocket fragment is out of order.
    FrameFragment = 235, "frame-fragment", POLICY_VIOLATION, Close, Info;
    /// A WebSocket close frame is malformed.
    FrameClose = 236, "frame-close", POLICY_VIOLATION, Close, Info;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn texts_and_codes_name_one_reason_each() {
        let mut texts = HashSet::new();
        for reason in Reason::ALL {
            assert_eq!(Reason::from_code(reason.code()), Some(*reason));
            assert_eq!(Reason::from_text(reason.as_str()), Some(*reason));
            assert_eq!(reason.to_string(), reason.as_str());
            assert!(texts.insert(reason.as_str()), "{reason}");
        }
        assert_eq!(Reason::from_code(0), None);
        assert_eq!(Reason::from_text("no-such-reason"), None);
    }

    #[test]
    fn texts_are_kebab_case_and_fit_a_close_frame() {
        let connection = ConnectionId::new(0, [0; 4]);
        for reason in Reason::ALL {
            let text = reason.as_str();
            assert!(text.split('-').all(|word| {
                !word.is_empty()
                    && word
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            }));
            assert!(reason.close_text(connection).len() <= 123);
        }
        assert_eq!(Reason::Idle.close_text(connection), "idle 0000000000000000");
    }

    #[test]
    fn what_passes_is_retriable_and_what_does_not_is_final() {
        // docs/protocol.md sections 4.4 and 4.5, row by row.
        for reason in [
            Reason::ChallengeExpired,
            Reason::ClockSkew,
            Reason::StatementExpired,
            Reason::PrincipalLimit,
            Reason::PrincipalHistoryLimit,
            Reason::PrincipalConnectionLimit,
            Reason::RevocationUnreadable,
            Reason::UpstreamUnavailable,
            Reason::PrincipalRenewal,
            Reason::DirectoryUnreadable,
            Reason::PlacementChanged,
            Reason::RestartNeeded,
            Reason::UpstreamIncompatible,
            Reason::TicketWindow,
            Reason::AdmissionTimeout,
            Reason::SessionLimit,
            Reason::SpaceLimit,
            Reason::WatchLimit,
            Reason::HoldingsLimit,
        ] {
            assert_eq!(reason.refusal(), Refusal::ForNow, "{reason}");
            assert!(reason.is_retriable());
        }
        for reason in [
            Reason::LeaseTooLong,
            Reason::ChallengeReused,
            Reason::PrincipalRevoked,
            Reason::Unplaced,
            Reason::DedicatedSpace,
            Reason::PrincipalUnknown,
            Reason::SessionUnknown,
            Reason::FrameLimit,
            Reason::RequestTooLarge,
        ] {
            assert_eq!(reason.refusal(), Refusal::ForGood, "{reason}");
        }
        for (reason, code) in [
            (Reason::ClientProtocol, close::POLICY_VIOLATION),
            (Reason::ChallengeSigners, close::POLICY_VIOLATION),
            (Reason::UpstreamLost, close::INTERNAL_ERROR),
            (Reason::Drain, close::GOING_AWAY),
            (Reason::Capacity, close::TRY_AGAIN_LATER),
            (Reason::MessageTooLarge, close::MESSAGE_TOO_BIG),
            (Reason::PingTimeout, close::GOING_AWAY),
        ] {
            assert_eq!(reason.close_code(), code, "{reason}");
        }
    }
}
