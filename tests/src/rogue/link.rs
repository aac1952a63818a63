//! The rogue's end of a control link.

use std::sync::Arc;

use memory_transport::Incoming;
use memory_wire::frame::Opcode;
use memory_wire::ids::Nonce;
use memory_wire::records::{
    ControlRequest, ControlResponse, LINK_ACKNOWLEDGED, Operation, ToolshedHello, attach,
};

use super::{LinkConduct, Shared, Socket};
use crate::stage::{UNKNOWN_SPACE, identity};

pub(super) async fn serve(shared: Arc<Shared>, mut socket: Socket) -> Option<()> {
    let (flags, conduct) = {
        let orders = shared.orders();
        (orders.flags.canonical(), orders.link)
    };
    let input = ToolshedHello {
        toolshed: shared.identity.did(),
        nonce: Nonce::new(shared.draw_bytes()),
        issued: shared.now(),
        flags,
    }
    .signing_input()
    .ok()?;
    let signature = if conduct == LinkConduct::ForgedGreeting {
        identity(UNKNOWN_SPACE).ok()?.sign(&input)
    } else {
        shared.identity.sign(&input)
    };
    binary(&mut socket, &attach(input, signature)).await?;
    receive(&mut socket).await?;
    let acknowledgement = if conduct == LinkConduct::WrongAcknowledgement {
        *b"rpo2"
    } else {
        LINK_ACKNOWLEDGED
    };
    binary(&mut socket, &acknowledgement).await?;
    shared.seen().links += 1;
    loop {
        let request = tokio::select! {
            request = receive(&mut socket) => request?,
            () = shared.unlink.notified() => return None,
        };
        let request = ControlRequest::decode(&request).ok()?;
        answer(&shared, &mut socket, &request).await?;
    }
}

async fn answer(shared: &Shared, socket: &mut Socket, request: &ControlRequest) -> Option<()> {
    let conduct = shared.orders().link;
    let mut response = ControlResponse {
        sequence: request.sequence,
        status: 0,
        payload: Vec::new(),
    };
    if request.operation == Operation::Ticket {
        shared.seen().tickets += 1;
        response.payload = shared.draw_bytes().to_vec();
        if conduct == LinkConduct::ShortTicket {
            response.payload.pop();
        }
    }
    match conduct {
        LinkConduct::WrongSequence => response.sequence += 1,
        LinkConduct::Text => {
            let sent = socket.writer.send_slice(Opcode::Text, b"mls1").await;
            return sent.ok();
        }
        LinkConduct::Huge => return binary(socket, &[b'm'; 5000]).await,
        _ => {}
    }
    let bytes = response.encode().ok()?;
    binary(socket, &bytes).await?;
    if conduct == LinkConduct::Unasked {
        response.sequence += 1;
        binary(socket, &response.encode().ok()?).await?;
    }
    Some(())
}

/// The next binary message. Cancel-safe as long as nothing is to be answered.
async fn receive(socket: &mut Socket) -> Option<Vec<u8>> {
    loop {
        match socket.reader.next().await.ok()? {
            Incoming::Binary => return Some(socket.reader.buffer().payload().to_vec()),
            Incoming::Ping => {
                let payload = socket.reader.control().to_vec();
                socket.writer.pong(&payload).await.ok()?;
            }
            Incoming::Pong => {}
            Incoming::Text | Incoming::Close { .. } => return None,
        }
    }
}

async fn binary(socket: &mut Socket, bytes: &[u8]) -> Option<()> {
    socket.writer.send_slice(Opcode::Binary, bytes).await.ok()
}
