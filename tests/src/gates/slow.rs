//! Gate 14: a slow reader pauses its own toolshed reads only.

use std::cell::Cell;
use std::rc::Rc;

use serde_json::{Value, json};

use super::GateResult;
use super::acts::{Seat, query_of};
use super::latency::{Neighbour, Times};
use crate::Stage;
use crate::error::{holds, same};
use crate::proc::{private_kib, unread};
use crate::raw::{Framing, Speaker, ok};
use crate::report::figure;

/// A document of so many bytes is asked for so often: together more than every buffer on the way could hold.
const DOCUMENT: usize = 1 << 20;
const ANSWERS: usize = 40;

/// What the worker may grow by, KiB of private memory.
const MOST_GROWTH_KIB: u64 = 1024;

/// Requests of a neighbour that are measured, and those of which none sees the slow reader's socket move before it counts as
/// stuck.
const ASKED: usize = 200;
const UNMOVED: usize = 30;

/// The worker's memory stays flat, the others' latency does not move, and in the end nothing was lost.
pub(super) async fn slow_reader(stage: &Stage) -> GateResult {
    let [space, other] = &stage.spaces;
    let mut slow = Speaker::connect(stage, Framing::Credited, false).await?;
    let mut seat = Seat::take(&mut slow, space).await?;
    let value = json!("x".repeat(DOCUMENT));
    ok(&seat.commit(&mut slow, "of:gate-14", value).await?)?;
    let query = seat.members(query_of(&["of:gate-14"]))?;
    // Once beforehand, so that what it needs to carry such an answer at all does not count.
    ok(&slow.request("graph.query", query.clone()).await?)?;

    let mut near = Neighbour::arrive(stage, space).await?;
    let mut far = Neighbour::arrive(stage, other).await?;
    let near_before = near.ask_often(ASKED).await?;
    let far_before = far.ask_often(ASKED).await?;

    let worker = stage.router.worker_of(slow.local())?;
    let first = private_kib(worker)?;
    let most = Rc::new(Cell::new(first));
    let mut requests = Vec::new();
    for _ in 0..ANSWERS {
        let (id, message) = slow.compose("graph.query", query.clone())?;
        slow.send(&message).await?;
        requests.push(id);
    }

    // Nothing is read from here on. At first the toolshed is busy with answers, then with nothing.
    let mut stuck = Stuck::default();
    let mut filling = Times::default();
    while stuck.looks < UNMOVED {
        near.ask(&mut filling).await?;
        stuck.look(unread(slow.local(), stage.public().address)?);
        most.set(most.get().max(private_kib(worker)?));
        holds(
            "requests until the slow reader's socket is stuck",
            filling.len() < 20 * ASKED,
            "fewer",
            filling.len(),
        )?;
    }
    let (mut near_during, mut far_during) = (Times::default(), Times::default());
    for _ in 0..ASKED {
        near.ask(&mut near_during).await?;
        far.ask(&mut far_during).await?;
        most.set(most.get().max(private_kib(worker)?));
    }
    // The kernel probes a closed window and moves a little between its own two buffers then; an answer it does not move.
    let moved = unread(slow.local(), stage.public().address)?.saturating_sub(stuck.unread);
    holds(
        "bytes that came for the slow reader meanwhile",
        moved < DOCUMENT as u64,
        format!("under {DOCUMENT}"),
        moved,
    )?;
    let held = most.get() - first;

    // From here on everything is.
    let seen = Rc::clone(&most);
    slow.observe(move || {
        seen.set(seen.get().max(private_kib(worker).unwrap_or_default()));
        Ok(())
    });
    for id in requests {
        // In the order of the requests, which `next` would not hide.
        let answer = slow.next().await?;
        same(
            "the request that is answered next",
            answer.get("requestId"),
            Some(&Value::from(id)),
        )?;
        let document = ok(&answer)?.pointer("/entities/0/document/value");
        let len = document.and_then(Value::as_str).map(str::len);
        same("the length of a document", len, Some(DOCUMENT))?;
    }
    let grown = most.get() - first;
    holds(
        "the growth of the slow reader's worker, KiB",
        grown < MOST_GROWTH_KIB,
        format!("under {MOST_GROWTH_KIB}"),
        grown,
    )?;
    near_during.is_like(&near_before)?;
    far_during.is_like(&far_before)?;
    ok(&seat.commit(&mut slow, "of:gate-14", json!("")).await?)?;
    slow.client.reset()?;
    near.leave()?;
    far.leave()?;

    let mut figures = figure("growth_stuck_kib", held);
    figures.extend(figure("growth_kib", grown));
    figures.extend(filling.figures("same_toolshed_filling"));
    figures.extend(near_before.figures("same_toolshed_before"));
    figures.extend(near_during.figures("same_toolshed_during"));
    figures.extend(far_before.figures("other_toolshed_before"));
    figures.extend(far_during.figures("other_toolshed_during"));
    figures.extend(figure("unread_bytes", stuck.unread));
    figures.extend(figure("moved_bytes", moved));
    Ok(figures)
}

/// Whether a socket's queue still grows.
#[derive(Debug, Default)]
struct Stuck {
    unread: u64,
    /// Looks that saw the same.
    looks: usize,
}

impl Stuck {
    fn look(&mut self, unread: u64) {
        self.looks = if unread == self.unread && unread > 0 {
            self.looks + 1
        } else {
            0
        };
        self.unread = unread;
    }
}
