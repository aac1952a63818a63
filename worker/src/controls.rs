//! The messages the router reads: its own requests, and the parts of session requests that it has to understand.

use std::rc::Rc;

use memory_wire::base64url;
use memory_wire::credit::REQUEST_WINDOW;
use memory_wire::did::Did;
use memory_wire::message::{Collection, Message};
use memory_wire::reason::Reason;
use memory_wire::records::{MAX_STATEMENT_LEN, Statement};
use memory_wire::stream::Route;
use serde_json::json;

use crate::agents::Refused;
use crate::answers;
use crate::connection::Shared;
use crate::end::End;
use crate::meter::{Measured, Timed};
use crate::opener::Open;
use crate::table::{Admitted, MAX_HOLDINGS_PER_FRAME, WatchChange};

/// How the client sends its messages (`docs/protocol.md` 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Whole envelopes.
    Legacy,
    /// Ordinary data in records without credit, controls as whole envelopes.
    Streamed,
    /// Everything in records, paid for with upload credit.
    Credited,
}

/// A control as it goes on to a toolshed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body<'a> {
    pub(crate) bytes: &'a [u8],
    /// Whether `bytes` are an envelope.
    pub(crate) binary: bool,
    /// Length of the message itself.
    pub(crate) expanded: usize,
}

impl<'a> Body<'a> {
    pub(crate) fn text(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            binary: false,
            expanded: bytes.len(),
        }
    }

    /// Whether no request credit can ever cover it, as it is sent or as the toolshed has to expand it.
    pub(crate) fn is_too_large(&self) -> bool {
        self.bytes.len().max(self.expanded) as u64 > u64::from(REQUEST_WINDOW)
    }
}

/// Whether the router assembles and parses messages of this type.
pub(crate) fn is_control(kind: &str) -> bool {
    is_reserved(kind)
        || matches!(
            kind,
            "session.open" | "session.watch.set" | "session.watch.add"
        )
}

/// Whether the type belongs to the router itself and is never forwarded.
pub(crate) fn is_reserved(kind: &str) -> bool {
    kind == "hello"
        || kind == "hello.ok"
        || kind == "memory.compression"
        || kind == "response"
        || kind.starts_with("router.")
        || kind.starts_with("connection.")
        || kind.starts_with("connection/")
}

/// Refuses metadata that only the router may add.
pub(crate) fn reject_smuggled(message: &Message) -> Result<(), End> {
    match message.smuggled {
        Some(_) => Err(End::client("smuggled-metadata")),
        None => Ok(()),
    }
}

pub(crate) fn select_transport(message: &Message) -> Result<Framing, End> {
    if message.version != Some(1) {
        return Err(End::client("transport-version"));
    }
    Ok(if message.upload_credits == Some(true) {
        Framing::Credited
    } else {
        Framing::Streamed
    })
}

/// Serves a request of the router's own.
pub(crate) async fn serve(
    shared: &Rc<Shared>,
    framing: Framing,
    message: &Message,
) -> Result<(), End> {
    let kind = message.kind.as_str();
    if !matches!(
        kind,
        "connection.challenge" | "connection.auth" | "connection.release" | "memory.compression"
    ) {
        return Err(End::client("reserved-type"));
    }
    let request_id = message
        .request_id
        .as_deref()
        .ok_or_else(|| End::client("request-id"))?;
    shared.table.borrow_mut().begin_local(request_id)?;
    match kind {
        "connection.challenge" => match shared.link.challenge().await {
            Ok(issued) => shared.answer(request_id, answers::challenge(request_id, &issued)),
            Err(refused) => return refuse(shared, request_id, refused, "connection.challenge"),
        },
        "connection.auth" => return authenticate(shared, request_id, message).await,
        "connection.release" => {
            let principal = message
                .principal
                .as_deref()
                .and_then(|text| Did::parse(text).ok());
            let principal = principal.ok_or_else(|| End::client("release-principal"))?;
            match shared.link.release(principal).await {
                Ok(()) => {
                    shared.ledger.principals.released(&principal);
                    // Its held opens need not wait for a signature any more.
                    shared.principal_changed(&principal);
                    shared.answer(request_id, answers::ok(request_id, &json!({})));
                }
                Err(refused) => return refuse(shared, request_id, refused, "connection.release"),
            }
        }
        _ => {
            let asked = message
                .enabled
                .ok_or_else(|| End::client("compression-enabled"))?;
            let negotiated = match framing {
                Framing::Legacy => shared.envelopes(),
                Framing::Streamed | Framing::Credited => shared.compression(),
            };
            shared.answer(
                request_id,
                answers::compression(request_id, asked && negotiated),
            );
        }
    }
    Ok(())
}

fn refuse(
    shared: &Rc<Shared>,
    request_id: &str,
    refused: Refused,
    detail: &'static str,
) -> Result<(), End> {
    match refused {
        Refused::Reason(reason) => shared.refuse_own(request_id, reason, detail),
        Refused::Gone => Err(End::new(Reason::LinkAgentLost, "link-agent-gone")),
    }
}

/// Verifies the statement here, signature first, before the link agent sees it and verifies it again.
async fn authenticate(shared: &Rc<Shared>, request_id: &str, message: &Message) -> Result<(), End> {
    let timed = Timed::start(Measured::Authentication);
    let text = message
        .statement
        .as_deref()
        .ok_or_else(|| End::client("statement"))?;
    let bytes = base64url::decode(text, MAX_STATEMENT_LEN)
        .map_err(|_| End::client("statement-base64url"))?;
    let statement = Statement::verify(&bytes).map_err(|_| End::client("statement-record"))?;
    if statement.router != shared.offer.router || statement.deployment != shared.offer.deployment {
        return Err(End::client("statement-audience"));
    }
    let outcome = shared.link.authenticate(bytes).await;
    shared.meter.done(timed);
    match outcome {
        Ok((principal, expires)) => {
            shared.ledger.principals.signed(principal, expires);
            shared.principal_signed(&principal);
            shared.answer(
                request_id,
                answers::authenticated(request_id, &principal, expires),
            );
            Ok(())
        }
        Err(refused) => {
            if let Refused::Reason(reason) = refused {
                shared.ledger.principals.refused(reason);
            }
            refuse(shared, request_id, refused, "connection.auth")
        }
    }
}

/// Checks a `session.open` and takes its session slot. `None`: refused and answered.
pub(crate) fn parse_open(
    shared: &Rc<Shared>,
    message: &Message,
    body: Body<'_>,
    admitted: Admitted,
) -> Result<Option<Open>, End> {
    reject_smuggled(message)?;
    let Some(session) = &message.session else {
        return Err(End::client("open-session"));
    };
    if session.acting_as {
        return Err(End::client("smuggled-metadata"));
    }
    if session.tagged {
        return Err(End::client("open-session-tagged"));
    }
    let parse = |text: Option<&str>| text.and_then(|text| Did::parse(text).ok());
    let request_id = message
        .request_id
        .as_deref()
        .ok_or_else(|| End::client("request-id"))?;
    let space = parse(message.space.as_deref()).ok_or_else(|| End::client("open-space"))?;
    let principal =
        parse(message.principal.as_deref()).ok_or_else(|| End::client("open-principal"))?;
    check_holdings(message)?;
    let mut refusal = None;
    if shared.dedicated.is_some_and(|only| only != space) {
        refusal = Some(Reason::DedicatedSpace);
    } else if shared.is_draining() {
        refusal = Some(Reason::Drain);
    } else if body.is_too_large() {
        refusal = Some(Reason::RequestTooLarge);
    }
    let held = match refusal {
        None => shared.hold_open(principal, body.bytes.len()),
        Some(_) => None,
    };
    if held.is_none() && refusal.is_none() {
        refusal = Some(Reason::RequestLimit);
    }
    if refusal.is_some() {
        shared.table.borrow_mut().begin_local(request_id)?;
    } else {
        refusal = shared
            .table
            .borrow_mut()
            .begin_open(request_id, &space, admitted)?;
    }
    if let Some(reason) = refusal {
        shared.refuse(request_id, reason, "session.open")?;
        return Ok(None);
    }
    Ok(held.map(|held| Open {
        route: Route::of(message).into_owned(),
        request_id: request_id.to_owned(),
        space,
        principal,
        body: body.bytes.to_vec(),
        binary: body.binary,
        held,
    }))
}

fn check_holdings(message: &Message) -> Result<Option<u64>, End> {
    match &message.holdings {
        None => Ok(None),
        Some(Collection::NotArray) => Err(End::client("holdings")),
        Some(Collection::Array { count, .. }) if *count > MAX_HOLDINGS_PER_FRAME => {
            Err(End::client("holdings-count"))
        }
        Some(Collection::Array { count, .. }) => Ok(Some(*count)),
    }
}

/// What a watch mutation will change.
pub(crate) fn watch_change(message: &Message) -> Result<WatchChange, End> {
    let ids = match &message.watches {
        None | Some(Collection::NotArray) => return Err(End::client("watches")),
        Some(Collection::Array { count, ids }) if ids.len() as u64 != *count => {
            return Err(End::client("watch-id"));
        }
        Some(Collection::Array { ids, .. }) => ids.clone(),
    };
    let views = match &message.views {
        None => None,
        Some(Collection::NotArray) => return Err(End::client("views")),
        Some(Collection::Array { count, .. }) => Some(*count),
    };
    Ok(WatchChange {
        replace: message.kind == "session.watch.set",
        ids,
        views,
        holdings: check_holdings(message)?,
    })
}
