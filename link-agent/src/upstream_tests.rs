//! Tests of `upstream`; compiled under `#[cfg(test)]` alone.

use super::*;
use crate::testing::did;
use std::time::Duration;

const TICKET: Ticket = Ticket::new([7; 32]);

fn open(space: u8, principal: u8) -> Open {
    Open {
        index: 0,
        principal: did(principal),
        space: did(space),
        epoch: 5,
    }
}

fn statement(byte: u8) -> Digest {
    Digest::of(&[byte])
}

/// Takes whatever step is next and lets the toolshed agree; returns the task.
fn advance(upstream: &mut Upstream, open: &Open, newest: &Digest, now: Instant) -> Task {
    let task = match upstream.plan(open, newest, now) {
        Step::Alone(task) | Step::Beside(task) => task,
        other => panic!("nothing to do: {other:?}"),
    };
    upstream.queued(&task);
    let proof = matches!(task, Task::Proof { .. } | Task::Verified { .. }).then_some(*newest);
    upstream.sent(&task, proof, now);
    let ticket = matches!(task, Task::Ticket { .. }).then_some(TICKET);
    upstream.granted(&task, proof, ticket, now);
    task
}

#[test]
fn the_first_open_takes_operations_one_and_two() {
    let (mut upstream, now) = (Upstream::default(), Instant::now());
    let (open, newest) = (open(100, 1), statement(1));
    assert!(!upstream.is_known());
    assert_eq!(
        advance(&mut upstream, &open, &newest, now),
        Task::Ticket {
            space: did(100),
            epoch: 5
        }
    );
    assert!(upstream.is_known() && !upstream.holds(&did(1)));
    assert_eq!(
        advance(&mut upstream, &open, &newest, now),
        Task::Proof { principal: did(1) }
    );
    assert!(upstream.holds(&did(1)));
    assert_eq!(
        upstream.plan(&open, &newest, now),
        Step::Admitted(Some(TICKET))
    );
    upstream.bind(TICKET, now).unwrap();
    assert_eq!(upstream.plan(&open, &newest, now), Step::Admitted(None));
}

#[test]
fn later_opens_take_operations_five_and_six_as_needed() {
    let (mut upstream, now) = (Upstream::default(), Instant::now());
    for _ in 0..2 {
        advance(&mut upstream, &open(100, 1), &statement(1), now);
    }
    upstream.bind(TICKET, now).unwrap();
    // A space new there.
    let space = open(101, 1);
    assert_eq!(
        advance(&mut upstream, &space, &statement(1), now),
        Task::Space {
            space: did(101),
            epoch: 5
        }
    );
    assert_eq!(
        upstream.plan(&space, &statement(1), now),
        Step::Admitted(None)
    );
    // Another principal.
    let other = open(101, 2);
    assert_eq!(
        advance(&mut upstream, &other, &statement(2), now),
        Task::Verified { principal: did(2) }
    );
    assert_eq!(
        upstream.plan(&other, &statement(2), now),
        Step::Admitted(None)
    );
    // A renewal that the toolshed has not seen.
    assert_eq!(
        advance(&mut upstream, &space, &statement(3), now),
        Task::Verified { principal: did(1) }
    );
    // The same space at another placement epoch.
    let moved = Open { epoch: 6, ..space };
    assert_eq!(
        advance(&mut upstream, &moved, &statement(3), now),
        Task::Space {
            space: did(101),
            epoch: 6
        }
    );
    assert_eq!(upstream.spaces(), 2);
}

#[test]
fn a_replaced_ticket_is_proved_again() {
    let (mut upstream, now) = (Upstream::default(), Instant::now());
    let (open, newest) = (open(100, 1), statement(1));
    for _ in 0..2 {
        advance(&mut upstream, &open, &newest, now);
    }
    let window = now + Duration::from_secs(14);
    assert_eq!(
        upstream.plan(&open, &newest, window),
        Step::Refuse(Reason::TicketWindow)
    );
    let later = now + Duration::from_secs(15);
    assert!(matches!(
        advance(&mut upstream, &open, &newest, later),
        Task::Ticket { .. }
    ));
    assert!(matches!(
        advance(&mut upstream, &open, &newest, later),
        Task::Proof { .. }
    ));
    assert_eq!(
        upstream.plan(&open, &newest, later),
        Step::Admitted(Some(TICKET))
    );
}

#[test]
fn an_unsent_ticket_request_leaves_no_trace_and_an_unanswered_one_does() {
    let (mut upstream, now) = (Upstream::default(), Instant::now());
    let open = open(100, 1);
    let task = Task::Ticket {
        space: open.space,
        epoch: 5,
    };
    upstream.queued(&task);
    assert_eq!(upstream.plan(&open, &statement(1), now), Step::Pending);
    upstream.unsent(&task);
    assert_eq!(upstream.plan(&open, &statement(1), now), Step::Alone(task));
    assert!(!upstream.is_known());
    upstream.queued(&task);
    upstream.sent(&task, None, now);
    upstream.given_up(&task);
    assert_eq!(upstream.plan(&open, &statement(1), now), Step::Pending);
    assert!(upstream.is_known());
    upstream.granted(&task, None, Some(TICKET), now);
    assert_eq!(
        upstream.plan(&open, &statement(1), now),
        Step::Refuse(Reason::TicketWindow)
    );
}

#[test]
fn a_refused_proof_forgets_what_the_toolshed_knew_but_not_that_it_did() {
    let (mut upstream, now) = (Upstream::default(), Instant::now());
    let open = open(100, 1);
    advance(&mut upstream, &open, &statement(1), now);
    let task = Task::Proof { principal: did(1) };
    upstream.sent(&task, Some(statement(1)), now);
    assert_eq!(upstream.refused(&task, now), Reason::UpstreamUnavailable);
    assert!(upstream.is_known() && !upstream.holds(&did(1)));
    assert!(matches!(
        upstream.plan(&open, &statement(1), now),
        Step::Alone(Task::Ticket { .. })
    ));
}

#[test]
fn refused_placement_leaves_the_rest_alone() {
    let (mut upstream, now) = (Upstream::default(), Instant::now());
    let (open, newest) = (open(100, 1), statement(1));
    let task = Task::Ticket {
        space: open.space,
        epoch: 5,
    };
    upstream.sent(&task, None, now);
    assert_eq!(upstream.refused(&task, now), Reason::PlacementChanged);
    for _ in 0..2 {
        advance(&mut upstream, &open, &newest, now);
    }
    let task = Task::Space {
        space: did(101),
        epoch: 5,
    };
    upstream.sent(&task, None, now);
    assert_eq!(upstream.refused(&task, now), Reason::PlacementChanged);
    assert_eq!(
        upstream.plan(&open, &newest, now),
        Step::Admitted(Some(TICKET))
    );
}

#[test]
fn a_release_that_passes_a_proof_in_flight_wins() {
    let (mut upstream, now) = (Upstream::default(), Instant::now());
    let (open, newest) = (open(100, 1), statement(1));
    for _ in 0..2 {
        advance(&mut upstream, &open, &newest, now);
    }
    let renewal = Task::Verified { principal: did(1) };
    upstream.sent(&renewal, Some(statement(2)), now);
    upstream.sent(&Task::Release { principal: did(1) }, None, now);
    upstream.granted(&renewal, Some(statement(2)), None, now);
    assert!(!upstream.holds(&did(1)));
    assert_eq!(
        upstream.plan(&open, &statement(3), now),
        Step::Alone(renewal)
    );
}

#[test]
fn a_binding_stays_signed_whatever_the_toolshed_refuses() {
    let (mut upstream, now) = (Upstream::default(), Instant::now());
    for _ in 0..2 {
        advance(&mut upstream, &open(100, 1), &statement(1), now);
    }
    upstream.bind(TICKET, now).unwrap();
    upstream.refused(&Task::Verified { principal: did(2) }, now);
    // The context is gone at the toolshed, but not the signature from the worker.
    assert!(upstream.was_bound(TICKET));
    assert_eq!(upstream.ticket().judge(now), TicketUse::Request);
}

#[test]
fn spaces_that_are_asked_for_count_until_they_are_answered() {
    let (mut upstream, now) = (Upstream::default(), Instant::now());
    let task = |space| Task::Space {
        space: did(space),
        epoch: 5,
    };
    for space in [100, 100, 101, 102] {
        upstream.queued(&task(space));
    }
    assert_eq!(upstream.spaces(), 3);
    upstream.unsent(&task(102));
    upstream.granted(&task(100), None, None, now);
    assert!(upstream.counts(&did(101)) && !upstream.counts(&did(102)));
    assert_eq!(upstream.spaces(), 2);
    upstream.refused(&Task::Verified { principal: did(1) }, now);
    // The requests that were sent before are still to be answered.
    assert_eq!(upstream.spaces(), 2);
    upstream.refused(&task(100), now);
    upstream.refused(&task(101), now);
    assert_eq!(upstream.spaces(), 0);
}
