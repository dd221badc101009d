//! The tree of dominators, asked: who is on every way, and what goes when a node goes.
//!
//! Every number gets a span so that whatever it dominates lies in it. Then "dominates" is two
//! comparisons, and retained bytes are a difference of sums over the few nodes that have any: no
//! number needs a sum of its own.

use std::ops::Range;

use lowtide_types::Bytes;

use crate::graph::Graph;
use crate::order::Order;

/// Nodes, and what they hold on a device together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Freed {
    /// How many.
    pub nodes: u64,
    /// What they hold.
    pub bytes: Bytes,
}

impl Freed {
    /// What this has more than `less`, which is part of it.
    pub(crate) fn without(self, less: Freed) -> Freed {
        Freed { nodes: self.nodes - less.nodes, bytes: self.bytes - less.bytes }
    }
}

pub(crate) struct Tree {
    /// By number, as are the next two.
    dominators: Vec<u32>,
    starts: Vec<u32>,
    ends: Vec<u32>,
    /// By start, for nodes with bytes: what all before it hold; at the end, what all hold.
    sums: Vec<(u32, u64)>,
}

impl Tree {
    pub(crate) fn new(graph: &Graph, order: &Order, dominators: Vec<u32>) -> Tree {
        // A dominator has the lower number: backwards, sizes are complete when they are added;
        // forwards, a span is known before it is dealt out.
        let mut sizes = vec![1; dominators.len()];
        for number in (1..dominators.len()).rev() {
            sizes[dominators[number] as usize] += sizes[number];
        }
        let mut starts = vec![0; dominators.len()];
        let mut ends = vec![1; dominators.len()];
        for number in 1..dominators.len() {
            let above = dominators[number] as usize;
            starts[number] = ends[above];
            ends[above] += sizes[number];
            ends[number] = starts[number] + 1;
        }
        let reached = graph.holding().filter_map(|(node, bytes)| {
            order.number(node.0).map(|number| (starts[number as usize], bytes.0))
        });
        let mut sums: Vec<(u32, u64)> = reached.collect();
        sums.sort_unstable();
        let mut sum = 0;
        for (_, bytes) in &mut sums {
            sum += std::mem::replace(bytes, sum);
        }
        sums.push((u32::MAX, sum));
        Tree { dominators, starts, ends, sums }
    }

    /// The nearest on every way to `number`; 0 where that is only what holds the roots.
    pub(crate) fn above(&self, number: u32) -> u32 {
        self.dominators[number as usize]
    }

    /// What lies in here is dominated by `number`, itself at the front.
    pub(crate) fn span(&self, number: u32) -> Range<u32> {
        self.starts[number as usize]..self.ends[number as usize]
    }

    /// Where it lies.
    pub(crate) fn start(&self, number: u32) -> u32 {
        self.starts[number as usize]
    }

    pub(crate) fn dominates(&self, above: u32, below: u32) -> bool {
        self.span(above).contains(&self.start(below))
    }

    /// What goes when `number` goes.
    pub(crate) fn retained(&self, number: u32) -> Freed {
        let span = self.span(number);
        let before = |start: u32| self.sums[self.sums.partition_point(|(at, _)| *at < start)].1;
        Freed {
            nodes: u64::from(span.end - span.start),
            bytes: Bytes(before(span.end) - before(span.start)),
        }
    }
}
