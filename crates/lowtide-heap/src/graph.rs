//! Who refers to whom: nodes by number, references in compressed rows.
//!
//! Somebody else walks the objects, node after node, and says what each refers to. That order is
//! what makes building cheap: a reference is four bytes at the end of a list, and nothing is sorted
//! or moved later. Only the few nodes that hold device memory have bytes.

use std::ops::Range;

use lowtide_types::Bytes;

/// The most nodes a graph can have: two numbers stay free for "none" and "the roots".
const NODES_MOST: u32 = u32::MAX - 1;
/// The most references: places in their list are four bytes long.
const REFERENCES_MOST: usize = u32::MAX as usize;

/// An object, by the order in which the walker met it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(pub u32);

impl Node {
    /// As a place in the walker's own tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A reference: the `place`-th that `from` has, in the order in which the walker named them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// Who refers.
    pub from: Node,
    /// Which of its references.
    pub place: u32,
    /// To whom.
    pub to: Node,
}

/// A graph being walked.
///
/// Nodes may be made at any time; the references of a node are named together, and those of
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
    /// Where each row begins, up to the one being written.
    rows: Vec<u32>,
    targets: Vec<u32>,
    /// References that were named out of order.
    late: Vec<(u32, u32)>,
    bytes: Vec<(u32, u64)>,
    roots: Vec<u32>,
}

impl GraphBuilder {
    /// With room for so many, where the walker can guess.
    pub fn with_capacity(nodes: usize, edges: usize) -> GraphBuilder {
        GraphBuilder {
            rows: Vec::with_capacity(nodes + 1),
            targets: Vec::with_capacity(edges),
            ..GraphBuilder::default()
        }
    }

    /// Another object.
    ///
    /// # Panics
    /// At more than 2³² − 2 of them.
    pub fn node(&mut self) -> Node {
        assert!(self.nodes < NODES_MOST, "a graph has at most {NODES_MOST} nodes");
        self.nodes += 1;
        Node(self.nodes - 1)
    }

    /// `from` refers to `to`. Twice, if it is said twice.
    ///
    /// # Panics
    /// If a reference of a higher node was named before, or one of the two was never made; at more than
    /// 2³² − 1 references.
    pub fn edge(&mut self, from: Node, to: Node) {
        assert!(from.0 < self.nodes && to.0 < self.nodes, "{from:?} and {to:?} were made here");
        let begun = self.rows.len();
        assert!(
            from.index() + 1 >= begun,
            "references come node after node: {from:?} after {}",
            begun - 1
        );
        if from.index() >= begun {
            self.rows.resize(from.index() + 1, self.targets.len() as u32);
        }
        assert!(self.targets.len() < REFERENCES_MOST, "at most {REFERENCES_MOST} references");
        self.targets.push(to.0);
    }

    /// `from` refers to `to`, as was found out when the references of higher nodes were named
    /// already. It comes after those that were named in time. For the few where it cannot be helped:
    /// they are sorted in when the walk is over.
    ///
    /// # Panics
    /// If one of the two was never made.
    pub fn late_edge(&mut self, from: Node, to: Node) {
        assert!(from.0 < self.nodes && to.0 < self.nodes, "{from:?} and {to:?} were made here");
        self.late.push((from.0, to.0));
    }

    /// What the object itself holds on a device; more, if it is said again.
    ///
    /// # Panics
    /// If the node was never made.
    pub fn bytes(&mut self, node: Node, bytes: Bytes) {
        assert!(node.0 < self.nodes, "{node:?} was made here");
        self.bytes.push((node.0, bytes.0));
    }

    /// The object is alive by itself, and that is not a reference that anybody can cut.
    ///
    /// # Panics
    /// If the node was never made.
    pub fn root(&mut self, node: Node) {
        assert!(node.0 < self.nodes, "{node:?} was made here");
        self.roots.push(node.0);
    }

    /// The walk is over.
    ///
    /// # Panics
    /// At more than 2³² − 1 references.
    pub fn finish(mut self) -> Graph {
        self.rows.resize(self.nodes as usize + 1, self.targets.len() as u32);
        self.sort_in();
        self.rows.shrink_to_fit();
        self.targets.shrink_to_fit();
        self.roots.sort_unstable();
        self.roots.dedup();
        self.bytes.sort_unstable_by_key(|(node, _)| *node);
        self.bytes.dedup_by(|again, first| {
            let same = again.0 == first.0;
            if same {
                first.1 += again.1;
            }
            same
        });
        Graph { rows: self.rows, targets: self.targets, bytes: self.bytes, roots: self.roots }
    }

    /// Late references into their rows. From the last to the first, so that nothing is needed beside
    /// the list: all rows between two that have some move as one, by as many places as there are late
    /// ones before them.
    fn sort_in(&mut self) {
        self.late.sort_by_key(|(from, _)| *from);
        let mut end = self.targets.len();
        let all = end + self.late.len();
        assert!(all <= REFERENCES_MOST, "at most {REFERENCES_MOST} references, not {all}");
        self.targets.resize(all, 0);
        let mut last = self.nodes as usize;
        while let Some((from, _)) = self.late.last().copied() {
            let node = from as usize;
            let shift = self.late.len();
            // From the end of this node's row on.
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

/// Who refers to whom, as it was walked.
#[derive(Debug)]
pub struct Graph {
    /// Where each node's row begins, and where the last one ends.
    rows: Vec<u32>,
    targets: Vec<u32>,
    /// By node, only where there are any.
    bytes: Vec<(u32, u64)>,
    roots: Vec<u32>,
}

impl Graph {
    /// How many nodes it has.
    pub fn len(&self) -> usize {
        self.rows.len() - 1
    }

    /// Whether nothing was walked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many references it has.
    pub fn edges(&self) -> usize {
        self.targets.len()
    }

    /// What `node` refers to.
    pub fn references(&self, node: Node) -> impl Iterator<Item = Edge> + '_ {
        let row = (0..).zip(self.row(node.0));
        row.map(move |(place, to)| Edge { from: node, place, to: Node(*to) })
    }

    /// The nodes that are alive by themselves.
    pub fn roots(&self) -> impl Iterator<Item = Node> + '_ {
        self.roots.iter().map(|root| Node(*root))
    }

    /// What the node itself holds.
    pub fn bytes(&self, node: Node) -> Bytes {
        let found = self.bytes.binary_search_by_key(&node.0, |(node, _)| *node);
        Bytes(found.map_or(0, |at| self.bytes[at].1))
    }

    /// The nodes that hold something, and what.
    pub fn holding(&self) -> impl Iterator<Item = (Node, Bytes)> + '_ {
        self.bytes.iter().map(|(node, bytes)| (Node(*node), Bytes(*bytes)))
    }

    pub(crate) fn row(&self, node: u32) -> &[u32] {
        &self.targets[self.span(node)]
    }

    pub(crate) fn root_nodes(&self) -> &[u32] {
        &self.roots
    }

    /// The first reference between the two, where there is one.
    pub(crate) fn between(&self, from: u32, to: u32) -> Option<Edge> {
        let place = self.row(from).iter().position(|found| *found == to)?;
        Some(Edge { from: Node(from), place: place as u32, to: Node(to) })
    }

    fn span(&self, node: u32) -> Range<usize> {
        self.rows[node as usize] as usize..self.rows[node as usize + 1] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_what_was_said() {
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
        assert!(graph.row(0).is_empty());
        assert_eq!(graph.row(1), [3, 1, 3]);
        assert!(graph.row(3).is_empty());
        let last = graph.references(nodes[1]).last().unwrap();
        assert_eq!(last, Edge { from: nodes[1], place: 2, to: nodes[3] });
        assert_eq!(graph.between(1, 3).unwrap().place, 0);
        assert_eq!(graph.between(0, 3), None);
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
        let rows: Vec<&[u32]> = (0..5).map(|node| graph.row(node)).collect();
        assert_eq!(rows, [&[1, 2, 4, 3][..], &[1], &[3, 0], &[3], &[1]]);
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
    #[should_panic(expected = "were made here")]
    fn nodes_are_made_first() {
        let mut builder = GraphBuilder::default();
        let a = builder.node();
        builder.edge(a, Node(1));
    }
}
