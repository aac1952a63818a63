//! `#[cfg(test)]`: what the spawner makes of what a worker says, with this test as the worker's mouth and a real process as its
//! body.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use memory_ipc::packets::{BudgetUse, Detail, Report, WorkerToSpawner};
use memory_ipc::{Channel, ChannelError, WorkerOutcome};
use memory_wire::Reason;
use memory_wire::ids::ConnectionId;
use tokio::io::AsyncReadExt as _;
use tokio::task::LocalSet;

use super::life::{Job, serve};
use super::process::WorkerProcess;
use super::tests::spawner;
use super::{Spawner, SpawnerToListener};

/// A connection that is being served.
struct Served {
    spawner: Rc<Spawner>,
    /// The worker's end.
    worker: Channel,
    /// What its process prints: nothing, until it ends.
    process: tokio::process::ChildStdout,
    /// What the listener is told.
    told: tokio::sync::mpsc::UnboundedReceiver<SpawnerToListener>,
}

const CONNECTION: ConnectionId = ConnectionId::new(1, [0; 4]);

/// Begins to serve a connection, beside what follows.
fn begin() -> Served {
    let spawner = Rc::new(spawner());
    let orders = spawner.registry.borrow_mut().admit(CONNECTION).unwrap();
    let (outbox, told) = tokio::sync::mpsc::unbounded_channel();
    spawner.listener.replace(Some(outbox));
    let (process, output, worker) = WorkerProcess::stand_in();
    let job = Job {
        connection: CONNECTION,
        peer: ([192, 0, 2, 1], 1).into(),
        accepted_unix_ms: 1,
        socket: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()),
        orders,
    };
    let serving = Rc::clone(&spawner);
    tokio::task::spawn_local(async move {
        serve(&serving, process, job, Duration::from_secs(60)).await;
    });
    Served {
        spawner,
        worker: Channel::from_fd(worker).unwrap(),
        process: output,
        told,
    }
}

impl Served {
    /// Says something until the spawner has had enough, at most this often. How often it was heard.
    async fn say(&self, packet: &WorkerToSpawner, most: usize) -> usize {
        for times in 0..most {
            match self.worker.send_packet(packet, &[]).await {
                Ok(()) => {}
                Err(ChannelError::Closed) => return times,
                Err(error) => panic!("{error}"),
            }
        }
        most
    }

    /// How the connection ended, once its process has.
    async fn end(&mut self) -> WorkerOutcome {
        self.process.read_to_end(&mut Vec::new()).await.unwrap();
        let SpawnerToListener::Ended {
            connection,
            outcome,
        } = self.told.recv().await.unwrap()
        else {
            panic!("something else");
        };
        assert_eq!(connection, CONNECTION);
        assert_eq!(self.spawner.registry.borrow().len(), 0);
        let tally = &self.spawner.tally;
        let sessions = &tally.reported.budgets[0].held;
        let held = [&tally.serving, sessions].map(memory_budget::Budget::current);
        assert_eq!(held, [0, 0]);
        outcome
    }
}

fn report() -> WorkerToSpawner {
    let mut report = Report {
        bytes_in: 1000,
        ..Report::default()
    };
    report.budgets[0] = BudgetUse {
        current: 3,
        peak: 4,
        refused: 5,
    };
    WorkerToSpawner::Report {
        report: Box::new(report),
    }
}

fn event() -> WorkerToSpawner {
    WorkerToSpawner::Event {
        level: 4,
        reason: 0,
        detail: Detail::clipped("noise"),
        bytes_in: 0,
        bytes_out: 0,
    }
}

fn finished() -> WorkerToSpawner {
    WorkerToSpawner::Finished {
        outcome: WorkerOutcome::Clean,
        reason: Reason::ClientClosed.code(),
    }
}

#[tokio::test]
async fn a_worker_that_does_not_stop_talking_is_killed() {
    for noise in [report(), event()] {
        LocalSet::new()
            .run_until(async {
                let mut served = begin();
                let heard = served.say(&noise, 1_000_000).await;
                assert!(heard < 1_000_000);
                assert_eq!(served.end().await, WorkerOutcome::Crash);
                assert_eq!(served.spawner.tally.breaches.get(), 1);
                let ended = served.spawner.tally.ended.all();
                assert_eq!(ended.get(&Reason::ChannelProtocol), Some(&1));
                // What was heard before stays counted, once.
                let bytes = served.spawner.tally.reported.carried[0].get();
                assert!(bytes == 1000 || noise == event(), "{bytes}");
            })
            .await;
    }
}

#[tokio::test]
async fn a_worker_may_not_report_after_its_last_word() {
    LocalSet::new()
        .run_until(async {
            let mut served = begin();
            served.say(&finished(), 1).await;
            served.say(&report(), 1).await;
            assert_eq!(served.end().await, WorkerOutcome::Crash);
            assert_eq!(served.spawner.tally.reported.carried[0].get(), 0);
        })
        .await;
}

#[tokio::test]
async fn a_worker_that_talks_as_it_should_is_heard_to_its_end() {
    LocalSet::new()
        .run_until(async {
            let mut served = begin();
            assert_eq!(served.say(&report(), 2).await, 2);
            assert_eq!(served.say(&event(), 3).await, 3);
            assert_eq!(served.say(&finished(), 1).await, 1);
            // Its channel ends, and its process with it.
            let worker = std::mem::replace(
                &mut served.worker,
                Channel::from_fd(Channel::pair().unwrap().0).unwrap(),
            );
            drop(worker);
            assert_eq!(served.end().await, WorkerOutcome::Clean);
            let tally = &served.spawner.tally;
            assert_eq!(tally.breaches.get(), 0);
            assert_eq!(tally.reported.carried[0].get(), 1000);
            assert_eq!(tally.reported.budgets[0].refused.get(), 5);
            assert_eq!(tally.reported.budgets[0].peak.get(), 4);
        })
        .await;
}
