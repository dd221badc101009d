//! Which references to cut so that some nodes go, and what goes beside them.
//!
//! Every cut has two sides: what is still reached when its references are gone, and what is not.
//! Three facts about these sides decide how cuts are found here.
//!
//! 1. *There is a gentlest cut.* What leads to a target over references that may never be cut has
//!    to go with it, however one cuts. To cut whatever leads to these nodes, and no more, takes the
//!    least down: what goes with this cut goes with every other one, too.
//! 2. *Among the smallest cuts one is the gentlest.* If two cuts have the least weight there is, so
//!    has the one that leaves on the targets' side only what both leave there. Hence one of them
//!    lies nearest to the targets, and what goes with it goes with each of the others, too. Its side
//!    is what the flow's last search sees (`flow.rs`). Nothing has to be weighed up: least beside
//!    the targets and nearest to them are the same.
//! 3. *Dominators part the problem.* Every way to the targets passes their dominators, one after
//!    another. A cut that leaves a way open between any two neighbours of that chain leaves one
//!    open altogether; so a smallest cut closes the ways between some two, and does nothing else.
//!    The stretches are looked at one by one, from the targets outwards, each only for a cut that
//!    is smaller than those before. Mostly the first has one of a single reference, and nobody
//!    looks at the rest of the heap.

use std::fmt;

use crate::flow::Flow;
use crate::graph::{Edge, Node};
use crate::ground::{Class, Ground, Priced, Sinks};
use crate::lost::Lost;
use crate::tree::Freed;

/// References whose cut makes all targets unreachable. None of them can be left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// In the order of nodes and places. None, where the targets are unreachable already.
    pub edges: Vec<Edge>,
    /// What they cost together.
    pub weight: u64,
    /// All that becomes unreachable, the targets included.
    pub freed: Freed,
    /// The part of it that would stay if only the targets went.
    pub beside: Freed,
}

/// Why there is no cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoCut {
    /// A target is a root, or is reached over references of which none may be cut.
    Never,
    /// The smallest cut weighs more than this, which was the most that was asked for.
    MoreThan(u64),
}

impl fmt::Display for NoCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoCut::Never => f.write_str("a way leads to it on which nothing may be cut"),
            NoCut::MoreThan(1) => f.write_str("more than 1 reference would have to be cut"),
            NoCut::MoreThan(most) => write!(f, "more than {most} references would have to be cut"),
        }
    }
}

impl std::error::Error for NoCut {}

/// See [`crate::Analysis::smallest_cut`].
pub(crate) fn smallest<C: Fn(Edge) -> Class>(
    priced: &Priced<'_, C>,
    targets: &[Node],
    most: u64,
) -> Result<Cut, NoCut> {
    let mut search = Search::new(priced, targets)?;
    let last = search.outwards(most).pop().ok_or(NoCut::MoreThan(most))?;
    Ok(search.cut(last))
}

/// See [`crate::Analysis::cuts`].
pub(crate) fn all<C: Fn(Edge) -> Class>(
    priced: &Priced<'_, C>,
    targets: &[Node],
    most: u64,
) -> Result<Vec<Cut>, NoCut> {
    let mut search = Search::new(priced, targets)?;
    let found = search.outwards(most);
    let mut cuts: Vec<Cut> = found.into_iter().map(|edges| search.cut(edges)).collect();
    let first = cuts.first().ok_or(NoCut::MoreThan(most))?;
    // What takes nothing down beside the targets is the gentlest.
    if first.beside.nodes > 0 {
        let edges = search.gentlest();
        if (first.weight + 1..=most).contains(&search.weight(&edges)) {
            cuts.insert(0, search.cut(edges));
        }
    }
    Ok(cuts)
}

struct Search<'a, C> {
    priced: &'a Priced<'a, C>,
    targets: Sinks,
    flow: Flow,
}

impl<'a, C: Fn(Edge) -> Class> Search<'a, C> {
    fn new(priced: &'a Priced<'a, C>, targets: &[Node]) -> Result<Search<'a, C>, NoCut> {
        let ground = priced.ground;
        let reached = targets.iter().filter_map(|target| ground.order.number(target.0));
        let targets = Sinks::new(ground.tree, reached);
        let mut flow = Flow::new(ground.order);
        let never = flow.never(priced, &targets);
        if never { Err(NoCut::Never) } else { Ok(Search { priced, targets, flow }) }
    }

    /// The smallest cut of each stretch between dominators, as long as they get smaller.
    fn outwards(&mut self, mut most: u64) -> Vec<Vec<Edge>> {
        let Search { priced, targets, flow } = self;
        let ground = priced.ground;
        let mut found = Vec::new();
        let Some(mut source) = targets.source(ground.tree) else { return vec![Vec::new()] };
        let mut stretch: Sinks;
        let mut sinks: &Sinks = targets;
        loop {
            if let Some(weight) = flow.push(priced, source, sinks, most) {
                found.push(entering(ground, flow, |from| !sinks.dominate(ground.tree, from)));
                most = weight - 1;
            }
            if source == 0 || most == 0 {
                return found;
            }
            stretch = Sinks::new(ground.tree, [source]);
            sinks = &stretch;
            source = ground.tree.above(source);
        }
    }

    /// The cut around the targets and what has to go with them.
    fn gentlest(&mut self) -> Vec<Edge> {
        let Search { priced, targets, flow } = self;
        let ground = priced.ground;
        flow.never(priced, targets);
        let lost = Lost::with_nodes(ground, flow.seen());
        entering(ground, flow, |from| !lost.has(ground.order.node(from)))
    }

    fn weight(&self, edges: &[Edge]) -> u64 {
        let weight = |edge: &Edge| match (self.priced.class)(*edge) {
            Class::Cuttable(weight) => u64::from(weight),
            Class::Never => unreachable!("a cut goes round what may never be cut"),
        };
        edges.iter().map(weight).sum()
    }

    fn cut(&self, edges: Vec<Edge>) -> Cut {
        let weight = self.weight(&edges);
        let ground = self.priced.ground;
        let freed = Lost::with_edges(ground, &edges).freed(ground);
        let targets = Lost::with_nodes(ground, self.targets.numbers()).freed(ground);
        let beside = freed.without(targets);
        Cut { edges, weight, freed, beside }
    }
}

/// The references that lead into what the flow last saw, from those outside that count.
fn entering(ground: Ground<'_>, flow: &Flow, counts: impl Fn(u32) -> bool) -> Vec<Edge> {
    let mut edges = Vec::new();
    for to in flow.seen() {
        let mut referrers = ground.order.referrers(*to).to_vec();
        referrers.dedup();
        referrers.retain(|from| !flow.saw(*from) && counts(*from));
        edges.extend(referrers.into_iter().flat_map(|from| ground.edges(from, *to)));
    }
    edges.sort_unstable();
    edges
}
