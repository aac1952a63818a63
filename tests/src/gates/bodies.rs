//! Gate 12: the largest bodies stream through a worker that stays small, and one byte more harms nobody else.

use std::cell::Cell;
use std::rc::Rc;

use serde_json::{Value, json};

use super::GateResult;
use super::bystander::Bystander;
use crate::error::{holds, same};
use crate::proc::private_kib;
use crate::raw::{Framing, Speaker, of_session, ok, text};
use crate::report::{Figures, figure};
use crate::stage::Space;
use crate::{Context, GateError, Stage, log};

/// Body bytes of the largest request and of the largest response.
const LARGEST_REQUEST: usize = 4 << 20;
const LARGEST_RESPONSE: usize = 8 << 20;

/// A toolshed may stop this far below the bound, to be sure of what surrounds the documents.
const TOOLSHED_MARGIN: usize = 72 << 10;

/// What a worker may grow by while a body goes through, KiB of private memory.
const MOST_GROWTH_KIB: u64 = 1024;

/// Documents that one answer carries together: two of nearly 4 MiB, and one that makes up the rest.
const LARGE: [&str; 2] = ["of:gate-12-first", "of:gate-12-second"];
const REST: &str = "of:gate-12-rest";
const DOCUMENTS: [&str; 3] = [LARGE[0], LARGE[1], REST];

/// A 4 MiB request streams through in bounded memory; one byte more is refused without harm to other sessions.
pub(super) async fn large_request(stage: &Stage) -> GateResult {
    let bystander = Bystander::arrive(stage).await?;
    let mut figures = Figures::new();
    for framing in [Framing::Credited, Framing::Streamed, Framing::Legacy] {
        let growth = request_of(stage, framing)
            .await
            .map_err(|error| error.within(format!("{framing:?} framing")))?;
        // A whole message has to be read before anything of it can go on.
        if framing != Framing::Legacy {
            let name = format!("growth_kib_{framing:?}").to_lowercase();
            figures.extend(figure(&name, growth));
            holds(
                name,
                growth < MOST_GROWTH_KIB,
                format!("under {MOST_GROWTH_KIB}"),
                growth,
            )?;
        }
        bystander.is_well().await?;
    }
    bystander.leave(stage).await?;
    Ok(figures)
}

/// Sends a request of exactly the bound and one past it; gives what the worker grew by, KiB.
async fn request_of(stage: &Stage, framing: Framing) -> Result<u64, GateError> {
    let [space, other] = &stage.spaces;
    let mut writer = Writer::arrive(stage, framing, space).await?;
    let second = {
        writer.speaker.authenticate(&other.owner).await?;
        let opened = writer.speaker.open(other.did, other.owner.did()).await?;
        text(&opened, "sessionId").during("sessionId")?.to_owned()
    };
    let growth = Growth::watch(stage, &mut writer.speaker)?;
    let answer = writer.commit_body(LARGE[0], LARGEST_REQUEST).await?;
    ok(&answer).map_err(|error| error.within("a request of exactly 4 MiB"))?;
    let grown = growth.most();

    let mark = stage.router.log().mark();
    let answer = writer.commit_body(LARGE[0], LARGEST_REQUEST + 1).await?;
    let error = answer.get("error").during("the denial of one byte more")?;
    same(
        "the denial of one byte more",
        (text(error, "name"), error.get("retriable")),
        (Some("AuthorizationError"), None),
    )?;
    let name = writer.speaker.connection()?;
    stage
        .router
        .log()
        .wait("request-too-large", mark, |line| {
            log::has(line, "connection", &name) && log::has(line, "reason", "request-too-large")
        })
        .await?;

    // Both sessions of the same connection go on.
    writer.query(&[]).await?;
    let query = json!({ "query": { "roots": [] } });
    let members = of_session(other.did, &second, query)?;
    let answer = writer.speaker.request("graph.query", members).await?;
    ok(&answer)?;
    writer.commit_body(LARGE[0], 1024).await?;
    writer.speaker.client.reset()?;
    Ok(grown)
}

/// An 8 MiB response streams through in bounded memory; one byte more ends the connection that asked, and no other.
pub(super) async fn large_response(stage: &Stage) -> GateResult {
    let bystander = Bystander::arrive(stage).await?;
    let [space, _] = &stage.spaces;
    let mut writer = Writer::arrive(stage, Framing::Credited, space).await?;
    let growth = Growth::watch(stage, &mut writer.speaker)?;
    for document in LARGE {
        let answer = writer
            .commit_body(document, LARGEST_REQUEST - (48 << 10))
            .await?;
        ok(&answer)?;
    }
    let (mut response, mut rest) = (LARGEST_RESPONSE, writer.fill(LARGEST_RESPONSE).await?);
    if rest.is_none() {
        response -= TOOLSHED_MARGIN;
        rest = writer.fill(response).await?;
    }
    let rest = rest.during("an answer of about 8 MiB")?;
    ok(&writer.query(&DOCUMENTS).await?)?;
    same(
        "the length of the largest answer",
        writer.speaker.last_len,
        response,
    )?;
    let fragments = writer.speaker.most_fragments;
    let grown = growth.most();
    holds(
        "growth_kib",
        grown < MOST_GROWTH_KIB,
        format!("under {MOST_GROWTH_KIB}"),
        grown,
    )?;
    bystander.is_well().await?;

    let past = LARGEST_RESPONSE + 1 - response;
    ok(&writer.commit_value(REST, rest + past).await?)?;
    let mark = stage.router.log().mark();
    let name = writer.speaker.connection()?;
    match writer.query(&DOCUMENTS).await {
        // The toolshed saw it coming; its session goes on.
        Ok(answer) => {
            let denied = answer.get("error").is_some();
            holds("an answer of one byte more", denied, "an error", &answer)?;
            ok(&writer.query(&[REST]).await?)?;
        }
        // The toolshed closed the data socket over it.
        Err(_) => {
            let upstream_lost = |line: &Value| {
                log::has(line, "connection", &name) && log::has(line, "reason", "upstream-lost")
            };
            let log = stage.router.log();
            log.wait("upstream-lost", mark, upstream_lost).await?;
        }
    }
    bystander.is_well().await?;

    // The documents are small again, so that a later reader of the space is not surprised.
    let mut writer = Writer::arrive(stage, Framing::Credited, space).await?;
    for document in DOCUMENTS {
        writer.commit_body(document, 1024).await?;
    }
    writer.speaker.client.reset()?;
    bystander.leave(stage).await?;
    let mut figures = figure("growth_kib", grown);
    figures.extend(figure("response_bytes", response));
    figures.extend(figure("fragments", fragments));
    Ok(figures)
}

/// A session that writes documents of exact lengths.
struct Writer {
    speaker: Speaker,
    space: Space,
    session: String,
    commits: u64,
}

impl Writer {
    async fn arrive(stage: &Stage, framing: Framing, space: &Space) -> Result<Self, GateError> {
        let mut speaker = Speaker::connect(stage, framing, false).await?;
        speaker.authenticate(&space.owner).await?;
        let opened = speaker.open(space.did, space.owner.did()).await?;
        let session = text(&opened, "sessionId").during("sessionId")?.to_owned();
        Ok(Self {
            speaker,
            space: space.clone(),
            session,
            commits: 0,
        })
    }

    /// Commits a document such that the whole request has `len` bytes; gives the answer, error or not.
    async fn commit_body(&mut self, id: &str, len: usize) -> Result<Value, GateError> {
        let (request, empty) = self.transact(id, "")?;
        let overhead = format!("fvj1:{empty}").len();
        let missing = len.checked_sub(overhead).during("room for the document")?;
        self.send_transact(&request, empty, missing).await
    }

    /// Commits a document of `len` bytes of value.
    async fn commit_value(&mut self, id: &str, len: usize) -> Result<Value, GateError> {
        let (request, empty) = self.transact(id, "")?;
        self.send_transact(&request, empty, len).await
    }

    async fn send_transact(
        &mut self,
        request: &str,
        mut message: Value,
        len: usize,
    ) -> Result<Value, GateError> {
        let value = message
            .pointer_mut("/commit/operations/0/value/value")
            .during("the document in a request")?;
        *value = Value::String("x".repeat(len));
        self.speaker.send(&message).await?;
        self.speaker
            .answer(request)
            .await
            .map_err(|error| error.within("transact"))
    }

    fn transact(&mut self, id: &str, value: &str) -> Result<(String, Value), GateError> {
        self.commits += 1;
        let commit = json!({
            "localSeq": self.commits,
            "reads": { "confirmed": [], "pending": [] },
            "operations": [{ "op": "set", "id": id, "value": { "value": value } }],
        });
        let members = of_session(self.space.did, &self.session, json!({ "commit": commit }))?;
        self.speaker.compose("transact", members)
    }

    /// Sizes the last document such that the answer with all of them has `len` bytes; gives the size of its value, or nothing
    /// where the toolshed does not give such an answer.
    async fn fill(&mut self, len: usize) -> Result<Option<usize>, GateError> {
        let mut rest = 0_usize;
        // The answer's length hangs on the value's, and a little on how many digits its seq has.
        for _ in 0..4 {
            ok(&self.commit_value(REST, rest).await?)?;
            if self.query(&DOCUMENTS).await?.get("ok").is_none() {
                return Ok(None);
            }
            if self.speaker.last_len == len {
                return Ok(Some(rest));
            }
            rest = (rest + len)
                .checked_sub(self.speaker.last_len)
                .during("room for more in the answer")?;
        }
        Ok(None)
    }

    async fn query(&mut self, ids: &[&str]) -> Result<Value, GateError> {
        let roots: Vec<Value> = ids
            .iter()
            .map(|id| json!({ "id": id, "selector": { "path": [], "schema": false } }))
            .collect();
        let query = json!({ "query": { "roots": roots } });
        let members = of_session(self.space.did, &self.session, query)?;
        self.speaker.request("graph.query", members).await
    }
}

/// How much private memory a speaker's worker has at most, beyond what it had at first.
struct Growth {
    first: u64,
    most: Rc<Cell<u64>>,
}

impl Growth {
    /// Looks at the worker after every record and fragment from now on.
    fn watch(stage: &Stage, speaker: &mut Speaker) -> Result<Self, GateError> {
        let worker = stage.router.worker_of(speaker.local())?;
        let first = private_kib(worker)?;
        let most = Rc::new(Cell::new(first));
        let seen = Rc::clone(&most);
        speaker.observe(move || {
            // Nothing to look at any more where the gate ends the connection.
            if let Ok(now) = private_kib(worker) {
                seen.set(seen.get().max(now));
            }
            Ok(())
        });
        Ok(Self { first, most })
    }

    fn most(&self) -> u64 {
        self.most.get() - self.first
    }
}
