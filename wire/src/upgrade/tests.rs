//! Compiled under `#[cfg(test)]` alone.
use proptest::prelude::*;

use super::*;

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const SPACE: &str = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK";

fn public() -> UpgradePolicy {
    UpgradePolicy::Public {
        host: "router.example:8443".to_owned(),
        origins: vec!["https://app.example".to_owned()],
        require_origin: false,
    }
}

/// A good request to `target` with `extra` lines.
fn request(target: &str, extra: &str) -> String {
    format!(
        "GET {target} HTTP/1.1\r\nHost: router.example:8443\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
         Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n{extra}\r\n"
    )
}

fn status(text: &str) -> u16 {
    match parse_request(text.as_bytes(), &public()) {
        Ok(Parsed::Complete { .. }) => 101,
        Ok(Parsed::Incomplete) => 0,
        Err(refusal) => refusal.status,
    }
}

fn space_of(target: &str) -> Option<Option<Did>> {
    match parse_request(request(target, "").as_bytes(), &public()) {
        Ok(Parsed::Complete {
            request:
                UpgradeRequest {
                    endpoint: Endpoint::Public { space },
                    ..
                },
            ..
        }) => Some(space),
        _ => None,
    }
}

#[test]
fn accepts_a_request_as_browsers_send_it() {
    let extra = "Origin: https://app.example\r\nSec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Protocol: a\r\nContent-Length: 0\r\n";
    let text = request(PUBLIC_PATH, extra);
    let mut bytes = text.clone().into_bytes();
    bytes.extend(b"rest");
    let expected = Parsed::Complete {
        request: UpgradeRequest {
            endpoint: Endpoint::Public { space: None },
            key: KEY.to_owned(),
        },
        consumed: text.len(),
    };
    assert_eq!(parse_request(&bytes, &public()), Ok(expected));
    for end in 0..text.len() {
        assert_eq!(status(&text[..end]), 0, "{end}");
    }
}

#[test]
fn reads_the_space_raw_and_percent_encoded() {
    let did = Some(Some(Did::parse(SPACE).unwrap()));
    assert_eq!(space_of(PUBLIC_PATH), Some(None));
    assert_eq!(space_of(&format!("{PUBLIC_PATH}?space={SPACE}")), did);
    let encoded = SPACE.replace(':', "%3A");
    assert_eq!(space_of(&format!("{PUBLIC_PATH}?space={encoded}")), did);
    let all: String = SPACE.bytes().map(|byte| format!("%{byte:02x}")).collect();
    assert_eq!(space_of(&format!("{PUBLIC_PATH}?space={all}")), did);
    for query in [
        "",
        "space=",
        "space",
        &format!("space={SPACE}&space={SPACE}"),
        &format!("space={SPACE}&a=b"),
        &format!("a=b&space={SPACE}"),
        &format!("space={SPACE}&"),
        &format!("space={SPACE}#x"),
        &format!("space={SPACE}%"),
        &format!("space={SPACE}%0"),
        &format!("space={}", SPACE.replace(':', "%3")),
        &format!("space={}", SPACE.replace(':', "%zz")),
        &format!("space={}", SPACE.replace(':', "%+3A")),
        &format!("Space={SPACE}"),
        &format!("sp%61ce={SPACE}"),
        "space=did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doL0",
    ] {
        assert_eq!(
            status(&request(&format!("{PUBLIC_PATH}?{query}"), "")),
            400,
            "{query}"
        );
    }
}

#[test]
fn refuses_with_the_status_of_the_protocol() {
    let good = request(PUBLIC_PATH, "");
    assert_eq!(status(&good), 101);
    for (from, to, expected) in [
        ("GET ", "POST ", 405),
        (PUBLIC_PATH, "/", 404),
        (PUBLIC_PATH, "/api/storage/memory/", 404),
        (PUBLIC_PATH, "/api/storage/memor%79", 404),
        (
            PUBLIC_PATH,
            "https://router.example:8443/api/storage/memory",
            400,
        ),
        (PUBLIC_PATH, LINK_PATH, 404),
        ("HTTP/1.1", "HTTP/1.0", 400),
        ("HTTP/1.1", "HTTP/2.0", 400),
        ("Host: router.example:8443\r\n", "", 400),
        ("router.example:8443", "router.example", 421),
        ("router.example:8443", "other.example:8443", 421),
        ("router.example:8443", "ROUTER.example:8443", 101),
        ("Upgrade: WebSocket\r\n", "", 400),
        ("Upgrade: WebSocket", "Upgrade: h2c", 400),
        ("keep-alive, Upgrade", "keep-alive", 400),
        ("Version: 13", "Version: 12", 426),
        ("Sec-WebSocket-Version: 13\r\n", "", 426),
        ("Version: 13", "Version: 13, 8", 426),
        (KEY, "dGhlIHNhbXBsZSBub25jZQ=", 400),
        (KEY, "", 400),
        ("\r\nHost", "\nHost", 400),
        ("Host: ", "Host : ", 400),
        ("GET ", "\r\nGET ", 400),
        ("Upgrade: WebSocket", "Upgrade: WebSocket\r\n folded", 400),
    ] {
        assert_eq!(
            status(&good.replacen(from, to, 1)),
            expected,
            "{from:?} -> {to:?}"
        );
    }
    for (extra, expected) in [
        ("Host: router.example:8443\r\n", 400),
        ("Upgrade: websocket\r\n", 400),
        ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", 400),
        ("Sec-WebSocket-Version: 13\r\n", 400),
        (
            "Origin: https://app.example\r\nOrigin: https://app.example\r\n",
            400,
        ),
        ("Content-Length: 1\r\n", 400),
        ("Content-Length: 00\r\n", 400),
        ("Content-Length: 0\r\nContent-Length: 0\r\n", 400),
        ("Transfer-Encoding: chunked\r\n", 400),
        ("Transfer-Encoding: identity\r\n", 400),
        ("Origin: https://evil.example\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Origin: https://app.example.evil\r\n", 403),
        ("Origin: https://app.example\r\n", 101),
        ("X: y\0\r\n", 400),
    ] {
        assert_eq!(status(&request(PUBLIC_PATH, extra)), expected, "{extra:?}");
    }
}

#[test]
fn requires_an_origin_when_told_to() {
    let policy = UpgradePolicy::Public {
        host: "router.example:8443".to_owned(),
        origins: vec!["https://app.example".to_owned()],
        require_origin: true,
    };
    let without = parse_request(request(PUBLIC_PATH, "").as_bytes(), &policy);
    assert_eq!(without, Err(UpgradeRefusal::origin("origin-missing")));
    let with = request(PUBLIC_PATH, "Origin: https://app.example\r\n");
    assert!(parse_request(with.as_bytes(), &policy).is_ok());
}

#[test]
fn bounds_the_head_and_its_fields() {
    let room = MAX_HEAD_LEN - request(PUBLIC_PATH, "A: \r\n").len();
    let longest = request(PUBLIC_PATH, &format!("A: {}\r\n", "x".repeat(room)));
    assert_eq!(longest.len(), MAX_HEAD_LEN);
    assert_eq!(status(&longest), 101);
    let longer = request(PUBLIC_PATH, &format!("A: {}\r\n", "x".repeat(room + 1)));
    assert_eq!(status(&longer), 400);
    assert_eq!(status(&longer[..MAX_HEAD_LEN]), 400);
    assert_eq!(
        status(&request(PUBLIC_PATH, &"A: b\r\n".repeat(MAX_FIELDS - 5))),
        101
    );
    assert_eq!(
        status(&request(PUBLIC_PATH, &"A: b\r\n".repeat(MAX_FIELDS - 4))),
        400
    );
}

#[test]
fn serves_the_private_paths_alone() {
    let ask = |target: &str, extra: &str| match parse_request(
        request(target, extra).as_bytes(),
        &UpgradePolicy::Private,
    ) {
        Ok(Parsed::Complete { request, .. }) => Ok(request.endpoint),
        Ok(Parsed::Incomplete) => Err(0),
        Err(refusal) => Err(refusal.status),
    };
    assert_eq!(ask(LINK_PATH, ""), Ok(Endpoint::RouterLink));
    assert_eq!(ask(DATA_PATH, ""), Ok(Endpoint::RouterData));
    assert_eq!(ask(PUBLIC_PATH, ""), Err(404));
    assert_eq!(ask("/memory/router-data?x", ""), Err(404));
    assert_eq!(ask(LINK_PATH, "Origin: https://app.example\r\n"), Err(403));
}

#[test]
fn the_client_reads_what_the_server_writes() {
    let text = client_request("router.example:8443", PUBLIC_PATH, KEY).unwrap();
    assert!(matches!(
        parse_request(&text, &public()),
        Ok(Parsed::Complete { consumed, .. }) if consumed == text.len()
    ));
    let answer = switching_protocols(KEY);
    assert_eq!(parse_response(&answer, KEY), Ok(Some(answer.len())));
    for end in 0..answer.len() {
        assert_eq!(parse_response(&answer[..end], KEY), Ok(None), "{end}");
    }
    let other = encode_key(&[9; 16]);
    assert_eq!(parse_response(&answer, &other), Err(ResponseFault::Accept));
}

#[test]
fn the_client_refuses_other_answers() {
    let answer = String::from_utf8(switching_protocols(KEY)).unwrap();
    for (from, to, expected) in [
        ("Upgrade: websocket\r\n", "", ResponseFault::Fields),
        (
            "Upgrade: websocket",
            "Upgrade: websocket\r\nUpgrade: websocket",
            ResponseFault::Fields,
        ),
        (
            "Connection: Upgrade",
            "Connection: close",
            ResponseFault::Fields,
        ),
        (
            "\r\n\r\n",
            "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
            ResponseFault::Extension,
        ),
        (
            "\r\n\r\n",
            "\r\nSec-WebSocket-Protocol: a\r\n\r\n",
            ResponseFault::Extension,
        ),
        ("HTTP/1.1", "HTTP/1.0", ResponseFault::Malformed),
        ("HTTP/1.1", "SMTP", ResponseFault::Malformed),
        (
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo",
            ResponseFault::Accept,
        ),
    ] {
        let bent = answer.replacen(from, to, 1);
        assert_eq!(
            parse_response(bent.as_bytes(), KEY),
            Err(expected),
            "{to:?}"
        );
    }
    for (host, path, key) in [
        ("a\r\nb", "/", KEY),
        ("a", "/ b", KEY),
        ("a", "b", KEY),
        ("a", "/", "k"),
        ("", "/", KEY),
    ] {
        assert_eq!(client_request(host, path, key), Err(ResponseFault::Request));
    }
}

#[test]
fn writes_refusals_that_close() {
    let body = RefusalBody {
        error: Reason::TenantCap.as_str(),
        connection: Some("0123456789ABCDEF"),
        tenant: Some(SPACE),
        cap: Some(1000),
        retry_after: Some(7),
    };
    let bytes = refusal_response(429, &body);
    let Err(ResponseFault::Refused {
        status,
        retry_after,
        head_len,
        body_len,
    }) = parse_response(&bytes, KEY)
    else {
        panic!("refused");
    };
    assert_eq!((status, retry_after), (429, Some(7)));
    let text = std::str::from_utf8(&bytes[head_len..]).unwrap();
    assert_eq!(body_len, Some(text.len() as u64));
    assert_eq!(
        text,
        format!(
            "{{\"error\":\"tenant-cap\",\"connection\":\"0123456789ABCDEF\",\"tenant\":\"{SPACE}\",\"cap\":1000}}\n"
        )
    );
    let head = std::str::from_utf8(&bytes[..head_len]).unwrap();
    assert!(head.contains("\r\nConnection: close\r\n"), "{head}");
    let plain = RefusalBody {
        error: "upgrade-version",
        ..RefusalBody::default()
    };
    let bytes = String::from_utf8(refusal_response(426, &plain)).unwrap();
    assert!(
        bytes.ends_with("\r\n\r\n{\"error\":\"upgrade-version\"}\n"),
        "{bytes}"
    );
    assert!(
        bytes.contains("\r\nSec-WebSocket-Version: 13\r\n"),
        "{bytes}"
    );
}

proptest! {
    #[test]
    fn never_panics_on_bent_requests(at in any::<proptest::sample::Index>(), byte: u8, private: bool) {
        let mut bytes = request(&format!("{PUBLIC_PATH}?space={SPACE}"), "Origin: https://app.example\r\n").into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let policy = if private { UpgradePolicy::Private } else { public() };
        let _ = parse_request(&bytes, &policy);
    }

    #[test]
    fn never_panics_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_request(&bytes, &public());
        let _ = parse_response(&bytes, KEY);
    }
}

#[test]
fn a_refusal_names_the_rule_in_a_fixed_word() {
    let rule = |text: &str| match parse_request(text.as_bytes(), &public()) {
        Err(refusal) => refusal.rule,
        Ok(_) => "",
    };
    let good = request(PUBLIC_PATH, "");
    for (from, to, expected) in [
        ("router.example:8443", "router.example", "host-port"),
        ("router.example:8443", "ROUTER.example:443", "host-port"),
        ("router.example:8443", "other.example:8443", "host-name"),
        ("HTTP/1.1", "HTTP/1.0", "http-version"),
        ("Upgrade: WebSocket\r\n", "", "no-upgrade"),
        ("Version: 13", "Version: 8", "websocket-version"),
        ("Host: router.example:8443\r\n", "", "host-missing"),
    ] {
        assert_eq!(rule(&good.replace(from, to)), expected, "{from} {to}");
    }
}
