//! Turns: something that one at a time can do, asked for by many.
//!
//! Two ranks wait in a line each, first come first served. The first rank goes before the ordinary one, also before whoever
//! came earlier, but what passes the oldest ordinary request is bounded by an allowance: then that one is next. A gate may
//! keep a request from its turn until there is what it needs; nobody takes the turn of a request that the gate keeps
//! waiting, but for the first rank within that allowance.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::mem::replace;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// What must not wait behind bulk.
    First,
    /// Everything else.
    Ordinary,
}

/// Whether a turn may begin.
pub(crate) trait Gate {
    /// Whether there is what a request of this rank and cost needs. For the same cost the first rank never needs more.
    fn is_open(&self, rank: Rank, cost: u32) -> bool;
}

/// A gate that is always open.
impl Gate for () {
    fn is_open(&self, _: Rank, _: u32) -> bool {
        true
    }
}

/// See the module documentation.
pub(crate) struct Turns<G> {
    gate: G,
    /// How much cost of the first rank may pass the oldest ordinary request.
    allowance: u32,
    line: RefCell<Line>,
    is_taken: Cell<bool>,
}

/// Who waits.
#[derive(Default)]
struct Line {
    /// Numbers requests in the order of arrival.
    arrivals: u64,
    first: VecDeque<Rc<Place>>,
    ordinary: VecDeque<Rc<Place>>,
    /// Cost of what has passed the oldest ordinary request.
    passed: u32,
}

/// A place in line.
struct Place {
    arrival: u64,
    rank: Rank,
    cost: u32,
    state: RefCell<State>,
}

enum State {
    /// In line, with whom to wake.
    Waiting(Option<Waker>),
    /// It has the turn and does not know yet.
    Given,
    /// Fetched or given up.
    Over,
}

impl Line {
    fn of(&mut self, rank: Rank) -> &mut VecDeque<Rc<Place>> {
        match rank {
            Rank::First => &mut self.first,
            Rank::Ordinary => &mut self.ordinary,
        }
    }

    /// Takes whoever is next out of the line, if the gate lets it.
    fn next(&mut self, gate: &impl Gate, allowance: u32) -> Option<Rc<Place>> {
        let passes = match (self.first.front(), self.ordinary.front()) {
            (None, _) => None,
            (Some(_), None) => Some(0),
            (Some(first), Some(oldest)) if first.arrival < oldest.arrival => Some(0),
            (Some(first), Some(_)) => {
                let passed = self.passed.saturating_add(first.cost);
                (passed <= allowance).then_some(first.cost)
            }
        };
        let rank = match passes {
            Some(_) => Rank::First,
            None => Rank::Ordinary,
        };
        let line = self.of(rank);
        let place = line.pop_front_if(|place| gate.is_open(rank, place.cost))?;
        self.passed = match passes {
            Some(cost) => self.passed.saturating_add(cost),
            None => 0,
        };
        Some(place)
    }
}

impl<G: Gate> Turns<G> {
    pub(crate) fn new(gate: G, allowance: u32) -> Rc<Self> {
        Rc::new(Self {
            gate,
            allowance,
            line: RefCell::default(),
            is_taken: Cell::new(false),
        })
    }

    pub(crate) fn gate(&self) -> &G {
        &self.gate
    }

    /// Whether somebody has the turn.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.get()
    }

    /// Gets in line, with this call; out of it when dropped.
    pub(crate) fn wait(self: &Rc<Self>, rank: Rank, cost: u32) -> Wait<G> {
        let place = {
            let mut line = self.line.borrow_mut();
            line.arrivals += 1;
            let place = Rc::new(Place {
                arrival: line.arrivals,
                rank,
                cost,
                state: RefCell::new(State::Waiting(None)),
            });
            line.of(rank).push_back(Rc::clone(&place));
            place
        };
        self.settle();
        Wait {
            turns: Rc::clone(self),
            place,
        }
    }

    /// Gives the turn to whoever is next. To be called when the gate may have opened.
    pub(crate) fn settle(&self) {
        if self.is_taken.get() {
            return;
        }
        let next = self.line.borrow_mut().next(&self.gate, self.allowance);
        let Some(place) = next else {
            return;
        };
        self.is_taken.set(true);
        let before = replace(&mut *place.state.borrow_mut(), State::Given);
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }

    fn release(&self) {
        self.is_taken.set(false);
        self.settle();
    }

    /// Takes a place out of the line.
    fn leave(&self, place: &Rc<Place>) {
        let mut line = self.line.borrow_mut();
        line.of(place.rank)
            .retain(|other| !Rc::ptr_eq(other, place));
        if line.ordinary.is_empty() {
            line.passed = 0;
        }
    }
}

impl<G> fmt::Debug for Turns<G> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.line.borrow();
        formatter
            .debug_struct("Turns")
            .field("is_taken", &self.is_taken)
            .field("first", &line.first.len())
            .field("ordinary", &line.ordinary.len())
            .finish()
    }
}

/// A place in line, given up when it is dropped.
#[must_use = "a place in line is given up when it is dropped"]
pub(crate) struct Wait<G: Gate> {
    turns: Rc<Turns<G>>,
    place: Rc<Place>,
}

impl<G: Gate> Future for Wait<G> {
    type Output = Turn<G>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Turn<G>> {
        let mut state = self.place.state.borrow_mut();
        match replace(&mut *state, State::Over) {
            State::Given => Poll::Ready(Turn {
                turns: Rc::clone(&self.turns),
            }),
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            // Polled again although it was over: it never is anything again.
            State::Over => Poll::Pending,
        }
    }
}

impl<G: Gate> Drop for Wait<G> {
    fn drop(&mut self) {
        let state = replace(&mut *self.place.state.borrow_mut(), State::Over);
        match state {
            State::Waiting(_) => {
                self.turns.leave(&self.place);
                self.turns.settle();
            }
            State::Given => self.turns.release(),
            State::Over => {}
        }
    }
}

/// The turn; over when dropped.
pub(crate) struct Turn<G: Gate> {
    turns: Rc<Turns<G>>,
}

impl<G: Gate> Turn<G> {
    pub(crate) fn gate(&self) -> &G {
        &self.turns.gate
    }
}

impl<G: Gate> Drop for Turn<G> {
    fn drop(&mut self) {
        self.turns.release();
    }
}

impl<G: Gate> fmt::Debug for Turn<G> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Turn")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A gate that lets through what costs no more than this; the ordinary need twice as much.
    #[derive(Default)]
    struct Purse(Cell<u32>);

    impl Gate for Purse {
        fn is_open(&self, rank: Rank, cost: u32) -> bool {
            match rank {
                Rank::First => cost <= self.0.get(),
                Rank::Ordinary => cost * 2 <= self.0.get(),
            }
        }
    }

    fn poll<G: Gate>(wait: &mut Wait<G>) -> Option<Turn<G>> {
        match Pin::new(wait).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn one_at_a_time_and_first_come_first_served() {
        let turns = Turns::new((), 0);
        let mut waits = [1, 2, 3].map(|_| turns.wait(Rank::Ordinary, 1));
        for index in 0..3 {
            for later in &mut waits[index + 1..] {
                assert!(poll(later).is_none());
            }
            let turn = poll(&mut waits[index]);
            assert!(turn.is_some() && turns.is_taken());
        }
        assert!(!turns.is_taken());
    }

    #[test]
    fn the_first_rank_passes_within_its_allowance_and_no_further() {
        let turns = Turns::new((), 2);
        let turn = poll(&mut turns.wait(Rank::Ordinary, 1));
        let mut ordinary = [1, 2].map(|_| turns.wait(Rank::Ordinary, 1));
        let mut first = [1, 2, 3, 4].map(|_| turns.wait(Rank::First, 1));
        drop(turn);
        let mut order = Vec::new();
        for _ in 0..6 {
            let was = order.len();
            for (number, wait) in first.iter_mut().enumerate() {
                order.extend(poll(wait).map(|_turn| format!("first {number}")));
            }
            for (number, wait) in ordinary.iter_mut().enumerate() {
                order.extend(poll(wait).map(|_turn| format!("ordinary {number}")));
            }
            assert!(order.len() > was || order.len() == 6, "{order:?}");
        }
        assert_eq!(
            order,
            [
                "first 0",
                "first 1",
                "ordinary 0",
                "first 2",
                "first 3",
                "ordinary 1"
            ]
        );
    }

    #[test]
    fn what_the_gate_keeps_waiting_is_passed_by_the_first_rank_alone() {
        let turns = Turns::new(Purse::default(), 5);
        turns.gate().0.set(10);
        let mut large = turns.wait(Rank::Ordinary, 10);
        let mut small = turns.wait(Rank::Ordinary, 1);
        let mut control = turns.wait(Rank::First, 4);
        assert!(poll(&mut large).is_none() && poll(&mut small).is_none());
        drop(poll(&mut control).unwrap());
        let mut control = turns.wait(Rank::First, 4);
        assert!(poll(&mut control).is_none());
        turns.gate().0.set(20);
        turns.settle();
        assert!(poll(&mut control).is_none());
        drop(poll(&mut large).unwrap());
        drop(poll(&mut control).unwrap());
        drop(poll(&mut small).unwrap());
    }

    #[test]
    fn whoever_gives_up_holds_nobody_up() {
        let turns = Turns::new(Purse::default(), 0);
        turns.gate().0.set(2);
        let large = turns.wait(Rank::Ordinary, 10);
        let mut control = turns.wait(Rank::First, 1);
        let mut small = turns.wait(Rank::Ordinary, 1);
        assert!(poll(&mut control).is_none());
        drop(large);
        // Given, and dropped without being fetched.
        drop(control);
        let turn = poll(&mut small);
        assert!(turn.is_some());
        drop(turn);
        assert!(!turns.is_taken());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Wait(Rank, u32),
        /// Takes the turn that somebody was given, or gives up the wait.
        Fetch(usize),
        GiveUp(usize),
        Release,
        Fill(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let rank = prop_oneof![Just(Rank::First), Just(Rank::Ordinary)];
        prop_oneof![
            3 => (rank, 1..6_u32).prop_map(|(rank, cost)| Step::Wait(rank, cost)),
            3 => (0..8_usize).prop_map(Step::Fetch),
            1 => (0..8_usize).prop_map(Step::GiveUp),
            3 => Just(Step::Release),
            2 => (0..12_u32).prop_map(Step::Fill),
        ]
    }

    proptest! {
        /// Any history: one turn at a time, and nobody is left standing in front of an open gate.
        #[test]
        fn no_turn_is_lost(steps in proptest::collection::vec(step(), 0..60)) {
            let turns = Turns::new(Purse::default(), 4);
            let mut waits: Vec<Wait<Purse>> = Vec::new();
            let mut turn = None;
            for step in steps {
                match step {
                    Step::Wait(rank, cost) => waits.push(turns.wait(rank, cost)),
                    Step::Fetch(number) if number < waits.len() => {
                        if let Some(given) = poll(&mut waits[number]) {
                            prop_assert!(turn.is_none());
                            turn = Some(given);
                            drop(waits.remove(number));
                        }
                    }
                    Step::GiveUp(number) if number < waits.len() => drop(waits.remove(number)),
                    Step::Release => turn = None,
                    Step::Fill(amount) => {
                        turns.gate().0.set(amount);
                        turns.settle();
                    }
                    _ => {}
                }
                let given = waits
                    .iter()
                    .filter(|wait| matches!(*wait.place.state.borrow(), State::Given))
                    .count();
                prop_assert_eq!(given + usize::from(turn.is_some()), usize::from(turns.is_taken()));
                let line = turns.line.borrow();
                prop_assert_eq!(line.first.len() + line.ordinary.len() + given, waits.len());
                prop_assert!(line.passed <= 4 || line.ordinary.is_empty());
                drop(line);
                if !turns.is_taken() {
                    turns.settle();
                    prop_assert!(!turns.is_taken());
                }
            }
            drop((waits, turn));
            prop_assert!(!turns.is_taken());
        }
    }
}
