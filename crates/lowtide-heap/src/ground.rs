//! What a cut is looked for in: the graph by its numbers, what each reference costs, and the nodes
//! that are to be cut off.

use std::ops::Range;

use crate::graph::{Edge, Graph};
use crate::hubs::Hubs;
use crate::order::Order;
use crate::reach::Reach;
use crate::tree::Tree;

/// Whether a reference may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// At this price, which is at least 1. With 1 everywhere, the smallest cut is the one with
    /// the fewest references.
    Cuttable(u32),
    /// Nobody can, or nobody should.
    Never,
}

/// In place of a weight: may never be cut. More than any sum of weights.
pub(crate) const NEVER: u64 = u64::MAX;

/// A graph with all that is known of it.
#[derive(Clone, Copy)]
pub(crate) struct Ground<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) reach: &'a Reach,
    pub(crate) order: &'a Order,
    pub(crate) tree: &'a Tree,
    pub(crate) hubs: &'a Hubs,
}

impl<'a> Ground<'a> {
    /// Every reference between two numbers that are not 0.
    pub(crate) fn edges(&self, from: u32, to: u32) -> impl Iterator<Item = Edge> + use<'a> {
        self.hubs.edges(self.graph, self.order.node(from), self.order.node(to))
    }
}

/// With a price on every reference.
pub(crate) struct Priced<'a, C> {
    pub(crate) ground: Ground<'a>,
    pub(crate) class: C,
}

impl<C: Fn(Edge) -> Class> Priced<'_, C> {
    /// What it costs to cut them all. Nobody cuts what holds the roots.
    pub(crate) fn weight(&self, from: u32, to: u32) -> u64 {
        if from == 0 {
            return NEVER;
        }
        let mut sum = 0;
        for edge in self.ground.edges(from, to) {
            match (self.class)(edge) {
                Class::Never => return NEVER,
                Class::Cuttable(weight) => {
                    assert!(weight > 0, "{edge:?} costs something to cut");
                    sum += u64::from(weight);
                }
            }
        }
        sum
    }
}

/// Numbers that are to be cut off.
///
/// What they dominate is only reached through them, and so is no way to them.
#[derive(Default)]
pub(crate) struct Sinks {
    numbers: Vec<u32>,
    /// What each dominates, in order.
    spans: Vec<Range<u32>>,
}

impl Sinks {
    /// Those of them that no other dominates.
    pub(crate) fn new(tree: &Tree, numbers: impl IntoIterator<Item = u32>) -> Sinks {
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        numbers.sort_unstable_by_key(|number| tree.start(*number));
        let mut sinks = Sinks::default();
        for number in numbers {
            let span = tree.span(number);
            if sinks.spans.last().is_none_or(|last| last.end <= span.start) {
                sinks.spans.push(span);
                sinks.numbers.push(number);
            }
        }
        sinks
    }

    pub(crate) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    pub(crate) fn dominate(&self, tree: &Tree, number: u32) -> bool {
        let start = tree.start(number);
        let after = self.spans.partition_point(|span| span.start <= start);
        after > 0 && self.spans[after - 1].contains(&start)
    }

    /// The nearest that is on every way to all of them, and is none of them.
    pub(crate) fn source(&self, tree: &Tree) -> Option<u32> {
        let (first, last) = (*self.numbers.first()?, *self.numbers.last()?);
        let mut source = tree.above(first);
        // Whoever dominates the outermost two of an order of the tree dominates all between.
        while !tree.dominates(source, last) {
            source = tree.above(source);
        }
        Some(source)
    }
}
