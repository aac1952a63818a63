//! Gate 26 and toolsheds that misbehave: each costs only the connections that use it, and the log says which it was and how.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};

use super::GateResult;
use super::denial::{Refusal, denied, logged};
use super::party::{Guest, is_silent, linked, told_of};
use crate::error::{holds, same};
use crate::log;
use crate::raw::{Claim, Framing, Speaker, of_session, ok, text};
use crate::report::{Figures, figure};
use crate::rogue::{Conduct, LinkConduct, Rogue};
use crate::stage::{Seat, Space, StageOptions};
use crate::{Context, GateError, Stage};

/// How a connection ends: the reason that it is told, and the rule in the log.
type End = (&'static str, &'static str);

/// What a data socket must not do once it is bound, before anything is asked of it.
const SETUPS: [(Conduct, End); 8] = [
    (Conduct::EndAfterHello, ("upstream-lost", "upstream-read")),
    (Conduct::EchoMore, ("upstream-lost", "router-ready-echo")),
    (Conduct::EchoLess, ("upstream-lost", "router-ready-echo")),
    (
        Conduct::ReadyWithoutCredit,
        ("upstream-lost", "router-ready"),
    ),
    (
        Conduct::ReadyWithoutSupport,
        ("upstream-lost", "router-ready-support"),
    ),
    (
        Conduct::BinaryReady,
        ("upstream-lost", "upstream-handshake-order"),
    ),
    (Conduct::CreditZero, ("upstream-protocol", "request-credit")),
    (
        Conduct::CreditTwice,
        ("upstream-protocol", "request-credit-window"),
    ),
];

/// What it must not do when it answers.
const ANSWERS: [(Conduct, End); 13] = [
    (
        Conduct::BinaryBody,
        ("upstream-protocol", "binary-without-compression"),
    ),
    (
        Conduct::Truncated,
        ("upstream-protocol", "response-chunk-expected"),
    ),
    (
        Conduct::Overlong,
        ("upstream-protocol", "response-too-long"),
    ),
    (
        Conduct::NoHeader,
        ("upstream-protocol", "body-without-header"),
    ),
    (Conduct::HugeRecord, ("upstream-protocol", "upstream-frame")),
    (
        Conduct::UnknownKind,
        ("upstream-protocol", "response-record"),
    ),
    (Conduct::Text, ("upstream-protocol", "upstream-text")),
    (
        Conduct::WrongSession,
        ("upstream-protocol", "push-to-unknown-session"),
    ),
    (
        Conduct::UnknownRequest,
        ("upstream-protocol", "response-to-unknown-request"),
    ),
    (
        Conduct::AnswerTwice,
        ("upstream-protocol", "response-to-unknown-request"),
    ),
    (
        Conduct::AssignSession,
        ("upstream-protocol", "assigned-session"),
    ),
    (
        Conduct::PushAfterEnd,
        ("upstream-protocol", "push-to-unknown-session"),
    ),
    (
        Conduct::DataAfterClose,
        ("upstream-lost", "upstream-closed"),
    ),
];

/// What a link must not do, and the reason in the log. All but the first two show when something is asked.
const LINKS: [(LinkConduct, &str); 7] = [
    (LinkConduct::ForgedGreeting, "link-handshake"),
    (LinkConduct::WrongAcknowledgement, "link-handshake"),
    (LinkConduct::WrongSequence, "upstream-protocol"),
    (LinkConduct::Unasked, "upstream-protocol"),
    (LinkConduct::ShortTicket, "upstream-protocol"),
    (LinkConduct::Text, "upstream-protocol"),
    (LinkConduct::Huge, "link-lost"),
];

/// A stage whose second toolshed is an impostor.
pub(super) async fn stage_with_rogue(
    stage: &Stage,
    timeouts: &str,
) -> Result<(Stage, Rogue), GateError> {
    let options = StageOptions {
        timeouts: format!("startup_grace = \"200ms\"\n{timeouts}"),
        seats: [Seat::Taken, Seat::Empty],
        ..StageOptions::default()
    };
    let stage = Stage::set(stage.programs(), options).await?;
    let mark = stage.router.log().mark();
    let rogue = Rogue::start(&stage, 1).await?;
    linked(&stage, mark, 1).await?;
    Ok((stage, rogue))
}

/// Who deals with the rogue.
pub(super) struct Victim {
    pub(super) speaker: Speaker,
    pub(super) name: String,
    space: Space,
}

impl Victim {
    pub(super) async fn arrive(stage: &Stage, compression: bool) -> Result<Self, GateError> {
        let [_, space] = stage.spaces.clone();
        let mut speaker = Speaker::connect(stage, Framing::Credited, compression).await?;
        speaker.authenticate(&space.owner).await?;
        let name = speaker.connection()?;
        Ok(Self {
            speaker,
            name,
            space,
        })
    }

    /// The whole answer to an open.
    pub(super) async fn open(&mut self) -> Result<Value, GateError> {
        let members = json!({
            "space": self.space.did, "principal": self.space.owner.did(), "session": {},
        });
        self.speaker.request("session.open", members).await
    }

    /// The session of an open that must succeed.
    pub(super) async fn session(&mut self) -> Result<String, GateError> {
        let answer = self.open().await?;
        let session = text(ok(&answer)?, "sessionId").during("sessionId")?;
        Ok(session.to_owned())
    }

    /// Sends a request of a session and does not wait for its answer.
    pub(super) async fn send(&mut self, kind: &str, session: &str) -> Result<(), GateError> {
        let members = of_session(self.space.did, session, json!({}))?;
        let (_, message) = self.speaker.compose(kind, members)?;
        self.speaker.send(&message).await
    }

    /// Sends an open and does not wait for its answer.
    async fn send_open(&mut self) -> Result<(), GateError> {
        let members = json!({
            "space": self.space.did, "principal": self.space.owner.did(), "session": {},
        });
        let (_, message) = self.speaker.compose("session.open", members)?;
        self.speaker.send(&message).await
    }

    /// Demands how its connection ends, and that the log names the rule and the toolshed.
    pub(super) async fn ends(
        &mut self,
        stage: &Stage,
        mark: usize,
        end: End,
    ) -> Result<(), GateError> {
        let (reason, detail) = end;
        let closing = self.speaker.client.closing().await?;
        same(
            "the close frame",
            (closing.code, closing.text.as_str()),
            (1011, format!("{reason} {}", self.name).as_str()),
        )?;
        // It is logged when the connection is over, which a client that does not answer delays.
        self.speaker.client.answer_closing().await?;
        let detail = format!("{detail} of toolshed 1");
        stage
            .router
            .worker_event(mark, &self.name, reason, &detail)
            .await
            .map(drop)
    }
}

/// A data handshake that fails before the binding is rolled back and tried again on the same connection; one that fails
/// after it closes the connection.
pub(super) async fn data_handshake(stage: &Stage) -> GateResult {
    let (stage, rogue) = stage_with_rogue(stage, "data_handshake = \"1s\"").await?;
    let [first, _] = &stage.spaces;
    let bystander = Guest::arrive(&stage, first).await?;
    let before = [
        (Conduct::NoGreeting, "upstream-read"),
        (Conduct::ForgedGreeting, "upstream-hello"),
        (Conduct::TextGreeting, "upstream-handshake-order"),
    ];
    for (conduct, detail) in before {
        let mark = stage.router.log().mark();
        let seen = rogue.seen();
        let mut victim = Victim::arrive(&stage, false).await?;
        let step = |error: GateError| error.within(format!("{conduct:?}"));
        rogue.behave(conduct);
        // Twice: the failure leaves nothing behind that a second one trips over.
        for _ in 0..2 {
            denied(
                "an open",
                &victim.open().await.map_err(step)?,
                Refusal::ForNow,
            )?;
        }
        let detail = format!("{detail} of toolshed 1");
        stage
            .router
            .worker_event(mark, &victim.name, "upstream-unavailable", &detail)
            .await?;
        rogue.behave(Conduct::Honest);
        victim.session().await.map_err(step)?;
        // The ticket was not spent, so it was not asked for again.
        let after = rogue.seen();
        same(
            "tickets, data sockets, bindings",
            (
                after.tickets - seen.tickets,
                after.sockets - seen.sockets,
                after.bound - seen.bound,
            ),
            (1, 3, 1),
        )
        .map_err(step)?;
        victim.speaker.client.reset()?;
        bystander.reads().await?;
    }
    let mark = stage.router.log().mark();
    let mut victim = Victim::arrive(&stage, false).await?;
    rogue.behave(Conduct::EndAfterHello);
    victim.send_open().await?;
    let end = ("upstream-lost", "upstream-read");
    victim.ends(&stage, mark, end).await?;
    rogue.behave(Conduct::Honest);
    bystander.reads().await?;
    bystander.leave().await;
    drop(rogue);
    stage.strike().await?;
    Ok(figure("rolled_back", before.len() * 2))
}

/// Every rule that a data socket can break.
pub(super) async fn misbehaving_data(stage: &Stage) -> GateResult {
    let (stage, rogue) = stage_with_rogue(stage, "admission = \"1s\"").await?;
    let [first, _] = &stage.spaces;
    let bystander = Guest::arrive(&stage, first).await?;
    // It has a data socket of its own at the rogue, which is well-behaved as long as nothing is asked of it.
    let mut neighbour = Victim::arrive(&stage, false).await?;
    neighbour.session().await?;
    let start = stage.router.log().mark();

    for (conduct, end) in SETUPS {
        let mark = stage.router.log().mark();
        let mut victim = Victim::arrive(&stage, false).await?;
        rogue.behave(conduct);
        victim.send_open().await?;
        let ended = victim.ends(&stage, mark, end).await;
        ended.map_err(|error| error.within(format!("{conduct:?}")))?;
        rogue.behave(Conduct::Honest);
        bystander.reads().await?;
    }
    let no_envelope = (
        Conduct::NoEnvelope,
        ("upstream-protocol", "binary-without-envelope"),
    );
    for (conduct, end) in ANSWERS.into_iter().chain([no_envelope]) {
        let mark = stage.router.log().mark();
        let mut victim = Victim::arrive(&stage, conduct == Conduct::NoEnvelope).await?;
        let session = victim.session().await?;
        rogue.behave(conduct);
        let kind = match conduct {
            Conduct::PushAfterEnd => "session.close",
            _ => "graph.query",
        };
        victim.send(kind, &session).await?;
        let ended = victim.ends(&stage, mark, end).await;
        ended.map_err(|error| error.within(format!("{conduct:?}")))?;
        rogue.behave(Conduct::Honest);
        bystander.reads().await?;
    }
    let mark = stage.router.log().mark();
    let mut victim = Victim::arrive(&stage, false).await?;
    rogue.behave(Conduct::NoCredit);
    denied(
        "an open without credit",
        &victim.open().await?,
        Refusal::ForNow,
    )?;
    let detail = "request-credit of toolshed 1";
    stage
        .router
        .worker_event(mark, &victim.name, "admission-timeout", detail)
        .await?;
    victim.speaker.client.reset()?;
    rogue.behave(Conduct::Honest);

    // The neighbour's own socket, its session and its data are as they were.
    neighbour.session().await?;
    is_silent("lines about the neighbour", &stage, start, |line| {
        log::has(line, "connection", &neighbour.name)
    })?;
    is_silent("losses of links", &stage, start, |line| {
        log::has(line, "message", "link lost")
    })?;
    neighbour.speaker.client.reset()?;
    bystander.reads().await?;
    bystander.leave().await;
    drop(rogue);
    stage.strike().await?;
    Ok(figure("cases", SETUPS.len() + ANSWERS.len() + 2))
}

/// Every rule that a link can break: the toolshed is not used, and is again when it behaves. Each on a stage of its own and
/// all at once: most of the time goes into the pauses between attempts to link.
pub(super) async fn misbehaving_links(stage: &Stage) -> GateResult {
    let mut cases: FuturesUnordered<_> = LINKS
        .into_iter()
        .map(|(conduct, reason)| async move {
            misbehaving_link(stage, conduct, reason)
                .await
                .map_err(|error| error.within(format!("{conduct:?}")))
        })
        .collect();
    while let Some(case) = cases.next().await {
        case?;
    }
    Ok(figure("cases", LINKS.len()))
}

async fn misbehaving_link(
    stage: &Stage,
    conduct: LinkConduct,
    reason: &str,
) -> Result<(), GateError> {
    let (stage, rogue) = stage_with_rogue(stage, "").await?;
    let bystander = Guest::arrive(&stage, &stage.spaces[0]).await?;
    let mark = stage.router.log().mark();
    rogue.behave_on_links(conduct);
    if reason != "link-handshake" {
        linked(&stage, mark, 1).await?;
        let mut victim = Victim::arrive(&stage, false).await?;
        denied("an open", &victim.open().await?, Refusal::ForNow)?;
        victim.speaker.client.reset()?;
    }
    told_of(&stage, mark, 1, reason).await?;
    bystander.reads().await?;
    let mark = stage.router.log().mark();
    rogue.behave_on_links(LinkConduct::Honest);
    linked(&stage, mark, 1).await?;
    let mut victim = Victim::arrive(&stage, false).await?;
    victim.session().await?;
    victim.speaker.client.reset()?;
    bystander.leave().await;
    drop(rogue);
    stage.strike().await
}

/// How long a host clock may be off before a link is refused, and by how much the gate steps it.
const STEP: i64 = 200;

/// A toolshed whose clock is 200 s off is not linked, says so in the log, and comes back with its clock. A client whose
/// clock is off is told the router's, and is served.
pub(super) async fn clock_steps(stage: &Stage) -> GateResult {
    let (stage, rogue) = stage_with_rogue(stage, "").await?;
    let [first, _] = &stage.spaces;
    let bystander = Guest::arrive(&stage, first).await?;
    for step in [STEP, -STEP] {
        let mark = stage.router.log().mark();
        rogue.set_clock(step);
        told_of(&stage, mark, 1, "link-handshake").await?;
        let mut victim = Victim::arrive(&stage, false).await?;
        denied("an open", &victim.open().await?, Refusal::ForNow)?;
        bystander.reads().await?;
        let mark = stage.router.log().mark();
        rogue.set_clock(0);
        linked(&stage, mark, 1).await?;
        victim.speaker.client.reset()?;
        let mut victim = Victim::arrive(&stage, false).await?;
        victim.session().await?;
        victim.speaker.client.reset()?;
    }
    client_clocks(&stage).await?;
    bystander.leave().await;
    drop(rogue);
    stage.strike().await?;
    let mut figures = Figures::new();
    figures.extend(figure("stepped", "clients and toolsheds"));
    figures.extend(figure(
        "not_stepped",
        "the router's own clock: no namespace has one; its roles are tested with time passed in",
    ));
    Ok(figures)
}

/// A statement by a clock ahead is refused for now, on a connection that goes on; one by a clock behind is good as long as
/// it lasts.
async fn client_clocks(stage: &Stage) -> Result<(), GateError> {
    let [first, _] = &stage.spaces;
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let mark = stage.router.log().mark();
    let claim = Claim::of_hello(&speaker, 600)?;
    let ahead = Claim {
        iat: claim.iat.saturating_add_signed(STEP),
        exp: claim.exp.saturating_add_signed(STEP),
        ..claim.clone()
    };
    let answer = ahead.present(&mut speaker, &first.owner).await?;
    denied("a clock ahead", &answer, Refusal::ForNow)?;
    logged(stage, (mark, &name), "clock-skew").await?;
    let behind = Claim {
        iat: claim.iat.saturating_add_signed(-STEP),
        exp: claim.exp.saturating_add_signed(-STEP),
        ..Claim::fresh(&mut speaker, 600).await?
    };
    let answer = behind.present(&mut speaker, &first.owner).await?;
    ok(&answer)?;
    speaker.open(first.did, first.owner.did()).await?;
    let told = speaker.hello.get("serverTime").and_then(Value::as_u64);
    let told = told.during("serverTime in hello.ok")?;
    holds(
        "serverTime",
        told.abs_diff(claim.iat) <= Duration::from_secs(5).as_secs(),
        "the router's clock",
        told,
    )?;
    speaker.client.reset()
}
