//! Small graphs, and everything about them by its definition: take something away and see what is
//! still reached.

use std::cmp::Reverse;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use lowtide_heap::{Edge, Graph, GraphBuilder, Node, Size};
use lowtide_types::Bytes;

use lowtide_testing::{Dice, share};

/// Checks a case for each seed of the share that runs. If one fails, prints its seed and the case.
pub(crate) fn each<Case: std::fmt::Debug>(
    seeds: Range<u64>,
    size: (u64, u64),
    roll: impl Fn(&mut Dice, (u64, u64)) -> Case,
    check: impl Fn(&Case),
) {
    let seeds = share(seeds);
    println!("seeds {seeds:?}, up to {} nodes and {} references", size.0, size.1);
    for seed in seeds {
        let case = roll(&mut Dice(seed * 0x9e37_79b9 + 1), size);
        let checked = catch_unwind(AssertUnwindSafe(|| check(&case)));
        if let Err(panic) = checked {
            println!("seed {seed}: {case:?}");
            resume_unwind(panic);
        }
    }
}

/// Up to 64 nodes; a set of them is a number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Small {
    pub(crate) nodes: u32,
    /// In the order of `from`, and in each row those that are named in time first.
    pub(crate) edges: Vec<(u32, u32)>,
    /// Which of them are named late.
    pub(crate) late: Vec<bool>,
    pub(crate) roots: Vec<u32>,
    pub(crate) bytes: Vec<(u32, u64)>,
}

impl Small {
    /// Anything: empty, without roots, with loops and with several references between two nodes;
    /// half of them with references that are named late.
    pub(crate) fn roll(dice: &mut Dice, (nodes_most, edges_most): (u64, u64)) -> Small {
        let nodes = dice.roll(nodes_most + 1);
        let mut small = Small { nodes: nodes as u32, ..Small::default() };
        if nodes == 0 {
            return small;
        }
        // References mostly lead a little way on, so that there are long ways, or anywhere.
        let stride = 1 + dice.roll(nodes);
        for _ in 0..dice.roll(edges_most + 1) {
            let from = dice.roll(nodes);
            let to = if dice.roll(4) == 0 {
                dice.roll(nodes)
            } else {
                (from + 1 + dice.roll(stride)) % nodes
            };
            small.edges.push((from as u32, to as u32));
        }
        small.edges.sort_by_key(|(from, _)| *from);
        for _ in 0..dice.roll(4) {
            small.roots.push(dice.roll(nodes) as u32);
        }
        for _ in 0..dice.roll(5) {
            small.bytes.push((dice.roll(nodes) as u32, 1 << dice.roll(40)));
        }
        let some_late = dice.one_in(2);
        let mut named: Vec<_> =
            small.edges.iter().map(|edge| (*edge, some_late && dice.one_in(4))).collect();
        named.sort_by_key(|((from, _), late)| (*from, *late));
        (small.edges, small.late) = named.into_iter().unzip();
        small
    }

    pub(crate) fn graph(&self) -> Graph {
        let mut builder = GraphBuilder::default();
        (0..self.nodes).for_each(|_| _ = builder.node());
        let named = self.edges.iter().zip(&self.late);
        let named = named.map(|((from, to), late)| (Node(*from), Node(*to), *late));
        let (mut late, in_time): (Vec<_>, Vec<_>) = named.partition(|(.., late)| *late);
        for (from, to, _) in in_time {
            builder.edge(from, to);
        }
        // Rows may be late in any order: the last one first.
        late.sort_by_key(|(from, ..)| Reverse(*from));
        for (from, to, _) in late {
            builder.late_edge(from, to);
        }
        self.roots.iter().for_each(|root| builder.root(Node(*root)));
        self.bytes.iter().for_each(|(node, bytes)| builder.bytes(Node(*node), Bytes(*bytes)));
        builder.finish()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Node> + use<> {
        (0..self.nodes).map(Node)
    }

    /// What is reached if some nodes are taken away, and some references, by their index.
    pub(crate) fn reached(&self, without: u64, gone: impl Fn(usize) -> bool) -> u64 {
        let mut reached = self.roots.iter().fold(0, |set, root| set | 1 << root) & !without;
        loop {
            let before = reached;
            for (index, (from, to)) in self.edges.iter().enumerate() {
                if reached >> from & 1 == 1 && without >> to & 1 == 0 && !gone(index) {
                    reached |= 1 << to;
                }
            }
            if reached == before {
                return reached;
            }
        }
    }

    /// What is reached from these over references that lead `within`.
    pub(crate) fn reached_from(&self, start: u64, within: u64) -> u64 {
        let mut reached = start;
        loop {
            let before = reached;
            for (from, to) in &self.edges {
                if reached >> from & 1 == 1 {
                    reached |= 1 << to & within;
                }
            }
            if reached == before {
                return reached;
            }
        }
    }

    pub(crate) fn everything(&self) -> u64 {
        self.reached(0, |_| false)
    }

    /// A set of nodes as the crate would say it.
    pub(crate) fn freed(&self, set: u64) -> Size {
        let held = self.bytes.iter().filter(|(node, _)| set >> node & 1 == 1);
        Size {
            nodes: u64::from(set.count_ones()),
            bytes: Bytes(held.map(|(_, bytes)| bytes).sum()),
        }
    }

    /// The index of a reference of the graph.
    pub(crate) fn index(&self, edge: Edge) -> usize {
        let row = self.edges.partition_point(|(from, _)| *from < edge.from.0);
        let index = row + edge.index as usize;
        assert_eq!(self.edges[index], (edge.from.0, edge.to.0), "{edge:?} is a reference");
        index
    }
}
