//! A graph together with everything that was computed about it, and with a cost on its references.
//!
//! # Nodes with very many references
//!
//! Most rows are short, and reading one is faster than any lookup. But if a dict holds a thousand
//! targets, its row would be read a thousand times. So a long row that is searched often is sorted,
//! once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::dominators::Tree;
use crate::graph::{Edge, Graph, Node};
use crate::order::{Order, Rank};
use crate::reach::Reach;

/// Whether a reference may be cut, and at what cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutCost {
    /// It may be cut at this cost, which is at least 1. If every reference costs 1, the smallest cut
    /// is the one with the fewest references.
    Cost(u32),
    /// It cannot be cut, or nobody should.
    Never,
}

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

/// A row with at least this many references is long.
const LONG: usize = 64;
/// After this many searches of a row, sorting it is cheaper than reading it again.
const OFTEN: u32 = 16;

/// A row's targets and their indices, sorted.
type SortedRow = Arc<[(Node, u32)]>;

#[derive(Default)]
struct Hub {
    searches: u32,
    sorted: Option<SortedRow>,
}

/// The long rows that were searched.
#[derive(Default)]
pub(crate) struct Hubs(RefCell<HashMap<Node, Hub>>);

impl Hubs {
    /// Returns every reference from one node to another.
    pub(crate) fn edges<'g>(
        &self,
        graph: &'g Graph,
        from: Node,
        to: Node,
    ) -> impl Iterator<Item = Edge> + use<'g> {
        let row = graph.row(from);
        let sorted = if row.len() < LONG { None } else { self.sorted(row, from) };
        let range = sorted.as_ref().map_or(0..row.len(), |sorted| {
            let first = sorted.partition_point(|(at, _)| *at < to);
            let len = sorted[first..].iter().take_while(|(at, _)| *at == to).count();
            first..first + len
        });
        range.filter_map(move |at| {
            let index = sorted.as_ref().map_or(at as u32, |sorted| sorted[at].1);
            (row[index as usize] == to).then_some(Edge { from, index, to })
        })
    }

    fn sorted(&self, row: &[Node], from: Node) -> Option<SortedRow> {
        let mut hubs = self.0.borrow_mut();
        let hub = hubs.entry(from).or_default();
        hub.searches = hub.searches.saturating_add(1);
        if hub.sorted.is_none() && hub.searches > OFTEN {
            let mut pairs: Vec<(Node, u32)> = row.iter().copied().zip(0..).collect();
            pairs.sort_unstable();
            hub.sorted = Some(pairs.into());
        }
        hub.sorted.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;

    #[test]
    fn a_row_has_the_same_references_before_and_after_it_is_sorted() {
        let mut builder = GraphBuilder::default();
        let nodes: Vec<Node> = (0..300).map(|_| builder.node()).collect();
        for index in 0..500 {
            builder.edge(nodes[0], nodes[index * 7 % 299]);
        }
        let graph = builder.finish();
        let hubs = Hubs::default();
        for _ in 0..=OFTEN {
            for to in [0, 1, 2, 150, 298, 299].map(Node) {
                let found: Vec<Edge> = hubs.edges(&graph, nodes[0], to).collect();
                let all = graph.references(nodes[0]).filter(|edge| edge.to == to);
                assert_eq!(found, all.collect::<Vec<_>>(), "{to:?}");
            }
        }
        assert!(hubs.0.borrow()[&nodes[0]].sorted.is_some());
    }
}
