//! What goes to the client: one message at a time, control frames between its fragments.
//!
//! First comes the turn (who may send a data message now), then the lock of *frames* (the socket itself, held for one frame).
//! A response that streams in has the turn from its first fragment to the frame with FIN, and the toolsheds get it one after
//! the other, a message each: an effect of one never waits behind many answers of another. Answers made here and upload
//! credit go before the next of them, and then let one of them go: a renewal waits for one message at most. Pings and the
//! close frame need the lock alone.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use memory_budget::{Budget, Permit};
use memory_transport::{Buffer, WsWriter};
use memory_wire::credit::{UploadReceiver, encode_upload_credit};
use memory_wire::frame::Opcode;
use memory_wire::reason::Reason;
use tokio::sync::{Mutex, Notify};

use crate::ClientWrite;
use crate::end::End;
use crate::meter::{Meter, count};
use crate::pong::OwedPong;
use crate::stopwatch::Stopwatch;
use crate::turns::{Rank, Turn, Turns};

/// How long the last answers wait for their turn.
const LAST_TURN: Duration = Duration::from_millis(500);

/// The right to send one data message; released on drop.
#[derive(Debug)]
pub(crate) struct MessageTurn<'a> {
    output: &'a Output,
    _turn: Turn<()>,
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
        output.count(payload.len(), opcode != Opcode::Continuation);
        let mut frames = output.frames.lock().await;
        output.moving(frames.frame(opcode, fin, payload)).await
    }

    /// Sends a whole message that the router made.
    async fn whole(&self, opcode: Opcode, payload: &[u8]) -> Result<(), End> {
        let output = self.output;
        // A credit record is none.
        output.count(payload.len(), opcode == Opcode::Text);
        let mut frames = output.frames.lock().await;
        output.moving(frames.send_slice(opcode, payload)).await
    }
}

impl Drop for MessageTurn<'_> {
    /// The turn is over before anybody who waits for this can run: there is one thread.
    fn drop(&mut self) {
        self.output.rested.notify_waiters();
    }
}

/// What an answer made here is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Requests that the router serves itself: before all the others.
    Control,
    /// Refusals of requests for toolsheds.
    Ordinary,
}

/// Answers to be sent. Each is counted while it waits.
#[derive(Debug, Default)]
struct Queue {
    control: VecDeque<(String, Permit)>,
    ordinary: VecDeque<(String, Permit)>,
}

impl Queue {
    fn len(&self) -> usize {
        self.control.len() + self.ordinary.len()
    }

    fn pop(&mut self) -> Option<(String, Permit)> {
        self.control
            .pop_front()
            .or_else(|| self.ordinary.pop_front())
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Output {
    frames: Mutex<WsWriter<ClientWrite>>,
    turns: Rc<Turns<()>>,
    queue: RefCell<Queue>,
    /// Bytes of the queue.
    queued: Budget,
    credit: RefCell<Option<UploadReceiver>>,
    window: Cell<u32>,
    flush_credit: Cell<bool>,
    wake: Notify,
    room: Notify,
    /// A message turn has ended.
    rested: Notify,
    pong: OwedPong,
    ping_due: Notify,
    /// Whether the turn is held for the queue, not for a response.
    pumping: Cell<bool>,
    meter: Rc<Meter>,
    /// A frame waits for the client to take what was sent before.
    blocked: Stopwatch,
    /// Frames that had to wait and then went out: each shows a client that reads.
    taken: Cell<u64>,
    /// Credit is due, and something else stands before it.
    withheld: Stopwatch,
}

impl Output {
    /// Bytes of answers that wait are counted in `queued`; at its limit the input pauses.
    pub(crate) fn new(writer: WsWriter<ClientWrite>, queued: Budget, meter: Rc<Meter>) -> Self {
        Self {
            frames: Mutex::new(writer),
            turns: Turns::new((), 1),
            queue: RefCell::default(),
            queued,
            credit: RefCell::new(None),
            window: Cell::new(0),
            flush_credit: Cell::new(false),
            wake: Notify::new(),
            room: Notify::new(),
            rested: Notify::new(),
            pong: OwedPong::default(),
            ping_due: Notify::new(),
            pumping: Cell::new(false),
            meter,
            blocked: Stopwatch::default(),
            taken: Cell::new(0),
            withheld: Stopwatch::default(),
        }
    }

    fn count(&self, len: usize, is_new: bool) {
        count(&self.meter.bytes_out, len as u64);
        count(&self.meter.messages_out, u64::from(is_new));
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

    /// Waits for the turn to send one message of a toolshed.
    pub(crate) async fn turn(&self) -> MessageTurn<'_> {
        self.turn_of(Rank::Ordinary).await
    }

    async fn turn_of(&self, rank: Rank) -> MessageTurn<'_> {
        MessageTurn {
            output: self,
            _turn: self.turns.wait(rank, 1).await,
        }
    }

    /// Queues a complete text message made by the router.
    pub(crate) fn send_text(&self, text: String, urgency: Urgency) {
        let counted = self.queued.adopt(text.len() as u64);
        let mut queue = self.queue.borrow_mut();
        let answers = match urgency {
            Urgency::Control => &mut queue.control,
            Urgency::Ordinary => &mut queue.ordinary,
        };
        answers.push_back((text, counted));
        self.wake.notify_one();
    }

    /// Waits until the queue of answers has room again.
    pub(crate) async fn room(&self) {
        while !self.has_room() {
            self.room.notified().await;
        }
    }

    /// Whether [`Self::room`] returns at once.
    pub(crate) fn has_room(&self) -> bool {
        self.queued.has_room(1)
    }

    /// Drops what is queued: nobody will read it.
    pub(crate) fn forget(&self) {
        self.queue.take();
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
            let turn = self.turn_of(Rank::First).await;
            self.pumping.set(true);
            // What comes meanwhile waits for another turn, or a client that asks for nothing but refusals would keep this one.
            let answers = self.queue.borrow().len();
            let sent = self.send_queued(&turn, answers).await;
            self.pumping.set(false);
            drop(turn);
            sent?;
            if self.queue.borrow().len() > 0 {
                self.wake.notify_one();
            }
        }
    }

    /// Sends this many of the queued answers, and the credit that is due before each.
    async fn send_queued(&self, turn: &MessageTurn<'_>, answers: usize) -> Result<(), End> {
        let mut left = answers;
        loop {
            if let Some(amount) = self.due_credit() {
                let record = encode_upload_credit(amount);
                turn.whole(Opcode::Binary, &record).await?;
                self.withheld.stop();
            }
            let next = match left {
                0 => None,
                _ => self.queue.borrow_mut().pop(),
            };
            let Some((text, counted)) = next else {
                return Ok(());
            };
            left -= 1;
            turn.whole(Opcode::Text, text.as_bytes()).await?;
            drop(counted);
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
        self.queue.borrow().len() == 0 && !self.turns.is_taken()
    }

    fn due_credit(&self) -> Option<u32> {
        let mut credit = self.credit.borrow_mut();
        credit.as_mut()?.take_due(self.flush_credit.take())
    }

    /// Has a WebSocket ping sent; `false` if a frame is blocked on the socket right now.
    pub(crate) fn ping(&self) -> bool {
        let is_free = self.blocked_now().is_zero();
        if is_free {
            self.ping_due.notify_one();
        }
        is_free
    }

    /// A ping of the client is to be answered.
    pub(crate) fn owe_pong(&self, payload: &[u8]) {
        self.pong.owe(payload);
    }

    /// Sends pings that are due, and answers the client's, for as long as the connection lives. Whoever asks for one does not
    /// wait for it: a client that reads nothing would hold up the clock that is to find that out.
    pub(crate) async fn beat(self: Rc<Self>) -> Result<(), End> {
        loop {
            let pong = tokio::select! {
                payload = self.pong.next() => Some(payload),
                () = self.ping_due.notified() => None,
            };
            let mut frames = self.frames.lock().await;
            match pong {
                Some(payload) => self.moving(frames.pong(&payload)).await?,
                None => self.moving(frames.ping(&[])).await?,
            }
        }
    }

    /// Sends every answer queued so far, unless a response is half sent, then the close frame.
    pub(crate) async fn close(&self, code: u16, reason: &str) {
        if self.pumping.get() || !self.turns.is_taken() {
            // A response that got in line before this must not cost the client its close frame.
            let turn = tokio::time::timeout(LAST_TURN, self.turn_of(Rank::First)).await;
            if let Ok(turn) = turn
                && self.send_queued(&turn, usize::MAX).await.is_err()
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
