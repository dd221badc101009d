//! Unreachable nodes in groups: cycles that only a garbage collector frees, and objects that
//! something outside the graph must hold, since nothing in it does.
//!
//! An island is a node or a cycle that no other unreachable node leads to, with everything below it.
//! To find them, a depth-first search notes the order in which it leaves the nodes. The node that it
//! left last heads an island: any node that leads to it is in a cycle with it. What it reaches is the
//! island; of the remaining nodes, the one left last heads the next.

use crate::graph::{Graph, Node, Size};
use crate::reach::{BitSet, Reach};

/// A group of unreachable nodes: a head and what is reached from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Island {
    /// A node that no unreachable node leads to, except those in a cycle with it.
    pub head: Node,
    /// Whether the head is in a reference cycle. A garbage collector frees such an island, unless
    /// something outside the graph holds it. If there is no cycle, nothing in the graph refers to
    /// the head, and something outside the graph holds it.
    pub is_cycle: bool,
    /// The size of the island, its head included. A node below several islands counts for one.
    pub size: Size,
}

/// Returns all islands of the nodes that are not left `out`, those with most bytes first.
pub(crate) fn islands(graph: &Graph, reach: &Reach, out: impl Fn(Node) -> bool) -> Vec<Island> {
    let mut seen = BitSet::new(graph.len());
    for node in (0..graph.len() as u32).map(Node).filter(|node| out(*node)) {
        seen.insert(node.index());
    }
    let left = leaving_order(graph, reach, seen.clone());
    let mut next = Vec::new();
    let mut islands = Vec::new();
    for head in left.into_iter().rev() {
        if !seen.insert(head.index()) {
            continue;
        }
        let mut island = Island { head, is_cycle: false, size: Size::default() };
        next.push(head);
        while let Some(node) = next.pop() {
            island.size.nodes += 1;
            island.size.bytes += graph.bytes(node);
            for to in graph.row(node) {
                island.is_cycle |= *to == head;
                if !reach.has(*to) && seen.insert(to.index()) {
                    next.push(*to);
                }
            }
        }
        islands.push(island);
    }
    islands.sort_by_key(|island| std::cmp::Reverse((island.size.bytes, island.size.nodes)));
    islands
}

/// Returns the unreachable nodes in the order in which a depth-first search leaves them.
fn leaving_order(graph: &Graph, reach: &Reach, mut seen: BitSet) -> Vec<Node> {
    let mut left = Vec::new();
    let mut path: Vec<(Node, u32)> = Vec::new();
    for first in (0..graph.len() as u32).map(Node) {
        if !reach.has(first) && seen.insert(first.index()) {
            path.push((first, 0));
        }
        'deeper: while let Some((node, mut index)) = path.pop() {
            while let Some(to) = graph.row(node).get(index as usize) {
                index += 1;
                if !reach.has(*to) && seen.insert(to.index()) {
                    path.extend([(node, index), (*to, 0)]);
                    continue 'deeper;
                }
            }
            left.push(node);
        }
    }
    left
}
