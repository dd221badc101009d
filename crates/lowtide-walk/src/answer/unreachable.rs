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
use crate::memory::heap::Heap;

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
        // Unreachable objects without a cycle are held by us alone.
        let islands = analysis.islands().iter();
        let islands = islands.filter(|one| one.is_cycle && heap.kind(one.head) != Kind::Ours);
        let heads: Vec<_> = islands.collect();
        let mut nodes = below(heap, analysis, heads.iter().map(|island| island.head).collect());
        let stays = stays(heap, &nodes);
        let mut found =
            Dead { cycles: Vec::new(), collected: Bytes::ZERO, frozen: Bytes::ZERO, nodes: vec![] };
        let mut seen = vec![false; nodes.len()];
        for island in heads.iter().filter(|island| island.size.bytes > Bytes::ZERO) {
            let mut kept = Bytes::ZERO;
            let mut next: Vec<usize> = nodes.binary_search(&island.head).ok().into_iter().collect();
            while let Some(at) = next.pop() {
                if std::mem::replace(&mut seen[at], true) {
                    continue;
                }
                if stays[at] {
                    kept += heap.graph.bytes(nodes[at]);
                }
                let onwards = heap.graph.references(nodes[at]);
                next.extend(onwards.filter_map(|edge| nodes.binary_search(&edge.to).ok()));
            }
            let frozen = heap.is_frozen(island.head);
            let free = Bytes(island.size.bytes.0.saturating_sub(kept.0));
            *(if frozen { &mut found.frozen } else { &mut found.collected }) += free;
            found.cycles.push(Cycle { head: island.head, size: island.size, frozen, kept });
        }
        found.nodes = nodes.drain(..).zip(stays).collect();
        found
    }

    /// Returns whether the collector frees a node, if only unreachable objects lead to it, and not
    /// this question alone.
    pub(crate) fn is_collected(&self, node: Node) -> Option<bool> {
        let at = self.nodes.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        Some(!self.nodes[at].1)
    }
}

/// Returns what some unreachable nodes lead to, themselves included, sorted.
fn below(heap: &Heap<'_>, analysis: &Analysis<'_>, heads: Vec<Node>) -> Vec<Node> {
    let mut next = heads;
    let mut seen: HashSet<Node> = next.iter().copied().collect();
    while let Some(at) = next.pop() {
        let onwards = heap.graph.references(at).map(|edge| edge.to);
        next.extend(onwards.filter(|to| !analysis.is_reached(*to) && seen.insert(*to)));
    }
    let mut nodes: Vec<Node> = seen.into_iter().collect();
    nodes.sort_unstable();
    nodes
}

/// Returns for each of some sorted dead nodes whether it stays when the collector has run.
fn stays(heap: &Heap<'_>, nodes: &[Node]) -> Vec<bool> {
    let at = |node: Node| nodes.binary_search(&node).ok();
    let onwards = |from: usize| heap.graph.references(nodes[from]).filter_map(move |e| at(e.to));
    let mut held: Vec<bool> = nodes.iter().map(|node| heap.hidden(*node) > 0).collect();
    for memory in heap.memories.iter().filter(|memory| memory.is_held_natively()) {
        if let Some(at) = at(memory.node) {
            held[at] = true;
        }
    }
    let is_native = |from: &usize| held[*from] || heap.known.explained.contains(&nodes[*from]);
    let mut next: Vec<usize> = (0..nodes.len()).filter(is_native).collect();
    let mut stays = vec![false; nodes.len()];
    while let Some(node) = next.pop() {
        if !std::mem::replace(&mut stays[node], true) {
            next.extend(onwards(node));
        }
    }
    // What the collector frees may have been all that held one of them in native code. (Memory
    // keeps the Python object of its storage, which does not keep the memory then.)
    let counts = |from: usize| heap.kind(nodes[from]) != Kind::Memory;
    let mut references = vec![0_u32; nodes.len()];
    for from in (0..nodes.len()).filter(|from| stays[*from] && counts(*from)) {
        onwards(from).for_each(|to| references[to] += 1);
    }
    let is_free = |node: usize, references: &[u32]| references[node] == 0 && !held[node];
    let mut next: Vec<usize> =
        (0..nodes.len()).filter(|node| stays[*node] && is_free(*node, &references)).collect();
    while let Some(node) = next.pop() {
        stays[node] = false;
        if !counts(node) {
            continue;
        }
        for to in onwards(node).filter(|to| stays[*to]).collect::<Vec<_>>() {
            references[to] -= 1;
            if is_free(to, &references) {
                next.push(to);
            }
        }
    }
    stays
}
