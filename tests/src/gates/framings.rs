//! Gate 11: the three framings, compressed and not, give the same result.

use memory_client::{ClientError, OpenOptions, Options, Session, Transport};
use serde_json::{Map, Value, json};

use super::GateResult;
use crate::error::{holds, same};
use crate::raw::{Framing, Speaker, of_session, ok};
use crate::report::figure;
use crate::stage::FIXTURE_DOCUMENT;
use crate::{Context, GateError, Stage};

/// Documents the script writes: one that fits a record, one worth compressing, one of many records.
const SMALL: &str = "of:gate-11-small";
const PHRASES: &str = "of:gate-11-phrases";
const NUMBERS: &str = "of:gate-11-numbers";

/// Watches of one mutation: enough that the message is worth compressing.
const WATCHES: usize = 40;

/// Members that tell when something happened, not what.
const TIMES: [&str; 8] = [
    "seq",
    "commitSeq",
    "serverSeq",
    "fromSeq",
    "toSeq",
    "sessionId",
    "sessionToken",
    "sessionOpen",
];

/// Uploads in credited streaming, in streaming without credit and as whole envelopes give the same result, compressed and not.
pub(super) async fn same_result(stage: &Stage) -> GateResult {
    let mut reference = None;
    for transport in [Transport::Credited, Transport::Streamed, Transport::Legacy] {
        for compression in [true, false] {
            let way = format!("{transport:?} with compression {compression}");
            let options = Options {
                transport,
                compression,
                ..Options::default()
            };
            let answers = script(stage, options)
                .await
                .map_err(|error| error.within(&way))?;
            match &reference {
                None => reference = Some(answers),
                Some(reference) => compare(&way, reference, &answers)?,
            }
        }
    }

    let mut envelopes = 0;
    for framing in [Framing::Credited, Framing::Streamed, Framing::Legacy] {
        for compression in [true, false] {
            let step = format!("large answers in {framing:?} framing");
            let came = envelopes_of_large_answer(stage, framing, compression)
                .await
                .map_err(|error| error.within(&step))?;
            envelopes += came;
            holds(
                step,
                (came > 0) == compression,
                format!("envelopes: {compression}"),
                came,
            )?;
        }
    }
    let mut figures = figure("ways", 6);
    figures.extend(figure("envelopes", envelopes));
    Ok(figures)
}

/// Does the same as every other way does, and gives what was answered, times left out.
async fn script(stage: &Stage, options: Options) -> Result<Vec<Value>, GateError> {
    let [space, _] = &stage.spaces;
    let compression = options.compression;
    let connection = stage.connect(options).await?;
    for asked in [true, false, true] {
        let members = Map::from_iter([("enabled".to_owned(), json!(asked))]);
        let answer = connection
            .request("memory.compression", members)
            .await
            .during("memory.compression")?;
        same(
            format!("memory.compression asked for as {asked}"),
            answer.get("enabled"),
            Some(&json!(asked && compression)),
        )?;
    }
    connection
        .authenticate(&space.owner)
        .await
        .during("authentication")?;
    let mut session = connection
        .open(space.did, space.owner.did(), OpenOptions::default())
        .await
        .during("an open")?;
    let mut answers = vec![session.opened().clone()];
    for operations in [
        json!([{ "op": "set", "id": SMALL, "value": { "value": { "n": 1, "list": [] } } }]),
        json!([
            { "op": "set", "id": PHRASES, "value": { "value": phrases() } },
            { "op": "set", "id": NUMBERS, "value": { "value": numbers() } },
        ]),
        json!([{ "op": "patch", "id": SMALL, "patches": [
            { "op": "replace", "path": "/value/n", "value": "ünï\u{0}\u{2028}\"\\" },
            { "op": "append", "path": "/value/list", "values": [1, null, 2.5, { "deep": [true] }] },
        ] }]),
    ] {
        answers.push(session.commit(operations).await.during("a commit")?);
    }
    let ids = [
        SMALL,
        PHRASES,
        NUMBERS,
        FIXTURE_DOCUMENT,
        "of:gate-11-absent",
    ];
    answers.push(session.query(&ids).await.during("a query")?);
    answers.push(session.query(&[]).await.during("an empty query")?);
    let many: Vec<String> = (0..WATCHES)
        .map(|place| format!("of:gate-11-watched-document-{place}"))
        .collect();
    let mut watched: Vec<&str> = many.iter().map(String::as_str).collect();
    watched.push(PHRASES);
    answers.push(session.watch(&watched).await.during("a watch")?);
    let added = session.watch_add(&[("more", NUMBERS)]).await;
    answers.push(added.during("a further watch")?);
    answers.push(refusal(&session).await?);
    session.close().await.during("closing a session")?;
    connection.close().await;
    answers.iter_mut().for_each(forget_times);
    Ok(answers)
}

/// An error answer travels as well as any other.
async fn refusal(session: &Session) -> Result<Value, GateError> {
    match session.watch_add(&[("more", SMALL)]).await {
        Err(ClientError::Denied(denied)) => Ok(json!([denied.name, denied.message])),
        Err(error) => Err(GateError::new(
            "another watch of the same name",
            "a denial",
            error,
        )),
        Ok(answer) => Err(GateError::new(
            "another watch of the same name",
            "a denial",
            answer,
        )),
    }
}

/// Text that is worth compressing, and not so well that it passes the bound of 32 times.
fn phrases() -> String {
    (0..400)
        .map(|place| format!("phrase {place} of many; "))
        .collect()
}

/// Values that do not compress away, 300 KiB or so, the same every time.
fn numbers() -> Vec<u64> {
    let mut state: u64 = 0x2545_f491_4f6c_dd1d;
    let mut next = || {
        // Marsaglia's xorshift: any numbers would do.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    };
    (0..20_000).map(|_| next()).collect()
}

fn forget_times(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| !TIMES.contains(&name.as_str()));
            members.values_mut().for_each(forget_times);
        }
        Value::Array(elements) => elements.iter_mut().for_each(forget_times),
        _ => {}
    }
}

fn compare(way: &str, reference: &[Value], answers: &[Value]) -> Result<(), GateError> {
    same("answers", answers.len(), reference.len()).map_err(|error| error.within(way))?;
    for (place, (answer, expected)) in answers.iter().zip(reference).enumerate() {
        same(format!("{way}: answer {place}"), answer, expected)?;
    }
    Ok(())
}

/// Asks for a document worth compressing; gives how many messages came in an envelope.
async fn envelopes_of_large_answer(
    stage: &Stage,
    framing: Framing,
    compression: bool,
) -> Result<u64, GateError> {
    let [space, _] = &stage.spaces;
    let mut speaker = Speaker::connect(stage, framing, compression).await?;
    speaker.authenticate(&space.owner).await?;
    let opened = speaker.open(space.did, space.owner.did()).await?;
    let session = crate::raw::text(&opened, "sessionId").during("sessionId")?;
    let selector = json!({ "path": [], "schema": false });
    let query = json!({ "query": { "roots": [{ "id": PHRASES, "selector": selector }] } });
    let members = of_session(space.did, session, query)?;
    let answer = speaker.request("graph.query", members).await?;
    same(
        "the document",
        ok(&answer)?.pointer("/entities/0/document/value"),
        Some(&json!(phrases())),
    )?;
    speaker.client.reset()?;
    Ok(speaker.envelopes)
}
