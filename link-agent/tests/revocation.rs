//! What the role says, and to whom, when an operator revokes a principal: the test is operator, spawner, worker and toolshed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "what the other tests of the role need")]
mod common;

use std::sync::Arc;

use common::{Bench, Connection, connect, did, is_ready};
use memory_config::{Revocation, RevocationFile};
use memory_ipc::packets::{LinkAgentToWorker, WorkerToLinkAgent};
use memory_wire::Reason;
use memory_wire::ids::Ticket;
use memory_wire::records::{CloseRequest, Operation, ReleaseRequest, TicketRequest};

const TICKET: Ticket = Ticket::new([1; 32]);

/// A bench with a `state_dir` of its own, and its list.
async fn bench() -> (Bench, RevocationFile) {
    let bench = Bench::new(1, "").await;
    let mut config = bench.config.clone();
    config.state_dir = config.ipc_dir.parent().unwrap().join("state");
    let file = RevocationFile::new(&config.state_dir);
    bench.changes.send_replace(Arc::new(config));
    (bench, file)
}

fn revoke(file: &RevocationFile, principal: u8) {
    let entry = Revocation {
        since: 1,
        reason: None,
    };
    assert_eq!(file.revoke(did(principal), entry).unwrap(), None);
}

fn refusal(answer: &LinkAgentToWorker) -> Option<Reason> {
    match answer {
        LinkAgentToWorker::Refused { reason, .. } => Reason::from_code(*reason),
        _ => None,
    }
}

async fn is_over(connection: &Connection, principal: u8) {
    let expected = LinkAgentToWorker::Revoked {
        principal: did(principal),
    };
    assert_eq!(connection.told().await, expected);
}

#[tokio::test(flavor = "current_thread")]
async fn a_worker_that_does_not_listen_keeps_nothing() {
    let (bench, file) = bench().await;
    bench
        .run(async {
            let mut link = bench.toolsheds[0].accept().await;
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            let mut captured = connect(&spawner).await;
            captured.authenticate(1).await;
            let sequence = captured.admit(0, 100, 1).await;
            let request = link.grant(Operation::Ticket, TICKET.as_bytes()).await;
            let TicketRequest { context, .. } = TicketRequest::decode(&request.payload).unwrap();
            link.grant(Operation::Proof, &[]).await;
            assert_eq!(captured.admitted(sequence).await, Some(TICKET));

            revoke(&file, 1);
            // The toolshed hears of it though the worker neither reads nor goes.
            let request = link.grant(Operation::Release, &[]).await;
            let expected = ReleaseRequest {
                context,
                principal: did(1),
            };
            assert_eq!(ReleaseRequest::decode(&request.payload), Ok(expected));
            let request = link.grant(Operation::Close, &[]).await;
            let expected = CloseRequest { context };
            assert_eq!(CloseRequest::decode(&request.payload), Ok(expected));

            // It is told all the same, and whatever it asks for then is not answered.
            let bind = WorkerToLinkAgent::Bind {
                sequence: 4,
                index: 0,
                ticket: TICKET,
                hello: bench.toolsheds[0].data_hello(),
            };
            captured.worker.send_packet(&bind, &[]).await.unwrap();
            is_over(&captured, 1).await;
            captured.ends().await;

            // On a new connection it is refused, and others are not.
            let mut next = connect(&spawner).await;
            let answer = next.authenticate(1).await;
            assert_eq!(refusal(&answer), Some(Reason::PrincipalRevoked));
            next.renew_challenge().await;
            let answer = next.authenticate(2).await;
            assert!(
                matches!(answer, LinkAgentToWorker::Authenticated { .. }),
                "{answer:?}"
            );
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_session_that_opens_while_its_principal_is_revoked_does_not_slip_through() {
    let (bench, file) = bench().await;
    bench
        .run(async {
            let mut link = bench.toolsheds[0].accept().await;
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            let mut connection = connect(&spawner).await;
            connection.authenticate(1).await;
            connection.admit(0, 100, 1).await;
            // The toolshed is asked for the ticket, and takes its time.
            let request = link.request().await;
            assert_eq!(request.operation, Operation::Ticket);
            revoke(&file, 1);
            is_over(&connection, 1).await;
            link.answer(&request, TICKET.as_bytes()).await;
            // The next thing it hears is the end: no proof of the revoked principal.
            link.grant(Operation::Close, &[]).await;
            let answered = connection.broker.recv_packet().await;
            let answered: Option<(memory_ipc::packets::LinkAgentToBroker, _)> = answered.unwrap();
            assert!(
                !matches!(
                    answered,
                    Some((memory_ipc::packets::LinkAgentToBroker::Admitted { .. }, _))
                ),
                "{answered:?}"
            );
        })
        .await;
}
