//! One life of a session: a task that does what the schedule says and reads what the session tells.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use memory_client::{Client, ClientError, DurableSession, Ended, Event, SessionOptions, Submitted};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::book::{Book, MINE};
use crate::error::{same, soon};
use crate::{Context, GateError};

/// What the schedule asks of a session.
#[derive(Debug, Clone, Copy)]
pub(super) enum Order {
    Commit {
        large: bool,
        stale: bool,
    },
    /// End this life at once; the next goes on with what is unanswered.
    Park,
    /// Wait for every verdict, look at what it has, and close.
    Finish,
}

/// A session that is under way.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) task: JoinHandle<Result<Book, GateError>>,
}

impl Life {
    /// Starts a life, the first or a further one.
    pub(super) fn start(book: Book, client: Client) -> Self {
        let (orders, received) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let owner = book.owner.clone();
            let lived = live(book, client, received).await;
            lived.map_err(|error| error.within(owner))
        });
        Self { orders, task }
    }
}

async fn live(
    mut book: Book,
    client: Client,
    mut orders: mpsc::UnboundedReceiver<Order>,
) -> Result<Book, GateError> {
    let is_first = book.saved.is_none();
    let session = open(&mut book, &client).await?;
    if is_first {
        let watching = session.watch_add(vec![
            watch(&book.document(), "space"),
            watch(MINE, "session"),
        ]);
        watching.await.during("watching")?;
    }
    let mut verdicts = FuturesUnordered::new();
    loop {
        let order = tokio::select! {
            order = orders.recv() => order.unwrap_or(Order::Finish),
            Some((number, verdict)) = verdicts.next() => {
                book.judge(number, &verdict)?;
                continue;
            }
            event = session.event() => {
                note(&mut book, event)?;
                continue;
            }
        };
        match order {
            Order::Commit { large, stale } => {
                let (number, commit) = book.compose(large, stale);
                let submitted = session.submit(commit).await.during("submitting")?;
                book.submitted(number, submitted.local_seq);
                verdicts.push(judged(number, submitted));
            }
            Order::Park => {
                book.saved = session.save();
                drop(session);
                // Those that were judged in time, or end with this life.
                while let Some((number, verdict)) = verdicts.next().await {
                    book.judge(number, &verdict)?;
                }
                return Ok(book);
            }
            Order::Finish => break,
        }
    }
    while !book.is_judged() {
        tokio::select! {
            Some((number, verdict)) = verdicts.next() => book.judge(number, &verdict)?,
            event = session.event() => note(&mut book, event)?,
        }
    }
    let roots = json!({ "roots": [root(MINE, "session")] });
    let answer = session.read("graph.query", json!({ "query": roots }));
    let answer = answer.await.during("reading what is its own")?;
    match answer.pointer("/entities/0/document/value") {
        None | Some(Value::Null) => same("commits", book.count(super::book::Outcome::Applied), 0)?,
        Some(value) => book.is_own(value)?,
    }
    let closed = soon("the end of a session", session.close()).await?;
    closed.during("the end of a session")?;
    book.saved = None;
    Ok(book)
}

/// Opens a session, as often as the connection drops under its first open: that is the caller's to repeat.
async fn open(book: &mut Book, client: &Client) -> Result<DurableSession, GateError> {
    loop {
        let options = SessionOptions {
            commits_in_flight: book.in_flight,
            saved: book.saved.clone(),
            ..SessionOptions::default()
        };
        let opened = client.open(book.space.did, &book.space.owner, options);
        match opened.await {
            Err(ClientError::Ended(Ended::Failed(error)))
                if matches!(*error, ClientError::Closed(_)) => {}
            opened => return opened.during("a durable open"),
        }
    }
}

async fn judged(number: u64, submitted: Submitted) -> (u64, Result<Value, ClientError>) {
    (number, submitted.verdict().await)
}

fn note(book: &mut Book, event: Option<Event>) -> Result<(), GateError> {
    match event {
        Some(Event::Sync(sync)) => book.inspect(&sync),
        Some(Event::Answered { local_seq, outcome }) => book.judge_late(local_seq, &outcome),
        Some(Event::Other(_) | Event::Interrupted | Event::Rebuilt { .. }) => Ok(()),
        Some(Event::WatchesLost(denied)) => Err(GateError::new("watches", "kept", denied)),
        Some(Event::Ended(ended)) => Err(GateError::new("a session", "kept", ended)),
        None => Err(GateError::new("a session", "events", "its end")),
    }
}

fn watch(id: &str, scope: &str) -> Value {
    json!({ "id": format!("{scope}-watch"), "kind": "graph", "query": { "roots": [root(id, scope)] } })
}

fn root(id: &str, scope: &str) -> Value {
    json!({ "id": id, "scope": scope, "selector": { "path": [], "schema": false } })
}
