//! A worker's requests. Each is answered before the next is taken.

use memory_ipc::Channel;
use memory_ipc::packets::{LinkAgentToWorker, WorkerToLinkAgent};
use memory_wire::Reason;
use memory_wire::ids::{Challenge, ConnectionId, ContextId};
use tokio::sync::{Notify, mpsc};

use super::Ended;
use crate::Shared;
use crate::agent::Fault;
use crate::clock::Moment;
use crate::entropy::random;

/// Serves a worker until it is gone. A worker that does not read makes only this wait.
pub(super) async fn serve(
    shared: &Shared,
    channel: &Channel,
    id: ContextId,
    connection: ConnectionId,
    wake: &Notify,
    news: mpsc::UnboundedSender<ConnectionId>,
) -> Result<(), Ended> {
    loop {
        let received = tokio::select! {
            received = channel.recv_packet::<WorkerToLinkAgent>() => received?,
            () = wake.notified() => {
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
                tracing::info!(%reason, %connection, "refused");
                LinkAgentToWorker::Refused {
                    sequence,
                    reason: reason.code(),
                }
            }
            Err(Fault::Violation(what)) => return Err(Ended::Violation(what)),
        };
        channel.send_packet(&reply, &[]).await?;
    }
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
        WorkerToLinkAgent::Hello { sequence, .. }
        | WorkerToLinkAgent::ChallengeRequest { sequence }
        | WorkerToLinkAgent::Authenticate { sequence, .. }
        | WorkerToLinkAgent::Release { sequence, .. }
        | WorkerToLinkAgent::Bind { sequence, .. } => *sequence,
    }
}
