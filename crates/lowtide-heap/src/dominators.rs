//! Who is on every way to a node: dominators, by the semi-NCA algorithm.
//!
//! From the last number to the first, each number's semidominator: the lowest number from which a
//! way leads to it over higher numbers only. Then, from the first to the last, the immediate
//! dominator: the first ancestor in the tree of first meetings that is not above the semidominator.
//! (Georgiadis, "Linear-time algorithms for dominators and related problems", 2005.)
//!
//! Leaves have the highest numbers, and no way leads over them. Each is looked at where the search
//! that gave the numbers met it: whoever has a higher number than that was met later.
//!
//! Nothing recurs: ways are shortened with a list of our own.

use crate::order::{Order, Parents};

/// A number on its way up.
#[derive(Clone, Copy)]
struct Link {
    /// An ancestor, farther up the more often the way was shortened.
    up: u32,
    /// The lowest semidominator from here to just below `up`.
    low: u32,
}

/// By number: the nearest that is on every way to it. 0 is its own.
pub(crate) fn dominators(order: &Order, mut parents: Parents) -> Vec<u32> {
    let met = (0..).zip(&parents[..order.leaves()]);
    let mut ways = Ways {
        order,
        links: met.map(|(low, up)| Link { up: *up, low }).collect(),
        passed: Vec::new(),
    };
    let mut semis = vec![0; parents.len()];
    let mut leaves = order.leaves()..order.len();
    for number in (0..order.leaves()).rev() {
        while !leaves.is_empty() && parents[leaves.start] as usize == number {
            let leaf = leaves.start;
            (semis[leaf], parents[leaf]) = ways.semi(leaf as u32, number as u32);
            leaves.start += 1;
        }
        let (semi, _) = ways.semi(number as u32, number as u32);
        semis[number] = semi;
        ways.links[number].low = semi;
    }
    drop(ways);
    let mut dominators = parents;
    for number in 1..dominators.len() {
        let mut up = dominators[number];
        while up > semis[number] {
            up = dominators[up as usize];
        }
        dominators[number] = up;
    }
    dominators
}

struct Ways<'o> {
    order: &'o Order,
    /// Of those from which ways lead on.
    links: Vec<Link>,
    passed: Vec<u32>,
}

impl Ways<'_> {
    /// The semidominator of a number that was met when numbers were as far as `at`, and the highest
    /// up to there that refers to it.
    fn semi(&mut self, of: u32, at: u32) -> (u32, u32) {
        let (mut semi, mut parent) = (at, 0);
        for from in self.order.referrers(of) {
            // Whoever has a lower number is a way of its own; of higher ones the lowest counts
            // that is passed on the way down from a lower one.
            let low = if *from <= at {
                parent = *from;
                *from
            } else {
                lowest(&mut self.links, *from, at, &mut self.passed)
            };
            semi = semi.min(low);
        }
        (semi, parent)
    }
}

/// The lowest semidominator on the way up from `from` that is still above `number`; shortens the
/// way for whoever comes next.
fn lowest(links: &mut [Link], from: u32, number: u32, passed: &mut Vec<u32>) -> u32 {
    let mut at = from;
    while links[at as usize].up > number {
        passed.push(at);
        at = links[at as usize].up;
    }
    let mut top = links[at as usize];
    while let Some(below) = passed.pop() {
        let link = &mut links[below as usize];
        top.low = top.low.min(link.low);
        *link = top;
    }
    top.low
}
