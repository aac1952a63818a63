//! Tests of `agent`; compiled under `#[cfg(test)]` alone.

use super::*;
use crate::control::AnswerFault;
use crate::testing::{
    CLIENT_FLAGS, DEPLOYMENT, TOOLSHED_FLAGS, config, did, identity, moment, sign_statement,
    signer, toolshed,
};
use crate::upstream::{Open, Step};
use memory_wire::admission::{ProofContext, verify_proof};
use memory_wire::flags::Flags;
use memory_wire::ids::{EpochId, Nonce};
use memory_wire::records::{
    Binding, CloseRequest, ContextProof, ControlRequest, ControlResponse, Operation, Proof,
    ReleaseRequest, SpaceRequest, TicketProof, TicketRequest, attach,
};
use tokio::sync::oneshot::Receiver;

const ID: ContextId = ContextId::new([1; 16]);
const EPOCH: EpochId = EpochId::new([2; 16]);
const TICKET: Ticket = Ticket::new([7; 32]);
const GONE: Duration = Duration::from_secs(3600);

struct Bench {
    agent: Agent,
    now: Moment,
    challenges: u8,
    answered: u64,
}

impl Bench {
    /// One toolshed of two linked, one context that said hello.
    fn new(limits: &str) -> Self {
        let mut agent = Agent::new(signer(), vec![toolshed(20), toolshed(21)], &config(limits));
        let now = moment();
        agent.links.up(
            0,
            EPOCH,
            Flags::from_canonical(TOOLSHED_FLAGS).unwrap(),
            now.monotonic,
        );
        assert!(agent.links.freeze(GONE));
        let mut bench = Self {
            agent,
            now,
            challenges: 0,
            answered: 0,
        };
        bench.agent.open(ConnectionId::new(0, [0; 4]), ID).unwrap();
        bench
            .agent
            .hello(&ID, CLIENT_FLAGS.to_vec(), Challenge::new([0; 32]), now)
            .unwrap();
        bench
    }

    /// Has `principal` sign a fresh challenge.
    fn authenticate(&mut self, principal: u8) -> Admission {
        self.challenges += 1;
        let challenge = Challenge::new([self.challenges; 32]);
        self.agent.challenge(&ID, challenge, self.now).unwrap();
        let statement = sign_statement(principal, &signer(), &challenge, self.now.unix, 600);
        self.agent.authenticate(&ID, &statement, self.now).unwrap()
    }

    /// The next request that the toolshed gets.
    fn request(&mut self) -> Option<ControlRequest> {
        self.agent
            .next_message(0, self.now)
            .map(|message| ControlRequest::decode(&message).unwrap())
    }

    fn answer(&mut self, status: u8, payload: &[u8]) -> Result<(), AnswerFault> {
        self.answered += 1;
        let response = ControlResponse {
            sequence: self.answered,
            status,
            payload: payload.to_vec(),
        };
        self.agent.answer(0, &response.encode().unwrap(), self.now)
    }

    fn ask(&mut self, open: &Open) -> Receiver<Result<(), Reason>> {
        match self.agent.plan(&ID, open, self.now) {
            Step::Alone(task) | Step::Beside(task) => self
                .agent
                .ask(&ID, open.index, task, self.now.monotonic)
                .unwrap(),
            step => panic!("nothing to ask: {step:?}"),
        }
    }

    /// Takes every step of an open, the toolshed agreeing; returns the operations.
    fn admit(&mut self, open: &Open) -> Vec<Operation> {
        let mut operations = Vec::new();
        while !matches!(self.agent.plan(&ID, open, self.now), Step::Admitted(_)) {
            let mut outcome = self.ask(open);
            let operation = self.request().unwrap().operation;
            operations.push(operation);
            let payload: &[u8] = if operation == Operation::Ticket {
                TICKET.as_bytes()
            } else {
                &[]
            };
            self.answer(0, payload).unwrap();
            assert_eq!(outcome.try_recv(), Ok(Ok(())));
        }
        operations
    }

    fn greeting(&self, issued: u64) -> Vec<u8> {
        let hello = DataHello {
            toolshed: did(20),
            nonce: Nonce::new([5; 32]),
            issued,
        };
        let input = hello.signing_input().unwrap();
        let signature = identity(20).sign(&input);
        attach(input, signature)
    }

    fn bind(&mut self, ticket: Ticket, hello: &[u8]) -> Result<SignedBinding, Fault> {
        self.agent.bind(&ID, 0, ticket, hello, self.now)
    }
}

fn open(space: u8, principal: u8) -> Open {
    Open {
        index: 0,
        principal: did(principal),
        space: did(space),
        epoch: 5,
    }
}

#[path = "agent_revocation_tests.rs"]
mod revocation;

#[test]
fn the_records_of_a_first_open_are_those_of_the_context() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    let _ticket = bench.ask(&open(100, 1));
    let request = bench.request().unwrap();
    assert_eq!(
        (request.sequence, request.operation),
        (1, Operation::Ticket)
    );
    let ticket = TicketRequest::decode(&request.payload).unwrap();
    assert_eq!(
        (ticket.context, ticket.space, ticket.epoch),
        (ID, did(100), 5)
    );
    assert_eq!(ticket.flags, CLIENT_FLAGS);
    bench.answer(0, TICKET.as_bytes()).unwrap();

    let _proof = bench.ask(&open(100, 1));
    let request = bench.request().unwrap();
    assert_eq!((request.sequence, request.operation), (2, Operation::Proof));
    let proof = TicketProof::decode(&request.payload).unwrap();
    assert_eq!(proof.ticket, TICKET);
    let context = ProofContext {
        router: &did(250),
        deployment: DEPLOYMENT,
        epoch: &EPOCH,
        context: &ID,
        now: bench.now.unix,
    };
    let verified = verify_proof(&Proof::decode(&proof.proof).unwrap(), &context).unwrap();
    assert_eq!(verified.statement.principal, did(1));
    bench.answer(0, &[]).unwrap();
    assert_eq!(
        bench.agent.plan(&ID, &open(100, 1), bench.now),
        Step::Admitted(Some(TICKET))
    );
}

#[test]
fn later_opens_renewal_release_and_end_take_their_operations() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    assert_eq!(
        bench.admit(&open(100, 1)),
        [Operation::Ticket, Operation::Proof]
    );
    let greeting = bench.greeting(bench.now.unix);
    bench.bind(TICKET, &greeting).unwrap();
    assert_eq!(bench.admit(&open(101, 1)), [Operation::Space]);
    bench.authenticate(2);
    // Nothing is pushed for a principal that the toolshed does not hold.
    assert_eq!(bench.request(), None);
    assert_eq!(bench.admit(&open(101, 2)), [Operation::VerifiedProof]);

    // Renewal goes at once to whoever holds the principal.
    bench.authenticate(1);
    let renewal = bench.request().unwrap();
    assert_eq!(renewal.operation, Operation::VerifiedProof);
    let renewal = ContextProof::decode(&renewal.payload).unwrap();
    assert_eq!(
        (renewal.context, renewal.flags.as_slice()),
        (ID, CLIENT_FLAGS)
    );
    bench.answer(0, &[]).unwrap();
    assert_eq!(bench.admit(&open(101, 1)), []);

    // Release goes there once, and nowhere for who is not held.
    bench.agent.release(&ID, did(1), bench.now).unwrap();
    bench.agent.release(&ID, did(1), bench.now).unwrap();
    bench.agent.release(&ID, did(77), bench.now).unwrap();
    let release = bench.request().unwrap();
    assert_eq!(release.operation, Operation::Release);
    assert_eq!(
        ReleaseRequest::decode(&release.payload).unwrap(),
        ReleaseRequest {
            context: ID,
            principal: did(1)
        }
    );
    assert_eq!(bench.request(), None);
    bench.answer(0, &[]).unwrap();
    assert_eq!(
        bench.agent.plan(&ID, &open(101, 1), bench.now),
        Step::Refuse(Reason::PrincipalUnknown)
    );

    // The end is told though nothing waits for it.
    bench.agent.close(&ID, bench.now);
    let close = bench.request().unwrap();
    assert_eq!(close.operation, Operation::Close);
    assert_eq!(
        CloseRequest::decode(&close.payload).unwrap(),
        CloseRequest { context: ID }
    );
    bench.answer(0, &[]).unwrap();
}

#[test]
fn the_end_of_a_context_that_a_toolshed_never_heard_of_is_not_told() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    let _ticket = bench.ask(&open(100, 1));
    bench.agent.close(&ID, bench.now);
    assert_eq!(bench.request(), None);
}

#[test]
fn several_renewals_that_wait_are_one() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    bench.admit(&open(100, 1));
    for _ in 0..5 {
        bench.authenticate(1);
    }
    let renewal = ContextProof::decode(&bench.request().unwrap().payload).unwrap();
    let statement = Proof::decode(&renewal.proof).unwrap().statement;
    let newest = memory_wire::records::Statement::verify(&statement).unwrap();
    assert_eq!(newest.challenge, Challenge::new([6; 32]));
    assert_eq!(bench.request(), None);
}

#[test]
fn a_binding_is_signed_once_and_forbids_rollback() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    bench.admit(&open(100, 1));
    let greeting = bench.greeting(bench.now.unix);
    assert!(bench.agent.roll_back(&ID, 0, TICKET));
    let signed = bench.bind(TICKET, &greeting).unwrap();
    let binding = Binding::verify(&signed.binding, &did(250)).unwrap();
    assert_eq!(
        (binding.toolshed, binding.epoch, binding.context),
        (did(20), EPOCH, ID)
    );
    assert_eq!(
        (binding.ticket, binding.nonce, binding.issued),
        (TICKET, Nonce::new([5; 32]), bench.now.unix)
    );
    assert_eq!(binding.client_flags, Digest::of(CLIENT_FLAGS));
    assert_eq!(binding.negotiated_flags, Digest::of(&signed.negotiated));
    assert!(!bench.agent.roll_back(&ID, 0, TICKET));
    assert_eq!(
        bench.bind(TICKET, &greeting),
        Err(Fault::Violation("ticket bound twice"))
    );
    assert_eq!(
        bench.agent.plan(&ID, &open(100, 1), bench.now),
        Step::Admitted(None)
    );
}

#[test]
fn a_binding_needs_its_ticket_a_fresh_greeting_and_time() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    bench.admit(&open(100, 1));
    let greeting = bench.greeting(bench.now.unix);
    let unavailable = Err(Fault::Refused(Reason::UpstreamUnavailable));
    assert_eq!(bench.bind(Ticket::new([8; 32]), &greeting), unavailable);
    for issued in [bench.now.unix - 61, bench.now.unix + 61] {
        let stale = bench.greeting(issued);
        assert_eq!(bench.bind(TICKET, &stale), unavailable);
    }
    let mut forged = greeting.clone();
    forged[10] ^= 1;
    assert_eq!(bench.bind(TICKET, &forged), unavailable);
    assert_eq!(
        bench.agent.bind(&ID, 9, TICKET, &greeting, bench.now),
        Err(Fault::Violation("no such toolshed"))
    );
    assert_eq!(
        bench.agent.bind(&ID, 1, TICKET, &greeting, bench.now),
        unavailable
    );
    // A rollback leaves the ticket: it is bound on the next try.
    assert!(bench.agent.roll_back(&ID, 0, TICKET));
    bench.now = bench.now.after(Duration::from_secs(12));
    assert!(bench.bind(TICKET, &greeting).is_ok());
}

#[test]
fn a_ticket_too_old_is_not_bound_and_then_replaced() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    bench.admit(&open(100, 1));
    let greeting = bench.greeting(bench.now.unix);
    bench.now = bench.now.after(Duration::from_secs(13));
    assert_eq!(
        bench.bind(TICKET, &greeting),
        Err(Fault::Refused(Reason::TicketWindow))
    );
    assert_eq!(
        bench.agent.plan(&ID, &open(100, 1), bench.now),
        Step::Refuse(Reason::TicketWindow)
    );
    bench.now = bench.now.after(Duration::from_secs(2));
    assert_eq!(
        bench.admit(&open(100, 1)),
        [Operation::Ticket, Operation::Proof]
    );
}

#[test]
fn a_lost_link_is_told_where_it_was_known_and_takes_everything_with_it() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    bench.admit(&open(100, 1));
    let other = ContextId::new([9; 16]);
    bench
        .agent
        .open(ConnectionId::new(0, [1; 4]), other)
        .unwrap();
    bench.agent.link_down(0);
    let contexts = &mut bench.agent.contexts;
    assert_eq!(contexts.get_mut(&ID).unwrap().take_lost(), Some(0));
    assert_eq!(contexts.get_mut(&ID).unwrap().take_lost(), None);
    assert_eq!(contexts.get_mut(&other).unwrap().take_lost(), None);
    assert_eq!(
        bench.agent.plan(&ID, &open(100, 1), bench.now),
        Step::Refuse(Reason::UpstreamUnavailable)
    );
    // The new link does not know the old statement.
    let relinked = EpochId::new([8; 16]);
    bench.agent.links.up(
        0,
        relinked,
        Flags::from_canonical(TOOLSHED_FLAGS).unwrap(),
        bench.now.monotonic,
    );
    bench.answered = 0;
    assert_eq!(
        bench.agent.plan(&ID, &open(100, 1), bench.now),
        Step::Refuse(Reason::PrincipalRenewal)
    );
    bench.authenticate(1);
    // Who comes back to a link that was lost comes with everybody else, so that even the first has its turn to wait for.
    let outcome = bench.ask(&open(100, 1));
    assert!(bench.request().is_none());
    bench.now = bench.now.after(Duration::from_secs(1));
    assert!(bench.request().is_some());
    bench.answer(0, TICKET.as_bytes()).unwrap();
    drop(outcome);
    assert_eq!(bench.admit(&open(100, 1)), [Operation::Proof]);
}

#[test]
fn an_asker_is_refused_in_time_and_its_late_ticket_is_abandoned() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    let mut outcome = bench.ask(&open(100, 1));
    assert!(bench.request().is_some());
    bench.now = bench.now.after(Duration::from_secs(10));
    assert!(
        bench
            .agent
            .deadline(0, bench.now.monotonic)
            .is_some_and(|deadline| deadline <= bench.now.monotonic)
    );
    bench.agent.expire(0, bench.now.monotonic);
    assert_eq!(outcome.try_recv(), Ok(Err(Reason::ControlTimeout)));
    assert_eq!(
        bench.agent.plan(&ID, &open(100, 1), bench.now),
        Step::Pending
    );
    bench.now = bench.now.after(Duration::from_secs(30));
    bench.answer(0, TICKET.as_bytes()).unwrap();
    assert_eq!(
        bench.agent.plan(&ID, &open(100, 1), bench.now),
        Step::Refuse(Reason::TicketWindow)
    );
    bench.now = bench.now.after(Duration::from_secs(15));
    assert!(matches!(
        bench.agent.plan(&ID, &open(100, 1), bench.now),
        Step::Alone(Task::Ticket { .. })
    ));
}

#[test]
fn who_waits_too_long_to_be_sent_is_refused_and_leaves_no_trace() {
    let mut bench = Bench::new("max_link_waiters = 1");
    bench.authenticate(1);
    let mut outcome = bench.ask(&open(100, 1));
    let task = Task::Ticket {
        space: did(101),
        epoch: 5,
    };
    assert_eq!(
        bench.agent.ask(&ID, 0, task, bench.now.monotonic).err(),
        Some(Reason::AdmissionTimeout)
    );
    bench.now = bench.now.after(Duration::from_secs(5));
    bench.agent.expire(0, bench.now.monotonic);
    assert_eq!(outcome.try_recv(), Ok(Err(Reason::AdmissionTimeout)));
    assert_eq!(bench.request(), None);
    assert_eq!(
        bench.admit(&open(100, 1)),
        [Operation::Ticket, Operation::Proof]
    );
}

#[test]
fn a_toolshed_that_refuses_is_believed() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    let mut outcome = bench.ask(&open(100, 1));
    bench.request().unwrap();
    bench.answer(1, &[]).unwrap();
    assert_eq!(outcome.try_recv(), Ok(Err(Reason::PlacementChanged)));
    bench.admit(&open(100, 1));
    let mut outcome = bench.ask(&open(101, 1));
    let request = bench.request().unwrap();
    assert_eq!(
        SpaceRequest::decode(&request.payload).unwrap().space,
        did(101)
    );
    bench.answer(1, &[]).unwrap();
    assert_eq!(outcome.try_recv(), Ok(Err(Reason::PlacementChanged)));
    bench.authenticate(2);
    let mut outcome = bench.ask(&open(100, 2));
    bench.request().unwrap();
    bench.answer(1, &[]).unwrap();
    assert_eq!(outcome.try_recv(), Ok(Err(Reason::UpstreamUnavailable)));
}

#[test]
fn a_toolshed_that_breaks_the_link_protocol_is_found() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    assert_eq!(
        bench.agent.answer(0, b"mls1", bench.now),
        Err(AnswerFault::Malformed(
            memory_wire::codec::DecodeError::Truncated
        ))
    );
    let _outcome = bench.ask(&open(100, 1));
    bench.request().unwrap();
    assert_eq!(bench.answer(0, &[1; 31]), Err(AnswerFault::Ticket));
    assert_eq!(bench.answer(0, &[]), Err(AnswerFault::Order));
}

#[test]
fn requests_out_of_phase_are_violations() {
    let mut bench = Bench::new("");
    let again = bench.agent.hello(
        &ID,
        CLIENT_FLAGS.to_vec(),
        Challenge::new([0; 32]),
        bench.now,
    );
    assert_eq!(again, Err(Fault::Violation("second hello")));
    let early = ContextId::new([9; 16]);
    bench
        .agent
        .open(ConnectionId::new(0, [1; 4]), early)
        .unwrap();
    let before = Fault::Violation("request before hello");
    assert_eq!(
        bench
            .agent
            .challenge(&early, Challenge::new([0; 32]), bench.now),
        Err(before)
    );
    assert_eq!(
        bench.agent.authenticate(&early, &[], bench.now),
        Err(before)
    );
    assert_eq!(bench.agent.release(&early, did(1), bench.now), Err(before));
    assert_eq!(
        bench.agent.bind(&early, 0, TICKET, &[], bench.now),
        Err(before)
    );
    assert!(
        bench
            .agent
            .open(ConnectionId::new(0, [1; 4]), early)
            .is_none()
    );
}

#[test]
fn opens_beside_each_other_do_not_pass_the_space_limit() {
    let mut bench = Bench::new("max_spaces_per_connection = 2");
    bench.authenticate(1);
    bench.admit(&open(100, 1));
    // Neither sent nor answered, the second has its place.
    let _second = bench.ask(&open(101, 1));
    let refused = Step::Refuse(Reason::SpaceLimit);
    assert_eq!(bench.agent.plan(&ID, &open(102, 1), bench.now), refused);
    assert!(bench.request().is_some());
    assert_eq!(bench.agent.plan(&ID, &open(102, 1), bench.now), refused);
    // Refused, it gives it back.
    bench.answer(1, &[]).unwrap();
    let operations = bench.admit(&open(102, 1));
    assert_eq!(operations, [Operation::Space]);
    assert_eq!(bench.agent.plan(&ID, &open(101, 1), bench.now), refused);
}

#[test]
fn a_space_has_so_many_dedicated_connections_and_no_more() {
    let mut bench = Bench::new("max_connections_per_space = 2");
    let agent = &mut bench.agent;
    let context = |byte: u8| ContextId::new([byte; 16]);
    for byte in 10..14 {
        agent.open(ConnectionId::new(0, [byte; 4]), context(byte));
    }
    let full = Err(Fault::Refused(Reason::TenantCap));
    assert_eq!(agent.dedicate(&context(10), did(1)), Ok(()));
    assert_eq!(agent.dedicate(&context(11), did(1)), Ok(()));
    assert_eq!(agent.dedicate(&context(12), did(1)), full);
    assert_eq!(agent.dedicate(&context(13), did(2)), Ok(()));
    // Whoever was refused may ask again; whoever has a place may not, nor after hello.
    assert!(matches!(
        agent.dedicate(&context(10), did(2)),
        Err(Fault::Violation(_))
    ));
    assert!(matches!(
        agent.dedicate(&ID, did(2)),
        Err(Fault::Violation(_))
    ));
    agent.close(&context(10), bench.now);
    assert_eq!(agent.dedicate(&context(12), did(1)), Ok(()));
    agent.close(&context(13), bench.now);
    agent.close(&context(12), bench.now);
    agent.close(&context(11), bench.now);
    assert!(agent.spaces.is_empty());
}
