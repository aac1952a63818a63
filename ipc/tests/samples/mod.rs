//! A sample of every packet.

use std::net::SocketAddr;

use memory_ipc::WorkerOutcome;
use memory_ipc::packets::{
    BrokerToLinkAgent, BrokerToWorker, BudgetUse, Detail, KeyAgentToSpawner, KeyAgentToWorker,
    Latency, LinkAgentToBroker, LinkAgentToSpawner, LinkAgentToWorker, ListenerToSpawner, Report,
    SpawnerToBroker, SpawnerToKeyAgent, SpawnerToLinkAgent, SpawnerToListener, SpawnerToWorker,
    WorkerToBroker, WorkerToKeyAgent, WorkerToLinkAgent, WorkerToSpawner,
};
use memory_wire::Did;
use memory_wire::codec::MAX_SAFE_INTEGER;
use memory_wire::ids::{Challenge, ConnectionId, Ticket};

/// Packet, tag, number of descriptors.
pub(crate) type Samples<P> = Vec<(P, &'static [u8], usize)>;

/// Calls `$check` with the samples of every enum.
macro_rules! with_all_samples {
    ($check:ident $(, $argument:expr)*) => {
        $check(&$crate::samples::listener_to_spawner() $(, $argument)*);
        $check(&$crate::samples::spawner_to_listener() $(, $argument)*);
        $check(&$crate::samples::spawner_to_key_agent() $(, $argument)*);
        $check(&$crate::samples::key_agent_to_spawner() $(, $argument)*);
        $check(&$crate::samples::spawner_to_link_agent() $(, $argument)*);
        $check(&$crate::samples::link_agent_to_spawner() $(, $argument)*);
        $check(&$crate::samples::spawner_to_broker() $(, $argument)*);
        $check(&$crate::samples::spawner_to_worker() $(, $argument)*);
        $check(&$crate::samples::worker_to_spawner() $(, $argument)*);
        $check(&$crate::samples::worker_to_key_agent() $(, $argument)*);
        $check(&$crate::samples::key_agent_to_worker() $(, $argument)*);
        $check(&$crate::samples::worker_to_link_agent() $(, $argument)*);
        $check(&$crate::samples::link_agent_to_worker() $(, $argument)*);
        $check(&$crate::samples::worker_to_broker() $(, $argument)*);
        $check(&$crate::samples::broker_to_worker() $(, $argument)*);
        $check(&$crate::samples::broker_to_link_agent() $(, $argument)*);
        $check(&$crate::samples::link_agent_to_broker() $(, $argument)*);
    };
}
pub(crate) use with_all_samples;

pub(crate) fn listener_to_spawner() -> Samples<ListenerToSpawner> {
    let new = ListenerToSpawner::NewConnection {
        connection: connection(),
        peer: peer(),
        accepted_unix_ms: 1_800_000_000_000,
    };
    vec![(new, b"ncn1", 1), (ListenerToSpawner::Drain, b"drn1", 0)]
}

pub(crate) fn spawner_to_listener() -> Samples<SpawnerToListener> {
    use SpawnerToListener::{Authenticated, Ended, Ready, Refused};
    let connection = connection();
    let outcome = WorkerOutcome::HandshakeTimeout;
    vec![
        (Ready { accepting: true }, b"rdy1", 0),
        (Authenticated { connection }, b"aut1", 0),
        (
            Ended {
                connection,
                outcome,
            },
            b"end1",
            0,
        ),
        (
            Refused {
                connection,
                reason: 3,
            },
            b"ref1",
            0,
        ),
    ]
}

pub(crate) fn spawner_to_key_agent() -> Samples<SpawnerToKeyAgent> {
    let connection = connection();
    let register = SpawnerToKeyAgent::Register {
        connection,
        announcement: 7,
    };
    vec![(register, b"reg1", 1)]
}

pub(crate) fn key_agent_to_spawner() -> Samples<KeyAgentToSpawner> {
    let schemes = vec![0x0403, 0x0804, 0x0807];
    let announce = KeyAgentToSpawner::KeyAnnounce {
        announcement: 7,
        schemes,
    };
    vec![(announce, b"kal1", 1)]
}

pub(crate) fn spawner_to_link_agent() -> Samples<SpawnerToLinkAgent> {
    let connection = connection();
    vec![
        (SpawnerToLinkAgent::Register { connection }, b"reg1", 2),
        (SpawnerToLinkAgent::Broker { connection }, b"bro1", 1),
    ]
}

pub(crate) fn link_agent_to_spawner() -> Samples<LinkAgentToSpawner> {
    let connection = connection();
    vec![
        (LinkAgentToSpawner::Ready { accepting: false }, b"rdy1", 0),
        (LinkAgentToSpawner::Authenticated { connection }, b"aut1", 0),
    ]
}

pub(crate) fn spawner_to_broker() -> Samples<SpawnerToBroker> {
    let connection = connection();
    vec![(SpawnerToBroker::Register { connection }, b"reg1", 2)]
}

pub(crate) fn spawner_to_worker() -> Samples<SpawnerToWorker> {
    let start = SpawnerToWorker::Start {
        connection: connection(),
        peer: peer(),
        accepted_unix_ms: 1_800_000_000_000,
    };
    vec![
        (SpawnerToWorker::Settings, b"set1", 1),
        (start, b"srt1", 4),
        (SpawnerToWorker::Broker, b"bro1", 1),
        (SpawnerToWorker::Drain, b"drn1", 0),
    ]
}

pub(crate) fn worker_to_spawner() -> Samples<WorkerToSpawner> {
    let event = WorkerToSpawner::Event {
        level: 2,
        reason: 9,
        detail: Detail::clipped("not \x00 trusted"),
        bytes_in: 1 << 40,
        bytes_out: MAX_SAFE_INTEGER,
    };
    let finished = WorkerToSpawner::Finished {
        outcome: WorkerOutcome::ProtocolError,
        reason: 9,
    };
    vec![
        (WorkerToSpawner::Idle, b"idl1", 0),
        (event, b"evt1", 0),
        (report(), b"rpt1", 0),
        (finished, b"fin1", 0),
    ]
}

/// A report as long as one can be, in which every number is another.
fn report() -> WorkerToSpawner {
    let mut numbers = 1..;
    let mut next = || numbers.next().unwrap_or_default();
    let mut report = Box::new(Report {
        bytes_in: MAX_SAFE_INTEGER,
        bytes_out: next(),
        messages_in: next(),
        messages_out: next(),
        ..Report::default()
    });
    report.budgets.fill_with(|| BudgetUse {
        current: next(),
        peak: next(),
        refused: next(),
    });
    report.latencies.fill_with(|| Latency {
        counts: std::array::from_fn(|_| next()),
        sum_micros: next(),
    });
    report.refusals = (1..=64).map(|code| (code, next())).collect();
    WorkerToSpawner::Report { report }
}

pub(crate) fn worker_to_key_agent() -> Samples<WorkerToKeyAgent> {
    let sign = WorkerToKeyAgent::Sign {
        sequence: 1,
        scheme: 0x0403,
        input: vec![b' '; 130],
    };
    vec![(sign, b"ksg1", 0)]
}

pub(crate) fn key_agent_to_worker() -> Samples<KeyAgentToWorker> {
    let signed = KeyAgentToWorker::Signed {
        sequence: 1,
        status: 1,
        signature: Vec::new(),
    };
    vec![(signed, b"ksr1", 0)]
}

pub(crate) fn worker_to_link_agent() -> Samples<WorkerToLinkAgent> {
    use WorkerToLinkAgent::{Authenticate, Bind, ChallengeRequest, Dedicate, Hello, Release};
    let sequence = 7;
    let hello = Hello {
        sequence,
        flags: b"{\"a\":true}".to_vec(),
    };
    let authenticate = Authenticate {
        sequence,
        statement: vec![1; 300],
    };
    let release = Release {
        sequence,
        principal: did(),
    };
    let space = did();
    let bind = Bind {
        sequence,
        index: 3,
        ticket: ticket(4),
        hello: vec![2; 164],
    };
    vec![
        (Dedicate { sequence, space }, b"wsd1", 0),
        (hello, b"whl1", 0),
        (ChallengeRequest { sequence }, b"wch1", 0),
        (authenticate, b"wau1", 0),
        (release, b"wrl1", 0),
        (bind, b"wbd1", 0),
    ]
}

pub(crate) fn link_agent_to_worker() -> Samples<LinkAgentToWorker> {
    use LinkAgentToWorker::{
        Ack, Authenticated, Bound, ChallengeIssued, HelloOk, LinkLost, Refused, Revoked,
    };
    let sequence = 7;
    let challenge = Challenge::from([5; 32]);
    let (expires, now) = (1_800_000_060, 1_800_000_000);
    let hello_ok = HelloOk {
        sequence,
        deployment: "deployment".to_owned(),
        router: did(),
        offer: b"{}".to_vec(),
        challenge,
        expires,
        now,
    };
    let issued = ChallengeIssued {
        sequence,
        challenge,
        expires,
        now,
    };
    let refused = Refused {
        sequence,
        reason: 1,
    };
    let authenticated = Authenticated {
        sequence,
        principal: did(),
        expires,
    };
    let bound = Bound {
        sequence,
        binding: vec![3; 400],
        negotiated: b"{}".to_vec(),
    };
    vec![
        (hello_ok, b"who1", 0),
        (issued, b"wcr1", 0),
        (refused, b"wrf1", 0),
        (authenticated, b"war1", 0),
        (Ack { sequence }, b"wak1", 0),
        (bound, b"wbr1", 0),
        (LinkLost { index: 2 }, b"wls1", 0),
        (Revoked { principal: did() }, b"wrv1", 0),
    ]
}

pub(crate) fn worker_to_broker() -> Samples<WorkerToBroker> {
    use WorkerToBroker::{Commit, Place, Rollback};
    let (index, ticket) = (258, ticket(9));
    let place = Place {
        sequence: 1,
        space: did(),
        principal: did(),
    };
    vec![
        (place, b"wpl1", 0),
        (Rollback { index, ticket }, b"mdf1", 0),
        (Commit { index, ticket }, b"mdc1", 0),
    ]
}

pub(crate) fn broker_to_worker() -> Samples<BrokerToWorker> {
    use BrokerToWorker::{Behind, Confirmed, Existing, Refused, Socket};
    let (sequence, index) = (1, 2);
    // The largest packet there is.
    let socket = Socket {
        sequence,
        index,
        ticket: ticket(3),
        toolshed: did(),
        server_name: "n".repeat(256),
        certificate: vec![4; 4096],
    };
    let refused = Refused {
        sequence,
        reason: 1,
    };
    let behind = Behind {
        sequence,
        index,
        ahead: 5,
    };
    vec![
        (Existing { sequence, index }, b"wpe1", 0),
        (socket, b"wps1", 1),
        (refused, b"wrf1", 0),
        (behind, b"wpp1", 0),
        (Confirmed, b"\0", 0),
    ]
}

pub(crate) fn broker_to_link_agent() -> Samples<BrokerToLinkAgent> {
    let admit = BrokerToLinkAgent::Admit {
        sequence: 1,
        index: 2,
        space: did(),
        epoch: 3,
        principal: did(),
    };
    let rollback = BrokerToLinkAgent::Rollback {
        index: 2,
        ticket: ticket(3),
    };
    vec![(admit, b"bad1", 0), (rollback, b"mdf1", 0)]
}

pub(crate) fn link_agent_to_broker() -> Samples<LinkAgentToBroker> {
    let admitted = LinkAgentToBroker::Admitted {
        sequence: 1,
        ticket: Some(ticket(2)),
    };
    let refused = LinkAgentToBroker::Refused {
        sequence: 1,
        reason: 2,
    };
    vec![
        (admitted, b"bat1", 0),
        (refused, b"wrf1", 0),
        (LinkAgentToBroker::Confirmed, b"\0", 0),
    ]
}

pub(crate) fn connection() -> ConnectionId {
    ConnectionId::from([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
}

pub(crate) fn ticket(byte: u8) -> Ticket {
    Ticket::from([byte; 32])
}

pub(crate) fn peer() -> SocketAddr {
    SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 4433))
}

/// The identity of the first test key of RFC 8032 section 7.1.
pub(crate) fn did() -> Did {
    let key = [
        0xd7, 0x5a, 0x98, 0x01, 0x82, 0xb1, 0x0a, 0xb7, 0xd5, 0x4b, 0xfe, 0xd3, 0xc9, 0x64, 0x07,
        0x3a, 0x0e, 0xe1, 0x72, 0xf3, 0xda, 0xa6, 0x23, 0x25, 0xaf, 0x02, 0x1a, 0x68, 0xf7, 0x07,
        0x51, 0x1a,
    ];
    Did::from_key(&key).expect("on the curve")
}
