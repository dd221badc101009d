//! Who is on every way to a node: dominators, by the semi-NCA algorithm.
//!
//! From the last number to the first, each number's semidominator: the lowest number from which a
//! way leads to it over higher numbers only. Then, from the first to the last, the immediate
//! dominator: the first ancestor in the tree of first meetings that is not above the semidominator.
//! (Georgiadis, "Linear-time algorithms for dominators and related problems", 2005.)
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
pub(crate) fn dominators(order: &Order, parents: Parents) -> Vec<u32> {
    let mut links: Vec<Link> = (0..).zip(&parents).map(|(low, up)| Link { up: *up, low }).collect();
    let mut semis = vec![0; parents.len()];
    let mut passed = Vec::new();
    for number in (1..order.len() as u32).rev() {
        let mut semi = parents[number as usize];
        for from in order.referrers(number) {
            // Whoever has a lower number is a way of its own; of higher ones the lowest counts
            // that is passed on the way down from a lower one.
            let low = if *from <= number {
                *from
            } else {
                lowest(&mut links, *from, number, &mut passed)
            };
            semi = semi.min(low);
        }
        semis[number as usize] = semi;
        links[number as usize].low = semi;
    }
    drop(links);
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
