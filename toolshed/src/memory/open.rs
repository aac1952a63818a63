//! `session.open`: who may, fresh sessions, resumed ones, new spaces.

use super::acl::Capability;
use super::answer::{BackendId, Outbox, Refusal, Revocation};
use super::document::{Scopes, safe_integer};
use super::effect;
use super::engine::{Memory, Turn};
use super::genesis::Declarations;
use super::holdings::Holdings;
use super::query::Failure;
use super::session::{Session, SessionKey};
use super::sql::{self, SessionRow};
use super::store::Space;
use super::token::{same_token, uuid};
use memory_wire::Did;
use memory_wire::message::is_identifier;
use serde_json::{Map, Value};

/// A well-formed open.
struct Open<'a> {
    space: Did,
    principal: Did,
    session_id: Option<&'a str>,
    token: Option<&'a str>,
    seen_seq: u64,
    declarations: Declarations,
    holdings: Option<&'a Value>,
}

impl<'a> Open<'a> {
    fn parse(space: Did, request: &'a Map<String, Value>) -> Result<Self, Refusal> {
        let principal = request
            .get("principal")
            .and_then(Value::as_str)
            .and_then(|text| Did::parse(text).ok())
            .ok_or_else(Refusal::unparsable)?;
        let session = request
            .get("session")
            .and_then(Value::as_object)
            .ok_or_else(Refusal::unparsable)?;
        // Ignoring these would give more than was asked for.
        for unsupported in ["readCeiling", "actingAs"] {
            if session.contains_key(unsupported) {
                return Err(Refusal::protocol(format!(
                    "session {unsupported} is not supported"
                )));
            }
        }
        let text = |name: &str| match session.get(name) {
            None => Ok(None),
            Some(Value::String(text)) if is_identifier(text) => Ok(Some(text.as_str())),
            Some(_) => Err(Refusal::protocol(format!("malformed session {name}"))),
        };
        let seen_seq = match session.get("seenSeq") {
            None => 0,
            Some(seq) => {
                safe_integer(seq).ok_or_else(|| Refusal::protocol("malformed session seenSeq"))?
            }
        };
        Ok(Self {
            space,
            principal,
            session_id: text("sessionId")?,
            token: text("sessionToken")?,
            seen_seq,
            declarations: Declarations::parse(session)?,
            holdings: request.get("holdings"),
        })
    }
}

/// The answer to an open, and the connection that lost the session by it.
type Opened = (Value, Option<(SessionKey, BackendId)>);

impl Memory {
    /// Opens a session and answers; a connection that loses it is told after the answer.
    pub(super) fn open_session(
        &mut self,
        backend: BackendId,
        (space, request_id): (Did, &str),
        request: &Map<String, Value>,
        turn: &Turn<'_>,
        out: &mut Outbox,
    ) {
        let opened = Open::parse(space, request)
            .map_err(Failure::from)
            .and_then(|open| self.try_open(backend, &open, turn));
        match opened {
            Ok((answer, taken)) => {
                out.answer(backend, request_id, Ok(answer));
                if let Some((key, loser)) = taken {
                    out.revoked(loser, &key.space, &key.id, Revocation::TakenOver);
                }
            }
            Err(failure) => {
                let refusal = self.refusal(&space, failure, "ProtocolError");
                out.answer(backend, request_id, Err(refusal));
            }
        }
    }

    fn try_open(
        &mut self,
        backend: BackendId,
        open: &Open<'_>,
        turn: &Turn<'_>,
    ) -> Result<Opened, Failure> {
        let stable = self.sessions.backend(backend).map(|b| b.stable_ids);
        match stable {
            None => return Err(Refusal::denied().into()),
            Some(false) => {
                return Err(Refusal::new(
                    "SessionRevokedError",
                    "client must support stableExpressionResultIds",
                )
                .into());
            }
            Some(true) => {}
        }
        let principal = &open.principal;
        match (turn.lease)(principal) {
            None => return Err(Refusal::denied().into()),
            Some(expiry) if expiry <= turn.now => {
                return Err(Refusal::denied().retriable().into());
            }
            Some(_) => {}
        }
        if !(turn.owns)(&open.space) {
            return Err(Refusal::denied().into());
        }
        let service = self.options.services.contains(principal);
        let id = match open.session_id {
            Some(id) => id.into(),
            None => uuid()?.into(),
        };
        let key = SessionKey {
            space: open.space,
            id,
        };
        let scopes = Scopes::new(principal.as_str(), &key.id);
        let holdings = Holdings::parse(open.holdings, &scopes)?;
        if self.store.space(&open.space)?.is_none() {
            // Nothing is made for a stranger, nor where the directory places a space whose store has not arrived.
            if *principal != open.space || !(turn.may_create)(&open.space) {
                return Err(Refusal::denied().into());
            }
        }
        let space = self.store.space_or_new(&open.space)?;
        space
            .acl
            .require(&open.space, principal, service, Capability::Read)?;
        if space.server_seq > 0 {
            open.declarations.check_against(space)?;
        }
        let live = self.sessions.get(&key);
        let row = admit(open, &key, live, space)?;
        sql::write_session(&space.connection, &key.id, &row)?;
        if live.is_some() {
            self.resume(backend, open, key, row.token, holdings)
        } else {
            self.begin(backend, open, key, row.token, holdings)
        }
    }

    /// A session that no connection holds: its identity goes on, its watches do not.
    fn begin(
        &mut self,
        backend: BackendId,
        open: &Open<'_>,
        key: SessionKey,
        token: String,
        holdings: Option<Holdings>,
    ) -> Result<Opened, Failure> {
        let declarations = open.declarations.clone();
        let service = self.options.services.contains(&open.principal);
        let mut session = Session::new(
            key.id.clone(),
            backend,
            open.principal,
            service,
            declarations,
        );
        session.holdings = holdings.map_or(0, |holdings| holdings.len());
        session.token = token;
        session.markers = self.sessions.backend(backend).is_some_and(|b| b.markers);
        let space = self.store.space_or_new(&open.space)?;
        session.seen_seq = open.seen_seq.min(space.server_seq);
        session.synced_seq = session.seen_seq;
        // Commits of an earlier life of this session are in every state it will be sent.
        session.caught_up =
            sql::last_local_seq(&space.connection, open.principal.as_str(), &key.id)?;
        let answer = answer(space, &session, 0);
        self.sessions.insert(key, session);
        Ok((answer.into(), None))
    }

    /// A session that a connection holds, perhaps another one: it goes on with all it watches.
    fn resume(
        &mut self,
        backend: BackendId,
        open: &Open<'_>,
        key: SessionKey,
        token: String,
        holdings: Option<Holdings>,
    ) -> Result<Opened, Failure> {
        let markers = self.sessions.backend(backend).is_some_and(|b| b.markers);
        let limits = self.limits();
        let space = self.store.space_or_new(&open.space)?;
        let gone = || Refusal::new("SessionRevokedError", "Session was revoked while opening");
        let session = self.sessions.get_mut(&key).ok_or_else(gone)?;
        let due = match &holdings {
            Some(holdings) => holdings.difference(space, session.documents())?,
            None => {
                let mut due = session.dirty.clone();
                for document in session.documents() {
                    let state = sql::head_state(&space.connection, document)?;
                    if state.is_some_and(|(seq, _)| seq > open.seen_seq) {
                        due.insert(document.clone());
                    }
                }
                due
            }
        };
        session.dirty = due;
        session.token = token;
        session.markers = markers;
        session.declarations = open.declarations.clone();
        session.seen_seq = session.seen_seq.max(open.seen_seq.min(space.server_seq));
        if let Some(holdings) = holdings {
            session.holdings = holdings.len();
        }
        let from = session.seen_seq;
        let mut heads = effect::Heads::default();
        let sync = effect::take_sync(space, session, &mut heads, &limits, from, true)?;
        let mut answer = answer(space, session, session.caught_up);
        answer.insert("resumed".to_owned(), true.into());
        answer.insert("sync".to_owned(), sync.value);
        let loser = self
            .sessions
            .hand_over(&key, backend)
            .filter(|loser| *loser != backend);
        self.sessions.queue(&key);
        Ok((answer.into(), loser.map(|loser| (key, loser))))
    }
}

/// Checks a session identifier against who had it before; the row to remember.
fn admit(
    open: &Open<'_>,
    key: &SessionKey,
    live: Option<&Session>,
    space: &Space,
) -> Result<SessionRow, Failure> {
    let row = sql::session(&space.connection, &key.id)?;
    let bound = live
        .map(|session| session.principal.to_string())
        .or_else(|| row.as_ref().map(|row| row.principal.clone()));
    if let Some(bound) = bound {
        let id = &key.id;
        if bound != open.principal.as_str() {
            return Err(Refusal::authorization(format!(
                "session {id} is already bound to {bound}"
            ))
            .into());
        }
        let accepted = match (live, &row, open.token) {
            (_, _, None) => false,
            (Some(session), _, Some(token)) => same_token(token, &session.token),
            // The answer that carried the newest token may have been lost with its connection.
            (None, Some(row), Some(token)) => {
                let earlier = row.earlier_token.as_deref();
                same_token(token, &row.token)
                    || earlier.is_some_and(|earlier| same_token(token, earlier))
            }
            (None, None, Some(_)) => true,
        };
        if !accepted {
            return Err(Refusal::new(
                "SessionRevokedError",
                format!("session {id} resume token is no longer valid"),
            )
            .into());
        }
    }
    let known = live.is_some() || row.is_some();
    Ok(SessionRow {
        principal: open.principal.to_string(),
        token: uuid()?,
        earlier_token: open.token.filter(|_| known).map(str::to_owned),
    })
}

fn answer(space: &Space, session: &Session, caught_up: u64) -> Map<String, Value> {
    let mut answer = Map::new();
    answer.insert("sessionId".to_owned(), (*session.id).into());
    answer.insert("sessionToken".to_owned(), session.token.as_str().into());
    answer.insert("serverSeq".to_owned(), space.server_seq.into());
    answer.insert("caughtUpLocalSeq".to_owned(), caught_up.into());
    if let Some(kind) = &space.space_kind {
        answer.insert("spaceKind".to_owned(), kind.as_str().into());
    }
    answer
}
