//! The graph: nodes by number, references in compressed rows.
//!
//! The walker finds the objects node after node and names the references of each. That order makes
//! building cheap: a reference is four bytes at the end of a list, and nothing is sorted or moved
//! later. Only the few nodes that hold device memory have an entry for it.

use std::ops::Range;

use lowtide_types::Bytes;

/// An object, numbered in the order in which the walker found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(pub u32);

impl Node {
    /// Returns the node's index in a table with one entry for each node.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A reference from one object to another.
///
/// An object may refer to another several times; `index` tells these references apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Edge {
    /// The object that has the reference.
    pub from: Node,
    /// The position among the references of `from`, in the order in which the walker named them.
    pub index: u32,
    /// The object that is referred to.
    pub to: Node,
}

/// An object graph. [`GraphBuilder`](crate::GraphBuilder) makes one.
#[derive(Debug)]
pub struct Graph {
    /// The start of each node's row in `targets`, and the end of the last row.
    rows: Vec<u32>,
    targets: Vec<Node>,
    /// The memory of the nodes that hold any, in the order of nodes.
    bytes: Vec<(Node, Bytes)>,
    /// In order, each once.
    roots: Vec<Node>,
}

impl Graph {
    /// Creates a graph from its parts, which the builder has put in order.
    pub(crate) fn new(
        rows: Vec<u32>,
        targets: Vec<Node>,
        bytes: Vec<(Node, Bytes)>,
        roots: Vec<Node>,
    ) -> Graph {
        Graph { rows, targets, bytes, roots }
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.rows.len() - 1
    }

    /// Returns whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of references.
    pub fn edges(&self) -> usize {
        self.targets.len()
    }

    /// Returns the references that `node` has, in order.
    ///
    /// # Panics
    /// If the node is not of this graph.
    pub fn references(&self, node: Node) -> impl Iterator<Item = Edge> + '_ {
        let row = (0..).zip(self.row(node));
        row.map(move |(index, to)| Edge { from: node, index, to: *to })
    }

    /// Returns the roots: the objects that are alive without any reference to them.
    pub fn roots(&self) -> impl Iterator<Item = Node> + '_ {
        self.roots.iter().copied()
    }

    /// Returns the device memory that the object itself holds.
    pub fn bytes(&self, node: Node) -> Bytes {
        let found = self.bytes.binary_search_by_key(&node, |(node, _)| *node);
        found.map_or(Bytes::ZERO, |at| self.bytes[at].1)
    }

    /// Returns the objects that hold device memory themselves, and how much each holds.
    pub fn holding(&self) -> impl Iterator<Item = (Node, Bytes)> + '_ {
        self.bytes.iter().copied()
    }

    /// The targets of a node's references.
    pub(crate) fn row(&self, node: Node) -> &[Node] {
        &self.targets[self.span(node)]
    }

    pub(crate) fn root_nodes(&self) -> &[Node] {
        &self.roots
    }

    /// Returns the first reference from one node to another, if there is one.
    pub(crate) fn between(&self, from: Node, to: Node) -> Option<Edge> {
        let index = self.row(from).iter().position(|found| *found == to)?;
        Some(Edge { from, index: index as u32, to })
    }

    fn span(&self, node: Node) -> Range<usize> {
        self.rows[node.index()] as usize..self.rows[node.index() + 1] as usize
    }
}

/// A number of nodes and the device memory that they hold together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size {
    /// The number of nodes.
    pub nodes: u64,
    /// The device memory that these nodes hold.
    pub bytes: Bytes,
}

impl Size {
    /// Subtracts `part`, which must be contained in `self`.
    pub(crate) fn without(self, part: Size) -> Size {
        Size { nodes: self.nodes - part.nodes, bytes: self.bytes - part.bytes }
    }
}
