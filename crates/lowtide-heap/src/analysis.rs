//! The questions that can be asked about a graph. The index that an answer needs is made once, when
//! it is first needed.
//!
//! Memory in bytes for each node, if nodes have four references on average:
//!
//! | | kept | at work |
//! |---|---|---|
//! | graph: rows 4, references 16 | 20 | |
//! | shortest paths: predecessors 4; queue 4 | 4 | 4 |
//! | order: ranks 4, nodes 4, rows 4, referrers 16; parents 4, the current path 8 | 28 | 12 |
//! | dominators 4; links 8 for nodes that are no leaves, semidominators 4, compression 4 | 4 | 16 |
//! | dominator tree: spans 8; sizes 4 | 8 | 4 |
//! | a cut: levels 4, seen ranks 4; 50 for each node that flow passes | | 8 |
//!
//! So 72 bytes stay, and 88 are needed while dominators are computed. Deep graphs need more (the
//! current path, the nodes that flow passes), and growing lists are up to twice as long as their
//! content. `tests/graphs/memory.rs` measures 83 for a heap like an interpreter's and 117 for the
//! worst graph we could think of; it fails at 150.

use std::cell::OnceCell;
use std::panic::resume_unwind;
use std::thread;

use crate::cut::{self, Cut, NoCut};
use crate::dominators::{Tree, dominators};
use crate::graph::{Edge, Graph, Node, Size};
use crate::indexed::{CutCost, Hubs, Indexed, Weighted};
use crate::islands::{self, Island};
use crate::lost::Lost;
use crate::order::{Order, Rank};
use crate::paths::{self, Forks, Path};
use crate::reach::Reach;

/// With fewer nodes than this a second thread costs more time than it saves.
const WORTH_A_THREAD: usize = 200_000;

/// Answers questions about a graph.
///
/// Its methods panic if they get a node that is not of the graph.
pub struct Analysis<'g> {
    graph: &'g Graph,
    reach: OnceCell<Reach>,
    ordered: OnceCell<(Order, Tree)>,
    hubs: Hubs,
    forks: Forks,
}

impl<'g> Analysis<'g> {
    /// Creates an analysis of `graph`. Nothing is computed yet.
    pub fn new(graph: &'g Graph) -> Analysis<'g> {
        Analysis {
            graph,
            reach: OnceCell::new(),
            ordered: OnceCell::new(),
            hubs: Hubs::default(),
            forks: Forks::default(),
        }
    }

    /// Makes the indexes for paths and for dominators of a large graph now, at the same time, in two
    /// threads. A caller that will ask about both waits less. Those of a smaller graph are made when
    /// they are needed.
    pub fn prepare(&self) {
        let is_new = self.reach.get().is_none() && self.ordered.get().is_none();
        if !is_new || self.graph.len() < WORTH_A_THREAD {
            return;
        }
        // If no thread can be started, they are made in turn.
        thread::scope(|scope| {
            let reach = thread::Builder::new().spawn_scoped(scope, || Reach::all(self.graph));
            self.ordered.get_or_init(|| ordered(self.graph));
            if let Ok(reach) = reach {
                let reach = reach.join().unwrap_or_else(|panic| resume_unwind(panic));
                self.reach.get_or_init(|| reach);
            }
        });
    }

    /// Returns the graph.
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// Returns whether a path leads from a root to the node.
    pub fn is_reached(&self, node: Node) -> bool {
        self.reach().has(node)
    }

    /// Returns the nodes that refer to this one, once for each reference; none if it is not reached.
    pub fn referrers(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        let (order, _) = self.ordered();
        let ranks = order.rank(node).map_or(&[][..], |rank| order.referrers(rank));
        ranks.iter().filter(|rank| **rank != Rank::ROOTS).map(|rank| order.node(*rank))
    }

    /// Returns a shortest path to the node, or `None` if it is not reached.
    pub fn path(&self, node: Node) -> Option<Path> {
        paths::shortest(self.graph, self.reach(), node)
    }

    /// Returns up to `most` paths to the node, shortest first, which show what holds it.
    ///
    /// While a node has a single holder, every path leads over that holder, and the holder's holders
    /// are looked at instead. Where a node has several holders, the paths fork: each holder gets one
    /// path, the shortest that leads over it. So all paths have the same end and differ before the
    /// fork. A node that is reached only through what it refers to does not count as a holder.
    pub fn paths(&self, node: Node, most: usize) -> Vec<Path> {
        if most < 2 {
            return self.path(node).into_iter().take(most).collect();
        }
        paths::by_holder(self.indexed(), &self.forks, node, most)
    }

    /// Returns the immediate dominator: the nearest other node that is on every path to this one.
    /// Returns `None` if there is no such node, or if this one is not reached.
    pub fn dominator(&self, node: Node) -> Option<Node> {
        let (order, tree) = self.ordered();
        let above = tree.above(order.rank(node)?);
        (above != Rank::ROOTS).then(|| order.node(above))
    }

    /// Returns all other nodes that are on every path to this one, nearest first.
    pub fn dominators(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        std::iter::successors(self.dominator(node), |node| self.dominator(*node))
    }

    /// Returns whether every path to `below` leads over `above`. A reached node dominates itself;
    /// nothing dominates a node that is not reached.
    pub fn dominates(&self, above: Node, below: Node) -> bool {
        let (order, tree) = self.ordered();
        let ranks = order.rank(above).zip(order.rank(below));
        ranks.is_some_and(|(above, below)| tree.dominates(above, below))
    }

    /// Returns the retained size of the node: what would be freed with it, itself included. Zero if
    /// it is not reached.
    pub fn retained(&self, node: Node) -> Size {
        let (order, tree) = self.ordered();
        order.rank(node).map_or(Size::default(), |rank| tree.retained(rank))
    }

    /// Returns the size of what becomes unreachable if these references are cut.
    pub fn freed_by(&self, edges: &[Edge]) -> Size {
        let mut edges = edges.to_vec();
        edges.sort_unstable();
        Lost::with_edges(self.indexed(), &edges).size(self.indexed())
    }

    /// Returns the nodes that become unreachable if these references are cut.
    pub fn lost_by(&self, edges: &[Edge]) -> Vec<Node> {
        let mut edges = edges.to_vec();
        edges.sort_unstable();
        Lost::with_edges(self.indexed(), &edges).nodes().collect()
    }

    /// Returns the size of everything that no root reaches.
    pub fn unreached(&self) -> Size {
        let held = self.graph.holding().filter(|(node, _)| !self.is_reached(*node));
        Size {
            nodes: self.graph.len() as u64 - self.reach().nodes(),
            bytes: held.map(|(_, bytes)| bytes).sum(),
        }
    }

    /// Returns everything that no root reaches, in groups, those with most bytes first, as if the nodes
    /// that are left `out` did not exist. If there are none of those, the sizes add up to
    /// [`unreached`](Analysis::unreached).
    pub fn islands(&self, out: impl Fn(Node) -> bool) -> Vec<Island> {
        islands::islands(self.graph, self.reach(), out)
    }

    /// Returns cuts that make all targets unreachable, to choose from: cutting a few more references
    /// may lose less besides the targets.
    ///
    /// The first is the gentlest of all: what is lost with it is lost with every other cut. (It is
    /// left out if it weighs more than `most`.) The last has the least weight; of several with that
    /// weight it is the one nearest to the targets, and what is lost with it is lost with each of the
    /// others. From each to the next the weight falls and the collateral grows. Those in between are
    /// the smallest cuts between one dominator of all targets and the next; other cuts may exist and
    /// are not listed.
    ///
    /// `cost` says which references may be cut. It may be called several times for one reference and
    /// must return the same each time. That a node is a root cannot be cut. Targets that are not
    /// reached need no cut. The search ends early if the smallest cut weighs more than `most`.
    ///
    /// # Errors
    /// [`NoCut`] says why there is no cut.
    ///
    /// # Panics
    /// If `cost` returns a cost of 0.
    pub fn cuts(
        &self,
        targets: &[Node],
        most: u64,
        cost: impl Fn(Edge) -> CutCost,
    ) -> Result<Vec<Cut>, NoCut> {
        cut::all(&Weighted { indexed: self.indexed(), cost: &cost }, targets, most)
    }

    fn indexed(&self) -> Indexed<'_> {
        self.prepare();
        let (order, tree) = self.ordered();
        Indexed { graph: self.graph, reach: self.reach(), order, tree, hubs: &self.hubs }
    }

    fn reach(&self) -> &Reach {
        self.reach.get_or_init(|| Reach::all(self.graph))
    }

    fn ordered(&self) -> &(Order, Tree) {
        self.ordered.get_or_init(|| ordered(self.graph))
    }
}

fn ordered(graph: &Graph) -> (Order, Tree) {
    let (order, parents) = Order::new(graph);
    let dominators = dominators(&order, parents);
    let tree = Tree::new(graph, &order, dominators);
    (order, tree)
}
