//! `session.open`: placement, the data socket if there is none yet, and the wait for a principal that has to sign again.
//!
//! All opens of the connection run concurrently in one task, so that a toolshed that is slow or down delays nobody else's;
//! the reservation each holds bounds how many there can be.

use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use memory_wire::did::Did;
use memory_wire::reason::{Reason, Refusal};
use memory_wire::stream::Route;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::agents::Refused;
use crate::broker::Placement;
use crate::connection::{HeldOpen, Shared};
use crate::end::End;
use crate::ledger::Class;
use crate::output::Urgency;
use crate::times::Times;
use crate::upstream::Upstream;
use crate::{answers, data_socket};

/// A `session.open` that was parsed and holds its session slot.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) route: Route<'static>,
    pub(crate) request_id: String,
    pub(crate) space: Did,
    pub(crate) principal: Did,
    /// The message as the toolshed gets it.
    pub(crate) body: Vec<u8>,
    pub(crate) binary: bool,
    /// Its place among the opens that are being worked on.
    pub(crate) held: HeldOpen,
}

/// Why an open was not forwarded.
enum Outcome {
    Refused(Reason),
    End(End),
}

impl From<End> for Outcome {
    fn from(end: End) -> Self {
        Self::End(end)
    }
}

/// Works on every open that arrives on `opens` until the connection ends.
pub(crate) async fn run(
    shared: Rc<Shared>,
    mut opens: mpsc::UnboundedReceiver<Open>,
) -> Result<(), End> {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            open = opens.recv() => match open {
                Some(open) => running.push(serve(&shared, open)),
                None => return Ok(()),
            },
            Some(result) = running.next(), if !running.is_empty() => result?,
        }
    }
}

async fn serve(shared: &Rc<Shared>, open: Open) -> Result<(), End> {
    match admit_and_forward(shared, &open).await {
        Ok(()) => Ok(()),
        Err(Outcome::End(end)) => Err(end),
        Err(Outcome::Refused(reason)) => shared.refuse(&open.request_id, reason, "session.open"),
    }
}

async fn admit_and_forward(shared: &Rc<Shared>, open: &Open) -> Result<(), Outcome> {
    let upstream = place(shared, open).await?;
    let bytes =
        u32::try_from(open.body.len()).map_err(|_| Outcome::Refused(Reason::RequestTooLarge))?;
    let admission = shared.settings.admission();
    // Behind an upload that is slow and legal, without credit, or at a toolshed that went meanwhile: nothing was sent, so
    // the open alone is refused.
    let admitted = tokio::time::timeout(admission, upstream.admit(Class::Live, bytes));
    let (mut turn, ordinal) = match admitted.await {
        Ok(Ok(admitted)) => admitted,
        Ok(Err(_)) => return Err(Outcome::Refused(Reason::UpstreamUnavailable)),
        Err(_) => {
            let detail = format!("request-credit of toolshed {}", upstream.index());
            shared.log(Reason::AdmissionTimeout, &detail);
            return Err(Outcome::Refused(Reason::AdmissionTimeout));
        }
    };
    shared
        .table
        .borrow_mut()
        .forward_open(&open.request_id, upstream.index());
    let send = async {
        turn.header(ordinal, bytes, open.binary, &open.route)
            .await?;
        turn.whole(&open.body).await
    };
    match tokio::time::timeout(admission, send).await {
        Ok(result) => Ok(result?),
        // The header may be on its way: only the end of the socket tells the toolshed that the rest will not come.
        Err(_) => Err(End::new(Reason::AdmissionTimeout, "session-open")
            .of_toolshed(upstream.index())
            .into()),
    }
}

/// Finds or makes the data socket that serves the open's space.
async fn place(shared: &Rc<Shared>, open: &Open) -> Result<Rc<Upstream>, Outcome> {
    let give_up = Instant::now() + shared.settings.hold_open();
    loop {
        if shared.is_draining() {
            return Err(Outcome::Refused(Reason::Drain));
        }
        let changes = open.held.changes();
        let broker = shared.newest_broker().await;
        let turn = shared.settings.setup_turn();
        match broker.place(open.space, open.principal, turn).await {
            Ok(Placement::Existing(index)) => match shared.upstream(index) {
                Some(upstream) if !upstream.is_lost() => return Ok(upstream),
                // With its link, of which the broker has not heard yet: the next open gets a new one. Or alone: then this
                // connection is about to end.
                _ => return Err(Outcome::Refused(Reason::UpstreamUnavailable)),
            },
            Ok(Placement::Socket(socket, attempt)) => {
                return match data_socket::establish(shared, broker, *socket, attempt).await {
                    Ok(upstream) => Ok(upstream),
                    Err(data_socket::Failure::RolledBack) => {
                        Err(Outcome::Refused(Reason::UpstreamUnavailable))
                    }
                    Err(data_socket::Failure::End(end)) => Err(end.into()),
                };
            }
            Err(Refused::Reason(Reason::PrincipalRenewal)) => {
                wait_for_signature(shared, open, changes, give_up).await?
            }
            Err(Refused::Reason(reason)) if reason.refusal() == Refusal::Close => {
                return Err(End::new(reason, "session-open").into());
            }
            Err(Refused::Reason(reason)) => return Err(Outcome::Refused(reason)),
            Err(Refused::Gone) => return Err(Outcome::Refused(Reason::UpstreamUnavailable)),
        }
    }
}

/// Pushes a challenge, unless one is already on its way, and waits until the principal has signed again.
async fn wait_for_signature(
    shared: &Rc<Shared>,
    open: &Open,
    changes: u64,
    give_up: Instant,
) -> Result<(), Outcome> {
    let held = &open.held;
    if held.claim_push() {
        let issued = match shared.link.challenge().await {
            Ok(issued) => issued,
            Err(refused) => {
                held.release_push();
                return Err(Outcome::Refused(match refused {
                    Refused::Reason(reason) => reason,
                    Refused::Gone => Reason::UpstreamUnavailable,
                }));
            }
        };
        let push = answers::pushed_challenge(&open.principal, &issued);
        shared.output.send_text(push, Urgency::Control);
    }
    loop {
        let changed = shared.authenticated.notified();
        if held.changes() != changes || shared.is_draining() {
            return Ok(());
        }
        if tokio::time::timeout_at(give_up, changed).await.is_err() {
            held.release_push();
            return Err(Outcome::Refused(Reason::PrincipalRenewal));
        }
    }
}
