//! What the tasks of one connection share, and how the first of them to end it ends them all.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use memory_budget::Permit;
use memory_config::WorkerSettings;
use memory_ipc::packets::{Detail, WorkerToSpawner};
use memory_wire::did::Did;
use memory_wire::flags::Flags;
use memory_wire::reason::{Reason, Refusal, Severity};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::agents::{LinkAgent, Offer};
use crate::broker::Broker;
use crate::end::End;
use crate::ledger::Ledger;
use crate::meter::Meter;
use crate::output::{Output, Urgency};
use crate::table::Table;
use crate::upstream::Upstream;
use crate::{Spawner, answers};

/// Events of one connection that are sent to the spawner, before that of its end. It logs no more, and every refusal is
/// in the report.
const MAX_EVENTS: u8 = 64;

/// The level of an event, as the spawner knows it. How a connection ended, or what it was refused, is never left out.
pub(crate) const fn level(reason: Reason) -> u8 {
    match reason.severity() {
        Severity::Error => 1,
        Severity::Warn => 2,
        Severity::Info | Severity::Debug => 3,
    }
}

/// What was settled before the tasks of the connection start.
pub(crate) struct Agreed {
    pub(crate) settings: Rc<WorkerSettings>,
    pub(crate) dedicated: Option<Did>,
    pub(crate) client_flags: Flags,
    pub(crate) offer: Offer,
    pub(crate) offer_flags: Flags,
    pub(crate) ledger: Rc<Ledger>,
    pub(crate) meter: Rc<Meter>,
}

/// A principal for whom opens are being worked on.
#[derive(Debug, Default)]
struct Renewal {
    opens: u32,
    /// How often it signed or was released meanwhile.
    changes: u64,
    /// Whether a challenge was pushed that it has not signed yet.
    pushed: bool,
}

/// An open that is being worked on; over when dropped.
pub(crate) struct HeldOpen {
    shared: Rc<Shared>,
    principal: Did,
    _bytes: Permit,
}

impl HeldOpen {
    fn renewal<T>(&self, read: impl FnOnce(&mut Renewal) -> T) -> T {
        let mut renewals = self.shared.renewals.borrow_mut();
        read(renewals.entry(self.principal).or_default())
    }

    /// Changes whenever the principal signs or is released.
    pub(crate) fn changes(&self) -> u64 {
        self.renewal(|renewal| renewal.changes)
    }

    /// Whether the caller should push a challenge to the principal.
    pub(crate) fn claim_push(&self) -> bool {
        self.renewal(|renewal| !std::mem::replace(&mut renewal.pushed, true))
    }

    /// The challenge was not pushed, or is too old by now.
    pub(crate) fn release_push(&self) {
        self.renewal(|renewal| renewal.pushed = false);
    }
}

impl Drop for HeldOpen {
    fn drop(&mut self) {
        let mut renewals = self.shared.renewals.borrow_mut();
        if let Some(renewal) = renewals.get_mut(&self.principal) {
            renewal.opens = renewal.opens.saturating_sub(1);
            if renewal.opens == 0 {
                renewals.remove(&self.principal);
            }
        }
    }
}

impl std::fmt::Debug for HeldOpen {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("HeldOpen")
            .field("bytes", &self._bytes)
            .finish_non_exhaustive()
    }
}

/// State of one connection; everything runs on one thread.
pub(crate) struct Shared {
    pub(crate) settings: Rc<WorkerSettings>,
    /// The only space of a dedicated socket.
    pub(crate) dedicated: Option<Did>,
    pub(crate) client_flags: Flags,
    pub(crate) offer: Offer,
    pub(crate) offer_flags: Flags,
    pub(crate) ledger: Rc<Ledger>,
    pub(crate) meter: Rc<Meter>,
    pub(crate) table: RefCell<Table>,
    pub(crate) output: Rc<Output>,
    pub(crate) link: Rc<LinkAgent>,
    /// The newest.
    broker: RefCell<Rc<Broker>>,
    /// Who dialled the data socket that is being set up.
    setup: RefCell<Option<Rc<Broker>>>,
    /// No data socket is being set up any more.
    set_up: Notify,
    /// A response was completed.
    pub(crate) answered: Notify,
    /// A principal signed.
    pub(crate) authenticated: Notify,
    /// Nothing was moved for a while: memory of bursts can go.
    pub(crate) quiet: Notify,
    moved: Cell<bool>,
    /// Events that the spawner still logs; more would only keep it busy.
    events: Cell<u8>,
    /// The clock stands still until something moves.
    is_still: Cell<bool>,
    stirred: Notify,
    pub(crate) spawner: Rc<Spawner>,
    upstreams: RefCell<BTreeMap<u16, Rc<Upstream>>>,
    has_authenticated: Cell<bool>,
    /// Principals for whom an open is being worked on.
    renewals: RefCell<HashMap<Did, Renewal>>,
    draining: Cell<bool>,
    compression: bool,
    end: RefCell<Option<End>>,
    ended: Notify,
    tasks: RefCell<JoinSet<()>>,
}

impl Shared {
    pub(crate) fn new(
        agreed: Agreed,
        output: Rc<Output>,
        link: Rc<LinkAgent>,
        broker: Rc<Broker>,
        spawner: Rc<Spawner>,
    ) -> Self {
        let Agreed {
            settings,
            dedicated,
            client_flags,
            offer,
            offer_flags,
            ledger,
            meter,
        } = agreed;
        let both = |name: &str| client_flags.is_true(name) && offer_flags.is_true(name);
        let compression = both("messageCompressionV1") && both("routedCompressionV1");
        let table = Table::new(Rc::clone(&ledger), settings.max_watches_per_session);
        Self {
            settings,
            dedicated,
            client_flags,
            offer,
            offer_flags,
            ledger,
            meter,
            table: RefCell::new(table),
            output,
            link,
            broker: RefCell::new(broker),
            setup: RefCell::new(None),
            set_up: Notify::new(),
            answered: Notify::new(),
            authenticated: Notify::new(),
            quiet: Notify::new(),
            moved: Cell::new(false),
            events: Cell::new(MAX_EVENTS),
            is_still: Cell::new(false),
            stirred: Notify::new(),
            spawner,
            upstreams: RefCell::new(BTreeMap::new()),
            has_authenticated: Cell::new(false),
            renewals: RefCell::new(HashMap::new()),
            draining: Cell::new(false),
            compression,
            end: RefCell::new(None),
            ended: Notify::new(),
            tasks: RefCell::default(),
        }
    }

    /// Whether client and offer both have end-to-end compression.
    pub(crate) fn compression(&self) -> bool {
        self.compression
    }

    /// Whether client and offer both have envelopes for whole messages.
    pub(crate) fn envelopes(&self) -> bool {
        self.client_flags.is_true("messageCompressionV1")
            && self.offer_flags.is_true("messageCompressionV1")
    }

    // --- life and end ---

    /// Runs a task of the connection; its failure ends the connection.
    pub(crate) fn spawn(self: &Rc<Self>, task: impl Future<Output = Result<(), End>> + 'static) {
        let shared = Rc::clone(self);
        let mut tasks = self.tasks.borrow_mut();
        // What is over is not kept.
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(async move {
            if let Err(end) = task.await {
                shared.finish(end);
            }
        });
    }

    /// Stops every task, and forgets what the connection held.
    pub(crate) async fn dismantle(&self) {
        loop {
            // One that is being stopped may have begun another.
            let mut tasks = self.tasks.take();
            if tasks.is_empty() {
                break;
            }
            tasks.shutdown().await;
        }
        self.table.borrow_mut().clear();
        self.ledger.principals.clear();
        self.output.forget();
    }

    /// Ends the connection. The first reason stands, but for a lost toolshed: that an operator revoked a principal explains it.
    pub(crate) fn finish(&self, end: End) {
        let mut slot = self.end.borrow_mut();
        let is_explained = end.reason == Reason::PrincipalRevoked;
        let may_be_explained = |first: &End| first.reason == Reason::UpstreamLost;
        if slot
            .as_ref()
            .is_none_or(|first| is_explained && may_be_explained(first))
        {
            *slot = Some(end);
            self.ended.notify_one();
        }
    }

    /// Waits for the end.
    pub(crate) async fn finished(&self) -> End {
        loop {
            if let Some(end) = self.end.borrow().clone() {
                return end;
            }
            self.ended.notified().await;
        }
    }

    /// What explains a lost toolshed, if the link agent has told it already: it tells its worker first.
    pub(crate) async fn explained(&self, end: End) -> End {
        if end.reason == Reason::UpstreamLost {
            // Once to see what has come, then for whoever takes it.
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        }
        match &*self.end.borrow() {
            Some(other) if other.reason == Reason::PrincipalRevoked => other.clone(),
            _ => end,
        }
    }

    /// No new opens from now on; the connection ends when everything in flight was answered.
    pub(crate) fn start_drain(&self) {
        self.draining.set(true);
        self.answered.notify_waiters();
        // Opens that are held for a signature are not held any longer.
        self.authenticated.notify_waiters();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    // --- the broker ---

    pub(crate) fn broker(&self) -> Rc<Broker> {
        Rc::clone(&self.broker.borrow())
    }

    /// Another broker takes the place of the one before.
    pub(crate) fn replace_broker(&self, broker: Rc<Broker>) {
        self.broker.replace(broker).retire();
    }

    /// Notes that a data socket of this broker is being set up, until the guard is dropped. There is one at a time, as each
    /// broker sees to, and [`Self::newest_broker`] across them.
    pub(crate) fn begin_setup(&self, broker: Rc<Broker>) -> SetUp<'_> {
        self.setup.replace(Some(broker));
        SetUp(self)
    }

    /// The newest broker, once no data socket of an earlier one is being set up. That one may be bound without the new broker
    /// knowing: whether it serves has to be known before the new one is asked, lest the same ticket is used twice, or a
    /// toolshed found bound without a socket.
    pub(crate) async fn newest_broker(&self) -> Rc<Broker> {
        loop {
            let set_up = self.set_up.notified();
            let broker = self.broker();
            let is_free = match &*self.setup.borrow() {
                Some(dialler) => Rc::ptr_eq(dialler, &broker),
                None => true,
            };
            if is_free {
                return broker;
            }
            set_up.await;
        }
    }

    // --- upstreams ---

    pub(crate) fn upstream(&self, index: u16) -> Option<Rc<Upstream>> {
        self.upstreams.borrow().get(&index).cloned()
    }

    pub(crate) fn register(&self, upstream: Rc<Upstream>) {
        self.upstreams
            .borrow_mut()
            .insert(upstream.index(), upstream);
    }

    /// The link of a toolshed was replaced: whatever this connection had there is gone.
    pub(crate) fn link_lost(&self, index: u16) {
        if let Some(upstream) = self.upstreams.borrow_mut().remove(&index) {
            upstream.lose_link();
        }
        if self.table.borrow().depends_on(index) {
            self.finish(End::upstream("link-lost").of_toolshed(index));
        }
    }

    // --- principals ---

    /// Whether any principal ever signed here.
    pub(crate) fn has_authenticated(&self) -> bool {
        self.has_authenticated.get()
    }

    pub(crate) fn principal_signed(&self, principal: &Did) {
        self.has_authenticated.set(true);
        self.principal_changed(principal);
    }

    /// Opens that are held for this principal are to be tried again.
    pub(crate) fn principal_changed(&self, principal: &Did) {
        if let Some(renewal) = self.renewals.borrow_mut().get_mut(principal) {
            renewal.changes += 1;
            renewal.pushed = false;
        }
        self.authenticated.notify_waiters();
    }

    /// Counts an open of `bytes` by `principal` as being worked on, for as long as the value returned lives. `None`: there
    /// are too many bytes of them.
    pub(crate) fn hold_open(self: &Rc<Self>, principal: Did, bytes: usize) -> Option<HeldOpen> {
        let permit = self.ledger.open_bytes.reserve(bytes as u64).ok()?;
        let mut renewals = self.renewals.borrow_mut();
        renewals.entry(principal).or_default().opens += 1;
        Some(HeldOpen {
            shared: Rc::clone(self),
            principal,
            _bytes: permit,
        })
    }

    // --- answers and the log ---

    /// Refuses a request: for now, for good, or with the connection, as the reason says.
    pub(crate) fn refuse(
        &self,
        request_id: &str,
        reason: Reason,
        detail: &'static str,
    ) -> Result<(), End> {
        self.deny(request_id, reason, detail, Urgency::Ordinary)
    }

    /// Refuses a request that the router serves itself.
    pub(crate) fn refuse_own(
        &self,
        request_id: &str,
        reason: Reason,
        detail: &'static str,
    ) -> Result<(), End> {
        self.deny(request_id, reason, detail, Urgency::Control)
    }

    fn deny(
        &self,
        request_id: &str,
        reason: Reason,
        detail: &'static str,
        urgency: Urgency,
    ) -> Result<(), End> {
        let retriable = match reason.refusal() {
            Refusal::ForNow => true,
            Refusal::ForGood => false,
            Refusal::Close => return Err(End::new(reason, detail)),
        };
        self.log(reason, detail);
        self.meter.refused(reason);
        self.finish_request(request_id);
        self.output
            .send_text(answers::denied(request_id, retriable), urgency);
        Ok(())
    }

    /// Answers a request that the router handles itself.
    pub(crate) fn answer(&self, request_id: &str, text: String) {
        self.finish_request(request_id);
        self.output.send_text(text, Urgency::Control);
    }

    fn finish_request(&self, request_id: &str) {
        let timed = self.table.borrow_mut().finish_local(request_id);
        if let Some(timed) = timed {
            self.meter.done(timed);
        }
        self.answered.notify_waiters();
    }

    /// Asks the spawner to log an event. Lost if the spawner's queue is full: a worker must not wait for its log.
    pub(crate) fn log(&self, reason: Reason, detail: &str) {
        let Some(left) = self.events.get().checked_sub(1) else {
            return;
        };
        self.events.set(left);
        let event = WorkerToSpawner::Event {
            level: level(reason),
            reason: reason.code(),
            detail: Detail::clipped(detail),
            bytes_in: self.meter.bytes_in.get(),
            bytes_out: self.meter.bytes_out.get(),
        };
        let _ = self.spawner.channel.try_send_packet(&event, &[]);
    }

    /// Reports to the spawner if it is time to. Gives when it may be again, at the latest.
    fn report(&self) -> Option<Duration> {
        let due = self.meter.due()?;
        if due.is_zero() {
            let report = self.meter.report(&self.ledger);
            let report = WorkerToSpawner::Report { report };
            // A full channel costs this report; the next one says as much.
            let _ = self.spawner.channel.try_send_packet(&report, &[]);
            return None;
        }
        Some(due)
    }

    // --- quiet ---

    /// Data moved.
    pub(crate) fn busy(&self) {
        self.moved.set(true);
        if self.is_still.take() {
            self.stirred.notify_one();
        }
    }

    /// Lets the clock rest: for `wait` at most, until a report is due, or, if nothing moved, until something does.
    pub(crate) async fn rest(&self, wait: Duration) {
        let wait = self.report().map_or(wait, |due| wait.min(due));
        let _ = tokio::time::timeout(wait, self.stirred.notified()).await;
    }

    /// Called by the clock: whether nothing moved since the last call.
    pub(crate) fn was_quiet(&self) -> bool {
        let is_quiet = !self.moved.replace(false);
        self.is_still.set(is_quiet);
        is_quiet
    }
}

/// A data socket is being set up.
pub(crate) struct SetUp<'a>(&'a Shared);

impl Drop for SetUp<'_> {
    fn drop(&mut self) {
        self.0.setup.take();
        self.0.set_up.notify_waiters();
    }
}
