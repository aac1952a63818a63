//! The durable client: connections that come back, and sessions that survive them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memory_wire::did::Did;
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::lane::Lane;
use super::placement::{MAX_SHARED, Placement};
use super::session::{Core, DurableSession};
use super::{SavedSession, driver};
use crate::{ClientError, Endpoint, Identity, Options};

/// Sessions that are opened and restored at once; the others wait their turn.
const MAX_RESTORING: usize = 16;

/// How sessions share connections (seed, `sharedMemoryConnection`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Topology {
    /// All spaces on one connection, and on up to three more when the router's session limit asks for them.
    #[default]
    Shared,
    /// A connection for every space.
    Dedicated,
}

/// How a client connects.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// Each connection's options. `dedicated` follows from the topology, and leases are always kept.
    pub connection: Options,
    /// Which sessions share a connection.
    pub topology: Topology,
}

/// How a session is opened.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// More members of `session`: `spaceKind`, `genesisRoot`.
    pub declarations: Map<String, Value>,
    /// Commits in flight at once. With 1, the default, commits are applied in their order whatever happens. With more, a
    /// commit refused for now is applied after those that were in flight with it.
    pub commits_in_flight: usize,
    /// An earlier life of the session to go on with.
    pub saved: Option<SavedSession>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            declarations: Map::new(),
            commits_in_flight: 1,
            saved: None,
        }
    }
}

/// One connection of a client, for people and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionStatus {
    /// The space of a dedicated connection.
    pub space: Option<Did>,
    /// The connection's name in the router's log, while it is up.
    pub connection: Option<String>,
    /// Whether it is up.
    pub up: bool,
    /// Why it is not: what the last attempt failed with, or how the connection before ended. `None` while it is up.
    pub last_error: Option<String>,
    /// Sessions now.
    pub sessions: u64,
    /// Sessions at once, at most so far.
    pub peak_sessions: u64,
    /// Sessions the router allows.
    pub max_sessions: Option<u64>,
    /// Requests in flight, those of control not counted.
    pub requests: usize,
    /// Requests that may be.
    pub max_requests: usize,
}

/// A client of one router. Cheap to clone. Connections are made when sessions need them.
///
/// A connection that ends is made again: at first within a second, then with a random delay below a bound that doubles to 30
/// seconds and starts anew after a minute that worked. Close codes 1008 and 1009, an upgrade refused for good, and a
/// certificate that is not trusted ([`ClientError::Untrusted`], on a first connection) end the sessions of that connection
/// instead, since the same would happen again. A router that cannot be reached is tried for ever:
/// [`ConnectionStatus::last_error`] says why it is not.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

/// What the sessions of a client share.
#[derive(Debug)]
pub(crate) struct Shared {
    endpoint: Endpoint,
    options: ClientOptions,
    lanes: Mutex<Lanes>,
    pub(crate) restoring: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Lanes {
    placement: Placement,
    shared: [Option<Arc<Lane>>; MAX_SHARED],
    dedicated: HashMap<Did, (Arc<Lane>, usize)>,
    sessions: Vec<Weak<Core>>,
    closed: bool,
}

impl Client {
    /// A client that connects to nothing yet. Its methods need a Tokio runtime.
    pub fn new(endpoint: Endpoint, mut options: ClientOptions) -> Self {
        options.connection.keep_leases = true;
        Self {
            shared: Arc::new(Shared {
                endpoint,
                options,
                lanes: Mutex::default(),
                restoring: Arc::new(Semaphore::new(MAX_RESTORING)),
            }),
        }
    }

    /// Opens a session of `space` as `identity`, and waits until it is admitted. A refusal for now is waited out without
    /// limit, a second or more between two tries; dropping the future gives up. A connection that drops under the first
    /// open's own requests fails it; one that drops while the open waits is followed onto the next.
    ///
    /// # Errors
    /// [`ClientError::Ended`].
    pub async fn open(
        &self,
        space: Did,
        identity: &Arc<Identity>,
        options: SessionOptions,
    ) -> Result<DurableSession, ClientError> {
        let session = self.mount(space, identity, options)?;
        session.opened().await?;
        Ok(session)
    }

    /// The same without waiting: commits and watches may be made already.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for a saved session that is not this one or not well-formed, [`ClientError::Ended`] after
    /// [`Self::close`].
    pub fn mount(
        &self,
        space: Did,
        identity: &Arc<Identity>,
        options: SessionOptions,
    ) -> Result<DurableSession, ClientError> {
        let other =
            |saved: &SavedSession| saved.space != space || saved.principal != identity.did();
        if options.saved.as_ref().is_some_and(other) {
            return Err(ClientError::Usage("the saved session is another one"));
        }
        let core = Arc::new(Core::new(space, Arc::clone(identity), options)?);
        let mut lanes = self.shared.lanes();
        if lanes.closed {
            return Err(ClientError::Ended(crate::Ended::Closed));
        }
        lanes.sessions.retain(|session| session.strong_count() > 0);
        lanes.sessions.push(Arc::downgrade(&core));
        drop(lanes);
        tokio::spawn(driver::run(Arc::clone(&core), Arc::clone(&self.shared)));
        Ok(DurableSession::new(core))
    }

    /// Withdraws a key from all connections: it opens no more sessions, and frees its place among a connection's principals.
    /// Sessions it opened keep their lease. A session that is opened with it again signs in again.
    ///
    /// # Errors
    /// [`ClientError::Closed`] when a connection ended meanwhile: the key went with it.
    pub async fn release(&self, principal: Did) -> Result<(), ClientError> {
        let ups: Vec<_> = {
            let lanes = self.shared.lanes();
            lanes.all().filter_map(|(_, lane)| lane.current()).collect()
        };
        for up in ups {
            up.release(principal).await?;
        }
        Ok(())
    }

    /// Every connection there is.
    pub fn connections(&self) -> Vec<ConnectionStatus> {
        let lanes = self.shared.lanes();
        lanes
            .all()
            .map(|(space, lane)| {
                let up = lane.current();
                let (sessions, peak_sessions, max_sessions) = up
                    .as_ref()
                    .map_or((0, 0, None), |up| up.ledger().sessions());
                let (requests, max_requests) = up.as_ref().map_or((0, 0), |up| up.requests());
                ConnectionStatus {
                    space,
                    connection: up
                        .as_ref()
                        .and_then(|up| up.connection.hello().connection.clone()),
                    up: up.is_some(),
                    last_error: lane.last_error().map(|error| error.to_string()),
                    sessions,
                    peak_sessions,
                    max_sessions,
                    requests,
                    max_requests,
                }
            })
            .collect()
    }

    /// Closes all connections and ends all sessions, without waiting for what is unanswered; close the sessions first to
    /// settle them.
    pub async fn close(&self) {
        let sessions = {
            let mut lanes = self.shared.lanes();
            lanes.closed = true;
            lanes.shared = Default::default();
            lanes.dedicated.clear();
            std::mem::take(&mut lanes.sessions)
        };
        for core in sessions.iter().filter_map(Weak::upgrade) {
            core.abandon();
            core.over().await;
        }
    }
}

impl Shared {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        // Nothing panics while it holds the lock.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one session of `space`; `None` when every connection is full, or the client closed.
    pub(crate) fn seat(self: &Arc<Self>, space: Did) -> Option<Seat> {
        let mut lanes = self.lanes();
        if lanes.closed {
            return None;
        }
        let (lane, place) = match self.options.topology {
            Topology::Dedicated => {
                let (lane, sessions) = lanes
                    .dedicated
                    .entry(space)
                    .or_insert_with(|| (self.start(Some(space)), 0));
                *sessions += 1;
                if lane.is_over() {
                    *lane = self.start(Some(space));
                }
                (Arc::clone(lane), None)
            }
            Topology::Shared => {
                let place = lanes.placement.place(&space)?;
                let slot = lanes.shared.get_mut(place)?;
                let lane = match slot {
                    Some(lane) if !lane.is_over() => Arc::clone(lane),
                    _ => Arc::clone(slot.insert(self.start(None))),
                };
                (lane, Some(place))
            }
        };
        Some(Seat {
            shared: Arc::clone(self),
            space,
            place,
            lane,
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lanes().closed
    }

    /// A router told how many sessions a connection takes.
    pub(crate) fn learn_cap(&self, cap: Option<u64>) {
        self.lanes().placement.learn_cap(cap);
    }

    fn start(&self, dedicated: Option<Did>) -> Arc<Lane> {
        let options = Options {
            dedicated,
            ..self.options.connection.clone()
        };
        Arc::new(Lane::start(self.endpoint.clone(), options))
    }
}

impl Lanes {
    fn all(&self) -> impl Iterator<Item = (Option<Did>, &Arc<Lane>)> {
        let shared = self.shared.iter().flatten().map(|lane| (None, lane));
        let dedicated = self.dedicated.iter();
        shared.chain(dedicated.map(|(space, (lane, _))| (Some(*space), lane)))
    }
}

/// A session's place among the connections, given back when dropped. A dedicated connection, or a further shared one, that
/// nobody has a place on any more is closed.
#[derive(Debug)]
pub(crate) struct Seat {
    shared: Arc<Shared>,
    space: Did,
    place: Option<usize>,
    pub(crate) lane: Arc<Lane>,
}

impl Seat {
    /// Whether other connections could have room.
    pub(crate) fn may_move(&self) -> bool {
        self.place.is_some()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut lanes = self.shared.lanes();
        match self.place {
            Some(place) => {
                for unused in lanes.placement.leave(place) {
                    if let Some(lane) = lanes.shared.get_mut(unused) {
                        *lane = None;
                    }
                }
            }
            None => {
                if let Some((_, sessions)) = lanes.dedicated.get_mut(&self.space) {
                    *sessions = sessions.saturating_sub(1);
                    if *sessions == 0 {
                        lanes.dedicated.remove(&self.space);
                    }
                }
            }
        }
    }
}
