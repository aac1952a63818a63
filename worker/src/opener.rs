//! `session.open`: placement, the data socket if there is none yet, and the wait for a principal that has to sign again.
//!
//! All opens of the connection run concurrently in one task, so that a toolshed that is slow or down delays nobody else's;
//! the reservation each holds bounds how many there can be.

use std::rc::Rc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use memory_wire::did::Did;
use memory_wire::message::Message;
use memory_wire::reason::{Reason, Refusal};
use memory_wire::stream::Route;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::agents::{Placement, Refused};
use crate::connection::Shared;
use crate::end::End;
use crate::times::Times;
use crate::upstream::Upstream;
use crate::{answers, data_socket};

/// A `session.open` that was parsed and holds its session slot.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) message: Message,
    pub(crate) request_id: String,
    pub(crate) space: Did,
    pub(crate) principal: Did,
    /// The message as the toolshed gets it.
    pub(crate) body: Vec<u8>,
    pub(crate) binary: bool,
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
    shared
        .table
        .borrow_mut()
        .forward_open(&open.request_id, upstream.index());
    let bytes =
        u32::try_from(open.body.len()).map_err(|_| Outcome::Refused(Reason::RequestTooLarge))?;
    let send = async {
        let mut turn = upstream.turn().await;
        turn.header(bytes, open.binary, &Route::of(&open.message))
            .await?;
        turn.whole(&open.body).await
    };
    match tokio::time::timeout(shared.settings.admission(), send).await {
        Ok(result) => Ok(result?),
        // The header may be on its way: only the end of the socket tells the toolshed that the rest will not come.
        Err(_) => Err(End::new(Reason::AdmissionTimeout, "session-open").into()),
    }
}

/// Finds or makes the data socket that serves the open's space.
async fn place(shared: &Rc<Shared>, open: &Open) -> Result<Rc<Upstream>, Outcome> {
    let give_up = Instant::now() + shared.settings.hold_open();
    loop {
        if shared.is_draining() {
            return Err(Outcome::Refused(Reason::Drain));
        }
        let signed = shared.principal_generation(&open.principal);
        match shared.broker.place(open.space, open.principal).await {
            Ok(Placement::Existing(index)) => match shared.upstream(index) {
                Some(upstream) if !upstream.is_lost() => return Ok(upstream),
                _ => return Err(End::upstream("upstream-gone").into()),
            },
            Ok(Placement::Socket(socket)) => {
                return match data_socket::establish(shared, *socket).await {
                    Ok(upstream) => Ok(upstream),
                    Err(data_socket::Failure::RolledBack) => {
                        Err(Outcome::Refused(Reason::UpstreamUnavailable))
                    }
                    Err(data_socket::Failure::End(end)) => Err(end.into()),
                };
            }
            Err(Refused::Reason(Reason::PrincipalRenewal)) => {
                wait_for_signature(shared, open, signed, give_up).await?
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
    signed: u64,
    give_up: Instant,
) -> Result<(), Outcome> {
    if shared.claim_push(&open.principal) {
        let issued = match shared.link.challenge().await {
            Ok(issued) => issued,
            Err(refused) => {
                shared.release_push(&open.principal);
                return Err(Outcome::Refused(match refused {
                    Refused::Reason(reason) => reason,
                    Refused::Gone => Reason::UpstreamUnavailable,
                }));
            }
        };
        shared
            .output
            .send_text(answers::pushed_challenge(&open.principal, &issued));
    }
    loop {
        let changed = shared.authenticated.notified();
        if shared.principal_generation(&open.principal) != signed {
            return Ok(());
        }
        if tokio::time::timeout_at(give_up, changed).await.is_err() {
            shared.release_push(&open.principal);
            return Err(Outcome::Refused(Reason::PrincipalRenewal));
        }
    }
}
