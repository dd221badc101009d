//! Unreachable objects: what the collector frees, and what it cannot free.
//!
//! The collector sees only references between Python objects. Where native code holds an object, it
//! leaves the object alone, and everything that the object leads to. A leaf whose gradient has a
//! graph of its own (`create_graph=True`) is such a case: the gradient's graph holds the leaf, both
//! in native code.

use std::collections::HashSet;

use lowtide_heap::{Analysis, Node, Size};
use lowtide_types::Bytes;

use crate::ask::kind::Kind;
use crate::memory::heap::{Heap, reached};

/// A reference cycle that no root reaches, and that holds memory.
#[derive(Clone, Copy)]
pub(crate) struct Cycle {
    pub(crate) head: Node,
    pub(crate) size: Size,
    pub(crate) frozen: bool,
    /// The part of its bytes that the collector cannot free.
    pub(crate) kept: Bytes,
}

/// The unreachable cycles of the program, and what is below them.
pub(crate) struct Dead {
    /// The cycles that hold memory, largest first.
    pub(crate) cycles: Vec<Cycle>,
    /// What the collector frees.
    pub(crate) collected: Bytes,
    /// What it would free if it were not frozen.
    pub(crate) frozen: Bytes,
    /// Every dead node, sorted, and whether it stays when the collector has run.
    nodes: Vec<(Node, bool)>,
}

impl Dead {
    pub(crate) fn new(heap: &Heap<'_>, analysis: &Analysis<'_>) -> Dead {
        // Unreachable objects without a cycle are held by us alone. What we hold is no part of a cycle.
        let mut heads = analysis.islands(|node| heap.kind(node) == Kind::Ours);
        heads.retain(|one| one.is_cycle);
        let below = reached(heads.iter().map(|island| island.head), |node| {
            let onwards = heap.graph.references(node).map(|edge| edge.to);
            onwards.filter(|to| !analysis.is_reached(*to))
        });
        let mut nodes: Vec<Node> = below.into_iter().collect();
        nodes.sort_unstable();
        let is_dead = |node: &Node| nodes.binary_search(node).is_ok();
        let onwards = |node: Node| heap.graph.references(node).map(|edge| edge.to).filter(is_dead);
        let stays = stays(heap, &nodes, onwards);
        let mut found =
            Dead { cycles: Vec::new(), collected: Bytes::ZERO, frozen: Bytes::ZERO, nodes: vec![] };
        let mut seen = HashSet::new();
        for island in heads.iter().filter(|island| island.size.bytes > Bytes::ZERO) {
            let mut kept = Bytes::ZERO;
            let mut next = vec![island.head];
            while let Some(node) = next.pop() {
                if seen.insert(node) {
                    if stays.contains(&node) {
                        kept += heap.graph.bytes(node);
                    }
                    next.extend(onwards(node));
                }
            }
            let frozen = heap.is_frozen(island.head);
            let free = Bytes(island.size.bytes.0.saturating_sub(kept.0));
            *(if frozen { &mut found.frozen } else { &mut found.collected }) += free;
            found.cycles.push(Cycle { head: island.head, size: island.size, frozen, kept });
        }
        found.nodes = nodes.iter().map(|node| (*node, stays.contains(node))).collect();
        found
    }

    /// Returns whether the collector frees a node, if only unreachable objects lead to it, and not
    /// this question alone.
    pub(crate) fn is_collected(&self, node: Node) -> Option<bool> {
        let at = self.nodes.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        Some(!self.nodes[at].1)
    }
}

/// Returns which of some sorted dead nodes stay when the collector has run.
fn stays<I: Iterator<Item = Node>>(
    heap: &Heap<'_>,
    nodes: &[Node],
    onwards: impl Fn(Node) -> I,
) -> HashSet<Node> {
    let memories = heap.memories.iter().filter(|memory| memory.is_held_natively());
    let memories: HashSet<Node> = memories.map(|memory| memory.node).collect();
    let is_held = |node: Node| heap.hidden(node) > 0 || memories.contains(&node);
    let is_native = |node: &Node| is_held(*node) || heap.explained.contains(node);
    let stays = reached(nodes.iter().copied().filter(is_native), onwards);
    let mut stays: Vec<Node> = stays.into_iter().collect();
    stays.sort_unstable();
    // What the collector frees may have been all that held one of them in native code.
    let freed = heap.freed_by_counting(&stays, is_held);
    stays.into_iter().zip(freed).filter(|(_, freed)| !freed).map(|(node, _)| node).collect()
}
