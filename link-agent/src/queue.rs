//! The control queue of one link: what may be sent now, what waits, what the toolshed owes an answer.
//!
//! ```text
//!  push ──> waiting (FIFO, bounded, control_wait) ──next──> sent ──> outstanding (32, 128 KiB) ──answer──> job
//!                                                                      └─ control_request: asker refused, entry stays
//! ```
//!
//! Requests are numbered as they are sent, and a toolshed answers in that order, so an answer belongs to the oldest
//! outstanding request or to none (`docs/protocol.md` section 6.1). An asker that is refused for want of an answer leaves its
//! entry behind: the answer will come, and what it did at the toolshed must be known.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memory_budget::{Budget, Permit};
use memory_wire::codec::MAX_RECORD_LEN;

use crate::bucket::TokenBucket;

/// Requests that a toolshed may owe an answer at once.
pub(crate) const MAX_OUTSTANDING: usize = 32;

/// Bytes of requests that a toolshed may owe an answer at once.
pub(crate) const MAX_OUTSTANDING_LEN: usize = 128 * 1024;

/// How a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Counted against the waiters, refused when it waits too long, and spread by the admission rate.
    Paced,
    /// Counted against the waiters and refused when it waits too long.
    Asked,
    /// What the toolshed must be told because it holds something of ours: waits as long as the link lives, and is bounded
    /// by what the toolshed holds, not by the waiters.
    Kept,
}

/// Bounds of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueLimits {
    /// Requests of the classes `Paced` and `Asked` that may wait, at each link.
    pub(crate) waiters: u64,
    /// How long one of them may wait.
    pub(crate) wait: Duration,
    /// How long its answer may take once it is sent.
    pub(crate) request: Duration,
    /// `Paced` requests sent per second, `None` for any number.
    pub(crate) rate: Option<u32>,
}

/// What became of an asker's patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The request was never sent, and is gone.
    Unsent,
    /// The request was sent; its answer may still come.
    Unanswered,
}

/// The queue. `J` is what a request is about; it becomes bytes only when it is sent.
#[derive(Debug)]
pub(crate) struct ControlQueue<J> {
    limits: QueueLimits,
    bucket: TokenBucket,
    paced: VecDeque<Waiting<J>>,
    others: VecDeque<Waiting<J>>,
    /// Waiting requests of the classes `Paced` and `Asked`.
    waiters: Budget,
    arrivals: u64,
    outstanding: VecDeque<Outstanding<J>>,
    outstanding_len: usize,
    next_sequence: u64,
}

impl<J> ControlQueue<J> {
    /// One that counts its waiters in `waiters`, whose bound the caller sets.
    pub(crate) fn new(limits: QueueLimits, waiters: Budget) -> Self {
        Self {
            limits,
            bucket: TokenBucket::new(limits.rate),
            paced: VecDeque::new(),
            others: VecDeque::new(),
            waiters,
            arrivals: 0,
            outstanding: VecDeque::new(),
            outstanding_len: 0,
            next_sequence: 1,
        }
    }

    /// Begins without a burst: for a link that takes the place of one that was lost, since everybody comes back at once.
    pub(crate) fn spread(&mut self, now: Instant) {
        self.bucket.empty(now);
    }

    /// Bounds what comes from now on differently. What waits keeps the time it was given.
    pub(crate) fn set_limits(&mut self, limits: QueueLimits) {
        self.limits = limits;
        self.bucket.set_rate(limits.rate);
    }

    /// Puts a request at the end. Gives it back when as many wait as may.
    pub(crate) fn push(&mut self, job: J, class: Class, now: Instant) -> Result<(), J> {
        let patience = match class {
            Class::Kept => None,
            Class::Paced | Class::Asked => match self.waiters.reserve(1) {
                Ok(place) => Some(Patience {
                    expires: now + self.limits.wait,
                    _place: place,
                }),
                Err(_) => return Err(job),
            },
        };
        self.arrivals += 1;
        let waiting = Waiting {
            job,
            arrival: self.arrivals,
            patience,
        };
        match class {
            Class::Paced => self.paced.push_back(waiting),
            Class::Asked | Class::Kept => self.others.push_back(waiting),
        }
        Ok(())
    }

    /// Takes the request that is to be sent now, if one may be. Its bytes are to be reported with [`Self::sent`], unless
    /// there is nothing left to say.
    ///
    /// The oldest goes first. Only a request that must wait for the admission rate is passed by younger ones that need not.
    pub(crate) fn next(&mut self, now: Instant) -> Option<J> {
        if !self.has_window() {
            return None;
        }
        let paced = self.paced.front().map(|waiting| waiting.arrival);
        let other = self.others.front().map(|waiting| waiting.arrival);
        let paced_first = paced.is_some_and(|paced| other.is_none_or(|other| paced < other));
        let waiting = if paced_first && self.bucket.take(now) {
            self.paced.pop_front()
        } else {
            self.others.pop_front()
        }?;
        Some(waiting.job)
    }

    /// The number of the request that is sent next.
    pub(crate) const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Notes that `job` leaves now, in `len` bytes, with the number of [`Self::next_sequence`].
    pub(crate) fn sent(&mut self, job: J, len: usize, now: Instant) {
        let expires = Some(now + self.limits.request);
        self.outstanding.push_back(Outstanding {
            job,
            len,
            sequence: self.next_sequence,
            at: now,
            expires,
        });
        self.outstanding_len += len;
        self.next_sequence += 1;
    }

    /// Requests that the toolshed owes an answer.
    pub(crate) fn unanswered(&self) -> usize {
        self.outstanding.len()
    }

    /// When the request left whose answer comes next.
    pub(crate) fn oldest_sent(&self) -> Option<Instant> {
        self.outstanding.front().map(|oldest| oldest.at)
    }

    /// Takes the request that an answer belongs to. `None`: the toolshed answers what was not asked, or out of order.
    pub(crate) fn answer(&mut self, sequence: u64) -> Option<J> {
        let answered = self
            .outstanding
            .pop_front_if(|oldest| oldest.sequence == sequence)?;
        self.outstanding_len -= answered.len;
        Some(answered.job)
    }

    /// Reports every asker whose patience has ended to `report`.
    pub(crate) fn expire(&mut self, now: Instant, mut report: impl FnMut(&mut J, Expiry)) {
        for queue in [&mut self.paced, &mut self.others] {
            if !queue.iter().any(|waiting| waiting.is_over(now)) {
                continue;
            }
            queue.retain_mut(|waiting| {
                let over = waiting.is_over(now);
                if over {
                    report(&mut waiting.job, Expiry::Unsent);
                }
                !over
            });
        }
        for sent in &mut self.outstanding {
            if sent.expires.is_some_and(|expires| expires <= now) {
                sent.expires = None;
                report(&mut sent.job, Expiry::Unanswered);
            }
        }
    }

    /// When something is to be done next without anything arriving: an expiry, or a paced request's turn.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        // Within each queue times ascend, so the first timed entry is the first to expire: but for a while after the limits
        // were lowered, when it may be found late by what the caller waits at most.
        let waiting = [&self.paced, &self.others];
        let waiting = waiting
            .into_iter()
            .filter_map(|queue| queue.iter().find_map(Waiting::expires));
        let sent = self.outstanding.iter().find_map(|sent| sent.expires);
        // Only a turn that is still to come. One that is due is for whoever sends to take, as soon as the toolshed reads: a
        // timer for it would run out again and again meanwhile.
        let turn = (!self.paced.is_empty() && self.has_window())
            .then(|| self.bucket.next(now))
            .flatten();
        waiting.chain(sent).chain(turn).min()
    }

    fn has_window(&self) -> bool {
        self.outstanding.len() < MAX_OUTSTANDING
            && self.outstanding_len + MAX_RECORD_LEN <= MAX_OUTSTANDING_LEN
    }
}

#[derive(Debug)]
struct Waiting<J> {
    job: J,
    /// Order of arrival over both queues.
    arrival: u64,
    /// `None` for a request of class `Kept`.
    patience: Option<Patience>,
}

/// What a request holds that may wait for so long only.
#[derive(Debug)]
struct Patience {
    expires: Instant,
    /// Among the waiters, until the request is sent or refused.
    _place: Permit,
}

impl<J> Waiting<J> {
    fn expires(&self) -> Option<Instant> {
        self.patience.as_ref().map(|patience| patience.expires)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.expires().is_some_and(|expires| expires <= now)
    }
}

#[derive(Debug)]
struct Outstanding<J> {
    job: J,
    len: usize,
    sequence: u64,
    at: Instant,
    /// `None` once its asker has been refused.
    expires: Option<Instant>,
}

#[cfg(test)]
mod tests {
    use memory_budget::Limit;

    use super::*;

    /// With waiters of its own.
    fn queue<J>(limits: QueueLimits) -> ControlQueue<J> {
        let waiters = Budget::new("waiters", Limit::At(limits.waiters));
        ControlQueue::new(limits, waiters)
    }

    const LIMITS: QueueLimits = QueueLimits {
        waiters: 3,
        wait: Duration::from_secs(5),
        request: Duration::from_secs(10),
        rate: None,
    };

    fn send_all(queue: &mut ControlQueue<u32>, len: usize, now: Instant) -> Vec<u32> {
        let mut sent = Vec::new();
        while let Some(job) = queue.next(now) {
            queue.sent(job, len, now);
            sent.push(job);
        }
        sent
    }

    fn expired(queue: &mut ControlQueue<u32>, now: Instant) -> Vec<(u32, Expiry)> {
        let mut expired = Vec::new();
        queue.expire(now, |job, expiry| expired.push((*job, expiry)));
        expired
    }

    #[test]
    fn new_limits_hold_for_what_comes_after() {
        let now = Instant::now();
        let mut queue = queue(LIMITS);
        for job in [1, 2, 3] {
            queue.push(job, Class::Asked, now).unwrap();
        }
        queue.set_limits(QueueLimits {
            wait: Duration::from_secs(1),
            ..LIMITS
        });
        queue.waiters.set_limit(Limit::At(2));
        // Those that wait stay, and nobody joins them until there are fewer than the bound.
        assert_eq!(queue.push(4, Class::Asked, now), Err(4));
        assert_eq!(expired(&mut queue, now + Duration::from_secs(1)), []);
        queue.next(now);
        assert_eq!(queue.push(4, Class::Asked, now), Err(4));
        queue.next(now);
        assert_eq!(queue.push(4, Class::Asked, now), Ok(()));
        assert_eq!(
            expired(&mut queue, now + Duration::from_secs(1)),
            [(4, Expiry::Unsent)]
        );
    }

    #[test]
    fn numbers_from_one_and_matches_answers_in_order() {
        let now = Instant::now();
        let mut queue = queue(LIMITS);
        assert_eq!(queue.next_sequence(), 1);
        for job in [10, 11, 12] {
            queue.push(job, Class::Asked, now).unwrap();
        }
        assert_eq!(send_all(&mut queue, 100, now), [10, 11, 12]);
        assert_eq!(queue.answer(2), None);
        assert_eq!(queue.answer(1), Some(10));
        assert_eq!(queue.answer(1), None);
        assert_eq!(queue.answer(2), Some(11));
        assert_eq!(queue.answer(3), Some(12));
        assert_eq!(queue.answer(4), None);
    }

    #[test]
    fn keeps_at_most_thirty_two_outstanding() {
        let now = Instant::now();
        let mut queue = queue(QueueLimits {
            waiters: 100,
            ..LIMITS
        });
        for job in 0..40 {
            queue.push(job, Class::Asked, now).unwrap();
        }
        assert_eq!(send_all(&mut queue, 100, now).len(), MAX_OUTSTANDING);
        assert_eq!(queue.answer(1), Some(0));
        assert_eq!(send_all(&mut queue, 100, now), [32]);
    }

    #[test]
    fn keeps_at_most_128_kib_outstanding() {
        let now = Instant::now();
        let mut queue = queue(QueueLimits {
            waiters: 100,
            ..LIMITS
        });
        for job in 0..40 {
            queue.push(job, Class::Asked, now).unwrap();
        }
        let sent = send_all(&mut queue, MAX_RECORD_LEN, now).len();
        assert_eq!(sent, MAX_OUTSTANDING_LEN / MAX_RECORD_LEN);
        assert!(queue.outstanding_len <= MAX_OUTSTANDING_LEN);
    }

    #[test]
    fn refuses_past_its_waiters_but_keeps_what_must_be_said() {
        let now = Instant::now();
        let mut queue = queue(LIMITS);
        for job in 0..3 {
            queue.push(job, Class::Asked, now).unwrap();
        }
        assert_eq!(queue.push(3, Class::Paced, now), Err(3));
        assert_eq!(queue.push(4, Class::Kept, now), Ok(()));
        assert_eq!(queue.next(now), Some(0));
        assert_eq!(queue.push(5, Class::Paced, now), Ok(()));
        assert_eq!(send_all(&mut queue, 1, now), [1, 2, 4, 5]);
    }

    #[test]
    fn refuses_who_waits_too_long_and_tells_the_next_deadline() {
        let now = Instant::now();
        let mut queue = queue(QueueLimits {
            waiters: 100,
            ..LIMITS
        });
        for job in 0..u32::try_from(MAX_OUTSTANDING).unwrap() {
            queue.push(job, Class::Asked, now).unwrap();
        }
        send_all(&mut queue, 1, now);
        queue.push(100, Class::Asked, now).unwrap();
        queue.push(101, Class::Kept, now).unwrap();
        assert_eq!(queue.deadline(now), Some(now + Duration::from_secs(5)));
        assert_eq!(expired(&mut queue, now + Duration::from_millis(4_999)), []);
        assert_eq!(
            expired(&mut queue, now + Duration::from_secs(5)),
            [(100, Expiry::Unsent)]
        );
        assert_eq!(queue.deadline(now), Some(now + Duration::from_secs(10)));
        let late = now + Duration::from_secs(10);
        assert_eq!(expired(&mut queue, late).len(), MAX_OUTSTANDING);
        assert_eq!(expired(&mut queue, late), []);
        // The late answer is still matched, and makes room for what is kept.
        assert_eq!(queue.answer(1), Some(0));
        assert_eq!(queue.next(late), Some(101));
    }

    #[test]
    fn a_turn_that_is_due_is_no_deadline() {
        let now = Instant::now();
        let mut queue = queue(QueueLimits {
            rate: Some(1),
            ..LIMITS
        });
        queue.push(1, Class::Paced, now).unwrap();
        // Whoever sends may be kept by a toolshed that does not read: until it takes the request there is nothing to do.
        assert_eq!(queue.deadline(now), Some(now + LIMITS.wait));
        assert_eq!(queue.next(now), Some(1));
    }

    #[test]
    fn spreads_from_the_first_request_on() {
        let now = Instant::now();
        let mut queue = queue(QueueLimits {
            rate: Some(4),
            ..LIMITS
        });
        queue.spread(now);
        queue.push(1, Class::Paced, now).unwrap();
        assert_eq!(send_all(&mut queue, 1, now), [0; 0]);
        let turn = now + Duration::from_millis(250);
        assert_eq!(queue.deadline(now), Some(turn));
        assert_eq!(send_all(&mut queue, 1, turn), [1]);
    }

    #[test]
    fn paces_admissions_and_lets_others_pass() {
        let now = Instant::now();
        let mut queue = queue(QueueLimits {
            waiters: 100,
            rate: Some(1),
            ..LIMITS
        });
        queue.push(1, Class::Paced, now).unwrap();
        queue.push(2, Class::Paced, now).unwrap();
        queue.push(3, Class::Asked, now).unwrap();
        assert_eq!(send_all(&mut queue, 1, now), [1, 3]);
        assert_eq!(queue.deadline(now), Some(now + Duration::from_secs(1)));
        assert_eq!(send_all(&mut queue, 1, now + Duration::from_secs(1)), [2]);
    }
}
