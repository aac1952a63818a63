//! The routing state of one client, without sockets: which requests are unanswered, which sessions exist, which
//! toolshed serves each, and what of the connection's quotas they hold.
//!
//! Every quota is taken here before anything is forwarded, as a permit of the `ledger`, and belongs to what it was taken
//! for: given back with the answer, with the refusal, or with the session (`docs/operations.md`).

use std::collections::HashMap;
use std::rc::Rc;

use memory_budget::Permit;
use memory_wire::did::Did;
use memory_wire::reason::Reason;
use memory_wire::stream::Route;
use tokio::time::Instant;

mod session;

use crate::end::End;
use crate::ledger::Ledger;
use crate::meter::{Measured, Timed};
use session::{Session, SpaceUse, Usage, reserve};

pub(crate) use session::{MAX_HOLDINGS_PER_FRAME, MAX_VIEWS_PER_SESSION, WatchChange};

/// A request that may be worked on.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Its place among the unanswered ones.
    _place: Permit,
    /// When it had arrived.
    arrived: Instant,
}

impl Admitted {
    pub(crate) fn new(place: Permit, arrived: Instant) -> Self {
        Self {
            _place: place,
            arrived,
        }
    }
}

/// An unanswered request.
#[derive(Debug)]
struct Request {
    pending: Pending,
    /// None for those that the router answers itself.
    admitted: Option<Admitted>,
}

impl Request {
    fn timed(&self, measured: Measured) -> Option<Timed> {
        let admitted = self.admitted.as_ref()?;
        Some(Timed {
            measured,
            since: admitted.arrived,
        })
    }
}

/// What an unanswered request will change when its answer arrives.
#[derive(Debug)]
enum Pending {
    /// Answered by the router itself.
    Local,
    /// Opaque to the router.
    Plain { upstream: u16 },
    /// Holds one session slot; the answer names the session.
    Open {
        upstream: Option<u16>,
        space: Did,
        slot: Permit,
    },
    /// Ends its session when it succeeds.
    Close { upstream: u16, session: Box<str> },
    /// Holds the quota that its success will need.
    Watch {
        upstream: u16,
        session: Box<str>,
        /// Which of the sessions that had this name.
        generation: u64,
        change: WatchChange,
        reserved: Usage,
    },
}

/// Where a request of an open session goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// To this toolshed, now.
    Ready(u16),
    /// To this toolshed, after the session's watch mutation was answered.
    Behind(u16),
    /// This connection holds no such session.
    Unknown,
}

/// A response header that belongs to this connection; applied when its body is complete (a watch mutation before).
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Response {
    /// The answer to the request with this id.
    Answer {
        request_id: Box<str>,
        error: bool,
        assigned: Option<Box<str>>,
        /// What its first byte ends.
        timed: Option<Timed>,
    },
    /// A push that ends a session.
    Revoked { key: Box<str> },
    /// A push that changes nothing here.
    Push,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Table {
    ledger: Rc<Ledger>,
    /// `max_watches_per_session`.
    watches_per_session: Option<u64>,
    requests: HashMap<Box<str>, Request>,
    sessions: HashMap<Box<str>, Session>,
    /// Sessions that ever were.
    generations: u64,
    /// Spaces that were opened, or are being opened.
    spaces: HashMap<Did, SpaceUse>,
    /// Reused so that looking a session up allocates nothing.
    scratch: String,
}

impl Table {
    pub(crate) fn new(ledger: Rc<Ledger>, watches_per_session: Option<u64>) -> Self {
        Self {
            ledger,
            watches_per_session,
            requests: HashMap::new(),
            sessions: HashMap::new(),
            generations: 0,
            spaces: HashMap::new(),
            scratch: String::new(),
        }
    }

    /// Forgets everything: the connection is over.
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.sessions.clear();
        self.spaces.clear();
    }

    /// Whether nothing is unanswered.
    pub(crate) fn is_quiet(&self) -> bool {
        self.requests.is_empty()
    }

    /// Where a request of (`space`, `session_id`) goes.
    pub(crate) fn place(&mut self, space: &str, session_id: &str) -> Placed {
        let Self {
            scratch, sessions, ..
        } = self;
        write_key(scratch, space, session_id);
        match sessions.get(scratch.as_str()) {
            None => Placed::Unknown,
            Some(session) if session.mutations > 0 => Placed::Behind(session.upstream),
            Some(session) => Placed::Ready(session.upstream),
        }
    }

    fn insert(
        &mut self,
        request_id: &str,
        pending: Pending,
        admitted: Option<Admitted>,
    ) -> Result<(), End> {
        self.check_new(request_id)?;
        let request = Request { pending, admitted };
        self.requests.insert(request_id.into(), request);
        Ok(())
    }

    fn check_new(&self, request_id: &str) -> Result<(), End> {
        if self.requests.contains_key(request_id) {
            return Err(End::client("request-id-in-flight"));
        }
        Ok(())
    }

    /// Registers a request that the router answers itself.
    pub(crate) fn begin_local(&mut self, request_id: &str) -> Result<(), End> {
        self.insert(request_id, Pending::Local, None)
    }

    /// Ends a request that the router answered or refused, giving back what it held. Gives what the answer ends of times.
    pub(crate) fn finish_local(&mut self, request_id: &str) -> Option<Timed> {
        let request = self.requests.remove(request_id)?;
        let timed = request.timed(Measured::Open);
        match request.pending {
            Pending::Open { space, .. } => {
                self.settle_open(&space, false);
                return timed;
            }
            Pending::Watch {
                session,
                generation,
                ..
            } => self.release_watch(&session, generation),
            Pending::Local | Pending::Plain { .. } | Pending::Close { .. } => {}
        }
        None
    }

    /// Registers an opaque request to `upstream`.
    pub(crate) fn begin_plain(
        &mut self,
        request_id: &str,
        upstream: u16,
        admitted: Admitted,
    ) -> Result<(), End> {
        self.insert(request_id, Pending::Plain { upstream }, Some(admitted))
    }

    /// Registers `session.close`.
    pub(crate) fn begin_close(
        &mut self,
        request_id: &str,
        upstream: u16,
        space: &str,
        session_id: &str,
        admitted: Admitted,
    ) -> Result<(), End> {
        let session = key(space, session_id);
        self.insert(
            request_id,
            Pending::Close { upstream, session },
            Some(admitted),
        )
    }

    /// Takes one session slot, and the space's place if it is new to the connection.
    ///
    /// `Ok(Some(reason))` refuses the open and has registered the request as answered locally.
    pub(crate) fn begin_open(
        &mut self,
        request_id: &str,
        space: &Did,
        admitted: Admitted,
    ) -> Result<Option<Reason>, End> {
        self.check_new(request_id)?;
        match self.take_open(space) {
            Ok(slot) => {
                let pending = Pending::Open {
                    upstream: None,
                    space: *space,
                    slot,
                };
                self.insert(request_id, pending, Some(admitted))?;
                Ok(None)
            }
            Err(reason) => {
                self.begin_local(request_id)?;
                Ok(Some(reason))
            }
        }
    }

    fn take_open(&mut self, space: &Did) -> Result<Permit, Reason> {
        let slot = reserve(&self.ledger.sessions, 1, Reason::SessionLimit)?;
        if let Some(known) = self.spaces.get_mut(space) {
            known.opening += 1;
            return Ok(slot);
        }
        let place = reserve(&self.ledger.spaces, 1, Reason::SpaceLimit)?;
        self.spaces.insert(*space, SpaceUse::new(place));
        Ok(slot)
    }

    /// An open is over: the place of its space goes with it if the space was never opened.
    fn settle_open(&mut self, space: &Did, opened: bool) {
        if let Some(use_of) = self.spaces.get_mut(space) {
            use_of.opening = use_of.opening.saturating_sub(1);
            use_of.opened |= opened;
            if !use_of.opened && use_of.opening == 0 {
                self.spaces.remove(space);
            }
        }
    }

    /// The toolshed to which an open is now forwarded.
    pub(crate) fn forward_open(&mut self, request_id: &str, to: u16) {
        if let Some(request) = self.requests.get_mut(request_id)
            && let Pending::Open { upstream, .. } = &mut request.pending
        {
            *upstream = Some(to);
        }
    }

    /// Reserves what a watch mutation may come to hold.
    ///
    /// `Ok(Some(reason))` refuses it; the request is then registered as answered locally.
    pub(crate) fn begin_watch(
        &mut self,
        request_id: &str,
        space: &str,
        session_id: &str,
        change: WatchChange,
        admitted: Admitted,
    ) -> Result<Option<Reason>, End> {
        self.check_new(request_id)?;
        let name = key(space, session_id);
        let session = self.sessions.get(&name).ok_or(Reason::SessionUnknown);
        let reserved = session.and_then(|session| {
            let reserved = session.reserve(&change, self.watches_per_session, &self.ledger)?;
            Ok((session.upstream, session.generation, reserved))
        });
        let (upstream, generation, reserved) = match reserved {
            Ok(reserved) => reserved,
            Err(reason) => {
                self.begin_local(request_id)?;
                return Ok(Some(reason));
            }
        };
        if let Some(session) = self.sessions.get_mut(&name) {
            session.mutations += 1;
        }
        let pending = Pending::Watch {
            upstream,
            session: name,
            generation,
            change,
            reserved,
        };
        self.insert(request_id, pending, Some(admitted))?;
        Ok(None)
    }

    fn release_watch(&mut self, session: &str, generation: u64) {
        if let Some(session) = self.sessions.get_mut(session)
            && session.generation == generation
        {
            session.mutations = session.mutations.saturating_sub(1);
        }
    }

    /// Checks that a private response of `upstream` belongs to this connection, before a byte of it is made public.
    pub(crate) fn admit_response(
        &mut self,
        upstream: u16,
        route: &Route<'_>,
    ) -> Result<Response, End> {
        if route.kind == "response" {
            let id = route
                .request_id
                .as_deref()
                .ok_or_else(|| End::violation("response-without-request"))?;
            let request = self.requests.get(id);
            let (expected, measured) = match request.map(|request| &request.pending) {
                Some(
                    Pending::Plain { upstream }
                    | Pending::Close { upstream, .. }
                    | Pending::Watch { upstream, .. },
                ) => (Some(*upstream), Measured::Request),
                Some(Pending::Open { upstream, .. }) => (*upstream, Measured::Open),
                Some(Pending::Local) | None => (None, Measured::Request),
            };
            let opens = measured == Measured::Open;
            if expected != Some(upstream) {
                return Err(End::violation("response-to-unknown-request"));
            }
            if route.assigned_session_id.is_some() != (opens && !route.error) {
                return Err(End::violation("assigned-session"));
            }
            let timed = request.and_then(|request| request.timed(measured));
            self.settle_watch(id, route.error);
            return Ok(Response::Answer {
                request_id: id.into(),
                error: route.error,
                assigned: route.assigned_session_id.as_deref().map(Into::into),
                timed,
            });
        }
        if route.request_id.is_some() || route.error || route.assigned_session_id.is_some() {
            return Err(End::violation("push-with-request"));
        }
        let (Some(space), Some(session_id)) = (route.space.as_deref(), route.session_id.as_deref())
        else {
            return Err(End::violation("push-without-session"));
        };
        let known = matches!(self.place(space, session_id), Placed::Ready(at) | Placed::Behind(at) if at == upstream);
        if !known {
            return Err(End::violation("push-to-unknown-session"));
        }
        if route.kind == "session/revoked" {
            return Ok(Response::Revoked {
                key: key(space, session_id),
            });
        }
        if route.kind == "session/effect" || route.kind.starts_with("presence/") {
            return Ok(Response::Push);
        }
        Err(End::violation("push-kind"))
    }

    /// Applies a completely received response.
    pub(crate) fn complete_response(&mut self, response: Response) {
        match response {
            Response::Push => {}
            Response::Revoked { key } => drop(self.sessions.remove(&key)),
            Response::Answer {
                request_id,
                error,
                assigned,
                ..
            } => match self
                .requests
                .remove(&request_id)
                .map(|request| request.pending)
            {
                Some(Pending::Open {
                    upstream,
                    space,
                    slot,
                }) => {
                    self.settle_open(&space, assigned.is_some() && !error);
                    if let (Some(upstream), Some(assigned), false) = (upstream, assigned, error) {
                        self.start_session(key(space.as_str(), &assigned), upstream, slot);
                    }
                }
                Some(Pending::Close { session, .. }) if !error => {
                    self.sessions.remove(&session);
                }
                // A watch mutation was settled by the header of its answer.
                Some(
                    Pending::Local
                    | Pending::Plain { .. }
                    | Pending::Close { .. }
                    | Pending::Watch { .. },
                )
                | None => {}
            },
        }
    }

    /// Settles a watch mutation as soon as its answer begins: the toolshed has decided, and what waits behind the mutation
    /// must not wait for a slow client to take an answer of megabytes too.
    fn settle_watch(&mut self, request_id: &str, error: bool) {
        let Some(Request { pending, .. }) = self.requests.get_mut(request_id) else {
            return;
        };
        let Pending::Watch { upstream, .. } = *pending else {
            return;
        };
        if let Pending::Watch {
            session,
            generation,
            change,
            reserved,
            ..
        } = std::mem::replace(pending, Pending::Plain { upstream })
        {
            self.release_watch(&session, generation);
            if !error {
                self.apply_watch(&session, generation, change, reserved);
            }
        }
    }

    fn start_session(&mut self, key: Box<str>, upstream: u16, slot: Permit) {
        // Resumed where it already is, it keeps what it holds until the client states that anew.
        if self
            .sessions
            .get(&key)
            .is_some_and(|held| held.upstream == upstream)
        {
            return;
        }
        self.generations += 1;
        let session = Session::new(upstream, self.generations, slot, &self.ledger);
        self.sessions.insert(key, session);
    }

    fn apply_watch(&mut self, key: &str, generation: u64, change: WatchChange, reserved: Usage) {
        if let Some(session) = self.sessions.get_mut(key)
            && session.generation == generation
        {
            session.apply(change, reserved);
        }
    }

    /// Whether any session or request depends on `upstream`.
    pub(crate) fn depends_on(&self, upstream: u16) -> bool {
        self.sessions
            .values()
            .any(|session| session.upstream == upstream)
            || self
                .requests
                .values()
                .any(|request| match &request.pending {
                    Pending::Local => false,
                    Pending::Plain { upstream: at }
                    | Pending::Close { upstream: at, .. }
                    | Pending::Watch { upstream: at, .. } => *at == upstream,
                    Pending::Open { upstream: at, .. } => *at == Some(upstream),
                })
    }
}

/// The table key of a session. A DID holds no space character, so the two parts cannot run into each other.
fn key(space: &str, session_id: &str) -> Box<str> {
    let mut text = String::with_capacity(space.len() + 1 + session_id.len());
    write_key(&mut text, space, session_id);
    text.into_boxed_str()
}

fn write_key(text: &mut String, space: &str, session_id: &str) {
    text.clear();
    text.push_str(space);
    text.push(' ');
    text.push_str(session_id);
}

#[cfg(test)]
mod tests;
