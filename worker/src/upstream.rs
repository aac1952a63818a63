//! Requests to one toolshed: one body at a time, each header paid for with the request credit the toolshed granted.
//!
//! As on the public side there are two locks, always taken in this order: *body* (who may send a request now, first come
//! first served) and *frames* (the socket, held for one frame), so that a ping is answered while a slow upload owns the
//! body lock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use memory_transport::{Buffer, WsWriter};
use memory_wire::credit::RequestSender;
use memory_wire::frame::Opcode;
use memory_wire::stream::{self, Header, Route};
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::time::Instant;

use crate::UpstreamWrite;
use crate::end::End;
use crate::pong::OwedPong;

/// The sending side of one data socket.
#[derive(Debug)]
pub(crate) struct Upstream {
    index: u16,
    frames: Mutex<WsWriter<UpstreamWrite>>,
    body: Arc<Mutex<()>>,
    credit: RefCell<RequestSender>,
    granted: Notify,
    pong: OwedPong,
    lost: Cell<Option<Instant>>,
}

impl Upstream {
    pub(crate) fn new(index: u16, writer: WsWriter<UpstreamWrite>) -> Self {
        Self {
            index,
            frames: Mutex::new(writer),
            body: Arc::new(Mutex::new(())),
            credit: RefCell::new(RequestSender::new()),
            granted: Notify::new(),
            pong: OwedPong::default(),
            lost: Cell::new(None),
        }
    }

    /// The toolshed's place in the directory.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Whether the socket or its link is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// How long it has been gone; zero while it is not.
    pub(crate) fn lost_for(&self) -> Duration {
        self.lost
            .get()
            .map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Nothing can be sent here any more.
    pub(crate) fn mark_lost(&self) {
        if !self.is_lost() {
            self.lost.set(Some(Instant::now()));
        }
        self.granted.notify_waiters();
    }

    /// Adds request credit the toolshed returned.
    pub(crate) fn grant(&self, amount: u32) -> Result<(), End> {
        self.credit
            .borrow_mut()
            .grant(amount)
            .map_err(|_| End::violation("request-credit-window"))?;
        self.granted.notify_waiters();
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

    /// Waits for the turn to send one request body.
    pub(crate) async fn turn(self: &Rc<Self>) -> BodyTurn {
        let guard = Arc::clone(&self.body).lock_owned().await;
        BodyTurn {
            upstream: Rc::clone(self),
            _guard: guard,
        }
    }

    /// Waits until the socket or its link is gone.
    pub(crate) async fn gone(&self) {
        loop {
            let changed = self.granted.notified();
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
    _guard: OwnedMutexGuard<()>,
}

impl BodyTurn {
    /// Waits until credit covers `bytes`, and spends it. What comes back is the next ordinal, which the toolshed is now owed:
    /// the caller sends the header, or ends the connection.
    ///
    /// Cancel-safe: nothing is spent by a call that is dropped.
    pub(crate) async fn reserve(&mut self, bytes: u32) -> Result<u64, End> {
        loop {
            if self.upstream.is_lost() {
                return Err(End::upstream("upstream-gone"));
            }
            // Registered before the check, so that a grant in between is not missed.
            let granted = self.upstream.granted.notified();
            let reserved = self.upstream.credit.borrow_mut().try_reserve(bytes);
            match reserved {
                Some(ordinal) => return Ok(ordinal),
                None => granted.await,
            }
        }
    }

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
