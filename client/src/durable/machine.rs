//! The whole state of one durable session, without a clock, randomness or a socket: what to send next, and what an arriving
//! message means.

use std::collections::BTreeMap;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::budget::FrameBudget;
use super::commits::CommitQueue;
use super::events::{Event, EventQueue};
use super::holdings::Holdings;
use super::retry::Backoff;
use super::saved::SavedSession;
use super::watches::{Frame, Watches};
use crate::inner::Delivery;
use crate::{ClientError, Denied, Did, Effect, Ended};

/// The tag of answers to watch mutations. Commits are tagged with their `localSeq`, which starts at 1.
pub(crate) const WATCH_TAG: u64 = 0;

/// What belongs to a commit until its verdict.
#[derive(Debug)]
pub(crate) struct CommitOwner {
    /// `None` for a commit of an earlier life.
    pub(crate) answer: Option<oneshot::Sender<Result<Value, ClientError>>>,
    /// Its share of what may wait.
    pub(crate) room: Vec<OwnedSemaphorePermit>,
}

/// Who waits for a watch mutation.
pub(crate) type WatchOwner = oneshot::Sender<Result<(), ClientError>>;

/// What the session would send now.
#[derive(Debug)]
pub(crate) enum Step {
    /// A watch mutation.
    Watch(Frame),
    /// `transact`.
    Commit(u64, Value),
    /// Nothing before then.
    Hold(Instant),
    /// Nothing until something changes.
    Idle,
    /// Nothing any more: the application closed the session, and everything is answered.
    Close,
}

/// What an arriving message means for the session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// It goes on.
    On,
    /// The toolshed ended it, with its reason.
    Revoked(String),
    /// The toolshed does not know it any more.
    Unknown,
}

/// Whether the event queue had to drop syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    None,
    /// Syncs are dropped until the application has read what waits.
    Open,
    /// What was dropped is being fetched.
    Closing,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Machine {
    identity: Option<(String, String)>,
    seen_seq: u64,
    /// The newest state of syncs delivered while a gap is open or closing: seen only once it has closed.
    seen_after_gap: u64,
    holdings: Holdings,
    watches: Watches<WatchOwner>,
    commits: CommitQueue<CommitOwner>,
    events: EventQueue,
    gap: Gap,
    /// What [`Event::Rebuilt`] will say once the watches are known again.
    rebuilding: Option<(bool, bool)>,
    attached: bool,
    backoff: Backoff,
    held_until: Option<Instant>,
    closing: bool,
    ended: Option<Ended>,
    watch_cap: usize,
}

impl Machine {
    pub(crate) fn new(saved: Option<SavedSession>, window: usize) -> Result<Self, ClientError> {
        let Some(saved) = saved else {
            return Ok(Self::with(
                None,
                CommitQueue::new(1, window),
                BTreeMap::new(),
                Holdings::default(),
                0,
            ));
        };
        let mut commits = CommitQueue::new(1, window);
        for commit in saved.commits {
            let seq = commit.get("localSeq").and_then(Value::as_u64);
            let seq = seq
                .filter(|seq| *seq >= commits.next_local_seq())
                .ok_or(ClientError::Usage("saved commits are not in order"))?;
            let owner = CommitOwner {
                answer: None,
                room: Vec::new(),
            };
            commits.restore(seq, commit, owner);
        }
        commits.skip_to(saved.next_local_seq);
        let name = |watch: &Value| Some(watch.get("id")?.as_str()?.to_owned());
        let watches = saved
            .watches
            .into_iter()
            .map(|watch| Some((name(&watch)?, watch)))
            .collect::<Option<_>>()
            .ok_or(ClientError::Usage("a saved watch has no identifier"))?;
        let holdings = Holdings::restore(&saved.holdings);
        let identity = Some((saved.session_id, saved.session_token));
        let mut machine = Self::with(identity, commits, watches, holdings, saved.seen_seq);
        // Between the two lives anything may have changed.
        machine.events.interrupt();
        Ok(machine)
    }

    fn with(
        identity: Option<(String, String)>,
        commits: CommitQueue<CommitOwner>,
        watches: BTreeMap<String, Value>,
        holdings: Holdings,
        seen_seq: u64,
    ) -> Self {
        Self {
            identity,
            seen_seq,
            seen_after_gap: 0,
            holdings,
            watches: Watches::new(watches),
            commits,
            events: EventQueue::default(),
            gap: Gap::None,
            rebuilding: None,
            attached: false,
            backoff: Backoff::default(),
            held_until: None,
            closing: false,
            ended: None,
            watch_cap: usize::MAX,
        }
    }

    // --- opening and losing ---

    /// Whether the toolshed has named the session before.
    pub(crate) fn is_known(&self) -> bool {
        self.identity.is_some()
    }

    /// Members of `session` that resume it.
    pub(crate) fn resume_members(&self) -> Map<String, Value> {
        let mut members = Map::new();
        if let Some((id, token)) = &self.identity {
            members.insert("sessionId".to_owned(), id.as_str().into());
            members.insert("sessionToken".to_owned(), token.as_str().into());
            members.insert("seenSeq".to_owned(), self.seen_seq.into());
        }
        members
    }

    /// The open was answered with `ok`. `in_doubt`: an open before it was lost with its answer. What the toolshed resumes then
    /// may be that open's session, which knows no watches yet.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] for an answer that is none, or that names another session than the one asked for.
    pub(crate) fn attach(
        &mut self,
        ok: &mut Value,
        in_doubt: bool,
        budget: (&FrameBudget, usize),
        now: Instant,
    ) -> Result<(), ClientError> {
        let wrong = ClientError::Protocol("session.open answer");
        let text = |name: &str| ok.get(name).and_then(Value::as_str).map(str::to_owned);
        let (Some(id), Some(token)) = (text("sessionId"), text("sessionToken")) else {
            return Err(wrong);
        };
        let known = match &self.identity {
            // Another name would be another life for every `localSeq`.
            Some((earlier, _)) if *earlier != id => return Err(wrong),
            Some(_) => true,
            None => false,
        };
        self.identity = Some((id, token));
        let resumed = ok.get("resumed") == Some(&Value::Bool(true));
        if let Some(server) = ok.get("serverSeq").and_then(Value::as_u64) {
            // A store that was restored from a copy may be behind.
            self.seen_seq = self.seen_seq.min(server);
        }
        let kept = resumed && known && !in_doubt && self.watches.is_settled();
        let whole = !kept && budget.0.max_holdings == 0 && !self.watches.wanted().is_empty();
        if whole {
            self.holdings.clear();
        }
        self.attached = true;
        self.backoff.works(now);
        self.held_until = None;
        self.watch_cap = budget.1;
        if known {
            self.rebuilding = Some((resumed, whole));
        }
        if let Some(sync) = ok.get_mut("sync").map(Value::take) {
            let len = sync.to_string().len();
            self.take_sync(sync, len, true);
        }
        self.watches.attached(kept, self.holdings.is_empty());
        self.finish_rebuilding();
        Ok(())
    }

    /// The connection, or the session at the toolshed, ended.
    pub(crate) fn detach(&mut self) {
        if !std::mem::take(&mut self.attached) {
            return;
        }
        self.commits.detached();
        self.watches.detached();
        self.rebuilding = None;
        self.events.interrupt();
        if self.gap == Gap::Closing {
            self.gap = Gap::None;
        }
    }

    /// Ends the session for everybody who waits on it.
    pub(crate) fn end(&mut self, ended: &Ended) {
        if self.ended.is_some() {
            return;
        }
        self.detach();
        self.ended = Some(ended.clone());
        let error = || ClientError::Ended(ended.clone());
        for (local_seq, owner) in self.commits.drain() {
            tell(&mut self.events, local_seq, owner, Err(error()));
        }
        for owner in self.watches.drain() {
            let _ = owner.send(Err(error()));
        }
        self.events.push(Event::Ended(ended.clone()), 0);
    }

    pub(crate) fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    // --- sending ---

    /// What to send now.
    pub(crate) fn next_step(&mut self, budget: &FrameBudget, now: Instant) -> Step {
        if let Some(until) = self.held_until {
            if now < until {
                return Step::Hold(until);
            }
            self.held_until = None;
        }
        // The answer to a watch mutation can be long: the application is to have read what waits.
        if self.events.is_roomy()
            && let Some(frame) = self.watches.send_next(budget, &self.holdings)
        {
            return Step::Watch(frame);
        }
        if let Some((seq, commit)) = self.commits.send_next() {
            return Step::Commit(seq, commit);
        }
        if self.closing && self.commits.is_empty() {
            return Step::Close;
        }
        Step::Idle
    }

    /// Whether all that was watched is known to the toolshed again.
    pub(crate) fn is_restored(&self) -> bool {
        // An application that does not read is not waited for.
        self.watches.is_settled() || !self.events.is_roomy()
    }

    /// A step could not be sent, and never can.
    pub(crate) fn unsendable(&mut self, tag: u64, error: ClientError) {
        if tag != WATCH_TAG {
            if let Some(owner) = self.commits.judged(tag) {
                tell(&mut self.events, tag, owner, Err(error));
            }
            return;
        }
        let denied = Denied {
            name: "UsageError".to_owned(),
            message: error.to_string(),
            retriable: false,
            error: Value::Null,
        };
        self.watches_refused(denied, |_| error.clone());
    }

    /// The application wants no more: everything waiting is still settled.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    pub(crate) fn is_closed_and_settled(&self) -> bool {
        self.closing && self.commits.is_empty()
    }

    // --- arriving ---

    /// A message of the session's stream.
    pub(crate) fn deliver(&mut self, delivery: Delivery, now: Instant, random: u64) -> Flow {
        match delivery {
            Delivery::Effect(Effect::Sync(sync), len) => self.take_sync(sync, len, false),
            Delivery::Effect(Effect::Other(other), len) => self.offer(Event::Other(other), len),
            Delivery::Effect(Effect::Revoked(reason), _) => return Flow::Revoked(reason),
            Delivery::Answer {
                tag: WATCH_TAG,
                outcome,
                len,
            } => return self.watch_answered(outcome, len, now, random),
            Delivery::Answer { tag, outcome, .. } => {
                return self.commit_answered(tag, outcome, now, random);
            }
        }
        Flow::On
    }

    fn commit_answered(
        &mut self,
        local_seq: u64,
        outcome: Result<Value, Denied>,
        now: Instant,
        random: u64,
    ) -> Flow {
        let outcome = match outcome {
            Err(denied) if denied.retriable => {
                self.commits.postponed(local_seq);
                self.hold(now, random);
                return Flow::On;
            }
            // Not a verdict: the commit found no session to be judged in.
            Err(denied) if is_session_fault(&denied) => {
                self.commits.postponed(local_seq);
                return Flow::Unknown;
            }
            Err(denied) => Err(ClientError::Denied(denied)),
            Ok(answer) => {
                self.holdings.committed(&answer);
                Ok(answer)
            }
        };
        if let Some(owner) = self.commits.judged(local_seq) {
            tell(&mut self.events, local_seq, owner, outcome);
        }
        Flow::On
    }

    fn watch_answered(
        &mut self,
        outcome: Result<Value, Denied>,
        len: usize,
        now: Instant,
        random: u64,
    ) -> Flow {
        match outcome {
            Ok(mut ok) => {
                let mut sync = ok.get_mut("sync").map(Value::take).unwrap_or_default();
                let owners = self.watches.accepted(&mut sync);
                if sync.is_object() {
                    self.take_sync(sync, len, true);
                }
                for owner in owners {
                    let _ = owner.send(Ok(()));
                }
            }
            Err(denied) if denied.retriable => {
                self.watches.postponed();
                self.hold(now, random);
            }
            Err(denied) if is_session_fault(&denied) => {
                self.watches.postponed();
                return Flow::Unknown;
            }
            Err(denied) => {
                self.watches_refused(denied, |denied| ClientError::Denied(denied.clone()));
            }
        }
        self.finish_rebuilding();
        Flow::On
    }

    fn watches_refused(&mut self, denied: Denied, error: impl Fn(&Denied) -> ClientError) {
        let refused = self.watches.refused();
        for owner in refused.owners {
            let _ = owner.send(Err(error(&denied)));
        }
        if refused.lost {
            self.events.push(Event::WatchesLost(denied), 0);
        }
        self.finish_rebuilding();
    }

    fn hold(&mut self, now: Instant, random: u64) {
        self.held_until = Some(now + self.backoff.next_hold(now, random));
        self.backoff.works(now);
    }

    /// `answer`: an empty one is left out, since nobody waits for it; an empty push confirms verdicts.
    fn take_sync(&mut self, sync: Value, len: usize, answer: bool) {
        let to = sync.get("toSeq").and_then(Value::as_u64).unwrap_or(0);
        let bare = |name: &str| {
            sync.get(name)
                .and_then(Value::as_array)
                .is_none_or(Vec::is_empty)
        };
        let empty = answer && bare("upserts") && bare("removes");
        if self.gap == Gap::Open {
            return;
        }
        if !empty {
            if !self.has_room(len) {
                return;
            }
            self.holdings.apply(&sync);
            self.events.push(Event::Sync(sync), len);
        }
        match self.gap {
            Gap::None => self.seen_seq = self.seen_seq.max(to),
            Gap::Open | Gap::Closing => self.seen_after_gap = self.seen_after_gap.max(to),
        }
    }

    fn offer(&mut self, event: Event, len: usize) {
        if self.gap != Gap::Open && self.has_room(len) {
            self.events.push(event, len);
        }
    }

    /// Whether an event fits; if not, a gap opens.
    fn has_room(&mut self, len: usize) -> bool {
        if self.events.fits(len) {
            return true;
        }
        self.events.interrupt();
        self.gap = Gap::Open;
        false
    }

    fn finish_rebuilding(&mut self) {
        if !self.watches.is_settled() || self.gap == Gap::Open {
            return;
        }
        if self.gap == Gap::Closing {
            self.gap = Gap::None;
            self.seen_seq = self.seen_seq.max(self.seen_after_gap);
        }
        if let Some((resumed, whole)) = self.rebuilding.take() {
            self.events.rebuilt(resumed, whole);
        }
    }

    // --- the application's side ---

    /// The next event. The second value: there is something to send because of it.
    pub(crate) fn next_event(&mut self) -> (Option<Event>, bool) {
        let was_roomy = self.events.is_roomy();
        let event = self.events.pop();
        if self.gap == Gap::Open && self.events.is_empty() {
            self.seen_after_gap = self.seen_seq;
            self.gap = Gap::Closing;
            self.rebuilding.get_or_insert((true, false));
            self.watches.redo();
            return (event, true);
        }
        (event, !was_roomy && self.events.is_roomy())
    }

    /// Queues a commit.
    ///
    /// # Errors
    /// [`ClientError::Ended`].
    pub(crate) fn commit(&mut self, commit: Value, owner: CommitOwner) -> Result<u64, ClientError> {
        self.check_open()?;
        Ok(self.commits.push(commit, owner))
    }

    /// Replaces or adds watches.
    ///
    /// # Errors
    /// [`ClientError::Ended`], [`ClientError::Usage`].
    pub(crate) fn watch(
        &mut self,
        watches: BTreeMap<String, Value>,
        replace: bool,
        owner: WatchOwner,
    ) -> Result<(), ClientError> {
        self.check_open()?;
        let wanted = self.watches.wanted();
        let more = watches.keys().filter(|id| !wanted.contains_key(*id));
        let count = if replace {
            watches.len()
        } else {
            wanted.len() + more.count()
        };
        if count > self.watch_cap {
            return Err(ClientError::Usage("more watches than a session may have"));
        }
        if replace {
            self.watches.set(watches, owner);
            return Ok(());
        }
        self.watches.add(watches, owner)
    }

    fn check_open(&self) -> Result<(), ClientError> {
        match &self.ended {
            Some(ended) => Err(ClientError::Ended(ended.clone())),
            None if self.closing => Err(ClientError::Ended(Ended::Closed)),
            None => Ok(()),
        }
    }

    /// Bytes of all watches.
    pub(crate) fn watches_len(&self) -> usize {
        self.watches
            .wanted()
            .values()
            .map(super::watches::length)
            .sum()
    }

    /// The session as it can be kept by an application that has read the events up to now; `None` before its first open.
    pub(crate) fn save(&self, space: Did, principal: Did) -> Option<SavedSession> {
        let (session_id, session_token) = self.identity.clone()?;
        let before = self.events.unread().next().map(|sync| {
            let from = sync.get("fromSeq").and_then(Value::as_u64);
            from.unwrap_or(0)
        });
        Some(SavedSession {
            space,
            principal,
            session_id,
            session_token,
            seen_seq: before.map_or(self.seen_seq, |from| from.min(self.seen_seq)),
            next_local_seq: self.commits.next_local_seq(),
            commits: self.commits.unanswered().cloned().collect(),
            watches: self.watches.wanted().values().cloned().collect(),
            holdings: self.holdings.declare_before(self.events.unread()),
        })
    }
}

/// Tells whoever waits for a verdict, or the application at large.
fn tell(
    events: &mut EventQueue,
    local_seq: u64,
    owner: CommitOwner,
    outcome: Result<Value, ClientError>,
) {
    let CommitOwner { answer, room } = owner;
    let unheard = match answer {
        Some(answer) => answer.send(outcome).err(),
        None => Some(outcome),
    };
    if let Some(outcome) = unheard {
        // Its place among what may wait is free only when it has been read. What the commit wrote is not repeated.
        let outcome = outcome.map(|answer| json!({ "seq": answer.get("seq") }));
        events.push_with(Event::Answered { local_seq, outcome }, 0, room);
    }
}

/// The toolshed says that it has no such session, or not any more.
pub(crate) fn is_session_fault(denied: &Denied) -> bool {
    matches!(denied.name.as_str(), "SessionError" | "SessionRevokedError")
}

#[cfg(test)]
mod tests;
