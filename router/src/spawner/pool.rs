//! Which connection gets which worker, and how many workers to start. No IO, no clock, no process.
//!
//! A few workers are kept started and idle, so that a connection rarely waits for one. Connections that find none wait in
//! order; a worker that becomes idle goes to the one that has waited longest.

use std::collections::VecDeque;
use std::time::Instant;

use memory_budget::{Budget, Limit, Permit};

/// Names a worker process for as long as the spawner lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct WorkerNumber(pub(crate) u64);

/// Idle workers, known by a handle `H`, and waiting connections, each a job `J`.
#[derive(Debug)]
pub(crate) struct Pool<H, J> {
    /// Idle workers to keep.
    keep_idle: usize,
    /// Workers that may be starting at once: more would only slow each other down.
    max_starting: usize,
    starting: Budget,
    /// Idle workers: no bound, since those may be more than are to be kept that were started for connections which did not wait.
    idle_places: Budget,
    idle: VecDeque<(WorkerNumber, H, Permit)>,
    waiting_places: Budget,
    waiting: VecDeque<(Instant, J, Permit)>,
}

impl<H, J> Pool<H, J> {
    pub(crate) fn new(keep_idle: usize, max_starting: usize) -> Self {
        Self {
            keep_idle,
            max_starting,
            starting: Budget::new("workers_starting", Limit::At(max_starting as u64)),
            idle_places: Budget::new("workers_idle", Limit::Unlimited),
            idle: VecDeque::new(),
            // Each has a place of its own in the registry.
            waiting_places: Budget::new("connections_waiting", Limit::Unlimited),
            waiting: VecDeque::new(),
        }
    }

    /// Workers that start, workers that are idle, connections that wait.
    pub(crate) fn budgets(&self) -> [&Budget; 3] {
        [&self.starting, &self.idle_places, &self.waiting_places]
    }

    /// Keeps another number of idle workers from now on. Those that are too many are taken out, to be ended.
    pub(crate) fn keep(&mut self, keep_idle: usize) {
        self.keep_idle = keep_idle;
        self.idle.truncate(keep_idle);
    }

    /// How many workers to start now.
    pub(crate) fn missing(&self) -> usize {
        let wanted = self.keep_idle.saturating_add(self.waiting.len());
        let starting = usize::try_from(self.starting.current()).unwrap_or(usize::MAX);
        let have = self.idle.len().saturating_add(starting);
        wanted
            .saturating_sub(have)
            .min(self.max_starting.saturating_sub(starting))
    }

    /// A worker is being started, until the permit is dropped. `None` when as many are as may be.
    pub(crate) fn start(&self) -> Option<Permit> {
        self.starting.reserve(1).ok()
    }

    /// A connection needs a worker, since `now`. The pair to bring together, if a worker is idle.
    pub(crate) fn submit(&mut self, job: J, now: Instant) -> Option<(H, J)> {
        match self.idle.pop_front() {
            Some((_, handle, _)) => Some((handle, job)),
            None => {
                let place = self.waiting_places.adopt(1);
                self.waiting.push_back((now, job, place));
                None
            }
        }
    }

    /// A worker is idle. The pair to bring together, if a connection waits.
    pub(crate) fn offer(&mut self, number: WorkerNumber, handle: H) -> Option<(H, J)> {
        match self.waiting.pop_front() {
            Some((_, job, _)) => Some((handle, job)),
            None => {
                let place = self.idle_places.adopt(1);
                self.idle.push_back((number, handle, place));
                None
            }
        }
    }

    /// An idle worker is gone. Nothing happens when it was not idle.
    pub(crate) fn withdraw(&mut self, number: WorkerNumber) {
        self.idle.retain(|(idle, ..)| *idle != number);
    }

    /// Takes all idle workers out, to be ended.
    pub(crate) fn retire(&mut self) -> usize {
        let retired = self.idle.len();
        self.idle.clear();
        retired
    }

    /// Takes the connections out that have waited since `limit` or longer, longest first.
    pub(crate) fn expire(&mut self, limit: Instant) -> Vec<J> {
        let late = self
            .waiting
            .iter()
            .take_while(|(since, ..)| *since <= limit)
            .count();
        self.waiting.drain(..late).map(|(_, job, _)| job).collect()
    }

    /// Takes every waiting connection out.
    pub(crate) fn dismiss(&mut self) -> Vec<J> {
        self.waiting.drain(..).map(|(_, job, _)| job).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pool(keep_idle: usize, max_starting: usize) -> Pool<&'static str, u32> {
        Pool::new(keep_idle, max_starting)
    }

    #[test]
    fn keeps_the_wished_number_and_starts_a_bounded_number_at_once() {
        let now = Instant::now();
        let mut pool = pool(3, 2);
        assert_eq!(pool.missing(), 2);
        let first = pool.start().unwrap();
        assert_eq!(pool.missing(), 1);
        let second = pool.start().unwrap();
        assert_eq!(pool.missing(), 0);
        assert!(pool.start().is_none());
        drop(first);
        assert!(pool.offer(WorkerNumber(1), "a").is_none());
        assert_eq!(pool.missing(), 1);
        drop(second);
        assert!(pool.offer(WorkerNumber(2), "b").is_none());
        drop(pool.start().unwrap());
        assert!(pool.offer(WorkerNumber(3), "c").is_none());
        assert_eq!(pool.missing(), 0);
        // One is taken: one to replace it.
        assert_eq!(pool.submit(7, now), Some(("a", 7)));
        assert_eq!(pool.missing(), 1);
        let used = pool.budgets().map(Budget::current);
        assert_eq!(used, [0, 2, 0]);
    }

    #[test]
    fn another_number_of_idle_workers_is_kept() {
        let mut pool = pool(2, 8);
        assert!(pool.offer(WorkerNumber(1), "a").is_none());
        assert!(pool.offer(WorkerNumber(2), "b").is_none());
        pool.keep(3);
        assert_eq!(pool.missing(), 1);
        pool.keep(1);
        assert_eq!(pool.missing(), 0);
        // The one that has been idle longest stays, and goes first.
        assert_eq!(pool.submit(1, Instant::now()), Some(("a", 1)));
        assert!(pool.submit(2, Instant::now()).is_none());
    }

    #[test]
    fn connections_wait_in_order() {
        let now = Instant::now();
        let mut pool = pool(0, 8);
        for job in 1..=3 {
            assert!(pool.submit(job, now).is_none());
        }
        assert_eq!(pool.missing(), 3);
        assert_eq!(pool.offer(WorkerNumber(1), "a"), Some(("a", 1)));
        assert_eq!(pool.offer(WorkerNumber(2), "b"), Some(("b", 2)));
        assert_eq!(pool.offer(WorkerNumber(3), "c"), Some(("c", 3)));
        assert!(pool.offer(WorkerNumber(4), "d").is_none());
        assert_eq!(pool.missing(), 0);
    }

    #[test]
    fn a_dead_idle_worker_is_given_to_nobody() {
        let mut pool = pool(2, 8);
        assert!(pool.offer(WorkerNumber(1), "a").is_none());
        assert!(pool.offer(WorkerNumber(2), "b").is_none());
        pool.withdraw(WorkerNumber(1));
        pool.withdraw(WorkerNumber(9));
        assert_eq!(pool.missing(), 1);
        assert_eq!(pool.submit(1, Instant::now()), Some(("b", 1)));
    }

    #[test]
    fn waiting_ends_with_its_time() {
        let start = Instant::now();
        let mut pool = pool(0, 8);
        for second in 0..4_u32 {
            assert!(
                pool.submit(second, start + Duration::from_secs(u64::from(second)))
                    .is_none()
            );
        }
        assert_eq!(pool.expire(start + Duration::from_secs(1)), [0, 1]);
        assert_eq!(pool.expire(start + Duration::from_secs(1)), [0; 0]);
        assert_eq!(pool.dismiss(), [2, 3]);
        assert_eq!(pool.missing(), 0);
    }
}
