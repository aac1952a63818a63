//! The metrics role: what the other roles show, in Prometheus' text, over HTTP on loopback.
//!
//! It asks when it is asked and keeps nothing in between. A role that does not answer is told as such, and the rest is
//! served. Whoever can connect to loopback can read the numbers; nobody can do anything else.

mod http;
mod text;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use memory_admin::latency::Histogram;
use memory_admin::{Family, Snapshot};
use memory_budget::{Budget, Limit, Permit};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::exit::{Exit, Failure};
use crate::reload::Changes;
use crate::survey::{self, survey};
use crate::throttle::Throttle;

/// Scrapes at once; a further one waits in the kernel's queue.
const MAX_SCRAPES: u64 = 4;

/// How long one may take, from accept to the last byte of the answer.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a peer may take to ask: on loopback, no time at all.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause after nothing could be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves until it is stopped.
///
/// # Errors
/// When `metrics_listen` is off, or its address cannot be had.
pub(crate) async fn run(changes: Changes) -> Result<(), Failure> {
    let config = Arc::clone(&changes.borrow());
    let Some(address) = config.metrics_listen else {
        return Err(Failure::new(
            Exit::Configuration,
            "there is nothing to serve: metrics_listen is off",
        ));
    };
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Failure::io(format!("cannot listen on {address}"), error))?;
    tracing::info!(reason = "listening", %address, "listening");
    let metrics = Rc::new(Metrics {
        changes,
        scrapes: Budget::new("metrics_scrapes", Limit::At(MAX_SCRAPES)),
        answered: Cell::new(0),
        latency: Histogram::default(),
    });
    let ipc_dir = config.ipc_dir.clone();
    let shown = Rc::clone(&metrics);
    let started = SystemTime::now();
    spawn_local(async move { survey::show(&ipc_dir, "metrics", || shown.snapshot(started)).await });
    metrics.serve(&listener).await;
    Ok(())
}

struct Metrics {
    changes: Changes,
    scrapes: Budget,
    answered: Cell<u64>,
    latency: Histogram,
}

impl Metrics {
    async fn serve(self: Rc<Self>, listener: &TcpListener) {
        let mut failures = Throttle::default();
        let freed = Rc::new(tokio::sync::Notify::new());
        loop {
            // Asking for what is not there would count as refused, and nobody is.
            while !self.scrapes.has_room(1) {
                freed.notified().await;
            }
            let accepted = listener.accept().await;
            match (accepted, self.scrapes.reserve(1)) {
                (Ok((stream, _)), Ok(place)) => {
                    let (metrics, freed) = (Rc::clone(&self), Rc::clone(&freed));
                    spawn_local(async move {
                        metrics.scrape(stream, place).await;
                        freed.notify_one();
                    });
                }
                (Err(error), _) => {
                    if let Some(count) = failures.note(Instant::now()) {
                        tracing::error!(reason = "internal", count, %error, "cannot accept");
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
                // Places are taken here alone.
                (Ok(_), Err(_)) => {}
            }
        }
    }

    /// Answers one request. Who does not ask or read in time has itself to blame.
    async fn scrape(&self, mut stream: TcpStream, _place: Permit) {
        let begun = Instant::now();
        let answered = timeout(SCRAPE_TIMEOUT, async {
            let asked = timeout(HEAD_TIMEOUT, http::read(&mut stream)).await;
            match asked.map_err(std::io::Error::other)?? {
                Ok(http::Metrics) => {
                    let config = Arc::clone(&self.changes.borrow());
                    let document = text::encode(survey(&config).await);
                    http::answer(&mut stream, &document).await?;
                    self.answered.set(self.answered.get().saturating_add(1));
                    self.latency.observe(begun.elapsed());
                }
                Err(refusal) => http::refuse(&mut stream, refusal).await?,
            }
            Ok::<(), std::io::Error>(())
        });
        match answered.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(reason = "scrape", %error, "a scrape was not answered");
            }
            Err(_) => tracing::debug!(reason = "scrape", "a scrape took too long"),
        }
    }

    fn snapshot(&self, started: SystemTime) -> Snapshot {
        Snapshot::new("metrics", started)
            .budget(&self.scrapes)
            .family(
                Family::counter("scrapes_total", "Scrapes that were answered")
                    .value(self.answered.get()),
            )
            .family(
                Family::histogram("scrape_seconds", "From accept to the answer of a scrape")
                    .value(self.latency.totals()),
            )
    }
}
