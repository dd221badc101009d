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
//!
//! # The tree
//!
//! Every rank gets a span of positions that contains the spans of all ranks it dominates. So
//! "dominates" takes two comparisons, and the retained memory is a difference of two sums over the
//! few nodes that hold memory; no rank needs a sum of its own.

use std::ops::Range;

use lowtide_types::Bytes;

use crate::graph::{Graph, Size};
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

/// The dominator tree.
pub(crate) struct Tree {
    /// By rank, as are the next two.
    dominators: Vec<Rank>,
    starts: Vec<u32>,
    ends: Vec<u32>,
    /// For each node that holds memory, in the order of positions: its position, and what all nodes
    /// before it hold. The last entry has what all nodes hold.
    sums: Vec<(u32, Bytes)>,
}

impl Tree {
    pub(crate) fn new(graph: &Graph, order: &Order, dominators: Vec<Rank>) -> Tree {
        // A dominator has the lower rank. So from high to low, a size is complete when it is added
        // to the next; from low to high, a span is known before parts of it are given away.
        let mut sizes = vec![1; dominators.len()];
        for rank in (1..dominators.len()).rev() {
            sizes[dominators[rank].index()] += sizes[rank];
        }
        let mut starts = vec![0; dominators.len()];
        let mut ends = vec![1; dominators.len()];
        for rank in 1..dominators.len() {
            let above = dominators[rank].index();
            starts[rank] = ends[above];
            ends[above] += sizes[rank];
            ends[rank] = starts[rank] + 1;
        }
        let reached = graph
            .holding()
            .filter_map(|(node, bytes)| Some((starts[order.rank(node)?.index()], bytes)));
        let mut sums: Vec<(u32, Bytes)> = reached.collect();
        sums.sort_unstable();
        let mut sum = Bytes::ZERO;
        for (_, bytes) in &mut sums {
            sum += std::mem::replace(bytes, sum);
        }
        sums.push((u32::MAX, sum));
        Tree { dominators, starts, ends, sums }
    }

    /// Returns the immediate dominator.
    pub(crate) fn above(&self, rank: Rank) -> Rank {
        self.dominators[rank.index()]
    }

    /// Returns the positions of `rank`, at the front, and of all that it dominates.
    pub(crate) fn span(&self, rank: Rank) -> Range<u32> {
        self.start(rank)..self.ends[rank.index()]
    }

    /// Returns the position of `rank`.
    pub(crate) fn start(&self, rank: Rank) -> u32 {
        self.starts[rank.index()]
    }

    pub(crate) fn dominates(&self, above: Rank, below: Rank) -> bool {
        self.span(above).contains(&self.start(below))
    }

    /// Returns the size of what `rank` dominates, itself included.
    pub(crate) fn retained(&self, rank: Rank) -> Size {
        let span = self.span(rank);
        let before = |start: u32| self.sums[self.sums.partition_point(|(at, _)| *at < start)].1;
        Size {
            nodes: u64::from(span.end - span.start),
            bytes: before(span.end) - before(span.start),
        }
    }
}

/// Ranks that are to be cut off, none of which dominates another.
///
/// Whatever they dominate is reached only through them, so no path to them leads over it.
#[derive(Default)]
pub(crate) struct Sinks {
    /// In the order of positions in the dominator tree.
    ranks: Vec<Rank>,
    /// The positions of what each dominates.
    spans: Vec<Range<u32>>,
}

impl Sinks {
    /// Takes those of the ranks that no other of them dominates.
    pub(crate) fn new(tree: &Tree, ranks: impl IntoIterator<Item = Rank>) -> Sinks {
        let mut ranks: Vec<Rank> = ranks.into_iter().collect();
        ranks.sort_unstable_by_key(|rank| tree.start(*rank));
        let mut sinks = Sinks::default();
        for rank in ranks {
            let span = tree.span(rank);
            if sinks.spans.last().is_none_or(|last| last.end <= span.start) {
                sinks.spans.push(span);
                sinks.ranks.push(rank);
            }
        }
        sinks
    }

    pub(crate) fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Returns whether one of the sinks dominates `rank`, or is it.
    pub(crate) fn dominate(&self, tree: &Tree, rank: Rank) -> bool {
        let start = tree.start(rank);
        let after = self.spans.partition_point(|span| span.start <= start);
        after > 0 && self.spans[after - 1].contains(&start)
    }

    /// Returns the nearest rank that dominates all sinks and is none of them. `None` if there are no
    /// sinks.
    pub(crate) fn source(&self, tree: &Tree) -> Option<Rank> {
        let (first, last) = (*self.ranks.first()?, *self.ranks.last()?);
        let mut source = tree.above(first);
        // A rank that dominates the first and the last position dominates all between them.
        while !tree.dominates(source, last) {
            source = tree.above(source);
        }
        Some(source)
    }
}
