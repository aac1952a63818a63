//! The send task: an ordered queue, and one for signing in that passes it between two messages; framed as the connection's transport says, records paid for with credit.

use std::sync::{Arc, Mutex, PoisonError};

use memory_transport::{Buffer, WsWriter};
use memory_wire::credit::UploadSender;
use memory_wire::envelope;
use memory_wire::frame::Opcode;
use memory_wire::stream::{self, Header};
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc};

use crate::dial::Write;
use crate::inner::Outgoing;
use crate::{ClientError, Transport};

/// Credit as the receive task feeds it and the send task spends it.
#[derive(Debug)]
pub(crate) struct Credit {
    window: Mutex<UploadSender>,
    changed: Notify,
}

impl Credit {
    pub(crate) fn new(window: u32) -> Result<Self, ClientError> {
        let window =
            UploadSender::new(window).map_err(|_| ClientError::Protocol("upload window"))?;
        Ok(Self {
            window: Mutex::new(window),
            changed: Notify::new(),
        })
    }

    /// Adds an acknowledgement of the router.
    pub(crate) fn add(&self, amount: u32) -> Result<(), ClientError> {
        let result = self
            .window
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .credit(amount);
        self.changed.notify_one();
        result.map_err(|_| ClientError::Protocol("upload credit"))
    }

    /// Waits until the whole record is covered, and spends it.
    async fn spend(&self, len: usize) -> Result<(), ClientError> {
        loop {
            {
                let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
                if window.can_send(len) {
                    return window
                        .spend(len)
                        .map_err(|_| ClientError::Protocol("upload credit"));
                }
            }
            self.changed.notified().await;
        }
    }
}

/// Framing of one connection's uploads.
#[derive(Debug)]
pub(crate) struct Framing {
    pub(crate) transport: Transport,
    /// Whether record bodies may be envelopes.
    pub(crate) compress_records: bool,
    /// Whether whole messages may be envelopes.
    pub(crate) compress_whole: bool,
    pub(crate) credit: Option<Arc<Credit>>,
}

/// Sends what is queued until the connection ends.
pub(crate) async fn run(
    writer: Arc<AsyncMutex<WsWriter<Write>>>,
    framing: Framing,
    mut queue: mpsc::Receiver<Outgoing>,
    mut urgent: mpsc::Receiver<Outgoing>,
) -> Result<(), ClientError> {
    let mut record = Buffer::new();
    loop {
        let next = tokio::select! {
            biased;
            message = urgent.recv() => message,
            message = queue.recv() => message,
        };
        let Some(message) = next else {
            return Ok(());
        };
        let control = is_control(&message.route.kind);
        match framing.transport {
            Transport::Credited => records(&writer, &framing, &message, &mut record).await?,
            Transport::Streamed if !control => {
                records(&writer, &framing, &message, &mut record).await?
            }
            Transport::Streamed | Transport::Legacy => whole(&writer, &framing, &message).await?,
        }
    }
}

/// Messages that the router reads and that go whole where uploads have no credit.
fn is_control(kind: &str) -> bool {
    kind.starts_with("connection.")
        || matches!(
            kind,
            "memory.compression" | "session.open" | "session.watch.set" | "session.watch.add"
        )
}

async fn whole(
    writer: &AsyncMutex<WsWriter<Write>>,
    framing: &Framing,
    message: &Outgoing,
) -> Result<(), ClientError> {
    let envelope = if framing.compress_whole {
        envelope::encode(message.text.as_bytes(), message.route.space.as_deref())
    } else {
        None
    };
    let mut writer = writer.lock().await;
    match envelope {
        Some(envelope) => writer.send_slice(Opcode::Binary, &envelope).await,
        None => {
            writer
                .send_slice(Opcode::Text, message.text.as_bytes())
                .await
        }
    }
    .map_err(|_| lost())
}

async fn records(
    writer: &AsyncMutex<WsWriter<Write>>,
    framing: &Framing,
    message: &Outgoing,
    record: &mut Buffer,
) -> Result<(), ClientError> {
    let envelope = if framing.compress_records {
        envelope::encode(message.text.as_bytes(), message.route.space.as_deref())
    } else {
        None
    };
    let body = envelope.as_deref().unwrap_or(message.text.as_bytes());
    let bytes = u32::try_from(body.len()).map_err(|_| ClientError::Usage("message over 8 MiB"))?;
    let header = Header {
        bytes,
        binary: envelope.is_some(),
        request_ordinal: None,
        route: message.route.clone(),
    };
    let mut encoded = Vec::new();
    header
        .encode_record(&mut encoded)
        .map_err(|_| ClientError::Usage("message header"))?;
    send_record(writer, framing, record, &[&encoded]).await?;
    for chunk in body.chunks(stream::MAX_CHUNK_LEN) {
        send_record(writer, framing, record, &[&stream::chunk_prefix(), chunk]).await?;
    }
    send_record(writer, framing, record, &[&stream::COMPLETION]).await
}

async fn send_record(
    writer: &AsyncMutex<WsWriter<Write>>,
    framing: &Framing,
    record: &mut Buffer,
    parts: &[&[u8]],
) -> Result<(), ClientError> {
    record.clear();
    for part in parts {
        record.extend(part);
    }
    if let Some(credit) = &framing.credit {
        credit.spend(record.len()).await?;
    }
    writer
        .lock()
        .await
        .frame(Opcode::Binary, true, record)
        .await
        .map_err(|_| lost())
}

fn lost() -> ClientError {
    ClientError::Closed(crate::Closed {
        code: None,
        reason: "transport lost".to_owned(),
    })
}
