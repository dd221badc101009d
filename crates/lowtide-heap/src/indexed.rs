//! A graph together with everything that was computed about it, and with a cost on its references.

use crate::cost::CutCost;
use crate::forks::Forks;
use crate::graph::{Edge, Graph};
use crate::hubs::Hubs;
use crate::order::{Order, Rank};
use crate::reach::Reach;
use crate::tree::Tree;

/// In place of a weight: may never be cut. More than any sum of costs.
pub(crate) const NEVER: u64 = u64::MAX;

/// A graph and its indexes.
#[derive(Clone, Copy)]
pub(crate) struct Indexed<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) reach: &'a Reach,
    pub(crate) order: &'a Order,
    pub(crate) tree: &'a Tree,
    pub(crate) hubs: &'a Hubs,
    pub(crate) forks: &'a Forks,
}

impl<'a> Indexed<'a> {
    /// Returns every reference between two ranks other than [`Rank::ROOTS`].
    pub(crate) fn edges(&self, from: Rank, to: Rank) -> impl Iterator<Item = Edge> + use<'a> {
        self.hubs.edges(self.graph, self.order.node(from), self.order.node(to))
    }
}

/// An indexed graph with a cost on every reference.
pub(crate) struct Weighted<'a> {
    pub(crate) indexed: Indexed<'a>,
    /// Behind a pointer: the search is compiled once, not again for each caller's costs.
    pub(crate) cost: &'a dyn Fn(Edge) -> CutCost,
}

impl Weighted<'_> {
    /// Returns what it costs to cut all references between two ranks. The hold of
    /// [`Rank::ROOTS`] on the roots is never cut.
    pub(crate) fn weight(&self, from: Rank, to: Rank) -> u64 {
        if from == Rank::ROOTS {
            return NEVER;
        }
        let mut sum = 0;
        for edge in self.indexed.edges(from, to) {
            match (self.cost)(edge) {
                CutCost::Never => return NEVER,
                CutCost::Cost(cost) => {
                    assert!(cost > 0, "cutting {edge:?} must cost at least 1");
                    sum += u64::from(cost);
                }
            }
        }
        sum
    }
}
