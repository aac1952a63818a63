//! Whom an operator has revoked, and which state of the list a decision was made by.
//!
//! The list is looked at all the time, and a decision takes time: a toolshed is asked, an answer is sent. So each lease
//! carries the generation of the list that it was granted under, and is judged again under a later one, at every step.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use memory_config::{ConfigErrors, REVOCATION_FILE, RevocationList, RevocationVersion};
use memory_wire::{Did, Reason};

use crate::Shared;
use crate::clock::Moment;

/// How often the file is looked at. A change is in force within 500 ms (`docs/operations.md`, revoking a principal).
const INTERVAL: Duration = Duration::from_millis(200);

/// How often a file that cannot be used, and has not changed, is read again: what is wrong may be its mode.
const RETRY: Duration = Duration::from_secs(1);

/// Bytes up to which a file is read in between; a longer one is read beside, since each key is checked to be a point.
const MAX_INLINE_LEN: u64 = 16 << 10;

/// A state of the list. It only ever grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Generation(u64);

/// The list in force.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    list: Rc<RevocationList>,
    generation: Generation,
    /// Whether the newest version of the file cannot be used. The list is then the last that could.
    is_stale: bool,
}

impl Revocations {
    /// Principals on the list in force.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether a new statement of `principal` may be taken; under which state of the list it is.
    ///
    /// # Errors
    /// [`Reason::PrincipalRevoked`]; [`Reason::RevocationUnreadable`] while nobody can say.
    pub(crate) fn admits(&self, principal: &Did) -> Result<Generation, Reason> {
        if self.list.contains(principal) {
            return Err(Reason::PrincipalRevoked);
        }
        if self.is_stale {
            return Err(Reason::RevocationUnreadable);
        }
        Ok(self.generation)
    }

    /// Whether what was granted to `principal` under an earlier state still stands.
    ///
    /// # Errors
    /// [`Reason::PrincipalRevoked`].
    pub(crate) fn confirms(&self, principal: &Did, granted: Generation) -> Result<(), Reason> {
        if granted != self.generation && self.list.contains(principal) {
            return Err(Reason::PrincipalRevoked);
        }
        Ok(())
    }

    /// Puts another state of the list in force. Whoever it names has to go: see [`crate::agent::Agent::apply`].
    pub(crate) fn replace(&mut self, list: RevocationList) -> Rc<RevocationList> {
        self.list = Rc::new(list);
        self.generation = Generation(self.generation.0.saturating_add(1));
        self.is_stale = false;
        Rc::clone(&self.list)
    }

    /// Notes that the newest version of the file cannot be used.
    pub(crate) fn close(&mut self) {
        self.is_stale = true;
    }
}

/// When to read the file again.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// The version read last; `None` when it was not even known whether there is one.
    last: Option<RevocationVersion>,
    /// When it is read again all the same. `None` when it was good.
    retry: Option<Instant>,
}

impl Schedule {
    /// Whether the file, whose version is `found`, is to be read now.
    pub(crate) fn is_due(&self, found: Option<&RevocationVersion>, now: Instant) -> bool {
        found.is_none()
            || found != self.last.as_ref()
            || self.retry.is_some_and(|retry| retry <= now)
    }

    /// Notes that `version` was read, and is good.
    pub(crate) fn succeeded(&mut self, version: RevocationVersion) {
        *self = Self {
            last: Some(version),
            retry: None,
        };
    }

    /// Notes that `version` was read in vain.
    pub(crate) fn failed(&mut self, version: Option<RevocationVersion>, now: Instant) {
        *self = Self {
            last: version,
            retry: Some(now + RETRY),
        };
    }
}

/// The list of a `state_dir`, followed.
#[derive(Debug)]
pub(crate) struct Watch {
    path: PathBuf,
    schedule: Schedule,
    /// What was last wrong, so that it is told once.
    fault: Option<String>,
}

impl Watch {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self {
            path: state_dir.join(REVOCATION_FILE),
            schedule: Schedule::default(),
            fault: None,
        }
    }

    /// Follows the file for ever.
    pub(crate) async fn follow(mut self, shared: Rc<Shared>) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            self.look(&shared).await;
        }
    }

    /// Looks whether the file has changed, and puts it in force if it has. One that cannot be used at the start is as bad as one
    /// that cannot be used later, and as easily mended: it does not keep the role from starting.
    pub(crate) async fn look(&mut self, shared: &Shared) {
        let found = RevocationVersion::of(&self.path).ok();
        if !self
            .schedule
            .is_due(found.as_ref(), Moment::now().monotonic)
        {
            return;
        }
        match read(&self.path, found.as_ref()).await {
            Ok((list, version)) => {
                self.schedule.succeeded(version);
                self.fault = None;
                apply(shared, list);
            }
            Err(errors) => {
                self.schedule.failed(found, Moment::now().monotonic);
                shared.agent.borrow_mut().revocations.close();
                let fault = errors.to_string();
                if self.fault.as_ref() != Some(&fault) {
                    complain(&errors);
                    self.fault = Some(fault);
                }
            }
        }
    }
}

/// Puts a list in force, and ends every context that remembers somebody on it.
fn apply(shared: &Shared, list: RevocationList) {
    let now = Moment::now();
    let ended = shared.agent.borrow_mut().apply(list, now);
    let agent = shared.agent.borrow();
    tracing::info!(
        reason = "revocations",
        revoked = agent.revocations.list.len(),
        generation = agent.revocations.generation.0,
        ended,
        "the revocation list has been read"
    );
}

async fn read(
    path: &Path,
    found: Option<&RevocationVersion>,
) -> Result<(RevocationList, RevocationVersion), ConfigErrors> {
    let is_long = matches!(found, Some(RevocationVersion::File(file)) if file.len > MAX_INLINE_LEN);
    if !is_long {
        return RevocationList::load(path);
    }
    let owned = path.to_owned();
    match tokio::task::spawn_blocking(move || RevocationList::load(&owned)).await {
        Ok(read) => read,
        // No thread could be had, or it died: here then.
        Err(_) => RevocationList::load(path),
    }
}

/// Says where the file is wrong.
fn complain(errors: &ConfigErrors) {
    let reason = Reason::RevocationUnreadable;
    let faults = errors.0.len();
    if let Some(first) = errors.0.first() {
        tracing::error!(
            %reason,
            file = %first.file.display(),
            line = first.line,
            column = first.column,
            key = first.key,
            found = first.found,
            allowed = first.allowed,
            faults,
            "the revocation list cannot be used: nobody is admitted anew until it can"
        );
    }
}

#[cfg(test)]
#[path = "revocation_tests.rs"]
mod tests;
