//! Making a link: dial, TLS, upgrade, then greeting, challenge and acknowledgement (`docs/protocol.md` section 6.1).

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use memory_config::Toolshed;
use memory_transport::{
    Incoming, KeepAlive, ReadLimits, Target, WebSocket, WsReadError, tls, tune_tcp, upgrade,
};
use memory_wire::Did;
use memory_wire::codec::MAX_RECORD_LEN;
use memory_wire::flags::Flags;
use memory_wire::frame::Opcode;
use memory_wire::ids::EpochId;
use memory_wire::records::{LINK_ACKNOWLEDGED, RecordError, ToolshedHello};
use memory_wire::upgrade::LINK_PATH;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::client::TlsStream;

use crate::agent::{Agent, MAX_HELLO_AGE};
use crate::clock::Moment;
use crate::entropy::random;
use crate::error::{LinkFault, Named};

/// A WebSocket to a toolshed.
pub(crate) type Socket = WebSocket<TlsStream<TcpStream>>;

/// A link that the toolshed has acknowledged.
pub(crate) struct Established {
    pub(crate) socket: Socket,
    pub(crate) epoch: EpochId,
    pub(crate) flags: Flags,
}

/// How long a handshake may take, and when a dead peer is given up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DialTimes {
    pub(crate) handshake: Duration,
    pub(crate) tcp_user: Duration,
}

/// Makes a link under a fresh epoch.
///
/// # Errors
/// [`LinkFault`].
pub(crate) async fn establish(
    agent: &RefCell<Agent>,
    (index, toolshed): (u16, &Toolshed),
    config: Arc<ClientConfig>,
    times: DialTimes,
) -> Result<Established, LinkFault> {
    let deadline = Instant::now() + times.handshake;
    let made = timeout_at(deadline, async {
        let (mut socket, hello) = greet(toolshed, config, times, deadline).await?;
        let hello = ToolshedHello::verify(&hello, &toolshed.did)
            .map_err(|fault| judge_hello(&hello, &toolshed.did, fault))?;
        let skew = Moment::now().skew(hello.issued);
        if let Some(history) = agent.borrow().links.history(index) {
            history.skew.set(Some(skew));
        }
        if skew.unsigned_abs() > MAX_HELLO_AGE {
            return Err(LinkFault::HelloAge(skew));
        }
        let flags = Flags::from_canonical(&hello.flags).map_err(LinkFault::Flags)?;
        agent
            .borrow()
            .links
            .judge(&flags)
            .map_err(LinkFault::Unsuitable)?;
        let epoch = EpochId::new(random().ok_or(LinkFault::Random)?);
        let challenge = agent
            .borrow()
            .signer
            .link_challenge(&toolshed.did, &epoch, &hello.nonce);
        let challenge = challenge.map_err(LinkFault::Encode)?;
        socket
            .writer
            .send_slice(Opcode::Binary, &challenge)
            .await
            .map_err(LinkFault::Write)?;
        match receive(&mut socket).await {
            Ok(message) if message == LINK_ACKNOWLEDGED => {}
            Ok(_) => return Err(LinkFault::Acknowledgement),
            // It says nothing of the reason to a router that it does not know.
            Err(LinkFault::Closed | LinkFault::Read(WsReadError::EndOfStream)) => {
                return Err(LinkFault::TurnedAway);
            }
            Err(fault) => return Err(fault),
        }
        Ok(Established {
            socket,
            epoch,
            flags,
        })
    });
    made.await.map_err(|_| LinkFault::Timeout)?
}

/// Why a greeting is not the listed toolshed's: somebody else's, or nobody's.
fn judge_hello(record: &[u8], listed: &Did, fault: RecordError) -> LinkFault {
    match crate::probe::signer_of(record) {
        Some(found) if found != *listed => LinkFault::OtherIdentity(Some(Box::new(Named {
            listed: *listed,
            found,
        }))),
        _ => LinkFault::Hello(fault),
    }
}

/// Dials a toolshed and takes its greeting, which is not judged yet. The toolshed knows nothing of the router so far.
pub(crate) async fn greet(
    toolshed: &Toolshed,
    config: Arc<ClientConfig>,
    times: DialTimes,
    deadline: Instant,
) -> Result<(Socket, Vec<u8>), LinkFault> {
    let mut socket = connect(toolshed, config, times, deadline).await?;
    let hello = receive(&mut socket).await?;
    Ok((socket, hello))
}

async fn connect(
    toolshed: &Toolshed,
    config: Arc<ClientConfig>,
    times: DialTimes,
    deadline: Instant,
) -> Result<Socket, LinkFault> {
    let stream = TcpStream::connect(toolshed.address)
        .await
        .map_err(LinkFault::Dial)?;
    let keep_alive = KeepAlive {
        user_timeout: times.tcp_user,
        ..KeepAlive::default()
    };
    tune_tcp(&stream, &keep_alive).map_err(LinkFault::Dial)?;
    let stream = tls::connect(stream, config, &toolshed.server_name, deadline)
        .await
        .map_err(LinkFault::Tls)?;
    let host = toolshed.address.to_string();
    let target = Target {
        host: &host,
        path: LINK_PATH,
        origin: None,
    };
    let limits = ReadLimits::new(MAX_RECORD_LEN);
    upgrade::connect(stream, target, limits, deadline)
        .await
        .map_err(LinkFault::Upgrade)
}

/// The next binary message; pings before it are answered.
async fn receive(socket: &mut Socket) -> Result<Vec<u8>, LinkFault> {
    loop {
        match socket.reader.next().await.map_err(LinkFault::Read)? {
            Incoming::Binary => return Ok(socket.reader.buffer().payload().to_vec()),
            Incoming::Ping => {
                let payload = socket.reader.control().to_vec();
                socket
                    .writer
                    .pong(&payload)
                    .await
                    .map_err(LinkFault::Write)?;
            }
            Incoming::Pong => {}
            Incoming::Text => return Err(LinkFault::NotBinary),
            Incoming::Close { .. } => return Err(LinkFault::Closed),
        }
    }
}
