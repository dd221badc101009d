//! The answer to `why`: what holds device memory, or an object; what to cut; what is unreachable
//! already.
//!
//! Everything is found here, with addresses only. Python gets the few objects on the paths, to name
//! them.

use std::collections::HashMap;

use lowtide_heap::{Analysis, Cut, Edge, Node};
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
/// Objects of which it is asked whether others have the same holders.
const JOINED_MOST: usize = 16;
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
    /// Tensors with the same holders, the first of them included; none if `node` has it all.
    equal: Vec<Node>,
    /// The cut of all holders of a model.
    cut: Option<Cut>,
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
            sizes: memories.iter().map(|memory| memory.bytes.0).collect(),
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
            Group { node: *node, bytes: retained.bytes, pieces: 0, equal: Vec::new(), cut: None }
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
            let empty = Group { node, bytes: Bytes::ZERO, pieces: 0, equal: Vec::new(), cut: None };
            let group = by_node.entry(node).or_insert(empty);
            group.bytes += memory.bytes;
            group.pieces += 1;
        }
        let mut groups: Vec<Group> = by_node.into_values().collect();
        groups.sort_by_key(|group| (std::cmp::Reverse(group.bytes), group.node));
        self.joined(groups)
    }

    /// Joins groups that have the same holders, each of which would hold them without the others: the parameters of a
    /// model that a graph holds too are one.
    fn joined(&self, mut groups: Vec<Group>) -> Vec<Group> {
        let mut joined = Vec::new();
        let mut tries = 0;
        while !groups.is_empty() {
            let mut group = groups.remove(0);
            if tries < JOINED_MOST && self.is_shared(group.node) {
                tries += 1;
                self.join(&mut group, &mut groups);
            }
            joined.push(group);
        }
        joined.sort_by_key(|group| (std::cmp::Reverse(group.bytes), group.node));
        joined
    }

    /// Moves groups into another that has the same holders.
    fn join(&self, group: &mut Group, groups: &mut Vec<Group>) {
        let cuts = self.found.chosen_cuts(&[group.node]).unwrap_or_default();
        let Some(cut) =
            cuts.iter().filter(|cut| cut.edges.len() > 1).max_by_key(|cut| cut.freed.bytes)
        else {
            return;
        };
        let without = |edges: &[Edge]| {
            let mut lost = self.found.analysis.lost_by(edges);
            lost.sort_unstable();
            lost
        };
        let lost = without(&cut.edges);
        let of_fewer = cut.edges.iter().map(|one| {
            let fewer: Vec<Edge> = cut.edges.iter().copied().filter(|edge| edge != one).collect();
            without(&fewer)
        });
        let of_fewer: Vec<Vec<Node>> = of_fewer.collect();
        let is_equal = |other: &Group| {
            let is_in = |lost: &Vec<Node>| lost.binary_search(&other.node).is_ok();
            self.is_shared(other.node) && is_in(&lost) && !of_fewer.iter().any(is_in)
        };
        let (equal, others): (Vec<Group>, Vec<Group>) =
            std::mem::take(groups).into_iter().partition(is_equal);
        *groups = others;
        let bytes: Bytes = equal.iter().map(|other| other.bytes).sum();
        let model = cut.edges.iter().map(|edge| edge.to);
        let model = model.into_iter().find(|node| self.found.heap.kind(*node) == Kind::Model);
        // The holders have more than this: it is not named by them.
        let is_most = cut.freed.bytes.0 * MOST_OF_IT / 100 <= (group.bytes + bytes).0;
        if equal.is_empty() || (model.is_none() && !is_most) {
            groups.extend(equal);
            groups.sort_by_key(|group| (std::cmp::Reverse(group.bytes), group.node));
            return;
        }
        group.equal = std::iter::once(group.node).chain(equal.iter().map(|one| one.node)).collect();
        group.bytes += bytes;
        group.pieces += equal.iter().map(|other| other.pieces).sum::<u64>();
        group.node = model.unwrap_or(group.node);
        group.cut = model.map(|_| cut.clone());
    }

    /// Returns whether no single object holds a tensor.
    fn is_shared(&self, node: Node) -> bool {
        let above = self.found.analysis.dominator(node);
        matches!(self.found.heap.kind(node), Kind::Tensor | Kind::Memory)
            && above.is_none_or(|above| self.is_scaffolding(above))
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
            && self.found.heap.keeps_attributes(self.found.py, *above, chain[at])
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
        let Group { node, bytes, pieces, ref equal, ref cut } = *group;
        let nodes = if equal.is_empty() { &[node][..] } else { equal };
        let (cuts, why_no_cut) =
            self.found.cuts(nodes, (pieces > 0).then_some(bytes), cut.as_ref())?;
        let mut paths = self.found.analysis.paths(node, PATHS_MOST);
        if let Some(first) = equal.first().filter(|first| **first != node) {
            // What holds them beside their model.
            let others = self.found.analysis.paths(*first, PATHS_MOST);
            paths.extend(others.into_iter().filter(|path| path.nodes().all(|one| one != node)));
        }
        let paths: Vec<_> =
            paths.iter().map(|path| self.found.path(path)).collect::<PyResult<_>>()?;
        let held = HeldObject {
            object: self.found.object(node).or_else(|| self.of_memory(node)),
            bytes: bytes.0,
            pieces,
            reached: self.found.analysis.is_reached(node),
            collected: dead.is_collected(node),
            hidden: self.found.heap.hidden(node),
            frozen: self.found.heap.is_frozen(node),
            paths: self.found.list(paths)?,
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
