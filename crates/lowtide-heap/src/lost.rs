//! What is lost when references or nodes go, found without looking at what is not.
//!
//! We have a tree of shortest ways to every node. Whose way in the tree leads over nothing that
//! goes is still reached. Only the others are in doubt: those that hang, in the tree, on what goes.
//! Of them stays whom somebody refers to who is not in doubt, or stays; the rest is lost. That
//! looks at what goes and its neighbours, as a rule a few thousand nodes of millions.

use crate::graph::{Edge, Node};
use crate::ground::Ground;
use crate::marks::Marks;
use crate::tree::Freed;

/// Nodes that are lost.
pub(crate) struct Lost {
    marks: Marks,
    /// Whatever was in doubt.
    doubted: Vec<u32>,
}

impl Lost {
    /// When these numbers go.
    pub(crate) fn with_nodes(ground: Ground<'_>, numbers: &[u32]) -> Lost {
        let mut gone = Marks::new(ground.order.len());
        for number in numbers {
            gone.set(*number);
        }
        let nodes = numbers.iter().map(|number| ground.order.node(*number));
        Lost::new(ground, nodes, |_, to| gone.has(to))
    }

    /// When these references go. They are in order.
    pub(crate) fn with_edges(ground: Ground<'_>, edges: &[Edge]) -> Lost {
        // One bit says of nearly every number that none of its references is among these.
        let mut from_here = Marks::new(ground.order.len());
        for edge in edges {
            ground.order.number(edge.from.0).map(|from| from_here.set(from));
        }
        let gone = |edge: Edge| edges.binary_search(&edge).is_ok();
        let heads = edges.iter().filter(|edge| ground.reach.leads(edge.from.0, edge.to.0));
        Lost::new(ground, heads.map(|edge| edge.to.0), |from, to| {
            from_here.has(from) && ground.edges(from, to).all(gone)
        })
    }

    /// `nodes` is where ways in the tree are broken, `shut` whether no reference leads from one
    /// number to another any more.
    fn new(
        ground: Ground<'_>,
        nodes: impl Iterator<Item = u32>,
        shut: impl Fn(u32, u32) -> bool,
    ) -> Lost {
        let mut lost = Lost { marks: Marks::new(ground.graph.len()), doubted: Vec::new() };
        nodes.for_each(|node| lost.doubt(node));
        let mut next = 0;
        while let Some(from) = lost.doubted.get(next).copied() {
            next += 1;
            let hanging = ground.graph.row(from).iter().filter(|to| ground.reach.leads(from, **to));
            hanging.for_each(|to| lost.doubt(*to));
        }
        lost.keep(ground, shut);
        lost
    }

    fn doubt(&mut self, node: u32) {
        if self.marks.set(node) {
            self.doubted.push(node);
        }
    }

    /// Whom somebody refers to who is not in doubt is not, either; and so on.
    fn keep(&mut self, Ground { graph, order, .. }: Ground<'_>, shut: impl Fn(u32, u32) -> bool) {
        let mut kept = Vec::new();
        for node in &self.doubted {
            let to = order.reached(*node);
            // Who has 0 among its referrers is a root, and that is only in doubt if it goes.
            let holds =
                |from: &u32| *from != 0 && !self.marks.has(order.node(*from)) && !shut(*from, to);
            if order.referrers(to).iter().any(holds) {
                self.marks.clear(*node);
                kept.push(*node);
            }
        }
        while let Some(node) = kept.pop() {
            let from = order.reached(node);
            for to in graph.row(node) {
                if self.marks.has(*to) && !shut(from, order.reached(*to)) {
                    self.marks.clear(*to);
                    kept.push(*to);
                }
            }
        }
    }

    /// Whether a node is lost.
    pub(crate) fn has(&self, node: u32) -> bool {
        self.marks.has(node)
    }

    /// All of them.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Node> + '_ {
        self.doubted.iter().filter(|node| self.has(**node)).map(|node| Node(*node))
    }

    /// What they come to.
    pub(crate) fn freed(&self, ground: Ground<'_>) -> Freed {
        let mut freed = Freed::default();
        for node in self.nodes() {
            freed.nodes += 1;
            freed.bytes += ground.graph.bytes(node);
        }
        freed
    }
}
