//! The answer to `why`: what holds device memory, or an object; what to cut; what is unreachable
//! already.
//!
//! Everything is found here, with addresses only. Python gets the few objects on the paths, to name
//! them.

use lowtide_heap::{Analysis, Node};
use lowtide_types::Bytes;
use pyo3::prelude::*;

use crate::answer::group::{Group, PATHS_MOST, Rows};
use crate::answer::results::{
    Analysed, DeadCycle, Examination, HeldObject, NativeObject, RetainedSize,
};
use crate::answer::unreachable::{Cycle, Dead};
use crate::memory::nodes;
use crate::start::question::Question;

/// Unreachable cycles that are shown.
const DEAD_MOST: usize = 5;

/// Walks the heap and answers a `_why.question.Question`.
#[pyfunction]
pub fn examine(question: &Bound<'_, PyAny>) -> PyResult<Examination> {
    let py = question.py();
    let (question, mut types) = Question::new(question)?;
    // A walk that was late has failed.
    let heap = nodes::take(py, &question, &mut types)
        .or_else(|error| question.in_time().and(Err(error)))?;
    question.in_time()?;
    let analysis = Analysis::new(&heap.graph);
    analysis.prepare();
    question.in_time()?;
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

impl<'a, 'py> Answering<'a, 'py> {
    fn rows(&self) -> Rows<'_, 'a, 'py> {
        Rows { found: &self.found, at_exit: self.at_exit }
    }

    fn all(&self, most: usize) -> PyResult<Examination> {
        let groups = if self.one_by_one { self.targets() } else { self.rows().groups() };
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
        let group = |node: &Node| Group::new(*node, self.found.analysis.retained(*node).bytes);
        self.found.heap.targets.iter().map(group).collect()
    }

    fn held(&self, group: &Group, dead: &Dead) -> PyResult<Py<HeldObject>> {
        let Group { node, bytes, pieces, ref equal, ref cut, alike, in_use } = *group;
        let nodes = if equal.is_empty() { &[node][..] } else { equal };
        let (cuts, why_no_cut) =
            self.found.cuts(nodes, (pieces > 0).then_some(bytes), cut.as_ref())?;
        let is_whole = pieces > 1 && equal.is_empty();
        let below = if is_whole { self.found.cuts_below(node) } else { Vec::new() };
        let below = below.iter().map(|cut| self.found.told(cut, node)).collect::<PyResult<_>>()?;
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
            alike,
            in_use: in_use && pieces > 0,
            reached: self.found.analysis.is_reached(node),
            collected: dead.is_collected(node),
            hidden: self.found.heap.hidden(node),
            frozen: self.found.heap.is_frozen(node),
            paths: self.found.list(paths)?,
            cuts: self.found.list(cuts)?,
            below: self.found.list(below)?,
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
