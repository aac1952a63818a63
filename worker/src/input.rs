//! What the client sends: whole messages or records, controls for the router itself, and requests for the toolsheds.
//!
//! One message is worked on at a time, in the order of arrival. Ordinary data is forwarded record by record as it comes;
//! controls are assembled, because the router has to read them. Whatever cannot go on now (no request credit, a session
//! behind its watch mutation, a full request table) stops the reading of this client, for at most `admission`.

mod requests;

use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;

use memory_transport::{Buffer, Incoming, ReadLimits, WsReader};
use memory_wire::envelope::{self, ENVELOPE_MAGIC};
use memory_wire::json::JsonLimits;
use memory_wire::message::{self, MAX_EXPANDED_LEN, Message};
use memory_wire::reason::Reason;
use memory_wire::stream::{
    BodyAssembler, BodyProgress, Direction, Header, MAX_STREAM_RECORD_LEN, Record, Route,
    decode_record,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::ClientRead;
use crate::connection::Shared;
use crate::controls::{self, Body, Framing, is_control};
use crate::end::End;
use crate::listen::{listen, read_end};
use crate::meter::count;
use crate::opener::Open;
use crate::pace::{self, Pace, UploadClock};
use crate::times::Times;
use crate::upstream::BodyTurn;
use requests::class_of;

/// Bytes of a message in the credited mode: what is over the bound of a record by less is refused as a record.
const MAX_RECORD_MESSAGE: usize = 2 * MAX_STREAM_RECORD_LEN;

/// First four bytes of a record.
const RECORD_MAGIC: &[u8; 4] = b"mrt\x01";

/// The upload in progress.
enum Upload {
    None,
    /// A control, assembled; the header's own text is kept to compare the message with it.
    Assemble {
        body: BodyAssembler,
        header: Vec<u8>,
    },
    /// Ordinary data on its way to a toolshed.
    Forward {
        turn: BodyTurn,
        progress: BodyProgress,
    },
    /// The body of a refused request.
    Discard {
        progress: BodyProgress,
    },
}

/// The reading side of one connection.
pub(crate) struct Input {
    shared: Rc<Shared>,
    opens: mpsc::UnboundedSender<Open>,
    framing: Framing,
    upload: Upload,
    /// When the upload in progress has to be complete.
    upload_clock: Option<UploadClock>,
    pace: Pace,
    /// When the last message, or the header of one in records, was complete.
    arrived: Instant,
    authentication_began: bool,
    spare: Buffer,
}

impl Input {
    pub(crate) fn new(shared: Rc<Shared>, opens: mpsc::UnboundedSender<Open>) -> Self {
        Self {
            pace: Pace::new(
                shared.settings.max_messages_per_second,
                &shared.ledger.messages,
            ),
            arrived: Instant::now(),
            shared,
            opens,
            framing: Framing::Legacy,
            upload: Upload::None,
            upload_clock: None,
            authentication_began: false,
            spare: Buffer::new(),
        }
    }

    /// Works on what arrives until the connection ends.
    pub(crate) async fn run(
        &mut self,
        reader: &mut WsReader<ClientRead>,
        heard: &dyn Fn(bool),
    ) -> Result<Infallible, End> {
        reader.keep_memory();
        loop {
            self.pause().await?;
            heard(true);
            let incoming = self.next(reader, heard).await?;
            heard(false);
            self.shared.busy();
            self.shared.meter.bytes_in.set(reader.received());
            match incoming {
                Incoming::Text => {
                    self.begin_message();
                    self.text(reader.buffer().payload()).await?;
                    if matches!(self.framing, Framing::Credited) {
                        // Nothing but records from now on.
                        reader.set_limits(
                            ReadLimits::new(MAX_RECORD_MESSAGE).with_unfragmented_binary(),
                        );
                    }
                }
                Incoming::Binary => self.binary(reader).await?,
                Incoming::Ping => {
                    self.shared.output.owe_pong(reader.control());
                }
                Incoming::Pong => {}
                Incoming::Close { .. } => {
                    return Err(End::new(Reason::ClientClosed, "close-frame"));
                }
            }
        }
    }

    /// The next message; returns owed credit and spare memory before it really waits.
    async fn next(
        &mut self,
        reader: &mut WsReader<ClientRead>,
        heard: &dyn Fn(bool),
    ) -> Result<Incoming, End> {
        let shared = Rc::clone(&self.shared);
        let spare = &mut self.spare;
        let wait = async {
            tokio::select! {
                biased;
                incoming = reader.next() => return incoming,
                () = std::future::ready(()) => shared.output.flush_credit(),
            }
            loop {
                tokio::select! {
                    biased;
                    incoming = listen(reader, heard) => return incoming,
                    () = shared.quiet.notified() => {
                        reader.shrink();
                        spare.shrink();
                    }
                }
            }
        };
        let incoming = match &self.upload_clock {
            None => wait.await,
            Some(clock) => clock.bound(&shared.output, wait).await?,
        };
        incoming.map_err(|error| read_end(&error))
    }

    // --- pauses ---

    /// Waits while nothing more may be read.
    async fn pause(&mut self) -> Result<(), End> {
        if !self.shared.output.has_room() {
            let shared = Rc::clone(&self.shared);
            self.patiently("answers-unread", shared.output.room())
                .await?;
        }
        if matches!(self.upload, Upload::None) {
            if self.shared.is_draining() {
                // What is read from here on might be forwarded and not be answered any more.
                return std::future::pending().await;
            }
            if let Some(time) = self.pace.wait() {
                tokio::time::sleep(time).await;
            }
        }
        Ok(())
    }

    /// A message begins.
    fn begin_message(&mut self) {
        self.arrived = Instant::now();
        self.pace.take();
        count(&self.shared.meter.messages_in, 1);
    }

    /// Waits for `event`, for at most `admission`. While it waits the client is not read, so its upload has more time.
    async fn patiently<T>(
        &mut self,
        what: &'static str,
        event: impl Future<Output = T>,
    ) -> Result<T, End> {
        let began = Instant::now();
        let outcome = pace::patiently(&self.shared, what, event).await;
        if let Some(clock) = self.upload_clock.as_mut() {
            clock.excuse(began.elapsed());
        }
        outcome
    }

    // --- whole messages ---

    async fn text(&mut self, text: &[u8]) -> Result<(), End> {
        if matches!(self.framing, Framing::Credited) {
            return Err(End::client("text-in-credited-stream"));
        }
        let message = self.project(text)?;
        self.whole(&message, text).await
    }

    fn project(&self, text: &[u8]) -> Result<Message, End> {
        let limits = JsonLimits {
            max_slots: self.shared.settings.max_frame_slots,
            ..JsonLimits::default()
        };
        message::project(text, &limits).map_err(|error| End::client(error.reason()))
    }

    /// A complete public message, text as sent or as expanded.
    async fn whole(&mut self, message: &Message, text: &[u8]) -> Result<(), End> {
        if !matches!(self.upload, Upload::None) {
            return Err(End::client("message-inside-upload"));
        }
        if is_control(&message.kind) {
            return self.control(message, Body::text(text)).await;
        }
        controls::reject_smuggled(message)?;
        let route = Route::of(message);
        let class = class_of(&route);
        let Some((upstream, _)) = self.admit_data(&route, text.len() as u64).await? else {
            return Ok(());
        };
        self.send_whole(&upstream, class, text, false, &route).await
    }

    async fn binary(&mut self, reader: &mut WsReader<ClientRead>) -> Result<(), End> {
        let payload = reader.buffer().payload();
        if payload.starts_with(RECORD_MAGIC) && !matches!(self.framing, Framing::Legacy) {
            return self.record(reader).await;
        }
        if payload.starts_with(ENVELOPE_MAGIC.get(..4).unwrap_or_default())
            && self.shared.envelopes()
            && !matches!(self.framing, Framing::Credited)
        {
            self.begin_message();
            let opened = self.expand(payload)?;
            return self.whole(&opened.0, &opened.1).await;
        }
        Err(End::client("binary-message"))
    }

    fn expand(&self, payload: &[u8]) -> Result<(Message, Vec<u8>), End> {
        let opened = envelope::decode(payload, MAX_EXPANDED_LEN)
            .map_err(|fault| End::client(fault.reason()))?;
        let message = self.project(&opened.text)?;
        envelope::check_hint(&opened, &message).map_err(|fault| End::client(fault.reason()))?;
        Ok((message, opened.text))
    }

    // --- records ---

    async fn record(&mut self, reader: &mut WsReader<ClientRead>) -> Result<(), End> {
        let len = reader.buffer().len();
        self.shared.output.charge(len)?;
        // The record leaves the reader, so that the wait for a toolshed cannot disturb what is read next.
        let mut record = std::mem::take(&mut self.spare);
        reader.swap_buffer(&mut record);
        let outcome = self.take_record(&mut record).await;
        record.clear();
        reader.swap_buffer(&mut record);
        self.spare = record;
        outcome?;
        self.shared.output.accept(len);
        Ok(())
    }

    async fn take_record(&mut self, record: &mut Buffer) -> Result<(), End> {
        enum Kind {
            Header,
            Chunk(usize),
            Completion,
        }
        let kind =
            match decode_record(record.payload()).map_err(|fault| End::client(fault.reason()))? {
                Record::Header(_) => Kind::Header,
                Record::Chunk(chunk) => Kind::Chunk(chunk.len()),
                Record::Completion => Kind::Completion,
            };
        match kind {
            Kind::Header => self.header(record).await,
            Kind::Chunk(len) => self.chunk(record, len).await,
            Kind::Completion => self.completion(record).await,
        }
    }

    async fn header(&mut self, record: &Buffer) -> Result<(), End> {
        if !matches!(self.upload, Upload::None) {
            return Err(End::client("header-inside-upload"));
        }
        let Ok(Record::Header(json)) = decode_record(record.payload()) else {
            return Err(End::client("record-header"));
        };
        let header = Header::parse(json, Direction::PublicUpload)
            .map_err(|fault| End::client(fault.reason()))?;
        if header.binary && !self.shared.compression() {
            return Err(End::client("binary-without-compression"));
        }
        self.begin_message();
        let mut progress = BodyProgress::new();
        progress
            .begin(header.bytes)
            .map_err(|fault| End::client(fault.reason()))?;
        let allowance = self.shared.settings.upload_allowance(header.bytes);
        self.upload_clock = Some(UploadClock::start(&self.shared.output, allowance));
        if is_control(&header.route.kind) {
            let mut body = BodyAssembler::new();
            body.begin(header.bytes)
                .map_err(|fault| End::client(fault.reason()))?;
            self.upload = Upload::Assemble {
                body,
                header: json.to_vec(),
            };
            return Ok(());
        }
        self.upload = match self
            .admit_data(&header.route, u64::from(header.bytes))
            .await?
        {
            None => Upload::Discard { progress },
            Some((upstream, bytes)) => {
                let turn = self
                    .send_header(
                        &upstream,
                        class_of(&header.route),
                        bytes,
                        header.binary,
                        &header.route,
                    )
                    .await?;
                Upload::Forward { turn, progress }
            }
        };
        Ok(())
    }

    async fn chunk(&mut self, record: &mut Buffer, len: usize) -> Result<(), End> {
        match &mut self.upload {
            Upload::None => Err(End::client("chunk-without-header")),
            Upload::Assemble { body, .. } => {
                let Ok(Record::Chunk(chunk)) = decode_record(record.payload()) else {
                    return Err(End::client("record-chunk"));
                };
                body.chunk(chunk)
                    .map(drop)
                    .map_err(|fault| End::client(fault.reason()))
            }
            Upload::Discard { progress } => progress
                .chunk(len)
                .map(drop)
                .map_err(|fault| End::client(fault.reason())),
            Upload::Forward { turn, progress } => {
                progress
                    .chunk(len)
                    .map_err(|fault| End::client(fault.reason()))?;
                let began = Instant::now();
                let sent = pace::patiently(&self.shared, "request-body", turn.record(record)).await;
                if let Some(clock) = self.upload_clock.as_mut() {
                    clock.excuse(began.elapsed());
                }
                sent?
            }
        }
    }

    async fn completion(&mut self, record: &mut Buffer) -> Result<(), End> {
        let fault = |fault: memory_wire::stream::StreamFault| End::client(fault.reason());
        self.upload_clock = None;
        match std::mem::replace(&mut self.upload, Upload::None) {
            Upload::None => Err(End::client("completion-without-header")),
            Upload::Discard { mut progress } => progress.complete().map(drop).map_err(fault),
            Upload::Forward {
                mut turn,
                mut progress,
            } => {
                progress.complete().map_err(fault)?;
                self.patiently("request-body", turn.record(record)).await?
            }
            Upload::Assemble { mut body, header } => {
                let body = body.complete().map_err(fault)?;
                self.arrived = Instant::now();
                let header = Header::parse(&header, Direction::PublicUpload).map_err(fault)?;
                let (message, text) = if header.binary {
                    let (message, text) = self.expand(&body)?;
                    (message, Some(text))
                } else {
                    (self.project(&body)?, None)
                };
                if !header.route.matches(&message) {
                    return Err(End::client("header-mismatch"));
                }
                let expanded = text.map_or(body.len(), |text| text.len());
                let body = Body {
                    bytes: &body,
                    binary: header.binary,
                    expanded,
                };
                self.control(&message, body).await
            }
        }
    }
}
