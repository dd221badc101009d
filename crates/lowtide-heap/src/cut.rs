//! Finding the references to cut so that some nodes become unreachable.
//!
//! A cut divides the nodes into two sides: those that are still reached when its references are
//! gone, and those that are not. Three facts about the sides decide how cuts are found here.
//!
//! 1. *There is a gentlest cut.* If a node leads to a target over references that may never be cut,
//!    it has to go with the target, whatever the cut. Cutting exactly the references that lead to
//!    the targets and these nodes loses the least: what is lost with this cut is lost with every
//!    other.
//! 2. *Among the smallest cuts one is the gentlest.* If two cuts have the least weight, so has the
//!    cut whose target side is what their target sides have in common. So one of them is nearest to
//!    the targets, and what is lost with it is lost with all the others. The last search of the flow
//!    sees its side (`flow.rs`). Nothing has to be weighed up: losing the least and being nearest to
//!    the targets is the same.
//! 3. *Dominators divide the problem.* Every path to the targets leads over their dominators, one
//!    after another. A cut that leaves a path open between each two neighbours in that chain leaves
//!    a whole path open. So a smallest cut closes the paths between two neighbours and does nothing
//!    else. The stretches between neighbours are searched one by one, from the targets outwards,
//!    each only for a cut that is smaller than those before. Usually the first stretch has a cut of
//!    one reference, and the rest of the heap is not looked at.

use std::fmt;

use crate::dominators::Sinks;
use crate::flow::Flow;
use crate::graph::{Edge, Node, Size};
use crate::indexed::{CutCost, Indexed, Weighted};
use crate::lost::Lost;
use crate::order::Rank;

/// A set of references; cutting all of them makes the targets unreachable. Each of them is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The references, in the order of nodes and indices. Empty if the targets are not reached
    /// anyway.
    pub edges: Vec<Edge>,
    /// The sum of their costs.
    pub weight: u64,
    /// What becomes unreachable, the targets included.
    pub freed: Size,
    /// The part of `freed` that is lost although the targets do not retain it.
    pub collateral: Size,
}

/// The reason why there is no cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoCut {
    /// A target is a root, or is reached over references of which none may be cut.
    Never,
    /// The smallest cut weighs more than this limit, which the caller set.
    MoreThan(u64),
}

impl fmt::Display for NoCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoCut::Never => f.write_str("a path leads to it on which nothing may be cut"),
            NoCut::MoreThan(1) => f.write_str("more than 1 reference would have to be cut"),
            NoCut::MoreThan(most) => write!(f, "more than {most} references would have to be cut"),
        }
    }
}

impl std::error::Error for NoCut {}

/// Finds the cuts to choose from; see [`crate::Analysis::cuts`].
pub(crate) fn all(weighted: &Weighted<'_>, targets: &[Node], most: u64) -> Result<Vec<Cut>, NoCut> {
    let mut search = Search::new(weighted, targets)?;
    let found = search.outwards(most);
    let mut cuts: Vec<Cut> = found.into_iter().map(|edges| search.cut(edges)).collect();
    let first = cuts.first().ok_or(NoCut::MoreThan(most))?;
    // A cut without collateral is the gentlest.
    if first.collateral.nodes > 0 {
        let edges = search.gentlest();
        if (first.weight + 1..=most).contains(&search.weight(&edges)) {
            cuts.insert(0, search.cut(edges));
        }
    }
    Ok(cuts)
}

struct Search<'a> {
    weighted: &'a Weighted<'a>,
    targets: Sinks,
    flow: Flow,
}

impl<'a> Search<'a> {
    fn new(weighted: &'a Weighted<'a>, targets: &[Node]) -> Result<Search<'a>, NoCut> {
        let indexed = weighted.indexed;
        let reached = targets.iter().filter_map(|target| indexed.order.rank(*target));
        let targets = Sinks::new(indexed.tree, reached);
        let mut flow = Flow::new(indexed.order);
        let is_impossible = flow.see_uncuttable(weighted, &targets);
        if is_impossible { Err(NoCut::Never) } else { Ok(Search { weighted, targets, flow }) }
    }

    /// Returns the smallest cut of each stretch between dominators that is smaller than those before
    /// it.
    fn outwards(&mut self, mut most: u64) -> Vec<Vec<Edge>> {
        let Search { weighted, targets, flow } = self;
        let indexed = weighted.indexed;
        let mut found = Vec::new();
        let Some(mut source) = targets.source(indexed.tree) else { return vec![Vec::new()] };
        let mut stretch: Sinks;
        let mut sinks: &Sinks = targets;
        loop {
            if let Some(weight) = flow.push(weighted, source, sinks, most) {
                found.push(entering(indexed, flow, |from| !sinks.dominate(indexed.tree, from)));
                most = weight - 1;
            }
            if source == Rank::ROOTS || most == 0 {
                return found;
            }
            stretch = Sinks::new(indexed.tree, [source]);
            sinks = &stretch;
            source = indexed.tree.above(source);
        }
    }

    /// Returns the cut around the targets and the nodes that have to go with them.
    fn gentlest(&mut self) -> Vec<Edge> {
        let Search { weighted, targets, flow } = self;
        let indexed = weighted.indexed;
        flow.see_uncuttable(weighted, targets);
        let lost = Lost::with_ranks(indexed, flow.seen());
        entering(indexed, flow, |from| !lost.has(indexed.order.node(from)))
    }

    fn weight(&self, edges: &[Edge]) -> u64 {
        let cost = |edge: &Edge| match (self.weighted.cost)(*edge) {
            CutCost::Cost(cost) => u64::from(cost),
            CutCost::Never => unreachable!("a cut avoids references that may never be cut"),
        };
        edges.iter().map(cost).sum()
    }

    fn cut(&self, edges: Vec<Edge>) -> Cut {
        let weight = self.weight(&edges);
        let indexed = self.weighted.indexed;
        let freed = Lost::with_edges(indexed, &edges).size(indexed);
        let targets = Lost::with_ranks(indexed, self.targets.ranks()).size(indexed);
        Cut { edges, weight, freed, collateral: freed.without(targets) }
    }
}

/// Returns the references that lead into what the flow last saw, from ranks outside it that count.
fn entering(indexed: Indexed<'_>, flow: &Flow, counts: impl Fn(Rank) -> bool) -> Vec<Edge> {
    let mut edges = Vec::new();
    for to in flow.seen() {
        let mut referrers = indexed.order.referrers(*to).to_vec();
        referrers.dedup();
        referrers.retain(|from| !flow.saw(*from) && counts(*from));
        edges.extend(referrers.into_iter().flat_map(|from| indexed.edges(from, *to)));
    }
    edges.sort_unstable();
    edges
}
