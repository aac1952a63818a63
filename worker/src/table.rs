//! The routing state of one client, without sockets: which requests are unanswered, which sessions exist, which
//! toolshed serves each, and what of the connection's quotas they hold.
//!
//! Every quota is taken here before anything is forwarded and given back exactly once: by the answer, by the refusal,
//! or by the end of the session that held it (`docs/operations.md`).

use std::collections::{HashMap, HashSet};

use memory_wire::did::Did;
use memory_wire::reason::Reason;
use memory_wire::stream::Route;

use crate::end::End;

/// Holdings one frame may declare; more is malformed (`docs/protocol.md` 4.5).
pub(crate) const MAX_HOLDINGS_PER_FRAME: u64 = 8192;
/// Views one session may hold.
pub(crate) const MAX_VIEWS_PER_SESSION: u64 = 64;

/// The connection's own caps; `None` is "unlimited".
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableLimits {
    pub(crate) requests: usize,
    pub(crate) sessions: Option<u64>,
    pub(crate) spaces: Option<u64>,
    pub(crate) watches_per_session: Option<u64>,
    pub(crate) watches: Option<u64>,
    pub(crate) holdings: Option<u64>,
}

/// What an unanswered request will change when its answer arrives.
#[derive(Debug)]
enum Pending {
    /// Answered by the router itself.
    Local,
    /// Opaque to the router.
    Plain { upstream: u16 },
    /// Holds one session slot; the answer names the session.
    Open { upstream: Option<u16>, space: Did },
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

/// A watch mutation as the router understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchChange {
    /// `session.watch.set` replaces, `session.watch.add` adds.
    pub(crate) replace: bool,
    pub(crate) ids: Vec<String>,
    /// `None` leaves the session's views as they are.
    pub(crate) views: Option<u64>,
    /// `None` leaves the session's holdings as they are.
    pub(crate) holdings: Option<u64>,
}

/// How a space counts: for good once it was opened, for as long as somebody tries before that.
#[derive(Debug, Default)]
struct SpaceUse {
    opened: bool,
    opening: u32,
}

/// Quota units: watches (views included) and holdings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Usage {
    watches: u64,
    holdings: u64,
}

#[derive(Debug)]
struct Session {
    upstream: u16,
    watches: HashSet<Box<str>>,
    views: u64,
    holdings: u64,
    /// Unanswered watch mutations; later requests of the session wait behind them.
    mutations: u32,
    /// Tells this session from an earlier one of the same name, whose answers may still come.
    generation: u64,
}

impl Session {
    fn usage(&self) -> Usage {
        Usage {
            watches: self.watches.len() as u64 + self.views,
            holdings: self.holdings,
        }
    }
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
    },
    /// A push that ends a session.
    Revoked { key: Box<str> },
    /// A push that changes nothing here.
    Push,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Table {
    limits: TableLimits,
    requests: HashMap<Box<str>, Pending>,
    sessions: HashMap<Box<str>, Session>,
    /// Sessions that ever were.
    generations: u64,
    opening: u64,
    /// Spaces that were opened, or are being opened, and count against `max_spaces_per_connection`.
    spaces: HashMap<Did, SpaceUse>,
    live: Usage,
    reserved: Usage,
    /// Reused so that looking a session up allocates nothing.
    scratch: String,
}

impl Table {
    pub(crate) fn new(limits: TableLimits) -> Self {
        Self {
            limits,
            requests: HashMap::new(),
            sessions: HashMap::new(),
            generations: 0,
            opening: 0,
            spaces: HashMap::new(),
            live: Usage::default(),
            reserved: Usage::default(),
            scratch: String::new(),
        }
    }

    /// Whether another request would pass `max_requests_per_connection`; reading pauses while it does.
    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() >= self.limits.requests
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

    fn insert(&mut self, request_id: &str, pending: Pending) -> Result<(), End> {
        if self.requests.contains_key(request_id) {
            return Err(End::client("request-id-in-flight"));
        }
        self.requests.insert(request_id.into(), pending);
        Ok(())
    }

    /// Registers a request that the router answers itself.
    pub(crate) fn begin_local(&mut self, request_id: &str) -> Result<(), End> {
        self.insert(request_id, Pending::Local)
    }

    /// Ends a request that the router answered or refused, giving back what it held.
    pub(crate) fn finish_local(&mut self, request_id: &str) {
        match self.requests.remove(request_id) {
            Some(Pending::Open { space, .. }) => self.settle_open(&space, false),
            Some(Pending::Watch {
                session,
                generation,
                reserved,
                ..
            }) => self.release_watch(&session, generation, reserved),
            Some(Pending::Local | Pending::Plain { .. } | Pending::Close { .. }) | None => {}
        }
    }

    /// Registers an opaque request to `upstream`.
    pub(crate) fn begin_plain(&mut self, request_id: &str, upstream: u16) -> Result<(), End> {
        self.insert(request_id, Pending::Plain { upstream })
    }

    /// Registers `session.close`.
    pub(crate) fn begin_close(
        &mut self,
        request_id: &str,
        upstream: u16,
        space: &str,
        session_id: &str,
    ) -> Result<(), End> {
        self.insert(
            request_id,
            Pending::Close {
                upstream,
                session: key(space, session_id),
            },
        )
    }

    /// Takes one session slot, and the space's place if it is new to the connection.
    ///
    /// `Ok(Some(reason))` refuses the open and has registered the request as answered locally.
    pub(crate) fn begin_open(
        &mut self,
        request_id: &str,
        space: &Did,
    ) -> Result<Option<Reason>, End> {
        let in_use = self.sessions.len() as u64 + self.opening;
        let refusal = if self.limits.sessions.is_some_and(|cap| in_use >= cap) {
            Some(Reason::SessionLimit)
        } else if !self.spaces.contains_key(space)
            && self
                .limits
                .spaces
                .is_some_and(|cap| self.spaces.len() as u64 >= cap)
        {
            Some(Reason::SpaceLimit)
        } else {
            None
        };
        if refusal.is_some() {
            self.begin_local(request_id)?;
            return Ok(refusal);
        }
        self.insert(
            request_id,
            Pending::Open {
                upstream: None,
                space: *space,
            },
        )?;
        self.opening += 1;
        self.spaces.entry(*space).or_default().opening += 1;
        Ok(None)
    }

    /// Gives an open's slot back, and the place of its space if the space was never opened.
    fn settle_open(&mut self, space: &Did, opened: bool) {
        self.opening = self.opening.saturating_sub(1);
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
        if let Some(Pending::Open { upstream, .. }) = self.requests.get_mut(request_id) {
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
    ) -> Result<Option<Reason>, End> {
        let name = key(space, session_id);
        let Some(session) = self.sessions.get(&name) else {
            self.begin_local(request_id)?;
            return Ok(Some(Reason::SessionUnknown));
        };
        let now = session.usage();
        let after = usage_after(session, &change);
        let over_session = self
            .limits
            .watches_per_session
            .is_some_and(|cap| after.watches - change.views.unwrap_or(session.views) > cap)
            || change.views.unwrap_or(session.views) > MAX_VIEWS_PER_SESSION;
        let reserved = Usage {
            watches: after.watches.saturating_sub(now.watches),
            holdings: after.holdings.saturating_sub(now.holdings),
        };
        let over = |cap: Option<u64>, used: u64, more: u64| {
            more > 0 && cap.is_some_and(|cap| used + more > cap)
        };
        let refusal = if over_session {
            Some(Reason::FrameLimit)
        } else if over(
            self.limits.watches,
            self.live.watches + self.reserved.watches,
            reserved.watches,
        ) {
            Some(Reason::WatchLimit)
        } else if over(
            self.limits.holdings,
            self.live.holdings + self.reserved.holdings,
            reserved.holdings,
        ) {
            Some(Reason::HoldingsLimit)
        } else {
            None
        };
        if refusal.is_some() {
            self.begin_local(request_id)?;
            return Ok(refusal);
        }
        let (upstream, generation) = (session.upstream, session.generation);
        self.insert(
            request_id,
            Pending::Watch {
                upstream,
                session: name.clone(),
                generation,
                change,
                reserved,
            },
        )?;
        self.reserved.watches += reserved.watches;
        self.reserved.holdings += reserved.holdings;
        if let Some(session) = self.sessions.get_mut(&name) {
            session.mutations += 1;
        }
        Ok(None)
    }

    fn release_watch(&mut self, session: &str, generation: u64, reserved: Usage) {
        self.reserved.watches = self.reserved.watches.saturating_sub(reserved.watches);
        self.reserved.holdings = self.reserved.holdings.saturating_sub(reserved.holdings);
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
            let (expected, opens) = match self.requests.get(id) {
                Some(
                    Pending::Plain { upstream }
                    | Pending::Close { upstream, .. }
                    | Pending::Watch { upstream, .. },
                ) => (Some(*upstream), false),
                Some(Pending::Open { upstream, .. }) => (*upstream, true),
                Some(Pending::Local) | None => (None, false),
            };
            if expected != Some(upstream) {
                return Err(End::violation("response-to-unknown-request"));
            }
            if route.assigned_session_id.is_some() != (opens && !route.error) {
                return Err(End::violation("assigned-session"));
            }
            self.settle_watch(id, route.error);
            return Ok(Response::Answer {
                request_id: id.into(),
                error: route.error,
                assigned: route.assigned_session_id.as_deref().map(Into::into),
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
            Response::Revoked { key } => self.end_session(&key),
            Response::Answer {
                request_id,
                error,
                assigned,
            } => match self.requests.remove(&request_id) {
                Some(Pending::Open { upstream, space }) => {
                    self.settle_open(&space, assigned.is_some() && !error);
                    if let (Some(upstream), Some(assigned), false) = (upstream, assigned, error) {
                        self.start_session(key(space.as_str(), &assigned), upstream);
                    }
                }
                Some(Pending::Close { session, .. }) if !error => self.end_session(&session),
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
        let Some(pending) = self.requests.get_mut(request_id) else {
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
            self.release_watch(&session, generation, reserved);
            if !error {
                self.apply_watch(&session, generation, change);
            }
        }
    }

    fn start_session(&mut self, key: Box<str>, upstream: u16) {
        // Resumed where it already is, it keeps what it holds until the client states that anew.
        if self
            .sessions
            .get(&key)
            .is_some_and(|held| held.upstream == upstream)
        {
            return;
        }
        self.end_session(&key);
        self.generations += 1;
        self.sessions.insert(
            key,
            Session {
                upstream,
                watches: HashSet::new(),
                views: 0,
                holdings: 0,
                mutations: 0,
                generation: self.generations,
            },
        );
    }

    fn end_session(&mut self, key: &str) {
        if let Some(session) = self.sessions.remove(key) {
            let usage = session.usage();
            self.live.watches = self.live.watches.saturating_sub(usage.watches);
            self.live.holdings = self.live.holdings.saturating_sub(usage.holdings);
        }
    }

    fn apply_watch(&mut self, key: &str, generation: u64, change: WatchChange) {
        let Some(session) = self.sessions.get_mut(key) else {
            return;
        };
        if session.generation != generation {
            return;
        }
        let before = session.usage();
        if change.replace {
            session.watches.clear();
        }
        session
            .watches
            .extend(change.ids.into_iter().map(String::into_boxed_str));
        session.views = change.views.unwrap_or(session.views);
        session.holdings = change.holdings.unwrap_or(session.holdings);
        let after = session.usage();
        self.live.watches = self.live.watches + after.watches - before.watches;
        self.live.holdings = self.live.holdings + after.holdings - before.holdings;
    }

    /// Whether any session or request depends on `upstream`.
    pub(crate) fn depends_on(&self, upstream: u16) -> bool {
        self.sessions
            .values()
            .any(|session| session.upstream == upstream)
            || self.requests.values().any(|pending| match pending {
                Pending::Local => false,
                Pending::Plain { upstream: at }
                | Pending::Close { upstream: at, .. }
                | Pending::Watch { upstream: at, .. } => *at == upstream,
                Pending::Open { upstream: at, .. } => *at == Some(upstream),
            })
    }
}

fn usage_after(session: &Session, change: &WatchChange) -> Usage {
    let added: HashSet<&str> = change
        .ids
        .iter()
        .map(String::as_str)
        .filter(|id| change.replace || !session.watches.contains(*id))
        .collect();
    let kept = if change.replace {
        0
    } else {
        session.watches.len() as u64
    };
    Usage {
        watches: kept + added.len() as u64 + change.views.unwrap_or(session.views),
        holdings: change.holdings.unwrap_or(session.holdings),
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
