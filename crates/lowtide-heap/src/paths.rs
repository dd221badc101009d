//! How a node is reached: a shortest way from a root, and others where there are others.

use crate::graph::{Edge, Graph, Node};
use crate::ground::Ground;
use crate::marks::Marks;
use crate::reach::{Reach, Step};

/// A way from a root. No node is on it twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Where it begins.
    pub root: Node,
    /// From the root on; none where the root itself is what was asked for. Of several references
    /// between the same two nodes, the first.
    pub edges: Vec<Edge>,
}

impl Path {
    /// Every node on it, the root first.
    pub fn nodes(&self) -> impl Iterator<Item = Node> + '_ {
        std::iter::once(self.root).chain(self.edges.iter().map(|edge| edge.to))
    }

    /// From the nodes, last first.
    fn backwards(graph: &Graph, mut back: Vec<u32>) -> Option<Path> {
        back.reverse();
        let root = Node(*back.first()?);
        let edge = |pair: &[u32]| graph.between(pair[0], pair[1]).expect("the search went over it");
        Some(Path { root, edges: back.windows(2).map(edge).collect() })
    }
}

/// A shortest one.
pub(crate) fn shortest(graph: &Graph, reach: &Reach, target: Node) -> Option<Path> {
    Path::backwards(graph, reach.back(target.0).collect())
}

/// One for each of the nearest `most` nodes that hold the target, where ways to it part.
///
/// As long as there is one holder only, it is passed on every way, and who holds *it* is asked
/// instead. Nodes that are only reached through what they hold are no holders.
pub(crate) fn parted(ground: Ground<'_>, target: Node, most: usize) -> Vec<Path> {
    let Ground { graph, order, tree, .. } = ground;
    let Some(mut number) = order.number(target.0) else { return Vec::new() };
    let mut tail = vec![target.0];
    let holders = loop {
        let mut holders = order.referrers(number).to_vec();
        holders.dedup();
        holders.retain(|holder| !tree.dominates(number, *holder));
        match holders[..] {
            [only] if only != 0 => {
                number = only;
                tail.push(order.node(only));
            }
            _ => break holders,
        }
    };
    let node = order.node(number);
    let mut wanted = Marks::new(graph.len());
    let mut found = Vec::new();
    let mut left = most.min(holders.len());
    // The roots' own hold is the nearest there is.
    if holders.first() == Some(&0) && left > 0 {
        left -= 1;
        found.extend(Path::backwards(graph, tail.clone()));
    }
    for holder in holders.iter().filter(|holder| **holder != 0) {
        wanted.set(order.node(*holder));
    }
    if left == 0 {
        return found;
    }
    let mut nearest = Vec::with_capacity(left);
    let reach = Reach::search(graph, |at| {
        if at == node {
            return Step::Avoid;
        }
        if wanted.has(at) {
            nearest.push(at);
            if nearest.len() == left {
                return Step::Stop;
            }
        }
        Step::Enter
    });
    found.extend(nearest.iter().filter_map(|holder| {
        let back = tail.iter().copied().chain(reach.back(*holder)).collect();
        Path::backwards(graph, back)
    }));
    found
}
