//! Requests to one toolshed: one body at a time, each header paid for with the request credit the toolshed granted.
//!
//! As on the public side there is a turn (who may send a request now) and a lock, always taken in this order: the lock is for
//! *frames* (the socket, held for one frame), so that a ping is answered while a slow upload has the turn.
//!
//! The turn comes with the credit. Data leaves a margin of the credit to controls and may be passed by them, within that
//! margin, while it waits (`ledger`): many unanswered requests never keep a session from being closed. Only a body that
//! would take the whole window but for the margin takes that too, and a control waits for the answer of this one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use memory_transport::{Buffer, WsWriter};
use memory_wire::credit::RequestSender;
use memory_wire::frame::Opcode;
use memory_wire::reason::Reason;
use memory_wire::stream::{self, Header, Route};
use tokio::sync::{Mutex, Notify};

use crate::UpstreamWrite;
use crate::end::End;
use crate::ledger::{CREDIT_MARGIN, Class};
use crate::pong::OwedPong;
use crate::turns::{Gate, Rank, Turn, Turns};

/// The credit of one data socket.
#[derive(Debug, Default)]
struct Credit {
    sender: RefCell<RequestSender>,
    /// The most that was ever held: less than a window, when the toolshed grants less.
    most: Cell<u32>,
    /// Whether the socket or its link is gone.
    lost: Cell<bool>,
}

impl Gate for Credit {
    /// Also when the socket is lost: whoever waits is to hear of it.
    fn is_open(&self, rank: Rank, bytes: u32) -> bool {
        let needed = match rank {
            Rank::First => bytes,
            // One so large that it leaves no margin even alone does not wait until it is alone.
            Rank::Ordinary => match bytes.saturating_add(CREDIT_MARGIN) {
                beside if beside <= self.most.get() => beside,
                _ => bytes,
            },
        };
        self.lost.get() || needed <= self.sender.borrow().held()
    }
}

/// The sending side of one data socket.
#[derive(Debug)]
pub(crate) struct Upstream {
    index: u16,
    frames: Mutex<WsWriter<UpstreamWrite>>,
    turns: Rc<Turns<Credit>>,
    gone: Notify,
    /// Whether its link is gone.
    link_lost: Cell<bool>,
    pong: OwedPong,
}

impl Upstream {
    pub(crate) fn new(index: u16, writer: WsWriter<UpstreamWrite>) -> Self {
        Self {
            index,
            frames: Mutex::new(writer),
            turns: Turns::new(Credit::default(), CREDIT_MARGIN),
            gone: Notify::new(),
            link_lost: Cell::new(false),
            pong: OwedPong::default(),
        }
    }

    /// The toolshed's place in the directory.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Whether the socket or its link is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.turns.gate().lost.get()
    }

    /// Whether its link is gone, and not the socket alone.
    pub(crate) fn has_lost_link(&self) -> bool {
        self.link_lost.get()
    }

    /// Nothing can be sent here any more.
    pub(crate) fn mark_lost(&self) {
        self.turns.gate().lost.set(true);
        self.turns.settle();
        self.gone.notify_waiters();
    }

    /// The link is gone, and the socket with it.
    pub(crate) fn lose_link(&self) {
        self.link_lost.set(true);
        self.mark_lost();
    }

    /// Waits until the link is gone.
    pub(crate) async fn link_lost(&self) {
        loop {
            let changed = self.gone.notified();
            if self.has_lost_link() {
                return;
            }
            changed.await;
        }
    }

    /// Adds request credit the toolshed returned.
    pub(crate) fn grant(&self, amount: u32) -> Result<(), End> {
        let credit = self.turns.gate();
        let mut sender = credit.sender.borrow_mut();
        sender
            .grant(amount)
            .map_err(|_| End::violation("request-credit-window"))?;
        credit.most.set(credit.most.get().max(sender.held()));
        drop(sender);
        self.turns.settle();
        Ok(())
    }

    /// A ping of the toolshed is to be answered.
    pub(crate) fn owe_pong(&self, payload: &[u8]) {
        self.pong.owe(payload);
    }

    /// Answers pings until the socket is lost.
    pub(crate) async fn pongs(self: Rc<Self>) -> Result<(), End> {
        loop {
            let payload = tokio::select! {
                payload = self.pong.next() => payload,
                () = self.gone() => return Ok(()),
            };
            // A socket that fails fails its reader too, which knows whether anybody needs it.
            if self.frames.lock().await.pong(&payload).await.is_err() {
                return Ok(());
            }
        }
    }

    /// Waits for the turn to send one request body of `bytes`, and for the credit that covers it, which is spent then. With the
    /// turn comes the next ordinal, which the toolshed is now owed: the caller sends the header, or ends the connection.
    ///
    /// Cancel-safe: nothing is spent by a call that is dropped.
    pub(crate) async fn admit(
        self: &Rc<Self>,
        class: Class,
        bytes: u32,
    ) -> Result<(BodyTurn, u64), End> {
        let rank = match class {
            Class::Control | Class::Live if bytes <= CREDIT_MARGIN => Rank::First,
            _ => Rank::Ordinary,
        };
        let turn = self.turns.wait(rank, bytes).await;
        if self.is_lost() {
            return Err(End::upstream("upstream-gone"));
        }
        // Credit was there when the turn was given, and only grew since.
        let ordinal = turn.gate().sender.borrow_mut().try_reserve(bytes);
        let ordinal = ordinal.ok_or_else(|| End::new(Reason::Internal, "request-credit"))?;
        let turn = BodyTurn {
            upstream: Rc::clone(self),
            _turn: turn,
        };
        Ok((turn, ordinal))
    }

    /// Waits until the socket or its link is gone.
    pub(crate) async fn gone(&self) {
        loop {
            let changed = self.gone.notified();
            if self.is_lost() {
                return;
            }
            changed.await;
        }
    }
}

/// The right to send one request body; released on drop. A body that was begun and not completed ends the data socket
/// with the connection, so the toolshed never takes half a request for a whole one.
#[derive(Debug)]
pub(crate) struct BodyTurn {
    upstream: Rc<Upstream>,
    _turn: Turn<Credit>,
}

impl BodyTurn {
    /// Sends the header of the body that `ordinal` was reserved for.
    pub(crate) async fn header(
        &mut self,
        ordinal: u64,
        bytes: u32,
        binary: bool,
        route: &Route<'_>,
    ) -> Result<(), End> {
        let mut record = Vec::with_capacity(512);
        Header {
            bytes,
            binary,
            request_ordinal: Some(ordinal),
            route: route.clone(),
        }
        .encode_record(&mut record)
        .map_err(|_| End::client("header-length"))?;
        self.upstream
            .frames
            .lock()
            .await
            .send_slice(Opcode::Binary, &record)
            .await
            .map_err(|_| End::upstream("upstream-write"))
    }

    /// Forwards a body or completion record exactly as it came.
    pub(crate) async fn record(&mut self, record: &mut Buffer) -> Result<(), End> {
        let mut frames = self.upstream.frames.lock().await;
        frames
            .frame(Opcode::Binary, true, record)
            .await
            .map_err(|_| End::upstream("upstream-write"))
    }

    /// Sends a body that is held completely, one record at a time, and completes it.
    pub(crate) async fn whole(&mut self, body: &[u8]) -> Result<(), End> {
        let mut record = Buffer::new();
        for chunk in body.chunks(stream::MAX_CHUNK_LEN) {
            record.clear();
            record.extend(&stream::chunk_prefix());
            record.extend(chunk);
            self.record(&mut record).await?;
        }
        record.clear();
        record.extend(&stream::COMPLETION);
        self.record(&mut record).await
    }
}
