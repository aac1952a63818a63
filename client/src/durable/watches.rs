//! Watches: what the application wants to be told about, and how the toolshed is brought to know it. A set too long for one
//! frame is sent as `session.watch.set` with its first part and `session.watch.add` with the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::Value;

use super::budget::FrameBudget;
use super::holdings::{Document, Holdings};
use crate::ClientError;

/// JSON values of one statement of holdings, at most.
const HOLDING_SLOTS: u64 = 6;

/// One watch mutation, ready to be sent.
#[derive(Debug, PartialEq)]
pub(crate) struct Frame {
    /// `session.watch.set` if true, else `session.watch.add`.
    pub(crate) set: bool,
    pub(crate) watches: Vec<Value>,
    pub(crate) holdings: Option<Vec<Value>>,
}

/// What the toolshed has yet to be told.
#[derive(Debug, Default)]
enum Work {
    #[default]
    None,
    Add(BTreeSet<String>),
    All,
}

/// A sequence of frames under way.
#[derive(Debug)]
struct Run {
    all: bool,
    /// The newest change it covers.
    version: u64,
    /// Identifiers of the watches of each frame still to be accepted, the first one's being in flight or next.
    frames: VecDeque<Vec<String>>,
    in_flight: bool,
    /// Whether a frame was accepted.
    begun: bool,
    /// Whether the application has changed its mind meanwhile: everything will be sent anew.
    superseded: bool,
    /// Removes of the first frames, kept back: a later frame may watch the document after all.
    removes: BTreeMap<Document, Value>,
}

/// The watches of one session. `T` is whoever waits for a change to be accepted.
#[derive(Debug)]
pub(crate) struct Watches<T> {
    wanted: BTreeMap<String, Value>,
    /// What was accepted before the last replacement, to go back to when that is refused.
    fallback: Option<BTreeMap<String, Value>>,
    work: Work,
    run: Option<Run>,
    version: u64,
    owners: VecDeque<(u64, T)>,
    attached: bool,
}

/// What a refusal for good did.
#[derive(Debug)]
pub(crate) struct Refused<T> {
    /// Who is to be told.
    pub(crate) owners: Vec<T>,
    /// Watches that were accepted earlier are gone: nothing is left to go back to.
    pub(crate) lost: bool,
}

impl<T> Watches<T> {
    pub(crate) fn new(wanted: BTreeMap<String, Value>) -> Self {
        Self {
            wanted,
            fallback: None,
            work: Work::None,
            run: None,
            version: 0,
            owners: VecDeque::new(),
            attached: false,
        }
    }

    pub(crate) fn wanted(&self) -> &BTreeMap<String, Value> {
        &self.wanted
    }

    /// Replaces all watches.
    pub(crate) fn set(&mut self, watches: BTreeMap<String, Value>, owner: T) {
        let before = std::mem::replace(&mut self.wanted, watches);
        self.fallback.get_or_insert(before);
        self.enlist(owner);
        self.redo();
    }

    /// Adds watches whose identifiers are free or mean the same already.
    ///
    /// # Errors
    /// [`ClientError::Usage`] for an identifier that means something else; nothing is added.
    pub(crate) fn add(
        &mut self,
        watches: BTreeMap<String, Value>,
        owner: T,
    ) -> Result<(), ClientError> {
        let differs = |(id, watch)| self.wanted.get(id).is_some_and(|known| known != watch);
        if watches.iter().any(differs) {
            return Err(ClientError::Usage("another watch has that identifier"));
        }
        let ids: Vec<String> = watches.keys().cloned().collect();
        self.wanted.extend(watches);
        self.enlist(owner);
        match &mut self.work {
            Work::All => {}
            Work::Add(due) => due.extend(ids),
            Work::None => self.work = Work::Add(ids.into_iter().collect()),
        }
        Ok(())
    }

    /// States everything anew, on the present attachment if there is one.
    pub(crate) fn redo(&mut self) {
        self.work = Work::All;
        if let Some(run) = &mut self.run {
            run.superseded = true;
            run.frames.truncate(usize::from(run.in_flight));
        }
    }

    /// The session is open. `kept`: the toolshed still knows the watches it was told before.
    pub(crate) fn attached(&mut self, kept: bool, holds_nothing: bool) {
        self.attached = true;
        let nothing = self.wanted.is_empty() && self.owners.is_empty() && holds_nothing;
        if !kept && !nothing {
            self.work = Work::All;
        }
    }

    /// The session is not open any more.
    pub(crate) fn detached(&mut self) {
        self.attached = false;
        if self.run.take().is_some() {
            // What became of it is unknown.
            self.work = Work::All;
        }
    }

    /// Whether the toolshed knows all.
    pub(crate) fn is_settled(&self) -> bool {
        self.run.is_none() && matches!(self.work, Work::None)
    }

    /// The frame to send now, in flight from here on.
    pub(crate) fn send_next(&mut self, budget: &FrameBudget, holdings: &Holdings) -> Option<Frame> {
        if !self.attached {
            return None;
        }
        if self.run.as_ref().is_some_and(|run| run.in_flight) {
            return None;
        }
        if self.run.as_ref().is_none_or(|run| run.frames.is_empty()) {
            self.run = self.begin(budget);
        }
        let run = self.run.as_mut()?;
        let ids = run.frames.front()?;
        let watches: Vec<Value> = ids
            .iter()
            .filter_map(|id| self.wanted.get(id))
            .cloned()
            .collect();
        run.in_flight = true;
        let set = run.all && !run.begun;
        let later = run.frames.iter().skip(1).flatten();
        let later = later.filter_map(|id| self.wanted.get(id));
        let holdings = set
            .then(|| declare(&watches, later, budget, holdings))
            .flatten();
        Some(Frame {
            set,
            watches,
            holdings,
        })
    }

    /// The frame in flight was accepted; its sync may lose removes to a later one. Returns who waited for what is now known.
    pub(crate) fn accepted(&mut self, sync: &mut Value) -> Vec<T> {
        let Some(mut run) = self.run.take() else {
            return Vec::new();
        };
        run.in_flight = false;
        run.begun = true;
        run.frames.pop_front();
        if run.all && !run.superseded {
            run.keep_back_removes(sync);
        }
        if !run.frames.is_empty() {
            self.run = Some(run);
            return Vec::new();
        }
        if run.superseded {
            return Vec::new();
        }
        if run.all {
            self.fallback = None;
        }
        self.settle(run.version)
    }

    /// The frame in flight was refused for now: it is sent again.
    pub(crate) fn postponed(&mut self) {
        if let Some(run) = &mut self.run {
            run.in_flight = false;
            if run.superseded {
                self.run = None;
            }
        }
    }

    /// The frame in flight was refused for good.
    pub(crate) fn refused(&mut self) -> Refused<T> {
        let nobody = Refused {
            owners: Vec::new(),
            lost: false,
        };
        let Some(run) = self.run.take() else {
            return nobody;
        };
        if run.superseded {
            return nobody;
        }
        if !run.all {
            for id in run.frames.iter().flatten() {
                self.wanted.remove(id);
            }
            return Refused {
                owners: self.settle(run.version),
                lost: false,
            };
        }
        let before = self.fallback.take();
        let lost = before.is_none() && !self.wanted.is_empty();
        self.wanted = before.unwrap_or_default();
        self.work = if run.begun { Work::All } else { Work::None };
        // What was added meanwhile went with it.
        Refused {
            owners: self.settle(self.version),
            lost,
        }
    }

    /// Gives up on everybody who waits.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.owners.drain(..).map(|(_, owner)| owner)
    }

    fn enlist(&mut self, owner: T) {
        self.version += 1;
        self.owners.push_back((self.version, owner));
    }

    fn settle(&mut self, version: u64) -> Vec<T> {
        let count = self.owners.partition_point(|(at, _)| *at <= version);
        self.owners.drain(..count).map(|(_, owner)| owner).collect()
    }

    fn begin(&mut self, budget: &FrameBudget) -> Option<Run> {
        let (all, mut frames) = match std::mem::take(&mut self.work) {
            Work::None => return None,
            Work::All => (true, cut(self.wanted.iter(), budget)),
            Work::Add(ids) => {
                let watches = ids.iter().filter_map(|id| self.wanted.get_key_value(id));
                (false, cut(watches, budget))
            }
        };
        if frames.is_empty() {
            // Sent all the same: somebody waits for the answer.
            frames.push_back(Vec::new());
        }
        Some(Run {
            all,
            version: self.version,
            frames,
            in_flight: false,
            begun: false,
            superseded: false,
            removes: BTreeMap::new(),
        })
    }
}

impl Run {
    fn keep_back_removes(&mut self, sync: &mut Value) {
        for upsert in items(sync, "upserts") {
            if let Some(document) = Document::of(upsert) {
                self.removes.remove(&document);
            }
        }
        if let Some(removes) = sync.get_mut("removes").and_then(Value::as_array_mut) {
            for remove in removes.drain(..) {
                if let Some(document) = Document::of(&remove) {
                    self.removes.insert(document, remove);
                }
            }
            if self.frames.is_empty() {
                removes.extend(std::mem::take(&mut self.removes).into_values());
            }
        }
    }
}

/// Cuts watches into frames by bytes and values; a watch longer than a frame's target goes alone.
fn cut<'a>(
    watches: impl Iterator<Item = (&'a String, &'a Value)>,
    budget: &FrameBudget,
) -> VecDeque<Vec<String>> {
    let mut frames = VecDeque::new();
    let mut frame = Vec::new();
    let (mut len, mut slots) = (0, 0);
    for (id, watch) in watches {
        let (more_len, more_slots) = (length(watch), count_slots(watch));
        let over = len + more_len > budget.target_len.min(budget.max_len)
            || budget.max_slots.is_some_and(|max| slots + more_slots > max);
        if over && !frame.is_empty() {
            frames.push_back(std::mem::take(&mut frame));
            (len, slots) = (0, 0);
        }
        frame.push(id.clone());
        len += more_len;
        slots += more_slots;
    }
    if !frame.is_empty() {
        frames.push_back(frame);
    }
    frames
}

/// Holdings for the first frame. Documents that only later frames name are left out: this frame's answer would remove them.
fn declare<'a>(
    watches: &[Value],
    later: impl Iterator<Item = &'a Value>,
    budget: &FrameBudget,
    holdings: &Holdings,
) -> Option<Vec<Value>> {
    if budget.max_holdings == 0 {
        return None;
    }
    let first: BTreeSet<Document> = watches.iter().flat_map(roots).collect();
    let later: BTreeSet<Document> = later
        .flat_map(roots)
        .filter(|document| !first.contains(document))
        .collect();
    let room = budget
        .max_len
        .saturating_sub(watches.iter().map(length).sum());
    let mut declared = holdings.declare(room, |document| !later.contains(document));
    let slots: u64 = watches.iter().map(count_slots).sum();
    let by_slots = budget.max_slots.map_or(usize::MAX, |max| {
        usize::try_from(max.saturating_sub(slots) / HOLDING_SLOTS).unwrap_or(usize::MAX)
    });
    declared.truncate(budget.max_holdings.min(by_slots));
    Some(declared)
}

fn roots(watch: &Value) -> impl Iterator<Item = Document> + '_ {
    let branch = watch.pointer("/query/branch");
    items(watch.get("query").unwrap_or(&Value::Null), "roots").filter_map(move |root| {
        let mut root = root.clone();
        if let (Some(root), Some(branch)) = (root.as_object_mut(), branch) {
            root.insert("branch".to_owned(), branch.clone());
        }
        Document::of(&root)
    })
}

fn items<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// Bytes of a value as an element of an array.
pub(crate) fn length(value: &Value) -> usize {
    value.to_string().len() + 1
}

/// Values as the router counts them: one for every scalar, array and object.
fn count_slots(value: &Value) -> u64 {
    1 + match value {
        Value::Array(items) => items.iter().map(count_slots).sum(),
        Value::Object(members) => members.values().map(count_slots).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::watch;
    use serde_json::json;

    const BUDGET: FrameBudget = FrameBudget {
        target_len: 256,
        max_len: 4096,
        max_slots: None,
        max_holdings: 100,
    };

    fn some(names: &[&str]) -> BTreeMap<String, Value> {
        names
            .iter()
            .map(|name| ((*name).to_owned(), watch(name, &[&format!("of:{name}")])))
            .collect()
    }

    fn many(count: usize) -> BTreeMap<String, Value> {
        let names: Vec<String> = (0..count).map(|n| format!("w{n:03}")).collect();
        some(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn names(frame: &Frame) -> Vec<&str> {
        let name = |watch: &'_ Value| watch.get("id").and_then(Value::as_str).map(str::to_owned);
        let names: Vec<String> = frame.watches.iter().filter_map(name).collect();
        frame
            .watches
            .iter()
            .filter_map(|watch| watch.get("id")?.as_str())
            .take(names.len())
            .collect()
    }

    fn empty_sync() -> Value {
        json!({"upserts": [], "removes": []})
    }

    #[test]
    fn a_long_set_is_one_set_and_then_adds() {
        let mut watches = Watches::new(many(10));
        watches.attached(false, true);
        let holdings = Holdings::default();
        let mut told = Vec::new();
        let mut sets = Vec::new();
        while let Some(frame) = watches.send_next(&BUDGET, &holdings) {
            assert!(
                watches.send_next(&BUDGET, &holdings).is_none(),
                "one at a time"
            );
            assert!(frame.watches.iter().map(length).sum::<usize>() <= BUDGET.target_len);
            assert_eq!(frame.set, frame.holdings.is_some());
            sets.push(frame.set);
            told.extend(names(&frame).into_iter().map(str::to_owned));
            let _: Vec<()> = watches.accepted(&mut empty_sync());
        }
        assert!(sets.len() > 2 && sets[0] && sets[1..].iter().all(|set| !set));
        assert_eq!(told, many(10).into_keys().collect::<Vec<_>>());
        assert!(watches.is_settled());
    }

    #[test]
    fn values_bound_a_frame_and_a_long_watch_goes_alone() {
        let budget = FrameBudget {
            max_slots: Some(20),
            ..BUDGET
        };
        let frames = cut(many(5).iter(), &budget);
        assert!(frames.len() > 2);
        let long = watch("long", &["of:a-very-long-identifier"; 20]);
        let mut set = many(1);
        set.insert("long".to_owned(), long);
        set.extend(many(2));
        assert_eq!(cut(set.iter(), &BUDGET).len(), 2);
    }

    #[test]
    fn removes_wait_for_the_last_frame() {
        let mut holdings = Holdings::default();
        holdings.apply(&json!({"upserts": [
            {"id": "of:w000", "seq": 1}, {"id": "of:w009", "seq": 1}, {"id": "of:linked", "seq": 1},
            {"id": "of:stale", "seq": 1},
        ]}));
        let mut watches: Watches<()> = Watches::new(many(10));
        watches.attached(false, false);
        let first = watches.send_next(&BUDGET, &holdings).unwrap();
        let declared = first.holdings.unwrap();
        assert!(declared.contains(&json!({"id": "of:w000", "seq": 1})));
        assert!(
            !declared.contains(&json!({"id": "of:w009", "seq": 1})),
            "named later"
        );
        let mut sync = json!({"upserts": [], "removes": [{"id": "of:linked"}, {"id": "of:stale"}]});
        watches.accepted(&mut sync);
        assert_eq!(sync, empty_sync());
        let mut last = Value::Null;
        while watches.send_next(&BUDGET, &holdings).is_some() {
            last = json!({"upserts": [{"id": "of:linked", "scope": "space", "seq": 1}], "removes": []});
            watches.accepted(&mut last);
        }
        assert_eq!(last["removes"], json!([{"id": "of:stale"}]));
    }

    #[test]
    fn a_refused_replacement_goes_back_and_a_refused_addition_goes() {
        let mut watches = Watches::new(some(&["a"]));
        let holdings = Holdings::default();
        watches.attached(true, false);
        watches.set(some(&["b"]), 1);
        watches.send_next(&BUDGET, &holdings).unwrap();
        let refused = watches.refused();
        assert_eq!((refused.owners, refused.lost), (vec![1], false));
        assert_eq!(*watches.wanted(), some(&["a"]));
        watches.add(some(&["c"]), 2).unwrap();
        let frame = watches.send_next(&BUDGET, &holdings).unwrap();
        assert!(!frame.set && names(&frame) == ["c"]);
        assert_eq!(watches.refused().owners, [2]);
        assert_eq!(*watches.wanted(), some(&["a"]));
        assert!(watches.is_settled());
        let other = BTreeMap::from([("a".to_owned(), watch("a", &["of:other"]))]);
        assert!(watches.add(other, 3).is_err());
    }

    #[test]
    fn what_was_under_way_is_stated_anew_after_a_reconnect() {
        let mut watches = Watches::new(BTreeMap::new());
        let holdings = Holdings::default();
        watches.attached(false, true);
        assert!(watches.is_settled(), "nothing to state");
        watches.add(some(&["a"]), 1).unwrap();
        watches.send_next(&BUDGET, &holdings).unwrap();
        watches.detached();
        assert!(watches.send_next(&BUDGET, &holdings).is_none());
        watches.attached(true, true);
        let frame = watches.send_next(&BUDGET, &holdings).unwrap();
        assert!(frame.set && names(&frame) == ["a"]);
        assert_eq!(watches.accepted(&mut empty_sync()), [1]);
        watches.detached();
        watches.attached(true, true);
        assert!(watches.is_settled(), "resumed, and nothing was under way");
    }

    #[test]
    fn a_change_of_mind_supersedes_what_is_under_way() {
        let mut watches = Watches::new(BTreeMap::new());
        let holdings = Holdings::default();
        watches.attached(false, true);
        watches.set(many(10), 1);
        watches.send_next(&BUDGET, &holdings).unwrap();
        watches.set(some(&["z"]), 2);
        assert!(watches.accepted(&mut empty_sync()).is_empty());
        let frame = watches.send_next(&BUDGET, &holdings).unwrap();
        assert!(frame.set && names(&frame) == ["z"]);
        watches.postponed();
        assert_eq!(watches.send_next(&BUDGET, &holdings), Some(frame));
        assert_eq!(watches.accepted(&mut empty_sync()), [1, 2]);
    }

    #[test]
    fn a_restore_that_is_refused_loses_the_watches() {
        let mut watches: Watches<()> = Watches::new(some(&["a"]));
        watches.attached(false, true);
        watches.send_next(&BUDGET, &Holdings::default()).unwrap();
        assert!(watches.refused().lost);
        assert!(watches.wanted().is_empty() && watches.is_settled());
    }
}
