//! What a server answers, and the client's half of the upgrade.

use httparse::{EMPTY_HEADER, Response, Status};
use serde::Serialize;

use super::{MAX_FIELDS, MAX_HEAD_LEN, Repeated, accept_key, has_strict_lines, key, lists, single};

/// The JSON body of a refusal. Absent members are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RefusalBody<'a> {
    /// The reason.
    pub error: &'a str,
    /// The connection's identifier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<&'a str>,
    /// With 429: whose cap is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<&'a str>,
    /// With 429: the cap, in connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<u64>,
    /// The `Retry-After` field, in seconds; not part of the body.
    #[serde(skip)]
    pub retry_after: Option<u32>,
}

/// The answer that opens the WebSocket of a request with `key`. Extensions and subprotocols are never accepted.
pub fn switching_protocols(key: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\n\
         Upgrade: websocket\r\n\
         Connection: Upgrade\r\n\
         Sec-WebSocket-Accept: {}\r\n\r\n",
        accept_key(key)
    )
    .into_bytes()
}

/// A refusal; the connection closes behind it. The fields that HTTP demands with 405 and 426 are added.
pub fn refusal_response(status: u16, body: &RefusalBody<'_>) -> Vec<u8> {
    // A struct of texts and numbers always serialises.
    let body_text = serde_json::to_string(body).unwrap_or_default();
    let retry_after = body
        .retry_after
        .map(|seconds| format!("Retry-After: {seconds}\r\n"))
        .unwrap_or_default();
    let demanded = match status {
        405 => "Allow: GET\r\n",
        426 => "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
        _ => "",
    };
    let phrase = match status {
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        421 => "Misdirected Request",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        503 => "Service Unavailable",
        _ => "Refused",
    };
    let length = body_text.len() + 1;
    format!(
        "HTTP/1.1 {status} {phrase}\r\n\
         Content-Type: application/json\r\n\
         Content-Length: {length}\r\n\
         Cache-Control: no-store\r\n\
         Connection: close\r\n\
         {demanded}{retry_after}\r\n\
         {body_text}\n"
    )
    .into_bytes()
}

/// Why an upgrade failed on the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ResponseFault {
    /// A host, path, key or origin that cannot stand in a request.
    #[error("upgrade-request")]
    Request,
    /// Not an HTTP/1.1 head, or over [`MAX_HEAD_LEN`].
    #[error("upgrade-malformed")]
    Malformed,
    /// The server refused.
    #[error("upgrade-refused: {status}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The `Retry-After` field, in seconds.
        retry_after: Option<u32>,
        /// Bytes of the head; the body follows.
        head_len: usize,
        /// Bytes of the body as the server declares them.
        body_len: Option<u64>,
    },
    /// 101 without `Upgrade: websocket` or `Connection: upgrade`.
    #[error("upgrade-fields")]
    Fields,
    /// The answer is to another key.
    #[error("upgrade-accept")]
    Accept,
    /// An extension or subprotocol nobody asked for.
    #[error("upgrade-extension")]
    Extension,
}

/// The request that asks `host` for a WebSocket at `path` (with its query). `key` comes from
/// [`encode_key`](super::encode_key).
///
/// # Errors
///
/// [`ResponseFault::Request`] for texts that would break the head.
pub fn client_request(host: &str, path: &str, key: &str) -> Result<Vec<u8>, ResponseFault> {
    client_request_with_origin(host, path, key, None)
}

/// As [`client_request`], with an `Origin` as a browser sends it.
///
/// # Errors
///
/// As [`client_request`].
pub fn client_request_with_origin(
    host: &str,
    path: &str,
    key: &str,
    origin: Option<&str>,
) -> Result<Vec<u8>, ResponseFault> {
    let is_plain =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_plain(host)
        || !is_plain(path)
        || !path.starts_with('/')
        || !key::is_key(key)
        || !origin.is_none_or(is_plain)
    {
        return Err(ResponseFault::Request);
    }
    let origin = origin
        .map(|origin| format!("Origin: {origin}\r\n"))
        .unwrap_or_default();
    let request = format!(
        "GET {path} HTTP/1.1\r\n\
         Host: {host}\r\n\
         Upgrade: websocket\r\n\
         Connection: Upgrade\r\n\
         Sec-WebSocket-Key: {key}\r\n\
         Sec-WebSocket-Version: 13\r\n\
         {origin}\r\n"
    );
    Ok(request.into_bytes())
}

/// Reads the answer at the start of `bytes` to a request with `key`: the length of its head, or `None` when more bytes are
/// needed. What follows the head belongs to the WebSocket.
///
/// # Errors
///
/// [`ResponseFault`], all but [`ResponseFault::Request`].
pub fn parse_response(bytes: &[u8], key: &str) -> Result<Option<usize>, ResponseFault> {
    let mut fields = [EMPTY_HEADER; MAX_FIELDS];
    let mut head = Response::new(&mut fields);
    let consumed = match head.parse(bytes) {
        Ok(Status::Complete(consumed)) if consumed <= MAX_HEAD_LEN => consumed,
        Ok(Status::Partial) if bytes.len() < MAX_HEAD_LEN => return Ok(None),
        _ => return Err(ResponseFault::Malformed),
    };
    if !bytes.get(..consumed).is_some_and(has_strict_lines) || head.version != Some(1) {
        return Err(ResponseFault::Malformed);
    }
    let fields = &*head.headers;
    let once = |name| single(fields, name).map_err(|Repeated| ResponseFault::Fields);
    let status = head.code.unwrap_or_default();
    if status != 101 {
        return Err(ResponseFault::Refused {
            status,
            retry_after: once("retry-after").ok().flatten().and_then(number),
            head_len: consumed,
            body_len: once("content-length").ok().flatten().and_then(number),
        });
    }
    let is_websocket =
        once("upgrade")?.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
    if !is_websocket || !lists(fields, "connection", "upgrade") {
        return Err(ResponseFault::Fields);
    }
    if once("sec-websocket-accept")? != Some(accept_key(key).as_bytes()) {
        return Err(ResponseFault::Accept);
    }
    let is_extended = fields.iter().any(|field| {
        field.name.eq_ignore_ascii_case("sec-websocket-extensions")
            || field.name.eq_ignore_ascii_case("sec-websocket-protocol")
    });
    if is_extended {
        return Err(ResponseFault::Extension);
    }
    Ok(Some(consumed))
}

fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
