//! One connection that comes back: a task that dials, says so, and dials again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;

use super::budget::Ledger;
use super::retry::{Reconnect, Verdict};
use crate::{
    ClientError, Closed, Connection, Denied, Did, Ended, Endpoint, Identity, Options, random,
};

/// Dialling and hello together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the router may take to answer a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Seconds that the clocks of router, toolshed and client may be apart before a lease's end is misjudged.
const LEASE_TOLERANCE: u64 = 5;
/// Seconds after a lease was to end in which a toolshed that learned late of its renewal may still end sessions for it.
const LATE_RENEWAL: u64 = 30;

/// A connection that is up, with its budget.
#[derive(Debug)]
pub(crate) struct Up {
    pub(crate) connection: Connection,
    ledger: Mutex<Ledger>,
    requests: Arc<Semaphore>,
    max_requests: usize,
    /// Held by whoever signs in, so that many sessions of one key sign once.
    signing: tokio::sync::Mutex<()>,
    /// Keys withdrawn so far.
    releases: AtomicU64,
}

impl Up {
    fn new(connection: Connection) -> Self {
        let ledger = Ledger::of(connection.hello());
        let max_requests = ledger.requests().min(Semaphore::MAX_PERMITS);
        Self {
            connection,
            ledger: Mutex::new(ledger),
            requests: Arc::new(Semaphore::new(max_requests)),
            max_requests,
            signing: tokio::sync::Mutex::new(()),
            releases: AtomicU64::new(0),
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, first come, first served, until one more request may be in flight. `None` never happens: the gate is not closed.
    pub(crate) async fn request(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.requests).acquire_owned().await.ok()
    }

    /// Requests in flight, and allowed.
    pub(crate) fn requests(&self) -> (usize, usize) {
        let free = self.requests.available_permits();
        (
            self.max_requests - free.min(self.max_requests),
            self.max_requests,
        )
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.connection.inner().end().is_none()
    }

    /// Signs in with a key, unless it is.
    pub(crate) async fn sign_in(&self, identity: &Arc<Identity>) -> Result<(), ClientError> {
        let _one_at_a_time = self.signing.lock().await;
        let until = self.connection.router_time() + LEASE_TOLERANCE;
        match self.connection.lease(&identity.did()) {
            Some(lease) if lease.expires_at > until => Ok(()),
            _ => self.connection.authenticate(identity).await.map(drop),
        }
    }

    /// Withdraws a key.
    pub(crate) async fn release(&self, principal: Did) -> Result<(), ClientError> {
        self.releases.fetch_add(1, Ordering::Relaxed);
        self.connection.release(principal).await
    }

    /// How many keys have been withdrawn so far. An open that is refused after this changed may have met a key that is gone.
    pub(crate) fn releases(&self) -> u64 {
        self.releases.load(Ordering::Relaxed)
    }

    /// Whether a session may have ended only because the key's lease did.
    pub(crate) fn lease_ran_out(&self, principal: &Did) -> bool {
        let now = self.connection.router_time();
        match self.connection.inner().held(principal) {
            None => true,
            Some(held) => {
                let late = |end: u64| {
                    now + LEASE_TOLERANCE >= end && now <= end.saturating_add(LATE_RENEWAL)
                };
                now + LEASE_TOLERANCE >= held.expires || held.previous.is_some_and(late)
            }
        }
    }
}

/// A session's place on a connection, given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Up>);

impl Slot {
    pub(crate) fn take(up: &Arc<Up>) -> Option<Self> {
        up.ledger().admit_session().then(|| Self(Arc::clone(up)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.ledger().release_session();
    }
}

#[derive(Debug, Clone)]
enum LaneState {
    /// With the last error, if there was one.
    Down(Option<ClientError>),
    Up(Arc<Up>),
    Over(Ended),
}

/// A handle on the task. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Lane {
    state: watch::Receiver<LaneState>,
    _stop: oneshot::Sender<()>,
}

impl Lane {
    /// Starts dialling at once.
    pub(crate) fn start(endpoint: Endpoint, options: Options) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (sender, state) = watch::channel(LaneState::Down(None));
        tokio::spawn(async move {
            tokio::select! {
                () = run(&endpoint, &options, &sender) => {}
                _ = stopped => {
                    let up = match &*sender.borrow() {
                        LaneState::Up(up) => Some(Arc::clone(up)),
                        _ => None,
                    };
                    sender.send_replace(LaneState::Over(Ended::Closed));
                    if let Some(up) = up {
                        let _ = timeout(CLOSE_TIMEOUT, up.connection.close()).await;
                    }
                }
            }
        });
        Self { state, _stop: stop }
    }

    /// Waits until the connection is up.
    ///
    /// # Errors
    /// Why it never will be.
    pub(crate) async fn up(&self) -> Result<Arc<Up>, Ended> {
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| match state {
            LaneState::Up(up) => up.is_alive(),
            LaneState::Down(_) => false,
            LaneState::Over(_) => true,
        });
        match settled.await.as_deref() {
            Ok(LaneState::Up(up)) => Ok(Arc::clone(up)),
            Ok(LaneState::Over(ended)) => Err(ended.clone()),
            Ok(LaneState::Down(_)) | Err(_) => Err(Ended::Closed),
        }
    }

    /// The connection, if it is up.
    pub(crate) fn current(&self) -> Option<Arc<Up>> {
        match &*self.state.borrow() {
            LaneState::Up(up) => Some(Arc::clone(up)),
            _ => None,
        }
    }

    /// Why it is not up, once that is known.
    pub(crate) fn last_error(&self) -> Option<ClientError> {
        match &*self.state.borrow() {
            LaneState::Up(_) => None,
            LaneState::Down(error) => error.clone(),
            LaneState::Over(ended) => Some(ClientError::Ended(ended.clone())),
        }
    }

    /// Whether it never will be up again.
    pub(crate) fn is_over(&self) -> bool {
        matches!(&*self.state.borrow(), LaneState::Over(_))
    }
}

async fn run(endpoint: &Endpoint, options: &Options, state: &watch::Sender<LaneState>) {
    let mut reconnect = Reconnect::default();
    loop {
        let connecting = Connection::connect(endpoint, options.clone());
        let error = match timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(connection)) => {
                reconnect.connected(Instant::now());
                state.send_replace(LaneState::Up(Arc::new(Up::new(connection.clone()))));
                ClientError::Closed(connection.closed().await)
            }
            Ok(Err(error)) => error,
            Err(_) => ClientError::Closed(Closed {
                code: None,
                reason: "no hello in time".to_owned(),
            }),
        };
        match reconnect.lost(&error, Instant::now(), random::bits()) {
            Verdict::Retry(delay) => {
                state.send_replace(LaneState::Down(Some(error)));
                tokio::time::sleep(delay).await;
            }
            Verdict::GiveUp => {
                state.send_replace(LaneState::Over(ended(error)));
                return;
            }
        }
    }
}

fn ended(error: ClientError) -> Ended {
    match error {
        ClientError::Denied(denied @ Denied { .. }) => Ended::Refused(denied),
        ClientError::Ended(ended) => ended,
        error => Ended::Failed(Box::new(error)),
    }
}
