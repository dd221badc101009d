//! What becomes unreachable when references or nodes go, found without visiting the rest.
//!
//! The breadth-first tree has a shortest path to every node. A node whose tree path uses nothing
//! that goes is still reached. Only the others are in doubt: those below, in the tree, what goes. Of
//! these a node stays if a node refers to it that is not in doubt or stays; the rest is lost. That
//! visits what goes and its neighbours, usually a few thousand of millions of nodes.

use crate::graph::{Edge, Node, Size};
use crate::indexed::Indexed;
use crate::order::Rank;
use crate::reach::BitSet;

/// The nodes that become unreachable.
pub(crate) struct Lost {
    /// The nodes that are in doubt, at the end those that are lost.
    lost: BitSet,
    /// Every node that was in doubt.
    doubted: Vec<Node>,
}

impl Lost {
    /// Finds what is lost when these ranks go.
    pub(crate) fn with_ranks(indexed: Indexed<'_>, ranks: &[Rank]) -> Lost {
        let mut gone = BitSet::new(indexed.order.len());
        for rank in ranks {
            gone.insert(rank.index());
        }
        let nodes = ranks.iter().map(|rank| indexed.order.node(*rank));
        Lost::new(indexed, nodes, |_, to| gone.contains(to.index()))
    }

    /// Finds what is lost when these references go, which must be sorted.
    pub(crate) fn with_edges(indexed: Indexed<'_>, edges: &[Edge]) -> Lost {
        // One bit says of almost every rank that none of its references goes.
        let mut have_some = BitSet::new(indexed.order.len());
        for edge in edges {
            indexed.order.rank(edge.from).map(|from| have_some.insert(from.index()));
        }
        let is_gone = |edge: Edge| edges.binary_search(&edge).is_ok();
        let broken = edges.iter().filter(|edge| indexed.reach.leads(edge.from, edge.to));
        Lost::new(indexed, broken.map(|edge| edge.to), |from, to| {
            have_some.contains(from.index()) && indexed.edges(from, to).all(is_gone)
        })
    }

    /// `nodes` are those whose tree paths are broken; `is_shut` says whether no reference is left
    /// from one rank to another.
    fn new(
        indexed: Indexed<'_>,
        nodes: impl Iterator<Item = Node>,
        is_shut: impl Fn(Rank, Rank) -> bool,
    ) -> Lost {
        let mut lost = Lost { lost: BitSet::new(indexed.graph.len()), doubted: Vec::new() };
        nodes.for_each(|node| lost.doubt(node));
        let mut next = 0;
        while let Some(from) = lost.doubted.get(next).copied() {
            next += 1;
            let row = indexed.graph.row(from).iter();
            let below = row.filter(|to| indexed.reach.leads(from, **to));
            below.for_each(|to| lost.doubt(*to));
        }
        lost.keep_reached(indexed, is_shut);
        lost
    }

    fn doubt(&mut self, node: Node) {
        if self.lost.insert(node.index()) {
            self.doubted.push(node);
        }
    }

    /// Removes the nodes that are still reached: those with a referrer that is not in doubt, and
    /// what these lead to.
    fn keep_reached(
        &mut self,
        Indexed { graph, order, .. }: Indexed<'_>,
        is_shut: impl Fn(Rank, Rank) -> bool,
    ) {
        let mut kept = Vec::new();
        for node in &self.doubted {
            let to = order.rank_of_reached(*node);
            // A root has `ROOTS` among its referrers, and is in doubt only if it goes itself.
            let holds = |from: &Rank| {
                *from != Rank::ROOTS && !self.has(order.node(*from)) && !is_shut(*from, to)
            };
            if order.referrers(to).iter().any(holds) {
                self.lost.remove(node.index());
                kept.push(*node);
            }
        }
        while let Some(node) = kept.pop() {
            let from = order.rank_of_reached(node);
            for to in graph.row(node) {
                if self.has(*to) && !is_shut(from, order.rank_of_reached(*to)) {
                    self.lost.remove(to.index());
                    kept.push(*to);
                }
            }
        }
    }

    /// Returns whether the node is lost.
    pub(crate) fn has(&self, node: Node) -> bool {
        self.lost.contains(node.index())
    }

    /// Returns all nodes that are lost.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Node> + '_ {
        self.doubted.iter().copied().filter(|node| self.has(*node))
    }

    /// Returns the size of what is lost.
    pub(crate) fn size(&self, indexed: Indexed<'_>) -> Size {
        let mut size = Size::default();
        for node in self.nodes() {
            size.nodes += 1;
            size.bytes += indexed.graph.bytes(node);
        }
        size
    }
}
