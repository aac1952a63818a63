//! Nothing is lost: a mutation is stopped at each place of its way, something on that way is killed, and the durable client
//! brings it to its end. It is then in the store once, whatever had become of it before.

use std::time::{Duration, Instant};

use memory_client::{
    Client, ClientOptions, DurableSession, Options, SessionOptions, Submitted, Topology,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::GateResult;
use super::party::{Guest, accepts, arrive_at_last, linked};
use super::upstream::millis;
use crate::error::{DEADLINE, same, soon};
use crate::processes::send_signal;
use crate::proxy::{Proxy, Way};
use crate::report::{Figures, figure};
use crate::stage::{Space, StageOptions};
use crate::{Context, GateError, Stage, proc, tally};

/// The pause between two looks at what has no event.
const LOOK: Duration = Duration::from_millis(5);

/// How long a queue has to stay as it is to be counted as complete.
const SETTLED: Duration = Duration::from_millis(60);

/// Bytes of a mutation, and how many of them pass before the rest is held. Nothing is compressed.
const BODY: usize = 300 << 10;
const PART: u64 = 100 << 10;

/// Bytes of a mutation that a stopped toolshed's socket has room for.
const SMALL_BODY: usize = 8 << 10;

/// Where a mutation is when something happens to it, in the order in which they are brought there: the last ones with the
/// toolshed stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Applied, and the answer has arrived at the worker, which has not read it.
    AnswerBeforeWorker,
    /// Applied, and the answer has left the router and is not at the client.
    AnswerBeforeClient,
    /// Sent, and nothing of it has arrived at the router.
    BeforeHeader,
    /// In part at the toolshed.
    InBody,
    /// Complete at the toolshed, which has not read it.
    Complete,
}

const PLACES: [Place; 5] = [
    Place::AnswerBeforeWorker,
    Place::AnswerBeforeClient,
    Place::BeforeHeader,
    Place::InBody,
    Place::Complete,
];

/// Whom it hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    /// The client's own connection.
    Client,
    Worker,
    Toolshed,
    /// One of the router's roles, and whether connections go on without it.
    Role(&'static str, bool),
}

const BLOWS: [Blow; 8] = [
    Blow::Client,
    Blow::Worker,
    Blow::Toolshed,
    Blow::Role("link-agent", false),
    Blow::Role("spawner", false),
    Blow::Role("directory-broker", true),
    Blow::Role("key-agent", true),
    Blow::Role("listener", true),
];

impl Blow {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Worker => "worker",
            Self::Toolshed => "toolshed",
            Self::Role(name, _) => name,
        }
    }

    /// Whether a client's connection goes on.
    fn spares_connections(self) -> bool {
        matches!(self, Self::Role(_, true))
    }
}

/// Every place of a mutation, under every blow.
pub(super) async fn nothing_lost(stage: &Stage) -> GateResult {
    let mut stage = Stage::set(stage.programs(), StageOptions::default()).await?;
    let mut figures = Figures::new();
    let mut repeats = 0_u64;
    for blow in BLOWS {
        let began = Instant::now();
        repeats += round(&mut stage, blow)
            .await
            .map_err(|error| error.within(format!("a blow to the {}", blow.name())))?;
        let name = format!("judged_after_ms_{}", blow.name().replace('-', "_"));
        figures.extend(figure(&name, millis(began.elapsed())));
    }
    figures.extend(figure("mutations", PLACES.len() * BLOWS.len()));
    // Those that had been applied already when they were sent again.
    figures.extend(figure("answered_again", repeats));
    stage.strike().await?;
    Ok(figures)
}

/// Brings a mutation of its own client to each place, strikes, and waits for the verdicts.
async fn round(stage: &mut Stage, blow: Blow) -> Result<u64, GateError> {
    let space = stage.spaces[0].clone();
    let observer = Guest::arrive(stage, &space).await?;
    let (_, before) = tally::read(&observer.session, "of:none").await?;
    let mut cases = Vec::new();
    for place in PLACES {
        let case = Case::bring(stage, &space, &observer, (blow, place)).await;
        cases.push(case.map_err(|error| error.within(format!("{place:?}")))?);
    }

    strike(stage, blow, &cases).await?;
    for case in &cases {
        case.let_go(blow);
    }
    let mut repeats = 0;
    for case in &mut cases {
        let verdict = case.verdict().await.map_err(|error| case.step(error))?;
        let again = verdict.get("replayed") == Some(&Value::Bool(true));
        if let Some(expected) = is_repeated(case.place, blow) {
            same("whether it had been applied before", again, expected)
                .map_err(|error| case.step(error))?;
        }
        repeats += u64::from(again);
    }

    let observer = arrive_at_last(stage, &space).await?;
    for case in &cases {
        let (entries, _) = tally::read(&observer.session, &case.document).await?;
        same("the store", entries, vec![json!("the mutation")])
            .map_err(|error| case.step(error))?;
    }
    let (_, after) = tally::read(&observer.session, "of:none").await?;
    let count = u64::try_from(cases.len()).unwrap_or_default();
    same("commits in the store", after, before + count)?;
    observer.leave().await;
    for case in cases {
        case.leave().await?;
    }
    Ok(repeats)
}

/// Whether the verdict is to be the answer to a repeated mutation; `None` where that is a race.
fn is_repeated(place: Place, blow: Blow) -> Option<bool> {
    match (place, blow) {
        (_, blow) if blow.spares_connections() => Some(false),
        (Place::BeforeHeader | Place::InBody, _) => Some(false),
        // What a toolshed had in its socket it may carry out for nobody, unless it dies.
        (Place::Complete, Blow::Toolshed) => Some(false),
        (Place::Complete, _) => None,
        // The worker lives on for a moment: it may still forward the answer before it finds out, or is killed in turn.
        (Place::AnswerBeforeWorker, Blow::Toolshed | Blow::Role(..)) => None,
        (Place::AnswerBeforeWorker | Place::AnswerBeforeClient, _) => Some(true),
    }
}

async fn strike(stage: &mut Stage, blow: Blow, cases: &[Case]) -> Result<(), GateError> {
    let mark = stage.router.log().mark();
    match blow {
        Blow::Client => {
            for case in cases {
                case.proxy.pipe()?.cut();
            }
        }
        Blow::Worker => {
            for case in cases {
                send_signal(case.worker, Signal::KILL)?;
            }
        }
        Blow::Toolshed => {
            stage.toolsheds[0].kill().await?;
            stage.toolsheds[0].launch().await?;
            linked(stage, mark, 0).await?;
        }
        Blow::Role(name, _) => send_signal(stage.router.role(name)?, Signal::KILL)?,
    }
    // Whatever was stopped and lives goes on.
    if blow != Blow::Toolshed {
        stage.toolsheds[0].signal(Signal::CONT)?;
    }
    for case in cases.iter().filter(|case| proc::lives(case.worker)) {
        // One that is just ending needs no signal.
        drop(send_signal(case.worker, Signal::CONT));
    }
    if matches!(blow, Blow::Role(..)) {
        accepts(stage, mark).await?;
    }
    Ok(())
}

/// A client with one mutation on its way.
struct Case {
    place: Place,
    document: String,
    proxy: Proxy,
    worker: u32,
    client: Client,
    session: Option<DurableSession>,
    submitted: Option<Submitted>,
}

impl Case {
    async fn bring(
        stage: &Stage,
        space: &Space,
        observer: &Guest,
        (blow, place): (Blow, Place),
    ) -> Result<Self, GateError> {
        let proxy = Proxy::start(stage.public().address).await?;
        let options = ClientOptions {
            connection: Options {
                compression: false,
                ..Options::default()
            },
            topology: Topology::Shared,
        };
        let client = Client::new(stage.endpoint_at(proxy.address())?, options);
        let opened = client.open(space.did, &space.owner, SessionOptions::default());
        let session = soon("a durable open", opened)
            .await?
            .during("a durable open")?;
        let pipe = proxy.pipe()?;
        let worker = stage.router.worker_of(pipe.router_side())?;
        let document = format!("of:{}-{place:?}", blow.name()).to_lowercase();
        let toolshed = &stage.toolsheds[space.toolshed];
        let port = toolshed.port()?;

        match place {
            Place::AnswerBeforeWorker | Place::Complete => toolshed.signal(Signal::STOP)?,
            Place::AnswerBeforeClient => pipe.hold_after(Way::Down, 0),
            Place::BeforeHeader => pipe.hold_after(Way::Up, 0),
            Place::InBody => pipe.hold_after(Way::Up, PART),
        }
        let length = if place == Place::InBody {
            BODY
        } else {
            SMALL_BODY
        };
        let submitted = session
            .submit(mutation(&document, length))
            .await
            .during("a mutation")?;
        match place {
            Place::BeforeHeader | Place::InBody => pipe.held(Way::Up).await?,
            Place::AnswerBeforeClient => {
                is_applied(observer, &document).await?;
                pipe.held(Way::Down).await?;
            }
            Place::Complete => holds(SMALL_BODY, || proc::unread_by_server(port)).await?,
            Place::AnswerBeforeWorker => {
                holds(SMALL_BODY, || proc::unread_by_server(port)).await?;
                send_signal(worker, Signal::STOP)?;
                toolshed.signal(Signal::CONT)?;
                is_applied(observer, &document).await?;
                holds(SMALL_BODY, || proc::unread_by_client(worker, port)).await?;
            }
        }
        Ok(Self {
            place,
            document,
            proxy,
            worker,
            client,
            session: Some(session),
            submitted: Some(submitted),
        })
    }

    /// Opens the proxy again. An answer that waits there is lost where the blow ends connections.
    fn let_go(&self, blow: Blow) {
        if let Ok(pipe) = self.proxy.pipe() {
            if self.place == Place::AnswerBeforeClient && !blow.spares_connections() {
                pipe.cut();
            } else {
                pipe.release();
            }
        }
    }

    async fn verdict(&mut self) -> Result<Value, GateError> {
        let submitted = self.submitted.take().during("a mutation")?;
        let verdict = soon("a verdict", submitted.verdict()).await?;
        verdict.during("a verdict")
    }

    fn step(&self, error: GateError) -> GateError {
        error.within(format!("{:?}", self.place))
    }

    async fn leave(mut self) -> Result<(), GateError> {
        let session = self.session.take().during("a session")?;
        soon("the end of a session", session.close())
            .await?
            .during("the end of a session")?;
        self.client.close().await;
        Ok(())
    }
}

/// A commit of a certain length that shows how often it is applied.
fn mutation(document: &str, length: usize) -> Value {
    let mut operations = tally::append(document, &json!("the mutation"));
    let ballast = json!({
        "op": "set",
        "id": format!("{document}-ballast"),
        "value": { "value": "x".repeat(length) },
    });
    if let Some(list) = operations.as_array_mut() {
        list.push(ballast);
    }
    json!({ "reads": { "confirmed": [], "pending": [] }, "operations": operations })
}

/// Waits until the toolshed has applied a mutation.
async fn is_applied(observer: &Guest, document: &str) -> Result<(), GateError> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let (entries, _) = tally::read(&observer.session, document).await?;
        if !entries.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(GateError::new("the store", "the mutation", "none"));
        }
        sleep(LOOK).await;
    }
}

/// Waits until a queue of the kernel's has so many bytes, and no more come. The kernel has no event for that.
async fn holds(bytes: usize, look: impl Fn() -> Result<u64, GateError>) -> Result<(), GateError> {
    let least = u64::try_from(bytes).unwrap_or(u64::MAX);
    let deadline = Instant::now() + DEADLINE;
    let mut last = (0, Instant::now());
    loop {
        let now = look()?;
        if now != last.0 {
            last = (now, Instant::now());
        }
        if now >= least && last.1.elapsed() >= SETTLED {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(GateError::new("bytes in a socket's queue", least, now));
        }
        sleep(LOOK).await;
    }
}
