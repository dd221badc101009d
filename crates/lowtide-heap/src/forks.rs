//! The nearest holders at a fork, remembered from one path to the next.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::bit_set::BitSet;
use crate::graph::{Graph, Node};
use crate::reach::{Reach, Visit};

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
