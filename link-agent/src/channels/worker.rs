//! A worker's requests. Each is answered before the next is taken.

use std::time::Duration;

use memory_ipc::Channel;
use memory_ipc::packets::{LinkAgentToWorker, WorkerToLinkAgent};
use memory_wire::ids::{Challenge, ConnectionId, ContextId};
use memory_wire::{Did, Reason};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Ended;
use crate::Shared;
use crate::agent::Fault;
use crate::clock::Moment;
use crate::context::Signals;
use crate::entropy::random;
use crate::refusals::Refusals;

/// How long a worker whose context is over may take to go.
const LINGER: Duration = Duration::from_secs(5);

/// Serves a worker until it is gone. A worker that does not read makes only this wait.
pub(super) async fn serve(
    shared: &Shared,
    channel: &Channel,
    id: ContextId,
    connection: ConnectionId,
    signals: &Signals,
    news: mpsc::UnboundedSender<ConnectionId>,
) -> Result<(), Ended> {
    let refusals = Refusals::new(connection, &shared.refusals);
    loop {
        let received = tokio::select! {
            received = channel.recv_packet::<WorkerToLinkAgent>() => received?,
            () = signals.lost.notified() => {
                while let Some(index) = take_lost(shared, &id) {
                    channel.send_packet(&LinkAgentToWorker::LinkLost { index }, &[]).await?;
                }
                continue;
            }
        };
        let Some((packet, _)) = received else {
            return Ok(());
        };
        let sequence = number(&packet);
        let reply = match handle(shared, &id, connection, packet, &news) {
            Ok(reply) => reply,
            Err(Fault::Refused(reason)) => {
                refusals.note(reason, None);
                LinkAgentToWorker::Refused {
                    sequence,
                    reason: reason.code(),
                }
            }
            Err(Fault::Violation(what)) => return Err(Ended::Violation(what)),
        };
        channel.send_packet(&reply, &[]).await?;
        // A signature takes a while: whoever asks without end gets one in turn with everybody else.
        tokio::task::yield_now().await;
    }
}

/// Tells a worker that its context is over because an operator revoked a principal, and waits until it has gone: closing the
/// channel under what it still says could take the word from it. A worker that stays gains nothing, and is not waited for long.
pub(super) async fn revoke(channel: &Channel, principal: Did) {
    // A channel that is full is not read: the toolsheds end what it has.
    let _ = channel.try_send_packet(&LinkAgentToWorker::Revoked { principal }, &[]);
    let gone =
        async { while let Ok(Some(_)) = channel.recv_packet::<WorkerToLinkAgent>().await {} };
    // Either way it is over.
    let _ = timeout(LINGER, gone).await;
}

fn handle(
    shared: &Shared,
    id: &ContextId,
    connection: ConnectionId,
    packet: WorkerToLinkAgent,
    news: &mpsc::UnboundedSender<ConnectionId>,
) -> Result<LinkAgentToWorker, Fault> {
    let mut agent = shared.agent.borrow_mut();
    let now = Moment::now();
    Ok(match packet {
        WorkerToLinkAgent::Dedicate { sequence, space } => {
            agent.dedicate(id, space)?;
            LinkAgentToWorker::Ack { sequence }
        }
        WorkerToLinkAgent::Hello { sequence, flags } => {
            let issued = agent.hello(id, flags, challenge()?, now)?;
            LinkAgentToWorker::HelloOk {
                sequence,
                deployment: agent.signer.deployment().to_owned(),
                router: *agent.signer.router(),
                offer: agent
                    .links
                    .offer()
                    .map(memory_wire::flags::Flags::canonical)
                    .unwrap_or_default(),
                challenge: issued.value,
                expires: issued.expires,
                now: now.unix,
            }
        }
        WorkerToLinkAgent::ChallengeRequest { sequence } => {
            let issued = agent.challenge(id, challenge()?, now)?;
            LinkAgentToWorker::ChallengeIssued {
                sequence,
                challenge: issued.value,
                expires: issued.expires,
                now: now.unix,
            }
        }
        WorkerToLinkAgent::Authenticate {
            sequence,
            statement,
        } => {
            let admission = agent.authenticate(id, &statement, now)?;
            if admission.is_first {
                // A spawner that is gone takes its workers with it.
                let _ = news.send(connection);
            }
            LinkAgentToWorker::Authenticated {
                sequence,
                principal: admission.principal,
                expires: admission.expires,
            }
        }
        WorkerToLinkAgent::Release {
            sequence,
            principal,
        } => {
            agent.release(id, principal, now)?;
            LinkAgentToWorker::Ack { sequence }
        }
        WorkerToLinkAgent::Bind {
            sequence,
            index,
            ticket,
            hello,
        } => {
            let signed = agent.bind(id, index, ticket, &hello, now)?;
            LinkAgentToWorker::Bound {
                sequence,
                binding: signed.binding,
                negotiated: signed.negotiated,
            }
        }
    })
}

fn challenge() -> Result<Challenge, Reason> {
    random().map(Challenge::new).ok_or(Reason::Internal)
}

fn take_lost(shared: &Shared, id: &ContextId) -> Option<u16> {
    shared.agent.borrow_mut().contexts.get_mut(id)?.take_lost()
}

const fn number(packet: &WorkerToLinkAgent) -> u32 {
    match packet {
        WorkerToLinkAgent::Dedicate { sequence, .. }
        | WorkerToLinkAgent::Hello { sequence, .. }
        | WorkerToLinkAgent::ChallengeRequest { sequence }
        | WorkerToLinkAgent::Authenticate { sequence, .. }
        | WorkerToLinkAgent::Release { sequence, .. }
        | WorkerToLinkAgent::Bind { sequence, .. } => *sequence,
    }
}
