//! The clock of one connection: pings a quiet client, closes on one that vanished, bounds the time without
//! authentication, and tells the readers when memory of a burst can be given back.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use memory_ipc::since_acknowledged;
use memory_wire::reason::Reason;
use tokio::time::Instant;

use crate::connection::Shared;
use crate::end::End;
use crate::output::Output;
use crate::times::Times;

/// How soon after traffic the connection is looked at again. One timer for everything: no request has its own, and a
/// connection without traffic is woken for its pings alone.
const TICK: Duration = Duration::from_secs(1);

/// When the client was last heard, and whether the router is listening at all.
#[derive(Debug)]
pub(crate) struct Hearing {
    last: Cell<Instant>,
    listening: Cell<bool>,
}

impl Hearing {
    pub(crate) fn new() -> Self {
        Self {
            last: Cell::new(Instant::now()),
            listening: Cell::new(true),
        }
    }

    /// The input begins to wait for the client (`true`), or has just heard it (`false`).
    pub(crate) fn set(&self, listening: bool) {
        if !listening || !self.listening.get() {
            self.last.set(Instant::now());
        }
        self.listening.set(listening);
    }

    /// When the client was last heard.
    fn last(&self) -> Instant {
        self.last.get()
    }

    /// How long the client has been silent. While the router itself is not reading, its kernel speaks for it: as long as that
    /// has acknowledged nothing, and zero where it cannot be asked.
    fn silence(&self, client: Option<BorrowedFd<'_>>) -> Duration {
        let heard = self.last.get().elapsed();
        if self.listening.get() {
            return heard;
        }
        let acknowledged = client.and_then(|client| since_acknowledged(client).ok());
        acknowledged.map_or(Duration::ZERO, |since| since.min(heard))
    }
}

/// An unanswered ping.
struct Pinged {
    /// When the silence began that it was sent into. An answer begins another silence.
    silent_since: Instant,
    sent: Instant,
    /// When it was sent, or the client last took something that was sent before.
    at: Instant,
    /// [`Output::taken`](crate::output::Output::taken) then.
    taken: u64,
}

/// For how long a frame has waited for the client; zero while none waits. If the client's kernel has acknowledged nothing for
/// longer, as long as that: it vanished before the socket's buffer was full. That of a client that reads slowly, or not at all,
/// answers, so that the frame's own wait alone counts.
fn unread(output: &Output, client: Option<BorrowedFd<'_>>) -> Duration {
    let stuck = output.blocked_now();
    if stuck.is_zero() {
        return stuck;
    }
    let acknowledged = client.and_then(|client| since_acknowledged(client).ok());
    acknowledged.map_or(stuck, |since| stuck.max(since))
}

/// Runs until the connection ends or a bound is passed. `client` is the client's socket, to ask the kernel about it.
pub(crate) async fn run(
    shared: Rc<Shared>,
    hearing: Rc<Hearing>,
    client: Option<OwnedFd>,
) -> Result<(), End> {
    let settings = Rc::clone(&shared.settings);
    let authenticate_by = Instant::now() + settings.authenticate();
    let ping_after = settings.ping_interval();
    let ping_timeout = settings.ping_timeout();
    let mut pinged: Option<Pinged> = None;
    // Whether memory was used since it was last given back; the handshake did.
    let mut moved = true;
    loop {
        let socket = client.as_ref().map(AsFd::as_fd);
        let silence = hearing.silence(socket);
        // A frame that does not move gets as long as a quiet client, ping and all.
        let stuck = unread(&shared.output, socket);
        if stuck >= ping_after + ping_timeout {
            return Err(End::new(Reason::PingTimeout, "unread"));
        }
        // Answered, or acknowledged where answers are not read.
        pinged = pinged
            .filter(|ping| ping.silent_since == hearing.last() && silence >= ping.sent.elapsed());
        let mut wait = match &mut pinged {
            Some(ping) if !silence.is_zero() => {
                // What is still taken of the output comes before the ping: it has not been read yet.
                let taken = shared.output.taken();
                if ping.taken != taken || !shared.output.blocked_now().is_zero() {
                    (ping.taken, ping.at) = (taken, Instant::now());
                }
                let left = ping_timeout.saturating_sub(ping.at.elapsed());
                if left.is_zero() {
                    return Err(End::new(Reason::PingTimeout, "ping"));
                }
                left
            }
            _ if silence >= ping_after => {
                if shared.output.ping() {
                    pinged = Some(Pinged {
                        silent_since: hearing.last(),
                        sent: Instant::now(),
                        at: Instant::now(),
                        taken: shared.output.taken(),
                    });
                    ping_timeout
                } else {
                    TICK
                }
            }
            _ => ping_after.saturating_sub(silence),
        };
        if !stuck.is_zero() {
            wait = wait.min(ping_after + ping_timeout - stuck);
        }
        let quiet = shared.was_quiet();
        if quiet {
            shared.quiet.notify_waiters();
            if std::mem::take(&mut moved) {
                // The readers shrink their buffers first; what they freed goes back to the system then.
                tokio::task::yield_now().await;
                memory_sandbox::release_free_memory();
            }
        } else {
            moved = true;
            wait = wait.min(TICK);
        }
        if !shared.has_authenticated() {
            let left = authenticate_by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(End::new(Reason::AuthenticateTimeout, "authenticate"));
            }
            wait = wait.min(left);
        }
        shared.rest(wait.max(Duration::from_millis(1))).await;
    }
}
