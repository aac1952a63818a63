//! What a client's request has to pass before the engine sees it, and what the host keeps of the answer.
//!
//! Three outcomes: the engine answers; the host answers with a denial and the socket stays; the request breaks a rule that
//! the router enforces, and the socket closes without an answer.

use super::audit::{About, Verdict};
use super::body::{Kind, Request};
use super::context::{Context, SessionKey, SessionMirror};
use super::message::{self, Answers};
use super::principals::Standing;
use super::state::{LinkId, State};
use super::usage::{Account, Amounts, Family};
use crate::memory::{BackendId, Output, Turn};
use memory_wire::Did;
use memory_wire::ids::ContextId;
use memory_wire::message::Collection;
use memory_wire::stream::Header;
use serde_json::Value;
use std::collections::HashSet;

/// Why a request is answered with a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Refused {
    reason: &'static str,
    retriable: bool,
}

impl Refused {
    const fn for_now(reason: &'static str) -> Self {
        Self {
            reason,
            retriable: true,
        }
    }

    const fn for_good(reason: &'static str) -> Self {
        Self {
            reason,
            retriable: false,
        }
    }
}

/// Why a request does not reach the engine.
enum Stop {
    Answer(Refused),
    Close(&'static str),
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::Answer(refused)
    }
}

/// What an accepted request changes of the mirrors.
enum Change {
    Nothing,
    Open {
        principal: Did,
        holdings: Option<u64>,
    },
    Replace {
        key: SessionKey,
        mirror: SessionMirror,
    },
    Close {
        key: SessionKey,
    },
}

impl State {
    /// Takes a request through its whole turn: checks, engine, answer and what follows from it.
    ///
    /// # Errors
    /// The fixed reason for which the data socket, and with it the context, has to close.
    pub(crate) fn request(
        &mut self,
        backend: BackendId,
        header: &Header<'_>,
        body: Vec<u8>,
        now: u64,
    ) -> Result<(), &'static str> {
        // First: the look may close this very context.
        self.look_at_directory();
        let (link, id) = *self.backends.get(&backend).ok_or("socket-closed")?;
        let context = self.context(link, &id).ok_or("socket-closed")?;
        let socket = context.socket.clone().ok_or("socket-closed")?;
        let request = Request::decode(
            header,
            body,
            socket.expand,
            self.settings.limits.frame_slots,
        )?;
        socket.outlet.begin(
            &request.request_id,
            self.settings.limits.requests_per_context,
        )?;
        let answers = Answers {
            request_id: request.request_id.clone(),
            open: matches!(request.kind, Kind::Open { .. }),
        };
        let change = match self.judge(link, &id, &request, now) {
            Ok(change) => change,
            Err(Stop::Close(reason)) => return Err(reason),
            Err(Stop::Answer(refused)) => {
                self.refuse(link, &id, &request, refused);
                let message = message::denial(&request.request_id, refused.retriable);
                self.deliver(vec![Output { backend, message }], Some(answers));
                return Ok(());
            }
        };
        let outputs = self.run(link, &id, backend, &request, now);
        let answered = outputs.first().is_some_and(|output| {
            output.backend == backend
                && output.message.get("requestId").and_then(Value::as_str)
                    == Some(request.request_id.as_str())
        });
        if !answered {
            socket.outlet.forget(&request.request_id);
            self.deliver(outputs, None);
            return Ok(());
        }
        self.mirror(link, &id, &request, change, &outputs);
        self.deliver(outputs, Some(answers));
        Ok(())
    }

    /// The host's checks, in the order of `docs/protocol.md` section 6 and the seed's lifecycle.
    fn judge(
        &self,
        link: LinkId,
        id: &ContextId,
        request: &Request,
        now: u64,
    ) -> Result<Change, Stop> {
        let state = self.links.get(&link).ok_or(Stop::Close("link-closed"))?;
        let context = state.contexts.get(id).ok_or(Stop::Close("socket-closed"))?;
        let epoch = context.spaces.get(&request.space);
        let epoch = *epoch.ok_or(Stop::Close("space-not-admitted"))?;
        if !self.ownership.owns(&request.space, epoch) {
            return Err(Stop::Close("ownership-changed"));
        }
        let limits = &self.settings.limits;
        let holdings = count(&request.message.holdings);
        if let (Some(limit), Some(holdings)) = (limits.holdings_per_session, holdings)
            && holdings > limit
        {
            return Err(Stop::Close("list-malformed"));
        }
        match &request.kind {
            Kind::Open { principal, resumes } => self.judge_open(
                state.router,
                context,
                request,
                (principal, resumes.as_deref()),
                now,
            ),
            Kind::InSession(session_id) => {
                let key = (request.space, session_id.clone());
                let mirror = context.sessions.get(&key);
                let mirror = mirror.ok_or(Refused::for_good("session-not-held"))?;
                if request.message.kind == "session.close" {
                    return Ok(Change::Close { key });
                }
                match context.principals.standing(&mirror.principal, now) {
                    Standing::Active | Standing::Released => {}
                    Standing::Expired => return Err(Refused::for_now("principal-expired").into()),
                    Standing::Unknown => return Err(Refused::for_good("principal-not-held").into()),
                }
                if request.message.kind == "sqlite.register-disk-source" {
                    return Err(Refused::for_good("operator-request").into());
                }
                let mirror = self.judge_watches(state.router, context, request, mirror)?;
                Ok(mirror.map_or(Change::Nothing, |mirror| Change::Replace { key, mirror }))
            }
        }
    }

    fn judge_open(
        &self,
        router: Did,
        context: &Context,
        request: &Request,
        (principal, resumes): (&Did, Option<&str>),
        now: u64,
    ) -> Result<Change, Stop> {
        match context.principals.standing(principal, now) {
            Standing::Active => {}
            Standing::Expired => return Err(Refused::for_now("principal-expired").into()),
            Standing::Released | Standing::Unknown => {
                return Err(Refused::for_good("principal-not-held").into());
            }
        }
        let held = resumes.and_then(|id| context.sessions.get(&(request.space, id.to_owned())));
        let account = Account {
            context: &context.amounts,
            router: &router,
            principal,
        };
        if held.is_none() && !self.usage.admits(Family::Sessions, &account, 0, 1) {
            return Err(Refused::for_now("session-limit").into());
        }
        let holdings = count(&request.message.holdings);
        let before = held.map_or(0, |mirror| mirror.holdings);
        if !self.usage.admits(
            Family::Holdings,
            &account,
            before,
            holdings.unwrap_or(before),
        ) {
            return Err(Refused::for_now("holdings-limit").into());
        }
        Ok(Change::Open {
            principal: *principal,
            holdings,
        })
    }

    /// What a watch mutation would make of a session's mirror; `None` when the request is none.
    fn judge_watches(
        &self,
        router: Did,
        context: &Context,
        request: &Request,
        mirror: &SessionMirror,
    ) -> Result<Option<SessionMirror>, Stop> {
        let message = &request.message;
        let replaces = match message.kind.as_str() {
            "session.watch.set" => true,
            "session.watch.add" => false,
            _ => return Ok(None),
        };
        let limits = &self.settings.limits;
        let mut then = mirror.clone();
        if limits.watches_per_session.is_some() || self.usage.counts(Family::Watches) {
            if replaces {
                then.watches = HashSet::new();
            }
            if let Some(Collection::Array { ids, .. }) = &message.watches {
                then.watches.extend(ids.iter().cloned());
            }
        }
        if replaces {
            then.views = count(&message.views).unwrap_or(mirror.views);
            then.holdings = count(&message.holdings).unwrap_or(mirror.holdings);
        }
        let watches = u64::try_from(then.watches.len()).unwrap_or(u64::MAX);
        let over = |limit: Option<u64>, count: u64| limit.is_some_and(|limit| count > limit);
        if over(limits.watches_per_session, watches) || over(limits.views_per_session, then.views) {
            return Err(Refused::for_good("frame-limit").into());
        }
        let account = Account {
            context: &context.amounts,
            router: &router,
            principal: &mirror.principal,
        };
        let (before, after) = (mirror.amounts(), then.amounts());
        if !self
            .usage
            .admits(Family::Watches, &account, before.watches, after.watches)
        {
            return Err(Refused::for_now("watch-limit").into());
        }
        if !self
            .usage
            .admits(Family::Holdings, &account, before.holdings, after.holdings)
        {
            return Err(Refused::for_now("holdings-limit").into());
        }
        Ok(Some(then))
    }

    /// The engine's turn.
    fn run(
        &mut self,
        link: LinkId,
        id: &ContextId,
        backend: BackendId,
        request: &Request,
        now: u64,
    ) -> Vec<Output> {
        let Some(context) = self.links.get(&link).and_then(|link| link.contexts.get(id)) else {
            return Vec::new();
        };
        let ownership = &self.ownership;
        let owns = |space: &Did| {
            let epoch = context.spaces.get(space);
            epoch.is_some_and(|epoch| ownership.owns(space, *epoch))
        };
        let turn = Turn {
            now,
            owns: &owns,
            lease: &|principal| context.principals.lease(principal),
            may_create: &|space| ownership.may_create(space),
        };
        self.memory.request(backend, &request.value, &turn)
    }

    /// Keeps what the engine has answered.
    fn mirror(
        &mut self,
        link: LinkId,
        id: &ContextId,
        request: &Request,
        change: Change,
        outputs: &[Output],
    ) {
        let Some(ok) = outputs.first().and_then(|output| output.message.get("ok")) else {
            return;
        };
        match change {
            Change::Nothing => {}
            Change::Close { key } => {
                self.forget_session(link, id, &key);
            }
            Change::Replace { key, mirror } => self.keep_session(link, id, key, mirror),
            Change::Open {
                principal,
                holdings,
            } => {
                let Some(session_id) = ok.get("sessionId").and_then(Value::as_str) else {
                    return;
                };
                let key = (request.space, session_id.to_owned());
                let loser = outputs.iter().skip(1).find_map(|output| {
                    let revoked = message::revoked_session(&output.message)?;
                    (revoked == key).then_some(output.backend)
                });
                let taken = loser
                    .and_then(|loser| self.backends.get(&loser).copied())
                    .and_then(|(link, id)| self.forget_session(link, &id, &key));
                let held = self
                    .context(link, id)
                    .and_then(|context| context.sessions.get(&key));
                let mut mirror = taken
                    .or_else(|| held.cloned())
                    .unwrap_or_else(|| SessionMirror::new(principal));
                if let Some(holdings) = holdings {
                    mirror.holdings = holdings;
                }
                self.keep_session(link, id, key, mirror);
            }
        }
    }

    /// Puts a mirror in place of the one before, and moves the counters by the difference.
    fn keep_session(
        &mut self,
        link: LinkId,
        id: &ContextId,
        key: SessionKey,
        mirror: SessionMirror,
    ) {
        let Some(state) = self.links.get_mut(&link) else {
            return;
        };
        let Some(context) = state.contexts.get_mut(id) else {
            return;
        };
        let (principal, more) = (mirror.principal, mirror.amounts());
        let before = context.sessions.insert(key, mirror);
        let less = before.map_or_else(Amounts::default, |mirror| mirror.amounts());
        context.amounts.change(&more, &less);
        self.usage.change(&state.router, &principal, &more, &less);
    }

    fn refuse(&mut self, link: LinkId, id: &ContextId, request: &Request, refused: Refused) {
        let router = self.links.get(&link).map(|link| link.router);
        let about = About {
            router: router.as_ref(),
            context: Some(id),
            space: Some(&request.space),
        };
        self.audit
            .verdict(Verdict::RequestRefused, about, refused.reason);
    }
}

/// Elements of a list; `None` when the request has none.
fn count(list: &Option<Collection>) -> Option<u64> {
    list.as_ref().and_then(Collection::count)
}
