//! The answer to `why`: what holds device memory, or an object; what to cut; what is unreachable
//! already.
//!
//! Everything is found here, with addresses only. Python gets the few objects on the paths, to name
//! them.

use std::collections::{HashMap, HashSet};

use lowtide_device::Bytes;
use lowtide_heap::{Analysis, Cut, Edge, Island, Node};
use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::found::{
    CutEdge, DeadCycle, Examination, HeapCut, HeldObject, NativeObject, RetainedSize,
};
use super::graph::Heap;
use super::kind::Kind;
use super::lists::list_of;
use super::memory;
use super::paths::path_of;
use super::question::Question;

/// Paths that are shown for each object.
const PATHS_MOST: usize = 4;
/// References that a cut may have.
const CUT_MOST: u64 = 16;
/// A part that has this many percent of the whole's bytes is what a person means.
const MOST_OF_IT: u64 = 95;
/// Unreachable cycles that are shown.
const DEAD_MOST: usize = 5;

/// Walks the heap and answers a `_why.question.Question`.
#[pyfunction]
pub(crate) fn examine(question: &Bound<'_, PyAny>) -> PyResult<Examination> {
    let py = question.py();
    let (question, mut kinds) = Question::new(question)?;
    let heap = memory::take(py, &question, &mut kinds)?;
    let analysis = Analysis::new(&heap.graph);
    let one_by_one = question.targets.is_some() && !question.grouped;
    Answering { py, heap: &heap, analysis: &analysis, one_by_one }.all(question.most)
}

/// What an answer is made from.
struct Answering<'a, 'py> {
    py: Python<'py>,
    heap: &'a Heap<'py>,
    analysis: &'a Analysis<'a>,
    /// Whether objects were asked about. Then everything else is left out.
    one_by_one: bool,
}

/// Memory that is held by one object that a person knows.
struct Group {
    node: Node,
    bytes: Bytes,
    pieces: u64,
}

impl Answering<'_, '_> {
    fn all(&self, most: usize) -> PyResult<Examination> {
        let groups = if self.one_by_one { self.targets() } else { self.groups() };
        let (shown, rest) = groups.split_at(groups.len().min(most));
        let held = shown.iter().map(|group| self.held(group)).collect::<PyResult<Vec<_>>>()?;
        let rest_bytes: Bytes = rest.iter().map(|group| group.bytes).sum();
        let memories = &self.heap.memories;
        let bytes: Bytes = memories.iter().map(|memory| memory.bytes).sum();
        let dead = self.dead()?;
        Ok(Examination {
            held: self.list(held)?,
            rest: RetainedSize { objects: rest.len() as u64, bytes: rest_bytes.0 },
            dead: self.list(dead.shown)?,
            dead_bytes: dead.bytes.0,
            dead_frozen_bytes: dead.frozen_bytes.0,
            native: self.list(self.native()?)?,
            native_memory: self.native_memory(),
            memory: RetainedSize { objects: memories.len() as u64, bytes: bytes.0 },
            objects: self.heap.graph.len(),
            frozen_objects: self.heap.known.frozen_count,
            frozen_listed: self.heap.known.frozen_seen,
        })
    }

    fn list<T: PyTypeInfo>(&self, objects: Vec<Py<T>>) -> PyResult<Py<PyList>> {
        Ok(list_of(self.py, objects.into_iter().map(|one| one.into_bound(self.py)))?.unbind())
    }

    fn object(&self, node: Node) -> Option<Py<PyAny>> {
        self.heap.object(self.py, node).map(Bound::unbind)
    }

    /// Returns the objects that were asked about, each on its own.
    fn targets(&self) -> Vec<Group> {
        let group = |node: &Node| {
            let retained = self.analysis.retained(*node);
            Group { node: *node, bytes: retained.bytes, pieces: 0 }
        };
        self.heap.known.targets.iter().map(group).collect()
    }

    /// Returns the objects that hold device memory, largest first.
    fn groups(&self) -> Vec<Group> {
        let mut by_node: HashMap<Node, Group> = HashMap::new();
        for memory in &self.heap.memories {
            if !self.analysis.is_reached(memory.node) {
                continue;
            }
            let node = self.known_as(memory.node);
            let empty = Group { node, bytes: Bytes::ZERO, pieces: 0 };
            let group = by_node.entry(node).or_insert(empty);
            group.bytes += memory.bytes;
            group.pieces += 1;
        }
        let mut groups: Vec<Group> = by_node.into_values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.bytes), group.node));
        groups
    }

    /// Returns the object that a person would say holds this memory: the farthest that holds it
    /// alone, or the part that has most of its bytes, as long as it is no name or frame, and no
    /// part of a model.
    fn known_as(&self, memory: Node) -> Node {
        let chain: Vec<Node> = self
            .analysis
            .dominators(memory)
            .take_while(|node| !self.heap.kind(*node).is_scaffolding())
            .collect();
        let Some(mut at) = chain.len().checked_sub(1) else { return memory };
        let wholes = self.wholes(&chain);
        while at > 0 && !wholes[at] {
            let [whole, part] = [at, at - 1].map(|at| self.analysis.retained(chain[at]).bytes);
            if part.0 * 100 < whole.0 * MOST_OF_IT {
                break;
            }
            at -= 1;
        }
        // A person calls the instance by name, not the dict in which it keeps its attributes.
        if let Some(above) = chain.get(at + 1)
            && self.heap.keeps_attributes(*above, chain[at])
        {
            at += 1;
        }
        chain[at]
    }

    /// Returns for each of these, which dominates those before it, whether it is one thing: a
    /// tensor, or a model that has them as its parts. What is attached to a model by a hook is no
    /// part of it.
    fn wholes(&self, chain: &[Node]) -> Vec<bool> {
        let (mut all_tensors, mut all_parts) = (true, true);
        let is_whole = chain.iter().map(|node| {
            let kind = self.heap.kind(*node);
            let is_whole = match kind {
                Kind::Tensor => all_tensors,
                Kind::Model => all_parts,
                _ => false,
            };
            all_tensors &= kind == Kind::Tensor;
            all_parts &= matches!(kind, Kind::Dict | Kind::Model | Kind::Tensor);
            is_whole
        });
        is_whole.collect()
    }

    fn held(&self, group: &Group) -> PyResult<Py<HeldObject>> {
        let Group { node, bytes, pieces } = *group;
        let paths = self.analysis.paths(node, PATHS_MOST);
        let paths = paths.iter().map(|path| path_of(self.py, self.heap, path));
        let paths = paths.collect::<PyResult<Vec<_>>>()?;
        let cuts = self.analysis.cuts(&[node], CUT_MOST, |edge| self.heap.cut_cost(edge));
        let (cuts, why_no_cut) = match cuts {
            Ok(cuts) => {
                let cuts = cuts.iter().map(|cut| self.cut(cut, node));
                (cuts.collect::<PyResult<Vec<_>>>()?, None)
            }
            Err(why) => (Vec::new(), Some(why.to_string())),
        };
        let held = HeldObject {
            object: self.object(node).or_else(|| self.of_memory(node)),
            bytes: bytes.0,
            pieces,
            reached: self.analysis.is_reached(node),
            dead: self.is_dead(node),
            hidden: self.heap.hidden(node),
            frozen: self.heap.is_frozen(node),
            paths: self.list(paths)?,
            cuts: self.list(cuts)?,
            why_no_cut,
        };
        Py::new(self.py, held)
    }

    /// Returns a tensor that has this memory, if none of them has it alone.
    fn of_memory(&self, node: Node) -> Option<Py<PyAny>> {
        let memory = self.heap.memories.iter().find(|memory| memory.node == node)?;
        self.object(memory.tensor)
    }

    fn cut(&self, cut: &Cut, target: Node) -> PyResult<Py<HeapCut>> {
        let mut ends: Vec<(Node, Node)> =
            cut.edges.iter().map(|Edge { from, to, .. }| (*from, *to)).collect();
        ends.dedup();
        let mut edges = Vec::with_capacity(ends.len());
        for (from, to) in ends {
            let path = self.analysis.path(from);
            let path = path.map(|path| path_of(self.py, self.heap, &path)).transpose()?;
            edges.push(Py::new(self.py, CutEdge { held: self.object(to), path })?);
        }
        let (kept, hidden) = self.kept(cut, target);
        let found = HeapCut {
            edges: self.list(edges)?,
            freed: cut.freed.into(),
            beside: cut.collateral.into(),
            kept_bytes: kept.0,
            hidden,
        };
        Py::new(self.py, found)
    }

    /// Returns what stays although the references are cut, because of references that were not
    /// seen; and how many of those lead to the target.
    fn kept(&self, cut: &Cut, target: Node) -> (Bytes, u64) {
        let mut lost = self.analysis.lost_by(&cut.edges);
        lost.sort_unstable();
        let is_lost = |node: Node| lost.binary_search(&node).is_ok();
        let hidden = lost.iter().filter(|node| {
            // Classes have references from everywhere, and no memory.
            self.heap.hidden(**node) > 0 && self.heap.kind(**node) != Kind::Class
        });
        let keepers: Vec<Node> = hidden.copied().collect();
        if keepers.is_empty() {
            return (Bytes::ZERO, 0);
        }
        let onwards = |node: Node| {
            let onwards = self.heap.graph.references(node).map(|edge| edge.to);
            onwards.filter(|node| is_lost(*node))
        };
        let kept = reached(keepers.iter().copied(), onwards);
        let bytes = kept.iter().map(|node| self.heap.graph.bytes(*node)).sum();
        // From the target backwards, over what is kept.
        let mut referrers: HashMap<Node, Vec<Node>> = HashMap::new();
        for from in &kept {
            for to in onwards(*from) {
                referrers.entry(to).or_default().push(*from);
            }
        }
        let back = |node: Node| referrers.get(&node).into_iter().flatten().copied();
        let leading = reached(kept.get(&target).copied().into_iter(), back);
        let leading = keepers.iter().filter(|keeper| leading.contains(keeper));
        (bytes, leading.map(|keeper| u64::from(self.heap.hidden(*keeper))).sum())
    }

    /// Returns the unreachable cycles of the program. Unreachable objects without a cycle are held
    /// by us alone.
    fn islands(&self) -> impl Iterator<Item = &Island> {
        let islands = self.analysis.islands().iter();
        islands.filter(|island| island.is_cycle && self.heap.kind(island.head) != Kind::Ours)
    }

    /// Returns whether only unreachable objects lead to a node, and not this question alone.
    fn is_dead(&self, node: Node) -> bool {
        if self.analysis.is_reached(node) {
            return false;
        }
        let mut next: Vec<Node> = self.islands().map(|island| island.head).collect();
        let mut seen: HashSet<Node> = next.iter().copied().collect();
        while let Some(at) = next.pop() {
            if at == node {
                return true;
            }
            let onwards = self.heap.graph.references(at).map(|edge| edge.to);
            next.extend(onwards.filter(|to| !self.analysis.is_reached(*to) && seen.insert(*to)));
        }
        false
    }

    /// Returns what no root reaches: the collector frees it, unless it is frozen.
    fn dead(&self) -> PyResult<Dead> {
        let mut dead = Dead::default();
        for island in self.islands().filter(|_| !self.one_by_one) {
            dead.bytes += island.size.bytes;
            let frozen = self.heap.is_frozen(island.head);
            if frozen {
                dead.frozen_bytes += island.size.bytes;
            }
            if dead.shown.len() < DEAD_MOST && island.size.bytes > Bytes::ZERO {
                let (head, size) = (self.object(island.head), island.size.into());
                let cycle = DeadCycle { head, size, frozen };
                dead.shown.push(Py::new(self.py, cycle)?);
            }
        }
        Ok(dead)
    }

    /// Returns the objects that hold memory and that only native code holds, largest first.
    fn native(&self) -> PyResult<Vec<Py<NativeObject>>> {
        let native = self.heap.known.native.iter().filter(|_| !self.one_by_one);
        let native = native.map(|node| (self.analysis.retained(*node).bytes.0, *node));
        let mut native: Vec<(u64, Node)> = native.filter(|(bytes, _)| *bytes > 0).collect();
        native.sort_unstable_by(|one, other| other.cmp(one));
        let found = native.into_iter().map(|(bytes, node)| {
            let (object, references) = (self.object(node), self.heap.hidden(node));
            Py::new(self.py, NativeObject { object, references, bytes })
        });
        found.collect()
    }

    /// Returns the memory that has more holders in native code than Python explains.
    fn native_memory(&self) -> RetainedSize {
        let held = self.heap.memories.iter().filter(|memory| memory.native.unwrap_or(0) > 0);
        let bytes: Bytes = held.clone().map(|memory| memory.bytes).sum();
        RetainedSize { objects: held.count() as u64, bytes: bytes.0 }
    }
}

/// Returns the nodes that some nodes lead to, themselves included.
fn reached<I: Iterator<Item = Node>>(
    first: impl Iterator<Item = Node>,
    onwards: impl Fn(Node) -> I,
) -> HashSet<Node> {
    let mut seen: HashSet<Node> = first.collect();
    let mut next: Vec<Node> = seen.iter().copied().collect();
    while let Some(node) = next.pop() {
        next.extend(onwards(node).filter(|node| seen.insert(*node)));
    }
    seen
}

/// Unreachable cycles.
#[derive(Default)]
struct Dead {
    shown: Vec<Py<DeadCycle>>,
    bytes: Bytes,
    frozen_bytes: Bytes,
}
