//! What happens, in which order: drawn from a seed.

use std::time::Duration;

/// Clients of one schedule.
pub(super) const CLIENTS: usize = 4;

/// Sessions of one schedule, at most.
pub(super) const SESSIONS: usize = 8;

/// Steps of one schedule.
const STEPS: std::ops::Range<u64> = 12..24;

/// One thing that happens. Numbers of sessions count those opened so far; a step that makes no sense then is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A client opens a session of a space, with so many commits in flight.
    Open {
        client: usize,
        space: usize,
        in_flight: usize,
    },
    /// A session makes commits, of which the answers are not waited for; large ones are longer than an upload window.
    Commit {
        session: usize,
        count: u64,
        large: bool,
    },
    /// A session makes a commit that rests on what has long changed.
    Stale { session: usize },
    /// A session is kept outside of its process, with whatever is unanswered.
    Park { session: usize },
    /// A client goes on with a parked session.
    Resume { session: usize, client: usize },
    /// A client withdraws the key of a space's owner.
    Release { client: usize, space: usize },
    /// A client's newest connection ends.
    Cut { client: usize },
    /// The worker of a client's newest connection is killed.
    KillWorker { client: usize },
    /// A role is killed.
    KillRole(&'static str),
    /// A toolshed is stopped as by a debugger, until it is needed or woken.
    Stall { toolshed: usize },
    /// It goes on.
    Wake { toolshed: usize },
    /// A toolshed ends at once and is started again.
    KillToolshed { toolshed: usize },
    /// A toolshed ends as asked and is started again.
    RestartToolshed { toolshed: usize },
    /// A space's epoch advances; it stays where it is.
    Advance { space: usize },
    /// A space moves to the other toolshed.
    Move { space: usize },
    /// Nothing happens for a while.
    Pause(Duration),
}

/// How a client connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manner {
    pub(super) dedicated: bool,
    /// Whether its leases are so short that they are renewed within the schedule.
    pub(super) renews: bool,
    pub(super) compression: bool,
    pub(super) streams: bool,
}

/// Everything that was drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    pub(super) manners: [Manner; CLIENTS],
    pub(super) steps: Vec<Step>,
}

impl Schedule {
    pub(super) fn draw(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let manners = std::array::from_fn(|_| Manner {
            dedicated: dice.one_in(2),
            renews: dice.one_in(2),
            compression: dice.one_in(2),
            streams: !dice.one_in(4),
        });
        // Somebody is there from the start.
        let mut steps = vec![dice.open(), dice.open()];
        let mut opened = 2;
        let count = STEPS.start + dice.below(STEPS.end - STEPS.start);
        while u64::try_from(steps.len()).is_ok_and(|len| len < count) {
            let step = dice.step(opened);
            opened += usize::from(matches!(step, Step::Open { .. }));
            steps.push(step);
        }
        Self {
            seed,
            manners,
            steps,
        }
    }
}

/// SplitMix64: small, and good enough to draw steps.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn place(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(u64::try_from(bound).unwrap_or(1))).unwrap_or_default()
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    fn open(&mut self) -> Step {
        Step::Open {
            client: self.place(CLIENTS),
            space: self.place(2),
            in_flight: if self.one_in(2) { 1 } else { 4 },
        }
    }

    fn step(&mut self, opened: usize) -> Step {
        let session = self.place(opened);
        let client = self.place(CLIENTS);
        let (space, toolshed) = (self.place(2), self.place(2));
        match self.below(100) {
            0..10 if opened < SESSIONS => self.open(),
            0..45 => Step::Commit {
                session,
                count: 1 + self.below(6),
                large: self.one_in(8),
            },
            45..50 => Step::Stale { session },
            50..55 => Step::Park { session },
            55..60 => Step::Resume { session, client },
            60..64 => Step::Release { client, space },
            64..69 => Step::Cut { client },
            69..74 => Step::KillWorker { client },
            74..78 => Step::KillRole(match self.below(5) {
                0 => "link-agent",
                1 => "directory-broker",
                2 => "spawner",
                3 => "key-agent",
                _ => "listener",
            }),
            78..82 => Step::Stall { toolshed },
            82..84 => Step::Wake { toolshed },
            84..87 => Step::KillToolshed { toolshed },
            87..89 => Step::RestartToolshed { toolshed },
            89..91 => Step::Advance { space },
            91..93 => Step::Move { space },
            _ => Step::Pause(Duration::from_micros(self.below(20_000))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_schedule() {
        assert_eq!(Schedule::draw(7), Schedule::draw(7));
        assert_ne!(Schedule::draw(7).steps, Schedule::draw(8).steps);
    }

    #[test]
    fn every_kind_of_step_is_drawn() {
        let mut kinds = std::collections::BTreeSet::new();
        for seed in 0..100 {
            for step in Schedule::draw(seed).steps {
                let words = format!("{step:?}");
                let name = words.split([' ', '(']).next().unwrap().to_owned();
                kinds.insert(name);
            }
        }
        assert_eq!(kinds.len(), 16, "{kinds:?}");
    }
}
