//! The whole role over real channels: this test is spawner, worker, link agent and toolshed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{Read, Write};
use std::sync::Arc;

use common::{Bench, Worker, admission, assert_eof, number};
use memory_ipc::Channel;
use memory_ipc::packets::{BrokerToLinkAgent, BrokerToWorker, LinkAgentToBroker, WorkerToBroker};
use memory_wire::Reason;
use memory_wire::ids::Ticket;

const TICKET: Ticket = Ticket::new([1; 32]);
const OTHER: Ticket = Ticket::new([2; 32]);

#[tokio::test(flavor = "current_thread")]
async fn a_committed_socket_serves_later_opens() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let socket = worker.open(0, 100, TICKET).await;
            let mut toolshed = bench.accept(0);
            assert!(socket.nodelay().unwrap());
            worker
                .send(WorkerToBroker::Commit {
                    index: 0,
                    ticket: TICKET,
                })
                .await;
            assert_eq!(worker.receive().await, BrokerToWorker::Confirmed);
            // Released, not shut down: what the worker sends arrives.
            (&socket).write_all(b"x").unwrap();
            let mut byte = [0];
            toolshed.read_exact(&mut byte).unwrap();

            let sequence = worker.place(101).await;
            worker.answer_admission(0, 101, None).await;
            assert_eq!(
                worker.receive().await,
                BrokerToWorker::Existing { sequence, index: 0 }
            );
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_rollback_shuts_the_socket_down_for_everybody() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let mut held = worker.open(0, 100, TICKET).await;
            worker
                .send(WorkerToBroker::Rollback {
                    index: 0,
                    ticket: TICKET,
                })
                .await;
            assert_eq!(
                worker.asked().await,
                BrokerToLinkAgent::Rollback {
                    index: 0,
                    ticket: TICKET
                }
            );
            worker
                .link
                .send_packet(&LinkAgentToBroker::Confirmed, &[])
                .await
                .unwrap();
            assert_eq!(worker.receive().await, BrokerToWorker::Confirmed);
            assert_eof(&mut bench.accept(0));
            assert_eof(&mut held);
            // The next open gets a new socket, here with the ticket that was not bound.
            worker.open(0, 100, TICKET).await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_rollback_that_the_link_agent_refuses_ends_the_worker() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let mut held = worker.open(0, 100, TICKET).await;
            worker
                .send(WorkerToBroker::Rollback {
                    index: 0,
                    ticket: TICKET,
                })
                .await;
            worker.asked().await;
            let reason = Reason::UpstreamLost.code();
            worker
                .link
                .send_packet(
                    &LinkAgentToBroker::Refused {
                        sequence: 0,
                        reason,
                    },
                    &[],
                )
                .await
                .unwrap();
            worker.ends().await;
            assert_eof(&mut held);
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn settling_what_is_not_pending_ends_the_worker_alone() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut other = bench.worker().await;
            let worker = bench.worker().await;
            worker
                .send(WorkerToBroker::Commit {
                    index: 0,
                    ticket: TICKET,
                })
                .await;
            worker.ends().await;

            let mut worker = bench.worker().await;
            worker.open(0, 100, TICKET).await;
            worker
                .send(WorkerToBroker::Commit {
                    index: 0,
                    ticket: TICKET,
                })
                .await;
            assert_eq!(worker.receive().await, BrokerToWorker::Confirmed);
            worker
                .send(WorkerToBroker::Rollback {
                    index: 0,
                    ticket: TICKET,
                })
                .await;
            worker.ends().await;

            let worker = bench.worker().await;
            worker.channel.send(b"wpl1", &[]).await.unwrap();
            worker.ends().await;

            other.open(0, 100, TICKET).await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_dead_worker_takes_its_pending_socket_with_it() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let mut held = worker.open(0, 100, TICKET).await;
            let Worker { channel, link, .. } = worker;
            drop(channel);
            assert!(
                link.recv_packet::<BrokerToLinkAgent>()
                    .await
                    .unwrap()
                    .is_none()
            );
            assert_eof(&mut held);
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_socket_that_is_not_settled_in_time_is_taken_back() {
    let bench = Bench::new("data_handshake = \"100ms\"", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let mut held = worker.open(0, 100, TICKET).await;
            worker.ends().await;
            assert_eof(&mut held);
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn an_open_behind_anothers_setup_is_refused_and_can_be_asked_again() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let first = worker.place(100).await;
            // Before the first is admitted, and when its socket is pending.
            let second = worker.place(101).await;
            assert_eq!(worker.receive().await, behind(second, 0, first));
            worker.answer_admission(0, 100, Some(TICKET)).await;
            let (packet, _socket) = worker.receive_socket().await;
            assert_eq!(number(&packet), first);
            let third = worker.place(101).await;
            assert_eq!(worker.receive().await, behind(third, 0, first));
            // Also at another toolshed, which is not asked for then.
            let other = worker.place(110).await;
            assert_eq!(worker.receive().await, behind(other, 1, first));
            worker
                .send(WorkerToBroker::Commit {
                    index: 0,
                    ticket: TICKET,
                })
                .await;
            assert_eq!(worker.receive().await, BrokerToWorker::Confirmed);
            // From then on, at once.
            let sequence = worker.place(101).await;
            worker.answer_admission(0, 101, None).await;
            assert_eq!(
                worker.receive().await,
                BrokerToWorker::Existing { sequence, index: 0 }
            );
            worker.open(1, 110, OTHER).await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn an_attempt_that_fails_or_is_taken_back_is_in_nobodys_way() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let first = worker.place(100).await;
            let asked = worker.asked().await;
            let refusal = LinkAgentToBroker::Refused {
                sequence: admission(&asked),
                reason: Reason::TicketWindow.code(),
            };
            worker.link.send_packet(&refusal, &[]).await.unwrap();
            worker.is_refused(first, Reason::TicketWindow).await;
            let _held = worker.open(0, 100, TICKET).await;
            let taken_back = WorkerToBroker::Rollback {
                index: 0,
                ticket: TICKET,
            };
            worker.send(taken_back).await;
            worker.asked().await;
            let confirmed = LinkAgentToBroker::Confirmed;
            worker.link.send_packet(&confirmed, &[]).await.unwrap();
            assert_eq!(worker.receive().await, BrokerToWorker::Confirmed);
            worker.open(1, 110, OTHER).await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn opens_at_two_toolsheds_ask_at_once_and_one_is_set_up() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let first = worker.place(100).await;
            let asked = worker.asked().await;
            let second = worker.place(110).await;
            // The second is asked for though the first is unanswered, and overtakes it.
            worker.answer_admission(1, 110, Some(OTHER)).await;
            let (packet, _socket) = worker.receive_socket().await;
            assert!(matches!(packet, BrokerToWorker::Socket { index: 1, .. }));
            worker.answer(&asked, Some(TICKET)).await;
            assert_eq!(worker.receive().await, behind(first, 0, second));
            worker
                .send(WorkerToBroker::Commit {
                    index: 1,
                    ticket: OTHER,
                })
                .await;
            assert_eq!(worker.receive().await, BrokerToWorker::Confirmed);
            worker.open(0, 100, TICKET).await;
        })
        .await;
}

fn behind(sequence: u32, index: u16, ahead: u32) -> BrokerToWorker {
    BrokerToWorker::Behind {
        sequence,
        index,
        ahead,
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_ticket_for_a_committed_toolshed_replaces_its_socket() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            worker.open(0, 100, TICKET).await;
            worker
                .send(WorkerToBroker::Commit {
                    index: 0,
                    ticket: TICKET,
                })
                .await;
            assert_eq!(worker.receive().await, BrokerToWorker::Confirmed);
            worker.place(100).await;
            // Its link was lost meanwhile; asked once more when it is this open's turn.
            worker.answer_admission(0, 100, Some(OTHER)).await;
            worker.answer_admission(0, 100, Some(OTHER)).await;
            let (packet, _socket) = worker.receive_socket().await;
            assert!(matches!(
                packet,
                BrokerToWorker::Socket {
                    index: 0,
                    ticket: OTHER,
                    ..
                }
            ));
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn refuses_what_cannot_be_placed_admitted_or_dialled() {
    let mut bench = Bench::new("", "");
    bench.toolsheds[1] = None;
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let sequence = worker.place(120).await;
            worker.is_refused(sequence, Reason::Unplaced).await;

            let sequence = worker.place(100).await;
            let asked = worker.asked().await;
            let refusal = LinkAgentToBroker::Refused {
                sequence: admission(&asked),
                reason: Reason::TicketWindow.code(),
            };
            worker.link.send_packet(&refusal, &[]).await.unwrap();
            worker.is_refused(sequence, Reason::TicketWindow).await;

            let sequence = worker.place(110).await;
            worker.answer_admission(1, 110, Some(TICKET)).await;
            worker
                .is_refused(sequence, Reason::UpstreamUnavailable)
                .await;

            // A refusal leaves everything as it was.
            worker.open(0, 100, TICKET).await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn data_sockets_in_setup_are_bounded_over_all_workers() {
    let bench = Bench::new("", "max_pending_dials = 1");
    bench
        .run(async {
            let mut first = bench.worker().await;
            first.open(0, 100, TICKET).await;
            let mut second = bench.worker().await;
            let sequence = second.place(100).await;
            second.answer_admission(0, 100, Some(OTHER)).await;
            second.is_refused(sequence, Reason::DialLimit).await;
            first
                .send(WorkerToBroker::Commit {
                    index: 0,
                    ticket: TICKET,
                })
                .await;
            assert_eq!(first.receive().await, BrokerToWorker::Confirmed);
            second.open(0, 100, OTHER).await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn without_a_link_agent_opens_are_refused_for_now() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let (link, _) = Channel::pair().unwrap();
            worker.link = Channel::from_fd(link).unwrap();
            let sequence = worker.place(100).await;
            worker
                .is_refused(sequence, Reason::UpstreamUnavailable)
                .await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_socket_of_an_earlier_broker_serves_later_opens() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            // This broker has made nothing for this connection, but the link agent says that it is bound.
            let mut worker = bench.worker().await;
            for space in [100, 101] {
                let sequence = worker.place(space).await;
                worker.answer_admission(0, space, None).await;
                assert_eq!(
                    worker.receive().await,
                    BrokerToWorker::Existing { sequence, index: 0 }
                );
            }
            // Nothing of it is pending, and nothing can be settled.
            let settle = WorkerToBroker::Commit {
                index: 0,
                ticket: TICKET,
            };
            worker.send(settle).await;
            worker.ends().await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_lowered_bound_of_dials_admits_none_until_enough_are_settled() {
    let bench = Bench::new("", "max_pending_dials = 2");
    bench
        .run(async {
            let mut workers = [
                bench.worker().await,
                bench.worker().await,
                bench.worker().await,
            ];
            workers[0].open(0, 100, TICKET).await;
            workers[1].open(0, 100, OTHER).await;
            let mut config = bench.config.clone();
            config.limits.max_pending_dials = 1;
            bench.changes.send_replace(Arc::new(config));
            let commit = |ticket| WorkerToBroker::Commit { index: 0, ticket };
            workers[0].send(commit(TICKET)).await;
            assert_eq!(workers[0].receive().await, BrokerToWorker::Confirmed);
            let sequence = workers[2].place(100).await;
            workers[2].answer_admission(0, 100, Some(OTHER)).await;
            workers[2].is_refused(sequence, Reason::DialLimit).await;
            workers[1].send(commit(OTHER)).await;
            assert_eq!(workers[1].receive().await, BrokerToWorker::Confirmed);
            workers[2].open(0, 100, OTHER).await;
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_socket_committed_unbound_is_not_followed_by_another() {
    let bench = Bench::new("", "");
    bench
        .run(async {
            let mut worker = bench.worker().await;
            let _held = worker.open(0, 100, TICKET).await;
            worker
                .send(WorkerToBroker::Commit {
                    index: 0,
                    ticket: TICKET,
                })
                .await;
            assert_eq!(worker.receive().await, BrokerToWorker::Confirmed);
            // It never asked for the binding, so that the link agent gives the same ticket again. A worker that could have a
            // socket for it each time would take all that the toolshed has.
            let sequence = worker.place(101).await;
            worker.answer_admission(0, 101, Some(TICKET)).await;
            assert_eq!(
                worker.receive().await,
                BrokerToWorker::Existing { sequence, index: 0 }
            );
        })
        .await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_worker_that_does_not_read_holds_nothing_for_ever() {
    // More refusals than its channel takes, and fewer than it may have unanswered.
    const UNREAD: u32 = 800;
    let bench = Bench::new("data_handshake = \"200ms\"", "max_pending_dials = 1");
    bench
        .run(async {
            let mut stalled = bench.worker().await;
            for _ in 0..UNREAD {
                stalled.place(200).await;
            }
            stalled.place(100).await;
            stalled.answer_admission(0, 100, Some(TICKET)).await;
            // Its socket is dialled and cannot be handed over: until it is given up, it has the only dial there may be.
            let mut worker = bench.worker().await;
            loop {
                let sequence = worker.place(110).await;
                worker.answer_admission(1, 110, Some(OTHER)).await;
                let received = worker.channel.recv_packet::<BrokerToWorker>().await;
                match received.unwrap().unwrap() {
                    (BrokerToWorker::Socket { .. }, _) => break,
                    (packet, _) => assert_eq!(
                        packet,
                        BrokerToWorker::Refused {
                            sequence,
                            reason: Reason::DialLimit.code()
                        }
                    ),
                }
            }
        })
        .await;
}
