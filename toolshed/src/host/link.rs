//! A control link on its socket: handshake, then requests answered one after another (`docs/protocol.md` section 6.1).
//!
//! A request is answered before the next one is read, so the bound of outstanding requests holds by itself: what a router
//! sends ahead stays in the socket's buffers.

use super::audit::{About, Verdict};
use super::capabilities;
use super::closer::{Closer, Closing};
use super::shared::{self, Shared};
use super::state::LinkId;
use memory_transport::{Incoming, WebSocket, WsReader, WsWriter};
use memory_wire::Did;
use memory_wire::frame::Opcode;
use memory_wire::ids::{EpochId, Nonce};
use memory_wire::records::{
    ControlRequest, LINK_ACKNOWLEDGED, LinkChallenge, ToolshedHello, attach,
};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::time::{Instant, timeout, timeout_at};

/// Time given to a peer to take the close frame.
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves a link until it ends.
pub(crate) async fn run<S>(
    shared: Rc<Shared>,
    socket: WebSocket<S>,
    peer: Ipv4Addr,
    deadline: Instant,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let WebSocket {
        mut reader,
        mut writer,
    } = socket;
    let closer = Rc::new(Closer::new());
    let handshake = handshake(&shared, &mut reader, &mut writer, peer, &closer);
    let outcome = timeout_at(deadline, handshake)
        .await
        .unwrap_or(Err("handshake-timeout"));
    match outcome {
        Err(reason) => {
            shared
                .state
                .borrow_mut()
                .audit
                .verdict(Verdict::LinkDenied, About::default(), reason);
        }
        Ok(link) => {
            let reason = serve(&shared, &mut reader, &mut writer, link, &closer).await;
            let now = shared.now();
            shared.state.borrow_mut().close_link(link, reason, now);
        }
    }
    let closing = closer.closing().unwrap_or(Closing::ENDED);
    // The peer may be gone.
    let _ = timeout(GOODBYE_TIMEOUT, writer.close(closing.code, closing.text)).await;
    let _ = timeout(GOODBYE_TIMEOUT, writer.shutdown()).await;
}

/// Greets, judges the answer, records the epoch and acknowledges.
async fn handshake<S>(
    shared: &Shared,
    reader: &mut WsReader<ReadHalf<S>>,
    writer: &mut WsWriter<WriteHalf<S>>,
    peer: Ipv4Addr,
    closer: &Rc<Closer>,
) -> Result<LinkId, &'static str>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let nonce = shared::nonce().ok_or("no-randomness")?;
    let greeting = {
        let state = shared.state.borrow();
        let flags = capabilities::of_link(&state.settings.flags).map_err(|_| "own-flags")?;
        let hello = ToolshedHello {
            toolshed: state.settings.identity.did(),
            nonce,
            issued: shared.now(),
            flags: flags.canonical(),
        };
        let input = hello.signing_input().map_err(|_| "own-flags")?;
        let signature = state.settings.identity.sign(&input);
        attach(input, signature)
    };
    writer
        .send_slice(Opcode::Binary, &greeting)
        .await
        .map_err(|_| "socket-write")?;
    loop {
        match reader.next().await.map_err(|error| error.reason())? {
            Incoming::Binary => break,
            Incoming::Ping => {
                let payload = reader.control().to_vec();
                writer.pong(&payload).await.map_err(|_| "socket-write")?;
            }
            Incoming::Pong => {}
            Incoming::Text => return Err("link-text"),
            Incoming::Close { .. } => return Err("link-lost"),
        }
    }
    let (router, epoch) = judge(shared, reader.buffer().payload(), &nonce, peer)?;
    let now = shared.now();
    let link = shared
        .state
        .borrow_mut()
        .admit_link(router, epoch, Rc::clone(closer), now)
        .map_err(|error| error.reason())?;
    if writer
        .send_slice(Opcode::Binary, &LINK_ACKNOWLEDGED)
        .await
        .is_err()
    {
        shared.state.borrow_mut().close_link(link, "link-lost", now);
        return Err("socket-write");
    }
    Ok(link)
}

/// Whose answer it is, and for which epoch.
fn judge(
    shared: &Shared,
    answer: &[u8],
    nonce: &Nonce,
    peer: Ipv4Addr,
) -> Result<(Did, EpochId), &'static str> {
    let state = shared.state.borrow();
    let settings = &state.settings;
    // The record names its signer, but inside the signature: each router that may come from here is tried.
    let challenge = settings
        .routers_at(peer)
        .find_map(|router| LinkChallenge::verify(answer, router).ok())
        .ok_or("link-signature")?;
    if challenge.deployment != settings.deployment {
        return Err("link-deployment");
    }
    if challenge.toolshed != settings.identity.did() {
        return Err("link-toolshed");
    }
    if challenge.nonce != *nonce {
        return Err("link-nonce");
    }
    Ok((challenge.router, challenge.epoch))
}

/// Answers requests until the link ends; why it did.
async fn serve<S>(
    shared: &Shared,
    reader: &mut WsReader<ReadHalf<S>>,
    writer: &mut WsWriter<WriteHalf<S>>,
    link: LinkId,
    closer: &Closer,
) -> &'static str
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let incoming = tokio::select! {
            biased;
            _ = closer.closed() => return "link-closed",
            incoming = reader.next() => incoming,
        };
        let answer = match incoming {
            Err(error) => return error.reason(),
            Ok(Incoming::Pong) => continue,
            Ok(Incoming::Text) => return "link-text",
            Ok(Incoming::Close { .. }) => return "link-lost",
            Ok(Incoming::Ping) => (Opcode::Pong, reader.control().to_vec()),
            Ok(Incoming::Binary) => match answer(shared, reader.buffer().payload(), link) {
                Ok(answer) => (Opcode::Binary, answer),
                Err(reason) => return reason,
            },
        };
        tokio::select! {
            biased;
            _ = closer.closed() => return "link-closed",
            sent = writer.send_slice(answer.0, &answer.1) => if sent.is_err() {
                return "socket-write";
            }
        }
    }
}

fn answer(shared: &Shared, request: &[u8], link: LinkId) -> Result<Vec<u8>, &'static str> {
    let request = ControlRequest::decode(request).map_err(|_| "control-malformed")?;
    let fresh = shared::ticket().ok_or("no-randomness")?;
    let now = shared.now();
    let response = shared
        .state
        .borrow_mut()
        .control(link, &request, fresh, now)?;
    response.encode().map_err(|_| "control-malformed")
}
