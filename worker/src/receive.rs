//! Responses and pushes of one toolshed, made public record by record.
//!
//! Nothing of a message is sent before its header was found to belong to this connection; every chunk goes out as one
//! fragment while the next is still on its way; the last is held until the completion record has arrived, so that the
//! client never sees FIN on a body that did not end well.

use std::rc::Rc;
use std::time::Duration;

use memory_transport::{Buffer, Incoming, WsReadError, WsReader};
use memory_wire::credit::decode_request_credit;
use memory_wire::envelope::ENVELOPE_MAGIC;
use memory_wire::frame::Opcode;
use memory_wire::reason::Reason;
use memory_wire::stream::{
    BodyProgress, Direction, Header, RECORD_PREFIX_LEN, Record, decode_record,
};
use tokio::time::timeout;

use crate::UpstreamRead;
use crate::connection::Shared;
use crate::end::End;
use crate::table::Response;
use crate::upstream::Upstream;

/// First bytes of a request credit record.
const CREDIT_MAGIC: &[u8; 4] = b"mri\x02";

/// How long a lost socket may await the news that its link is lost too: the link agent sees both end at the same moment, and
/// may have as many workers to tell as there are.
pub(crate) const LINK_NEWS: Duration = Duration::from_secs(3);

/// Forwards everything `upstream` sends until it is lost.
pub(crate) async fn run(
    shared: Rc<Shared>,
    upstream: Rc<Upstream>,
    mut reader: WsReader<UpstreamRead>,
) -> Result<(), End> {
    reader.keep_memory();
    let outcome = forward(&shared, &upstream, &mut reader).await;
    upstream.mark_lost();
    let end = match outcome {
        Ok(never) => match never {},
        Err(end) => end.of_toolshed(upstream.index()),
    };
    // One that breaks the protocol ends the connection, used or not: what it sent before is not to be trusted either. One
    // that went with its link matters to nobody who has nothing there: the next open gets another, under the next link.
    if end.reason == Reason::UpstreamLost {
        if upstream.has_lost_link() {
            return Ok(());
        }
        // One that went alone is never replaced, since its ticket is spent, and the toolshed no longer knows this connection:
        // the client would be refused there for now, and for ever.
        let is_needed = shared.table.borrow().depends_on(upstream.index());
        if !is_needed && timeout(LINK_NEWS, upstream.link_lost()).await.is_ok() {
            return Ok(());
        }
    }
    Err(end)
}

async fn forward(
    shared: &Shared,
    upstream: &Upstream,
    reader: &mut WsReader<UpstreamRead>,
) -> Result<std::convert::Infallible, End> {
    let mut held = Buffer::new();
    loop {
        next_record(shared, upstream, reader, true).await?;
        let (mut body, response) = {
            let Record::Header(json) = record(reader)? else {
                return Err(End::violation("body-without-header"));
            };
            let header = Header::parse(json, Direction::PrivateResponse)
                .map_err(|_| End::violation("response-header"))?;
            if header.binary && !shared.compression() {
                return Err(End::violation("binary-without-compression"));
            }
            let response = shared
                .table
                .borrow_mut()
                .admit_response(upstream.index(), &header.route)?;
            // It may have answered a watch mutation.
            shared.answered.notify_waiters();
            let mut progress = BodyProgress::new();
            progress
                .begin(header.bytes)
                .map_err(|_| End::violation("response-length"))?;
            (
                Body {
                    progress,
                    binary: header.binary,
                    first: true,
                },
                response,
            )
        };
        body.forward(shared, upstream, reader, &mut held, response)
            .await?;
    }
}

/// The message being made public.
struct Body {
    progress: BodyProgress,
    binary: bool,
    first: bool,
}

impl Body {
    async fn forward(
        &mut self,
        shared: &Shared,
        upstream: &Upstream,
        reader: &mut WsReader<UpstreamRead>,
        held: &mut Buffer,
        response: Response,
    ) -> Result<(), End> {
        // Taken with the first chunk in hand, never on the promise of one.
        next_record(shared, upstream, reader, false).await?;
        let turn = shared.output.turn().await;
        let mut timed = match &response {
            Response::Answer { timed, .. } => *timed,
            Response::Revoked { .. } | Response::Push => None,
        };
        // The first byte of an answer is on its way.
        let mut begun = || {
            if let Some(timed) = timed.take() {
                shared.meter.done(timed);
            }
        };
        loop {
            let Record::Chunk(chunk) = record(reader)? else {
                return Err(End::violation("response-chunk-expected"));
            };
            if self.first && self.binary && !chunk.starts_with(&ENVELOPE_MAGIC) {
                return Err(End::violation("binary-without-envelope"));
            }
            self.progress
                .chunk(chunk.len())
                .map_err(|_| End::violation("response-too-long"))?;
            let opcode = match (self.first, self.binary) {
                (true, true) => Opcode::Binary,
                (true, false) => Opcode::Text,
                (false, _) => Opcode::Continuation,
            };
            self.first = false;
            if self.progress.remaining() > 0 {
                let buffer = reader.buffer();
                buffer.drop_front(RECORD_PREFIX_LEN);
                turn.fragment(opcode, false, buffer).await?;
                begun();
                next_record(shared, upstream, reader, false).await?;
                continue;
            }
            reader.swap_buffer(held);
            next_record(shared, upstream, reader, false).await?;
            if !matches!(record(reader)?, Record::Completion) {
                return Err(End::violation("response-completion-expected"));
            }
            self.progress
                .complete()
                .map_err(|_| End::violation("response-completion"))?;
            // Before the client can see the answer: its next request may already use the session.
            shared.table.borrow_mut().complete_response(response);
            shared.answered.notify_waiters();
            held.drop_front(RECORD_PREFIX_LEN);
            turn.fragment(opcode, true, held).await?;
            begun();
            reader.swap_buffer(held);
            held.clear();
            return Ok(());
        }
    }
}

fn record(reader: &mut WsReader<UpstreamRead>) -> Result<Record<'_>, End> {
    decode_record(reader.buffer().payload()).map_err(|_| End::violation("response-record"))
}

/// Reads the next record, consuming credit and control frames on the way. `idle` is true between messages, where
/// memory that a burst needed may be given back.
async fn next_record(
    shared: &Shared,
    upstream: &Upstream,
    reader: &mut WsReader<UpstreamRead>,
    idle: bool,
) -> Result<(), End> {
    loop {
        let incoming = tokio::select! {
            biased;
            incoming = reader.next() => incoming.map_err(|error| read_end(&error))?,
            () = shared.quiet.notified(), if idle => {
                reader.shrink();
                continue;
            }
            () = upstream.gone(), if idle => return Err(End::upstream("upstream-gone")),
        };
        match incoming {
            Incoming::Binary => {
                let payload = reader.buffer().payload();
                if !payload.starts_with(CREDIT_MAGIC) {
                    shared.busy();
                    return Ok(());
                }
                let amount =
                    decode_request_credit(payload).map_err(|_| End::violation("request-credit"))?;
                upstream.grant(amount)?;
            }
            Incoming::Text => return Err(End::violation("upstream-text")),
            Incoming::Ping => {
                upstream.owe_pong(reader.control());
            }
            Incoming::Pong => {}
            Incoming::Close { .. } => return Err(End::upstream("upstream-closed")),
        }
    }
}

/// What a failure to read says about the toolshed.
fn read_end(error: &WsReadError) -> End {
    match error {
        WsReadError::TooLarge { .. } | WsReadError::Frame(_) | WsReadError::FragmentedBinary => {
            End::violation("upstream-frame")
        }
        WsReadError::Io(_)
        | WsReadError::EndOfStream
        | WsReadError::Truncated
        | WsReadError::Ended => End::upstream("upstream-read"),
    }
}
