//! The order in which owners are dropped: a borrower before what it borrows, otherwise the last
//! registered first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The order. The numbers are entries, in the order of their registration.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) first_to_last: Vec<usize>,
    /// In each, an entry borrows the next, and the last one the first, which is dropped all the same.
    pub(super) cycles: Vec<Vec<usize>>,
}

/// Orders entries by what each borrows; none borrows itself.
pub(super) fn order(borrows: &[BTreeSet<usize>]) -> Order {
    let all = 0..borrows.len();
    let mut left: BTreeSet<usize> = all.clone().collect();
    let far = Reach::new(borrows, &left);
    // How many have to be dropped before: every entry that borrows it, directly or not, and is not
    // borrowed back. Counted in the whole graph, because a broken cycle hides its borrowers.
    let mut before: Vec<usize> =
        all.clone().map(|to| all.clone().filter(|&from| far.one_way(from, to)).count()).collect();
    let mut borrowers = vec![0_usize; borrows.len()];
    borrows.iter().flatten().for_each(|&to| borrowers[to] += 1);

    let mut order = Order { first_to_last: Vec::with_capacity(borrows.len()), cycles: Vec::new() };
    while !left.is_empty() {
        let free = left.iter().rev().find(|&&entry| before[entry] == 0 && borrowers[entry] == 0);
        let next = free.copied().unwrap_or_else(|| {
            let (broken, cycle) = cycle_to_break(borrows, &left, &before);
            order.cycles.push(cycle);
            broken
        });
        left.remove(&next);
        all.clone().filter(|&to| far.one_way(next, to)).for_each(|to| before[to] -= 1);
        borrows[next].iter().for_each(|&to| borrowers[to] -= 1);
        order.first_to_last.push(next);
    }
    order
}

/// Returns the last registered entry of a cycle that no entry outside of it borrows, and that cycle.
fn cycle_to_break(
    borrows: &[BTreeSet<usize>],
    left: &BTreeSet<usize>,
    before: &[usize],
) -> (usize, Vec<usize>) {
    let far = Reach::new(borrows, left);
    let is_first = |to: usize| before[to] == 0 && !left.iter().any(|&from| far.one_way(from, to));
    let broken = left.iter().rev().copied().find(|&entry| is_first(entry));
    let broken = broken.expect("borrowers of borrowers end, or they go round");
    (broken, shortest_cycle(borrows, left, broken))
}

fn shortest_cycle(borrows: &[BTreeSet<usize>], left: &BTreeSet<usize>, start: usize) -> Vec<usize> {
    let mut came_from = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(entry) = queue.pop_front() {
        if borrows[entry].contains(&start) {
            let mut cycle = vec![entry];
            while let Some(&previous) = came_from.get(&cycle[cycle.len() - 1]) {
                cycle.push(previous);
            }
            cycle.reverse();
            return cycle;
        }
        for &to in borrows[entry].intersection(left) {
            if to != start && !came_from.contains_key(&to) {
                came_from.insert(to, entry);
                queue.push_back(to);
            }
        }
    }
    unreachable!("entry {start} was said to be on a cycle")
}

/// Who borrows whom, near or far, among those that are left.
struct Reach(Vec<Vec<bool>>);

impl Reach {
    fn new(borrows: &[BTreeSet<usize>], left: &BTreeSet<usize>) -> Reach {
        let from = |start: usize| {
            let mut reached = vec![false; borrows.len()];
            let mut todo = if left.contains(&start) { vec![start] } else { Vec::new() };
            while let Some(entry) = todo.pop() {
                for &to in borrows[entry].intersection(left) {
                    if !std::mem::replace(&mut reached[to], true) {
                        todo.push(to);
                    }
                }
            }
            reached
        };
        Reach((0..borrows.len()).map(from).collect())
    }

    fn one_way(&self, from: usize, to: usize) -> bool {
        self.0[from][to] && !self.0[to][from]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order_of(borrows: &[&[usize]]) -> Order {
        let borrows: Vec<_> = borrows.iter().map(|to| to.iter().copied().collect()).collect();
        order(&borrows)
    }

    #[test]
    fn last_registered_goes_first_where_nobody_borrows() {
        assert_eq!(order_of(&[&[], &[], &[]]).first_to_last, [2, 1, 0]);
        assert!(order_of(&[]).first_to_last.is_empty());
    }

    #[test]
    fn r19_a_borrower_goes_before_what_it_borrows_whenever_it_came() {
        let order = order_of(&[&[2], &[], &[3], &[]]);
        assert_eq!(order.first_to_last, [1, 0, 2, 3]);
        assert_eq!(order.cycles, [[0; 0]; 0]);
    }

    #[test]
    fn a_cycle_is_broken_at_its_last_registered() {
        let order = order_of(&[&[1], &[2], &[0], &[0]]);
        assert_eq!(order.first_to_last, [3, 2, 0, 1]);
        assert_eq!(order.cycles, [[2, 0, 1]]);
    }

    #[test]
    fn who_borrows_through_a_broken_cycle_still_goes_first() {
        // 0 and 1 borrow each other, and 1 borrows 2: so does 0, through 1.
        let order = order_of(&[&[1], &[0, 2], &[]]);
        assert_eq!(order.first_to_last, [1, 0, 2]);
        assert_eq!(order.cycles, [[1, 0]]);
    }

    #[test]
    fn what_only_hangs_on_a_cycle_is_not_broken() {
        // 3 is registered last, but it is on no cycle: 0 and 1 are.
        let order = order_of(&[&[1], &[0, 3], &[], &[]]);
        assert_eq!(order.first_to_last, [2, 1, 0, 3]);
        // Two cycles, one borrowing the other: the borrowing one is broken first.
        let order = order_of(&[&[1], &[0, 3], &[3], &[2]]);
        assert_eq!(order.first_to_last, [1, 0, 3, 2]);
        assert_eq!(order.cycles, [[1, 0], [3, 2]]);
    }
}
