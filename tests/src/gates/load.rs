//! Gates 16 and 17: requests that do not wait for each other, and many of them.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

use super::GateResult;
use super::acts::{Seat, query_of};
use super::denial::{closes, logged};
use super::latency::{Neighbour, Times};
use crate::error::{holds, same};
use crate::processes::Toolshed;
use crate::raw::{Framing, Speaker, ok, text};
use crate::report::figure;
use crate::stage::StageOptions;
use crate::{Context, GateError, Stage};

/// The request window of a data socket, bytes of bodies.
const WINDOW: usize = 4 << 20;

/// Requests that go out without waiting for an answer.
const PIPELINED: usize = 100;

/// How long the stage of the sixteenth gate lets a request wait for its toolshed.
const ADMISSION: Duration = Duration::from_secs(1);

/// Gate 16: 100 pipelined requests ride the 4 MiB window with no round trip each; a stalled window times out.
pub(super) async fn request_window(stage: &Stage) -> GateResult {
    let options = StageOptions {
        timeouts: format!("admission = \"{}ms\"", ADMISSION.as_millis()),
        ..StageOptions::default()
    };
    let own = Stage::set(stage.programs(), options).await?;
    let whole = whole_window(&own).await?;
    no_round_trips(&own).await?;
    let (stalled, times) = stalled(&own).await?;
    own.strike().await?;
    let mut figures = figure("whole_window_ms", whole);
    figures.extend(figure("stalled_ms", stalled));
    figures.extend(times.figures("other_toolshed_during"));
    Ok(figures)
}

/// As many bytes as the window has, in 100 requests at once; gives the time until the last answer, milliseconds.
async fn whole_window(stage: &Stage) -> Result<u64, GateError> {
    let [space, _] = &stage.spaces;
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let seat = Seat::take(&mut speaker, space).await?;
    let began = Instant::now();
    let requests = pipeline(&mut speaker, &seat, WINDOW / PIPELINED).await?;
    answered_in_order(&mut speaker, &requests).await?;
    let took = began.elapsed();
    speaker.client.reset()?;
    Ok(millis(took))
}

/// Sends 100 requests whose bodies have so many bytes each.
async fn pipeline(
    speaker: &mut Speaker,
    seat: &Seat,
    len: usize,
) -> Result<Vec<String>, GateError> {
    let mut requests = Vec::new();
    for _ in 0..PIPELINED {
        let (id, mut message) = speaker.compose("graph.query", seat.members(query_of(&[]))?)?;
        let padding = len.saturating_sub(format!("fvj1:{message},\"padding\":\"\"").len());
        if let Some(members) = message.as_object_mut() {
            members.insert("padding".to_owned(), json!("x".repeat(padding)));
        }
        speaker.send(&message).await?;
        requests.push(id);
    }
    Ok(requests)
}

async fn answered_in_order(speaker: &mut Speaker, requests: &[String]) -> Result<(), GateError> {
    for id in requests {
        let answer = speaker.next().await?;
        same(
            "the request that is answered next",
            text(&answer, "requestId"),
            Some(id.as_str()),
        )?;
        ok(&answer)?;
    }
    Ok(())
}

/// While the toolshed is stopped it answers nothing, and every request reaches it all the same.
async fn no_round_trips(stage: &Stage) -> Result<(), GateError> {
    let [space, _] = &stage.spaces;
    let [toolshed, _] = &stage.toolsheds;
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let seat = Seat::take(&mut speaker, space).await?;
    signal(toolshed, Signal::STOP)?;
    let requests = pipeline(&mut speaker, &seat, 0).await;
    // All credit has come back: nothing waits at the router.
    let settled = speaker.settle().await;
    signal(toolshed, Signal::CONT)?;
    settled?;
    answered_in_order(&mut speaker, &requests?).await?;
    speaker.client.reset()
}

/// A window that does not move ends the connection that waits for it, and no other. Gives how long that took, milliseconds,
/// and what a neighbour saw.
async fn stalled(stage: &Stage) -> Result<(u64, Times), GateError> {
    let [space, other] = &stage.spaces;
    let [toolshed, _] = &stage.toolsheds;
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Legacy, false).await?;
    let name = speaker.connection()?;
    let seat = Seat::take(&mut speaker, space).await?;
    let mut same_toolshed = Neighbour::arrive(stage, space).await?;
    let mut elsewhere = Neighbour::arrive(stage, other).await?;
    signal(toolshed, Signal::STOP)?;
    let waits = async {
        let began = Instant::now();
        // Two windows: the kernel may take one off the router's hands.
        for _ in 0..2 {
            let members = seat.members(query_of(&[]))?;
            let (_, mut message) = speaker.compose("graph.query", members)?;
            if let Some(members) = message.as_object_mut() {
                members.insert("padding".to_owned(), json!("x".repeat(WINDOW - 1024)));
            }
            speaker.send(&message).await?;
        }
        closes(&mut speaker, 1013, "admission-timeout").await?;
        logged(stage, (mark, &name), "admission-timeout").await?;
        Ok::<_, GateError>(began.elapsed())
    };
    // One who asks the stopped toolshed gets its answer when it goes on.
    let mut patient = Times::default();
    let asks = same_toolshed.ask(&mut patient);
    let watches = async {
        tokio::pin!(waits);
        let mut times = Times::default();
        loop {
            tokio::select! {
                waited = &mut waits => {
                    signal(toolshed, Signal::CONT)?;
                    return Ok::<_, GateError>((waited?, times));
                }
                asked = elsewhere.ask(&mut times) => asked?,
            }
        }
    };
    let ((waited, times), ()) = tokio::try_join!(watches, asks)?;
    holds(
        "how long a stalled window is waited for",
        (ADMISSION..ADMISSION * 4).contains(&waited),
        format!("about {ADMISSION:?}"),
        format!("{waited:?}"),
    )?;
    same_toolshed.ask(&mut patient).await?;
    same_toolshed.leave()?;
    // The end of the wait may have come in the middle of its request.
    drop(elsewhere);
    Neighbour::arrive(stage, space)
        .await?
        .ask(&mut patient)
        .await?;
    Ok((millis(waited), times))
}

fn signal(toolshed: &Toolshed, signal: Signal) -> Result<(), GateError> {
    let pid = toolshed
        .pid()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw)
        .during("a toolshed's process ID")?;
    kill_process(pid, signal).during("a signal to a toolshed")
}

/// Connections of the seventeenth gate, and what each does: transactions one after the other, then so many at once with so
/// many controls between.
const CONNECTIONS: usize = 32;
const TRANSACTIONS: usize = 100;
const OUTSTANDING: usize = 64;
const CONTROLS: usize = 16;

/// Gate 17: 32 workers, 3,200 transactions, then a burst of 2,048 with 64 outstanding and 512 controls between; all answered,
/// in order per session.
pub(super) async fn many_workers(stage: &Stage) -> GateResult {
    let mut clients = Vec::new();
    for (place, space) in (0..CONNECTIONS).zip(stage.spaces.iter().cycle()) {
        let mut speaker = Speaker::connect(stage, Framing::Credited, place % 4 < 2).await?;
        let seat = Seat::take(&mut speaker, space).await?;
        clients.push((speaker, seat));
    }
    let local = LocalSet::new();
    let (times, transactions, burst) = local.run_until(storm(clients)).await?;
    let per_second = |count: usize, took: Duration| {
        let count = u128::try_from(count).unwrap_or_default();
        u64::try_from(count * 1000 / took.as_millis().max(1)).unwrap_or(u64::MAX)
    };
    same("transactions", times.len(), CONNECTIONS * TRANSACTIONS)?;
    let mut figures = figure("transactions", times.len());
    figures.extend(figure(
        "transactions_per_s",
        per_second(times.len(), transactions),
    ));
    figures.extend(times.figures("transaction"));
    figures.extend(figure("burst", CONNECTIONS * OUTSTANDING));
    figures.extend(figure("controls", CONNECTIONS * CONTROLS));
    figures.extend(figure("burst_ms", millis(burst)));
    Ok(figures)
}

/// Both parts; gives the time of each transaction of the first, and how long each part took.
async fn storm(clients: Vec<(Speaker, Seat)>) -> Result<(Times, Duration, Duration), GateError> {
    let began = Instant::now();
    let mut running = JoinSet::new();
    for (place, (mut speaker, mut seat)) in clients.into_iter().enumerate() {
        running.spawn_local(async move {
            let times = one_by_one(&mut speaker, &mut seat, place).await?;
            Ok::<_, GateError>((speaker, seat, times))
        });
    }
    let mut times = Times::default();
    let mut clients = Vec::new();
    while let Some(ended) = running.join_next().await {
        let (speaker, seat, own) = ended.during("a client")??;
        times.extend(own);
        clients.push((speaker, seat));
    }
    let transactions = began.elapsed();

    let began = Instant::now();
    let mut running = JoinSet::new();
    for (mut speaker, mut seat) in clients {
        running.spawn_local(async move {
            at_once(&mut speaker, &mut seat).await?;
            speaker.client.reset()
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.during("a client")??;
    }
    Ok((times, transactions, began.elapsed()))
}

async fn one_by_one(
    speaker: &mut Speaker,
    seat: &mut Seat,
    place: usize,
) -> Result<Times, GateError> {
    let mut times = Times::default();
    let id = format!("of:gate-17-{place}");
    for turn in 0..TRANSACTIONS {
        let began = Instant::now();
        ok(&seat.commit(speaker, &id, json!(turn)).await?)?;
        times.add(began.elapsed());
    }
    Ok(times)
}

/// Everything is sent before anything is read.
async fn at_once(speaker: &mut Speaker, seat: &mut Seat) -> Result<(), GateError> {
    let mut transactions = Vec::new();
    let mut controls = Vec::new();
    for turn in 0..OUTSTANDING {
        let members = seat.set("of:gate-17-burst", json!(turn))?;
        let (id, message) = speaker.compose("transact", members)?;
        speaker.send(&message).await?;
        transactions.push(id);
        if turn % (OUTSTANDING / CONTROLS) == 0 {
            let (kind, members) = match controls.len() % 2 {
                0 => ("connection.challenge", json!({})),
                _ => ("memory.compression", json!({ "enabled": true })),
            };
            let (id, message) = speaker.compose(kind, members)?;
            speaker.send(&message).await?;
            controls.push(id);
        }
    }
    let (mut left, mut left_controls) = (transactions.iter(), controls.iter());
    let mut last_seq = None;
    for _ in 0..transactions.len() + controls.len() {
        let answer = speaker.next().await?;
        let id = text(&answer, "requestId");
        // What the router answers itself may pass a transaction, and each kind keeps its own order.
        if id.is_some() && controls.iter().any(|control| Some(control.as_str()) == id) {
            same(
                "the next control",
                id,
                left_controls.next().map(String::as_str),
            )?;
            continue;
        }
        same("the next transaction", id, left.next().map(String::as_str))?;
        let seq = ok(&answer)?.get("seq").and_then(Value::as_u64);
        holds(
            "the number of a commit",
            seq > last_seq,
            format!("more than {last_seq:?}"),
            format!("{seq:?}"),
        )?;
        last_seq = seq;
    }
    Ok(())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
