//! Gate 13: upload credit is exact, and it flows one way.

use memory_wire::credit::{encode_request_credit, encode_upload_credit};
use memory_wire::frame::Opcode;
use memory_wire::stream::{Header, MAX_CHUNK_LEN, Route, chunk_prefix};
use serde_json::{Value, json};

use super::GateResult;
use super::bystander::Bystander;
use crate::error::{holds, same};
use crate::raw::{Framing, Speaker, of_session, ok, text};
use crate::report::figure;
use crate::{Context, GateError, Stage};

/// Body bytes of the uploads of the exact gate: around a record's bound, around the window, and far over it.
const UPLOADS: [usize; 9] = [
    300,
    32_768,
    32_769,
    65_536,
    262_144,
    300_000,
    1 << 20,
    3 << 20,
    700,
];

/// The client never waits with nothing in flight, and never gets more than it sent: in the end it has got exactly that.
pub(super) async fn exact(stage: &Stage) -> GateResult {
    let [space, _] = &stage.spaces;
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    speaker.authenticate(&space.owner).await?;
    let opened = speaker.open(space.did, space.owner.did()).await?;
    let session = text(&opened, "sessionId").during("sessionId")?;
    is_settled(&mut speaker).await?;

    // Pipelined: the answers are read only where credit is waited for, and after.
    let mut requests = Vec::new();
    for (place, len) in UPLOADS.into_iter().enumerate() {
        let commit = json!({
            "localSeq": place + 1,
            "reads": { "confirmed": [], "pending": [] },
            "operations": [{
                "op": "set",
                "id": "of:gate-13",
                "value": { "value": "x".repeat(len) },
            }],
        });
        let members = of_session(space.did, session, json!({ "commit": commit }))?;
        let (request, message) = speaker.compose("transact", members)?;
        speaker.send(&message).await?;
        requests.push(request);
    }
    for request in requests {
        let answer = speaker.answer(&request).await?;
        ok(&answer)?;
    }
    is_settled(&mut speaker).await?;
    holds(
        "records that waited for credit",
        speaker.ledger.waits > 0,
        "some",
        speaker.ledger.waits,
    )?;

    // A refused request's body is paid back like any other.
    let other = of_session(
        space.did,
        "no-such-session",
        json!({ "padding": "x".repeat(400_000) }),
    )?;
    let answer = speaker.request("graph.query", other).await?;
    holds(
        "a request of an unknown session",
        answer.get("error").is_some(),
        "a denial",
        &answer,
    )?;
    is_settled(&mut speaker).await?;

    // Also a body that stops halfway: the router has nothing more to read and returns what it owes.
    let (_, message) =
        speaker.compose("graph.query", of_session(space.did, session, json!({}))?)?;
    let mut header = Vec::new();
    Header {
        bytes: 100_000,
        binary: false,
        request_ordinal: None,
        route: Route {
            kind: "graph.query".into(),
            request_id: text(&message, "requestId").map(Into::into),
            space: Some(space.did.as_str().into()),
            session_id: Some(session.into()),
            ..Route::default()
        },
    }
    .encode_record(&mut header)
    .during("a header")?;
    speaker.record(&header).await?;
    let mut chunk = chunk_prefix().to_vec();
    chunk.resize(chunk.len() + MAX_CHUNK_LEN, b' ');
    speaker.record(&chunk).await?;
    speaker.settle().await?;
    same("all credit", speaker.ledger.credited, speaker.ledger.sent)?;

    let ledger = speaker.ledger;
    speaker.client.reset()?;
    let mut figures = figure("record_bytes", ledger.sent);
    figures.extend(figure("credits", ledger.credits));
    figures.extend(figure("waits", ledger.waits));
    Ok(figures)
}

/// Waits until nothing is outstanding, and demands that nothing more comes: the speaker refuses credit it is not owed, and
/// the answer to one more request comes after whatever was on its way.
async fn is_settled(speaker: &mut Speaker) -> Result<(), GateError> {
    speaker.settle().await?;
    let answer = speaker.request("connection.challenge", json!({})).await?;
    ok(&answer)?;
    speaker.settle().await?;
    same("all credit", speaker.ledger.credited, speaker.ledger.sent)
}

/// A forged, zero or textual credit closes the connection that sent it.
pub(super) async fn forged(stage: &Stage) -> GateResult {
    let bystander = Bystander::arrive(stage).await?;
    let credit = json!({ "type": "router.credit", "amount": 1000 });
    let credit_text = format!("fvj1:{credit}");
    let cases: [(&str, Framing, Opcode, &[u8], &str); 8] = [
        (
            "an upload credit",
            Framing::Credited,
            Opcode::Binary,
            &encode_upload_credit(1000),
            "binary-message",
        ),
        (
            "an upload credit without credited streaming",
            Framing::Streamed,
            Opcode::Binary,
            &encode_upload_credit(1000),
            "binary-message",
        ),
        (
            "an upload credit in legacy framing",
            Framing::Legacy,
            Opcode::Binary,
            &encode_upload_credit(1000),
            "binary-message",
        ),
        (
            "a credit of zero",
            Framing::Credited,
            Opcode::Binary,
            b"mrc\x01\0\0\0\0",
            "binary-message",
        ),
        (
            "a request credit",
            Framing::Credited,
            Opcode::Binary,
            &encode_request_credit(1000),
            "binary-message",
        ),
        (
            "a textual credit",
            Framing::Credited,
            Opcode::Text,
            credit_text.as_bytes(),
            "text-in-credited-stream",
        ),
        (
            "a textual credit without credited streaming",
            Framing::Streamed,
            Opcode::Text,
            credit_text.as_bytes(),
            "reserved-type",
        ),
        (
            "a textual credit in legacy framing",
            Framing::Legacy,
            Opcode::Text,
            credit_text.as_bytes(),
            "reserved-type",
        ),
    ];
    let count = cases.len() + 1;
    for (what, framing, opcode, payload, detail) in cases {
        let mark = stage.router.log().mark();
        let mut speaker = Speaker::connect(stage, framing, false).await?;
        speaker.client.frame(true, opcode, payload).await?;
        is_closed(stage, mark, &mut speaker, detail)
            .await
            .map_err(|error| error.within(what))?;
        bystander.is_well().await?;
    }

    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let (_, message) = speaker.compose("router.credit", json!({ "amount": 1000 }))?;
    speaker.send(&message).await?;
    is_closed(stage, mark, &mut speaker, "reserved-type")
        .await
        .map_err(|error| error.within("a textual credit in records"))?;
    bystander.leave(stage).await?;
    Ok(figure("cases", count))
}

/// Demands that the router closes as for a broken rule, with this detail in its log.
async fn is_closed(
    stage: &Stage,
    mark: usize,
    speaker: &mut Speaker,
    detail: &str,
) -> Result<(), GateError> {
    super::malformed::closes_as_broken(stage, mark, speaker, detail)
        .await
        .map(|_: Value| ())
}
