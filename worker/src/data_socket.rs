//! Setting up a data socket that the broker dialled: TLS, upgrade, `rdh1`, `rdb1`, `router.hello`, `router.ready`
//! (`docs/protocol.md` 6.3), then commit.
//!
//! The link agent's binding is the point of no return. Before it, a failure is rolled back and the open refused for now;
//! from the moment it is asked for without a refusal coming back, the single-use ticket may be spent, so a failure ends
//! the connection.

use std::net::TcpStream as StdTcpStream;
use std::rc::Rc;

use memory_transport::{
    Incoming, KeepAlive, ReadLimits, Target, WsReader, WsWriter, tls, tune_tcp, upgrade,
};
use memory_wire::base64url;
use memory_wire::flags::Flags;
use memory_wire::frame::Opcode;
use memory_wire::json::{self, JsonLimits};
use memory_wire::reason::Reason;
use memory_wire::records::DataHello;
use memory_wire::stream::MAX_STREAM_RECORD_LEN;
use memory_wire::upgrade::DATA_PATH;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::agents::Refused;
use crate::attempts::Attempt;
use crate::broker::{Broker, DialledSocket};
use crate::connection::Shared;
use crate::end::End;
use crate::receive;
use crate::times::Times;
use crate::upstream::Upstream;
use crate::{UpstreamRead, UpstreamWrite};

/// Why there is no data socket.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing was spent; the broker took the socket back, or is gone.
    RolledBack,
    /// The ticket may be spent.
    End(End),
}

/// Sets up, commits and registers the socket, and starts forwarding what it sends.
///
/// `attempt` is over with it: whoever waits may ask the broker again.
///
/// A broker that is lost on the way costs the open before the binding is asked for, and nothing after: the link agent
/// remembers the binding, and the next broker finds the socket by it.
pub(crate) async fn establish(
    shared: &Rc<Shared>,
    broker: Rc<Broker>,
    socket: DialledSocket,
    attempt: Attempt,
) -> Result<Rc<Upstream>, Failure> {
    let DialledSocket { index, ticket, .. } = socket;
    let step = Step::default();
    let _setup = shared.begin_setup(Rc::clone(&broker));
    let handshaken = tokio::time::timeout(
        shared.settings.data_handshake(),
        handshake(shared, &broker, socket, &step),
    )
    .await;
    let detail = match handshaken {
        Ok(Ok((reader, writer))) => {
            let upstream = Rc::new(Upstream::new(index, writer));
            shared.register(Rc::clone(&upstream));
            shared.spawn(Rc::clone(&upstream).pongs());
            shared.spawn(receive::run(
                Rc::clone(shared),
                Rc::clone(&upstream),
                reader,
            ));
            return match broker.commit(index, ticket).await {
                Ok(()) => {
                    attempt.succeed();
                    Ok(upstream)
                }
                Err(_) if broker.is_gone() => {
                    shared.log(Reason::BrokerLost, "commit");
                    Ok(upstream)
                }
                Err(_) => Err(Failure::End(End::upstream("broker-commit"))),
            };
        }
        Ok(Err(detail)) => detail,
        Err(_) => "data-handshake-timeout",
    };
    if step.may_be_bound() {
        return Err(Failure::End(End::upstream(detail).of_toolshed(index)));
    }
    shared.log(
        Reason::UpstreamUnavailable,
        &format!("{detail} of toolshed {index}"),
    );
    match broker.roll_back(index, ticket).await {
        Ok(()) => Err(Failure::RolledBack),
        // Its duplicate of the socket went with it, and this process's is closed by now.
        Err(_) if broker.is_gone() => Err(Failure::RolledBack),
        Err(_) => Err(Failure::End(End::upstream("broker-roll-back"))),
    }
}

/// Whether the binding was asked for and not refused.
#[derive(Debug, Default)]
struct Step(std::cell::Cell<bool>);

impl Step {
    fn may_be_bound(&self) -> bool {
        self.0.get()
    }
}

type Ready = (WsReader<UpstreamRead>, WsWriter<UpstreamWrite>);

async fn handshake(
    shared: &Shared,
    broker: &Broker,
    socket: DialledSocket,
    step: &Step,
) -> Result<Ready, &'static str> {
    let stream = StdTcpStream::from(socket.descriptor);
    stream.set_nonblocking(true).map_err(|_| "data-socket")?;
    let stream = TcpStream::from_std(stream).map_err(|_| "data-socket")?;
    let keep_alive = KeepAlive {
        user_timeout: shared.settings.tcp_user(),
        ..KeepAlive::default()
    };
    tune_tcp(&stream, &keep_alive).map_err(|_| "data-socket")?;
    let deadline = Instant::now() + shared.settings.data_handshake();
    let pins = vec![CertificateDer::from(socket.certificate)];
    let config = tls::pinned_client_config(pins).map_err(|_| "upstream-certificate")?;
    let stream = tls::connect(stream, config, &socket.server_name, deadline)
        .await
        .map_err(|_| "upstream-tls")?;
    let target = Target {
        host: &socket.server_name,
        path: DATA_PATH,
        origin: None,
    };
    let limits = ReadLimits::new(MAX_STREAM_RECORD_LEN).with_unfragmented_binary();
    let upgraded = upgrade::connect(stream, target, limits, deadline)
        .await
        .map_err(|_| "upstream-upgrade")?;
    let (mut reader, mut writer) = (upgraded.reader, upgraded.writer);

    expect(&mut reader, &mut writer, Incoming::Binary).await?;
    let hello = reader.buffer().payload().to_vec();
    DataHello::verify(&hello, &socket.toolshed).map_err(|_| "upstream-hello")?;

    if broker.is_gone() {
        // The next one may give the same ticket to another open.
        return Err("broker-lost");
    }
    step.0.set(true);
    let (binding, negotiated) = match shared.link.bind(socket.index, socket.ticket, hello).await {
        Ok(bound) => bound,
        Err(Refused::Reason(_)) => {
            step.0.set(false);
            return Err("binding-refused");
        }
        Err(Refused::Gone) => return Err("binding-unknown"),
    };
    let negotiated = Flags::from_canonical(&negotiated).map_err(|_| "negotiated-flags")?;
    let message = json!({
        "type": "router.hello",
        "version": 1,
        "memoryFlags": shared.client_flags.to_value(),
        "negotiatedMemoryFlags": negotiated.to_value(),
        "routerRequestCredit": true,
        "routerTicket": socket.ticket.to_hex(),
        "routerBinding": base64url::encode(&binding),
    });
    writer
        .send_slice(Opcode::Text, message.to_string().as_bytes())
        .await
        .map_err(|_| "upstream-write")?;
    expect(&mut reader, &mut writer, Incoming::Text).await?;
    check_ready(reader.buffer().payload(), &negotiated, &shared.offer_flags)?;
    Ok((reader, writer))
}

/// Reads the next message and requires it to be of the given kind.
async fn expect(
    reader: &mut WsReader<UpstreamRead>,
    writer: &mut WsWriter<UpstreamWrite>,
    kind: Incoming,
) -> Result<(), &'static str> {
    loop {
        match reader.next().await.map_err(|_| "upstream-read")? {
            Incoming::Ping => {
                let payload = reader.control().to_vec();
                writer.pong(&payload).await.map_err(|_| "upstream-write")?;
            }
            Incoming::Pong => {}
            incoming if incoming == kind => return Ok(()),
            _ => return Err("upstream-handshake-order"),
        }
    }
}

/// The toolshed must confirm exactly what the link agent signed, and still support the frozen offer.
fn check_ready(payload: &[u8], negotiated: &Flags, offer: &Flags) -> Result<(), &'static str> {
    let value = json::parse(
        payload,
        &JsonLimits {
            max_bytes: MAX_STREAM_RECORD_LEN,
            ..JsonLimits::default()
        },
    )
    .map_err(|_| "router-ready")?;
    let is = |name: &str, expected: Value| value.get(name) == Some(&expected);
    if !is("type", json!("router.ready"))
        || !is("version", json!(1))
        || !is("routerEncodingNegotiation", json!(true))
        || !is("routerRequestCredit", json!(true))
    {
        return Err("router-ready");
    }
    let flags = |name: &str| {
        value
            .get(name)
            .and_then(|flags| Flags::from_value(flags).ok())
    };
    if flags("negotiatedMemoryFlags").as_ref() != Some(negotiated) {
        return Err("router-ready-echo");
    }
    match flags("memoryFlags") {
        Some(endpoint) if offer.is_supported_by(&endpoint) => Ok(()),
        _ => Err("router-ready-support"),
    }
}
