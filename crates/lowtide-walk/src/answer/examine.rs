//! The answer to `why`: what holds device memory, or an object; what to cut; what is unreachable
//! already.
//!
//! Everything is found here, with addresses only. Python gets the few objects on the paths, to name
//! them.

use std::collections::HashMap;

use lowtide_heap::{Analysis, Node};
use lowtide_types::Bytes;
use pyo3::prelude::*;

use crate::answer::results::{
    Analysed, DeadCycle, Examination, HeldObject, NativeObject, RetainedSize,
};
use crate::answer::unreachable::{Cycle, Dead};
use crate::ask::kind::Kind;
use crate::memory::nodes;
use crate::start::question::Question;

/// Paths that are shown for each object.
const PATHS_MOST: usize = 4;
/// A part that has this many percent of the whole's bytes is what a person means.
const MOST_OF_IT: u64 = 95;
/// Unreachable cycles that are shown.
const DEAD_MOST: usize = 5;

/// Walks the heap and answers a `_why.question.Question`.
#[pyfunction]
pub fn examine(question: &Bound<'_, PyAny>) -> PyResult<Examination> {
    let py = question.py();
    let (question, mut types) = Question::new(question)?;
    let heap = nodes::take(py, &question, &mut types)?;
    let analysis = Analysis::new(&heap.graph);
    analysis.prepare();
    let one_by_one = question.targets.is_some() && !question.asked.grouped;
    let at_exit = question.asked.at_exit;
    let found = Analysed { py, heap: &heap, analysis: &analysis };
    Answering { found, one_by_one, at_exit }.all(question.asked.most)
}

/// What an answer is made from.
struct Answering<'a, 'py> {
    found: Analysed<'a, 'py>,
    /// Whether objects were asked about. Then everything else is left out.
    one_by_one: bool,
    /// The address of the interpreter's list of calls at exit, or 0: nobody knows it by a name.
    at_exit: usize,
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
        let rest_bytes: Bytes = rest.iter().map(|group| group.bytes).sum();
        let memories = &self.found.heap.memories;
        let bytes: Bytes = memories.iter().map(|memory| memory.bytes).sum();
        let dead = Dead::new(self.found.heap, self.found.analysis);
        let cycles = dead.cycles.iter().filter(|_| !self.one_by_one).take(DEAD_MOST);
        let cycles = cycles.map(|cycle| {
            let Cycle { head, size, frozen, kept } = *cycle;
            let (head, size) = (self.found.object(head), size.into());
            Py::new(self.found.py, DeadCycle { head, size, frozen, kept_bytes: kept.0 })
        });
        let cycles = cycles.collect::<PyResult<Vec<_>>>()?;
        let held = shown.iter().map(|group| self.held(group, &dead));
        let held = held.collect::<PyResult<Vec<_>>>()?;
        Ok(Examination {
            held: self.found.list(held)?,
            rest: RetainedSize { objects: rest.len() as u64, bytes: rest_bytes.0 },
            dead: self.found.list(cycles)?,
            collected_bytes: if self.one_by_one { 0 } else { dead.collected.0 },
            unfrozen_bytes: if self.one_by_one { 0 } else { dead.frozen.0 },
            native: self.found.list(self.native()?)?,
            native_memory: self.native_memory(),
            memory: RetainedSize { objects: memories.len() as u64, bytes: bytes.0 },
            objects: self.found.heap.graph.len(),
            frozen_objects: self.found.heap.nodes.frozen_count,
            frozen_listed: self.found.heap.nodes.frozen_seen,
        })
    }

    /// Returns the objects that were asked about, each on its own.
    fn targets(&self) -> Vec<Group> {
        let group = |node: &Node| {
            let retained = self.found.analysis.retained(*node);
            Group { node: *node, bytes: retained.bytes, pieces: 0 }
        };
        self.found.heap.targets.iter().map(group).collect()
    }

    /// Returns the objects that hold device memory, largest first.
    fn groups(&self) -> Vec<Group> {
        let mut by_node: HashMap<Node, Group> = HashMap::new();
        for memory in &self.found.heap.memories {
            if !self.found.analysis.is_reached(memory.node) {
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
            .found
            .analysis
            .dominators(memory)
            .take_while(|node| !self.is_scaffolding(*node))
            .collect();
        let Some(mut at) = chain.len().checked_sub(1) else { return memory };
        let wholes = self.wholes(&chain);
        while at > 0 && !wholes[at] {
            let [whole, part] =
                [at, at - 1].map(|at| self.found.analysis.retained(chain[at]).bytes);
            if part.0 * 100 < whole.0 * MOST_OF_IT {
                break;
            }
            at -= 1;
        }
        // A person calls the instance by name, not the dict in which it keeps its attributes.
        if let Some(above) = chain.get(at + 1)
            && self.found.heap.keeps_attributes(*above, chain[at])
        {
            at += 1;
        }
        chain[at]
    }

    /// Returns whether it is a place for names, or for calls at exit, rather than an object that has a name.
    fn is_scaffolding(&self, node: Node) -> bool {
        let is_list =
            self.found.heap.nodes.addresses[node.index()] == self.at_exit && self.at_exit != 0;
        is_list || self.found.heap.kind(node).is_scaffolding()
    }

    /// Returns for each of these, which dominates those before it, whether it is one thing: a
    /// tensor, or a model that has them as its parts. What is attached to a model by a hook is no
    /// part of it.
    fn wholes(&self, chain: &[Node]) -> Vec<bool> {
        let (mut all_tensors, mut all_parts) = (true, true);
        let is_whole = chain.iter().map(|node| {
            let kind = self.found.heap.kind(*node);
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

    fn held(&self, group: &Group, dead: &Dead) -> PyResult<Py<HeldObject>> {
        let Group { node, bytes, pieces } = *group;
        let (cuts, why_no_cut) = self.found.cuts(node, (pieces > 0).then_some(bytes))?;
        let held = HeldObject {
            object: self.found.object(node).or_else(|| self.of_memory(node)),
            bytes: bytes.0,
            pieces,
            reached: self.found.analysis.is_reached(node),
            collected: dead.is_collected(node),
            hidden: self.found.heap.hidden(node),
            frozen: self.found.heap.is_frozen(node),
            paths: self.found.paths(node, PATHS_MOST)?,
            cuts: self.found.list(cuts)?,
            why_no_cut: why_no_cut.map(|why| why.to_string()),
        };
        Py::new(self.found.py, held)
    }

    /// Returns a tensor that has this memory, if none of them has it alone.
    fn of_memory(&self, node: Node) -> Option<Py<PyAny>> {
        let memory = self.found.heap.memories.iter().find(|memory| memory.node == node)?;
        self.found.object(memory.tensor)
    }

    /// Returns the objects that hold memory and that only native code holds, largest first.
    fn native(&self) -> PyResult<Vec<Py<NativeObject>>> {
        let native = self.found.heap.nodes.native.iter().filter(|_| !self.one_by_one);
        let native = native.map(|node| (self.found.analysis.retained(*node).bytes.0, *node));
        let mut native: Vec<(u64, Node)> = native.filter(|(bytes, _)| *bytes > 0).collect();
        native.sort_unstable_by(|one, other| other.cmp(one));
        let found = native.into_iter().map(|(bytes, node)| {
            let (object, references) = (self.found.object(node), self.found.heap.hidden(node));
            Py::new(self.found.py, NativeObject { object, references, bytes })
        });
        found.collect()
    }

    /// Returns the memory that has more holders in native code than Python explains.
    fn native_memory(&self) -> RetainedSize {
        let held = self.found.heap.memories.iter();
        let held = held.filter(|memory| memory.is_held_natively());
        let bytes: Bytes = held.clone().map(|memory| memory.bytes).sum();
        RetainedSize { objects: held.count() as u64, bytes: bytes.0 }
    }
}
