//! The dominator tree: which node dominates which, and what each retains.
//!
//! Every rank gets a span of positions that contains the spans of all ranks it dominates. So
//! "dominates" takes two comparisons, and the retained memory is a difference of two sums over the
//! few nodes that hold memory; no rank needs a sum of its own.

use std::ops::Range;

use lowtide_types::Bytes;

use crate::graph::Graph;
use crate::order::{Order, Rank};
use crate::size::Size;

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
