//! The application's side of a durable session.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use memory_wire::did::Did;
use memory_wire::message::{MAX_RAW_LEN, is_identifier};
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use super::client::SessionOptions;
use super::driver;
use super::events::Event;
use super::lane::Up;
use super::machine::{CommitOwner, Machine, is_session_fault};
use super::retry::Backoff;
use super::saved::SavedSession;
use crate::session::{roots, watch as graph_watch};
use crate::{ClientError, Denied, Ended, Identity, random};

/// Commits of one session without a verdict, and bytes of them. Callers wait for room, first come, first served.
const MAX_COMMITS: usize = 256;
const MAX_COMMITS_LEN: usize = 16 << 20;
/// Bytes that one permit stands for.
const COMMIT_UNIT: usize = 1 << 10;
/// Bytes of a request beside its commit.
const REQUEST_ENVELOPE_LEN: usize = 1 << 10;
/// Bytes of one watch: it must fit a frame alone, whatever the router allows.
const MAX_WATCH_LEN: usize = 64 << 10;
/// Bytes of all watches of a session.
const MAX_WATCHES_LEN: usize = 4 << 20;

/// A session that is open at a toolshed, on one connection.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) up: Arc<Up>,
    pub(crate) session_id: String,
    /// The toolshed does not know the session, as a request found out.
    pub(crate) lost: Notify,
    serial: u64,
}

impl Attachment {
    pub(crate) fn new(up: Arc<Up>, session_id: String) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            up,
            session_id,
            lost: Notify::new(),
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }
}

#[derive(Debug, Clone)]
enum Phase {
    Waiting,
    Open(Arc<Attachment>),
    Over(Ended),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Running,
    /// Settle what is unanswered, then end.
    Closing,
    /// End at once.
    Abandoned,
}

/// What the session's task and its handle share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) space: Did,
    pub(crate) identity: Arc<Identity>,
    pub(crate) declarations: Map<String, Value>,
    /// There may be something to send.
    pub(crate) work: Notify,
    machine: Mutex<Machine>,
    /// There may be an event.
    news: Notify,
    phase: watch::Sender<Phase>,
    stop: watch::Sender<Stop>,
    count: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Core {
    pub(crate) fn new(
        space: Did,
        identity: Arc<Identity>,
        options: SessionOptions,
    ) -> Result<Self, ClientError> {
        Ok(Self {
            space,
            identity,
            declarations: options.declarations,
            work: Notify::new(),
            machine: Mutex::new(Machine::new(options.saved, options.commits_in_flight)?),
            news: Notify::new(),
            phase: watch::Sender::new(Phase::Waiting),
            stop: watch::Sender::new(Stop::Running),
            count: Arc::new(Semaphore::new(MAX_COMMITS)),
            bytes: Arc::new(Semaphore::new(MAX_COMMITS_LEN / COMMIT_UNIT)),
        })
    }

    /// Does something with the state; whoever waits for events looks again.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Machine) -> T) -> T {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut machine);
        drop(machine);
        self.news.notify_one();
        result
    }

    pub(crate) fn attached(&self, attachment: Arc<Attachment>) {
        self.phase.send_replace(Phase::Open(attachment));
    }

    pub(crate) fn detached(&self) {
        self.with(Machine::detach);
        self.phase.send_replace(Phase::Waiting);
    }

    pub(crate) fn end(&self, ended: &Ended) {
        self.with(|machine| machine.end(ended));
        self.count.close();
        self.bytes.close();
        self.phase.send_replace(Phase::Over(ended.clone()));
    }

    pub(crate) fn abandon(&self) {
        self.stop.send_replace(Stop::Abandoned);
    }

    /// Waits until the session's task has ended.
    pub(crate) async fn over(&self) {
        let mut phase = self.phase.subscribe();
        let _ = phase
            .wait_for(|phase| matches!(phase, Phase::Over(_)))
            .await;
    }

    /// Waits until the application wants the task to end; `idle`: also once it closed the session and nothing is unanswered.
    pub(crate) async fn quit(&self, idle: bool) {
        let mut stop = self.stop.subscribe();
        let asked = stop.wait_for(|stop| match stop {
            Stop::Running => false,
            Stop::Closing => idle && self.with(|machine| machine.is_closed_and_settled()),
            Stop::Abandoned => true,
        });
        let _ = asked.await;
    }

    fn ended(&self) -> ClientError {
        let ended = self.with(|machine| machine.ended().cloned());
        ClientError::Ended(ended.unwrap_or(Ended::Closed))
    }

    /// Waits for an attachment newer than `after`.
    async fn open(&self, after: u64) -> Result<Arc<Attachment>, ClientError> {
        let mut phase = self.phase.subscribe();
        let settled = phase.wait_for(|phase| match phase {
            Phase::Waiting => false,
            Phase::Open(attachment) => attachment.serial > after,
            Phase::Over(_) => true,
        });
        match settled.await.as_deref() {
            Ok(Phase::Open(attachment)) => Ok(Arc::clone(attachment)),
            Ok(Phase::Over(ended)) => Err(ClientError::Ended(ended.clone())),
            Ok(Phase::Waiting) | Err(_) => Err(self.ended()),
        }
    }
}

/// A session that survives its connections.
///
/// Read its events: they are how documents arrive. Up to 1,024 pushes or 16 MiB wait; what finds no room is fetched, as a
/// difference, after the rest was read, between [`Event::Interrupted`] and [`Event::Rebuilt`]. While more than half of that
/// waits, watch mutations wait too; commits and reads do not.
///
/// Every method takes `&self`: put it in an [`Arc`] to read its events in one task and to commit in others. One task reads the
/// events, as each is given out once.
///
/// Dropping it ends the session at once; commits without a verdict may or may not have been applied. [`Self::close`] settles
/// them first.
#[derive(Debug)]
pub struct DurableSession {
    core: Arc<Core>,
}

/// A commit in the queue. Its verdict comes whether or not anybody waits: unheard, as [`Event::Answered`].
#[derive(Debug)]
pub struct Submitted {
    /// Its number in the session.
    pub local_seq: u64,
    answer: oneshot::Receiver<Result<Value, ClientError>>,
    core: Arc<Core>,
}

impl Submitted {
    /// Waits for the verdict, over as many connections as it takes.
    ///
    /// # Errors
    /// [`ClientError::Denied`] is final: the commit was not applied. After [`ClientError::Ended`] it may have been.
    pub async fn verdict(self) -> Result<Value, ClientError> {
        match self.answer.await {
            Ok(verdict) => verdict,
            Err(_) => Err(self.core.ended()),
        }
    }
}

impl DurableSession {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// The space.
    pub fn space(&self) -> Did {
        self.core.space
    }

    /// Waits until the session is open.
    ///
    /// # Errors
    /// [`ClientError::Ended`].
    pub async fn opened(&self) -> Result<(), ClientError> {
        self.core.open(0).await.map(drop)
    }

    /// Whether it is open now.
    pub fn is_open(&self) -> bool {
        matches!(&*self.core.phase.borrow(), Phase::Open(_))
    }

    /// The session as it can be kept, to go on with it later: [`SessionOptions::saved`]. `None` before its first open.
    /// Documents count as held when [`Self::event`] has returned them, so keep what it returned as well. A verdict that waits
    /// among the events is not kept: read it first.
    pub fn save(&self) -> Option<SavedSession> {
        let (space, principal) = (self.core.space, self.core.identity.did());
        self.core.with(|machine| machine.save(space, principal))
    }

    /// The next event, in order. `None` after [`Event::Ended`].
    pub async fn event(&self) -> Option<Event> {
        loop {
            let news = self.core.news.notified();
            let (event, over) = {
                let mut machine = self
                    .core
                    .machine
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let (event, work) = machine.next_event();
                if work {
                    self.core.work.notify_one();
                }
                (event, machine.ended().is_some())
            };
            if event.is_some() || over {
                // Another reader, if there is one, looks for itself.
                self.core.news.notify_one();
                return event;
            }
            news.await;
        }
    }

    // --- commits ---

    /// Commits operations without reads. See [`Self::submit`].
    ///
    /// # Errors
    /// See [`Submitted::verdict`] and [`Self::submit`].
    pub async fn commit(&self, operations: Value) -> Result<Value, ClientError> {
        let reads = json!({ "confirmed": [], "pending": [] });
        let commit = json!({ "reads": reads, "operations": operations });
        self.submit(commit).await?.verdict().await
    }

    /// Queues a whole commit, waiting while 256 commits or 16 MiB of them are without a verdict; its `localSeq` is set here.
    /// It is sent, and sent again on the next connection if need be, until it has a verdict; it is applied at most once. A
    /// refusal for now, or an answer that the session is not known, is no verdict.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for a commit that is no object or longer than a message; [`ClientError::Ended`].
    pub async fn submit(&self, commit: Value) -> Result<Submitted, ClientError> {
        if !commit.is_object() {
            return Err(ClientError::Usage("a commit is an object"));
        }
        let len = commit.to_string().len() + REQUEST_ENVELOPE_LEN;
        if len > MAX_RAW_LEN {
            return Err(ClientError::Usage("commit over 8 MiB"));
        }
        let units = len.div_ceil(COMMIT_UNIT).min(MAX_COMMITS_LEN / COMMIT_UNIT);
        let units = u32::try_from(units).map_err(|_| ClientError::Usage("commit over 8 MiB"))?;
        let over = |_| self.core.ended();
        let count = Arc::clone(&self.core.count)
            .acquire_owned()
            .await
            .map_err(over)?;
        let bytes = Arc::clone(&self.core.bytes)
            .acquire_many_owned(units)
            .await
            .map_err(over)?;
        let (sender, answer) = oneshot::channel();
        let owner = CommitOwner {
            answer: Some(sender),
            room: vec![count, bytes],
        };
        let local_seq = self.core.with(|machine| machine.commit(commit, owner))?;
        self.core.work.notify_one();
        Ok(Submitted {
            local_seq,
            answer,
            core: Arc::clone(&self.core),
        })
    }

    // --- watches ---

    /// Watches the documents with these ids, each under its own id, besides what is watched already; waits until the toolshed
    /// knows. The documents come as [`Event::Sync`].
    ///
    /// # Errors
    /// See [`Self::watch_add`].
    pub async fn watch(&self, ids: &[&str]) -> Result<(), ClientError> {
        self.watch_add(ids.iter().map(|id| graph_watch(id, &[id])).collect())
            .await
    }

    /// Adds watches as they stand in `session.watch.add`: `{"id","kind","query"}`. They are restored after every reconnect.
    ///
    /// # Errors
    /// [`ClientError::Denied`] when refused for good: they are not watched. [`ClientError::Usage`] for a watch without an
    /// identifier, with one that means something else, over 64 KiB, or one too many; [`ClientError::Ended`].
    pub async fn watch_add(&self, watches: Vec<Value>) -> Result<(), ClientError> {
        self.change_watches(watches, false).await
    }

    /// Replaces all watches; documents no longer watched come as removes of an [`Event::Sync`].
    ///
    /// # Errors
    /// See [`Self::watch_add`]. When refused for good, what was watched before is watched still.
    pub async fn watch_set(&self, watches: Vec<Value>) -> Result<(), ClientError> {
        self.change_watches(watches, true).await
    }

    async fn change_watches(&self, list: Vec<Value>, replace: bool) -> Result<(), ClientError> {
        let mut watches = BTreeMap::new();
        let mut len = 0;
        for watch in list {
            let id = watch.get("id").and_then(Value::as_str);
            let id = id
                .filter(|id| is_identifier(id))
                .ok_or(ClientError::Usage("a watch has an identifier"))?
                .to_owned();
            let own = super::watches::length(&watch);
            if own > MAX_WATCH_LEN {
                return Err(ClientError::Usage("watch over 64 KiB"));
            }
            len += own;
            if watches.insert(id, watch).is_some() {
                return Err(ClientError::Usage("two watches have one identifier"));
            }
        }
        let (owner, accepted) = oneshot::channel();
        self.core.with(|machine| {
            let held = if replace { 0 } else { machine.watches_len() };
            if held + len > MAX_WATCHES_LEN {
                return Err(ClientError::Usage("watches over 4 MiB"));
            }
            machine.watch(watches, replace, owner)
        })?;
        self.core.work.notify_one();
        accepted.await.unwrap_or_else(|_| Err(self.core.ended()))
    }

    // --- reads and other requests ---

    /// `graph.query` of whole documents by id.
    ///
    /// # Errors
    /// See [`Self::read`].
    pub async fn query(&self, ids: &[&str]) -> Result<Value, ClientError> {
        self.read("graph.query", json!({ "query": { "roots": roots(ids) } }))
            .await
    }

    /// A request that changes nothing, such as `graph.query` or `entity-id.list`. It waits for the session to be open, and is
    /// asked again after a lost connection or a refusal for now, until it is answered; dropping the future gives up.
    ///
    /// # Errors
    /// [`ClientError::Denied`], final; [`ClientError::Usage`]; [`ClientError::Ended`].
    pub async fn read(&self, kind: &str, members: Value) -> Result<Value, ClientError> {
        let mut after = 0;
        let mut backoff = Backoff::default();
        loop {
            let attachment = self.core.open(after).await?;
            match self.ask(&attachment, kind, &members).await {
                Err(ClientError::Closed(_)) => after = attachment.serial,
                Err(ClientError::Denied(denied)) if denied.retriable => {
                    let delay = backoff.next_hold(Instant::now(), random::bits());
                    tokio::time::sleep(delay).await;
                }
                // Refused because the session has ended there: it is opened anew.
                Err(ClientError::Denied(denied)) if self.is_stale(&attachment, &denied) => {
                    attachment.lost.notify_one();
                    after = attachment.serial;
                }
                outcome => return outcome,
            }
        }
    }

    /// Any other request of the session. It waits for the session to be open, and is never sent twice.
    ///
    /// # Errors
    /// [`ClientError::Closed`] when the connection ended first: what became of the request is unknown.
    /// [`ClientError::Denied`], which may be retriable; [`ClientError::Usage`]; [`ClientError::Ended`].
    pub async fn request(&self, kind: &str, members: Value) -> Result<Value, ClientError> {
        let attachment = self.core.open(0).await?;
        self.ask(&attachment, kind, &members).await
    }

    async fn ask(
        &self,
        attachment: &Attachment,
        kind: &str,
        members: &Value,
    ) -> Result<Value, ClientError> {
        let Value::Object(members) = members.clone() else {
            return Err(ClientError::Usage("members are an object"));
        };
        let members = driver::addressed(members, self.core.space, &attachment.session_id);
        let permit = attachment.up.request().await;
        let inner = attachment.up.connection.inner();
        inner.request(kind, members, permit).await
    }

    /// Whether a denial says no more than that the session was not open there any more.
    fn is_stale(&self, attachment: &Attachment, denied: &Denied) -> bool {
        let (space, id) = (self.core.space.as_str(), attachment.session_id.as_str());
        // The receive task forgets a session before it hands on what came after its end.
        let forgotten = attachment
            .up
            .connection
            .inner()
            .deliveries(space, id)
            .is_none();
        let current = match &*self.core.phase.borrow() {
            Phase::Open(current) => current.serial == attachment.serial,
            Phase::Waiting | Phase::Over(_) => false,
        };
        forgotten || !current || is_session_fault(denied)
    }

    /// Waits until every commit has its verdict, closes the session and frees its place. Tasks that share the session see
    /// [`Event::Ended`], and [`ClientError::Ended`] for what they ask meanwhile; closing twice is no error.
    ///
    /// # Errors
    /// [`ClientError::Ended`] when it ended in another way first.
    pub async fn close(&self) -> Result<(), ClientError> {
        self.core.with(Machine::close);
        self.core.stop.send_if_modified(|stop| {
            let running = *stop == Stop::Running;
            if running {
                *stop = Stop::Closing;
            }
            running
        });
        self.core.work.notify_one();
        self.core.over().await;
        match self.core.with(|machine| machine.ended().cloned()) {
            None | Some(Ended::Closed) => Ok(()),
            Some(ended) => Err(ClientError::Ended(ended)),
        }
    }
}

impl Drop for DurableSession {
    fn drop(&mut self) {
        self.core.abandon();
    }
}
