//! What goes to the client: one message at a time, control frames between its fragments.
//!
//! Two locks, always taken in this order: *message* (who may send a data message now, first come first served) and
//! *frames* (the socket itself, held for one frame). A response that streams in owns the message lock from its first
//! fragment to the frame with FIN; answers made here and upload credit wait in a queue for it; pings and the close
//! frame need the frame lock alone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use memory_transport::{Buffer, WsWriter};
use memory_wire::credit::{UploadReceiver, encode_upload_credit};
use memory_wire::frame::Opcode;
use memory_wire::reason::Reason;
use tokio::sync::{Mutex, MutexGuard, Notify};

use crate::ClientWrite;
use crate::end::End;
use crate::pong::OwedPong;
use crate::stopwatch::Stopwatch;

/// Bytes of queued answers at which the client's input pauses. A single answer is at most a few hundred bytes.
const MAX_QUEUED_LEN: usize = 64 * 1024;

/// How long the last answers wait for their turn.
const LAST_TURN: Duration = Duration::from_millis(500);

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
        let output = self.output;
        output.count(payload.len());
        let mut frames = output.frames.lock().await;
        output.moving(frames.frame(opcode, fin, payload)).await
    }

    /// Sends a whole message that the router made.
    async fn whole(&self, opcode: Opcode, payload: &[u8]) -> Result<(), End> {
        let output = self.output;
        output.count(payload.len());
        let mut frames = output.frames.lock().await;
        output.moving(frames.send_slice(opcode, payload)).await
    }
}

impl Drop for MessageTurn<'_> {
    /// The lock is free before anybody who waits for this can run: there is one thread.
    fn drop(&mut self) {
        self.output.rested.notify_waiters();
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
    /// A message turn has ended.
    rested: Notify,
    pong: OwedPong,
    /// Whether the turn is held for the queue, not for a response.
    pumping: Cell<bool>,
    bytes: Cell<u64>,
    /// A frame waits for the client to take what was sent before.
    blocked: Stopwatch,
    /// Frames that had to wait and then went out: each shows a client that reads.
    taken: Cell<u64>,
    /// Credit is due, and something else stands before it.
    withheld: Stopwatch,
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
            rested: Notify::new(),
            pong: OwedPong::default(),
            pumping: Cell::new(false),
            bytes: Cell::new(0),
            blocked: Stopwatch::default(),
            taken: Cell::new(0),
            withheld: Stopwatch::default(),
        }
    }

    fn count(&self, len: usize) {
        self.bytes.set(self.bytes.get().saturating_add(len as u64));
    }

    /// Writes a frame, and notes the time for which the client does not take it.
    async fn moving<E>(&self, write: impl Future<Output = Result<(), E>>) -> Result<(), End> {
        let mut write = pin!(write);
        let begun = poll_fn(|context| Poll::Ready(write.as_mut().poll(context))).await;
        let written = match begun {
            Poll::Ready(written) => written,
            Poll::Pending => {
                let waiting = self.blocked.run();
                let written = write.await;
                drop(waiting);
                self.taken.set(self.taken.get().wrapping_add(1));
                written
            }
        };
        written.map_err(|_| lost())
    }

    /// How long, in all, frames have waited for the client to read.
    pub(crate) fn blocked(&self) -> Duration {
        self.blocked.total()
    }

    /// How long the frame at the socket has waited for the client to read.
    pub(crate) fn blocked_now(&self) -> Duration {
        self.blocked.current()
    }

    /// Changes whenever the client took a frame that had to wait.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.get()
    }

    /// How long, in all, credit has been due and not sent. The client may have had nothing left to send with.
    pub(crate) fn withheld(&self) -> Duration {
        self.withheld.total()
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
                self.withheld.start();
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
            self.withheld.start();
            self.wake.notify_one();
        }
    }

    /// Sends queued answers and owed credit for as long as the connection lives.
    pub(crate) async fn pump(self: Rc<Self>) -> Result<(), End> {
        loop {
            self.wake.notified().await;
            let turn = self.turn().await;
            self.pumping.set(true);
            let sent = self.send_queued(&turn).await;
            self.pumping.set(false);
            drop(turn);
            sent?;
        }
    }

    async fn send_queued(&self, turn: &MessageTurn<'_>) -> Result<(), End> {
        loop {
            if let Some(amount) = self.due_credit() {
                let record = encode_upload_credit(amount);
                turn.whole(Opcode::Binary, &record).await?;
                self.withheld.stop();
                continue;
            }
            let Some(text) = self.queue.borrow_mut().pop_front() else {
                return Ok(());
            };
            turn.whole(Opcode::Text, text.as_bytes()).await?;
            self.queued
                .set(self.queued.get().saturating_sub(text.len()));
            if self.has_room() {
                self.room.notify_waiters();
            }
        }
    }

    /// Waits until every answer queued so far and every response begun has been sent.
    pub(crate) async fn rested(&self) {
        loop {
            let rested = self.rested.notified();
            if self.is_at_rest() {
                return;
            }
            rested.await;
        }
    }

    /// Whether nothing is queued or half sent.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.queue.borrow().is_empty() && self.message.try_lock().is_ok()
    }

    fn due_credit(&self) -> Option<u32> {
        let mut credit = self.credit.borrow_mut();
        credit.as_mut()?.take_due(self.flush_credit.take())
    }

    /// Sends a WebSocket ping; `false` if a frame is blocked on the socket right now.
    pub(crate) async fn ping(&self) -> Result<bool, End> {
        match self.frames.try_lock() {
            Ok(mut frames) => frames.ping(&[]).await.map(|()| true).map_err(|_| lost()),
            Err(_) => Ok(false),
        }
    }

    /// A ping of the client is to be answered.
    pub(crate) fn owe_pong(&self, payload: &[u8]) {
        self.pong.owe(payload);
    }

    /// Answers pings for as long as the connection lives.
    pub(crate) async fn pongs(self: Rc<Self>) -> Result<(), End> {
        loop {
            let payload = self.pong.next().await;
            let mut frames = self.frames.lock().await;
            frames.pong(&payload).await.map_err(|_| lost())?;
        }
    }

    /// Sends every answer queued so far, unless a response is half sent, then the close frame.
    pub(crate) async fn close(&self, code: u16, reason: &str) {
        if self.pumping.get() || self.message.try_lock().is_ok() {
            // A response that got in line before this must not cost the client its close frame.
            if let Ok(turn) = tokio::time::timeout(LAST_TURN, self.turn()).await
                && self.send_queued(&turn).await.is_err()
            {
                return;
            }
        }
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
