//! What the budgets promise. Compiled under `#[cfg(test)]` alone.

use proptest::prelude::*;

use super::*;

#[test]
fn a_limit_of_n_admits_exactly_n() {
    let budget = Budget::new("places", Limit::At(3));
    let permits: Vec<Permit> = (0..3).map(|_| budget.reserve(1).unwrap()).collect();
    let refused = Refused {
        budget: "places",
        wanted: 1,
        is_over_limit: false,
    };
    assert_eq!(budget.reserve(1).unwrap_err(), refused);
    assert_eq!(refused.to_string(), "places has no room for 1 more");
    drop(permits);
    assert!(budget.reserve(4).unwrap_err().is_over_limit);
    let all = budget.reserve(3).unwrap();
    assert!(budget.reserve(1).is_err());
    drop(all);
    assert!(budget.has_room(3) && !budget.has_room(4));
    let expected = Snapshot {
        name: "places",
        current: 0,
        peak: 3,
        limit: Limit::At(3),
        refused: 3,
    };
    assert_eq!(budget.snapshot(), expected);
}

#[test]
fn unlimited_counts_and_refuses_only_what_cannot_be_counted() {
    let budget = Budget::new("places", None.into());
    let most = budget.reserve(u64::MAX).unwrap();
    assert!(budget.reserve(1).is_err());
    drop(most);
    assert_eq!(budget.current(), 0);
    assert_eq!(Limit::from(Some(7)).get(), Some(7));
}

#[test]
fn a_permit_is_given_back_once_however_it_is_cut() {
    let budget = Budget::new("bytes", Limit::At(100));
    let mut permit = budget.reserve(60).unwrap();
    let part = permit.split(25).unwrap();
    assert!(permit.split(36).is_none());
    assert_eq!((permit.amount(), part.amount()), (35, 25));
    assert!(permit.grow(41).is_err());
    permit.grow(40).unwrap();
    assert_eq!(budget.current(), 100);
    permit.shrink(70);
    assert_eq!(budget.current(), 30);
    permit.merge(part).unwrap();
    assert_eq!((permit.amount(), budget.current()), (30, 30));
    permit.resize(100).unwrap();
    assert!(permit.resize(101).is_err());
    permit.resize(1).unwrap();
    assert_eq!(budget.current(), 1);
    permit.shrink(5);
    assert_eq!((permit.amount(), budget.current()), (0, 0));
    drop(permit);
    assert_eq!(budget.current(), 0);
}

#[test]
fn permits_of_different_budgets_do_not_mix() {
    let one = Budget::new("one", Limit::At(5));
    let other = Budget::new("other", Limit::At(5));
    let mut mine = one.reserve(2).unwrap();
    let foreign = mine.merge(other.reserve(3).unwrap()).unwrap_err();
    assert!(foreign.is_of(&other) && mine.is_of(&one.clone()));
    assert_eq!((one.current(), other.current()), (2, 3));
}

#[test]
fn a_lowered_limit_admits_nobody_until_it_is_kept() {
    let budget = Budget::new("places", Limit::At(3));
    let mut permits: Vec<Permit> = (0..3).map(|_| budget.reserve(1).unwrap()).collect();
    budget.set_limit(Limit::At(1));
    while let Some(permit) = permits.pop() {
        assert!(budget.reserve(1).is_err());
        drop(permit);
    }
    let _one = budget.reserve(1).unwrap();
    budget.set_limit(Limit::Unlimited);
    let _more = budget.reserve(1000).unwrap();
    assert_eq!(budget.snapshot().refused, 3);
}

#[test]
fn what_is_adopted_counts_past_the_limit() {
    let budget = Budget::new("places", Limit::At(1));
    let (first, second) = (budget.adopt(1), budget.adopt(1));
    assert!(budget.reserve(1).is_err());
    drop(first);
    assert!(budget.reserve(1).is_err());
    drop(second);
    assert!(budget.reserve(1).is_ok());
}

#[test]
fn nested_budgets_reserve_in_all_or_none() {
    let toolshed = Budget::new("toolshed", Limit::At(4));
    let router = Budget::nested("router", Limit::At(3), &[&toolshed]);
    let context = Budget::nested("context", Limit::At(2), &[&router]);
    let neighbour = Budget::nested("neighbour", Limit::At(4), &[&toolshed]);

    let mut held = vec![context.reserve(2).unwrap()];
    assert_eq!(context.reserve(1).unwrap_err().budget, "context");
    assert_eq!([&toolshed, &router, &context].map(Budget::current), [2; 3]);
    held.push(neighbour.reserve(2).unwrap());
    context.set_limit(Limit::At(9));
    assert_eq!(context.reserve(1).unwrap_err().budget, "toolshed");
    toolshed.set_limit(Limit::At(9));
    assert_eq!(context.reserve(2).unwrap_err().budget, "router");
    assert_eq!(
        [&toolshed, &router, &context, &neighbour].map(Budget::current),
        [4, 2, 2, 2]
    );
    drop(held);
    assert_eq!(
        [&toolshed, &router, &context, &neighbour].map(Budget::current),
        [0; 4]
    );
    assert_eq!(toolshed.snapshot().peak, 4);
}

#[test]
fn a_budget_that_two_ways_lead_to_counts_once() {
    let toolshed = Budget::new("toolshed", Limit::At(10));
    let context = Budget::nested("context", Limit::At(10), &[&toolshed]);
    let principal = Budget::nested("principal", Limit::At(1), &[&toolshed]);
    let both = Budget::nested("sessions", Limit::Unlimited, &[&context, &principal]);
    let permit = both.reserve(1).unwrap();
    assert_eq!(
        [&toolshed, &context, &principal].map(Budget::current),
        [1; 3]
    );
    assert_eq!(both.reserve(1).unwrap_err().budget, "principal");
    drop(permit);
    assert_eq!(
        [&toolshed, &context, &principal].map(Budget::current),
        [0; 3]
    );
}

/// One step of a random history. Numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    Reserve { budget: usize, amount: u64 },
    Release(usize),
    Resize { permit: usize, amount: u64 },
    Split { permit: usize, amount: u64 },
    Merge(usize, usize),
    Limit { budget: usize, limit: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let some = 0..64_usize;
    let amount = 0..8_u64;
    prop_oneof![
        4 => (some.clone(), amount.clone()).prop_map(|(budget, amount)| Step::Reserve { budget, amount }),
        3 => some.clone().prop_map(Step::Release),
        2 => (some.clone(), amount.clone()).prop_map(|(permit, amount)| Step::Resize { permit, amount }),
        1 => (some.clone(), amount).prop_map(|(permit, amount)| Step::Split { permit, amount }),
        1 => (some.clone(), some.clone()).prop_map(|(one, other)| Step::Merge(one, other)),
        1 => (some, 0..20_u64).prop_map(|(budget, limit)| Step::Limit { budget, limit }),
    ]
}

/// The permit that a number means.
fn pick(permits: &mut [(usize, Permit)], number: usize) -> Option<&mut (usize, Permit)> {
    let count = permits.len();
    permits.get_mut(number.checked_rem(count)?)
}

/// Three budgets, the second and the third inside of the first, against plain sums.
fn nested_history(steps: &[Step]) -> Result<(), TestCaseError> {
    let outer = Budget::new("outer", Limit::At(12));
    let inner = ["left", "right"].map(|name| Budget::nested(name, Limit::At(8), &[&outer]));
    let budgets = [&outer, &inner[0], &inner[1]];
    let mut limits = [12, 8, 8];
    let mut permits: Vec<(usize, Permit)> = Vec::new();
    let mut peaks = [0; 3];
    let mut refused = 0;
    // What counts in a budget: its own permits, and in the outer one everybody's.
    let sum = |permits: &[(usize, Permit)], budget: usize| {
        let mine = permits
            .iter()
            .filter(|(of, _)| budget == 0 || *of == budget);
        mine.map(|(_, permit)| permit.amount()).sum::<u64>()
    };
    for step in steps {
        let fits = |permits: &[(usize, Permit)], budget: usize, more: u64| {
            let mut around = [0, budget].into_iter();
            around.all(|at| sum(permits, at) + more <= limits[at])
        };
        match *step {
            Step::Reserve { budget, amount } => {
                let budget = budget % 3;
                let expected = fits(&permits, budget, amount);
                let reserved = budgets[budget].reserve(amount);
                prop_assert_eq!(reserved.is_ok(), expected);
                refused += u64::from(!expected);
                permits.extend(reserved.ok().map(|permit| (budget, permit)));
            }
            Step::Release(number) if !permits.is_empty() => {
                drop(permits.swap_remove(number % permits.len()));
            }
            Step::Resize { permit, amount } => {
                let before: Vec<(usize, u64)> = permits
                    .iter()
                    .map(|(of, permit)| (*of, permit.amount()))
                    .collect();
                let Some(index) = permit.checked_rem(before.len()) else {
                    continue;
                };
                let (of, held) = before[index];
                let expected = amount <= held || fits(&permits, of, amount - held);
                prop_assert_eq!(permits[index].1.resize(amount).is_ok(), expected);
                prop_assert_eq!(
                    permits[index].1.amount(),
                    if expected { amount } else { held }
                );
                refused += u64::from(!expected);
            }
            Step::Split { permit, amount } => {
                if let Some((of, permit)) = pick(&mut permits, permit) {
                    let (of, held) = (*of, permit.amount());
                    let part = permit.split(amount);
                    prop_assert_eq!(part.is_some(), amount <= held);
                    permits.extend(part.map(|part| (of, part)));
                }
            }
            Step::Merge(one, other) if permits.len() > 1 => {
                let (of, permit) = permits.swap_remove(one % permits.len());
                if let Some((same, target)) = pick(&mut permits, other) {
                    let merged = target.merge(permit);
                    prop_assert_eq!(merged.is_ok(), *same == of);
                    permits.extend(merged.err().map(|permit| (of, permit)));
                }
            }
            Step::Limit { budget, limit } => {
                limits[budget % 3] = limit;
                budgets[budget % 3].set_limit(Limit::At(limit));
            }
            _ => {}
        }
        for (at, peak) in peaks.iter_mut().enumerate() {
            let current = sum(&permits, at);
            *peak = current.max(*peak);
            let snapshot = budgets[at].snapshot();
            prop_assert_eq!(snapshot.current, current);
            prop_assert_eq!(snapshot.peak, *peak);
            prop_assert_eq!(snapshot.limit, Limit::At(limits[at]));
        }
        let counted: u64 = budgets.iter().map(|budget| budget.snapshot().refused).sum();
        prop_assert_eq!(counted, refused);
    }
    drop(permits);
    prop_assert_eq!(budgets.map(Budget::current), [0; 3]);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any history: never above the limit, every permit counted once, everything given back at the end.
    #[test]
    fn nested_budgets_agree_with_plain_sums(steps in proptest::collection::vec(step(), 0..120)) {
        nested_history(&steps)?;
    }
}
