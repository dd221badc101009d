//! What can be asked of a graph. The groundwork of each answer is done once, when it is first
//! needed.
//!
//! What that takes, in bytes a node where nodes have four references on average:
//!
//! | | kept | while at it |
//! |---|---|---|
//! | graph: rows 4, references 16 | 20 | |
//! | shortest ways: who led to it 4; the queue 4 | 4 | 4 |
//! | order: number 4, node 4, rows 4, referrers 16; first meetings 4, how deep we are 8 | 28 | 12 |
//! | dominators 4; links 8 where it is no leaf, semidominators 4, ways to shorten 4 | 4 | 16 |
//! | tree: spans 8; sizes 4 | 8 | 4 |
//! | a cut: levels 4, what was seen 4; for each node that flow passes 50 | | 8 |
//!
//! So 72 stay, and 88 are reached while dominators are looked for. What only deep graphs need (how
//! deep we are, what flow passes) comes on top of that, and lists that grow are up to twice as long
//! as what is in them. `tests/graphs/memory.rs` counts: 83 for a heap like an interpreter's, 117 for the
//! worst that we could think of; it fails at 150.

use std::cell::OnceCell;
use std::panic::resume_unwind;
use std::thread;

use crate::cut::{self, Cut, NoCut};
use crate::dead::{self, Island};
use crate::dominators::dominators;
use crate::graph::{Edge, Graph, Node};
use crate::ground::{Class, Ground, Priced, Sinks};
use crate::hubs::Hubs;
use crate::lost::Lost;
use crate::order::Order;
use crate::paths::{self, Path};
use crate::reach::Reach;
use crate::tree::{Freed, Tree};

/// With fewer nodes a thread costs more than it brings.
const WORTH_A_THREAD: usize = 200_000;

/// Answers about a graph.
///
/// Nodes that are not of this graph make it panic.
pub struct Analysis<'g> {
    graph: &'g Graph,
    reach: OnceCell<Reach>,
    ordered: OnceCell<(Order, Tree)>,
    islands: OnceCell<Vec<Island>>,
    hubs: Hubs,
}

impl<'g> Analysis<'g> {
    /// Nothing is computed yet.
    pub fn new(graph: &'g Graph) -> Analysis<'g> {
        Analysis {
            graph,
            reach: OnceCell::new(),
            ordered: OnceCell::new(),
            islands: OnceCell::new(),
            hubs: Hubs::default(),
        }
    }

    /// What is asked about.
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// Whether a way leads to the node from a root.
    pub fn is_reached(&self, node: Node) -> bool {
        self.reach().has(node.0)
    }

    /// A shortest way to the node. None, where it is not reached.
    pub fn path(&self, node: Node) -> Option<Path> {
        paths::shortest(self.graph, self.reach(), node)
    }

    /// Up to `most` ways to the node, shortest first, to show who holds it.
    ///
    /// As long as the node has a single holder, all ways pass that one, and its holders are looked
    /// at instead. At the first node that has several, the ways part: each of its holders has one
    /// path here, the shortest that leads over it. So all paths end alike and differ before that.
    /// Whoever is only reached through what it refers to is no holder.
    pub fn paths(&self, node: Node, most: usize) -> Vec<Path> {
        if most < 2 {
            return self.path(node).into_iter().take(most).collect();
        }
        paths::parted(self.ground(), node, most)
    }

    /// The nearest other node that is on every way to this one. None, where there is no such node,
    /// and where it is not reached.
    pub fn dominator(&self, node: Node) -> Option<Node> {
        let (order, tree) = self.ordered();
        let above = tree.above(order.number(node.0)?);
        (above != 0).then(|| Node(order.node(above)))
    }

    /// All nodes that are on every way to this one, nearest first; it is not among them.
    pub fn dominators(&self, node: Node) -> impl Iterator<Item = Node> + '_ {
        std::iter::successors(self.dominator(node), |node| self.dominator(*node))
    }

    /// Whether every way to `below` leads over `above`, as it does to itself. Not, where `below` is
    /// not reached.
    pub fn dominates(&self, above: Node, below: Node) -> bool {
        let (order, tree) = self.ordered();
        let numbers = order.number(above.0).zip(order.number(below.0));
        numbers.is_some_and(|(above, below)| tree.dominates(above, below))
    }

    /// What goes when the node goes, itself included. Nothing, where it is not reached.
    pub fn retained(&self, node: Node) -> Freed {
        let (order, tree) = self.ordered();
        order.number(node.0).map_or(Freed::default(), |number| tree.retained(number))
    }

    /// What goes when all of these go, themselves included. More than the sum, where some things are
    /// held by several of them; less, where they hold each other.
    pub fn retained_together(&self, nodes: &[Node]) -> Freed {
        let ground = self.ground();
        let reached = nodes.iter().filter_map(|node| ground.order.number(node.0));
        let sinks = Sinks::new(ground.tree, reached);
        Lost::with_nodes(ground, sinks.numbers()).freed(ground)
    }

    /// What becomes unreachable when these references are cut.
    pub fn freed_by(&self, edges: &[Edge]) -> Freed {
        let mut edges = edges.to_vec();
        edges.sort_unstable();
        Lost::with_edges(self.ground(), &edges).freed(self.ground())
    }

    /// The nodes that become unreachable when these references are cut.
    pub fn lost_by(&self, edges: &[Edge]) -> Vec<Node> {
        let mut edges = edges.to_vec();
        edges.sort_unstable();
        Lost::with_edges(self.ground(), &edges).nodes().collect()
    }

    /// What no root reaches.
    pub fn unreached(&self) -> Freed {
        let held = self.graph.holding().filter(|(node, _)| !self.is_reached(*node));
        Freed {
            nodes: self.graph.len() as u64 - self.reach().nodes(),
            bytes: held.map(|(_, bytes)| bytes).sum(),
        }
    }

    /// What no root reaches, in islands; those with most bytes first. Together they are
    /// [`unreached`](Analysis::unreached).
    pub fn islands(&self) -> &[Island] {
        self.islands.get_or_init(|| dead::islands(self.graph, self.reach()))
    }

    /// The cut of least weight that makes all targets unreachable.
    ///
    /// Of several with that weight it is the one that is nearest to the targets, and takes the
    /// least down beside them: whatever goes with it goes with each of the others, too.
    ///
    /// `class` says which references may be cut; it may be asked about one several times, and has
    /// to answer the same. That something is a root is never cut. Targets that are not reached
    /// need no cut. The search ends early where the smallest cut weighs more than `most`.
    ///
    /// # Errors
    /// [`NoCut`] says why there is none.
    ///
    /// # Panics
    /// If `class` gives a weight of 0.
    pub fn smallest_cut(
        &self,
        targets: &[Node],
        most: u64,
        class: impl Fn(Edge) -> Class,
    ) -> Result<Cut, NoCut> {
        cut::smallest(&Priced { ground: self.ground(), class }, targets, most)
    }

    /// Cuts to choose from, for those who would rather cut a few more references than lose more
    /// than the targets.
    ///
    /// The first is the gentlest of all: what goes with it goes with every other cut, too. (Where
    /// that one weighs more than `most`, it is left out.) The last is
    /// [`smallest_cut`](Analysis::smallest_cut). From each to the next, weight falls, and more
    /// goes beside the targets. Those between the two are the smallest between a dominator of all
    /// targets and the next; there may be others, which are not listed.
    ///
    /// # Errors
    /// As for `smallest_cut`.
    ///
    /// # Panics
    /// As for `smallest_cut`.
    pub fn cuts(
        &self,
        targets: &[Node],
        most: u64,
        class: impl Fn(Edge) -> Class,
    ) -> Result<Vec<Cut>, NoCut> {
        cut::all(&Priced { ground: self.ground(), class }, targets, most)
    }

    fn ground(&self) -> Ground<'_> {
        let is_new = self.reach.get().is_none() && self.ordered.get().is_none();
        if is_new && self.graph.len() >= WORTH_A_THREAD {
            // Neither needs the other. Where no thread is to be had, one comes after the other.
            thread::scope(|scope| {
                let reach = thread::Builder::new().spawn_scoped(scope, || Reach::all(self.graph));
                self.ordered();
                if let Ok(reach) = reach {
                    let reach = reach.join().unwrap_or_else(|panic| resume_unwind(panic));
                    self.reach.get_or_init(|| reach);
                }
            });
        }
        let (order, tree) = self.ordered();
        Ground { graph: self.graph, reach: self.reach(), order, tree, hubs: &self.hubs }
    }

    fn reach(&self) -> &Reach {
        self.reach.get_or_init(|| Reach::all(self.graph))
    }

    fn ordered(&self) -> &(Order, Tree) {
        self.ordered.get_or_init(|| {
            let (order, parents) = Order::new(self.graph);
            let dominators = dominators(&order, parents);
            let tree = Tree::new(self.graph, &order, dominators);
            (order, tree)
        })
    }
}
