//! Breadth-first search from the roots: which nodes are reached, and a shortest path to each.

use crate::graph::{Graph, Node};

/// How a node was found: 0 if it was not, [`ROOT`], or its predecessor's number plus 2. A search that
/// ends soon leaves most of a table of zeros untouched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Via(u32);

const UNREACHED: Via = Via(0);
const ROOT: Via = Via(1);

impl Via {
    fn over(node: Node) -> Via {
        Via(node.0 + 2)
    }
}

/// What a search does with a node that it finds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visit {
    Enter,
    /// Pass it over, however often it is found.
    Skip,
    /// Enter it and end the search.
    Stop,
}

/// A tree of shortest paths from the roots.
pub(crate) struct Reach {
    /// By node: its predecessor on its path.
    via: Vec<u32>,
    nodes: u64,
}

impl Reach {
    /// Searches the whole graph.
    pub(crate) fn all(graph: &Graph) -> Reach {
        Reach::search(graph, |_| Visit::Enter)
    }

    /// Searches as `visit` decides. Nodes nearer to the roots are found first, so a search that
    /// stops at the first node of a kind has found the nearest. Of several predecessors the one
    /// found first counts, with its first reference.
    pub(crate) fn search(graph: &Graph, mut visit: impl FnMut(Node) -> Visit) -> Reach {
        let mut reach = Reach { via: vec![UNREACHED.0; graph.len()], nodes: 0 };
        let mut queue = Vec::new();
        for root in graph.root_nodes() {
            if !reach.enter(ROOT, *root, &mut queue, &mut visit) {
                return reach;
            }
        }
        let mut next = 0;
        while let Some(from) = queue.get(next).copied() {
            next += 1;
            for to in graph.row(from) {
                if !reach.has(*to) && !reach.enter(Via::over(from), *to, &mut queue, &mut visit) {
                    return reach;
                }
            }
        }
        reach
    }

    /// Returns whether the search goes on.
    fn enter(
        &mut self,
        via: Via,
        to: Node,
        queue: &mut Vec<Node>,
        visit: &mut impl FnMut(Node) -> Visit,
    ) -> bool {
        let visit = visit(to);
        if visit != Visit::Skip {
            self.via[to.index()] = via.0;
            self.nodes += 1;
            queue.push(to);
        }
        visit != Visit::Stop
    }

    pub(crate) fn has(&self, node: Node) -> bool {
        self.via[node.index()] != UNREACHED.0
    }

    /// Returns whether the path to `to` is the path to `from` and one reference more.
    pub(crate) fn leads(&self, from: Node, to: Node) -> bool {
        self.via[to.index()] == Via::over(from).0
    }

    /// Returns the number of nodes that were reached.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes
    }

    /// Returns the path from the node back to its root, both included. Empty if it is not reached.
    pub(crate) fn back(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        let first = self.has(node).then_some(node);
        std::iter::successors(first, |at| {
            let via = self.via[at.index()];
            (via != ROOT.0).then(|| Node(via - 2))
        })
    }
}

/// A set of the numbers below a limit, one bit each: a search remembers where it was in so little memory
/// that it stays in the processor's cache.
#[derive(Clone)]
pub(crate) struct BitSet(Vec<u64>);

impl BitSet {
    /// Creates an empty set for numbers below `limit`.
    pub(crate) fn new(limit: usize) -> BitSet {
        BitSet(vec![0; limit.div_ceil(64)])
    }

    pub(crate) fn contains(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    pub(crate) fn remove(&mut self, at: usize) {
        self.0[at / 64] &= !(1 << (at % 64));
    }

    /// Adds a number. Returns whether it is new.
    pub(crate) fn insert(&mut self, at: usize) -> bool {
        let (word, bit) = (&mut self.0[at / 64], 1 << (at % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}
