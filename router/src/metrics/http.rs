//! As much of HTTP/1.1 as a scrape needs: one request, one answer, and the end of the connection.

use std::io;

use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Bytes of a request's head at most. Prometheus sends some 300.
const MAX_HEAD_LEN: usize = 8 * 1024;

/// Headers of one request at most.
const MAX_HEADERS: usize = 64;

/// The one thing that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Metrics;

/// Why a request gets no metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Malformed,
    TooLong,
    Method,
    Path,
}

impl Refusal {
    const fn status(self) -> &'static str {
        match self {
            Self::Malformed => "400 Bad Request",
            Self::TooLong => "431 Request Header Fields Too Large",
            Self::Method => "405 Method Not Allowed",
            Self::Path => "404 Not Found",
        }
    }
}

/// Reads the head of a request. What may follow it is not read: no request that is answered has a body.
///
/// # Errors
/// When the connection fails or ends before its head did.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<Result<Metrics, Refusal>> {
    let mut head = Vec::with_capacity(1024);
    loop {
        let room = MAX_HEAD_LEN.saturating_sub(head.len());
        if room == 0 {
            return Ok(Err(Refusal::TooLong));
        }
        let mut limited = (&mut *stream).take(u64::try_from(room).unwrap_or(u64::MAX));
        if limited.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Partial) => {}
            Ok(httparse::Status::Complete(_)) => return Ok(judge(&request)),
            Err(httparse::Error::TooManyHeaders) => return Ok(Err(Refusal::TooLong)),
            Err(_) => return Ok(Err(Refusal::Malformed)),
        }
    }
}

fn judge(request: &httparse::Request<'_, '_>) -> Result<Metrics, Refusal> {
    let path = request.path.unwrap_or_default();
    // Scrapers may add parameters of their own.
    if path.split('?').next() != Some("/metrics") {
        return Err(Refusal::Path);
    }
    if request.method != Some("GET") {
        return Err(Refusal::Method);
    }
    Ok(Metrics)
}

/// Answers with a document.
///
/// # Errors
/// When the connection fails.
pub(super) async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    document: &str,
) -> io::Result<()> {
    write(stream, "200 OK", CONTENT_TYPE, document).await
}

/// Answers without one.
///
/// # Errors
/// When the connection fails.
pub(super) async fn refuse(
    stream: &mut (impl AsyncWrite + Unpin),
    refusal: Refusal,
) -> io::Result<()> {
    write(
        stream,
        refusal.status(),
        "text/plain; charset=utf-8",
        "GET /metrics\n",
    )
    .await
}

async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    status: &str,
    content_type: &str,
    body: &str,
) -> io::Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nAllow: GET\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn judged(request: &[u8]) -> Option<Result<Metrics, Refusal>> {
        read(&mut &*request).await.ok()
    }

    #[tokio::test]
    async fn metrics_are_asked_for_in_one_way() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", Ok(Metrics)),
            ("GET /metrics?a=b HTTP/1.0\r\n\r\n", Ok(Metrics)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Err(Refusal::Method)),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", Err(Refusal::Method)),
            ("GET / HTTP/1.1\r\n\r\n", Err(Refusal::Path)),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", Err(Refusal::Path)),
            ("GET http://x/metrics HTTP/1.1\r\n\r\n", Err(Refusal::Path)),
            ("GET /metrics HTTP/2.0\r\n\r\n", Err(Refusal::Malformed)),
            ("\x16\x03\x01 tls\r\n\r\n", Err(Refusal::Malformed)),
        ] {
            assert_eq!(
                judged(request.as_bytes()).await,
                Some(expected),
                "{request}"
            );
        }
    }

    #[tokio::test]
    async fn a_head_is_bounded_and_has_to_end() {
        let long = format!("GET /metrics HTTP/1.1\r\nA: {}", "b".repeat(MAX_HEAD_LEN));
        assert_eq!(judged(long.as_bytes()).await, Some(Err(Refusal::TooLong)));
        let many = format!(
            "GET /metrics HTTP/1.1\r\n{}\r\n",
            "A: b\r\n".repeat(MAX_HEADERS + 1)
        );
        assert_eq!(judged(many.as_bytes()).await, Some(Err(Refusal::TooLong)));
        let whole = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(judged(&whole.as_bytes()[..end]).await, None, "{end}");
        }
    }
}
