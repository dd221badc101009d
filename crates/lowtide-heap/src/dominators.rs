//! Dominators, by the semi-NCA algorithm. A node's dominators are on every path to it.
//!
//! First, from the highest rank to the lowest, each rank's semidominator: the lowest rank from which
//! a path leads to it over higher ranks only. Then, from the lowest to the highest, the immediate
//! dominator: the first ancestor in the search tree that is not above the semidominator.
//! (Georgiadis, "Linear-time algorithms for dominators and related problems", 2005.)
//!
//! Leaves have the highest ranks, and no path leads over them. Each is looked at when the loop comes
//! to the rank at which the depth-first search found it: higher ranks were given later.
//!
//! Nothing recurses: path compression uses a list.

use crate::order::{Order, Parents, Rank};

/// A rank's link towards its ancestors.
#[derive(Clone, Copy)]
struct Link {
    /// An ancestor, farther up the more often the path was compressed.
    up: Rank,
    /// The lowest semidominator from here to just below `up`.
    low: Rank,
}

/// Returns the immediate dominator of each rank. [`Rank::ROOTS`] is its own.
pub(crate) fn dominators(order: &Order, mut parents: Parents) -> Vec<Rank> {
    let met = (0..).map(Rank).zip(&parents[..order.leaves()]);
    let mut forest = Forest {
        order,
        links: met.map(|(low, up)| Link { up: *up, low }).collect(),
        passed: Vec::new(),
    };
    let mut semis = vec![Rank::ROOTS; parents.len()];
    let mut leaves = order.leaves()..order.len();
    for rank in (0..order.leaves()).rev() {
        let here = Rank(rank as u32);
        while !leaves.is_empty() && parents[leaves.start] == here {
            let leaf = leaves.start;
            (semis[leaf], parents[leaf]) = forest.semidominator(Rank(leaf as u32), here);
            leaves.start += 1;
        }
        let (semi, _) = forest.semidominator(here, here);
        semis[rank] = semi;
        forest.links[rank].low = semi;
    }
    drop(forest);
    let mut dominators = parents;
    for rank in 1..dominators.len() {
        let mut up = dominators[rank];
        while up > semis[rank] {
            up = dominators[up.index()];
        }
        dominators[rank] = up;
    }
    dominators
}

/// The search tree's ranks that were looked at already, with compressed paths.
struct Forest<'o> {
    order: &'o Order,
    /// By rank, without leaves.
    links: Vec<Link>,
    /// Reused by every compression.
    passed: Vec<Rank>,
}

impl Forest<'_> {
    /// Returns the semidominator of a rank that was found when the ranks up to `at` were given, and
    /// its highest referrer up to there.
    fn semidominator(&mut self, of: Rank, at: Rank) -> (Rank, Rank) {
        let (mut semi, mut parent) = (at, Rank::ROOTS);
        for from in self.order.referrers(of) {
            // A lower rank is a path by itself. For a higher one, the lowest semidominator counts
            // that lies on the tree path down to it.
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

/// Returns the lowest semidominator on the tree path from `from` up to just below `rank`, and
/// compresses that path.
fn lowest(links: &mut [Link], from: Rank, rank: Rank, passed: &mut Vec<Rank>) -> Rank {
    let mut at = from;
    while links[at.index()].up > rank {
        passed.push(at);
        at = links[at.index()].up;
    }
    let mut top = links[at.index()];
    while let Some(below) = passed.pop() {
        let link = &mut links[below.index()];
        top.low = top.low.min(link.low);
        *link = top;
    }
    top.low
}
