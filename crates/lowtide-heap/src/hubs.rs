//! Nodes with very many references, asked again and again which of them lead to a certain node.
//!
//! Most rows are short and read faster than anything could be looked up. But where a thousand
//! targets are in one dict, its row would be read a thousand times; so a long row that is asked
//! about often is sorted, once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::graph::{Edge, Graph, Node};

/// References from which on a row is long.
const LONG: usize = 64;
/// Questions after which sorting is cheaper than reading on.
const OFTEN: u32 = 16;

/// The targets of a row and their places, in order.
type Sorted = Arc<[(u32, u32)]>;

#[derive(Default)]
pub(crate) struct Hubs(RefCell<HashMap<u32, (u32, Option<Sorted>)>>);

impl Hubs {
    /// Every reference between the two.
    pub(crate) fn edges<'g>(
        &self,
        graph: &'g Graph,
        from: u32,
        to: u32,
    ) -> impl Iterator<Item = Edge> + use<'g> {
        let row = graph.row(from);
        let sorted = if row.len() < LONG { None } else { self.sorted(row, from) };
        let range = sorted.as_ref().map_or(0..row.len(), |sorted| {
            let first = sorted.partition_point(|(at, _)| *at < to);
            let len = sorted[first..].iter().take_while(|(at, _)| *at == to).count();
            first..first + len
        });
        range.filter_map(move |at| {
            let place = sorted.as_ref().map_or(at as u32, |sorted| sorted[at].1);
            let found = row[place as usize] == to;
            found.then_some(Edge { from: Node(from), place, to: Node(to) })
        })
    }

    fn sorted(&self, row: &[u32], from: u32) -> Option<Sorted> {
        let mut hubs = self.0.borrow_mut();
        let (asked, sorted) = hubs.entry(from).or_default();
        *asked = asked.saturating_add(1);
        if sorted.is_none() && *asked > OFTEN {
            let mut pairs: Vec<(u32, u32)> = row.iter().copied().zip(0..).collect();
            pairs.sort_unstable();
            *sorted = Some(pairs.into());
        }
        sorted.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GraphBuilder;

    #[test]
    fn a_row_says_the_same_before_and_after_it_is_sorted() {
        let mut builder = GraphBuilder::default();
        let nodes: Vec<Node> = (0..300).map(|_| builder.node()).collect();
        for place in 0..500 {
            builder.edge(nodes[0], nodes[place * 7 % 299]);
        }
        let graph = builder.finish();
        let hubs = Hubs::default();
        for _ in 0..=OFTEN {
            for to in [0, 1, 2, 150, 298, 299] {
                let found: Vec<Edge> = hubs.edges(&graph, 0, to).collect();
                let all = graph.references(nodes[0]).filter(|edge| edge.to.0 == to);
                assert_eq!(found, all.collect::<Vec<_>>(), "{to}");
            }
        }
        assert!(hubs.0.borrow()[&0].1.is_some());
    }
}
