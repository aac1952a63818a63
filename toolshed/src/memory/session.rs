//! Live sessions: who holds them, what they watch, what they still have to be told.

use super::answer::BackendId;
use super::document::{DocumentKey, Scopes};
use super::genesis::Declarations;
use memory_wire::Did;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// A session's name: its identifier within its space.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SessionKey {
    pub(super) space: Did,
    pub(super) id: Arc<str>,
}

/// A watch or a view: the documents it names.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    /// Of its definition: equal digests, equal watches.
    pub(super) digest: [u8; 32],
    pub(super) documents: BTreeSet<DocumentKey>,
}

/// A session that a connection holds. One that no connection holds is not here: its resume token is in the store.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: Arc<str>,
    pub(super) backend: BackendId,
    pub(super) principal: Did,
    /// Whether the principal is a service of this toolshed.
    pub(super) service: bool,
    pub(super) token: String,
    pub(super) scopes: Scopes,
    pub(super) declarations: Declarations,
    /// Whether accepted and conflicting commits are confirmed by an effect's `caughtUpLocalSeq`.
    pub(super) markers: bool,
    pub(super) watches: BTreeMap<String, Watch>,
    pub(super) views: BTreeMap<String, Watch>,
    /// Documents the client stated that it holds, the last time it did.
    pub(super) holdings: u64,
    /// What the client has integrated, by its own word.
    pub(super) seen_seq: u64,
    /// What it has been sent.
    pub(super) synced_seq: u64,
    /// Highest `localSeq` with a verdict.
    pub(super) caught_up: u64,
    /// Whether `caught_up` has yet to be confirmed.
    pub(super) marker_due: bool,
    /// The union of what watches and views name. Only the registry changes it.
    documents: HashSet<DocumentKey>,
    /// Documents to be sent, or removed when no longer watched.
    pub(super) dirty: BTreeSet<DocumentKey>,
    queued: bool,
}

impl Session {
    pub(super) fn new(
        id: Arc<str>,
        backend: BackendId,
        principal: Did,
        service: bool,
        declarations: Declarations,
    ) -> Self {
        Self {
            scopes: Scopes::new(principal.as_str(), &id),
            id,
            backend,
            principal,
            service,
            token: String::new(),
            declarations,
            markers: false,
            watches: BTreeMap::new(),
            views: BTreeMap::new(),
            holdings: 0,
            seen_seq: 0,
            synced_seq: 0,
            caught_up: 0,
            marker_due: false,
            documents: HashSet::new(),
            dirty: BTreeSet::new(),
            queued: false,
        }
    }

    pub(super) fn documents(&self) -> &HashSet<DocumentKey> {
        &self.documents
    }

    /// Whether anything is to be sent.
    pub(super) fn is_due(&self) -> bool {
        self.marker_due || !self.dirty.is_empty()
    }

    /// Notes a verdict. Only a session that watches something waits for its confirmation.
    pub(super) fn judged(&mut self, local_seq: u64) {
        self.caught_up = self.caught_up.max(local_seq);
        let watching = !self.watches.is_empty() || !self.views.is_empty();
        self.marker_due |= self.markers && watching;
    }
}

/// One connection and what its client can do.
#[derive(Debug, Default)]
pub(super) struct Backend {
    /// Whether it negotiated `stableExpressionResultIds`.
    pub(super) stable_ids: bool,
    /// Whether it negotiated `verdictCatchUpMarkers`.
    pub(super) markers: bool,
    pub(super) sessions: BTreeSet<SessionKey>,
    /// Documents its sessions watch.
    documents: usize,
}

impl Backend {
    pub(super) fn new(stable_ids: bool, markers: bool) -> Self {
        Self {
            stable_ids,
            markers,
            ..Self::default()
        }
    }
}

#[derive(Debug, Default)]
struct Interest {
    sessions: BTreeSet<Arc<str>>,
    watchers: HashMap<DocumentKey, HashSet<Arc<str>>>,
}

/// How many documents may be watched: a watch is counted by the host, the documents it names are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchLimits {
    /// By one session.
    pub per_session: usize,
    /// By all sessions of one backend.
    pub per_backend: usize,
    /// By all sessions.
    pub total: usize,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self {
            per_session: 1 << 15,
            per_backend: 1 << 18,
            total: 1 << 22,
        }
    }
}

/// All live sessions and the index from documents to those who watch them.
#[derive(Debug, Default)]
pub(super) struct Registry {
    sessions: HashMap<SessionKey, Session>,
    spaces: HashMap<Did, Interest>,
    backends: HashMap<BackendId, Backend>,
    queue: VecDeque<SessionKey>,
    documents: usize,
}

impl Registry {
    pub(super) fn connect(&mut self, id: BackendId, backend: Backend) {
        self.backends.insert(id, backend);
    }

    /// Forgets a connection and all that it held.
    pub(super) fn disconnect(&mut self, id: BackendId) {
        let keys = self
            .backends
            .get(&id)
            .map(|backend| backend.sessions.clone());
        for key in keys.into_iter().flatten() {
            self.remove(&key);
        }
        self.backends.remove(&id);
    }

    pub(super) fn backend(&self, id: BackendId) -> Option<&Backend> {
        self.backends.get(&id)
    }

    pub(super) fn get(&self, key: &SessionKey) -> Option<&Session> {
        self.sessions.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &SessionKey) -> Option<&mut Session> {
        self.sessions.get_mut(key)
    }

    /// The session, when this connection holds it.
    pub(super) fn held(&self, backend: BackendId, key: &SessionKey) -> Option<&Session> {
        self.get(key).filter(|session| session.backend == backend)
    }

    /// Sessions of a space, in order.
    pub(super) fn of_space(&self, space: &Did) -> Vec<SessionKey> {
        let ids = self.spaces.get(space).map(|interest| &interest.sessions);
        ids.into_iter()
            .flatten()
            .map(|id| SessionKey {
                space: *space,
                id: id.clone(),
            })
            .collect()
    }

    /// Adds a session that is not there yet.
    pub(super) fn insert(&mut self, key: SessionKey, session: Session) {
        if let Some(backend) = self.backends.get_mut(&session.backend) {
            backend.sessions.insert(key.clone());
        }
        let interest = self.spaces.entry(key.space).or_default();
        interest.sessions.insert(key.id.clone());
        self.sessions.insert(key, session);
    }

    /// Ends a session.
    pub(super) fn remove(&mut self, key: &SessionKey) -> Option<Session> {
        self.watch(key, BTreeMap::new(), Some(BTreeMap::new()));
        let session = self.sessions.remove(key)?;
        if let Some(backend) = self.backends.get_mut(&session.backend) {
            backend.sessions.remove(key);
        }
        if let Some(interest) = self.spaces.get_mut(&key.space) {
            interest.sessions.remove(&key.id);
            if interest.sessions.is_empty() {
                self.spaces.remove(&key.space);
            }
        }
        Some(session)
    }

    /// Gives a session to another connection; the one that had it.
    pub(super) fn hand_over(&mut self, key: &SessionKey, to: BackendId) -> Option<BackendId> {
        let session = self.sessions.get_mut(key)?;
        let from = std::mem::replace(&mut session.backend, to);
        let count = session.documents.len();
        if let Some(backend) = self.backends.get_mut(&from) {
            backend.sessions.remove(key);
            backend.documents -= count.min(backend.documents);
        }
        if let Some(backend) = self.backends.get_mut(&to) {
            backend.sessions.insert(key.clone());
            backend.documents += count;
        }
        Some(from)
    }

    /// Whether a session may watch `documents` in all, or `more` of them besides those it watches.
    pub(super) fn has_room(
        &self,
        key: &SessionKey,
        documents: usize,
        limits: &WatchLimits,
    ) -> bool {
        let Some(session) = self.sessions.get(key) else {
            return false;
        };
        let now = session.documents.len();
        let backend = self
            .backends
            .get(&session.backend)
            .map_or(0, |backend| backend.documents);
        documents <= limits.per_session
            && (backend - now.min(backend)).saturating_add(documents) <= limits.per_backend
            && (self.documents - now.min(self.documents)).saturating_add(documents) <= limits.total
    }

    /// Replaces a session's watches and, when given, its views. What it no longer watches is returned.
    pub(super) fn watch(
        &mut self,
        key: &SessionKey,
        watches: BTreeMap<String, Watch>,
        views: Option<BTreeMap<String, Watch>>,
    ) -> Vec<DocumentKey> {
        let Some(session) = self.sessions.get_mut(key) else {
            return Vec::new();
        };
        session.watches = watches;
        if let Some(views) = views {
            session.views = views;
        }
        let documents: HashSet<DocumentKey> = session
            .watches
            .values()
            .chain(session.views.values())
            .flat_map(|watch| watch.documents.iter().cloned())
            .collect();
        let left: Vec<DocumentKey> = session.documents.difference(&documents).cloned().collect();
        let joined: Vec<DocumentKey> = documents.difference(&session.documents).cloned().collect();
        session.documents = documents;
        self.count(key, &joined, &left);
        left
    }

    /// Adds watches whose identifiers are new. What the session watches only now is returned.
    pub(super) fn watch_more(
        &mut self,
        key: &SessionKey,
        watches: BTreeMap<String, Watch>,
    ) -> Vec<DocumentKey> {
        let Some(session) = self.sessions.get_mut(key) else {
            return Vec::new();
        };
        let mut joined = Vec::new();
        for document in watches.values().flat_map(|watch| &watch.documents) {
            if session.documents.insert(document.clone()) {
                joined.push(document.clone());
            }
        }
        session.watches.extend(watches);
        self.count(key, &joined, &[]);
        joined
    }

    fn count(&mut self, key: &SessionKey, joined: &[DocumentKey], left: &[DocumentKey]) {
        let backend = self.sessions.get(key).map(|session| session.backend);
        if let Some(backend) = backend.and_then(|id| self.backends.get_mut(&id)) {
            backend.documents += joined.len();
            backend.documents -= left.len().min(backend.documents);
        }
        self.documents += joined.len();
        self.documents -= left.len().min(self.documents);
        let Some(interest) = self.spaces.get_mut(&key.space) else {
            return;
        };
        for document in joined {
            let watchers = interest.watchers.entry(document.clone()).or_default();
            watchers.insert(key.id.clone());
        }
        for document in left {
            if let Some(watchers) = interest.watchers.get_mut(document) {
                watchers.remove(&key.id);
                if watchers.is_empty() {
                    interest.watchers.remove(document);
                }
            }
        }
    }

    /// Marks a document for everybody who watches it, except `writer`.
    pub(super) fn mark(&mut self, space: &Did, document: &DocumentKey, except: Option<&str>) {
        let watchers = self
            .spaces
            .get(space)
            .and_then(|interest| interest.watchers.get(document));
        for id in watchers.into_iter().flatten() {
            if except == Some(&**id) {
                continue;
            }
            let key = SessionKey {
                space: *space,
                id: id.clone(),
            };
            if let Some(session) = self.sessions.get_mut(&key) {
                session.dirty.insert(document.clone());
                enqueue(&mut self.queue, session, key);
            }
        }
    }

    /// Puts a session that has something to be told into the queue.
    pub(super) fn queue(&mut self, key: &SessionKey) {
        if let Some(session) = self.sessions.get_mut(key)
            && session.is_due()
        {
            enqueue(&mut self.queue, session, key.clone());
        }
    }

    /// The next session that has something to be told.
    pub(super) fn next_due(&mut self) -> Option<SessionKey> {
        while let Some(key) = self.queue.pop_front() {
            if let Some(session) = self.sessions.get_mut(&key) {
                session.queued = false;
                if session.is_due() {
                    return Some(key);
                }
            }
        }
        None
    }

    pub(super) fn has_due(&self) -> bool {
        !self.queue.is_empty()
    }
}

fn enqueue(queue: &mut VecDeque<SessionKey>, session: &mut Session, key: SessionKey) {
    if !session.queued {
        session.queued = true;
        queue.push_back(key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::did;
    use super::*;

    fn watch(ids: &[&str]) -> Watch {
        Watch {
            digest: [0; 32],
            documents: ids.iter().map(|id| DocumentKey::in_space(id)).collect(),
        }
    }

    fn watches(ids: &[&str]) -> BTreeMap<String, Watch> {
        BTreeMap::from([("w".to_owned(), watch(ids))])
    }

    #[test]
    fn counts_and_index_return_to_nothing() {
        let mut registry = Registry::default();
        let limits = WatchLimits {
            per_session: 3,
            per_backend: 4,
            total: 5,
        };
        let key = |id: &str| SessionKey {
            space: did(9),
            id: id.into(),
        };
        for (backend, id) in [(1, "a"), (1, "b"), (2, "c")] {
            let backend = BackendId(backend);
            if registry.backend(backend).is_none() {
                registry.connect(backend, Backend::default());
            }
            let session = Session::new(id.into(), backend, did(1), false, Declarations::default());
            registry.insert(key(id), session);
        }
        assert!(!registry.has_room(&key("a"), 4, &limits));
        registry.watch(&key("a"), watches(&["1", "2", "3"]), None);
        assert!(registry.has_room(&key("a"), 3, &limits));
        assert!(registry.has_room(&key("b"), 1, &limits));
        assert!(!registry.has_room(&key("b"), 2, &limits));
        assert!(registry.has_room(&key("c"), 2, &limits));
        assert!(!registry.has_room(&key("c"), 3, &limits));
        let more = BTreeMap::from([("x".to_owned(), watch(&["3", "4"]))]);
        assert_eq!(
            registry.watch_more(&key("b"), more),
            [DocumentKey::in_space("3"), DocumentKey::in_space("4")]
        );
        let left = registry.watch(&key("a"), watches(&["1"]), None);
        assert_eq!(left.len(), 2);
        assert_eq!(
            registry.hand_over(&key("a"), BackendId(2)),
            Some(BackendId(1))
        );
        registry.mark(&did(9), &DocumentKey::in_space("1"), None);
        assert_eq!(registry.next_due(), Some(key("a")));
        assert_eq!(registry.next_due(), None);
        registry.mark(&did(9), &DocumentKey::in_space("4"), Some("b"));
        assert!(!registry.has_due());
        registry.disconnect(BackendId(1));
        registry.disconnect(BackendId(2));
        assert_eq!(registry.documents, 0);
        assert!(registry.spaces.is_empty() && registry.sessions.is_empty());
        assert!(registry.backends.is_empty());
    }
}
