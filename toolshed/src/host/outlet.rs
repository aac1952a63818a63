//! What waits to be written to one data socket, and what the socket may still be asked: output bounds, request credit,
//! requests in flight. Without the socket itself: the writer task takes one step after another from here.

use super::closer::{Closer, Closing};
use memory_transport::Buffer;
use memory_wire::credit::{CreditFault, REQUEST_WINDOW, RequestReceiver, encode_request_credit};
use memory_wire::stream::{COMPLETION, MAX_BODY_LEN, MAX_CHUNK_LEN, chunk_prefix};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use tokio::sync::Notify;

/// One message to be written as records.
#[derive(Debug)]
pub(crate) struct Body {
    /// The whole header record.
    pub(crate) header: Vec<u8>,
    /// Text or envelope.
    pub(crate) bytes: Vec<u8>,
    /// The request it answers.
    pub(crate) answers: Option<String>,
    /// `type` of the message.
    pub(crate) kind: String,
}

/// The bounds of one socket's output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputBounds {
    /// Bytes that a message may bring the socket to when others wait before it.
    pub(crate) queued: Option<u64>,
}

impl OutputBounds {
    const fn ceiling(self) -> u64 {
        match self.queued {
            Some(bound) => bound,
            None => MAX_BODY_LEN as u64,
        }
    }

    /// Retained output at which requests are no longer dispatched.
    const fn high(self) -> u64 {
        self.ceiling() / 2
    }

    /// Retained output below which they are again.
    const fn low(self) -> u64 {
        self.ceiling() / 4
    }
}

/// A step of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write a record.
    Record,
    /// Write the record that ends a body; [`Outlet::completed`] is due once it is out.
    Completion,
    /// Answer a ping.
    Pong,
    /// Say good-bye.
    Close(Closing),
}

/// The shared side of one data socket.
#[derive(Debug)]
pub(crate) struct Outlet {
    inner: RefCell<Inner>,
    /// The writer has something to do.
    work: Notify,
    /// The reader may go on.
    room: Notify,
    pub(crate) closer: Closer,
}

#[derive(Debug)]
struct Inner {
    bounds: OutputBounds,
    queue: VecDeque<Body>,
    /// Records of the first body that were taken: bytes of it, or `None` while its header was not.
    written: Option<usize>,
    /// Bytes of all bodies that are not completely written.
    retained: u64,
    paused: bool,
    credit: RequestReceiver,
    in_flight: HashSet<String>,
    pong: Option<Vec<u8>>,
    bodies: u64,
    records: u64,
    high_water: u64,
}

impl Outlet {
    pub(crate) fn new(bounds: OutputBounds) -> Rc<Self> {
        Rc::new(Self {
            inner: RefCell::new(Inner {
                bounds,
                queue: VecDeque::new(),
                written: None,
                retained: 0,
                paused: false,
                credit: RequestReceiver::new(),
                in_flight: HashSet::new(),
                pong: None,
                bodies: 0,
                records: 0,
                high_water: 0,
            }),
            work: Notify::new(),
            room: Notify::new(),
            closer: Closer::new(),
        })
    }

    /// Queues a message.
    ///
    /// # Errors
    /// The snapshot of an `output-limit`: the message is over 8 MiB, or would pass the bound behind what waits.
    pub(crate) fn enqueue(&self, body: Body) -> Result<(), Value> {
        let mut inner = self.inner.borrow_mut();
        let len = u64::try_from(body.bytes.len()).unwrap_or(u64::MAX);
        if len > u64::from(MAX_BODY_LEN) {
            return Err(inner.snapshot(&body, len, u64::from(MAX_BODY_LEN), "single-message"));
        }
        let then = inner.retained.saturating_add(len);
        if let Some(bound) = inner.bounds.queued
            && inner.retained > 0
            && then > bound
        {
            return Err(inner.snapshot(&body, len, bound, "queued-output"));
        }
        inner.retained = then;
        inner.high_water = inner.high_water.max(then);
        if then >= inner.bounds.high() {
            inner.paused = true;
        }
        inner.bodies += 1;
        inner.queue.push_back(body);
        drop(inner);
        self.work.notify_one();
        Ok(())
    }

    /// Waits until requests may be dispatched: at once, unless output reached the high mark and is not below the low one.
    pub(crate) async fn ready(&self) {
        while self.inner.borrow().paused {
            self.room.notified().await;
        }
    }

    /// Whether dispatch waits for output to leave.
    #[cfg(test)]
    pub(crate) fn is_paused(&self) -> bool {
        self.inner.borrow().paused
    }

    /// Everything that waits, as if it had been written.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<Body> {
        let mut inner = self.inner.borrow_mut();
        inner.retained = 0;
        inner.paused = false;
        let bodies: Vec<Body> = inner.queue.drain(..).collect();
        for request_id in bodies.iter().filter_map(|body| body.answers.as_ref()) {
            inner.in_flight.remove(request_id);
        }
        bodies
    }

    /// Takes up a request's header.
    ///
    /// # Errors
    /// The credit or its order was broken.
    pub(crate) fn header(&self, ordinal: u64, bytes: u32) -> Result<(), CreditFault> {
        self.inner.borrow_mut().credit.header(ordinal, bytes)
    }

    /// A request's turn ended: its credit goes back with the writer's next step.
    pub(crate) fn finish(&self, bytes: u32) {
        self.inner.borrow_mut().credit.finish(bytes);
        self.work.notify_one();
    }

    /// Notes a request as in flight until its answer is written.
    ///
    /// # Errors
    /// A fixed reason: the identifier is in flight already, or there are `limit` of them.
    pub(crate) fn begin(&self, request_id: &str, limit: Option<u64>) -> Result<(), &'static str> {
        let mut inner = self.inner.borrow_mut();
        let held = u64::try_from(inner.in_flight.len()).unwrap_or(u64::MAX);
        if limit.is_some_and(|limit| held >= limit) {
            return Err("request-limit");
        }
        if inner.in_flight.insert(request_id.to_owned()) {
            Ok(())
        } else {
            Err("request-repeated")
        }
    }

    /// A request that will not be answered is no longer in flight.
    pub(crate) fn forget(&self, request_id: &str) {
        self.inner.borrow_mut().in_flight.remove(request_id);
    }

    /// Asks for a pong; only the newest of several is sent (RFC 6455 section 5.5.3).
    pub(crate) fn pong(&self, payload: &[u8]) {
        self.inner.borrow_mut().pong = Some(payload.to_vec());
        self.work.notify_one();
    }

    /// The writer's next step; what it is to write is put into `buffer`. Credit goes out first, between any two records.
    pub(crate) async fn next(&self, buffer: &mut Buffer) -> Step {
        loop {
            if let Some(closing) = self.closer.closing() {
                return Step::Close(closing);
            }
            if let Some(step) = self.inner.borrow_mut().step(buffer) {
                return step;
            }
            self.work.notified().await;
        }
    }

    /// The first body is completely written: its bytes are free and its request is answered.
    pub(crate) fn completed(&self) {
        let mut inner = self.inner.borrow_mut();
        inner.written = None;
        let Some(body) = inner.queue.pop_front() else {
            return;
        };
        let len = u64::try_from(body.bytes.len()).unwrap_or(u64::MAX);
        inner.retained = inner.retained.saturating_sub(len);
        if let Some(request_id) = &body.answers {
            inner.in_flight.remove(request_id);
        }
        if inner.paused && inner.retained < inner.bounds.low() {
            inner.paused = false;
            drop(inner);
            self.room.notify_one();
        }
    }

    /// Ends the socket; the first to do so is the one that counts.
    pub(crate) fn close(&self, closing: Closing) {
        self.closer.close(closing);
        self.work.notify_one();
        self.room.notify_one();
    }
}

impl Inner {
    fn step(&mut self, buffer: &mut Buffer) -> Option<Step> {
        buffer.clear();
        if let Some(amount) = self.credit.take_owed() {
            // The router may spend it before the flush is through.
            self.credit.written(amount);
            buffer.extend(&encode_request_credit(amount));
            return Some(Step::Record);
        }
        if let Some(payload) = self.pong.take() {
            buffer.extend(&payload);
            return Some(Step::Pong);
        }
        let body = self.queue.front()?;
        self.records += 1;
        let Some(written) = self.written else {
            buffer.extend(&body.header);
            self.written = Some(0);
            return Some(Step::Record);
        };
        let rest = body.bytes.get(written..).unwrap_or_default();
        if rest.is_empty() {
            buffer.extend(&COMPLETION);
            return Some(Step::Completion);
        }
        let chunk = rest.get(..MAX_CHUNK_LEN).unwrap_or(rest);
        buffer.extend(&chunk_prefix());
        buffer.extend(chunk);
        self.written = Some(written + chunk.len());
        Some(Step::Record)
    }

    /// What the seed asks to be known about a socket whose output bound was reached. No payload.
    fn snapshot(&self, body: &Body, len: u64, limit: u64, classification: &str) -> Value {
        json!({
            "frameBytes": len,
            "bufferedBytes": self.retained,
            "limitBytes": limit,
            "endpoint": "data",
            "classification": classification,
            "messageType": body.kind,
            "diagnostics": {
                "retainedBytes": self.retained,
                "highWaterBytes": self.high_water,
                "queueDepth": self.queue.len(),
                "bodies": self.bodies,
                "records": self.records,
                "activeWrittenBytes": self.written.unwrap_or(0),
                "requestBytesInUse": self.credit.in_use(),
                "paused": self.paused,
            },
        })
    }
}

const _: () = assert!(REQUEST_WINDOW <= MAX_BODY_LEN);

#[cfg(test)]
mod tests {
    use super::*;

    fn body(len: usize) -> Body {
        Body {
            header: b"header".to_vec(),
            bytes: vec![7; len],
            answers: Some(format!("r{len}")),
            kind: "response".to_owned(),
        }
    }

    fn drain_one(outlet: &Outlet) {
        let mut buffer = Buffer::new();
        loop {
            let step = outlet.inner.borrow_mut().step(&mut buffer);
            match step {
                Some(Step::Completion) => return outlet.completed(),
                Some(_) => {}
                None => panic!("nothing to write"),
            }
        }
    }

    #[test]
    fn bounds_are_exact() {
        let outlet = Outlet::new(OutputBounds { queued: Some(1000) });
        outlet.enqueue(body(8 << 20)).unwrap();
        let refused = outlet.enqueue(body(1)).unwrap_err();
        assert_eq!(refused["classification"], "queued-output");
        assert_eq!(refused["bufferedBytes"], 8 << 20);
        drain_one(&outlet);
        outlet.enqueue(body(400)).unwrap();
        outlet.enqueue(body(600)).unwrap();
        assert!(outlet.enqueue(body(1)).is_err());
        let refused = outlet.enqueue(body((8 << 20) + 1)).unwrap_err();
        assert_eq!(refused["classification"], "single-message");
        assert_eq!(refused["limitBytes"], 8 << 20);
    }

    #[test]
    fn dispatch_pauses_at_the_high_mark_until_below_the_low_one() {
        let outlet = Outlet::new(OutputBounds { queued: Some(1000) });
        outlet.enqueue(body(300)).unwrap();
        outlet.enqueue(body(199)).unwrap();
        assert!(!outlet.is_paused());
        outlet.enqueue(body(51)).unwrap();
        assert!(outlet.is_paused());
        drain_one(&outlet);
        assert!(outlet.is_paused(), "250 left");
        drain_one(&outlet);
        assert!(!outlet.is_paused());
    }

    #[test]
    fn credit_goes_out_between_records() {
        let outlet = Outlet::new(OutputBounds { queued: None });
        let mut buffer = Buffer::new();
        outlet.inner.borrow_mut().step(&mut buffer).unwrap();
        assert_eq!(buffer.payload(), encode_request_credit(REQUEST_WINDOW));
        outlet.enqueue(body(40_000)).unwrap();
        outlet.inner.borrow_mut().step(&mut buffer).unwrap();
        assert_eq!(buffer.payload(), b"header");
        outlet.header(1, 10).unwrap();
        outlet.header(2, 20).unwrap();
        outlet.finish(10);
        outlet.finish(20);
        outlet.inner.borrow_mut().step(&mut buffer).unwrap();
        assert_eq!(buffer.payload(), encode_request_credit(30));
        outlet.inner.borrow_mut().step(&mut buffer).unwrap();
        assert_eq!(buffer.len(), 5 + MAX_CHUNK_LEN);
    }

    #[test]
    fn a_request_is_in_flight_until_its_answer_is_written() {
        let outlet = Outlet::new(OutputBounds { queued: None });
        outlet.begin("r5", Some(2)).unwrap();
        assert_eq!(outlet.begin("r5", Some(2)), Err("request-repeated"));
        outlet.begin("r6", Some(2)).unwrap();
        assert_eq!(outlet.begin("r7", Some(2)), Err("request-limit"));
        outlet.enqueue(body(5)).unwrap();
        assert_eq!(outlet.begin("r5", None), Err("request-repeated"));
        drain_one(&outlet);
        outlet.begin("r5", Some(2)).unwrap();
        outlet.forget("r6");
        outlet.begin("r6", Some(2)).unwrap();
    }
}
