//! What goes to the client: one message at a time, control frames between its fragments.
//!
//! Two locks, always taken in this order: *message* (who may send a data message now, first come first served) and
//! *frames* (the socket itself, held for one frame). A response that streams in owns the message lock from its first
//! fragment to the frame with FIN; answers made here and upload credit wait in a queue for it; pings and the close
//! frame need the frame lock alone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use memory_transport::{Buffer, WsWriter};
use memory_wire::credit::{UploadReceiver, encode_upload_credit};
use memory_wire::frame::Opcode;
use memory_wire::reason::Reason;
use tokio::sync::{Mutex, MutexGuard, Notify};

use crate::ClientWrite;
use crate::end::End;

/// Bytes of queued answers at which the client's input pauses. A single answer is at most a few hundred bytes.
const MAX_QUEUED_LEN: usize = 64 * 1024;

/// The right to send one data message; released on drop.
#[derive(Debug)]
pub(crate) struct MessageTurn<'a> {
    output: &'a Output,
    _turn: MutexGuard<'a, ()>,
}

impl MessageTurn<'_> {
    /// Sends one fragment; the header is written in place before the payload.
    pub(crate) async fn fragment(
        &self,
        opcode: Opcode,
        fin: bool,
        payload: &mut Buffer,
    ) -> Result<(), End> {
        self.output
            .bytes
            .set(self.output.bytes.get().saturating_add(payload.len() as u64));
        let mut frames = self.output.frames.lock().await;
        frames.frame(opcode, fin, payload).await.map_err(|_| lost())
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Output {
    frames: Mutex<WsWriter<ClientWrite>>,
    message: Mutex<()>,
    queue: RefCell<VecDeque<String>>,
    queued: Cell<usize>,
    credit: RefCell<Option<UploadReceiver>>,
    window: Cell<u32>,
    flush_credit: Cell<bool>,
    wake: Notify,
    room: Notify,
    bytes: Cell<u64>,
}

impl Output {
    pub(crate) fn new(writer: WsWriter<ClientWrite>) -> Self {
        Self {
            frames: Mutex::new(writer),
            message: Mutex::new(()),
            queue: RefCell::new(VecDeque::new()),
            queued: Cell::new(0),
            credit: RefCell::new(None),
            window: Cell::new(0),
            flush_credit: Cell::new(false),
            wake: Notify::new(),
            room: Notify::new(),
            bytes: Cell::new(0),
        }
    }

    /// Payload bytes sent so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Waits for the turn to send one message.
    pub(crate) async fn turn(&self) -> MessageTurn<'_> {
        MessageTurn {
            output: self,
            _turn: self.message.lock().await,
        }
    }

    /// Queues a complete text message made by the router.
    pub(crate) fn send_text(&self, text: String) {
        self.queued.set(self.queued.get() + text.len());
        self.queue.borrow_mut().push_back(text);
        self.wake.notify_one();
    }

    /// Waits until the queue of answers has room again.
    pub(crate) async fn room(&self) {
        while self.queued.get() >= MAX_QUEUED_LEN {
            self.room.notified().await;
        }
    }

    /// Whether [`Self::room`] returns at once.
    pub(crate) fn has_room(&self) -> bool {
        self.queued.get() < MAX_QUEUED_LEN
    }

    /// Starts credited uploads with a window of `window` bytes.
    pub(crate) fn start_credit(&self, window: u32) -> Result<(), End> {
        let receiver =
            UploadReceiver::new(window).map_err(|_| End::new(Reason::Internal, "upload-window"))?;
        *self.credit.borrow_mut() = Some(receiver);
        self.window.set(window);
        Ok(())
    }

    /// Charges a record as it arrives; `len` is its complete length on the wire.
    pub(crate) fn charge(&self, len: usize) -> Result<(), End> {
        match self.credit.borrow_mut().as_mut() {
            Some(credit) => credit
                .receive(len)
                .map_err(|_| End::client("upload-window")),
            None => Ok(()),
        }
    }

    /// Returns the credit of a record that was taken over completely.
    pub(crate) fn accept(&self, len: usize) {
        if let Some(credit) = self.credit.borrow_mut().as_mut() {
            credit.accept(len);
            if credit.owed() >= self.window.get() / 4 {
                self.wake.notify_one();
            }
        }
    }

    /// The input has nothing more to read: return what is owed now, or the client could wait for ever.
    pub(crate) fn flush_credit(&self) {
        let owed = self
            .credit
            .borrow()
            .as_ref()
            .is_some_and(|credit| credit.owed() > 0);
        if owed {
            self.flush_credit.set(true);
            self.wake.notify_one();
        }
    }

    /// Sends queued answers and owed credit for as long as the connection lives.
    pub(crate) async fn pump(self: Rc<Self>) -> Result<(), End> {
        loop {
            self.wake.notified().await;
            let turn = self.turn().await;
            loop {
                if let Some(amount) = self.due_credit() {
                    self.frames
                        .lock()
                        .await
                        .send_slice(Opcode::Binary, &encode_upload_credit(amount))
                        .await
                        .map_err(|_| lost())?;
                    continue;
                }
                let Some(text) = self.queue.borrow_mut().pop_front() else {
                    break;
                };
                self.bytes
                    .set(self.bytes.get().saturating_add(text.len() as u64));
                self.frames
                    .lock()
                    .await
                    .send_slice(Opcode::Text, text.as_bytes())
                    .await
                    .map_err(|_| lost())?;
                self.queued
                    .set(self.queued.get().saturating_sub(text.len()));
                if self.has_room() {
                    self.room.notify_waiters();
                }
            }
            drop(turn);
        }
    }

    fn due_credit(&self) -> Option<u32> {
        let mut credit = self.credit.borrow_mut();
        credit.as_mut()?.take_due(self.flush_credit.take())
    }

    /// Sends a WebSocket ping, unless a frame is blocked on the socket right now.
    pub(crate) async fn ping(&self) -> Result<(), End> {
        match self.frames.try_lock() {
            Ok(mut frames) => frames.ping(&[]).await.map_err(|_| lost()),
            Err(_) => Ok(()),
        }
    }

    /// Answers a ping of the client.
    pub(crate) async fn pong(&self, payload: &[u8]) -> Result<(), End> {
        self.frames
            .lock()
            .await
            .pong(payload)
            .await
            .map_err(|_| lost())
    }

    /// Sends everything queued so far, then the close frame. Called once, after every other user of the output has ended.
    pub(crate) async fn close(&self, code: u16, reason: &str) {
        let mut frames = self.frames.lock().await;
        if frames.close(code, reason).await.is_ok() {
            let _ = frames.flush().await;
        }
    }

    /// Ends the TLS stream, telling the peer so.
    pub(crate) async fn shutdown(&self) {
        let _ = self.frames.lock().await.shutdown().await;
    }
}

/// The client's socket failed under a write: it vanished.
fn lost() -> End {
    End::new(Reason::ClientLost, "client-write")
}
