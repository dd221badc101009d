//! Breadth first from the roots: who is reached at all, and through whom on a shortest way.

use crate::graph::Graph;

/// In place of who led to a node: nobody did.
const UNREACHED: u32 = u32::MAX;
/// In place of who led to a node: it is a root.
const ROOT: u32 = u32::MAX - 1;

/// What a search does with a node that a reference leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Enter,
    /// Leave it alone, whoever leads to it.
    Avoid,
    /// Enter it, and that was all.
    Stop,
}

/// A tree of shortest ways.
pub(crate) struct Reach {
    via: Vec<u32>,
    nodes: u64,
}

impl Reach {
    pub(crate) fn all(graph: &Graph) -> Reach {
        Reach::search(graph, |_| Step::Enter)
    }

    /// Nodes nearer to the roots are entered first, so whoever stops at the first node of a kind
    /// has the nearest. Ties go to the earlier reference of the earlier node.
    pub(crate) fn search(graph: &Graph, mut step: impl FnMut(u32) -> Step) -> Reach {
        let mut reach = Reach { via: vec![UNREACHED; graph.len()], nodes: 0 };
        let mut queue = Vec::new();
        for root in graph.root_nodes() {
            if !reach.enter(ROOT, *root, &mut queue, &mut step) {
                return reach;
            }
        }
        let mut next = 0;
        while let Some(from) = queue.get(next).copied() {
            next += 1;
            for to in graph.row(from) {
                if reach.via[*to as usize] == UNREACHED
                    && !reach.enter(from, *to, &mut queue, &mut step)
                {
                    return reach;
                }
            }
        }
        reach
    }

    /// Whether the search goes on.
    fn enter(
        &mut self,
        from: u32,
        to: u32,
        queue: &mut Vec<u32>,
        step: &mut impl FnMut(u32) -> Step,
    ) -> bool {
        let step = step(to);
        if step != Step::Avoid {
            self.via[to as usize] = from;
            self.nodes += 1;
            queue.push(to);
        }
        step != Step::Stop
    }

    pub(crate) fn has(&self, node: u32) -> bool {
        self.via[node as usize] != UNREACHED
    }

    /// Whether the way to `to` is the way to `from` and one reference more.
    pub(crate) fn leads(&self, from: u32, to: u32) -> bool {
        self.via[to as usize] == from
    }

    /// How many were reached.
    pub(crate) fn nodes(&self) -> u64 {
        self.nodes
    }

    /// From the node back to its root, both included. Nothing, where it was not reached.
    pub(crate) fn back(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.has(node).then_some(node);
        std::iter::successors(first, |at| {
            let via = self.via[*at as usize];
            (via != ROOT).then_some(via)
        })
    }
}
