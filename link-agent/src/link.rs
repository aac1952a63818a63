//! Keeping a link to one toolshed: made, carried, made again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use memory_config::Toolshed;
use memory_transport::{Incoming, WsReader, WsWriter};
use memory_wire::Reason;
use memory_wire::frame::Opcode;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::Shared;
use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::entropy::random;
use crate::error::LinkFault;
use crate::handshake::{DialTimes, Established, establish};
use crate::links::Wakes;

/// Quiet time after which a toolshed is pinged, and pinged again; a third of `link_silence` where that is shorter.
const PING_AFTER: Duration = Duration::from_secs(15);

/// Longest time between two looks at who has waited too long, while anybody waits.
const EXPIRY_INTERVAL: Duration = Duration::from_millis(250);

/// Keeps the link to one toolshed for ever.
pub(crate) async fn maintain(
    shared: Rc<Shared>,
    index: u16,
    toolshed: Rc<Toolshed>,
    wakes: Rc<Wakes>,
    config: Arc<ClientConfig>,
) {
    let mut backoff = Backoff::default();
    let mut last_failure = None;
    loop {
        let times = shared.times();
        let times = DialTimes {
            handshake: times.link_handshake,
            tcp_user: times.tcp_user,
        };
        match establish(
            &shared.agent,
            (index, &toolshed),
            Arc::clone(&config),
            times,
        )
        .await
        {
            Ok(established) => {
                last_failure = None;
                let since = Instant::now();
                let fault = carry(&shared, index, &toolshed, &wakes, established).await;
                shared.agent.borrow_mut().link_down(index);
                tracing::warn!(reason = %fault.reason(), toolshed = toolshed.name, detail = %fault, "link lost");
                backoff.reset_if_lasted(since.elapsed());
            }
            Err(mut fault) => {
                // DIDs stand in no log unless an operator wants them there.
                if let LinkFault::OtherIdentity(named) = &mut fault
                    && !shared.config.borrow().log_identifiers
                {
                    *named = None;
                }
                if let LinkFault::Unsuitable(unsuitable) = fault {
                    shared.agent.borrow_mut().links.refuse(index, unsuitable);
                } else {
                    shared.agent.borrow_mut().links.down(index);
                }
                log_failure(&toolshed, &fault, &mut last_failure);
            }
        }
        let random = random().map_or(u32::MAX, u32::from_be_bytes);
        sleep(backoff.next(random)).await;
    }
}

/// A toolshed that stays away is logged once for each reason, not at every attempt.
fn log_failure(toolshed: &Toolshed, fault: &LinkFault, last: &mut Option<Reason>) {
    let (reason, address) = (fault.reason(), toolshed.address);
    if last.replace(reason) == Some(reason) {
        tracing::debug!(%reason, toolshed = toolshed.name, %address, detail = %fault, "no link");
    } else {
        tracing::warn!(%reason, toolshed = toolshed.name, %address, detail = %fault, "no link");
    }
}

async fn carry(
    shared: &Shared,
    index: u16,
    toolshed: &Toolshed,
    wakes: &Wakes,
    established: Established,
) -> LinkFault {
    let Established {
        socket,
        epoch,
        flags,
    } = established;
    let now = Moment::now().monotonic;
    if shared.agent.borrow_mut().links.up(index, epoch, flags, now) {
        tracing::info!(toolshed = toolshed.name, "linked");
    } else {
        tracing::warn!(
            reason = %Reason::UpstreamIncompatible,
            toolshed = toolshed.name,
            "linked, but not used: it does not support the frozen offer"
        );
    }
    let carried = Carried {
        shared,
        index,
        wakes,
        pong: RefCell::default(),
        is_ping_due: Cell::new(false),
    };
    // Apart, so that a toolshed that does not read neither keeps its answers from being taken nor its waiters waiting.
    let ended = tokio::select! {
        ended = carried.receive(socket.reader) => ended,
        ended = carried.send(socket.writer) => ended,
        ended = carried.expire() => ended,
    };
    match ended {
        Ok(never) => match never {},
        Err(fault) => fault,
    }
}

/// What the three sides of a link share.
struct Carried<'a> {
    shared: &'a Shared,
    index: u16,
    wakes: &'a Wakes,
    /// Payload of the last unanswered ping. Older ones need no answer (RFC 6455 section 5.5.3).
    pong: RefCell<Option<Vec<u8>>>,
    is_ping_due: Cell<bool>,
}

type Ended = Result<std::convert::Infallible, LinkFault>;

impl Carried<'_> {
    async fn receive<R: AsyncRead + Unpin>(&self, mut reader: WsReader<R>) -> Ended {
        let mut received = reader.received();
        let mut heard = Instant::now();
        let mut pings = 0;
        loop {
            let silence = self.shared.times().link_silence;
            // A short silence must not pass unpinged: it would end a healthy link that has nothing to say.
            let ping_after = PING_AFTER.min(silence / 3);
            let patience = silence.min(ping_after.saturating_mul(pings + 1));
            let incoming = timeout(patience.saturating_sub(heard.elapsed()), reader.next()).await;
            if reader.received() != received {
                received = reader.received();
                heard = Instant::now();
                pings = 0;
            }
            match incoming {
                Ok(incoming) => self.take(incoming.map_err(LinkFault::Read)?, &mut reader)?,
                Err(_) if heard.elapsed() >= silence => {
                    return Err(LinkFault::Silence);
                }
                Err(_) if heard.elapsed() >= patience => {
                    pings += 1;
                    self.is_ping_due.set(true);
                    self.wakes.send.notify_one();
                }
                // Part of a message came.
                Err(_) => {}
            }
        }
    }

    fn take<R: AsyncRead + Unpin>(
        &self,
        incoming: Incoming,
        reader: &mut WsReader<R>,
    ) -> Result<(), LinkFault> {
        match incoming {
            Incoming::Binary => {
                let message = reader.buffer().payload();
                let answered =
                    self.shared
                        .agent
                        .borrow_mut()
                        .answer(self.index, message, Moment::now());
                answered.map_err(LinkFault::Answer)?;
            }
            Incoming::Ping => *self.pong.borrow_mut() = Some(reader.control().to_vec()),
            Incoming::Pong => return Ok(()),
            Incoming::Text => return Err(LinkFault::NotBinary),
            Incoming::Close { .. } => return Err(LinkFault::Closed),
        }
        // There is room for a request, or a pong to send.
        self.wakes.send.notify_one();
        Ok(())
    }

    async fn send<W: AsyncWrite + Unpin>(&self, mut writer: WsWriter<W>) -> Ended {
        loop {
            let pong = self.pong.borrow_mut().take();
            let sent = if let Some(payload) = pong {
                writer.pong(&payload).await
            } else if self.is_ping_due.take() {
                writer.ping(&[]).await
            } else if let Some(message) = self.next_message() {
                writer.send_slice(Opcode::Binary, &message).await
            } else {
                self.wakes.send.notified().await;
                continue;
            };
            sent.map_err(LinkFault::Write)?;
        }
    }

    fn next_message(&self) -> Option<Vec<u8>> {
        self.shared
            .agent
            .borrow_mut()
            .next_message(self.index, Moment::now())
    }

    async fn expire(&self) -> Ended {
        loop {
            let now = Moment::now().monotonic;
            let deadline = self.shared.agent.borrow_mut().deadline(self.index, now);
            match deadline {
                // Bounded, as who comes later may be due earlier.
                Some(deadline) => {
                    sleep_until(Instant::from_std(deadline.min(now + EXPIRY_INTERVAL))).await
                }
                None => self.wakes.timer.notified().await,
            }
            self.shared
                .agent
                .borrow_mut()
                .expire(self.index, Moment::now().monotonic);
            // A paced request may be due now.
            self.wakes.send.notify_one();
        }
    }
}
