//! Commits that wait for their verdict, in order. What became of one whose connection ended is unknown, so it is sent again
//! exactly as it was: the toolshed knows its `localSeq` and applies it once.

use std::collections::VecDeque;

use serde_json::Value;

/// One commit without a verdict.
#[derive(Debug)]
struct Entry<T> {
    local_seq: u64,
    commit: Value,
    /// Whether it was sent on the present attachment and not answered there.
    in_flight: bool,
    owner: T,
}

/// The queue of one session. `T` is whatever belongs to a commit until its verdict.
#[derive(Debug)]
pub(crate) struct CommitQueue<T> {
    next_local_seq: u64,
    /// Commits in flight at once. With one, no commit can overtake another that was refused for now.
    window: usize,
    entries: VecDeque<Entry<T>>,
}

impl<T> CommitQueue<T> {
    /// A queue whose next commit gets `next_local_seq`.
    pub(crate) fn new(next_local_seq: u64, window: usize) -> Self {
        Self {
            next_local_seq,
            window: window.max(1),
            entries: VecDeque::new(),
        }
    }

    pub(crate) fn next_local_seq(&self) -> u64 {
        self.next_local_seq
    }

    /// Adds a commit; its `localSeq` is set here.
    pub(crate) fn push(&mut self, mut commit: Value, owner: T) -> u64 {
        let local_seq = self.next_local_seq;
        if let Some(commit) = commit.as_object_mut() {
            commit.insert("localSeq".to_owned(), local_seq.into());
        }
        self.restore(local_seq, commit, owner);
        local_seq
    }

    /// Adds a commit of an earlier life of the session, as it was sent then.
    pub(crate) fn restore(&mut self, local_seq: u64, commit: Value, owner: T) {
        self.next_local_seq = self.next_local_seq.max(local_seq.saturating_add(1));
        self.entries.push_back(Entry {
            local_seq,
            commit,
            in_flight: false,
            owner,
        });
    }

    /// The next commit gets this `localSeq`, or a later one that is due already.
    pub(crate) fn skip_to(&mut self, next_local_seq: u64) {
        self.next_local_seq = self.next_local_seq.max(next_local_seq);
    }

    /// The commit to send now, in flight from here on. A commit that was refused for now is not sent while a later one is
    /// under way: the later ones go after it.
    pub(crate) fn send_next(&mut self) -> Option<(u64, Value)> {
        let in_flight = self.entries.iter().filter(|entry| entry.in_flight).count();
        let place = self.entries.iter().position(|entry| !entry.in_flight)?;
        if place != in_flight || in_flight >= self.window {
            return None;
        }
        let entry = self.entries.get_mut(place)?;
        entry.in_flight = true;
        Some((entry.local_seq, entry.commit.clone()))
    }

    /// A verdict came, for good: what belonged to the commit. `None` when it has none to wait for.
    pub(crate) fn judged(&mut self, local_seq: u64) -> Option<T> {
        let place = self.place(local_seq)?;
        self.entries.remove(place).map(|entry| entry.owner)
    }

    /// The commit was refused for now, or not judged at all.
    pub(crate) fn postponed(&mut self, local_seq: u64) {
        if let Some(place) = self.place(local_seq)
            && let Some(entry) = self.entries.get_mut(place)
        {
            entry.in_flight = false;
        }
    }

    /// The attachment ended: nothing is in flight any more.
    pub(crate) fn detached(&mut self) {
        for entry in &mut self.entries {
            entry.in_flight = false;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Unanswered commits, in order.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = &Value> {
        self.entries.iter().map(|entry| &entry.commit)
    }

    /// Gives up on all of them.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (u64, T)> {
        self.entries
            .drain(..)
            .map(|entry| (entry.local_seq, entry.owner))
    }

    fn place(&self, local_seq: u64) -> Option<usize> {
        self.entries
            .binary_search_by_key(&local_seq, |entry| entry.local_seq)
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[test]
    fn a_lost_connection_sends_the_same_again_before_what_is_new() {
        let mut queue = CommitQueue::new(1, 8);
        queue.push(json!({"a": 1}), ());
        queue.push(json!({"b": 2}), ());
        let first = queue.send_next();
        assert_eq!(first, Some((1, json!({"a": 1, "localSeq": 1}))));
        queue.send_next();
        queue.detached();
        queue.push(json!({"c": 3}), ());
        assert_eq!(queue.send_next(), first);
        assert_eq!(queue.send_next().map(|(seq, _)| seq), Some(2));
        assert_eq!(queue.send_next().map(|(seq, _)| seq), Some(3));
        assert_eq!(queue.send_next(), None);
    }

    #[test]
    fn a_refusal_for_now_holds_what_comes_after() {
        let mut queue = CommitQueue::new(1, 2);
        for _ in 0..3 {
            queue.push(json!({}), ());
        }
        queue.send_next();
        queue.send_next();
        assert_eq!(queue.send_next(), None, "window");
        queue.postponed(1);
        assert_eq!(queue.send_next(), None, "the second is under way");
        assert!(queue.judged(2).is_some());
        assert_eq!(queue.send_next().map(|(seq, _)| seq), Some(1));
        assert!(queue.judged(2).is_none(), "only once");
    }

    /// A toolshed that keeps verdicts by `localSeq` for ever and rejects some commits.
    #[derive(Debug, Default)]
    struct Model {
        verdicts: BTreeMap<u64, Value>,
        applied: Vec<u64>,
    }

    impl Model {
        /// `true`: accepted, perhaps again.
        fn transact(&mut self, seq: u64, commit: &Value) -> bool {
            if let Some(known) = self.verdicts.get(&seq) {
                assert_eq!(known, commit, "replayed exactly as sent");
                return true;
            }
            if seq % 7 == 3 {
                return false;
            }
            self.verdicts.insert(seq, commit.clone());
            self.applied.push(seq);
            true
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Push,
        Send,
        Serve,
        ServeForNow,
        Answer,
        Disconnect,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Push),
            4 => Just(Step::Send),
            3 => Just(Step::Serve),
            1 => Just(Step::ServeForNow),
            3 => Just(Step::Answer),
            1 => Just(Step::Disconnect),
        ]
    }

    /// Both directions of one connection, and what a client saw.
    #[derive(Debug)]
    struct World {
        queue: CommitQueue<()>,
        server: Model,
        requests: VecDeque<(u64, Value)>,
        /// `None`: refused for now.
        answers: VecDeque<(u64, Option<bool>)>,
        told: BTreeMap<u64, bool>,
    }

    impl World {
        fn take(&mut self, step: Step) {
            match step {
                Step::Push => {
                    let seq = self.queue.next_local_seq();
                    self.queue.push(json!({ "value": seq }), ());
                }
                Step::Send => self.requests.extend(self.queue.send_next()),
                Step::Serve => {
                    if let Some((seq, commit)) = self.requests.pop_front() {
                        let accepted = self.server.transact(seq, &commit);
                        self.answers.push_back((seq, Some(accepted)));
                    }
                }
                Step::ServeForNow => {
                    if let Some((seq, _)) = self.requests.pop_front() {
                        self.answers.push_back((seq, None));
                    }
                }
                Step::Answer => match self.answers.pop_front() {
                    Some((seq, Some(accepted))) => {
                        assert!(self.queue.judged(seq).is_some());
                        assert!(self.told.insert(seq, accepted).is_none(), "told once");
                    }
                    Some((seq, None)) => self.queue.postponed(seq),
                    None => {}
                },
                Step::Disconnect => {
                    self.requests.clear();
                    self.answers.clear();
                    self.queue.detached();
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_commit_ends_applied_exactly_once(
            steps in proptest::collection::vec(step(), 0..400),
            window in 1_usize..6,
        ) {
            let mut world = World {
                queue: CommitQueue::new(1, window),
                server: Model::default(),
                requests: VecDeque::new(),
                answers: VecDeque::new(),
                told: BTreeMap::new(),
            };
            for step in steps {
                world.take(step);
            }
            let pushed = world.queue.next_local_seq() - 1;
            while !world.queue.is_empty() {
                world.take(Step::Send);
                world.take(Step::Serve);
                world.take(Step::Answer);
            }
            let expected: Vec<u64> = (1..=pushed).filter(|seq| seq % 7 != 3).collect();
            let mut applied = world.server.applied.clone();
            if window == 1 {
                prop_assert_eq!(&applied, &expected, "in order");
            }
            applied.sort_unstable();
            prop_assert_eq!(&applied, &expected, "once each");
            let told: Vec<u64> = world.told.keys().copied().collect();
            prop_assert_eq!(told, (1..=pushed).collect::<Vec<_>>());
            for (seq, accepted) in &world.told {
                prop_assert_eq!(*accepted, seq % 7 != 3);
            }
        }
    }
}
