//! The smallest cut and the gentlest, against every set of references there is.

use std::cell::Cell;

use lowtide_heap::{Analysis, Cut, CutCost, Edge, NoCut, Node};

use super::naive::{Small, each};
use crate::shapes::smallest;
use lowtide_testing::{Dice, share};

/// A small graph with targets and prices.
#[derive(Debug)]
struct Case {
    small: Small,
    targets: Vec<Node>,
    costs: Vec<CutCost>,
}

/// A cut as sets.
struct Sides {
    weight: u64,
    /// What becomes unreachable.
    lost: u64,
}

impl Case {
    fn roll(dice: &mut Dice, size: (u64, u64)) -> Case {
        let mut small = Small::roll(dice, size);
        // Mostly one root and targets that are not roots, or there would be little to cut.
        let plain = small.nodes > 0 && dice.roll(8) > 0;
        if plain {
            small.roots = vec![0];
        }
        let heaviest = 1 + dice.roll(3);
        let never = dice.roll(4);
        let costs = small.edges.iter().map(|_| match dice.roll(10) {
            roll if roll < never => CutCost::Never,
            _ => CutCost::Cost(1 + dice.roll(heaviest) as u32),
        });
        let costs = costs.collect();
        let one_in = 1 + dice.roll(u64::from(small.nodes) + 1);
        let mut targets: Vec<Node> = small.all().filter(|_| dice.roll(one_in) == 0).collect();
        if plain {
            targets.retain(|target| target.0 != 0);
            if targets.is_empty() {
                targets.push(Node(small.nodes - 1));
            }
        }
        Case { small, targets, costs }
    }

    fn cost(&self) -> impl Fn(Edge) -> CutCost + '_ {
        |edge| self.costs[self.small.index(edge)]
    }

    fn sides(&self, gone: impl Fn(usize) -> bool) -> Sides {
        let weights = self.costs.iter().enumerate().filter(|(index, _)| gone(*index));
        let weight = weights.map(|(_, cost)| match cost {
            CutCost::Cost(weight) => u64::from(*weight),
            CutCost::Never => panic!("that was never to be cut"),
        });
        let reached = self.small.reached(0, &gone);
        Sides { weight: weight.sum(), lost: self.small.everything() & !reached }
    }

    fn frees(&self, sides: &Sides) -> bool {
        let everything = self.small.everything();
        let held = |target: &Node| (everything & !sides.lost) >> target.0 & 1 == 1;
        !self.targets.iter().any(held)
    }

    /// What the crate says, held to what its cut does; and every reference in it is needed.
    fn check(&self, cut: &Cut) -> Sides {
        let gone: Vec<usize> = cut.edges.iter().map(|edge| self.small.index(*edge)).collect();
        let sides = self.sides(|index| gone.contains(&index));
        assert!(self.frees(&sides), "{cut:?}");
        assert_eq!(sides.weight, cut.weight);
        assert_eq!(self.small.freed(sides.lost), cut.freed);
        for kept in &gone {
            let fewer = self.sides(|index| index != *kept && gone.contains(&index));
            assert!(!self.frees(&fewer), "{cut:?} does not need {kept}");
        }
        let targets = self.targets.iter().fold(0, |set, target| set | 1 << target.0);
        let with = self.small.everything() & !self.small.reached(targets, |_| false);
        assert_eq!(self.small.freed(sides.lost & !with), cut.collateral);
        sides
    }
}

/// Every set of references that may be cut, those that free the targets.
fn by_force(case: &Case) -> Vec<Sides> {
    let free: Vec<usize> =
        (0..case.costs.len()).filter(|at| case.costs[*at] != CutCost::Never).collect();
    let cut_by = |set: u32| {
        let cut = free.iter().enumerate().filter(move |(bit, _)| set >> bit & 1 == 1);
        cut.fold(0_u64, |cut, (_, index)| cut | 1 << index)
    };
    let sides = (0..1_u32 << free.len()).map(cut_by).map(|cut| case.sides(|at| cut >> at & 1 == 1));
    sides.filter(|sides| case.frees(sides)).collect()
}

#[test]
fn against_every_set_of_references() {
    let count = |cell: &Cell<u64>| cell.set(cell.get() + 1);
    let (kinds, several) = (std::array::from_fn::<_, 4, _>(|_| Cell::new(0)), Cell::new(0));
    let check = |case: &Case| {
        let graph = case.small.graph();
        let heap = Analysis::new(&graph);
        let others = by_force(case);
        let found = heap.cuts(&case.targets, 1000, case.cost());
        let Some(least) = others.iter().map(|other| other.weight).min() else {
            count(&kinds[3]);
            return assert_eq!(found, Err(NoCut::Never));
        };
        count(&kinds[least.min(2) as usize]);
        let cuts = found.unwrap();
        let sides = case.check(cuts.last().unwrap());
        assert_eq!(sides.weight, least);
        for other in others.iter().filter(|other| other.weight == least) {
            assert_eq!(sides.lost & !other.lost, 0, "another as small takes less down");
        }
        let gentlest = case.check(&cuts[0]);
        for other in &others {
            assert_eq!(gentlest.lost & !other.lost, 0, "another takes less down");
        }
        for pair in cuts.windows(2) {
            count(&several);
            assert!(pair[0].weight > pair[1].weight);
            let (near, far) = (case.check(&pair[0]), case.check(&pair[1]));
            assert!(near.lost & !far.lost == 0 && near.lost != far.lost);
        }

        for most in 0..=cuts[0].weight {
            let some = heap.cuts(&case.targets, most, case.cost());
            if most < least {
                assert_eq!(some, Err(NoCut::MoreThan(most)));
            } else {
                let some = some.unwrap();
                assert_eq!(some.last(), cuts.last());
                assert!(some.iter().all(|cut| cut.weight <= most));
            }
        }
    };
    each(0..60_000, (5, 8), Case::roll, check);
    each(60_000..66_000, (8, 13), Case::roll, check);
    println!("no cut needed, weight 1, more, impossible: {kinds:?}; {several:?} pairs");
    let enough = [share(0..1000).end, share(0..500).end];
    let is_enough = kinds.iter().all(|kind| kind.get() > enough[0]) && several.get() > enough[1];
    assert!(is_enough, "the random graphs are too much alike");
}

/// A flow as the books have it: any way that has room, one after another.
fn flow(case: &Case) -> Option<u64> {
    let small = &case.small;
    let mut room: Vec<u64> = case
        .costs
        .iter()
        .map(|cost| if let CutCost::Cost(weight) = cost { u64::from(*weight) } else { 1 << 40 })
        .collect();
    let mut back = vec![0; room.len()];
    let mut total = 0;
    loop {
        // How each node was reached: over which reference, and whether against it.
        let mut via: Vec<Option<(usize, bool)>> = vec![None; small.nodes as usize];
        let mut reached = small.roots.iter().fold(0_u64, |set, root| set | 1 << root);
        let roots = reached;
        let end = loop {
            if let Some(end) = case.targets.iter().find(|target| reached >> target.0 & 1 == 1) {
                break Some(end.0);
            }
            let before = reached;
            for (index, (from, to)) in small.edges.iter().enumerate() {
                for (room, a, b, against) in
                    [(room[index], from, to, false), (back[index], to, from, true)]
                {
                    if room > 0 && reached >> a & 1 == 1 && reached >> b & 1 == 0 {
                        reached |= 1 << b;
                        via[*b as usize] = Some((index, against));
                    }
                }
            }
            if reached == before {
                break None;
            }
        };
        let Some(mut at) = end else { return Some(total) };
        while roots >> at & 1 == 0 {
            let (index, against) = via[at as usize].unwrap();
            let (less, more) =
                if against { (&mut back, &mut room) } else { (&mut room, &mut back) };
            less[index] -= 1;
            more[index] += 1;
            at = if against { small.edges[index].1 } else { small.edges[index].0 };
        }
        total += 1;
        if total > 400 {
            return None;
        }
    }
}

#[test]
fn larger_graphs_against_a_plain_flow() {
    let large = Cell::new(0);
    let check = |case: &Case| {
        let graph = case.small.graph();
        let heap = Analysis::new(&graph);
        let found = smallest(&heap, &case.targets, 1000, case.cost());
        let Some(weight) = flow(case) else {
            return assert_eq!(found, Err(NoCut::Never));
        };
        large.set(large.get() + u64::from(weight > 4));
        let found = found.unwrap();
        let sides = case.check(&found);
        assert_eq!(sides.weight, weight);
        // Nearest: whichever node on the targets' side that leads to one there is held from
        // elsewhere, more has to be cut.
        let beside = case.small.all().filter(|node| {
            let leads = case.small.reached_from(1 << node.0, sides.lost);
            sides.lost >> node.0 & 1 == 1
                && case.targets.iter().any(|target| leads >> target.0 & 1 == 1)
        });
        for node in beside.filter(|node| !case.targets.contains(node)) {
            let mut small = Small { bytes: Vec::new(), ..case.small.clone() };
            small.roots.push(node.0);
            let forced = Case { small, targets: case.targets.clone(), costs: case.costs.clone() };
            assert!(flow(&forced).is_none_or(|more| more > weight), "{node:?} could stay");
        }
    };
    each(0..4_000, (20, 60), Case::roll, check);
    each(4_000..5_500, (40, 160), Case::roll, check);
    each(5_500..6_000, (64, 400), Case::roll, check);
    println!("{} with more than 4 to cut", large.get());
    assert!(large.get() > share(0..200).end, "the random graphs are too small");
}
