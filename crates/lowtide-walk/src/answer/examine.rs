//! The answer to `why`: what holds device memory, or an object; what to cut; what is unreachable
//! already.
//!
//! Everything is found here, with addresses only. Python gets the few objects on the paths, to name
//! them.

use std::collections::{HashMap, HashSet};

use lowtide_heap::{Analysis, Cut, CutCost, Edge, NoCut, Node};
use lowtide_types::Bytes;
use pyo3::PyTypeInfo;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::answer::paths::path_of;
use crate::answer::results::{
    CutEdge, DeadCycle, Examination, HeapCut, HeldObject, NativeObject, RetainedSize,
};
use crate::answer::unreachable::{Cycle, Dead};
use crate::ask::kind::Kind;
use crate::memory::heap::{Heap, Manner};
use crate::memory::nodes;
use crate::safety::python_lists::list_of;
use crate::start::question::Question;

/// Paths that are shown for each object.
const PATHS_MOST: usize = 4;
/// Paths to an object that refers to another: one of them can be written in Python.
const WAYS_MOST: usize = 4;
/// A part that has this many percent of the whole's bytes is what a person means.
const MOST_OF_IT: u64 = 95;
/// How many tuples may stand between a function and the container in which it is registered.
const TUPLES_DEEP: usize = 3;
/// Unreachable cycles that are shown.
const DEAD_MOST: usize = 5;

/// Walks the heap and answers a `_why.question.Question`.
#[pyfunction]
pub fn examine(question: &Bound<'_, PyAny>) -> PyResult<Examination> {
    let py = question.py();
    let (question, mut kinds) = Question::new(question)?;
    let heap = nodes::take(py, &question, &mut kinds)?;
    let analysis = Analysis::new(&heap.graph);
    analysis.prepare();
    let one_by_one = question.targets.is_some() && !question.grouped;
    let at_exit = question.at_exit;
    Answering { py, heap: &heap, analysis: &analysis, one_by_one, at_exit }.all(question.most)
}

/// What an answer is made from.
struct Answering<'a, 'py> {
    py: Python<'py>,
    heap: &'a Heap<'py>,
    analysis: &'a Analysis<'a>,
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
        let memories = &self.heap.memories;
        let bytes: Bytes = memories.iter().map(|memory| memory.bytes).sum();
        let dead = Dead::new(self.heap, self.analysis);
        let cycles = dead.cycles.iter().filter(|_| !self.one_by_one).take(DEAD_MOST);
        let cycles = cycles.map(|cycle| {
            let Cycle { head, size, frozen, kept } = *cycle;
            let (head, size) = (self.object(head), size.into());
            Py::new(self.py, DeadCycle { head, size, frozen, kept_bytes: kept.0 })
        });
        let cycles = cycles.collect::<PyResult<Vec<_>>>()?;
        let held = shown.iter().map(|group| self.held(group, &dead));
        let held = held.collect::<PyResult<Vec<_>>>()?;
        Ok(Examination {
            held: self.list(held)?,
            rest: RetainedSize { objects: rest.len() as u64, bytes: rest_bytes.0 },
            dead: self.list(cycles)?,
            collected_bytes: if self.one_by_one { 0 } else { dead.collected.0 },
            unfrozen_bytes: if self.one_by_one { 0 } else { dead.frozen.0 },
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
            .take_while(|node| !self.is_scaffolding(*node))
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

    /// Returns whether it is a place for names, or for calls at exit, rather than an object that has a name.
    fn is_scaffolding(&self, node: Node) -> bool {
        let is_list = self.heap.known.addresses[node.index()] == self.at_exit && self.at_exit != 0;
        is_list || self.heap.kind(node).is_scaffolding()
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

    fn held(&self, group: &Group, dead: &Dead) -> PyResult<Py<HeldObject>> {
        let Group { node, bytes, pieces } = *group;
        let paths = self.analysis.paths(node, PATHS_MOST);
        let paths = paths.iter().map(|path| path_of(self.py, self.heap, path));
        let paths = paths.collect::<PyResult<Vec<_>>>()?;
        let (mut cuts, why_no_cut) = match self.cuts(node) {
            Ok(cuts) => {
                let cuts = cuts.iter().map(|cut| self.cut(cut, node));
                (cuts.collect::<PyResult<Vec<_>>>()?, None)
            }
            Err(why) => (Vec::new(), Some(why.to_string())),
        };
        if self.heap.kind(node) == Kind::Cache && pieces > 0 {
            cuts.splice(0..0, self.clearing(node, bytes)?);
        }
        let held = HeldObject {
            object: self.object(node).or_else(|| self.of_memory(node)),
            bytes: bytes.0,
            pieces,
            reached: self.analysis.is_reached(node),
            collected: dead.is_collected(node),
            hidden: self.heap.hidden(node),
            frozen: self.heap.is_frozen(node),
            paths: self.list(paths)?,
            cuts: self.list(cuts)?,
            why_no_cut,
        };
        Py::new(self.py, held)
    }

    /// Returns the cuts that free a node, in every manner.
    fn cuts(&self, node: Node) -> Result<Vec<Cut>, NoCut> {
        let mut found: Vec<Cut> = Vec::new();
        let mut why_not = None;
        for manner in Manner::ALL {
            let cost = |edge: Edge| {
                if manner == Manner::Gentle && self.is_of_registered(edge.from) {
                    return CutCost::Never;
                }
                if manner == Manner::Caches && !self.is_entry(edge) {
                    return CutCost::Never;
                }
                if manner == Manner::Gentle && self.is_wrapped_method(edge) {
                    return CutCost::Cost(1);
                }
                self.heap.cut_cost(edge, manner)
            };
            match self.analysis.cuts(&[node], manner.most(), cost) {
                Ok(cuts) => {
                    for cut in cuts {
                        if found.iter().all(|other| other.edges != cut.edges) {
                            found.push(cut);
                        }
                    }
                }
                Err(why) => why_not = Some(why),
            }
        }
        match why_not {
            Some(why) if found.is_empty() => Err(why),
            _ => Ok(found),
        }
    }

    /// Returns the cut that clears a cache and keeps its function, if that frees so many bytes.
    fn clearing(&self, cache: Node, bytes: Bytes) -> PyResult<Option<Py<HeapCut>>> {
        let entries = self.heap.graph.references(cache).filter(|edge| self.is_entry(*edge));
        let entries: Vec<Edge> = entries.collect();
        let Some(first) = entries.first() else { return Ok(None) };
        let mut lost = self.analysis.lost_by(&entries);
        lost.sort_unstable();
        let freed: Bytes = lost.iter().map(|node| self.heap.graph.bytes(*node)).sum();
        if freed < bytes {
            return Ok(None);
        }
        let (kept, hidden) = self.kept(&lost, cache);
        let (collects, unfreezes) = self.in_cycle(&lost, cache);
        let found = HeapCut {
            edges: self.list(vec![self.edge(first.from, first.to)?])?,
            freed: RetainedSize { objects: lost.len() as u64, bytes: freed.0 },
            beside: RetainedSize { objects: 0, bytes: 0 },
            kept_bytes: kept.0,
            hidden,
            collects,
            unfreezes,
        };
        Py::new(self.py, found).map(Some)
    }

    /// Returns whether a reference leads to what a cache loses when it is cleared: not its function,
    /// and not its attributes.
    fn is_entry(&self, edge: Edge) -> bool {
        if self.heap.kind(edge.from) != Kind::Cache {
            return false;
        }
        let [cache, held] = [edge.from, edge.to].map(|node| self.heap.object(self.py, node));
        let (Some(cache), Some(held)) = (cache, held) else { return false };
        // Caches are exactly of the interpreter's own type: none of the program's code runs.
        let is = |name| cache.getattr(name).is_ok_and(|part| part.is(&held));
        !matches!(self.heap.kind(edge.to), Kind::Function | Kind::Class)
            && !is(intern!(self.py, "__dict__"))
            && !is(intern!(self.py, "__wrapped__"))
    }

    /// Returns whether a node has the default arguments of functions that are only registered
    /// somewhere, as hooks and callbacks are. Such a function is removed as a whole.
    fn is_of_registered(&self, defaults: Node) -> bool {
        match self.heap.kind(defaults) {
            Kind::Defaults => {}
            Kind::Dict if self.are_keyword_defaults(defaults) => {}
            _ => return false,
        }
        let mut functions = self.analysis.referrers(defaults).peekable();
        functions.peek().is_some()
            && functions.all(|one| {
                self.heap.kind(one) == Kind::Function && self.is_registered(one, TUPLES_DEEP)
            })
    }

    /// Returns whether a reference leads from a class to a function that calls the method in whose
    /// place it is. The class gets that one back.
    fn is_wrapped_method(&self, edge: Edge) -> bool {
        if [edge.from, edge.to].map(|node| self.heap.kind(node))
            != [Kind::ClassDict, Kind::Function]
        {
            return false;
        }
        let [methods, function] = [edge.from, edge.to].map(|node| self.heap.object(self.py, node));
        let (Some(methods), Some(function)) = (methods, function) else { return false };
        let Ok(methods) = methods.cast_into::<PyDict>() else { return false };
        let Ok(closure) = function.getattr(intern!(self.py, "__closure__")) else { return false };
        let Ok(cells) = closure.cast_into::<PyTuple>() else { return false };
        // Functions and cells are exactly of the interpreter's own types: none of the program's code
        // runs.
        cells.iter().any(|cell| {
            let before = cell.getattr(intern!(self.py, "cell_contents"));
            let before = before.ok().filter(|before| before.get_type().is(function.get_type()));
            let name = before.and_then(|before| before.getattr(intern!(self.py, "__name__")).ok());
            let name = name.and_then(|name| name.cast_into_exact::<PyString>().ok());
            let entry = name.and_then(|name| methods.get_item(name).ok().flatten());
            entry.is_some_and(|entry| entry.is(&function))
        })
    }

    /// Returns whether only entries of containers and attributes of instances lead to an object,
    /// perhaps over some tuples.
    fn is_registered(&self, node: Node, deep: usize) -> bool {
        let mut holders = self.analysis.referrers(node).peekable();
        holders.peek().is_some()
            && holders.all(|holder| match self.heap.kind(holder) {
                Kind::Dict | Kind::Container | Kind::Instance | Kind::Model | Kind::Tensor => true,
                Kind::Immutable => deep > 0 && self.is_registered(holder, deep - 1),
                _ => false,
            })
    }

    /// Returns whether a dict has the default arguments of a function that are given by name.
    fn are_keyword_defaults(&self, dict: Node) -> bool {
        let mut holders = self.analysis.referrers(dict);
        let (first, second) = (holders.next(), holders.next());
        let Some(function) = first.filter(|_| second.is_none()) else { return false };
        if self.heap.kind(function) != Kind::Function {
            return false;
        }
        let [function, dict] = [function, dict].map(|node| self.heap.object(self.py, node));
        let (Some(function), Some(dict)) = (function, dict) else { return false };
        // Functions are exactly of the interpreter's own type: none of the program's code runs.
        function.getattr("__kwdefaults__").is_ok_and(|defaults| defaults.is(&dict))
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
            edges.push(self.edge(from, to)?);
        }
        let mut lost = self.analysis.lost_by(&cut.edges);
        lost.sort_unstable();
        let (kept, hidden) = self.kept(&lost, target);
        let (collects, unfreezes) = self.in_cycle(&lost, target);
        let found = HeapCut {
            edges: self.list(edges)?,
            freed: cut.freed.into(),
            beside: cut.collateral.into(),
            kept_bytes: kept.0,
            hidden,
            collects,
            unfreezes,
        };
        Py::new(self.py, found)
    }

    fn edge(&self, from: Node, to: Node) -> PyResult<Py<CutEdge>> {
        let paths = self.analysis.paths(from, WAYS_MOST);
        let paths = paths.iter().map(|path| path_of(self.py, self.heap, path));
        let paths = self.list(paths.collect::<PyResult<Vec<_>>>()?)?;
        Py::new(self.py, CutEdge { held: self.object(to), paths })
    }

    /// Returns whether a cycle keeps the target or device memory alive among these nodes, which are
    /// sorted: the collector has to run after the cut. Returns as well whether objects of the cycle are frozen. Without
    /// a cycle, that is whether any of the nodes is: the statement may cut elsewhere than the graph does, and leave one.
    fn in_cycle(&self, lost: &[Node], target: Node) -> (bool, bool) {
        let at = |node: Node| lost.binary_search(&node).ok();
        let mut references = vec![0_u32; lost.len()];
        let counted = |node: &&Node| self.heap.kind(**node) != Kind::Memory;
        for node in lost.iter().filter(counted) {
            for to in self.heap.graph.references(*node).filter_map(|edge| at(edge.to)) {
                references[to] += 1;
            }
        }
        let mut next: Vec<usize> = (0..lost.len()).filter(|at| references[*at] == 0).collect();
        let mut freed = vec![false; lost.len()];
        while let Some(node) = next.pop() {
            freed[node] = true;
            if self.heap.kind(lost[node]) == Kind::Memory {
                continue;
            }
            for to in self.heap.graph.references(lost[node]).filter_map(|edge| at(edge.to)) {
                references[to] -= 1;
                if references[to] == 0 {
                    next.push(to);
                }
            }
        }
        let matters = |node: Node| node == target || self.heap.graph.bytes(node) > Bytes::ZERO;
        let stay = lost.iter().zip(&freed).filter(|(_, freed)| !**freed).map(|(node, _)| *node);
        let is_frozen = |node| self.heap.is_frozen(node);
        if stay.clone().any(matters) {
            (true, stay.clone().any(is_frozen))
        } else {
            (false, lost.iter().copied().any(is_frozen))
        }
    }

    /// Returns what stays of these sorted nodes although the references to them are cut, because
    /// of references that were not seen; and how many of those lead to the target.
    fn kept(&self, lost: &[Node], target: Node) -> (Bytes, u64) {
        let is_lost = |node: Node| lost.binary_search(&node).is_ok();
        let hidden = lost.iter().filter(|node| {
            // Classes have references from everywhere, and no memory.
            self.heap.hidden(**node) > 0 && self.heap.kind(**node) != Kind::Class
        });
        let held = self
            .heap
            .memories
            .iter()
            .filter(|memory| memory.is_held_natively() && is_lost(memory.node));
        let keepers: Vec<Node> = hidden.copied().chain(held.map(|memory| memory.node)).collect();
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
        // One list, which goes back to the kernel at once: many small ones would not.
        let referrers = kept.iter().flat_map(|from| onwards(*from).map(|to| (to, *from)));
        let mut referrers: Vec<(Node, Node)> = referrers.collect();
        referrers.sort_unstable();
        let back = |node: Node| {
            let first = referrers.partition_point(|(to, _)| *to < node);
            let same = referrers[first..].iter().take_while(move |(to, _)| *to == node);
            same.map(|(_, from)| *from)
        };
        let leading = reached(kept.get(&target).copied().into_iter(), back);
        let leading = keepers.iter().filter(|keeper| leading.contains(keeper));
        (bytes, leading.map(|keeper| u64::from(self.heap.hidden(*keeper))).sum())
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
        let held = self.heap.memories.iter();
        let held = held.filter(|memory| memory.is_held_natively());
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
