//! Tests of `context`; compiled under `#[cfg(test)]` alone.

use super::*;
use crate::testing::{
    CLIENT_FLAGS, TOOLSHED_FLAGS, config, did, identity, moment, sign_statement, signer,
};
use memory_config::Limit;
use memory_wire::ids::Challenge;
use memory_wire::records::attach;

const CHALLENGE: Challenge = Challenge::new([3; 32]);
const EPOCH: EpochId = EpochId::new([2; 16]);

struct Bench {
    context: Context,
    registry: PrincipalRegistry,
    revocations: Revocations,
    signer: Signer,
    now: Moment,
    is_linked: bool,
}

impl Bench {
    fn new(limits: &str) -> Self {
        let config = config(limits);
        let now = moment();
        let id = ContextId::new([1; 16]);
        let connection = ConnectionId::new(0, [0; 4]);
        let mut context = Context::new(connection, id, ContextLimits::from(&config.limits));
        let offer = Flags::from_canonical(TOOLSHED_FLAGS).unwrap();
        context.client = Some(ClientFlags::new(CLIENT_FLAGS.to_vec(), &offer).unwrap());
        context
            .challenges
            .issue(CHALLENGE, Box::new([(0, EPOCH)]), now);
        let registry = PrincipalRegistry::new(config.limits.max_connections_per_principal);
        Self {
            context,
            registry,
            revocations: Revocations::default(),
            signer: signer(),
            now,
            is_linked: true,
        }
    }

    fn statement(&self, principal: u8, lease: u64) -> Vec<u8> {
        sign_statement(principal, &self.signer, &CHALLENGE, self.now.unix, lease)
    }

    fn authenticate(&mut self, statement: &[u8]) -> Result<Admission, Reason> {
        let around = Surroundings {
            signer: &self.signer,
            registry: &mut self.registry,
            revocations: &self.revocations,
            is_linked: self.is_linked,
            now: self.now,
        };
        self.context.authenticate(statement, around)
    }

    fn refusal(&mut self, statement: &[u8]) -> Reason {
        self.authenticate(statement).unwrap_err()
    }
}

/// A statement with one field changed, signed all the same.
fn changed(bench: &Bench, change: impl FnOnce(&mut Statement)) -> Vec<u8> {
    let mut statement = Statement {
        principal: did(1),
        router: *bench.signer.router(),
        deployment: bench.signer.deployment().to_owned(),
        challenge: CHALLENGE,
        iat: bench.now.unix,
        exp: bench.now.unix + 600,
    };
    change(&mut statement);
    let input = statement.signing_input().unwrap();
    let signature = identity(1).sign(&input);
    attach(input, signature)
}

#[test]
fn negotiates_what_client_and_offer_share() {
    let bench = Bench::new("");
    let client = bench.context.client.as_ref().unwrap();
    assert_eq!(
        String::from_utf8(client.negotiated.clone()).unwrap(),
        r#"{"codecs":["b@1"],"connectionAuth":true,"presenceV1":false,"routedAuthV1":true}"#
    );
    assert_eq!(client.original, CLIENT_FLAGS);
}

#[test]
fn refuses_flags_that_are_malformed_or_lack_routed_authentication() {
    let offer = Flags::from_canonical(TOOLSHED_FLAGS).unwrap();
    for flags in [
        &b"{"[..],
        b"[]",
        b"{}",
        br#"{"connectionAuth":true}"#,
        br#"{"connectionAuth":false,"routedAuthV1":true}"#,
        br#"{"routedAuthV1":true,"connectionAuth":true}"#,
        br#"{ "connectionAuth":true,"routedAuthV1":true}"#,
    ] {
        assert_eq!(
            ClientFlags::new(flags.to_vec(), &offer).err(),
            Some(Reason::IncompatibleFlags)
        );
    }
}

#[test]
fn accepts_a_statement_and_repeats_its_answer() {
    let mut bench = Bench::new("");
    let statement = bench.statement(1, 600);
    let first = bench.authenticate(&statement).unwrap();
    assert_eq!(
        (first.principal, first.expires),
        (did(1), bench.now.unix + 600)
    );
    assert!(first.is_new && first.is_first);
    bench.now = bench.now.after(Duration::from_secs(61));
    let again = bench.authenticate(&statement).unwrap();
    assert_eq!(
        again,
        Admission {
            is_new: false,
            is_first: false,
            ..first
        }
    );
}

#[test]
fn what_ends_the_connection_goes_first() {
    let mut bench = Bench::new("");
    let elsewhere = Challenge::new([9; 32]);
    let mut forged = bench.statement(1, 600);
    if let Some(last) = forged.last_mut() {
        *last ^= 1;
    }
    let bad = [
        forged,
        b"mra1".to_vec(),
        changed(&bench, |statement| {
            statement.router = did(9);
            statement.challenge = elsewhere;
        }),
        changed(&bench, |statement| {
            statement.deployment = "other".to_owned()
        }),
        changed(&bench, |statement| statement.exp = statement.iat),
    ];
    for statement in bad {
        assert_eq!(bench.refusal(&statement), Reason::ClientProtocol);
    }
}

#[test]
fn refuses_by_the_table() {
    let mut bench = Bench::new("");
    let elsewhere = changed(&bench, |statement| {
        statement.challenge = Challenge::new([9; 32])
    });
    assert_eq!(bench.refusal(&elsewhere), Reason::ChallengeExpired);
    let ahead = changed(&bench, |statement| {
        statement.iat += 121;
        statement.exp = statement.iat + 600;
    });
    assert_eq!(bench.refusal(&ahead), Reason::ClockSkew);
    let over = changed(&bench, |statement| {
        statement.iat -= 100;
        statement.exp = bench.now.unix;
    });
    assert_eq!(bench.refusal(&over), Reason::StatementExpired);
    let long = bench.statement(1, 601);
    assert_eq!(bench.refusal(&long), Reason::LeaseTooLong);
    let router = sign_statement(250, &bench.signer, &CHALLENGE, bench.now.unix, 600);
    assert_eq!(bench.refusal(&router), Reason::PrincipalRevoked);
    let good = bench.statement(1, 600);
    bench.is_linked = false;
    assert_eq!(bench.refusal(&good), Reason::UpstreamUnavailable);
    bench.is_linked = true;
    assert!(bench.authenticate(&good).is_ok());
    let other = bench.statement(1, 599);
    assert_eq!(bench.refusal(&other), Reason::ChallengeReused);
}

#[test]
fn a_challenge_lives_sixty_seconds() {
    let mut bench = Bench::new("");
    bench.now = bench.now.after(Duration::from_secs(59));
    let in_time = bench.statement(1, 600);
    assert!(bench.authenticate(&in_time).is_ok());
    bench.now = bench.now.after(Duration::from_secs(1));
    let late = bench.statement(2, 600);
    assert_eq!(bench.refusal(&late), Reason::ChallengeExpired);
}

#[test]
fn holds_its_limits_exactly() {
    let mut bench = Bench::new("max_principals_per_connection = 2\nmax_principal_history = 3");
    for principal in [1, 2] {
        let statement = bench.statement(principal, 600);
        assert!(bench.authenticate(&statement).is_ok());
    }
    let third = bench.statement(3, 600);
    assert_eq!(bench.refusal(&third), Reason::PrincipalLimit);
    bench.context.release(&did(1), &mut bench.registry);
    assert!(bench.authenticate(&third).is_ok());
    bench.context.release(&did(2), &mut bench.registry);
    let fourth = bench.statement(4, 600);
    assert_eq!(bench.refusal(&fourth), Reason::PrincipalHistoryLimit);
}

#[test]
fn a_challenge_is_signed_by_so_many_keys_and_no_more() {
    let mut bench =
        Bench::new("max_principals_per_challenge = 32\nmax_principals_per_connection = 64");
    for principal in 1..=32 {
        let statement = bench.statement(principal, 600);
        assert!(bench.authenticate(&statement).is_ok());
    }
    let next = bench.statement(33, 600);
    assert_eq!(bench.refusal(&next), Reason::ChallengeSigners);
}

#[test]
fn a_key_is_active_on_so_many_connections_and_no_more() {
    let mut bench = Bench::new("");
    bench.registry = PrincipalRegistry::new(Limit::At(1));
    let ends = bench.now.monotonic + Duration::from_secs(30);
    let (other, now) = (ContextId::new([7; 16]), bench.now.monotonic);
    bench.registry.enter(did(1), other, ends, now).unwrap();
    let statement = bench.statement(1, 600);
    assert_eq!(bench.refusal(&statement), Reason::PrincipalConnectionLimit);
    bench.now = bench.now.after(Duration::from_secs(30));
    assert!(bench.authenticate(&statement).is_ok());
    bench.context.leave(&mut bench.registry);
    let (now, later) = (bench.now.monotonic, ends + Duration::from_secs(30));
    assert!(bench.registry.enter(did(1), other, later, now).is_ok());
}

#[test]
fn a_released_principal_needs_a_fresh_signature() {
    let mut bench = Bench::new("");
    let statement = bench.statement(1, 600);
    assert!(bench.authenticate(&statement).is_ok());
    bench.context.release(&did(1), &mut bench.registry);
    assert_eq!(
        bench.context.knows(&did(1), bench.now),
        Err(Reason::PrincipalUnknown)
    );
    assert_eq!(bench.refusal(&statement), Reason::ChallengeReused);
    let fresh = Challenge::new([4; 32]);
    bench
        .context
        .challenges
        .issue(fresh, Box::default(), bench.now);
    let again = sign_statement(1, &bench.signer, &fresh, bench.now.unix, 600);
    assert!(bench.authenticate(&again).is_ok());
    assert_eq!(bench.context.knows(&did(1), bench.now), Ok(()));
}

#[test]
fn an_open_needs_a_statement_for_the_link_as_it_stands() {
    let mut bench = Bench::new("");
    let open = Open {
        index: 0,
        principal: did(1),
        space: did(100),
        epoch: 5,
    };
    assert_eq!(
        bench.context.plan(&open, &EPOCH, bench.now),
        Step::Refuse(Reason::PrincipalUnknown)
    );
    let statement = bench.statement(1, 600);
    assert!(bench.authenticate(&statement).is_ok());
    assert!(matches!(
        bench.context.plan(&open, &EPOCH, bench.now),
        Step::Alone(Task::Ticket { .. })
    ));
    let relinked = EpochId::new([8; 16]);
    assert_eq!(
        bench.context.plan(&open, &relinked, bench.now),
        Step::Refuse(Reason::PrincipalRenewal)
    );
    let last_second = bench.now.after(Duration::from_secs(599));
    assert_eq!(
        bench.context.plan(&open, &EPOCH, last_second),
        Step::Refuse(Reason::PrincipalRenewal)
    );
    let later = bench.now.after(Duration::from_secs(600));
    assert_eq!(
        bench.context.plan(&open, &EPOCH, later),
        Step::Refuse(Reason::PrincipalRenewal)
    );
}

#[test]
fn opens_so_many_spaces_and_no_more() {
    let mut bench = Bench::new("max_spaces_per_connection = 1");
    let statement = bench.statement(1, 600);
    assert!(bench.authenticate(&statement).is_ok());
    let open = |space| Open {
        index: 0,
        principal: did(1),
        space: did(space),
        epoch: 5,
    };
    let task = Task::Ticket {
        space: did(100),
        epoch: 5,
    };
    let now = bench.now.monotonic;
    bench.context.upstream_mut(0).sent(&task, None, now);
    bench.context.upstream_mut(0).granted(
        &task,
        None,
        Some(memory_wire::ids::Ticket::new([1; 32])),
        now,
    );
    assert_eq!(
        bench.context.plan(&open(101), &EPOCH, bench.now),
        Step::Refuse(Reason::SpaceLimit)
    );
    assert!(matches!(
        bench.context.plan(&open(100), &EPOCH, bench.now),
        Step::Alone(Task::Proof { .. })
    ));
}

#[test]
fn what_a_toolshed_held_of_a_forgotten_principal_is_forgotten_too() {
    let mut bench = Bench::new("max_principals_per_connection = 1\nmax_principal_history = 1");
    let first = bench.statement(1, 10);
    bench.authenticate(&first).unwrap();
    let proof = Task::Verified { principal: did(1) };
    let sent = Some(Digest::of(&first));
    let upstream = bench.context.upstream_mut(0);
    upstream.sent(&proof, sent, bench.now.monotonic);
    assert!(upstream.holds(&did(1)));
    bench.now = bench.now.after(Duration::from_secs(20));
    let second = bench.statement(2, 10);
    bench.authenticate(&second).unwrap();
    // Or a client with a key for every minute would leave them all here.
    let upstream = bench.context.upstream_mut(0);
    assert!(!upstream.holds(&did(1)) && upstream.is_known());
    upstream.granted(&proof, sent, None, bench.now.monotonic);
    assert!(!upstream.holds(&did(1)));
}
