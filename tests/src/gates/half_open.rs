//! Clients that vanish without a word, as behind a link that is cut: in a network namespace of their own.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use memory_wire::stream::{Header, MAX_CHUNK_LEN, Route, chunk_prefix};
use rustix::process::{Signal, geteuid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::interval;

use super::GateResult;
use super::bystander::Bystander;
use super::party::Guest;
use super::upstream::millis;
use crate::error::holds;
use crate::raw::{Framing, RawClient, Speaker, of_session, ok, text};
use crate::report::figure;
use crate::stage::StageOptions;
use crate::{Context, GateError, Stage, log};

/// Both of the stage.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// Beyond them: the last words, and the process's end, on a busy machine.
const GRACE: Duration = Duration::from_millis(400);

/// The address of the far end of the link.
const MAC: &str = "02:65:78:65:72:63";

/// What a client does when it vanishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    /// It watches a document that changes all the time.
    Receiving,
    /// It is in the middle of an upload.
    Uploading,
    /// A large answer is on its way to it.
    Fetching,
    /// Both.
    Exchanging,
    /// It has as many requests at a toolshed that does not answer as it may, and one more: the router does not read it.
    Held,
}

/// Its own and those of its class: what the ledger leaves to data of [`REQUESTS`].
const DATA_REQUESTS: usize = 6;

/// `max_requests_per_connection` of the stage.
const REQUESTS: usize = 8;

/// Their workers end within `ping_interval` and `ping_timeout`, also with traffic flowing.
pub(super) async fn vanished_clients(stage: &Stage) -> GateResult {
    if !geteuid().is_root() {
        return Ok(figure("skipped", "a network namespace needs root"));
    }
    let network = match Network::new() {
        Ok(network) => network,
        Err(why) => return Ok(figure("skipped", why)),
    };
    let options = StageOptions {
        limits: format!("max_requests_per_connection = {REQUESTS}"),
        timeouts: "ping_interval = \"1s\"\nping_timeout = \"1s\"".to_owned(),
        ..StageOptions::default()
    };
    let stage = Stage::set(stage.programs(), options).await?;
    let [space, _] = &stage.spaces;
    let bystander = Bystander::arrive(&stage).await?;
    let mut writer = Guest::arrive(&stage, space).await?;
    let large =
        json!([{ "op": "set", "id": "of:large", "value": { "value": "x".repeat(3 << 20) } }]);
    writer.session.commit(large).await.during("a commit")?;
    let mark = stage.router.log().mark();
    let mut clients = Vec::new();
    for doing in [
        Doing::Nothing,
        Doing::Receiving,
        Doing::Uploading,
        Doing::Fetching,
        Doing::Exchanging,
        Doing::Held,
    ] {
        let stream = network.connect(stage.public().address)?;
        let client = RawClient::connect_over(&stage, stream).await?;
        let speaker = begin(&stage, client, doing)
            .await
            .map_err(|error| error.within(format!("{doing:?}")))?;
        clients.push((doing, speaker.connection()?, speaker));
    }

    network.cut()?;
    let began = Instant::now();
    let ends = async {
        let mut ends = Vec::new();
        for (doing, connection, _) in &clients {
            let what = format!("the end of a client that vanished ({doing:?})");
            let log = stage.router.log();
            let line = log.wait(&what, mark, |line| {
                log::has(line, "message", "connection ended")
                    && log::has(line, "connection", connection)
            });
            ends.push((*doing, line.await?, began.elapsed()));
        }
        Ok::<_, GateError>(ends)
    };
    let changes = async {
        let mut pace = interval(Duration::from_millis(20));
        loop {
            pace.tick().await;
            let change =
                json!([{ "op": "set", "id": "of:busy", "value": { "value": "y".repeat(4096) } }]);
            if let Err(error) = writer.session.commit(change).await.during("a commit") {
                return error;
            }
        }
    };
    let ends = tokio::select! {
        ends = ends => ends?,
        error = changes => return Err(error),
    };
    let mut figures = crate::report::Figures::new();
    for (doing, line, took) in ends {
        let within = PING_INTERVAL + PING_TIMEOUT + GRACE;
        // What was sent and is not acknowledged runs out of time in the kernel.
        let is_lost = doing != Doing::Nothing && log::has(&line, "reason", "client-lost");
        holds(
            format!("the end of a client that vanished ({doing:?})"),
            took <= within && (log::has(&line, "reason", "ping-timeout") || is_lost),
            format!("ping-timeout, or client-lost, within {within:?}"),
            format!(
                "{} after {took:?}",
                line.get("reason").unwrap_or(&Value::Null)
            ),
        )?;
        figures.extend(figure(
            &format!("{doing:?}_ended_ms").to_lowercase(),
            millis(took),
        ));
    }
    let [_, stopped] = &stage.toolsheds;
    stopped.signal(Signal::CONT)?;
    writer.reads().await?;
    writer.leave().await;
    bystander.leave(&stage).await?;
    drop(clients);
    stage.strike().await?;
    Ok(figures)
}

async fn begin(stage: &Stage, client: RawClient, doing: Doing) -> Result<Speaker, GateError> {
    let [running, stopped] = &stage.spaces;
    let space = if doing == Doing::Held {
        stopped
    } else {
        running
    };
    let flags = json!({
        "connectionAuth": true,
        "routedAuthV1": true,
        "stableExpressionResultIds": true,
        "modernCellRep": false,
    });
    let mut speaker = Speaker::greet(client, Framing::Credited, flags).await?;
    speaker.authenticate(&space.owner).await?;
    let opened = speaker.open(space.did, space.owner.did()).await?;
    let session = text(&opened, "sessionId").during("sessionId")?;
    let roots = |id: &str| {
        let selector = json!({ "path": [], "schema": false });
        json!({ "roots": [{ "id": id, "selector": selector }] })
    };
    match doing {
        Doing::Nothing => {}
        Doing::Receiving => {
            let watches = json!([{ "id": "w", "kind": "graph", "query": roots("of:busy") }]);
            let members = of_session(space.did, session, json!({ "watches": watches }))?;
            let answer = speaker.request("session.watch.set", members).await?;
            ok(&answer)?;
        }
        Doing::Held => {
            let [_, toolshed] = &stage.toolsheds;
            toolshed.signal(Signal::STOP)?;
            for _ in 0..=DATA_REQUESTS {
                let query = json!({ "query": roots("of:large") });
                let members = of_session(space.did, session, query)?;
                let (_, message) = speaker.compose("graph.query", members)?;
                speaker.send(&message).await?;
            }
        }
        Doing::Uploading | Doing::Fetching | Doing::Exchanging => {}
    }
    if matches!(doing, Doing::Fetching | Doing::Exchanging) {
        let members = of_session(space.did, session, json!({ "query": roots("of:large") }))?;
        let (_, message) = speaker.compose("graph.query", members)?;
        speaker.send(&message).await?;
        // It has begun to come, and nothing of it is read.
        speaker.settle().await?;
    }
    if matches!(doing, Doing::Uploading | Doing::Exchanging) {
        let members = of_session(space.did, session, json!({}))?;
        let (_, message) = speaker.compose("graph.query", members)?;
        begin_body(&mut speaker, &message).await?;
    }
    Ok(speaker)
}

/// Sends a header and the first chunk of many.
async fn begin_body(speaker: &mut Speaker, message: &Value) -> Result<(), GateError> {
    let member = |name: &str| text(message, name).map(|text| text.to_owned().into());
    let mut record = Vec::new();
    Header {
        bytes: 200_000,
        binary: false,
        request_ordinal: None,
        route: Route {
            kind: member("type").during("type")?,
            request_id: member("requestId"),
            space: member("space"),
            session_id: member("sessionId"),
            ..Route::default()
        },
    }
    .encode_record(&mut record)
    .during("a header")?;
    speaker.record(&record).await?;
    let mut chunk = chunk_prefix().to_vec();
    chunk.resize(chunk.len() + MAX_CHUNK_LEN, b' ');
    speaker.record(&chunk).await?;
    speaker.settle().await
}

/// A network namespace with one link to this one. Dropped, both are gone.
struct Network {
    name: String,
    link: String,
}

impl Network {
    fn new() -> Result<Self, String> {
        let number = std::process::id() % 60_000;
        let network = Self {
            name: format!("exercise-{number}"),
            link: format!("ex{number}"),
        };
        let Self { name, link } = &network;
        let peer = format!("{link}p");
        // A net of four addresses that nobody else has.
        let (third, fourth) = (number / 240, number % 60 * 4);
        let [here, there] = [1, 2].map(|last| format!("10.213.{third}.{}", fourth + last));
        ip(&format!("netns add {name}"))?;
        ip(&format!(
            "link add {link} type veth peer name {peer} netns {name}"
        ))?;
        ip(&format!("address add {here}/30 dev {link}"))?;
        ip(&format!("link set {link} up"))?;
        ip(&format!("-n {name} address add {there}/30 dev {peer}"))?;
        ip(&format!("-n {name} link set {peer} address {MAC} up"))?;
        // Fixed, so that nobody finds out by asking for it that the link is cut.
        ip(&format!(
            "neighbour replace {there} lladdr {MAC} dev {link} nud permanent"
        ))?;
        // The router of a stage listens on the loopback address alone. Without a loopback link of its own, the namespace can
        // be led there.
        let setting = |of: &str| format!("/proc/sys/net/ipv4/conf/{of}/route_localnet");
        fs::write(setting(link), "1").map_err(|error| format!("route_localnet: {error}"))?;
        let file = setting(&peer);
        network
            .within(move || fs::write(file, "1"))
            .map_err(|error| format!("route_localnet: {error}"))?;
        ip(&format!("-n {name} route add 127.0.0.1/32 dev {peer}"))?;
        Ok(network)
    }

    /// Does something inside, on a thread of its own: the others stay where they are.
    fn within<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let namespace = File::open(format!("/run/netns/{}", self.name))?;
        let acting = std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            act()
        });
        acting
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread that failed")))
    }

    /// Connects from within.
    fn connect(&self, address: SocketAddr) -> Result<TcpStream, GateError> {
        let step = "connecting from a network namespace";
        let stream = self
            .within(move || StdTcpStream::connect_timeout(&address, Duration::from_secs(5)))
            .during(step)?;
        stream.set_nonblocking(true).during(step)?;
        TcpStream::from_std(stream).during(step)
    }

    /// Cuts the link: nothing passes any more, and neither side is told.
    fn cut(&self) -> Result<(), GateError> {
        let done = ip(&format!("-n {} link set {}p down", self.name, self.link));
        done.map_err(|why| GateError::new("cutting the link", "success", why))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The link goes with the namespace, as soon as its last socket is closed.
        let _ = ip(&format!("link delete {}", self.link));
        let _ = ip(&format!("netns delete {}", self.name));
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("ip {arguments}: {said}"))
}
