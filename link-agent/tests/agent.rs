//! The whole role over real channels and real TLS: the test is spawner, worker, broker and toolsheds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{
    Bench, CLIENT_FLAGS, DEPLOYMENT, ROUTER, TOOLSHED_FLAGS, connect, did, is_ready, now,
};
use memory_ipc::packets::{
    BrokerToLinkAgent, LinkAgentToBroker, LinkAgentToSpawner, LinkAgentToWorker, WorkerToLinkAgent,
};
use memory_wire::Reason;
use memory_wire::admission::{ProofContext, verify_proof};
use memory_wire::frame::Opcode;
use memory_wire::ids::{ContextId, Digest, Ticket};
use memory_wire::records::{
    Binding, CloseRequest, ContextProof, Operation, Proof, ReleaseRequest, SpaceRequest,
    TicketProof, TicketRequest,
};

const TICKET: Ticket = Ticket::new([1; 32]);

fn is_authenticated(answer: &LinkAgentToWorker, principal: u8) -> bool {
    matches!(answer, LinkAgentToWorker::Authenticated { sequence: 3, principal: who, .. } if *who == did(principal))
}

fn refusal(answer: &LinkAgentToWorker) -> Option<Reason> {
    match answer {
        LinkAgentToWorker::Refused { reason, .. } => Reason::from_code(*reason),
        _ => None,
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_connection_from_hello_to_end() {
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let toolshed = &bench.toolsheds[0];
            let mut link = toolshed.accept().await;
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            let mut connection = connect(&spawner).await;

            assert!(is_authenticated(&connection.authenticate(1).await, 1));
            let (news, _) = spawner
                .recv_packet::<LinkAgentToSpawner>()
                .await
                .unwrap()
                .unwrap();
            assert!(matches!(news, LinkAgentToSpawner::Authenticated { .. }));

            // The first open: a ticket, then the proof.
            let sequence = connection.admit(0, 100, 1).await;
            let request = link.grant(Operation::Ticket, TICKET.as_bytes()).await;
            assert_eq!(request.sequence, 1);
            let TicketRequest {
                context,
                flags,
                space,
                epoch,
            } = TicketRequest::decode(&request.payload).unwrap();
            assert_eq!(
                (flags.as_slice(), space, epoch),
                (CLIENT_FLAGS, did(100), 5)
            );
            let request = link.grant(Operation::Proof, &[]).await;
            let proof = TicketProof::decode(&request.payload).unwrap();
            assert_eq!(proof.ticket, TICKET);
            let judged = ProofContext {
                router: &did(ROUTER),
                deployment: DEPLOYMENT,
                epoch: &link.epoch,
                context: &context,
                now: now(),
            };
            verify_proof(&Proof::decode(&proof.proof).unwrap(), &judged).unwrap();
            assert_eq!(connection.admitted(sequence).await, Some(TICKET));

            // A rollback before the binding leaves the ticket for the next open; after it there is none.
            let rollback = BrokerToLinkAgent::Rollback {
                index: 0,
                ticket: TICKET,
            };
            connection.broker.send_packet(&rollback, &[]).await.unwrap();
            assert_eq!(connection.answered().await, LinkAgentToBroker::Confirmed);
            let sequence = connection.admit(0, 100, 1).await;
            assert_eq!(connection.admitted(sequence).await, Some(TICKET));
            let answer = connection.bind(TICKET, toolshed.data_hello()).await;
            let LinkAgentToWorker::Bound {
                sequence: 4,
                binding,
                negotiated,
            } = answer
            else {
                panic!("{answer:?}")
            };
            let binding = Binding::verify(&binding, &did(ROUTER)).unwrap();
            assert_eq!(
                (binding.context, binding.epoch, binding.ticket),
                (context, link.epoch, TICKET)
            );
            assert_eq!(binding.negotiated_flags, Digest::of(&negotiated));
            connection.broker.send_packet(&rollback, &[]).await.unwrap();
            let refused = LinkAgentToBroker::Refused {
                sequence: 0,
                reason: Reason::UpstreamLost.code(),
            };
            assert_eq!(connection.answered().await, refused);

            // Another space, then a renewal, pushed without being asked for.
            let sequence = connection.admit(0, 101, 1).await;
            let request = link.grant(Operation::Space, &[]).await;
            assert_eq!(
                SpaceRequest::decode(&request.payload).unwrap(),
                SpaceRequest {
                    context,
                    space: did(101),
                    epoch: 5
                }
            );
            assert_eq!(connection.admitted(sequence).await, None);
            connection.renew_challenge().await;
            assert!(is_authenticated(&connection.authenticate(1).await, 1));
            let request = link.grant(Operation::VerifiedProof, &[]).await;
            assert_eq!(
                ContextProof::decode(&request.payload).unwrap().context,
                context
            );

            // Release, and the end.
            let release = WorkerToLinkAgent::Release {
                sequence: 9,
                principal: did(1),
            };
            assert_eq!(
                connection.ask(release).await,
                LinkAgentToWorker::Ack { sequence: 9 }
            );
            let request = link.grant(Operation::Release, &[]).await;
            assert_eq!(
                ReleaseRequest::decode(&request.payload).unwrap(),
                ReleaseRequest {
                    context,
                    principal: did(1)
                }
            );
            let sequence = connection.admit(0, 101, 1).await;
            assert_eq!(connection.refused(sequence).await, Reason::PrincipalUnknown);
            drop(connection);
            let request = link.grant(Operation::Close, &[]).await;
            assert_eq!(
                CloseRequest::decode(&request.payload).unwrap(),
                CloseRequest { context }
            );
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_lost_link_is_told_and_replaced_under_a_new_epoch() {
    let bench = Bench::new(2, "").await;
    bench
        .run(async {
            let (mut link, mut other) =
                tokio::join!(bench.toolsheds[0].accept(), bench.toolsheds[1].accept());
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            let mut connection = connect(&spawner).await;
            assert!(is_authenticated(&connection.authenticate(1).await, 1));
            let sequence = connection.admit(0, 100, 1).await;
            link.grant(Operation::Ticket, TICKET.as_bytes()).await;
            link.grant(Operation::Proof, &[]).await;
            assert_eq!(connection.admitted(sequence).await, Some(TICKET));
            // Still unanswered when the link goes.
            let sequence = connection.admit(0, 101, 1).await;
            link.request().await;
            let epoch = link.epoch;
            drop(link);
            assert_eq!(
                connection.refused(sequence).await,
                Reason::UpstreamUnavailable
            );
            assert_eq!(
                connection.told().await,
                LinkAgentToWorker::LinkLost { index: 0 }
            );

            let mut link = bench.toolsheds[0].accept().await;
            assert_ne!(link.epoch, epoch);
            // The answer to a first request proves that the agent knows the link; the statement predates it.
            let sequence = loop {
                let sequence = connection.admit(0, 100, 1).await;
                match connection.refused(sequence).await {
                    Reason::PrincipalRenewal => break sequence,
                    reason => assert_eq!(reason, Reason::UpstreamUnavailable),
                }
            };
            assert!(sequence > 0);
            connection.renew_challenge().await;
            assert!(is_authenticated(&connection.authenticate(1).await, 1));
            let sequence = connection.admit(0, 100, 1).await;
            let request = link.grant(Operation::Ticket, TICKET.as_bytes()).await;
            assert_eq!(request.sequence, 1);
            link.grant(Operation::Proof, &[]).await;
            assert_eq!(connection.admitted(sequence).await, Some(TICKET));
            // The other toolshed never noticed.
            let sequence = connection.admit(1, 110, 1).await;
            other.grant(Operation::Ticket, TICKET.as_bytes()).await;
            other.grant(Operation::Proof, &[]).await;
            assert_eq!(connection.admitted(sequence).await, Some(TICKET));
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_broken_rule_ends_one_context_and_a_lost_broker_none() {
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let mut link = bench.toolsheds[0].accept().await;
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            let mut good = connect(&spawner).await;
            assert!(is_authenticated(&good.authenticate(1).await, 1));

            for packet in [&b"wau1"[..], b"????", b"wch1\0\0\0\x01\0"] {
                let bad = connect(&spawner).await;
                bad.worker.send(packet, &[]).await.unwrap();
                bad.ends().await;
            }
            let bad = connect(&spawner).await;
            let again = WorkerToLinkAgent::Hello {
                sequence: 2,
                flags: CLIENT_FLAGS.to_vec(),
            };
            bad.worker.send_packet(&again, &[]).await.unwrap();
            bad.ends().await;
            let bad = connect(&spawner).await;
            bad.broker.send(b"bad1", &[]).await.unwrap();
            bad.ends().await;

            let sequence = good.admit(0, 100, 1).await;
            link.grant(Operation::Ticket, TICKET.as_bytes()).await;
            link.grant(Operation::Proof, &[]).await;
            assert_eq!(good.admitted(sequence).await, Some(TICKET));
            let (broker, _) = memory_ipc::Channel::pair().unwrap();
            good.broker = memory_ipc::Channel::from_fd(broker).unwrap();
            good.renew_challenge().await;
            assert!(is_authenticated(&good.authenticate(1).await, 1));
            // Had the context ended, its end would come here.
            link.grant(Operation::VerifiedProof, &[]).await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn refuses_statements_and_bindings_with_a_reason() {
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let toolshed = &bench.toolsheds[0];
            let _link = toolshed.accept().await;
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            let mut connection = connect(&spawner).await;
            assert_eq!(
                refusal(&connection.authenticate(ROUTER).await),
                Some(Reason::PrincipalRevoked)
            );
            let malformed = WorkerToLinkAgent::Authenticate {
                sequence: 5,
                statement: b"mra1".to_vec(),
            };
            assert_eq!(
                refusal(&connection.ask(malformed).await),
                Some(Reason::ClientProtocol)
            );
            let issued = connection.challenge;
            connection.challenge = memory_wire::ids::Challenge::new([9; 32]);
            assert_eq!(
                refusal(&connection.authenticate(1).await),
                Some(Reason::ChallengeExpired)
            );
            connection.challenge = issued;
            assert!(is_authenticated(&connection.authenticate(1).await, 1));
            let unknown = connection.bind(TICKET, toolshed.data_hello()).await;
            assert_eq!(refusal(&unknown), Some(Reason::UpstreamUnavailable));
            let sequence = connection.admit(7, 100, 1).await;
            assert_eq!(connection.refused(sequence).await, Reason::RestartNeeded);
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_stalled_toolshed_refuses_its_own_opens_and_its_late_ticket_is_abandoned() {
    let bench = Bench::new(2, "control_request = \"200ms\"\ncontrol_wait = \"200ms\"").await;
    bench
        .run(async {
            let (mut stalled, mut other) =
                tokio::join!(bench.toolsheds[0].accept(), bench.toolsheds[1].accept());
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            let mut connection = connect(&spawner).await;
            assert!(is_authenticated(&connection.authenticate(1).await, 1));
            let slow = connection.admit(0, 100, 1).await;
            let request = stalled.request().await;
            let sequence = connection.admit(1, 110, 1).await;
            other.grant(Operation::Ticket, TICKET.as_bytes()).await;
            other.grant(Operation::Proof, &[]).await;
            assert_eq!(connection.admitted(sequence).await, Some(TICKET));
            assert_eq!(connection.refused(slow).await, Reason::ControlTimeout);
            // While it is unanswered no second ticket is asked for.
            let sequence = connection.admit(0, 100, 1).await;
            assert_eq!(connection.refused(sequence).await, Reason::ControlTimeout);
            stalled.answer(&request, TICKET.as_bytes()).await;
            loop {
                let sequence = connection.admit(0, 100, 1).await;
                match connection.refused(sequence).await {
                    Reason::TicketWindow => break,
                    reason => assert_eq!(reason, Reason::ControlTimeout),
                }
            }
            let late = connection
                .bind(TICKET, bench.toolsheds[0].data_hello())
                .await;
            assert_eq!(refusal(&late), Some(Reason::UpstreamUnavailable));
            // The toolshed has heard of the context, so it hears of its end.
            drop(connection);
            assert_eq!(stalled.request().await.operation, Operation::Close);
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn opens_of_one_context_share_one_ticket_and_one_proof() {
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let mut link = bench.toolsheds[0].accept().await;
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            let mut connection = connect(&spawner).await;
            assert!(is_authenticated(&connection.authenticate(1).await, 1));
            for space in 100..140 {
                connection.admit(0, space, 1).await;
            }
            link.grant(Operation::Ticket, TICKET.as_bytes()).await;
            link.grant(Operation::Proof, &[]).await;
            assert_eq!(connection.admitted(1).await, Some(TICKET));
            // The others go beside each other, within their connection's part of the link's window.
            let mut requests = Vec::new();
            for _ in 0..8 {
                requests.push(link.request().await);
            }
            for request in &requests {
                assert_eq!(request.operation, Operation::Space);
                link.answer(request, &[]).await;
            }
            for _ in 8..39 {
                link.grant(Operation::Space, &[]).await;
            }
            for _ in 0..39 {
                assert!(matches!(
                    connection.answered().await,
                    LinkAgentToBroker::Admitted { .. }
                ));
            }
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn bad_greetings_make_no_link() {
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let toolshed = &bench.toolsheds[0];
            // Signed by somebody else, too old, without what is required, of another cell mode.
            toolshed.greet(TOOLSHED_FLAGS, 99, now()).await.ends().await;
            toolshed
                .greet(TOOLSHED_FLAGS, 20, now() - 62)
                .await
                .ends()
                .await;
            let lacking = TOOLSHED_FLAGS.replace(
                "\"routerRequestCredit\":true",
                "\"routerRequestCredit\":false",
            );
            toolshed.greet(&lacking, 20, now()).await.ends().await;
            let modern =
                TOOLSHED_FLAGS.replace("\"modernCellRep\":false", "\"modernCellRep\":true");
            toolshed.greet(&modern, 20, now()).await.ends().await;
            // The listener accepts nobody until there is a link to make an offer of.
            let _link = toolshed.accept().await;
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn the_offer_waits_for_the_grace_and_is_not_widened() {
    let bench = Bench::new(2, "startup_grace = \"100ms\"").await;
    bench
        .run(async {
            let _first = bench.toolsheds[0].accept().await;
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            // What comes later and cannot do as much is linked and refused.
            let less = TOOLSHED_FLAGS.replace("\"presenceV1\":true,", "");
            let mut second = bench.toolsheds[1]
                .greet(&less, 21, now())
                .await
                .acknowledge()
                .await;
            let mut connection = connect(&spawner).await;
            assert!(is_authenticated(&connection.authenticate(1).await, 1));
            loop {
                let sequence = connection.admit(1, 110, 1).await;
                match connection.refused(sequence).await {
                    Reason::UpstreamIncompatible => break,
                    reason => assert_eq!(reason, Reason::UpstreamUnavailable),
                }
            }
            // Its link stands: it is asked for nothing, and nothing ends it.
            second.socket.writer.ping(b"still there").await.unwrap();
            let pong = second.socket.reader.next().await.unwrap();
            assert_eq!(pong, memory_transport::Incoming::Pong);
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_toolshed_that_breaks_the_link_protocol_loses_its_link() {
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let toolshed = &bench.toolsheds[0];
            let mut link = toolshed.accept().await;
            link.socket
                .writer
                .send_slice(Opcode::Text, b"hello")
                .await
                .unwrap();
            link.ends().await;
            let mut link = toolshed.accept().await;
            let unasked = memory_wire::records::ControlResponse {
                sequence: 1,
                status: 0,
                payload: Vec::new(),
            };
            link.socket
                .writer
                .send_slice(Opcode::Binary, &unasked.encode().unwrap())
                .await
                .unwrap();
            link.ends().await;
            let mut link = toolshed.accept().await;
            link.socket
                .writer
                .send_slice(Opcode::Binary, &ContextId::new([1; 16]).as_bytes()[..])
                .await
                .unwrap();
            link.ends().await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_silent_link_is_replaced() {
    let bench = Bench::new(1, "link_silence = \"1s\"").await;
    bench
        .run(async {
            // Held open and never read: not even pings are answered.
            let silent = bench.toolsheds[0].accept().await;
            let second = bench.toolsheds[0].accept().await;
            assert_ne!(silent.epoch, second.epoch);
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn another_broker_finds_what_the_one_before_left() {
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let toolshed = &bench.toolsheds[0];
            let mut link = toolshed.accept().await;
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            let mut connection = connect(&spawner).await;
            assert!(is_authenticated(&connection.authenticate(1).await, 1));

            // The broker is replaced while a ticket is asked for: who waited for it has gone, the ticket is not lost.
            connection.admit(0, 100, 1).await;
            let request = link.request().await;
            assert_eq!(request.operation, Operation::Ticket);
            let before = connection.replace_broker(&spawner).await;
            let end = before.recv_packet::<LinkAgentToBroker>().await.unwrap();
            assert!(end.is_none());
            link.answer(&request, TICKET.as_bytes()).await;
            let sequence = connection.admit(0, 100, 1).await;
            link.grant(Operation::Proof, &[]).await;
            assert_eq!(connection.admitted(sequence).await, Some(TICKET));

            // Bound without a commit: the next broker is told that there is a socket, and cannot take it back.
            let bound = connection.bind(TICKET, toolshed.data_hello()).await;
            assert!(matches!(bound, LinkAgentToWorker::Bound { .. }));
            connection.replace_broker(&spawner).await;
            let sequence = connection.admit(0, 100, 1).await;
            assert_eq!(connection.admitted(sequence).await, None);
            let rollback = BrokerToLinkAgent::Rollback {
                index: 0,
                ticket: TICKET,
            };
            connection.broker.send_packet(&rollback, &[]).await.unwrap();
            assert!(matches!(
                connection.answered().await,
                LinkAgentToBroker::Refused { sequence: 0, .. }
            ));
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn other_limits_hold_for_contexts_that_come_after() {
    let bench = Bench::new(1, "").await;
    bench
        .run(async {
            let _link = bench.toolsheds[0].accept().await;
            let spawner = bench.spawner().await;
            is_ready(&spawner).await;
            let before = connect(&spawner).await;
            let mut config = bench.config.clone();
            config.limits.max_principals_per_connection = 1;
            bench.changes.send_replace(std::sync::Arc::new(config));
            let after = connect(&spawner).await;
            for connection in [&before, &after] {
                assert!(is_authenticated(&connection.authenticate(1).await, 1));
            }
            assert!(is_authenticated(&before.authenticate(2).await, 2));
            let refused = after.authenticate(2).await;
            assert_eq!(refusal(&refused), Some(Reason::PrincipalLimit));
        })
        .await;
}
