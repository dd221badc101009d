//! Building a graph while objects are walked.

use std::collections::TryReserveError;
use std::num::NonZeroUsize;

use lowtide_types::Bytes;

use crate::graph::{Graph, Node};
use crate::parallel_reach;

/// The most nodes that a graph can have: two numbers stay free for "no node" and "a root".
const NODES_MOST: u32 = u32::MAX - 1;
/// The most references that a graph can have: positions in their list are four bytes long.
const REFERENCES_MOST: usize = u32::MAX as usize;

/// A graph under construction.
///
/// Nodes may be added at any time. The references of a node are added together, and those of
/// lower nodes first:
///
/// ```
/// use lowtide_heap::GraphBuilder;
/// let mut builder = GraphBuilder::default();
/// let (a, b) = (builder.node(), builder.node());
/// builder.edge(a, b);
/// let c = builder.node();
/// builder.edge(b, c);
/// builder.root(a);
/// assert_eq!(builder.finish().edges(), 2);
/// ```
#[derive(Debug, Default)]
pub struct GraphBuilder {
    nodes: u32,
    /// The start of each row, up to the one being written.
    rows: Vec<u32>,
    targets: Vec<Node>,
    /// References that were added out of order: from and to.
    late: Vec<(Node, Node)>,
    bytes: Vec<(Node, Bytes)>,
    roots: Vec<Node>,
}

impl GraphBuilder {
    /// Creates a builder with memory for this many nodes and references. It may get more of both.
    pub fn with_capacity(nodes: usize, edges: usize) -> GraphBuilder {
        GraphBuilder {
            rows: Vec::with_capacity(nodes + 1),
            targets: Vec::with_capacity(edges),
            ..GraphBuilder::default()
        }
    }

    /// Makes room for so many more nodes and references than there are, so that adding them does
    /// not allocate.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn try_reserve(&mut self, nodes: usize, edges: usize) -> Result<(), TryReserveError> {
        let rows = (self.nodes as usize + nodes + 1).saturating_sub(self.rows.len());
        self.rows.try_reserve(rows)?;
        self.targets.try_reserve(edges)
    }

    /// Returns the number of nodes and of references so far.
    pub fn len(&self) -> (usize, usize) {
        (self.nodes as usize, self.targets.len() + self.late.len())
    }

    /// Adds an object and returns its node.
    ///
    /// # Panics
    /// If there are 2³² − 2 nodes already.
    #[inline]
    pub fn node(&mut self) -> Node {
        assert!(self.nodes < NODES_MOST, "a graph has at most {NODES_MOST} nodes");
        self.nodes += 1;
        Node(self.nodes - 1)
    }

    /// Adds so many objects and returns the node of the first. Those of the others follow it.
    ///
    /// # Panics
    /// If there would be more than 2³² − 2 nodes.
    pub fn nodes(&mut self, count: usize) -> Node {
        let first = Node(self.nodes);
        let all = self.nodes as usize + count;
        assert!(all <= NODES_MOST as usize, "a graph has at most {NODES_MOST} nodes, not {all}");
        self.nodes = all as u32;
        first
    }

    /// Adds the references of several nodes, which follow each other from `first` on: those of the
    /// first end in `targets` at `ends[0]`, where those of the second begin, and so on.
    ///
    /// # Panics
    /// If a reference of `first` or of a higher node was added before, if one of the nodes is not of
    /// this builder, if `ends` is not in order or ends elsewhere than `targets`, or if there would
    /// be more than 2³² − 1 references.
    pub fn rows(&mut self, first: Node, ends: &[u32], targets: &[Node]) {
        let Some(last) = ends.len().checked_sub(1) else { return };
        assert!(first.index() + last < self.nodes as usize, "{first:?} and {last} more");
        if let Some(highest) = targets.iter().max() {
            self.assert_is_ours(*highest);
        }
        assert!(ends.is_sorted() && ends[last] as usize == targets.len(), "rows in order");
        let begin = self.targets.len();
        assert!(self.rows.len() <= first.index(), "{first:?} has references already");
        let all = begin + targets.len();
        assert!(all <= REFERENCES_MOST, "at most {REFERENCES_MOST} references, not {all}");
        self.rows.resize(first.index(), begin as u32);
        let starts = [0].into_iter().chain(ends[..last].iter().copied());
        self.rows.extend(starts.map(|start| begin as u32 + start));
        self.targets.extend_from_slice(targets);
    }

    /// Returns the references that a node has so far, without late ones.
    pub fn row(&self, node: Node) -> &[Node] {
        let at = |row: usize| self.rows.get(row).map_or(self.targets.len(), |at| *at as usize);
        &self.targets[at(node.index())..at(node.index() + 1)]
    }

    /// Returns for each node whether the references so far lead to it from `roots`, late ones left
    /// out. Up to `threads` threads look.
    pub fn reached(
        &self,
        roots: impl IntoIterator<Item = Node>,
        threads: NonZeroUsize,
    ) -> Vec<bool> {
        parallel_reach::reached(|node| self.row(node), self.nodes as usize, roots, threads)
    }

    /// Adds a reference from `from` to `to`. Adding it twice makes two references.
    ///
    /// # Panics
    /// If a reference of a higher node was added before, if one of the nodes is not of this
    /// builder, or if there are 2³² − 1 references already.
    #[inline]
    pub fn edge(&mut self, from: Node, to: Node) {
        self.assert_is_ours(from);
        self.assert_is_ours(to);
        let begun = self.rows.len();
        assert!(
            from.index() + 1 >= begun,
            "references are added node after node: {from:?} comes after {}",
            begun - 1
        );
        if from.index() >= begun {
            self.rows.resize(from.index() + 1, self.targets.len() as u32);
        }
        assert!(self.targets.len() < REFERENCES_MOST, "at most {REFERENCES_MOST} references");
        self.targets.push(to);
    }

    /// Adds a reference whose turn has passed: references of higher nodes were added already.
    ///
    /// It becomes the last reference of `from`. Late references are sorted in by
    /// [`finish`](GraphBuilder::finish), so there should be few of them.
    ///
    /// # Panics
    /// If one of the nodes is not of this builder.
    pub fn late_edge(&mut self, from: Node, to: Node) {
        self.assert_is_ours(from);
        self.assert_is_ours(to);
        self.late.push((from, to));
    }

    /// Adds device memory that the object itself holds. Several calls for one node add up.
    ///
    /// # Panics
    /// If the node is not of this builder.
    pub fn bytes(&mut self, node: Node, bytes: Bytes) {
        self.assert_is_ours(node);
        self.bytes.push((node, bytes));
    }

    /// Makes the object a root: it is alive without any reference, and nothing can change that.
    ///
    /// # Panics
    /// If the node is not of this builder.
    pub fn root(&mut self, node: Node) {
        self.assert_is_ours(node);
        self.roots.push(node);
    }

    /// Returns the finished graph.
    ///
    /// # Panics
    /// If there are more than 2³² − 1 references, late ones included.
    pub fn finish(mut self) -> Graph {
        self.rows.resize(self.nodes as usize + 1, self.targets.len() as u32);
        self.sort_in();
        self.rows.shrink_to_fit();
        self.targets.shrink_to_fit();
        self.roots.sort_unstable();
        self.roots.dedup();
        self.bytes.sort_unstable_by_key(|(node, _)| *node);
        self.bytes.dedup_by(|again, first| {
            let is_same = again.0 == first.0;
            if is_same {
                first.1 += again.1;
            }
            is_same
        });
        Graph::new(self.rows, self.targets, self.bytes, self.roots)
    }

    #[inline]
    fn assert_is_ours(&self, node: Node) {
        assert!(node.0 < self.nodes, "{node:?} is not of this builder");
    }

    /// Moves late references into their rows. It works from the last row to the first and needs no
    /// second list: all rows between two that have late references move together, by as many
    /// positions as there are late references before them.
    fn sort_in(&mut self) {
        self.late.sort_by_key(|(from, _)| *from);
        let mut end = self.targets.len();
        let all = end + self.late.len();
        assert!(all <= REFERENCES_MOST, "at most {REFERENCES_MOST} references, not {all}");
        self.targets.resize(all, Node(0));
        let mut last = self.nodes as usize;
        while let Some((from, _)) = self.late.last().copied() {
            let node = from.index();
            let shift = self.late.len();
            // Everything behind this node's row.
            let begin = self.rows[node + 1] as usize;
            self.targets.copy_within(begin..end, begin + shift);
            self.rows[node + 1..=last].iter_mut().for_each(|row| *row += shift as u32);
            let mut at = begin + shift;
            while let Some((_, to)) = self.late.pop_if(|(late, _)| *late == from) {
                at -= 1;
                self.targets[at] = to;
            }
            (end, last) = (begin, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Edge;

    fn rows(graph: &Graph) -> Vec<Vec<u32>> {
        let nodes = (0..graph.len() as u32).map(Node);
        nodes.map(|node| graph.row(node).iter().map(|to| to.0).collect()).collect()
    }

    #[test]
    fn rows_have_the_references_in_the_order_they_were_added() {
        let mut builder = GraphBuilder::with_capacity(4, 4);
        let nodes: Vec<Node> = (0..4).map(|_| builder.node()).collect();
        builder.edge(nodes[1], nodes[3]);
        builder.edge(nodes[1], nodes[1]);
        builder.edge(nodes[1], nodes[3]);
        builder.bytes(nodes[3], Bytes(5));
        builder.bytes(nodes[0], Bytes(1));
        builder.bytes(nodes[3], Bytes(2));
        builder.root(nodes[1]);
        builder.root(nodes[1]);
        let graph = builder.finish();
        assert_eq!(rows(&graph), [&[][..], &[3, 1, 3], &[], &[]]);
        let last = graph.references(nodes[1]).last().unwrap();
        assert_eq!(last, Edge { from: nodes[1], index: 2, to: nodes[3] });
        assert_eq!(graph.between(nodes[1], nodes[3]).unwrap().index, 0);
        assert_eq!(graph.between(nodes[0], nodes[3]), None);
        assert_eq!(graph.bytes(nodes[3]), Bytes(7));
        assert_eq!(graph.bytes(nodes[2]), Bytes::ZERO);
        assert_eq!(graph.holding().count(), 2);
        assert_eq!(graph.roots().collect::<Vec<_>>(), [nodes[1]]);
    }

    #[test]
    fn late_references_come_last_in_their_rows() {
        let mut builder = GraphBuilder::default();
        let nodes: Vec<Node> = (0..5).map(|_| builder.node()).collect();
        for (from, to) in [(0, 1), (0, 2), (2, 3), (3, 3)] {
            builder.edge(nodes[from], nodes[to]);
        }
        for (from, to) in [(2, 0), (0, 4), (4, 1), (0, 3), (1, 1)] {
            builder.late_edge(nodes[from], nodes[to]);
        }
        let graph = builder.finish();
        assert_eq!(rows(&graph), [&[1, 2, 4, 3][..], &[1], &[3, 0], &[3], &[1]]);
    }

    #[test]
    fn rows_that_are_added_together_are_those_that_are_added_one_by_one() {
        let edges = [(1, 3), (1, 0), (2, 2), (4, 1), (4, 5)];
        let mut together = GraphBuilder::default();
        let first = together.nodes(6);
        together.edge(Node(1), Node(3));
        together.edge(Node(1), Node(0));
        together.rows(Node(2), &[1, 1, 3], &[2, 1, 5].map(Node));
        together.rows(Node(5), &[0], &[]);
        let mut alone = GraphBuilder::default();
        alone.nodes(6);
        for (from, to) in edges {
            alone.edge(Node(from), Node(to));
        }
        assert_eq!(first, Node(0));
        let of_builder: Vec<Vec<u32>> =
            (0..6).map(|at| together.row(Node(at)).iter().map(|to| to.0).collect()).collect();
        assert_eq!(of_builder, rows(&alone.finish()));
        assert_eq!(of_builder, rows(&together.finish()));
    }

    #[test]
    #[should_panic(expected = "has references already")]
    fn rows_are_added_once() {
        let mut builder = GraphBuilder::default();
        builder.nodes(3);
        builder.rows(Node(0), &[1, 2], &[1, 2].map(Node));
        builder.rows(Node(1), &[1], &[0].map(Node));
    }

    #[test]
    #[should_panic(expected = "node after node")]
    fn rows_come_in_order() {
        let mut builder = GraphBuilder::default();
        let (a, b) = (builder.node(), builder.node());
        builder.edge(b, a);
        builder.edge(a, b);
    }

    #[test]
    #[should_panic(expected = "is not of this builder")]
    fn nodes_are_added_first() {
        let mut builder = GraphBuilder::default();
        let a = builder.node();
        builder.edge(a, Node(1));
    }
}
