//! The task of one session: it finds a connection, signs in, opens, restores, sends and receives, and begins again when any
//! of that ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::timeout;

use super::client::{Seat, Shared};
use super::lane::{Slot, Up};
use super::machine::{Flow, Step, WATCH_TAG};
use super::placement::MAX_SHARED;
use super::retry::Backoff;
use super::session::{Attachment, Core};
use crate::inner::Delivery;
use crate::{ClientError, Did, Ended, random};

/// How long the router may take to answer the close of a session that nobody waits for.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long after an open without an answer a refused resume token may still mean that the toolshed has not noticed the
/// loss of the old connection: the session there holds a newer token than we were told.
const DOUBT: Duration = Duration::from_secs(120);

/// Runs until the session is over.
pub(crate) async fn run(core: Arc<Core>, shared: Arc<Shared>) {
    let mut driver = Driver {
        core,
        shared,
        seat: None,
        crowded: 0,
        backoff: Backoff::default(),
        delay: None,
        doubt_since: None,
        suspicion: None,
        open: None,
    };
    let ended = driver.drive().await;
    if let Some((attachment, slot)) = driver.open.take() {
        let id = attachment.session_id.clone();
        tokio::spawn(close_session(
            attachment.up.clone(),
            slot,
            driver.core.space,
            id,
        ));
    }
    // Before anybody is told, so that the place is free when they look.
    driver.seat = None;
    driver.core.end(&ended);
}

struct Driver {
    core: Arc<Core>,
    shared: Arc<Shared>,
    seat: Option<Seat>,
    /// Connections found full in a row.
    crowded: usize,
    backoff: Backoff,
    /// What to wait before the next try.
    delay: Option<Duration>,
    /// When an open was first lost together with its answer.
    doubt_since: Option<Instant>,
    /// What a refusal of the next open would confirm.
    suspicion: Option<Ended>,
    /// Open at the toolshed, as far as known.
    open: Option<(Arc<Attachment>, Slot)>,
}

/// What one try came to.
enum Outcome<T> {
    Done(T),
    /// Try again at once: the connection ended, and the next one is waited for.
    Again,
    /// Try again after a while.
    Hold,
    Over(Ended),
}

/// An admitted session.
struct Opened {
    up: Arc<Up>,
    slot: Slot,
    ok: Value,
    stream: mpsc::Receiver<Delivery>,
}

impl Driver {
    async fn drive(&mut self) -> Ended {
        let core = Arc::clone(&self.core);
        loop {
            let reached = tokio::select! {
                biased;
                () = core.quit(true) => return Ended::Closed,
                reached = self.reach() => reached,
            };
            let next = match reached {
                Outcome::Done((opened, restoring)) => tokio::select! {
                    biased;
                    () = core.quit(false) => return Ended::Closed,
                    next = self.serve(opened, restoring) => next,
                },
                Outcome::Again => Outcome::Again,
                Outcome::Hold => Outcome::Hold,
                Outcome::Over(ended) => Outcome::Over(ended),
            };
            match next {
                Outcome::Done(ended) | Outcome::Over(ended) => return ended,
                Outcome::Again => {}
                Outcome::Hold => {
                    self.delay = Some(self.backoff.next_hold(Instant::now(), random::bits()));
                }
            }
        }
    }

    /// Finds a connection with room, signs in and opens.
    async fn reach(&mut self) -> Outcome<(Opened, OwnedSemaphorePermit)> {
        if let Some(delay) = self.delay.take() {
            tokio::time::sleep(delay).await;
        }
        let seat = match self.seat.take() {
            Some(seat) => seat,
            None => match self.shared.seat(self.core.space) {
                Some(seat) => seat,
                None if self.shared.is_closed() => return Outcome::Over(Ended::Closed),
                None => return Outcome::Hold,
            },
        };
        let seat = self.seat.insert(seat);
        let up = match seat.lane.up().await {
            Ok(up) => up,
            Err(ended) => return Outcome::Over(ended),
        };
        self.shared.learn_cap(up.connection.hello().limits.sessions);
        let Some(slot) = Slot::take(&up) else {
            if seat.may_move() {
                self.seat = None;
            }
            self.crowded += 1;
            if self.crowded <= MAX_SHARED {
                return Outcome::Again;
            }
            self.crowded = 0;
            return Outcome::Hold;
        };
        self.crowded = 0;
        let Ok(restoring) = Arc::clone(&self.shared.restoring).acquire_owned().await else {
            return Outcome::Over(Ended::Closed);
        };
        if !up.is_alive() {
            return Outcome::Again;
        }
        let releases = up.releases();
        if let Err(error) = up.sign_in(&self.core.identity).await {
            return self.failed(error);
        }
        let known = self.core.with(|machine| machine.is_known());
        match self.open(Arc::clone(&up), slot).await {
            Ok(opened) => Outcome::Done((opened, restoring)),
            // The key was withdrawn between signing in and opening: it signs in again.
            Err(ClientError::Denied(_)) if up.releases() != releases => Outcome::Hold,
            Err(ClientError::Closed(closed)) if !known => {
                // The first open is the caller's to repeat (seed, "fails the mount, as in direct mode").
                Outcome::Over(Ended::Failed(Box::new(ClientError::Closed(closed))))
            }
            Err(error) => {
                if matches!(error, ClientError::Closed(_)) {
                    self.doubt_since.get_or_insert_with(Instant::now);
                }
                self.failed(error)
            }
        }
    }

    /// Opens in a task of its own: if nobody waits for the session any more when it is admitted, it is closed again.
    async fn open(&self, up: Arc<Up>, slot: Slot) -> Result<Opened, ClientError> {
        let space = self.core.space;
        let mut session = self.core.declarations.clone();
        session.extend(self.core.with(|machine| machine.resume_members()));
        let members = Map::from_iter([
            ("space".to_owned(), json!(space)),
            ("principal".to_owned(), json!(self.core.identity.did())),
            ("session".to_owned(), Value::Object(session)),
        ]);
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let permit = up.request().await;
            let inner = up.connection.inner();
            let result = match inner.open(space, members, permit).await {
                Ok((ok, stream)) => Ok(Opened {
                    up,
                    slot,
                    ok,
                    stream,
                }),
                Err(error) => Err(error),
            };
            if let Err(Ok(Opened { up, slot, ok, .. })) = sender.send(result)
                && let Some(id) = ok.get("sessionId").and_then(Value::as_str)
            {
                close_session(up, slot, space, id.to_owned()).await;
            }
        });
        receiver
            .await
            .map_err(|_| ClientError::Protocol("session.open answer"))?
    }

    /// What a failed sign-in or open means.
    fn failed<T>(&mut self, error: ClientError) -> Outcome<T> {
        match error {
            ClientError::Closed(_) => Outcome::Again,
            ClientError::Denied(denied) if denied.retriable => Outcome::Hold,
            ClientError::Denied(denied) => {
                let in_doubt = self
                    .doubt_since
                    .is_some_and(|since| since.elapsed() < DOUBT);
                if denied.name == "SessionRevokedError" && in_doubt {
                    return Outcome::Hold;
                }
                Outcome::Over(self.suspicion.take().unwrap_or(Ended::Refused(denied)))
            }
            error => Outcome::Over(Ended::Failed(Box::new(error))),
        }
    }

    /// Serves an admitted session until it or its connection ends.
    async fn serve(&mut self, opened: Opened, restoring: OwnedSemaphorePermit) -> Outcome<Ended> {
        let Opened {
            up,
            slot,
            mut ok,
            mut stream,
        } = opened;
        let id = ok.get("sessionId").and_then(Value::as_str);
        let attachment = Arc::new(Attachment::new(
            Arc::clone(&up),
            id.unwrap_or_default().to_owned(),
        ));
        self.open = Some((Arc::clone(&attachment), slot));
        let (frame, watches) = {
            let ledger = up.ledger();
            (ledger.frame(), ledger.watches())
        };
        let now = Instant::now();
        let in_doubt = self.doubt_since.is_some();
        let attached = self
            .core
            .with(|machine| machine.attach(&mut ok, in_doubt, (&frame, watches), now));
        if let Err(error) = attached {
            return Outcome::Over(Ended::Failed(Box::new(error)));
        }
        (self.doubt_since, self.suspicion) = (None, None);
        self.backoff.works(now);
        self.core.attached(Arc::clone(&attachment));
        let flow = tokio::select! {
            biased;
            flow = receive(&self.core, &mut stream) => flow,
            () = attachment.lost.notified() => Some(Flow::Unknown),
            () = send(&self.core, &attachment, restoring) => {
                self.open = None;
                return Outcome::Done(Ended::Closed);
            }
        };
        self.core.detached();
        self.open = None;
        match flow {
            None => Outcome::Again,
            Some(Flow::On | Flow::Unknown) => Outcome::Hold,
            Some(Flow::Revoked(reason)) => self.revoked(&up, &reason),
        }
    }

    /// The toolshed ended the session. After its own lease ran out that says nothing: sign again and reopen. A session that
    /// was taken over has a newer token; one that the toolshed only gave up has not, so the next open tells.
    fn revoked(&mut self, up: &Up, reason: &str) -> Outcome<Ended> {
        let ran_out = up.lease_ran_out(&self.core.identity.did());
        match reason {
            "taken-over" => self.suspicion = Some(Ended::TakenOver),
            "unauthorized" if !ran_out => return Outcome::Over(Ended::AccessLost),
            _ => {}
        }
        Outcome::Hold
    }
}

/// Takes in the session's stream. `None`: the connection ended.
async fn receive(core: &Core, stream: &mut mpsc::Receiver<Delivery>) -> Option<Flow> {
    while let Some(delivery) = stream.recv().await {
        let now = Instant::now();
        let flow = core.with(|machine| machine.deliver(delivery, now, random::bits()));
        core.work.notify_one();
        if flow != Flow::On {
            return Some(flow);
        }
    }
    None
}

/// Sends what the session has to send, until it was closed. An end of the connection is left to [`receive`] to find, after
/// the answers that still came.
async fn send(core: &Core, attachment: &Attachment, restoring: OwnedSemaphorePermit) {
    let inner = attachment.up.connection.inner();
    let frame = attachment.up.ledger().frame();
    let (space, id) = (core.space, attachment.session_id.as_str());
    let mut restoring = Some(restoring);
    loop {
        let step = core.with(|machine| machine.next_step(&frame, Instant::now()));
        let (kind, members, tag) = match step {
            Step::Watch(frame) => {
                let kind = if frame.set {
                    "session.watch.set"
                } else {
                    "session.watch.add"
                };
                let watches = ("watches".to_owned(), Value::Array(frame.watches));
                let mut members = Map::from_iter([watches]);
                if let Some(holdings) = frame.holdings {
                    members.insert("holdings".to_owned(), Value::Array(holdings));
                }
                (kind, members, WATCH_TAG)
            }
            Step::Commit(seq, commit) => {
                let members = Map::from_iter([("commit".to_owned(), commit)]);
                ("transact", members, seq)
            }
            Step::Hold(until) => {
                drop(restoring.take());
                let until = tokio::time::Instant::from_std(until);
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = core.work.notified() => {}
                }
                continue;
            }
            Step::Idle => {
                if core.with(|machine| machine.is_restored()) {
                    drop(restoring.take());
                }
                core.work.notified().await;
                continue;
            }
            Step::Close => {
                request_close(&attachment.up, space, id).await;
                return;
            }
        };
        let permit = attachment.up.request().await;
        let members = addressed(members, space, id);
        let sent = inner
            .request_ordered(kind, members, (space.as_str(), id), tag, permit)
            .await;
        match sent {
            Ok(()) => {}
            Err(error @ ClientError::Usage(_))
                if inner.deliveries(space.as_str(), id).is_some() =>
            {
                core.with(|machine| machine.unsendable(tag, error));
            }
            Err(_) => std::future::pending().await,
        }
    }
}

/// Adds what every request of a session carries.
pub(super) fn addressed(
    mut members: Map<String, Value>,
    space: Did,
    session: &str,
) -> Map<String, Value> {
    members.insert("space".to_owned(), json!(space));
    members.insert("sessionId".to_owned(), session.into());
    members
}

/// Closes a session that nobody waits for; its place on the connection is free afterwards.
async fn close_session(up: Arc<Up>, slot: Slot, space: Did, id: String) {
    request_close(&up, space, &id).await;
    drop(slot);
}

async fn request_close(up: &Up, space: Did, id: &str) {
    let inner = up.connection.inner();
    // Control: it does not wait behind requests.
    let closing = inner.request("session.close", addressed(Map::new(), space, id), None);
    let _: Result<Result<Value, ClientError>, _> = timeout(CLOSE_TIMEOUT, closing).await;
    inner.forget_session(space.as_str(), id);
}
