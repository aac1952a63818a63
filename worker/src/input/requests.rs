//! Requests: the place that each takes, where it goes, and the controls among them.

use std::rc::Rc;

use memory_wire::credit::REQUEST_WINDOW;
use memory_wire::message::Message;
use memory_wire::reason::Reason;
use memory_wire::stream::Route;

use super::Input;
use crate::controls::{self, Body, Framing};
use crate::end::End;
use crate::ledger::Class;
use crate::table::{Admitted, Placed};
use crate::upstream::{BodyTurn, Upstream};

/// Operations that only a toolshed's operator may ask for; never forwarded.
const OPERATOR_KINDS: [&str; 1] = ["sqlite.register-disk-source"];

impl Input {
    /// Waits for a place among the unanswered requests. Requests that the router serves itself do not wait: the one that
    /// others wait for may be among them.
    async fn admit(&mut self, class: Class) -> Result<Admitted, End> {
        let arrived = self.arrived;
        let shared = Rc::clone(&self.shared);
        let places = shared.ledger.places(class);
        if let Ok(place) = places.reserve(1) {
            return Ok(Admitted::new(place, arrived));
        }
        let place = self.patiently("requests", async {
            loop {
                let answered = shared.answered.notified();
                // Refused once is enough.
                if places.has_room(1)
                    && let Ok(place) = places.reserve(1)
                {
                    return place;
                }
                answered.await;
            }
        });
        Ok(Admitted::new(place.await?, arrived))
    }

    /// Where a request of a session goes; waits behind the session's watch mutation.
    async fn place(&mut self, space: &str, session_id: &str) -> Result<Option<Rc<Upstream>>, End> {
        let placed = self.shared.table.borrow_mut().place(space, session_id);
        let index = match placed {
            Placed::Unknown => return Ok(None),
            Placed::Ready(index) => index,
            Placed::Behind(_) => {
                let shared = Rc::clone(&self.shared);
                let placed = self
                    .patiently("watch-mutation", async {
                        loop {
                            let answered = shared.answered.notified();
                            match shared.table.borrow_mut().place(space, session_id) {
                                Placed::Behind(_) => {}
                                placed => return placed,
                            }
                            answered.await;
                        }
                    })
                    .await?;
                match placed {
                    Placed::Ready(index) => index,
                    Placed::Behind(_) | Placed::Unknown => return Ok(None),
                }
            }
        };
        match self.shared.upstream(index) {
            Some(upstream) if !upstream.is_lost() => Ok(Some(upstream)),
            _ => Err(End::upstream("upstream-gone")),
        }
    }

    /// Waits for a turn at `upstream` and the credit for `bytes`, and sends the header.
    pub(super) async fn send_header(
        &mut self,
        upstream: &Rc<Upstream>,
        class: Class,
        bytes: u32,
        binary: bool,
        route: &Route<'_>,
    ) -> Result<BodyTurn, End> {
        self.patiently("request-credit", async {
            let (mut turn, ordinal) = upstream.admit(class, bytes).await?;
            turn.header(ordinal, bytes, binary, route).await?;
            Ok(turn)
        })
        .await?
    }

    pub(super) async fn send_whole(
        &mut self,
        upstream: &Rc<Upstream>,
        class: Class,
        body: &[u8],
        binary: bool,
        route: &Route<'_>,
    ) -> Result<(), End> {
        let bytes = u32::try_from(body.len()).map_err(|_| End::client("message-too-large"))?;
        let mut turn = self
            .send_header(upstream, class, bytes, binary, route)
            .await?;
        self.patiently("request-body", turn.whole(body)).await?
    }

    /// Admits ordinary data by its route. `None`: refused, and answered if it can be.
    pub(super) async fn admit_data(
        &mut self,
        route: &Route<'_>,
        bytes: u64,
    ) -> Result<Option<(Rc<Upstream>, u32)>, End> {
        if controls::is_reserved(&route.kind) {
            return Err(End::client("reserved-type"));
        }
        let request_id = route.request_id.as_deref();
        let request_id = request_id.ok_or_else(|| End::client("request-members"))?;
        let admitted = self.admit(class_of(route)).await?;
        if OPERATOR_KINDS.contains(&route.kind.as_ref()) {
            self.shared.table.borrow_mut().begin_local(request_id)?;
            self.shared
                .refuse(request_id, Reason::OperationDenied, "request")?;
            return Ok(None);
        }
        let (Some(space), Some(session_id)) = (route.space.as_deref(), route.session_id.as_deref())
        else {
            return Err(End::client("request-members"));
        };
        let upstream = self.place(space, session_id).await?;
        let refusal = if upstream.is_none() {
            Some(Reason::SessionUnknown)
        } else if bytes > u64::from(REQUEST_WINDOW) {
            Some(Reason::RequestTooLarge)
        } else {
            None
        };
        if let Some(reason) = refusal {
            self.shared.table.borrow_mut().begin_local(request_id)?;
            self.shared.refuse(request_id, reason, "request")?;
            return Ok(None);
        }
        let (Some(upstream), Ok(bytes)) = (upstream, u32::try_from(bytes)) else {
            return Ok(None);
        };
        let mut table = self.shared.table.borrow_mut();
        if class_of(route) == Class::Control {
            table.begin_close(request_id, upstream.index(), space, session_id, admitted)?;
        } else {
            table.begin_plain(request_id, upstream.index(), admitted)?;
        }
        drop(table);
        Ok(Some((upstream, bytes)))
    }

    /// Serves or sends on a message that the router reads.
    pub(super) async fn control(&mut self, message: &Message, body: Body<'_>) -> Result<(), End> {
        match message.kind.as_str() {
            "router.transport" => {
                if self.authentication_began || !matches!(self.framing, Framing::Legacy) {
                    return Err(End::client("transport-selection"));
                }
                self.framing = controls::select_transport(message)?;
                if matches!(self.framing, Framing::Credited) {
                    self.shared
                        .output
                        .start_credit(self.shared.settings.upload_window)?;
                }
                Ok(())
            }
            "session.open" => {
                let admitted = self.admit(Class::Live).await?;
                let open = controls::parse_open(&self.shared, message, body, admitted)?;
                if let Some(open) = open {
                    self.opens
                        .send(open)
                        .map_err(|_| End::new(Reason::Internal, "opener"))?;
                }
                Ok(())
            }
            "session.watch.set" | "session.watch.add" => self.watch(message, body).await,
            kind => {
                self.authentication_began |= kind == "connection.auth";
                let (shared, framing) = (Rc::clone(&self.shared), self.framing);
                self.patiently("link-agent", controls::serve(&shared, framing, message))
                    .await?
            }
        }
    }

    async fn watch(&mut self, message: &Message, body: Body<'_>) -> Result<(), End> {
        controls::reject_smuggled(message)?;
        let change = controls::watch_change(message)?;
        let (Some(request_id), Some(space), Some(session_id)) = (
            message.request_id.as_deref(),
            message.space.as_deref(),
            message.session_id.as_deref(),
        ) else {
            return Err(End::client("request-members"));
        };
        let admitted = self.admit(Class::Live).await?;
        let upstream = self.place(space, session_id).await?;
        let refusal = if body.is_too_large() {
            self.shared.table.borrow_mut().begin_local(request_id)?;
            Some(Reason::RequestTooLarge)
        } else {
            self.shared
                .table
                .borrow_mut()
                .begin_watch(request_id, space, session_id, change, admitted)?
        };
        match (refusal, upstream) {
            (None, Some(upstream)) => {
                let route = Route::of(message);
                self.send_whole(&upstream, Class::Live, body.bytes, body.binary, &route)
                    .await
            }
            (Some(reason), _) => self.shared.refuse(request_id, reason, "watch"),
            (None, None) => self
                .shared
                .refuse(request_id, Reason::SessionUnknown, "watch"),
        }
    }
}

/// What a request that the router does not read is for.
pub(super) fn class_of(route: &Route<'_>) -> Class {
    match route.kind.as_ref() {
        "session.close" => Class::Control,
        _ => Class::Data,
    }
}
