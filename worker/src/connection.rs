//! What the tasks of one connection share, and how the first of them to end it ends them all.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::rc::Rc;

use memory_config::WorkerSettings;
use memory_ipc::packets::{Detail, WorkerToSpawner};
use memory_wire::did::Did;
use memory_wire::flags::Flags;
use memory_wire::reason::{Reason, Refusal};
use tokio::sync::Notify;

use crate::agents::{Broker, LinkAgent, Offer};
use crate::end::End;
use crate::output::Output;
use crate::table::{Table, TableLimits};
use crate::upstream::Upstream;
use crate::{Spawner, answers};

/// Severity of an event that the spawner logs for this worker.
const LEVEL_WARN: u8 = 2;

/// What was settled before the tasks of the connection start.
pub(crate) struct Agreed {
    pub(crate) settings: Rc<WorkerSettings>,
    pub(crate) dedicated: Option<Did>,
    pub(crate) client_flags: Flags,
    pub(crate) offer: Offer,
    pub(crate) offer_flags: Flags,
}

/// State of one connection; everything runs on one thread.
pub(crate) struct Shared {
    pub(crate) settings: Rc<WorkerSettings>,
    /// The only space of a dedicated socket.
    pub(crate) dedicated: Option<Did>,
    pub(crate) client_flags: Flags,
    pub(crate) offer: Offer,
    pub(crate) offer_flags: Flags,
    pub(crate) table: RefCell<Table>,
    pub(crate) output: Rc<Output>,
    pub(crate) link: Rc<LinkAgent>,
    pub(crate) broker: Rc<Broker>,
    /// A response was completed.
    pub(crate) answered: Notify,
    /// A principal signed.
    pub(crate) authenticated: Notify,
    /// Nothing was moved for a while: memory of bursts can go.
    pub(crate) quiet: Notify,
    moved: Cell<bool>,
    pub(crate) spawner: Rc<Spawner>,
    upstreams: RefCell<BTreeMap<u16, Rc<Upstream>>>,
    /// How often each principal signed here. Bounded by the link agent's `max_principal_history`.
    signed: RefCell<HashMap<Did, u64>>,
    /// Principals to which a challenge was pushed and not yet signed.
    pushed: RefCell<HashMap<Did, ()>>,
    draining: Cell<bool>,
    compression: bool,
    end: RefCell<Option<End>>,
    ended: Notify,
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
        } = agreed;
        let both = |name: &str| client_flags.is_true(name) && offer_flags.is_true(name);
        let compression = both("messageCompressionV1") && both("routedCompressionV1");
        let limits = TableLimits {
            requests: usize::try_from(settings.max_requests_per_connection).unwrap_or(usize::MAX),
            sessions: settings.max_sessions_per_connection,
            spaces: settings.max_spaces_per_connection,
            watches_per_session: settings.max_watches_per_session,
            watches: settings.max_watches_per_connection,
            holdings: settings.max_holdings_per_connection,
        };
        Self {
            settings,
            dedicated,
            client_flags,
            offer,
            offer_flags,
            table: RefCell::new(Table::new(limits)),
            output,
            link,
            broker,
            answered: Notify::new(),
            authenticated: Notify::new(),
            quiet: Notify::new(),
            moved: Cell::new(false),
            spawner,
            upstreams: RefCell::new(BTreeMap::new()),
            signed: RefCell::new(HashMap::new()),
            pushed: RefCell::new(HashMap::new()),
            draining: Cell::new(false),
            compression,
            end: RefCell::new(None),
            ended: Notify::new(),
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
        tokio::task::spawn_local(async move {
            if let Err(end) = task.await {
                shared.finish(end);
            }
        });
    }

    /// Ends the connection. The first reason stands.
    pub(crate) fn finish(&self, end: End) {
        let mut slot = self.end.borrow_mut();
        if slot.is_none() {
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

    /// No new opens from now on; the connection ends when everything in flight was answered.
    pub(crate) fn start_drain(&self) {
        self.draining.set(true);
        self.answered.notify_waiters();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
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
            upstream.mark_lost();
        }
        if self.table.borrow().depends_on(index) {
            self.finish(End::upstream("link-lost"));
        }
    }

    // --- principals ---

    pub(crate) fn principal_generation(&self, principal: &Did) -> u64 {
        self.signed.borrow().get(principal).copied().unwrap_or(0)
    }

    /// Whether any principal ever signed here.
    pub(crate) fn has_authenticated(&self) -> bool {
        !self.signed.borrow().is_empty()
    }

    pub(crate) fn principal_signed(&self, principal: &Did) {
        *self.signed.borrow_mut().entry(*principal).or_insert(0) += 1;
        self.pushed.borrow_mut().remove(principal);
        self.authenticated.notify_waiters();
    }

    /// Whether the caller should push a challenge to this principal.
    pub(crate) fn claim_push(&self, principal: &Did) -> bool {
        self.pushed.borrow_mut().insert(*principal, ()).is_none()
    }

    pub(crate) fn release_push(&self, principal: &Did) {
        self.pushed.borrow_mut().remove(principal);
    }

    // --- answers and the log ---

    /// Refuses a request: for now, for good, or with the connection, as the reason says.
    pub(crate) fn refuse(
        &self,
        request_id: &str,
        reason: Reason,
        detail: &'static str,
    ) -> Result<(), End> {
        let retriable = match reason.refusal() {
            Refusal::ForNow => true,
            Refusal::ForGood => false,
            Refusal::Close => return Err(End::new(reason, detail)),
        };
        self.log(reason, detail);
        self.table.borrow_mut().finish_local(request_id);
        self.answered.notify_waiters();
        self.output
            .send_text(answers::denied(request_id, retriable));
        Ok(())
    }

    /// Answers a request that the router handles itself.
    pub(crate) fn answer(&self, request_id: &str, text: String) {
        self.table.borrow_mut().finish_local(request_id);
        self.answered.notify_waiters();
        self.output.send_text(text);
    }

    /// Asks the spawner to log an event. Lost if the spawner's queue is full: a worker must not wait for its log.
    pub(crate) fn log(&self, reason: Reason, detail: &str) {
        let event = WorkerToSpawner::Event {
            level: LEVEL_WARN,
            reason: reason.code(),
            detail: Detail::clipped(detail),
            bytes_in: 0,
            bytes_out: self.output.bytes(),
        };
        let _ = self.spawner.channel.try_send_packet(&event, &[]);
    }

    // --- quiet ---

    /// Data moved.
    pub(crate) fn busy(&self) {
        self.moved.set(true);
    }

    /// Called by the clock: whether nothing moved since the last call.
    pub(crate) fn was_quiet(&self) -> bool {
        !self.moved.replace(false)
    }
}
