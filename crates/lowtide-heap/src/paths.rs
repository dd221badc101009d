//! Paths from the roots to a node: a shortest one, and one for each holder.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::graph::{Edge, Graph, Node};
use crate::indexed::Indexed;
use crate::order::Rank;
use crate::reach::{BitSet, Reach, Visit};

/// A path from a root to a node. No node is on it twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The root that it begins at.
    pub root: Node,
    /// The references from the root on. Empty if the root is the node that was asked for. Of
    /// several references between the same two nodes it has the first.
    pub edges: Vec<Edge>,
}

impl Path {
    /// Returns every node on the path, the root first.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + '_ {
        std::iter::once(self.root).chain(self.edges.iter().map(|edge| edge.to))
    }

    /// Makes a path from its nodes, last first. Returns `None` if there are none.
    fn from_back(graph: &Graph, mut back: Vec<Node>) -> Option<Path> {
        back.reverse();
        let root = *back.first()?;
        let edge = |pair: &[Node]| graph.between(pair[0], pair[1]).expect("the search used it");
        Some(Path { root, edges: back.windows(2).map(edge).collect() })
    }
}

/// Returns a shortest path to the target.
pub(crate) fn shortest(graph: &Graph, reach: &Reach, target: Node) -> Option<Path> {
    Path::from_back(graph, reach.back(target).collect())
}

/// Returns a path for each holder of the target, up to `most`, nearest first; see
/// [`crate::Analysis::paths`].
pub(crate) fn by_holder(
    indexed: Indexed<'_>,
    forks: &Forks,
    target: Node,
    most: usize,
) -> Vec<Path> {
    let Indexed { graph, order, .. } = indexed;
    let Some(rank) = order.rank(target) else { return Vec::new() };
    let Fork { at, holders, tail } = fork(indexed, rank);
    let mut left = most.min(holders.len());
    let mut found = Vec::new();
    // That it is a root is the nearest hold there is.
    if holders.first() == Some(&Rank::ROOTS) && left > 0 {
        left -= 1;
        found.extend(Path::from_back(graph, tail.clone()));
    }
    if left == 0 {
        return found;
    }
    let ways = forks.ways(graph, at, left, || {
        let holders = holders.iter().filter(|holder| **holder != Rank::ROOTS);
        holders.map(|holder| order.node(*holder)).collect()
    });
    for back in &*ways {
        let back = tail.iter().copied().chain(back.iter().copied()).collect();
        found.extend(Path::from_back(graph, back));
    }
    found
}

/// Where the paths to a target fork.
struct Fork {
    at: Node,
    /// Lowest rank first.
    holders: Vec<Rank>,
    /// The nodes from the target back to `at`.
    tail: Vec<Node>,
}

/// Goes back from the target as long as there is a single holder, since every path leads over it. A
/// node that is reached only through what it refers to is no holder.
fn fork(Indexed { order, tree, .. }: Indexed<'_>, target: Rank) -> Fork {
    let (mut rank, mut tail) = (target, vec![order.node(target)]);
    loop {
        let mut holders = order.referrers(rank).to_vec();
        holders.dedup();
        holders.retain(|holder| !tree.dominates(rank, *holder));
        match holders[..] {
            [only] if only != Rank::ROOTS => {
                rank = only;
                tail.push(order.node(only));
            }
            _ => return Fork { at: order.node(rank), holders, tail },
        }
    }
}

/// The ways to the holders of a node, nearest holder first, each back to its root.
type Ways = Rc<[Vec<Node>]>;

/// How many forks are remembered.
const FORKS_MOST: usize = 16;

/// Where paths have forked. Paths to a target and to what holds it fork at the same node, and the
/// search for its nearest holders may visit the whole graph.
#[derive(Default)]
pub(crate) struct Forks(RefCell<HashMap<(Node, usize), Ways>>);

impl Forks {
    /// Returns the ways to up to `most` of the holders of a node that do not lead over the node.
    pub(crate) fn ways(
        &self,
        graph: &Graph,
        at: Node,
        most: usize,
        holders: impl FnOnce() -> Vec<Node>,
    ) -> Ways {
        let mut known = self.0.borrow_mut();
        if known.len() == FORKS_MOST {
            known.clear();
        }
        let ways = known.entry((at, most)).or_insert_with(|| ways(graph, at, most, &holders()));
        Rc::clone(ways)
    }
}

fn ways(graph: &Graph, at: Node, most: usize, holders: &[Node]) -> Ways {
    let mut wanted = BitSet::new(graph.len());
    for holder in holders {
        wanted.insert(holder.index());
    }
    let mut nearest = Vec::with_capacity(most);
    let reach = Reach::search(graph, |node| {
        if node == at {
            return Visit::Skip;
        }
        if wanted.contains(node.index()) {
            nearest.push(node);
            if nearest.len() == most {
                return Visit::Stop;
            }
        }
        Visit::Enter
    });
    nearest.iter().map(|holder| reach.back(*holder).collect()).collect()
}
