//! How links, contexts, sockets, leases and ownership begin and end, and how what the engine says reaches its sockets.

use super::audit::{About, Verdict};
use super::closer::{Closer, Closing};
use super::context::{SessionKey, SessionMirror};
use super::ledger::LedgerError;
use super::message::{self, Answers};
use super::ownership::Refreshed;
use super::state::{Link, LinkId, State};
use super::usage::Amounts;
use crate::memory::{BackendId, Output, Turn};
use memory_wire::Did;
use memory_wire::ids::{ContextId, EpochId};
use serde_json::Value;
use std::collections::HashMap;
use std::rc::Rc;

impl State {
    /// Admits a link whose handshake is good. Its epoch is on the disk before anything else changes; then a predecessor of
    /// the same router ends with all its contexts.
    ///
    /// # Errors
    /// [`LedgerError`]: the epoch or the router is refused, or the ledger failed.
    pub(crate) fn admit_link(
        &mut self,
        router: Did,
        epoch: EpochId,
        closer: Rc<Closer>,
        now: u64,
    ) -> Result<LinkId, LedgerError> {
        self.ledger.record_epoch(&router, &epoch, now)?;
        let same_router = |(id, link): (&LinkId, &Link)| (link.router == router).then_some(*id);
        let predecessors: Vec<LinkId> = self.links.iter().filter_map(same_router).collect();
        for predecessor in predecessors {
            self.close_link(predecessor, "link-replaced", now);
        }
        let id = LinkId::new(self.next_link);
        self.next_link += 1;
        self.links.insert(
            id,
            Link {
                router,
                epoch,
                sequence: 0,
                closer,
                contexts: HashMap::new(),
            },
        );
        let about = About {
            router: Some(&router),
            ..About::default()
        };
        self.audit.verdict(Verdict::LinkAdmitted, about, "admitted");
        Ok(id)
    }

    /// Ends a link and its contexts. One that is gone is left alone.
    pub(crate) fn close_link(&mut self, id: LinkId, reason: &str, now: u64) {
        let contexts = self
            .links
            .get(&id)
            .map(|link| link.contexts.keys().copied().collect());
        let contexts: Vec<ContextId> = contexts.unwrap_or_default();
        for context in contexts {
            self.close_context(id, &context, reason, None);
        }
        let Some(link) = self.links.remove(&id) else {
            return;
        };
        let about = About {
            router: Some(&link.router),
            ..About::default()
        };
        // On failure the ledger is unhealthy, which refuses every later link; the epoch is retired by the next start.
        if let Err(error) = self.ledger.retire(&link.router, &link.epoch, now) {
            self.audit
                .verdict(Verdict::LinkClosed, about, error.reason());
        }
        self.audit.verdict(Verdict::LinkClosed, about, reason);
        link.closer.close(Closing::ENDED);
    }

    /// Ends a context: its data socket, sessions, tickets and accepted statements. One that is gone is left alone.
    pub(crate) fn close_context(
        &mut self,
        link: LinkId,
        id: &ContextId,
        reason: &str,
        output_limit: Option<&Value>,
    ) {
        if self.context(link, id).is_none() {
            return;
        }
        self.release_socket(link, id);
        self.tickets.forget(link, id);
        let Some(state) = self.links.get_mut(&link) else {
            return;
        };
        state.contexts.remove(id);
        let about = About {
            router: Some(&state.router),
            context: Some(id),
            space: None,
        };
        self.audit
            .verdict_with(Verdict::ContextClosed, about, reason, output_limit);
    }

    /// Ends a context's data socket and every session on it, and gives their quotas back. The context stays.
    pub(crate) fn release_socket(&mut self, link: LinkId, id: &ContextId) {
        let Some(state) = self.links.get_mut(&link) else {
            return;
        };
        let router = state.router;
        let Some(context) = state.contexts.get_mut(id) else {
            return;
        };
        context.amounts = Amounts::default();
        let sessions = std::mem::take(&mut context.sessions);
        let socket = context.socket.take();
        for mirror in sessions.into_values() {
            let nothing = Amounts::default();
            self.usage
                .change(&router, &mirror.principal, &nothing, &mirror.amounts());
        }
        if let Some(socket) = socket {
            self.backends.remove(&socket.backend);
            self.memory.disconnect(socket.backend);
            socket.outlet.close(Closing::ENDED);
        }
    }

    /// A data socket failed or ended: so does its context. Only the first failure counts.
    pub(crate) fn end_socket(
        &mut self,
        backend: BackendId,
        reason: &str,
        output_limit: Option<&Value>,
    ) {
        if let Some((link, context)) = self.backends.get(&backend).copied() {
            self.close_context(link, &context, reason, output_limit);
        }
    }

    /// Ends everything because the host stops.
    pub(crate) fn close_all(&mut self, closing: Closing, now: u64) {
        for link in self.links.values() {
            link.closer.close(closing);
            for socket in link
                .contexts
                .values()
                .filter_map(|context| context.socket.as_ref())
            {
                socket.outlet.close(closing);
            }
        }
        let links: Vec<LinkId> = self.links.keys().copied().collect();
        for link in links {
            self.close_link(link, "shutdown", now);
        }
    }

    /// Looks at the directory file; when it changed, closes every context that holds a space whose epoch moved on.
    pub(crate) fn look_at_directory(&mut self) {
        match self.ownership.refresh() {
            Refreshed::Unchanged => {}
            Refreshed::Changed => self.fence(),
            Refreshed::Failed(why) => {
                tracing::error!(reason = "directory-unreadable", detail = %why);
            }
        }
    }

    /// Closes the contexts that hold a space which is no longer this toolshed's at the epoch it was admitted with, and then
    /// the databases of spaces that left.
    pub(crate) fn fence(&mut self) {
        let mut moved = Vec::new();
        for (link, state) in &self.links {
            for (id, context) in &state.contexts {
                let mut spaces = context.spaces.iter();
                if spaces.any(|(space, epoch)| !self.ownership.owns(space, *epoch)) {
                    moved.push((*link, *id));
                }
            }
        }
        for (link, id) in moved {
            self.close_context(link, &id, "ownership-changed", None);
        }
        let ownership = &self.ownership;
        self.memory
            .close_unowned(&|space| ownership.places_here(space));
    }

    /// Revokes a router's key for good and ends its links.
    ///
    /// # Errors
    /// The ledger's; the links end and the key is refused in this process all the same.
    pub(crate) fn revoke_router(&mut self, router: &Did, now: u64) -> Result<(), LedgerError> {
        let outcome = self.ledger.revoke(router);
        let of_router = |(id, link): (&LinkId, &Link)| (link.router == *router).then_some(*id);
        let links: Vec<LinkId> = self.links.iter().filter_map(of_router).collect();
        for link in links {
            self.close_link(link, "router-revoked", now);
        }
        let about = About {
            router: Some(router),
            ..About::default()
        };
        let reason = outcome
            .as_ref()
            .map_or_else(LedgerError::reason, |()| "revoked");
        self.audit.verdict(Verdict::RouterRevoked, about, reason);
        outcome
    }

    /// Ends the sessions whose principals' leases are over at `now`, and tells their clients.
    pub(crate) fn expire(&mut self, now: u64) {
        while let Some(&(expires, link, context, principal)) = self.expiries.first()
            && expires <= now
        {
            self.expiries.pop_first();
            let Some(known) = self.context(link, &context) else {
                continue;
            };
            let renewed = known
                .principals
                .lease(&principal)
                .is_some_and(|lease| lease > now);
            let Some(backend) = known.socket.as_ref().map(|socket| socket.backend) else {
                continue;
            };
            if renewed {
                continue;
            }
            let turn = Turn {
                now,
                owns: &|_| true,
                lease: &|_| None,
                may_create: &|_| false,
            };
            let outputs = self.memory.expire(backend, &principal, &turn);
            self.deliver(outputs, None);
        }
    }

    /// Gives out effects that wait, to nobody whose lease is over. Whether some are left.
    pub(crate) fn flush(&mut self, now: u64) -> bool {
        self.expire(now);
        let outputs = self.memory.flush();
        self.deliver(outputs, None);
        self.memory.has_pending()
    }

    /// Queues outputs at their sockets, and mirrors the sessions they end. A socket whose output bound is reached ends.
    /// `answers` is about the first output, when that answers a request.
    pub(crate) fn deliver(&mut self, outputs: Vec<Output>, mut answers: Option<Answers>) {
        let mut failures = Vec::new();
        for output in outputs {
            let answers = answers.take();
            let Some((link, id)) = self.backends.get(&output.backend).copied() else {
                continue;
            };
            if let Some(key) = message::revoked_session(&output.message) {
                self.forget_session(link, &id, &key);
            }
            let socket = self
                .context(link, &id)
                .and_then(|context| context.socket.clone());
            let Some(socket) = socket else {
                continue;
            };
            let body = match message::encode(&output.message, socket.compress, answers) {
                Ok(body) => body,
                Err(reason) => {
                    failures.push((output.backend, reason, None));
                    continue;
                }
            };
            if let Err(snapshot) = socket.outlet.enqueue(body) {
                failures.push((output.backend, "output-limit", Some(snapshot)));
            }
        }
        for (backend, reason, snapshot) in failures {
            self.end_socket(backend, reason, snapshot.as_ref());
        }
    }

    /// Drops a session's mirror and gives its quotas back.
    pub(crate) fn forget_session(
        &mut self,
        link: LinkId,
        id: &ContextId,
        key: &SessionKey,
    ) -> Option<SessionMirror> {
        let state = self.links.get_mut(&link)?;
        let context = state.contexts.get_mut(id)?;
        let mirror = context.sessions.remove(key)?;
        let nothing = Amounts::default();
        context.amounts.change(&nothing, &mirror.amounts());
        self.usage.change(
            &state.router,
            &mirror.principal,
            &nothing,
            &mirror.amounts(),
        );
        Some(mirror)
    }
}
