//! Gate 15: a truncated, over-long, out-of-order, duplicate or mismatching record closes exactly the connection it came on.

use memory_wire::frame::Opcode;
use memory_wire::stream::{COMPLETION, Header, MAX_CHUNK_LEN, Route, chunk_prefix};
use serde_json::{Value, json};

use super::GateResult;
use super::acts::{Seat, query_of};
use super::bystander::Bystander;
use super::denial::{closes, logged};
use super::malformed::closes_as_broken;
use crate::error::same;
use crate::raw::{Framing, Speaker, ok, text};
use crate::report::figure;
use crate::{Context, GateError, Stage};

/// What the router does with an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upload {
    /// Reads it itself.
    Control,
    /// Passes it on as it comes.
    Forwarded,
    /// Throws it away: the request was refused.
    Refused,
}

const UPLOADS: [Upload; 3] = [Upload::Control, Upload::Forwarded, Upload::Refused];

/// Records after a header that declares so many bytes, and the detail in the log.
struct Case {
    what: &'static str,
    bytes: u32,
    records: Vec<Vec<u8>>,
    detail: &'static str,
}

/// See the module's documentation.
pub(super) async fn malformed(stage: &Stage) -> GateResult {
    let bystander = Bystander::arrive(stage).await?;
    let mut count = 0;
    for upload in UPLOADS {
        for case in body_cases()? {
            count += 1;
            let what = format!("{} in an upload that is {upload:?}", case.what);
            body(stage, upload, case)
                .await
                .map_err(|error| error.within(&what))?;
            bystander
                .is_well()
                .await
                .map_err(|error| error.within(format!("after {what}")))?;
        }
    }
    for (what, record, detail) in lone_records(stage)? {
        count += 1;
        let mark = stage.router.log().mark();
        let (mut speaker, _) = arrive(stage, Framing::Credited).await?;
        speaker.client.frame(true, Opcode::Binary, &record).await?;
        closes_as_broken(stage, mark, &mut speaker, detail)
            .await
            .map_err(|error| error.within(what))?;
        bystander.is_well().await?;
    }
    count += framing(stage).await?;
    count += mismatches(stage).await?;
    cut_off(stage).await?;
    bystander.leave(stage).await?;
    Ok(figure("cases", count + 1))
}

/// A connection with a session.
async fn arrive(stage: &Stage, framing: Framing) -> Result<(Speaker, Seat), GateError> {
    let [space, _] = &stage.spaces;
    let mut speaker = Speaker::connect(stage, framing, false).await?;
    let seat = Seat::take(&mut speaker, space).await?;
    Ok((speaker, seat))
}

async fn body(stage: &Stage, upload: Upload, case: Case) -> Result<(), GateError> {
    let mark = stage.router.log().mark();
    let (mut speaker, seat) = arrive(stage, Framing::Credited).await?;
    let header = header_of(upload, &seat, case.bytes)?;
    speaker.record(&header).await?;
    for record in &case.records {
        // It may be gone already where the first of several is enough.
        if speaker
            .client
            .frame(true, Opcode::Binary, record)
            .await
            .is_err()
        {
            break;
        }
    }
    closes_as_broken(stage, mark, &mut speaker, case.detail)
        .await
        .map(drop)
}

fn header_of(upload: Upload, seat: &Seat, bytes: u32) -> Result<Vec<u8>, GateError> {
    let session = match upload {
        Upload::Refused => "no-such-session",
        Upload::Control | Upload::Forwarded => &seat.id,
    };
    let route = match upload {
        Upload::Control => Route {
            kind: "connection.challenge".into(),
            request_id: Some("upload".into()),
            ..Route::default()
        },
        Upload::Forwarded | Upload::Refused => Route {
            kind: "graph.query".into(),
            request_id: Some("upload".into()),
            space: Some(seat.space.as_str().into()),
            session_id: Some(session.into()),
            ..Route::default()
        },
    };
    encode(bytes, route)
}

fn encode(bytes: u32, route: Route<'_>) -> Result<Vec<u8>, GateError> {
    let mut record = Vec::new();
    Header {
        bytes,
        binary: false,
        request_ordinal: None,
        route,
    }
    .encode_record(&mut record)
    .during("a header")?;
    Ok(record)
}

fn chunk(len: usize) -> Vec<u8> {
    let mut record = chunk_prefix().to_vec();
    record.resize(record.len() + len, b' ');
    record
}

fn body_cases() -> Result<Vec<Case>, GateError> {
    let case = |what, bytes, records: Vec<Vec<u8>>, detail| Case {
        what,
        bytes,
        records,
        detail,
    };
    let completion = || COMPLETION.to_vec();
    let route = Route {
        kind: "connection.challenge".into(),
        request_id: Some("second".into()),
        ..Route::default()
    };
    let second = encode(10, route)?;
    Ok(vec![
        case(
            "a completion without body",
            100,
            vec![completion()],
            "body-truncated",
        ),
        case(
            "a completion one byte early",
            100,
            vec![chunk(99), completion()],
            "body-truncated",
        ),
        case("a chunk too long", 100, vec![chunk(101)], "body-overrun"),
        case(
            "a chunk too many",
            100,
            vec![chunk(100), chunk(1)],
            "body-overrun",
        ),
        case(
            "a header inside",
            100,
            vec![chunk(50), second],
            "header-inside-upload",
        ),
        case(
            "an empty chunk",
            100,
            vec![chunk_prefix().to_vec()],
            "record-length",
        ),
        case(
            "a chunk over 32 KiB",
            100_000,
            vec![chunk(MAX_CHUNK_LEN + 1)],
            "record-length",
        ),
        case(
            "a completion with something in it",
            100,
            vec![chunk(100), [&COMPLETION[..], b"x"].concat()],
            "record-length",
        ),
        case(
            "an unknown kind",
            100,
            vec![b"mrt\x01\x03".to_vec()],
            "record-kind",
        ),
        case(
            "another magic",
            100,
            vec![b"mrt\x02\x01x".to_vec()],
            "binary-message",
        ),
        case("513 chunks", 1000, vec![chunk(1); 513], "too-many-chunks"),
    ])
}

/// What it is, the record, and the detail in the log.
type Lone = (&'static str, Vec<u8>, &'static str);

/// Records that are wrong where no upload is in progress.
fn lone_records(stage: &Stage) -> Result<Vec<Lone>, GateError> {
    let [space, _] = &stage.spaces;
    let raw = |json: &str| [&b"mrt\x01\x00"[..], json.as_bytes()].concat();
    let challenge = r#""route":{"type":"connection.challenge","requestId":"a"}"#;
    let with = |members: &str| raw(&format!("{{{members},{challenge}}}"));
    let large = Route {
        kind: "graph.query".into(),
        request_id: Some("a".into()),
        space: Some(space.did.as_str().into()),
        session_id: Some("s".into()),
        ..Route::default()
    };
    let mut padded = encode(1, large)?;
    padded.resize(4097, b' ');
    Ok(vec![
        ("a chunk first", chunk(1), "chunk-without-header"),
        (
            "a completion first",
            COMPLETION.to_vec(),
            "completion-without-header",
        ),
        ("a header over 4 KiB", padded, "record-length"),
        (
            "a record cut in its prefix",
            b"mrt\x01".to_vec(),
            "record-kind",
        ),
        (
            "a record cut in its magic",
            b"mrt".to_vec(),
            "binary-message",
        ),
        ("a header that is no JSON", raw("{"), "header-syntax"),
        (
            "a header and more",
            raw(&format!(r#"{{"bytes":1,"binary":false,{challenge}}} {{}}"#)),
            "header-syntax",
        ),
        (
            "a key twice",
            with(r#""bytes":1,"bytes":1,"binary":false"#),
            "header-duplicate-key",
        ),
        (
            "an unknown key",
            with(r#""bytes":1,"binary":false,"more":1"#),
            "header-member",
        ),
        (
            "an ordinal",
            with(r#""bytes":1,"binary":false,"requestOrdinal":1"#),
            "header-member",
        ),
        ("no length", with(r#""binary":false"#), "header-incomplete"),
        (
            "a length of zero",
            with(r#""bytes":0,"binary":false"#),
            "body-length",
        ),
        (
            "a length over 8 MiB",
            with(r#""bytes":8388609,"binary":false"#),
            "body-length",
        ),
        (
            "an envelope without compression",
            with(r#""bytes":1,"binary":true"#),
            "binary-without-compression",
        ),
        (
            "a request that says it is an error",
            raw(r#"{"bytes":1,"binary":false,"route":{"type":"x","requestId":"a","error":true}}"#),
            "header-member",
        ),
    ])
}

/// What WebSocket would allow and the protocol does not.
async fn framing(stage: &Stage) -> Result<usize, GateError> {
    // A record in two fragments.
    let mark = stage.router.log().mark();
    let (mut speaker, seat) = arrive(stage, Framing::Credited).await?;
    let header = header_of(Upload::Forwarded, &seat, 100)?;
    let (first, _) = header.split_at(20);
    speaker.client.frame(false, Opcode::Binary, first).await?;
    closes_as_broken(stage, mark, &mut speaker, "fragmented-record")
        .await
        .map_err(|error| error.within("a record in fragments"))?;

    // A whole control message while an upload is in progress.
    let mark = stage.router.log().mark();
    let (mut speaker, seat) = arrive(stage, Framing::Streamed).await?;
    let header = header_of(Upload::Forwarded, &seat, 100)?;
    speaker.record(&header).await?;
    let (_, message) = speaker.compose("connection.challenge", json!({}))?;
    speaker.send(&message).await?;
    closes_as_broken(stage, mark, &mut speaker, "message-inside-upload")
        .await
        .map_err(|error| error.within("a message inside an upload"))?;

    // Records where none were selected.
    let mark = stage.router.log().mark();
    let (mut speaker, seat) = arrive(stage, Framing::Legacy).await?;
    let header = header_of(Upload::Forwarded, &seat, 100)?;
    speaker.client.frame(true, Opcode::Binary, &header).await?;
    closes_as_broken(stage, mark, &mut speaker, "binary-message")
        .await
        .map_err(|error| error.within("records in legacy framing"))?;
    Ok(3)
}

/// Headers that say something else than their bodies. The router sees it in controls, the toolshed in requests.
async fn mismatches(stage: &Stage) -> Result<usize, GateError> {
    let changes: [(&str, Value); 4] = [
        ("type", json!("connection.release")),
        ("requestId", json!("another")),
        ("sessionId", json!("another")),
        ("space", json!(stage.spaces[1].did)),
    ];
    for (member, value) in &changes {
        let mark = stage.router.log().mark();
        let (mut speaker, seat) = arrive(stage, Framing::Credited).await?;
        let (_, header) = speaker.compose("connection.challenge", json!({}))?;
        send_changed(&mut speaker, header, member, value).await?;
        closes_as_broken(stage, mark, &mut speaker, "header-mismatch")
            .await
            .map_err(|error| error.within(format!("{member} of a control")))?;
        drop(seat);
    }
    for (member, value) in &changes {
        let value = match *member {
            "type" => json!("session.ack"),
            _ => value.clone(),
        };
        let (mut speaker, seat) = arrive(stage, Framing::Credited).await?;
        let members = seat.members(query_of(&[]))?;
        let (_, header) = speaker.compose("graph.query", members)?;
        send_changed(&mut speaker, header, member, &value).await?;
        closes(&mut speaker, 1011, "upstream-lost")
            .await
            .map_err(|error| error.within(format!("{member} of a request")))?;
    }
    Ok(2 * changes.len())
}

/// Sends a body of which one member is not what its header says.
async fn send_changed(
    speaker: &mut Speaker,
    header: Value,
    member: &str,
    value: &Value,
) -> Result<(), GateError> {
    let mut body = header.clone();
    if let Some(members) = body.as_object_mut() {
        members.insert(member.to_owned(), value.clone());
    }
    let body = format!("fvj1:{body}");
    speaker.send_body(&header, body.as_bytes(), false).await
}

/// A client that goes away in the middle of a commit: nothing of it is applied.
async fn cut_off(stage: &Stage) -> Result<(), GateError> {
    let mark = stage.router.log().mark();
    let (mut speaker, mut seat) = arrive(stage, Framing::Credited).await?;
    let value = "x".repeat(100_000);
    let members = seat.set("of:gate-15-cut", json!(value))?;
    let (_, message) = speaker.compose("transact", members)?;
    let body = format!("fvj1:{message}");
    let header = {
        let member = |name: &str| text(&message, name).map(|text| text.to_owned().into());
        encode(
            u32::try_from(body.len()).during("the length of a body")?,
            Route {
                kind: "transact".into(),
                request_id: member("requestId"),
                space: member("space"),
                session_id: member("sessionId"),
                ..Route::default()
            },
        )?
    };
    speaker.record(&header).await?;
    let mut first = chunk_prefix().to_vec();
    first.extend(body.bytes().take(MAX_CHUNK_LEN));
    speaker.record(&first).await?;
    speaker.settle().await?;
    let name = speaker.connection()?;
    speaker.client.reset()?;
    logged(stage, (mark, &name), "client-lost").await?;
    let (mut speaker, seat) = arrive(stage, Framing::Credited).await?;
    let query = query_of(&["of:gate-15-cut"]);
    let answer = seat.request(&mut speaker, "graph.query", query).await?;
    let document = ok(&answer)?.pointer("/entities/0/document");
    same(
        "a document of half a commit",
        document.is_none_or(Value::is_null),
        true,
    )?;
    speaker.client.reset()
}
