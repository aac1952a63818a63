//! A data socket: handshake, then one task that reads requests and one that writes answers (`docs/protocol.md` sections 5
//! and 6.3).

use super::audit::{About, Verdict};
use super::bind::Bound;
use super::closer::Closing;
use super::link::GOODBYE_TIMEOUT;
use super::outlet::{Outlet, Step};
use super::shared::{self, Shared};
use memory_transport::{Buffer, Incoming, WebSocket, WsReader, WsWriter};
use memory_wire::frame::Opcode;
use memory_wire::records::{DataHello, attach};
use memory_wire::stream::{BodyAssembler, Direction, Header, Record, decode_record};
use std::net::Ipv4Addr;
use std::rc::Rc;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::task::spawn_local;
use tokio::time::{Instant, timeout, timeout_at};

/// Serves a data socket until it ends.
pub(crate) async fn run<S>(
    shared: Rc<Shared>,
    socket: WebSocket<S>,
    peer: Ipv4Addr,
    deadline: Instant,
) where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let WebSocket {
        mut reader,
        mut writer,
    } = socket;
    let handshake = handshake(&shared, &mut reader, &mut writer, peer);
    let outcome = timeout_at(deadline, handshake)
        .await
        .unwrap_or(Err("handshake-timeout"));
    let bound = match outcome {
        Ok(bound) => bound,
        Err(reason) => {
            deny(&shared, reason);
            return say_goodbye(&mut writer, Closing::ENDED).await;
        }
    };
    let ready = timeout_at(
        deadline,
        writer.send_slice(Opcode::Text, bound.ready.as_bytes()),
    );
    if !matches!(ready.await, Ok(Ok(()))) {
        shared
            .state
            .borrow_mut()
            .end_socket(bound.backend, "socket-write", None);
        return;
    }
    let outlet = Rc::clone(&bound.outlet);
    let writing = spawn_local(write(Rc::clone(&outlet), writer));
    let reason = tokio::select! {
        biased;
        // Whoever closed it has given the reason already.
        _ = outlet.closer.closed() => "socket-closed",
        reason = read(&shared, &mut reader, &bound) => reason,
    };
    shared
        .state
        .borrow_mut()
        .end_socket(bound.backend, reason, None);
    outlet.close(Closing::ENDED);
    // It ends by itself, within the time a good-bye may take. Its fault is the socket's, which is over anyway.
    let _ = writing.await;
}

fn deny(shared: &Shared, reason: &str) {
    let mut state = shared.state.borrow_mut();
    state
        .audit
        .verdict(Verdict::DataDenied, About::default(), reason);
}

/// Greets and binds. The ticket is spent when this succeeds.
async fn handshake<S>(
    shared: &Shared,
    reader: &mut WsReader<ReadHalf<S>>,
    writer: &mut WsWriter<WriteHalf<S>>,
    peer: Ipv4Addr,
) -> Result<Bound, &'static str>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (greeting, record) = {
        let state = shared.state.borrow();
        let greeting = DataHello {
            toolshed: state.settings.identity.did(),
            nonce: shared::nonce().ok_or("no-randomness")?,
            issued: shared.now(),
        };
        let input = greeting.signing_input().map_err(|_| "own-greeting")?;
        let signature = state.settings.identity.sign(&input);
        (greeting, attach(input, signature))
    };
    writer
        .send_slice(Opcode::Binary, &record)
        .await
        .map_err(|_| "socket-write")?;
    loop {
        match reader.next().await.map_err(|error| error.reason())? {
            Incoming::Text => break,
            Incoming::Ping => {
                let payload = reader.control().to_vec();
                writer.pong(&payload).await.map_err(|_| "socket-write")?;
            }
            Incoming::Pong => {}
            Incoming::Binary => return Err("hello-binary"),
            Incoming::Close { .. } => return Err("socket-lost"),
        }
    }
    let hello = reader.buffer().payload();
    let now = shared.now();
    shared.state.borrow_mut().bind(hello, &greeting, peer, now)
}

/// A request whose body is arriving.
struct Arriving {
    bytes: u32,
    /// JSON of its header: parsed again when the body is complete, so that nothing is copied out of it meanwhile.
    header: Vec<u8>,
}

/// Reads and dispatches requests until the socket ends or a rule is broken; which one.
async fn read<R>(shared: &Shared, reader: &mut WsReader<R>, bound: &Bound) -> &'static str
where
    R: AsyncRead + Unpin,
{
    let outlet = &bound.outlet;
    let mut body = BodyAssembler::new();
    let mut arriving = None;
    loop {
        if !body.is_active() {
            outlet.ready().await;
        }
        match reader.next().await {
            Err(error) => return error.reason(),
            Ok(Incoming::Ping) => {
                outlet.pong(reader.control());
                continue;
            }
            Ok(Incoming::Pong) => continue,
            Ok(Incoming::Text) => return "data-text",
            Ok(Incoming::Close { .. }) => return "socket-lost",
            Ok(Incoming::Binary) => {}
        }
        let taken = match decode_record(reader.buffer().payload()) {
            Err(fault) => Err(fault.reason()),
            Ok(Record::Header(json)) => begin(outlet, &mut body, json).map(|next| {
                arriving = Some(next);
            }),
            Ok(Record::Chunk(bytes)) => body.chunk(bytes).map(drop).map_err(|fault| fault.reason()),
            Ok(Record::Completion) => match (body.complete(), arriving.take()) {
                (Ok(whole), Some(arrived)) => {
                    // At the high mark the body waits here, its reservation held.
                    outlet.ready().await;
                    dispatch(shared, bound, &arrived, whole)
                }
                (Err(fault), _) => Err(fault.reason()),
                (Ok(_), None) => Err("no-body"),
            },
        };
        if let Err(reason) = taken {
            return reason;
        }
    }
}

/// Takes up a header: its order, its credit, its length.
fn begin(outlet: &Outlet, body: &mut BodyAssembler, json: &[u8]) -> Result<Arriving, &'static str> {
    let header = Header::parse(json, Direction::PrivateRequest).map_err(|fault| fault.reason())?;
    body.begin(header.bytes).map_err(|fault| fault.reason())?;
    let ordinal = header.request_ordinal.ok_or("header-incomplete")?;
    outlet
        .header(ordinal, header.bytes)
        .map_err(|fault| fault.reason())?;
    Ok(Arriving {
        bytes: header.bytes,
        header: json.to_vec(),
    })
}

/// One turn: from a complete body to the answer in the queue and the credit on its way.
fn dispatch(
    shared: &Shared,
    bound: &Bound,
    arrived: &Arriving,
    body: Vec<u8>,
) -> Result<(), &'static str> {
    let header = Header::parse(&arrived.header, Direction::PrivateRequest)
        .map_err(|fault| fault.reason())?;
    let now = shared.now();
    shared
        .state
        .borrow_mut()
        .request(bound.backend, &header, body, now)?;
    bound.outlet.finish(arrived.bytes);
    shared.note_effects();
    Ok(())
}

/// Writes what the outlet holds until the socket is closed or fails.
async fn write<W: AsyncWrite + Unpin>(outlet: Rc<Outlet>, mut writer: WsWriter<W>) {
    let mut buffer = Buffer::new();
    loop {
        let step = outlet.next(&mut buffer).await;
        let opcode = match step {
            Step::Close(closing) => return say_goodbye(&mut writer, closing).await,
            Step::Pong => Opcode::Pong,
            Step::Record | Step::Completion => Opcode::Binary,
        };
        let sent = tokio::select! {
            biased;
            sent = writer.frame(opcode, true, &mut buffer) => sent,
            // Cut off inside a frame: nothing more can be said to this peer.
            _ = outlet.closer.closed() => return,
        };
        if sent.is_err() {
            return outlet.close(Closing::ENDED);
        }
        if step == Step::Completion {
            outlet.completed();
        }
        if buffer.is_empty() {
            buffer.shrink();
        }
    }
}

async fn say_goodbye<W: AsyncWrite + Unpin>(writer: &mut WsWriter<W>, closing: Closing) {
    // The peer may be gone.
    let _ = timeout(GOODBYE_TIMEOUT, writer.close(closing.code, closing.text)).await;
    let _ = timeout(GOODBYE_TIMEOUT, writer.shutdown()).await;
}
