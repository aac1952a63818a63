//! Tests of what a revocation does to everything an agent decides; compiled under `#[cfg(test)]` alone.

use memory_config::{Revocation, RevocationList};

use super::*;

const OTHER: ContextId = ContextId::new([9; 16]);

fn list(principals: &[u8]) -> RevocationList {
    let mut list = RevocationList::default();
    for byte in principals {
        let entry = Revocation {
            since: 1,
            reason: None,
        };
        assert!(list.insert(did(*byte), entry));
    }
    list
}

impl Bench {
    /// Has `principal` sign a fresh challenge of a context.
    fn try_authenticate(&mut self, id: &ContextId, principal: u8) -> Result<Admission, Fault> {
        self.challenges += 1;
        let challenge = Challenge::new([self.challenges; 32]);
        self.agent.challenge(id, challenge, self.now)?;
        let statement = sign_statement(principal, &signer(), &challenge, self.now.unix, 600);
        self.agent.authenticate(id, &statement, self.now)
    }

    fn open_other(&mut self) {
        let connection = ConnectionId::new(0, [1; 4]);
        self.agent.open(connection, OTHER).unwrap();
        let flags = CLIENT_FLAGS.to_vec();
        let challenge = Challenge::new([200; 32]);
        self.agent
            .hello(&OTHER, flags, challenge, self.now)
            .unwrap();
    }

    fn apply(&mut self, principals: &[u8]) -> usize {
        self.agent.apply(list(principals), self.now)
    }

    /// The list changes, but nobody is made to go: each decision has to see for itself.
    fn replace_alone(&mut self, principals: &[u8]) {
        self.agent.revocations.replace(list(principals));
    }
}

const REVOKED: Fault = Fault::Refused(Reason::PrincipalRevoked);

#[test]
fn a_revocation_ends_the_contexts_of_its_principal_here_and_at_the_toolsheds() {
    let mut bench = Bench::new("");
    bench.open_other();
    bench.authenticate(1);
    bench.authenticate(2);
    bench.try_authenticate(&OTHER, 3).unwrap();
    bench.admit(&open(100, 1));
    let greeting = bench.greeting(bench.now.unix);
    bench.bind(TICKET, &greeting).unwrap();
    assert_eq!(bench.apply(&[2, 77]), 1, "remembered is enough");
    assert!(!bench.agent.contexts.contains_key(&ID));

    // Principal 2 was never shown to the toolshed: there is nothing to release.
    let close = bench.request().unwrap();
    assert_eq!(close.operation, Operation::Close);
    assert_eq!(bench.request(), None);
    bench.answer(0, &[]).unwrap();
    assert!(bench.agent.contexts.contains_key(&OTHER));
    assert_eq!(
        bench.agent.plan(&ID, &open(100, 1), bench.now),
        Step::Refuse(Reason::ContextClosed)
    );
    assert_eq!(
        bench.bind(TICKET, &greeting),
        Err(Fault::Violation("no context"))
    );

    // The others go on, and the revoked one does not come back with another connection.
    let again = bench.try_authenticate(&OTHER, 2);
    assert_eq!(again, Err(REVOKED));
    bench.try_authenticate(&OTHER, 1).unwrap();

    // Taken off the list, it does.
    assert_eq!(bench.apply(&[77]), 0);
    bench.try_authenticate(&OTHER, 2).unwrap();
}

#[test]
fn a_toolshed_that_holds_a_proof_is_told_to_release_it_first() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    bench.admit(&open(100, 1));
    assert_eq!(bench.apply(&[1]), 1);
    let release = bench.request().unwrap();
    assert_eq!(release.operation, Operation::Release);
    let expected = ReleaseRequest {
        context: ID,
        principal: did(1),
    };
    assert_eq!(ReleaseRequest::decode(&release.payload), Ok(expected));
    let close = bench.request().unwrap();
    assert_eq!(close.operation, Operation::Close);
    // Its answers change nothing any more, whatever they say.
    bench.answer(1, &[]).unwrap();
    bench.answer(0, &[]).unwrap();
}

#[test]
fn the_task_of_an_ended_context_is_told_whom() {
    let mut bench = Bench::new("");
    let signals = bench
        .agent
        .open(ConnectionId::new(0, [1; 4]), OTHER)
        .unwrap();
    let flags = CLIENT_FLAGS.to_vec();
    let challenge = Challenge::new([200; 32]);
    bench
        .agent
        .hello(&OTHER, flags, challenge, bench.now)
        .unwrap();
    bench.try_authenticate(&OTHER, 4).unwrap();
    bench.agent.release(&OTHER, did(4), bench.now).unwrap();
    bench.apply(&[4]);
    let mut waiting = Box::pin(signals.revoked());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert_eq!(
        waiting.as_mut().poll(&mut context),
        std::task::Poll::Ready(did(4)),
        "a released principal is remembered too"
    );
}

#[test]
fn an_open_that_waits_for_a_toolshed_is_refused_when_the_answer_comes() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    let _ticket = bench.ask(&open(100, 1));
    bench.request().unwrap();
    bench.answer(0, TICKET.as_bytes()).unwrap();
    let mut proof = bench.ask(&open(100, 1));
    assert_eq!(bench.request().unwrap().operation, Operation::Proof);
    bench.replace_alone(&[1]);
    bench.answer(0, &[]).unwrap();
    assert_eq!(proof.try_recv(), Ok(Err(Reason::PrincipalRevoked)));
    assert_eq!(
        bench.agent.plan(&ID, &open(100, 1), bench.now),
        Step::Refuse(Reason::PrincipalRevoked)
    );
    let greeting = bench.greeting(bench.now.unix);
    assert_eq!(bench.bind(TICKET, &greeting), Err(REVOKED));
}

#[test]
fn a_proof_that_waits_for_its_turn_is_not_sent() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    bench.admit(&open(100, 1));
    // A renewal, pushed to the toolshed.
    bench.authenticate(1);
    bench.replace_alone(&[1]);
    assert_eq!(bench.request(), None);
}

#[test]
fn a_late_ticket_of_an_ended_context_is_never_bound() {
    let mut bench = Bench::new("");
    bench.authenticate(1);
    let mut asked = bench.ask(&open(100, 1));
    bench.request().unwrap();
    bench.apply(&[1]);
    assert_eq!(bench.request().unwrap().operation, Operation::Close);
    bench.answer(0, TICKET.as_bytes()).unwrap();
    // The asker finds its context gone: nobody tells it anything.
    assert!(asked.try_recv().is_err());
    let greeting = bench.greeting(bench.now.unix);
    assert_eq!(
        bench.bind(TICKET, &greeting),
        Err(Fault::Violation("no context"))
    );
}

#[test]
fn the_same_statement_again_is_refused_once_its_principal_is_revoked() {
    let mut bench = Bench::new("");
    let challenge = Challenge::new([50; 32]);
    bench.agent.challenge(&ID, challenge, bench.now).unwrap();
    let statement = sign_statement(1, &signer(), &challenge, bench.now.unix, 600);
    bench
        .agent
        .authenticate(&ID, &statement, bench.now)
        .unwrap();
    bench.replace_alone(&[1]);
    let again = bench.agent.authenticate(&ID, &statement, bench.now);
    assert_eq!(again, Err(REVOKED));
}

#[test]
fn a_list_that_cannot_be_used_admits_nobody_anew_and_ends_nothing() {
    let mut bench = Bench::new("");
    bench.apply(&[2]);
    let challenge = Challenge::new([50; 32]);
    bench.agent.challenge(&ID, challenge, bench.now).unwrap();
    let statement = sign_statement(1, &signer(), &challenge, bench.now.unix, 600);
    let admit = |bench: &mut Bench| bench.agent.authenticate(&ID, &statement, bench.now);
    admit(&mut bench).unwrap();
    bench.agent.revocations.close();
    // A renewal is a new statement too; the last good list stays in force; what was granted stays granted.
    let unreadable = Err(Fault::Refused(Reason::RevocationUnreadable));
    assert_eq!(bench.try_authenticate(&ID, 1), unreadable);
    assert_eq!(bench.try_authenticate(&ID, 3), unreadable);
    assert_eq!(bench.try_authenticate(&ID, 2), Err(REVOKED));
    assert!(!admit(&mut bench).unwrap().is_new);
    bench.admit(&open(100, 1));
    bench.apply(&[2]);
    bench.try_authenticate(&ID, 3).unwrap();
}
