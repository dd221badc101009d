//! What no root reaches, in islands: cycles that only a collector frees, and what somebody outside
//! the graph must be holding, since nobody in it does.
//!
//! An island is a node, or a cycle, that no other unreached node leads to, with all that hangs on
//! it. To find them: let a depth-first search leave the nodes, and begin with the one it left last.
//! Nobody later in that order leads to it who is not in a cycle with it, so it heads an island; what
//! it reaches is the island; the last-left of the rest heads the next.

use crate::graph::{Graph, Node};
use crate::marks::Marks;
use crate::reach::Reach;
use crate::tree::Freed;

/// Unreached nodes that hang together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Island {
    /// No unreached node leads to it but those in a cycle with it.
    pub head: Node,
    /// Whether it is in a cycle: then a collector frees the island, unless somebody outside the
    /// graph holds it too. Otherwise nobody in the graph refers to it, and whatever keeps it
    /// is not in the graph.
    pub cycle: bool,
    /// The island, its head included. What hangs on several islands is counted with one of them.
    pub freed: Freed,
}

/// All islands, those with most bytes first.
pub(crate) fn islands(graph: &Graph, reach: &Reach) -> Vec<Island> {
    let left = leave(graph, reach);
    let mut seen = Marks::new(graph.len());
    let mut next = Vec::new();
    let mut islands = Vec::new();
    for head in left.into_iter().rev() {
        if !seen.set(head) {
            continue;
        }
        let mut island = Island { head: Node(head), cycle: false, freed: Freed::default() };
        next.push(head);
        while let Some(node) = next.pop() {
            island.freed.nodes += 1;
            island.freed.bytes += graph.bytes(Node(node));
            for to in graph.row(node) {
                island.cycle |= *to == head;
                if !reach.has(*to) && seen.set(*to) {
                    next.push(*to);
                }
            }
        }
        islands.push(island);
    }
    islands.sort_by_key(|island| std::cmp::Reverse((island.freed.bytes, island.freed.nodes)));
    islands
}

/// The unreached nodes in the order in which a depth-first search leaves them.
fn leave(graph: &Graph, reach: &Reach) -> Vec<u32> {
    let mut seen = Marks::new(graph.len());
    let mut left = Vec::new();
    let mut path: Vec<(u32, u32)> = Vec::new();
    for first in 0..graph.len() as u32 {
        if !reach.has(first) && seen.set(first) {
            path.push((first, 0));
        }
        'deeper: while let Some((node, mut place)) = path.pop() {
            while let Some(to) = graph.row(node).get(place as usize) {
                place += 1;
                if !reach.has(*to) && seen.set(*to) {
                    path.extend([(node, place), (*to, 0)]);
                    continue 'deeper;
                }
            }
            left.push(node);
        }
    }
    left
}
