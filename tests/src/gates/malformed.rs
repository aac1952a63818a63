//! Gate 18: malformed input of each kind closes one worker, with its fixed reason in the log.

use std::io::Write as _;

use flate2::{Compression, GzBuilder};
use memory_wire::frame::Opcode;
use serde_json::{Value, json};

use super::GateResult;
use super::bystander::Bystander;
use crate::error::{same, soon};
use crate::raw::{Framing, Speaker, ok};
use crate::report::figure;
use crate::{Context, GateError, Stage, log};

/// Depth of the deepest value, the root's being 0, and JSON values in a frame: the router's defaults.
const MOST_DEPTH: usize = 64;
const MOST_SLOTS: usize = 150_000;

/// How a client sends something malformed.
enum Input {
    /// The JSON of a whole text message.
    Text(Vec<u8>),
    /// A whole binary message.
    Binary(Vec<u8>),
    /// The body of a control message in credited records: `binary`, and its bytes.
    Body(bool, Vec<u8>),
    /// Bytes below WebSocket.
    Bytes(Vec<u8>),
}

/// One kind of malformed input, and the detail that the log has for it.
struct Case {
    what: &'static str,
    input: Input,
    detail: &'static str,
}

/// Duplicate keys, lone surrogates, depth 65, slots over the cap, invalid UTF-8, wrong hints, gzip bombs, second members, bad
/// CRC: each closes one worker with its fixed reason.
pub(super) async fn malformed_input(stage: &Stage) -> GateResult {
    let bystander = Bystander::arrive(stage).await?;
    let mut cases = json_cases();
    cases.extend(utf8_cases());
    cases.extend(envelope_cases(stage)?);
    cases.extend(frame_cases());
    let count = cases.len();
    for case in cases {
        let what = case.what;
        closes(stage, case)
            .await
            .map_err(|error| error.within(what))?;
        bystander
            .is_well()
            .await
            .map_err(|error| error.within(format!("after {what}")))?;
    }
    at_the_bound_is_served(stage).await?;
    bystander.leave(stage).await?;
    Ok(figure("cases", count))
}

async fn closes(stage: &Stage, case: Case) -> Result<(), GateError> {
    let framing = match case.input {
        Input::Body(..) => Framing::Credited,
        _ => Framing::Legacy,
    };
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, framing, true).await?;
    match case.input {
        Input::Text(json) => {
            let text = [&b"fvj1:"[..], &json].concat();
            speaker.client.frame(true, Opcode::Text, &text).await?;
        }
        Input::Binary(bytes) => {
            speaker.client.frame(true, Opcode::Binary, &bytes).await?;
        }
        Input::Body(binary, body) => {
            let (_, header) = speaker.compose("connection.challenge", json!({}))?;
            speaker.send_body(&header, &body, binary).await?;
        }
        Input::Bytes(bytes) => speaker.client.bytes(&bytes).await?,
    }
    closes_as_broken(stage, mark, &mut speaker, case.detail)
        .await
        .map(drop)
}

/// Demands that the router closes as for a broken rule, with this detail in its log and nothing else on the wire, and that the
/// worker ends. Gives the line.
pub(super) async fn closes_as_broken(
    stage: &Stage,
    mark: usize,
    speaker: &mut Speaker,
    detail: &str,
) -> Result<Value, GateError> {
    let name = speaker.connection()?;
    let closing = speaker.client.closing().await?;
    same(
        "the close frame",
        (closing.code, closing.text),
        (close_code(detail), format!("client-protocol {name}")),
    )?;
    // As RFC 6455 has it: the router waits for the answer a while.
    speaker.client.answer_closing().await?;
    let line = stage
        .router
        .worker_event(mark, &name, "client-protocol", detail)
        .await?;
    let ended = stage.router.log().wait("the worker's end", mark, |line| {
        log::has(line, "connection", &name) && log::has(line, "message", "connection ended")
    });
    soon("the worker's end", ended).await??;
    Ok(line)
}

/// A size bound has a code of its own; every other broken rule is a violation of the protocol.
fn close_code(detail: &str) -> u16 {
    match detail {
        "json-slots" | "json-too-long" | "envelope-expansion" | "body-length" => 1009,
        _ => 1008,
    }
}

/// What keeps every bound exactly is answered.
async fn at_the_bound_is_served(stage: &Stage) -> Result<(), GateError> {
    for (what, extra) in [
        ("depth 64", nested(MOST_DEPTH - 1)),
        ("150,000 slots", array(MOST_SLOTS - 4)),
        ("a surrogate pair", r#""\ud83d\ude00""#.to_owned()),
    ] {
        let mut speaker = Speaker::connect(stage, Framing::Legacy, true).await?;
        let text = format!(r#"fvj1:{{"type":"connection.challenge","requestId":"a","x":{extra}}}"#);
        let text = text.as_bytes();
        speaker.client.frame(true, Opcode::Text, text).await?;
        let answer = speaker.answer("a").await;
        ok(&answer.map_err(|error| error.within(what))?)?;
        speaker.client.reset()?;
    }
    Ok(())
}

fn json_cases() -> Vec<Case> {
    let with = |extra: &str| {
        let text = format!(r#"{{"type":"connection.challenge","requestId":"a",{extra}}}"#);
        Input::Text(text.into_bytes())
    };
    let case = |what, input, detail| Case {
        what,
        input,
        detail,
    };
    vec![
        case(
            "a key twice",
            with(r#""requestId":"b""#),
            "json-duplicate-key",
        ),
        case(
            "a key twice, once escaped, below the top",
            with(r#""x":[{"key":1,"\u006bey":2}]"#),
            "json-duplicate-key",
        ),
        case(
            "a lone leading surrogate",
            with(r#""x":"\ud800""#),
            "json-lone-surrogate",
        ),
        case(
            "a lone trailing surrogate",
            with(r#""x":"\udc00""#),
            "json-lone-surrogate",
        ),
        case(
            "a lone surrogate in a key",
            with(r#""\ud800x":1"#),
            "json-lone-surrogate",
        ),
        case(
            "depth 65",
            with(&format!(r#""x":{}"#, nested(MOST_DEPTH))),
            "json-depth",
        ),
        case(
            "150,001 slots",
            with(&format!(r#""x":{}"#, array(MOST_SLOTS - 3))),
            "json-slots",
        ),
        case(
            "a forbidden key",
            with(r#""x":{"__proto__":{}}"#),
            "json-forbidden-key",
        ),
        case(
            "an infinite number",
            with(r#""x":1e999"#),
            "json-number-range",
        ),
        case(
            "something after the root",
            Input::Text(br#"{"type":"connection.challenge","requestId":"a"}{}"#.to_vec()),
            "json-trailing",
        ),
        case(
            "no JSON",
            Input::Text(b"{'type':1}".to_vec()),
            "json-syntax",
        ),
        case(
            "a key twice in records",
            Input::Body(
                false,
                br#"fvj1:{"type":"connection.challenge","requestId":"r1","requestId":"r1"}"#
                    .to_vec(),
            ),
            "json-duplicate-key",
        ),
    ]
}

fn utf8_cases() -> Vec<Case> {
    let text = b"{\"type\":\"connection.challenge\",\"requestId\":\"a\",\"x\":\"\xc3\x28\"}";
    vec![
        Case {
            what: "invalid UTF-8 in a text message",
            input: Input::Text(text.to_vec()),
            detail: "invalid-utf8",
        },
        Case {
            what: "an encoded surrogate in a text message",
            input: Input::Text(b"{\"type\":\"\xed\xa0\x80\"}".to_vec()),
            detail: "invalid-utf8",
        },
        Case {
            what: "invalid UTF-8 in records",
            input: Input::Body(false, [&b"fvj1:"[..], text].concat()),
            detail: "invalid-utf8",
        },
    ]
}

/// An envelope of `mcmp` version 2, each part as the case wants it.
struct Envelope {
    version: u8,
    expanded: usize,
    hint: String,
    member: Vec<u8>,
}

impl Envelope {
    fn of(text: &[u8], hint: &str) -> Result<Self, GateError> {
        Ok(Self {
            version: 2,
            expanded: text.len(),
            hint: hint.to_owned(),
            member: gzip(text)?,
        })
    }

    fn bytes(&self) -> Result<Vec<u8>, GateError> {
        let mut bytes = b"mcmp".to_vec();
        bytes.push(self.version);
        let expanded = u32::try_from(self.expanded).during("the expanded length")?;
        bytes.extend_from_slice(&expanded.to_be_bytes());
        let hint = u16::try_from(self.hint.len()).during("the length of the hint")?;
        bytes.extend_from_slice(&hint.to_be_bytes());
        bytes.extend_from_slice(self.hint.as_bytes());
        bytes.extend_from_slice(&self.member);
        Ok(bytes)
    }
}

fn gzip(text: &[u8]) -> Result<Vec<u8>, GateError> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder
        .write_all(text)
        .and_then(|()| encoder.finish())
        .during("compressing")
}

fn envelope_cases(stage: &Stage) -> Result<Vec<Case>, GateError> {
    let [first, second] = &stage.spaces;
    let text = format!(
        r#"fvj1:{{"type":"graph.query","requestId":"a","space":"{}","sessionId":"s","x":"{}"}}"#,
        first.did,
        "abcdefgh".repeat(20)
    );
    let nowhere = r#"fvj1:{"type":"connection.challenge","requestId":"a"}"#;
    let (text, nowhere) = (text.as_bytes(), nowhere.as_bytes());
    let (right, wrong) = (first.did.as_str(), second.did.as_str());
    let bomb = vec![b' '; 4 << 20];

    let mut cases = Vec::new();
    let mut add = |what, envelope: Envelope, detail| {
        let input = Input::Binary(envelope.bytes()?);
        cases.push(Case {
            what,
            input,
            detail,
        });
        Ok::<_, GateError>(())
    };
    let good = || Envelope::of(text, right);
    add(
        "the hint of another space",
        Envelope::of(text, wrong)?,
        "envelope-hint",
    )?;
    add("no hint", Envelope::of(text, "")?, "envelope-hint")?;
    add(
        "a hint where no space is named",
        Envelope::of(nowhere, right)?,
        "envelope-hint",
    )?;
    add(
        "a hint that is no DID",
        Envelope::of(text, "did:web:example")?,
        "envelope-hint",
    )?;
    add(
        "a gzip bomb",
        Envelope::of(&bomb, right)?,
        "envelope-expansion",
    )?;
    let member = gzip(&bomb)?;
    let declared = member.len() * 32;
    add(
        "a gzip bomb that declares less",
        Envelope {
            expanded: declared,
            hint: right.to_owned(),
            version: 2,
            member,
        },
        "envelope-length",
    )?;
    add(
        "an expanded length over 16 MiB",
        Envelope {
            expanded: (16 << 20) + 1,
            ..good()?
        },
        "envelope-expansion",
    )?;
    add(
        "an expanded length one too long",
        Envelope {
            expanded: text.len() + 1,
            ..good()?
        },
        "envelope-length",
    )?;
    let mut twice = good()?;
    twice.member.extend(gzip(b"")?);
    add("a second member", twice, "envelope-member")?;
    let mut padded = good()?;
    padded.member.push(0);
    add("a byte after the member", padded, "envelope-member")?;
    let mut named = good()?;
    named.member = {
        let mut encoder = GzBuilder::new()
            .filename("name")
            .write(Vec::new(), Compression::best());
        encoder
            .write_all(text)
            .and_then(|()| encoder.finish())
            .during("compressing")?
    };
    add("a member with an optional field", named, "envelope-member")?;
    // The trailer: four bytes of CRC32, four of length.
    for (what, from_end) in [("a wrong CRC", 8), ("a wrong length in the trailer", 4)] {
        let mut broken = good()?;
        let place = broken.member.len().checked_sub(from_end);
        let byte = place.and_then(|place| broken.member.get_mut(place));
        *byte.during("the trailer")? ^= 1;
        add(what, broken, "envelope-crc")?;
    }
    let mut cut = good()?;
    cut.member.truncate(cut.member.len().saturating_sub(9));
    add("a member cut short", cut, "envelope-truncated")?;
    add(
        "an envelope of version 1",
        Envelope {
            version: 1,
            ..good()?
        },
        "envelope-version",
    )?;
    cases.push(Case {
        what: "a wrong CRC in records",
        input: Input::Body(true, {
            let mut envelope = Envelope::of(nowhere, "")?;
            let place = envelope.member.len().checked_sub(8);
            let byte = place.and_then(|place| envelope.member.get_mut(place));
            *byte.during("the trailer")? ^= 1;
            envelope.bytes()?
        }),
        detail: "envelope-crc",
    });
    Ok(cases)
}

fn frame_cases() -> Vec<Case> {
    let case = |what, bytes: &[u8], detail| Case {
        what,
        input: Input::Bytes(bytes.to_vec()),
        detail,
    };
    vec![
        case("a frame without a mask", b"\x81\x02{}", "frame-mask"),
        case(
            "a frame with the bit of a compression extension",
            b"\xc1\x80\0\0\0\0",
            "frame-reserved-bit",
        ),
        case("an unknown opcode", b"\x83\x80\0\0\0\0", "frame-opcode"),
        case(
            "a length not in its shortest form",
            b"\x81\xfe\x00\x01\0\0\0\0x",
            "frame-length",
        ),
        case(
            "a control frame in fragments",
            b"\x09\x80\0\0\0\0",
            "frame-control",
        ),
        case(
            "a continuation of nothing",
            b"\x80\x80\0\0\0\0",
            "frame-fragment",
        ),
    ]
}

/// Arrays within each other: the innermost value is this many levels below the outermost array.
fn nested(levels: usize) -> String {
    format!("{}1{}", "[".repeat(levels), "]".repeat(levels))
}

/// An array of this many numbers.
fn array(len: usize) -> String {
    let mut text = "1,".repeat(len);
    text.pop();
    format!("[{text}]")
}
