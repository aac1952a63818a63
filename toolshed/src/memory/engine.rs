//! The engine: turns of requests into answers and pushes.

use super::acl::Capability;
use super::answer::{BackendId, Outbox, Output, Refusal, Revocation};
use super::effect::{self, FrameLimits, Heads};
use super::genesis::Declarations;
use super::query::{self, Failure};
use super::session::{Backend, Registry, Session, SessionKey, WatchLimits};
use super::sql;
use super::store::{Store, StoreError, Synchronous};
use super::transact::{self, Applied, Rejection};
use memory_wire::Did;
use memory_wire::flags::{self, Flags};
use serde_json::{Map, Value, json};
use std::fmt;
use std::path::Path;
use thiserror::Error;

/// Bytes of effects one call gives out; the rest waits for [`Memory::flush`].
const MAX_EFFECTS_LEN: usize = 32 << 20;

/// When effects are given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effects {
    /// With the answer to the request that caused them.
    #[default]
    Immediate,
    /// By [`Memory::flush`] alone, so that several commits make one effect.
    Batched,
}

/// How a [`Memory`] works.
#[derive(Debug, Clone)]
pub struct MemoryOptions {
    /// When SQLite waits for the disk.
    pub synchronous: Synchronous,
    /// The deployment's cell mode, stated in [`Memory::capabilities`].
    pub modern_cell_rep: bool,
    /// Databases open at once, at least 1.
    pub max_open_spaces: usize,
    /// JSON values of one message, or `None` when they are not counted (`docs/operations.md`, `frameSlots`).
    pub frame_slots: Option<u64>,
    /// Principals that own every space and may repair an invalid ACL. Never a router.
    pub services: Vec<Did>,
    /// How many documents may be watched.
    pub watch_limits: WatchLimits,
    /// When effects are given out.
    pub effects: Effects,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            synchronous: Synchronous::Normal,
            modern_cell_rep: false,
            max_open_spaces: 64,
            frame_slots: Some(150_000),
            services: Vec::new(),
            watch_limits: WatchLimits::default(),
            effects: Effects::Immediate,
        }
    }
}

/// What the host knows while a request is handled. Asked again at every request: nothing of it is kept.
pub struct Turn<'a> {
    /// Unix seconds.
    pub now: u64,
    /// Whether this toolshed still owns the space, at the epoch the context was admitted with.
    pub owns: &'a dyn Fn(&Did) -> bool,
    /// Unix second at which the principal's grant in this context ends, or `None` when it has none.
    pub lease: &'a dyn Fn(&Did) -> Option<u64>,
    /// Whether the space is unlisted and the directory's rule places it on this toolshed.
    pub may_create: &'a dyn Fn(&Did) -> bool,
}

impl fmt::Debug for Turn<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Turn")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// What one session takes of its quotas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionUsage {
    /// The session's space.
    pub space: Did,
    /// Its identifier.
    pub session_id: String,
    /// Who opened it.
    pub principal: Did,
    /// Watch identifiers, views not included.
    pub watches: usize,
    /// View identifiers.
    pub views: usize,
    /// Documents the client stated that it holds, the last time it did.
    pub holdings: u64,
}

/// Why the engine could not be opened or seeded.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The operations of the seed are no valid commit.
    #[error("the seed is not a valid commit")]
    Seed,
}

/// A Memory server without sockets, clock or trust in its callers' clients.
#[derive(Debug)]
pub struct Memory {
    pub(super) options: MemoryOptions,
    pub(super) store: Store,
    pub(super) sessions: Registry,
    backends: u64,
}

impl Memory {
    /// Opens the store in `directory`, which is made when it is missing.
    ///
    /// # Errors
    /// [`MemoryError::Store`] when the directory cannot be made.
    pub fn open(directory: &Path, options: MemoryOptions) -> Result<Self, MemoryError> {
        let store = Store::open(directory, options.synchronous, options.max_open_spaces)?;
        Ok(Self {
            options,
            store,
            sessions: Registry::default(),
            backends: 0,
        })
    }

    /// What this engine can do. Encodings, authentication and presence are the host's to add.
    pub fn capabilities(&self) -> Flags {
        let mut capabilities = Flags::new();
        for (name, supported) in [
            ("stableExpressionResultIds", true),
            ("pendingReadStacks", true),
            (MARKERS, true),
            ("entityIdListing", true),
            ("entityIdPagination", true),
            ("entityIdLookup", true),
            ("sessionHoldings", true),
            ("sessionClose", true),
            ("genesisRoot", true),
            ("spaceKind", true),
            (flags::MODERN_CELL_REP, self.options.modern_cell_rep),
        ] {
            // A dozen short names are a valid descriptor.
            let _ = capabilities.insert(name, flags::Capability::Flag(supported));
        }
        capabilities
    }

    /// A new connection, with the flags its client and this toolshed have in common.
    pub fn connect(&mut self, negotiated: &Flags) -> BackendId {
        self.backends += 1;
        let id = BackendId(self.backends);
        let backend = Backend::new(
            negotiated.is_true("stableExpressionResultIds"),
            negotiated.is_true(MARKERS),
        );
        self.sessions.connect(id, backend);
        id
    }

    /// A connection is over: its sessions and their watches end at once. Their resume tokens stay.
    pub fn disconnect(&mut self, backend: BackendId) {
        self.sessions.disconnect(backend);
    }

    /// Handles one message of a connection. The answer comes first; pushes follow, for any connection.
    ///
    /// The message is one that strict JSON admitted (`docs/protocol.md` section 2): bounded in size, depth and values.
    pub fn request(&mut self, backend: BackendId, message: &Value, turn: &Turn<'_>) -> Vec<Output> {
        let mut out = Outbox::default();
        let mut heads = None;
        self.dispatch(backend, message, turn, &mut out, &mut heads);
        if self.options.effects == Effects::Immediate {
            self.drain(&mut out, heads);
        }
        out.into_outputs()
    }

    /// The principal's grant on this connection is over: its sessions end, and the client is told. Does nothing while
    /// `turn.lease` still knows a grant, so that a renewal which came first wins.
    pub fn expire(&mut self, backend: BackendId, principal: &Did, turn: &Turn<'_>) -> Vec<Output> {
        let mut out = Outbox::default();
        if (turn.lease)(principal).is_none_or(|expiry| expiry <= turn.now) {
            for key in self.keys(backend) {
                let held = self.sessions.held(backend, &key);
                if held.is_some_and(|session| session.principal == *principal) {
                    self.revoke(&key, Revocation::Unauthorized, &mut out);
                }
            }
        }
        out.into_outputs()
    }

    /// Whether effects wait for [`Self::flush`].
    pub fn has_pending(&self) -> bool {
        self.sessions.has_due()
    }

    /// Effects that wait, some 32 MiB of them at most; call again while [`Self::has_pending`].
    pub fn flush(&mut self) -> Vec<Output> {
        let mut out = Outbox::default();
        self.drain(&mut out, None);
        out.into_outputs()
    }

    /// What the sessions of a connection take of its quotas.
    pub fn sessions(&self, backend: BackendId) -> Vec<SessionUsage> {
        self.keys(backend)
            .into_iter()
            .filter_map(|key| {
                let session = self.sessions.get(&key)?;
                Some(SessionUsage {
                    space: key.space,
                    session_id: key.id.to_string(),
                    principal: session.principal,
                    watches: session.watches.len(),
                    views: session.views.len(),
                    holdings: session.holdings,
                })
            })
            .collect()
    }

    /// Whether the space has a store.
    ///
    /// # Errors
    /// [`MemoryError::Store`].
    pub fn has_space(&mut self, space: &Did) -> Result<bool, MemoryError> {
        Ok(self.store.space(space)?.is_some())
    }

    /// Closes the databases of spaces that are not this toolshed's any more, so that their files can be moved, and are read
    /// anew should they come back.
    pub fn close_unowned(&mut self, owns: &dyn Fn(&Did) -> bool) {
        self.store.close_unless(owns);
    }

    /// Writes `operations` as the first commit of a space that has none, in the name of the space and the session
    /// `fixture-seed`; asks no ACL. Answers whether it did.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn seed(&mut self, space: &Did, operations: &[Value]) -> Result<bool, MemoryError> {
        let limits = self.limits();
        let session = Session::new(
            "fixture-seed".into(),
            BackendId(0),
            *space,
            false,
            Declarations::default(),
        );
        let store = self.store.space_or_new(space)?;
        if store.server_seq > 0 {
            return Ok(false);
        }
        match transact::seed(store, space, &session, operations, &limits) {
            Ok(()) => Ok(true),
            Err(Rejection::Store(error)) => Err(error.into()),
            Err(Rejection::Refused(_) | Rejection::Conflict { .. }) => Err(MemoryError::Seed),
        }
    }

    pub(super) fn limits(&self) -> FrameLimits {
        FrameLimits {
            frame_slots: self.options.frame_slots,
        }
    }

    /// The answer to a failed request; `name` is what the request calls a failure that is not its own.
    pub(super) fn refusal(&mut self, space: &Did, failure: Failure, name: &'static str) -> Refusal {
        match failure {
            Failure::Refused(refusal) => refusal,
            Failure::Store(error) => {
                tracing::error!(reason = "storage-failure", %error);
                // Whatever is remembered of the database may be older than the failure: read it anew.
                self.store.close(space);
                Refusal::new(name, "memory storage failure").retriable()
            }
        }
    }

    fn keys(&self, backend: BackendId) -> Vec<SessionKey> {
        self.sessions
            .backend(backend)
            .map(|backend| backend.sessions.iter().cloned().collect())
            .unwrap_or_default()
    }

    fn dispatch(
        &mut self,
        backend: BackendId,
        message: &Value,
        turn: &Turn<'_>,
        out: &mut Outbox,
        heads: &mut Option<(Did, Heads)>,
    ) {
        let text = |name: &str| message.get(name).and_then(Value::as_str);
        let Some(request_id) = text("requestId") else {
            return out.answer(backend, "invalid", Err(Refusal::unparsable()));
        };
        let request = message.as_object();
        let space = text("space").and_then(|space| Did::parse(space).ok());
        let (Some(request), Some(kind), Some(space)) = (request, text("type"), space) else {
            return out.answer(backend, request_id, Err(Refusal::unparsable()));
        };
        if kind == "session.open" {
            return self.open_session(backend, (space, request_id), request, turn, out);
        }
        if !REQUESTS.contains(&kind) {
            return out.answer(backend, request_id, Err(Refusal::unparsable()));
        }
        let Some(id) = text("sessionId") else {
            return out.answer(backend, request_id, Err(Refusal::unparsable()));
        };
        let key = SessionKey {
            space,
            id: id.into(),
        };
        if self.sessions.held(backend, &key).is_none() {
            let refusal = Refusal::session("Session is not open on this connection");
            return out.answer(backend, request_id, Err(refusal));
        }
        if kind == "session.close" {
            let result = self.close_session(&key);
            return out.answer(backend, request_id, result);
        }
        if let Err(failure) = self.authorize(&key, turn) {
            if let Failure::Store(_) = failure {
                let refusal = self.refusal(&space, failure, failure_name(kind));
                out.answer(backend, request_id, Err(refusal));
            } else {
                let refusal = Refusal::revoked_in_flight();
                out.answer(backend, request_id, Err(refusal));
                self.revoke(&key, Revocation::Unauthorized, out);
            }
            return;
        }
        if kind == "transact" {
            return self.commit(backend, (&key, request_id), request, out, heads);
        }
        match self.ask(&key, kind, request) {
            Ok(answer) => out.answer(backend, request_id, Ok(answer)),
            Err(failure) => {
                let broken = matches!(failure, Failure::Store(_));
                let refusal = self.refusal(&space, failure, failure_name(kind));
                out.answer(backend, request_id, Err(refusal));
                if broken {
                    // What the session was told last is no longer certain; it is to open again.
                    self.revoke(&key, Revocation::TakenOver, out);
                }
            }
        }
    }

    /// Lease, ownership, store and READ of a live session, at this turn.
    fn authorize(&mut self, key: &SessionKey, turn: &Turn<'_>) -> Result<(), Failure> {
        let session = self.sessions.get(key).ok_or_else(Refusal::denied)?;
        let leased = (turn.lease)(&session.principal).is_some_and(|expiry| expiry > turn.now);
        if !leased || !(turn.owns)(&key.space) {
            return Err(Refusal::denied().into());
        }
        let space = self.store.space(&key.space)?.ok_or_else(Refusal::denied)?;
        space.acl.require(
            &key.space,
            &session.principal,
            session.service,
            Capability::Read,
        )?;
        Ok(())
    }

    /// Requests that change no document.
    fn ask(
        &mut self,
        key: &SessionKey,
        kind: &str,
        request: &Map<String, Value>,
    ) -> Result<Value, Failure> {
        match kind {
            "session.watch.set" => return self.watch_set(key, request),
            "session.watch.add" => return self.watch_add(key, request),
            _ => {}
        }
        let limits = self.limits();
        let gone = || Refusal::session("Unknown session for space");
        let session = self.sessions.get_mut(key).ok_or_else(gone)?;
        let space = self.store.space(&key.space)?.ok_or_else(gone)?;
        match kind {
            "graph.query" => {
                query::graph_query(space, request.get("query"), &session.scopes, &limits)
            }
            "session.ack" => {
                let seen = request
                    .get("seenSeq")
                    .and_then(super::document::safe_integer)
                    .ok_or_else(Refusal::unparsable)?;
                session.seen_seq = session.seen_seq.max(seen.min(space.server_seq));
                Ok(json!({"serverSeq": space.server_seq}))
            }
            "entity-id.list" => query::list_ids(space, request),
            "entity-id.exists" => query::id_exists(space, request),
            _ => Err(Refusal::unparsable().into()),
        }
    }

    /// Ends a session for good: its token is forgotten too.
    fn close_session(&mut self, key: &SessionKey) -> Result<Value, Refusal> {
        self.sessions.remove(key);
        let deleted = match self.store.space(&key.space) {
            Ok(Some(space)) => sql::delete_session(&space.connection, &key.id),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        deleted
            .map(|()| json!({}))
            .map_err(|error| self.refusal(&key.space, error.into(), "SessionError"))
    }

    fn commit(
        &mut self,
        backend: BackendId,
        (key, request_id): (&SessionKey, &str),
        request: &Map<String, Value>,
        out: &mut Outbox,
        heads: &mut Option<(Did, Heads)>,
    ) {
        let limits = self.limits();
        let unknown = || Refusal::session("Unknown or replaced session for space");
        let outcome = match request.get("commit").filter(|commit| commit.is_object()) {
            None => Err(Refusal::unparsable().into()),
            Some(commit) => match (self.sessions.get(key), self.store.space(&key.space)) {
                (Some(session), Ok(Some(space))) => {
                    transact::transact(space, &key.space, session, commit, &limits)
                }
                (_, Err(error)) => Err(error.into()),
                (None, _) | (_, Ok(None)) => Err(unknown().into()),
            },
        };
        match outcome {
            Ok(applied) => {
                out.answer(backend, request_id, Ok(applied.answer.clone()));
                *heads = Some((key.space, self.publish(key, applied, out)));
            }
            Err(Rejection::Refused(refusal)) => out.answer(backend, request_id, Err(refusal)),
            Err(Rejection::Conflict {
                refusal,
                local_seq,
                documents,
            }) => {
                out.answer(backend, request_id, Err(refusal));
                if let Some(session) = self.sessions.get_mut(key) {
                    session.judged(local_seq);
                    for document in documents {
                        if session.documents().contains(&document) {
                            session.dirty.insert(document);
                        }
                    }
                }
                self.sessions.queue(key);
            }
            Err(Rejection::Store(error)) => {
                let refusal = self.refusal(&key.space, error.into(), "TransactionError");
                out.answer(backend, request_id, Err(refusal));
            }
        }
    }

    /// Marks what a commit changed for those who watch it, and ends sessions it took READ from.
    fn publish(&mut self, writer: &SessionKey, applied: Applied, out: &mut Outbox) -> Heads {
        let mut heads = Heads::default();
        for (document, change) in applied.changes {
            // The writer knows what it set or deleted; what its patch made of others' content it does not.
            let except = (!change.patched).then_some(&*writer.id);
            self.sessions.mark(&writer.space, &document, except);
            heads.put(document, change.head);
        }
        if let Some(session) = self.sessions.get_mut(writer) {
            session.judged(applied.local_seq);
        }
        self.sessions.queue(writer);
        if applied.acl_changed {
            self.revoke_readers(&writer.space, out);
        }
        heads
    }

    fn revoke_readers(&mut self, did: &Did, out: &mut Outbox) {
        for key in self.sessions.of_space(did) {
            let may_read = match (self.sessions.get(&key), self.store.space(did)) {
                (Some(session), Ok(Some(space))) => {
                    let (principal, service) = (&session.principal, session.service);
                    let need = Capability::Read;
                    space.acl.require(did, principal, service, need).is_ok()
                }
                _ => false,
            };
            if !may_read {
                self.revoke(&key, Revocation::Unauthorized, out);
            }
        }
    }

    fn revoke(&mut self, key: &SessionKey, reason: Revocation, out: &mut Outbox) {
        if let Some(session) = self.sessions.remove(key) {
            out.revoked(session.backend, &key.space, &key.id, reason);
        }
    }

    /// Gives out effects that are due, until there are none or enough. `loaded` are documents already at hand.
    fn drain(&mut self, out: &mut Outbox, loaded: Option<(Did, Heads)>) {
        let limits = self.limits();
        let mut loaded = loaded;
        let mut given = 0_usize;
        while given < MAX_EFFECTS_LEN
            && let Some(key) = self.sessions.next_due()
        {
            let mut heads = match loaded.take() {
                Some((space, heads)) if space == key.space => heads,
                _ => Heads::default(),
            };
            let sync = match (self.store.space(&key.space), self.sessions.get_mut(&key)) {
                (Ok(Some(space)), Some(session)) => {
                    let from = session.synced_seq;
                    effect::take_sync(space, session, &mut heads, &limits, from, false)
                        .map(|sync| (session.backend, sync))
                }
                (Ok(None), _) => Err(StoreError::Damaged("space has no store any more")),
                (Err(error), _) => Err(error),
                (Ok(Some(_)), None) => continue,
            };
            match sync {
                Ok((backend, sync)) => {
                    given = given.saturating_add(sync.len);
                    out.push(backend, effect::effect(&key, sync.value));
                    self.sessions.queue(&key);
                    loaded = Some((key.space, heads));
                }
                Err(error) => {
                    let space = key.space;
                    self.refusal(&space, error.into(), "QueryError");
                    self.revoke(&key, Revocation::TakenOver, out);
                }
            }
        }
    }
}

const MARKERS: &str = "verdictCatchUpMarkers";

/// Requests of a session, `session.open` not among them.
const REQUESTS: [&str; 8] = [
    "transact",
    "graph.query",
    "session.watch.set",
    "session.watch.add",
    "session.ack",
    "session.close",
    "entity-id.list",
    "entity-id.exists",
];

fn failure_name(kind: &str) -> &'static str {
    match kind {
        "transact" => "TransactionError",
        "session.ack" => "SessionError",
        _ => "QueryError",
    }
}
