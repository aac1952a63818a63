//! Peers that do what no honest one does, and what others notice of it: nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code)]
mod common;

use std::collections::BTreeSet;

use common::{Bench, Connection, Link, connect, is_ready};
use memory_ipc::packets::{BrokerToLinkAgent, LinkAgentToWorker, WorkerToLinkAgent};
use memory_ipc::{Channel, ChannelError};
use memory_wire::ids::Ticket;
use memory_wire::records::{ControlRequest, Operation, SpaceRequest, TicketRequest};

const TICKET: Ticket = Ticket::new([7; 32]);

/// A linked toolshed and a spawner whose link agent is ready.
async fn linked(bench: &Bench) -> (Link, Channel) {
    let spawner = bench.spawner().await;
    let link = bench.toolsheds[0].accept().await;
    is_ready(&spawner).await;
    (link, spawner)
}

/// A connection whose principal 1 is admitted at the toolshed.
async fn admitted(spawner: &Channel, link: &mut Link) -> Connection {
    let mut connection = connect(spawner).await;
    connection.authenticate(1).await;
    let open = connection.admit(0, 100, 1).await;
    link.grant(Operation::Ticket, TICKET.as_bytes()).await;
    link.grant(Operation::Proof, &[]).await;
    assert_eq!(connection.admitted(open).await, Some(TICKET));
    connection
}

async fn lives(connection: &Connection) {
    let answer = connection
        .ask(WorkerToLinkAgent::ChallengeRequest { sequence: 50 })
        .await;
    assert!(matches!(
        answer,
        LinkAgentToWorker::ChallengeIssued { sequence: 50, .. }
    ));
}

#[tokio::test(flavor = "current_thread")]
async fn a_broker_that_dies_before_its_answer_ends_no_connection() {
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let (mut link, spawner) = linked(&bench).await;
            let mut connection = admitted(&spawner, &mut link).await;
            // Each question has its answer at once, which finds nobody.
            let rollback = BrokerToLinkAgent::Rollback {
                index: 0,
                ticket: TICKET,
            };
            connection.broker.send_packet(&rollback, &[]).await.unwrap();
            drop(connection.replace_broker(&spawner).await);
            lives(&connection).await;
            connection.admit(0, 100, 9).await;
            drop(connection.replace_broker(&spawner).await);
            lives(&connection).await;
            let open = connection.admit(0, 100, 1).await;
            assert_eq!(connection.admitted(open).await, Some(TICKET));
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn one_connection_that_opens_everything_does_not_keep_others_from_a_toolshed() {
    /// As many as a link has requests outstanding, and more than wait.
    const FLOOD: u8 = 80;
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let (mut link, spawner) = linked(&bench).await;
            let mut flood = admitted(&spawner, &mut link).await;
            for space in 1..=FLOOD {
                flood.admit(0, 100 + space, 1).await;
            }
            // Of all of these the toolshed, which answers none, hears of a few.
            let mut unanswered: Vec<ControlRequest> = Vec::new();
            let mut other = connect(&spawner).await;
            other.authenticate(2).await;
            let open = other.admit(0, 100, 2).await;
            let ticket = loop {
                let request = link.request().await;
                if request.operation == Operation::Ticket {
                    break request;
                }
                unanswered.push(request);
            };
            assert!(unanswered.len() <= 8, "{}", unanswered.len());
            let flooding = SpaceRequest::decode(&unanswered[0].payload)
                .unwrap()
                .context;
            let request = TicketRequest::decode(&ticket.payload).unwrap();
            assert_ne!(request.context, flooding);

            // The others of the flood have their turn.
            let mut spaces: BTreeSet<Vec<u8>> = BTreeSet::new();
            for request in unanswered {
                spaces.insert(request.payload.clone());
                link.answer(&request, &[]).await;
            }
            link.answer(&ticket, TICKET.as_bytes()).await;
            let mut is_proved = false;
            while spaces.len() < usize::from(FLOOD) || !is_proved {
                let request = link.request().await;
                is_proved |= request.operation == Operation::Proof;
                if request.operation == Operation::Space {
                    spaces.insert(request.payload.clone());
                }
                link.answer(&request, &[]).await;
            }
            assert_eq!(other.admitted(open).await, Some(TICKET));
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_worker_that_asks_without_reading_makes_only_itself_wait() {
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let (mut link, spawner) = linked(&bench).await;
            let stalled = connect(&spawner).await;
            // Until neither side can send any more: the agent waits for it to read, and takes nothing further.
            let mut full = 0;
            while full < 1000 {
                let packet = WorkerToLinkAgent::ChallengeRequest { sequence: 1 };
                match stalled.worker.try_send_packet(&packet, &[]) {
                    Ok(()) => full = 0,
                    Err(ChannelError::WouldBlock) => full += 1,
                    Err(error) => panic!("{error}"),
                }
                tokio::task::yield_now().await;
            }
            admitted(&spawner, &mut link).await;
        })
        .await;
}
