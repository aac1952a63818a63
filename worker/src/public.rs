//! From the accepted socket to a client that said hello, and from there to the end of the connection.

use std::net::TcpStream as StdTcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memory_config::WorkerSettings;
use memory_ipc::Channel;
use memory_ipc::packets::Report;
use memory_transport::tls::TlsError;
use memory_transport::{
    AcceptError, Incoming, KeepAlive, PendingUpgrade, ReadLimits, WebSocket, WsReader, tls,
    tune_tcp,
};
use memory_wire::did::Did;
use memory_wire::flags::Flags;
use memory_wire::ids::ConnectionId;
use memory_wire::json::JsonLimits;
use memory_wire::message::{self, MAX_RAW_LEN};
use memory_wire::reason::Reason;
use memory_wire::upgrade::{Endpoint, RefusalBody};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::agents::{LinkAgent, Refused};
use crate::broker::Broker;
use crate::connection::{Agreed, Shared};
use crate::end::End;
use crate::input::Input;
use crate::ledger::Ledger;
use crate::meter::{Measured, Meter, count};
use crate::output::{Output, Urgency};
use crate::signer::{self, RemoteCertificate};
use crate::times::Times;
use crate::{Assignment, ClientRead, ClientTls, Spawner, answers, opener, watchdog};

/// How long the last frames may take to leave, and how long what the client still sends is taken and dropped so that the
/// close frame is not lost to a reset.
const FAREWELL: Duration = Duration::from_secs(2);
/// The same for a client that answered no ping.
const VANISHED_FAREWELL: Duration = Duration::from_millis(50);
/// Bytes taken and dropped at most after the close frame: more than the largest message, which may be why it was sent.
const MAX_FAREWELL_LEN: u64 = 2 * MAX_RAW_LEN as u64;

/// The end of a connection with what it carried.
pub(crate) struct Ended {
    pub(crate) reason: Reason,
    pub(crate) detail: std::borrow::Cow<'static, str>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) report: Box<Report>,
}

/// Serves the client until one side ends the connection.
pub(crate) async fn serve(
    settings: Rc<WorkerSettings>,
    assignment: Assignment,
    spawner: Rc<Spawner>,
) -> Ended {
    let accounts = Accounts {
        ledger: Rc::new(Ledger::new(&settings)),
        meter: Rc::default(),
    };
    let end = attend(settings, assignment, spawner, &accounts).await;
    let Accounts { ledger, meter } = accounts;
    Ended {
        reason: end.reason,
        detail: end.detail,
        bytes_in: meter.bytes_in.get(),
        bytes_out: meter.bytes_out.get(),
        report: meter.report(&ledger),
    }
}

/// What a connection may use, and what it has carried.
#[derive(Clone)]
struct Accounts {
    ledger: Rc<Ledger>,
    meter: Rc<Meter>,
}

async fn attend(
    settings: Rc<WorkerSettings>,
    assignment: Assignment,
    spawner: Rc<Spawner>,
    accounts: &Accounts,
) -> End {
    let Assignment {
        connection,
        accepted_unix_ms,
        client,
        key_agent,
        link_agent,
    } = assignment;
    let deadline = Instant::now() + remaining(settings.handshake(), accepted_unix_ms);

    let stream = match secure(&settings, client, key_agent, deadline).await {
        Ok(stream) => stream,
        Err(end) => return end,
    };
    // Without it the clock is less exact about a client that vanished.
    let socket_again = stream.get_ref().0.as_fd().try_clone_to_owned().ok();
    let link = match Channel::from_fd(link_agent) {
        Ok(channel) => LinkAgent::new(channel),
        Err(_) => return End::new(Reason::Internal, "agent-channel"),
    };
    // What it takes is large, and given back before the connection begins to wait.
    let opened = Box::pin(upgrade(&settings, connection, stream, &link, deadline)).await;
    let (socket, dedicated) = match opened {
        Ok(opened) => opened,
        Err(end) => {
            // Whoever came late or left was told nothing.
            if !matches!(end.reason, Reason::HandshakeTimeout | Reason::ClientLost) {
                accounts.meter.refused(end.reason);
            }
            return end;
        }
    };
    let waited = since_unix_ms(accepted_unix_ms);
    accounts.meter.took(Measured::Upgrade, waited);
    let WebSocket { mut reader, writer } = socket;
    let queued = accounts.ledger.answer_bytes.clone();
    let output = Rc::new(Output::new(writer, queued, Rc::clone(&accounts.meter)));

    let client = Client {
        settings: &settings,
        connection,
        dedicated,
        reader: &mut reader,
        output: &output,
    };
    let (end, shared) = match client.greet(link, spawner, accounts).await {
        Ok(shared) => {
            let end = converse(&shared, &mut reader, socket_again).await;
            (end, Some(shared))
        }
        Err(end) => (end, None),
    };
    farewell(&end, connection, &mut reader, &output).await;
    accounts.meter.bytes_in.set(reader.received());
    if let Some(shared) = shared {
        shared.dismantle().await;
    }
    end
}

/// Judges the request for an upgrade, and opens the WebSocket: of a space, if it is dedicated to one.
async fn upgrade(
    settings: &WorkerSettings,
    connection: ConnectionId,
    stream: ClientTls,
    link: &LinkAgent,
    deadline: Instant,
) -> Result<(WebSocket<ClientTls>, Option<Did>), End> {
    let name = connection.to_string();
    let policy = settings.upgrade_policy();
    let pending = PendingUpgrade::receive(stream, &policy, Some(&name), deadline)
        .await
        .map_err(|error| upgrade_end(&error))?;
    let dedicated = match pending.request().endpoint {
        Endpoint::Public { space } => space,
        Endpoint::RouterLink | Endpoint::RouterData => None,
    };
    if let Some(space) = dedicated {
        // A refusal takes time to be sent, too.
        let patience = deadline.saturating_duration_since(Instant::now()) / 2;
        let refused = match tokio::time::timeout(patience, link.dedicate(space)).await {
            Ok(Ok(())) => None,
            Ok(Err(Refused::Reason(reason))) => Some(reason),
            Ok(Err(Refused::Gone)) | Err(_) => Some(Reason::LinkAgentLost),
        };
        if let Some(reason) = refused {
            refuse_upgrade(settings, pending, &name, space, reason).await;
            return Err(End::new(reason, "upgrade"));
        }
    }
    let (socket, _) = pending
        .accept(ReadLimits::new(MAX_RAW_LEN))
        .await
        .map_err(|error| upgrade_end(&error))?;
    Ok((socket, dedicated))
}

/// Tells why a dedicated socket gets no place: its space has as many as it may, or nobody can say.
async fn refuse_upgrade(
    settings: &WorkerSettings,
    pending: PendingUpgrade<ClientTls>,
    connection: &str,
    space: Did,
    reason: Reason,
) {
    let refusal = RefusalBody {
        error: reason.as_str(),
        connection: Some(connection),
        ..RefusalBody::default()
    };
    if reason != Reason::TenantCap {
        return pending.refuse(503, &refusal).await;
    }
    // A client that vanished keeps its place for no longer.
    let patience = settings.ping_interval() + settings.ping_timeout();
    let seconds = patience.as_millis().div_ceil(1000);
    let refusal = RefusalBody {
        tenant: Some(space.as_str()),
        cap: settings.max_connections_per_space,
        retry_after: Some(u32::try_from(seconds).unwrap_or(u32::MAX)),
        ..refusal
    };
    pending.refuse(429, &refusal).await;
}

/// Time since the listener accepted, by the clock that all processes share. Zero if it was stepped back.
fn since_unix_ms(accepted_unix_ms: u64) -> Duration {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    now.saturating_sub(Duration::from_millis(accepted_unix_ms))
}

/// What is left of a bound that began when the listener accepted.
fn remaining(bound: Duration, accepted_unix_ms: u64) -> Duration {
    // A clock that was stepped back between the two readings does not lengthen the bound.
    bound.saturating_sub(since_unix_ms(accepted_unix_ms))
}

/// What a failed upgrade says about the client.
fn upgrade_end(error: &AcceptError) -> End {
    match error {
        AcceptError::Refused(refusal) => End::new(refusal.reason, refusal.rule),
        AcceptError::Timeout => End::new(Reason::HandshakeTimeout, "upgrade"),
        AcceptError::EndOfStream | AcceptError::Io(_) => End::new(Reason::ClientLost, "upgrade"),
    }
}

async fn secure(
    settings: &WorkerSettings,
    client: OwnedFd,
    key_agent: OwnedFd,
    deadline: Instant,
) -> Result<crate::ClientTls, End> {
    let internal = |detail: &'static str| End::new(Reason::Internal, detail);
    let stream = StdTcpStream::from(client);
    stream
        .set_nonblocking(true)
        .map_err(|_| internal("client-socket"))?;
    let keep_alive = KeepAlive {
        // Longer than the pings take, which know better what happened.
        user_timeout: settings.ping_interval() + settings.ping_timeout() * 2,
        ..KeepAlive::default()
    };
    let _ = tune_tcp(&stream, &keep_alive);
    let stream = TcpStream::from_std(stream).map_err(|_| internal("client-socket"))?;
    let channel = signer::channel(key_agent).map_err(|_| internal("key-agent-channel"))?;
    let certificate = RemoteCertificate::new(
        settings.certificate_chain.clone(),
        &settings.schemes,
        channel,
        settings.handshake(),
    );
    let config =
        tls::server_config(Arc::new(certificate)).map_err(|_| internal("tls-configuration"))?;
    tls::accept(stream, config, deadline)
        .await
        .map_err(|error| match error {
            TlsError::Timeout => End::new(Reason::HandshakeTimeout, "tls"),
            error if error.fault().is_some() => End::new(Reason::TlsHandshake, "tls"),
            // A port scan, a health check, a client that went away: nobody broke a rule.
            _ => End::new(Reason::ClientLost, "tls"),
        })
}

/// A client whose WebSocket is open.
struct Client<'a> {
    settings: &'a Rc<WorkerSettings>,
    connection: ConnectionId,
    dedicated: Option<Did>,
    reader: &'a mut WsReader<ClientRead>,
    output: &'a Rc<Output>,
}

impl Client<'_> {
    /// Hello and its answer.
    async fn greet(
        self,
        link: LinkAgent,
        spawner: Rc<Spawner>,
        accounts: &Accounts,
    ) -> Result<Rc<Shared>, End> {
        let hello = read_hello(self.settings, self.reader, self.output);
        let client_flags = tokio::time::timeout(self.settings.handshake(), hello)
            .await
            .map_err(|_| End::new(Reason::HandshakeTimeout, "hello"))??;
        count(&accounts.meter.messages_in, 1);
        let hello = link.hello(client_flags.canonical());
        let offer = tokio::time::timeout(self.settings.handshake(), hello)
            .await
            .unwrap_or(Err(Refused::Gone))
            .map_err(|refused| match refused {
                Refused::Reason(reason) => End::new(reason, "link-agent-hello"),
                Refused::Gone => End::new(Reason::LinkAgentLost, "link-agent-hello"),
            })?;
        let offer_flags = Flags::from_canonical(&offer.flags)
            .map_err(|_| End::new(Reason::Internal, "offer-flags"))?;
        let hello_ok = answers::hello_ok(
            self.settings,
            self.connection,
            &offer,
            &offer_flags,
            accounts.ledger.advertised_requests(),
        );
        self.output.send_text(hello_ok, Urgency::Control);
        let agreed = Agreed {
            settings: Rc::clone(self.settings),
            dedicated: self.dedicated,
            client_flags,
            offer,
            offer_flags,
            ledger: Rc::clone(&accounts.ledger),
            meter: Rc::clone(&accounts.meter),
        };
        // The one that came with the start, or one that came since; there always is one.
        let broker = Channel::from_fd(spawner.next_broker().await)
            .map_err(|_| End::new(Reason::Internal, "agent-channel"))?;
        let broker = Rc::new(Broker::new(broker));
        let shared = Shared::new(
            agreed,
            Rc::clone(self.output),
            Rc::new(link),
            broker,
            spawner,
        );
        Ok(Rc::new(shared))
    }
}

/// Runs the tasks of the connection until the first of them ends it.
async fn converse(
    shared: &Rc<Shared>,
    reader: &mut WsReader<ClientRead>,
    socket: Option<OwnedFd>,
) -> End {
    let (opens, arriving) = mpsc::unbounded_channel();
    shared.spawn(Rc::clone(&shared.output).pump());
    shared.spawn(Rc::clone(&shared.output).beat());
    shared.spawn(shared.broker().run());
    shared.spawn(follow_brokers(Rc::clone(shared)));
    shared.spawn({
        let shared = Rc::clone(shared);
        async move {
            Rc::clone(&shared.link)
                .run(|index| shared.link_lost(index))
                .await
        }
    });
    shared.spawn(opener::run(Rc::clone(shared), arriving));
    shared.spawn(drain(Rc::clone(shared)));
    let hearing = Rc::new(watchdog::Hearing::new());
    let clock = watchdog::run(Rc::clone(shared), Rc::clone(&hearing), socket);
    shared.spawn(clock);

    let mut input = Input::new(Rc::clone(shared), opens);
    let heard = |listening: bool| hearing.set(listening);
    let end = tokio::select! {
        biased;
        end = shared.finished() => end,
        result = input.run(reader, &heard) => match result {
            Ok(never) => match never {},
            Err(end) => end,
        },
    };
    shared.explained(end).await
}

/// A broker that was started again takes the place of the one before.
async fn follow_brokers(shared: Rc<Shared>) -> Result<(), End> {
    loop {
        let channel = Channel::from_fd(shared.spawner.next_broker().await)
            .map_err(|_| End::new(Reason::Internal, "broker-channel"))?;
        let broker = Rc::new(Broker::new(channel));
        shared.replace_broker(Rc::clone(&broker));
        shared.spawn(broker.run());
    }
}

/// After the notice: no new opens, what is in flight is answered, then the end. The spawner ends whoever takes longer than
/// `drain`, so this gives up before, and the client still gets its close frame.
async fn drain(shared: Rc<Shared>) -> Result<(), End> {
    shared.spawner.drain().await;
    shared.start_drain();
    let answered = async {
        loop {
            let answered = shared.answered.notified();
            if shared.table.borrow().is_quiet() {
                return shared.output.rested().await;
            }
            answered.await;
        }
    };
    let patience = shared.settings.drain() * 3 / 4;
    let detail = match tokio::time::timeout(patience, answered).await {
        Ok(()) => "drain",
        Err(_) => "drain-timeout",
    };
    Err(End::new(Reason::Drain, detail))
}

/// The client's first message, and nothing else before it.
async fn read_hello(
    settings: &WorkerSettings,
    reader: &mut WsReader<ClientRead>,
    output: &Output,
) -> Result<Flags, End> {
    loop {
        match reader
            .next()
            .await
            .map_err(|error| crate::listen::read_end(&error))?
        {
            Incoming::Text => break,
            Incoming::Ping => {
                output.owe_pong(reader.control());
            }
            Incoming::Pong => {}
            Incoming::Binary => return Err(End::client("hello-expected")),
            Incoming::Close { .. } => return Err(End::new(Reason::ClientClosed, "close-frame")),
        }
    }
    let limits = JsonLimits {
        max_slots: settings.max_frame_slots,
        ..JsonLimits::default()
    };
    let hello = message::project(reader.buffer().payload(), &limits)
        .map_err(|error| End::client(error.reason()))?;
    reader.buffer().shrink();
    if hello.kind != "hello" || hello.protocol.as_deref() != Some("memory") {
        return Err(End::client("hello-expected"));
    }
    let incompatible = |detail: &'static str| End::new(Reason::IncompatibleFlags, detail);
    let flags = hello.flags.ok_or_else(|| incompatible("flags"))?;
    let flags = Flags::from_value(&flags).map_err(|_| incompatible("flags"))?;
    if !flags.is_true("connectionAuth") || !flags.is_true("routedAuthV1") {
        return Err(incompatible("authentication"));
    }
    if flags.modern_cell_rep() != settings.modern_cell_rep {
        return Err(incompatible("cell-mode"));
    }
    Ok(flags)
}

/// The close frame, unless nobody is there to read it, and an orderly end of the transport.
async fn farewell(
    end: &End,
    connection: ConnectionId,
    reader: &mut WsReader<ClientRead>,
    output: &Output,
) {
    if end.reason == Reason::ClientLost {
        return;
    }
    let code = end.close_code();
    let text = end.reason.close_text(connection);
    let begun = reader.received();
    // One that vanished gets the frame in case it is there after all, and its worker does not wait for it.
    let vanished = end.reason == Reason::PingTimeout;
    let patience = if vanished {
        VANISHED_FAREWELL
    } else {
        FAREWELL
    };
    let _ = tokio::time::timeout(patience, async {
        output.close(code, &text).await;
        output.shutdown().await;
        // A reset would overtake the close frame: take what the client still sends until it closes too.
        if vanished || end.reason == Reason::ClientClosed {
            return;
        }
        while reader.received() - begun < MAX_FAREWELL_LEN {
            match reader.next().await {
                Ok(Incoming::Close { .. }) => return,
                Ok(_) => {}
                // What broke a rule is not understood any more, and is still on its way.
                Err(_) => return reader.discard(MAX_FAREWELL_LEN).await,
            }
        }
    })
    .await;
}
