//! Gate 20: clients that begin and do not go on, and clients that vanish.

use std::net::SocketAddr;
use std::time::Duration;

use memory_transport::tls;
use memory_wire::frame::Opcode;
use memory_wire::stream::{Header, Route};
use rustls::pki_types::CertificateDer;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::GateResult;
use super::acts::Seat;
use super::denial::closes;
use super::latency::{Neighbour, Times};
use crate::error::{DEADLINE, holds, soon};
use crate::proc::lives;
use crate::raw::{Framing, RawClient, Speaker};
use crate::report::figure;
use crate::stage::StageOptions;
use crate::{Context, GateError, Stage, log};

/// Bounds of the stage: for TLS, upgrade and hello, for the first signature, for an upload, and for a ping and its answer.
const HANDSHAKE: Duration = Duration::from_millis(1000);
const PING_INTERVAL: Duration = Duration::from_millis(1300);
const PING_TIMEOUT: Duration = Duration::from_millis(500);

/// Clients that stop at each point.
const EACH: usize = 4;

/// Requests of a neighbour that are measured beforehand.
const ASKED: usize = 200;

/// How far an incomplete client gets.
#[derive(Debug, Clone, Copy)]
enum Stop {
    Connected,
    HalfHello,
    Secured,
    HalfUpgrade,
}

/// An incomplete client is timed out without delaying an authenticated peer; a client that stops answering pings loses its
/// worker.
pub(super) async fn timed_out(stage: &Stage) -> GateResult {
    let bound = HANDSHAKE.as_millis();
    let options = StageOptions {
        timeouts: format!(
            "handshake = \"{bound}ms\"\nauthenticate = \"{bound}ms\"\nupload = \"{bound}ms\"\n\
            ping_interval = \"{}ms\"\nping_timeout = \"{}ms\"",
            PING_INTERVAL.as_millis(),
            PING_TIMEOUT.as_millis(),
        ),
        ..StageOptions::default()
    };
    let own = Stage::set(stage.programs(), options).await?;
    let [space, _] = &own.spaces;
    let mut neighbour = Neighbour::arrive(&own, space).await?;
    let before = neighbour.ask_often(ASKED).await?;
    let (gone, during) = {
        let gone = all_at_once(&own);
        tokio::pin!(gone);
        let mut during = Times::default();
        loop {
            tokio::select! {
                gone = &mut gone => break (gone?, during),
                asked = neighbour.ask(&mut during) => asked?,
            }
        }
    };
    during.is_like(&before)?;
    neighbour.leave()?;
    own.strike().await?;
    let mut figures = figure("clients", 4 * EACH + 5);
    figures.extend(figure("incomplete_ms", millis(gone.incomplete)));
    figures.extend(figure("vanished_ms", millis(gone.vanished)));
    figures.extend(before.figures("authenticated_before"));
    figures.extend(during.figures("authenticated_during"));
    Ok(figures)
}

/// How long clients lived.
struct Gone {
    incomplete: Duration,
    vanished: Duration,
}

async fn all_at_once(stage: &Stage) -> Result<Gone, GateError> {
    let (incomplete, vanished, ..) = tokio::try_join!(
        incomplete(stage),
        no_pong(stage),
        no_hello(stage),
        no_signature(stage),
        half_an_upload(stage),
        quiet_but_there(stage),
    )?;
    Ok(Gone {
        incomplete,
        vanished,
    })
}

/// Clients that stop before the WebSocket stands. Gives how long the last of them lived.
async fn incomplete(stage: &Stage) -> Result<Duration, GateError> {
    let stops = [
        Stop::Connected,
        Stop::HalfHello,
        Stop::Secured,
        Stop::HalfUpgrade,
    ];
    let mark = stage.router.log().mark();
    let began = Instant::now();
    let mut waiting = Vec::new();
    for stop in stops {
        for _ in 0..EACH {
            waiting.push((stop, begin(stage, stop).await?));
        }
    }
    for (stop, (mut stream, local)) in waiting {
        let step = format!("the end of a client that stops {stop:?}");
        let mut rest = Vec::new();
        // However it ends: with a close, an alert or a reset.
        let _ = soon(&step, stream.read_to_end(&mut rest)).await?;
        let peer = local.to_string();
        let says = |line: &Value| {
            log::has(line, "peer", &peer)
                && log::has(line, "reason", "handshake-timeout")
                && log::has(line, "message", "connection ended")
        };
        stage.router.log().wait(&step, mark, says).await?;
    }
    in_time("the life of incomplete clients", began.elapsed(), HANDSHAKE)
}

/// A stream of which only the end is of interest, and its address.
type Waiting = (Box<dyn AsyncRead + Unpin>, SocketAddr);

async fn begin(stage: &Stage, stop: Stop) -> Result<Waiting, GateError> {
    let public = stage.public();
    let mut stream = TcpStream::connect(public.address)
        .await
        .during("connecting")?;
    let local = stream.local_addr().during("connecting")?;
    match stop {
        Stop::Connected => return Ok((Box::new(stream), local)),
        Stop::HalfHello => {
            // A handshake record of 512 bytes, of which five come.
            let part = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03";
            stream.write_all(part).await.during("half a hello")?;
            return Ok((Box::new(stream), local));
        }
        Stop::Secured | Stop::HalfUpgrade => {}
    }
    let trusted = vec![CertificateDer::from(public.certificate.clone())];
    let config = tls::pinned_client_config(trusted).during("the client's TLS configuration")?;
    let mut stream = tls::connect(stream, config, "localhost", Instant::now() + DEADLINE)
        .await
        .during("the TLS handshake")?;
    if let Stop::HalfUpgrade = stop {
        let half = format!(
            "GET /api/storage/memory HTTP/1.1\r\nHost: {}\r\nUpgra",
            public.host
        );
        stream
            .write_all(half.as_bytes())
            .await
            .during("half an upgrade")?;
        stream.flush().await.during("half an upgrade")?;
    }
    Ok((Box::new(stream), local))
}

/// A WebSocket on which no hello comes, but a ping that asks for an answer.
async fn no_hello(stage: &Stage) -> Result<Duration, GateError> {
    let began = Instant::now();
    let mut client = RawClient::connect(stage).await?;
    client.frame(true, Opcode::Ping, b"still here").await?;
    let closing = client.closing().await?;
    holds(
        "the close of a client without hello",
        closing.code == 1008 && closing.text.starts_with("handshake-timeout "),
        "1008 handshake-timeout",
        format!("{closing:?}"),
    )?;
    client.answer_closing().await?;
    in_time(
        "the life of a client without hello",
        began.elapsed(),
        HANDSHAKE,
    )
}

async fn no_signature(stage: &Stage) -> Result<Duration, GateError> {
    let began = Instant::now();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    closes(&mut speaker, 1008, "authenticate-timeout").await?;
    in_time(
        "the life of a client that does not sign",
        began.elapsed(),
        HANDSHAKE,
    )
}

async fn half_an_upload(stage: &Stage) -> Result<Duration, GateError> {
    let [space, _] = &stage.spaces;
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let seat = Seat::take(&mut speaker, space).await?;
    let began = Instant::now();
    let mut record = Vec::new();
    Header {
        bytes: 100,
        binary: false,
        request_ordinal: None,
        route: Route {
            kind: "graph.query".into(),
            request_id: Some("half".into()),
            space: Some(space.did.as_str().into()),
            session_id: Some(seat.id.as_str().into()),
            ..Route::default()
        },
    }
    .encode_record(&mut record)
    .during("a header")?;
    speaker.record(&record).await?;
    closes(&mut speaker, 1008, "upload-timeout").await?;
    in_time("the life of half an upload", began.elapsed(), HANDSHAKE)
}

/// Reads every ping and answers none. Gives how long its worker lived.
async fn no_pong(stage: &Stage) -> Result<Duration, GateError> {
    let [space, _] = &stage.spaces;
    let mark = stage.router.log().mark();
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let name = speaker.connection()?;
    let began = Instant::now();
    Seat::take(&mut speaker, space).await?;
    let worker = stage.router.worker_of(speaker.local())?;
    closes(&mut speaker, 1001, "ping-timeout").await?;
    let lived = began.elapsed();
    let ended = |line: &Value| {
        log::has(line, "connection", &name)
            && log::has(line, "reason", "ping-timeout")
            && log::has(line, "message", "connection ended")
    };
    let log = stage.router.log();
    log.wait("the worker's end", mark, ended).await?;
    holds("its worker", !lives(worker), "gone", worker)?;
    in_time(
        "the life of a client that answers no ping",
        lived,
        PING_INTERVAL + PING_TIMEOUT,
    )
}

/// Says nothing of its own and answers pings: it stays.
async fn quiet_but_there(stage: &Stage) -> Result<(), GateError> {
    let [_, space] = &stage.spaces;
    let mut speaker = Speaker::connect(stage, Framing::Credited, false).await?;
    let seat = Seat::take(&mut speaker, space).await?;
    for _ in 0..2 {
        let frame = speaker.client.next().await?;
        holds(
            "what a quiet client hears",
            frame.opcode == Opcode::Ping,
            "a ping",
            format!("{frame:?}"),
        )?;
        speaker
            .client
            .frame(true, Opcode::Pong, &frame.payload)
            .await?;
    }
    seat.reads_fixture(&mut speaker).await?;
    speaker.client.reset()
}

/// Demands that something took as long as its bound, and little longer.
fn in_time(what: &str, took: Duration, bound: Duration) -> Result<Duration, GateError> {
    // Timers may be a little early, and the clock of the router's log is not this one.
    const EARLY: Duration = Duration::from_millis(50);
    const LATE: Duration = Duration::from_secs(3);
    holds(
        what,
        (bound.saturating_sub(EARLY)..bound + LATE).contains(&took),
        format!("about {bound:?}"),
        format!("{took:?}"),
    )?;
    Ok(took)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
