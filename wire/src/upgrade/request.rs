//! The server's reading of an upgrade request.

use httparse::{EMPTY_HEADER, Header, Request, Status};

use super::{
    DATA_PATH, Endpoint, LINK_PATH, MAX_FIELDS, MAX_HEAD_LEN, PUBLIC_PATH, Parsed, Repeated,
    UpgradePolicy, UpgradeRefusal, UpgradeRequest, has_strict_lines, key, lists, single,
};
use crate::Did;

/// Reads the head at the start of `bytes` and judges it by `policy`.
///
/// May be called again with more bytes after [`Parsed::Incomplete`]; the caller need never hold more than [`MAX_HEAD_LEN`]
/// of them.
///
/// # Errors
///
/// The refusal to answer with. What the request is comes first, then whom it is for, then how it is meant: 400 grammar, 405,
/// 404, 400 repeated fields or a body, 421, 400 no upgrade, 426, 400 key, 403, 400 query.
pub fn parse_request(bytes: &[u8], policy: &UpgradePolicy) -> Result<Parsed, UpgradeRefusal> {
    // Empty lines before a request are allowed and pointless; here they are refused.
    if bytes.starts_with(b"\r") || bytes.starts_with(b"\n") {
        return Err(UpgradeRefusal::malformed("empty-line"));
    }
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut head = Request::new(&mut fields);
    let consumed = match head.parse(bytes) {
        Ok(Status::Complete(consumed)) if consumed <= MAX_HEAD_LEN => consumed,
        Ok(Status::Partial) if bytes.len() < MAX_HEAD_LEN => return Ok(Parsed::Incomplete),
        _ => return Err(UpgradeRefusal::malformed("head")),
    };
    if !bytes.get(..consumed).is_some_and(has_strict_lines) {
        return Err(UpgradeRefusal::malformed("line-ends"));
    }
    if head.version != Some(1) {
        return Err(UpgradeRefusal::malformed("http-version"));
    }
    if head.method != Some("GET") {
        return Err(UpgradeRefusal::METHOD);
    }
    let target = head.path.unwrap_or_default();
    if !target.starts_with('/') {
        return Err(UpgradeRefusal::malformed("target"));
    }
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let request = match policy {
        UpgradePolicy::Public {
            host,
            origins,
            require_origin,
        } => {
            if path != PUBLIC_PATH {
                return Err(UpgradeRefusal::PATH);
            }
            let fields = Fields::read(head.headers)?;
            if !fields.host.eq_ignore_ascii_case(host.as_bytes()) {
                return Err(UpgradeRefusal::host(host_rule(
                    fields.host,
                    host.as_bytes(),
                )));
            }
            let key = fields.upgrade_key(head.headers)?;
            match fields.origin {
                Some(origin) if !origins.iter().any(|known| known.as_bytes() == origin) => {
                    return Err(UpgradeRefusal::origin("origin-not-listed"));
                }
                None if *require_origin => {
                    return Err(UpgradeRefusal::origin("origin-missing"));
                }
                _ => {}
            }
            let space = query
                .map(|query| parse_query(query).ok_or(UpgradeRefusal::malformed("query")))
                .transpose()?;
            UpgradeRequest {
                endpoint: Endpoint::Public { space },
                key,
            }
        }
        UpgradePolicy::Private => {
            let endpoint = match target {
                LINK_PATH => Endpoint::RouterLink,
                DATA_PATH => Endpoint::RouterData,
                _ => return Err(UpgradeRefusal::PATH),
            };
            let fields = Fields::read(head.headers)?;
            let key = fields.upgrade_key(head.headers)?;
            if fields.origin.is_some() {
                return Err(UpgradeRefusal::origin("origin-forbidden"));
            }
            UpgradeRequest { endpoint, key }
        }
    };
    Ok(Parsed::Complete { request, consumed })
}

/// The fields that may appear once.
struct Fields<'b> {
    host: &'b [u8],
    origin: Option<&'b [u8]>,
    upgrade: Option<&'b [u8]>,
    key: Option<&'b [u8]>,
    version: Option<&'b [u8]>,
}

impl<'b> Fields<'b> {
    /// Collects them, and refuses a request that has one twice, a body, or no host.
    fn read(fields: &[Header<'b>]) -> Result<Self, UpgradeRefusal> {
        let once = |name| {
            single(fields, name).map_err(|Repeated| UpgradeRefusal::malformed("repeated-field"))
        };
        let length = once("content-length")?;
        if length.is_some_and(|length| length != b"0") || once("transfer-encoding")?.is_some() {
            return Err(UpgradeRefusal::malformed("body"));
        }
        Ok(Self {
            host: once("host")?.ok_or(UpgradeRefusal::malformed("host-missing"))?,
            origin: once("origin")?,
            upgrade: once("upgrade")?,
            key: once("sec-websocket-key")?,
            version: once("sec-websocket-version")?,
        })
    }

    /// The key of a request that asks for a WebSocket of the one version there is.
    fn upgrade_key(&self, fields: &[Header<'_>]) -> Result<String, UpgradeRefusal> {
        let is_websocket = self
            .upgrade
            .is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
        if !is_websocket || !lists(fields, "connection", "upgrade") {
            return Err(UpgradeRefusal::malformed("no-upgrade"));
        }
        if self.version != Some(b"13") {
            return Err(UpgradeRefusal::VERSION);
        }
        self.key
            .and_then(|key| std::str::from_utf8(key).ok())
            .filter(|key| key::is_key(key))
            .map(str::to_owned)
            .ok_or(UpgradeRefusal::malformed("websocket-key"))
    }
}

/// How a host is another than the expected one: only in its port, which is what is forgotten most, or altogether.
fn host_rule(found: &[u8], expected: &[u8]) -> &'static str {
    let name = |host: &[u8]| {
        let port = host.iter().rposition(|byte| *byte == b':');
        let digits = port.and_then(|port| host.get(port + 1..));
        let has_port = digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_digit));
        let end = port.filter(|_| has_port).unwrap_or(host.len());
        host.get(..end).unwrap_or_default().to_ascii_lowercase()
    };
    if name(found) == name(expected) {
        "host-port"
    } else {
        "host-name"
    }
}

/// The space of a query: exactly one `space`, a canonical DID, raw or percent-encoded.
fn parse_query(query: &str) -> Option<Did> {
    let value = query.strip_prefix("space=")?;
    let mut decoded = Vec::with_capacity(Did::LEN);
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        let byte = if byte == b'%' {
            let high = hex_digit(bytes.next()?)?;
            (high << 4) | hex_digit(bytes.next()?)?
        } else {
            byte
        };
        // A second parameter or a fragment would bring a character that no DID has; so would an overlong value.
        if decoded.len() == Did::LEN {
            return None;
        }
        decoded.push(byte);
    }
    Did::parse(std::str::from_utf8(&decoded).ok()?).ok()
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}
