//! A TCP proxy in front of the router that can stop the bytes of a connection at a given place, and end it.
//!
//! It lives in the exercise's own process and understands nothing of what it forwards. A valve that is set concerns the
//! newest connection only: one that is made afterwards flows freely.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::error::soon;
use crate::{Context, GateError};

/// Bytes that are forwarded at once.
const CHUNK: usize = 16 << 10;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the router.
    Up,
    /// From the router to the client.
    Down,
}

/// A running proxy. Dropped, it and all its connections are gone.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    newest: Arc<Mutex<Option<Arc<Pipe>>>>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// A proxy in front of `target`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start(target: SocketAddr) -> Result<Self, GateError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .during("a proxy")?;
        let address = listener.local_addr().during("a proxy")?;
        let newest = Arc::default();
        let task = tokio::spawn(accept(listener, target, Arc::clone(&newest)));
        Ok(Self {
            address,
            newest,
            task,
        })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The newest connection.
    ///
    /// # Errors
    /// When there has been none.
    pub fn pipe(&self) -> Result<Arc<Pipe>, GateError> {
        newest(&self.newest)
            .clone()
            .during("a connection through the proxy")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One connection through a proxy.
#[derive(Debug)]
pub struct Pipe {
    router_side: SocketAddr,
    up: watch::Sender<Valve>,
    down: watch::Sender<Valve>,
    cut: watch::Sender<bool>,
}

/// How far one direction is open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Valve {
    /// Bytes that may still pass; `None` for all.
    left: Option<u64>,
    /// Whether bytes wait that may not.
    holds: bool,
}

impl Pipe {
    /// The address that the router knows the connection by.
    pub fn router_side(&self) -> SocketAddr {
        self.router_side
    }

    /// Lets `bytes` more pass in one direction, and holds what comes after them.
    pub fn hold_after(&self, way: Way, bytes: u64) {
        self.valve(way).send_replace(Valve {
            left: Some(bytes),
            holds: false,
        });
    }

    /// Waits until something is held.
    ///
    /// # Errors
    /// When nothing is in time.
    pub async fn held(&self, way: Way) -> Result<(), GateError> {
        let mut valve = self.valve(way).subscribe();
        let held = valve.wait_for(|valve| valve.holds);
        let held = soon("bytes at the proxy", held).await?;
        held.map(drop).during("bytes at the proxy")
    }

    /// Lets everything pass again, what is held first.
    pub fn release(&self) {
        for way in [Way::Up, Way::Down] {
            self.valve(way).send_replace(Valve::default());
        }
    }

    /// Ends the connection on both sides; what is held is lost.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    fn valve(&self, way: Way) -> &watch::Sender<Valve> {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }
}

fn newest(slot: &Mutex<Option<Arc<Pipe>>>) -> MutexGuard<'_, Option<Arc<Pipe>>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, target: SocketAddr, slot: Arc<Mutex<Option<Arc<Pipe>>>>) {
    let mut pipes = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((client, _)) = accepted {
                    pipes.spawn(serve(client, target, Arc::clone(&slot)));
                }
            }
            Some(_) = pipes.join_next() => {}
        }
    }
}

async fn serve(
    client: TcpStream,
    target: SocketAddr,
    slot: Arc<Mutex<Option<Arc<Pipe>>>>,
) -> io::Result<()> {
    let router = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    router.set_nodelay(true)?;
    let pipe = Arc::new(Pipe {
        router_side: router.local_addr()?,
        up: watch::Sender::default(),
        down: watch::Sender::default(),
        cut: watch::Sender::default(),
    });
    *newest(&slot) = Some(Arc::clone(&pipe));
    let (from_client, to_client) = client.into_split();
    let (from_router, to_router) = router.into_split();
    let mut cut = pipe.cut.subscribe();
    // Either end's end is the end of both: nothing here outlives a half of itself.
    tokio::select! {
        biased;
        // Nothing passes after it.
        _ = cut.wait_for(|cut| *cut) => {}
        _ = forward(from_client, to_router, &pipe.up) => {}
        _ = forward(from_router, to_client, &pipe.down) => {}
    }
    Ok(())
}

async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    valve: &watch::Sender<Valve>,
) -> io::Result<()> {
    let mut changes = valve.subscribe();
    let mut buffer = vec![0; CHUNK];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        let mut rest = buffer.get(..read).unwrap_or_default();
        while !rest.is_empty() {
            let mut passes = 0;
            valve.send_if_modified(|valve| {
                let before = *valve;
                let wanted = u64::try_from(rest.len()).unwrap_or(u64::MAX);
                passes = valve.left.map_or(wanted, |left| left.min(wanted));
                valve.left = valve.left.map(|left| left - passes);
                valve.holds = passes == 0;
                *valve != before
            });
            if passes == 0 {
                let opened = changes.wait_for(|valve| valve.left != Some(0));
                drop(opened.await.map_err(io::Error::other)?);
                continue;
            }
            let (now, later) = rest.split_at(usize::try_from(passes).unwrap_or(rest.len()));
            to.write_all(now).await?;
            rest = later;
        }
    }
}
