//! What `why` is told: who holds device memory, or an object; what to cut; what is dead already.
//!
//! Everything is found here, with addresses only. What Python gets are the few objects on the paths,
//! to name them.

use std::collections::{HashMap, HashSet};

use lowtide_device::Bytes;
use lowtide_heap::{Analysis, Cut, Edge, Island, Node, Path};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::kinds::Kind;
use super::memory::{self, Heap};
use super::question::Question;

/// Ways that are shown to each holder.
const PATHS_MOST: usize = 4;
/// References that a cut may have.
const CUT_MOST: u64 = 16;
/// A part that has so many of a hundred bytes of the whole is what a person means.
const MOST_OF_IT: u64 = 95;
/// Islands of dead objects that are shown.
const DEAD_MOST: usize = 5;

/// Walks the heap and answers. See `_native.pyi`.
#[pyfunction]
pub(crate) fn examine<'py>(asked: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let py = asked.py();
    let (question, mut kinds) = Question::new(asked)?;
    let heap = memory::take(py, &question, &mut kinds)?;
    let analysis = Analysis::new(&heap.graph);
    let answering = Answering { py, heap: &heap, analysis: &analysis };
    let one_by_one = question.targets.is_some() && !question.grouped;
    answering.all(one_by_one, question.most)
}

/// What an answer is made from.
pub(crate) struct Answering<'a, 'py> {
    pub(crate) py: Python<'py>,
    pub(crate) heap: &'a Heap<'py>,
    pub(crate) analysis: &'a Analysis<'a>,
}

/// Memory that is held by one thing that a person knows.
struct Group {
    node: Node,
    bytes: Bytes,
    pieces: u64,
}

impl<'py> Answering<'_, 'py> {
    fn all(&self, one_by_one: bool, most: usize) -> PyResult<Bound<'py, PyDict>> {
        let answer = PyDict::new(self.py);
        let groups = if one_by_one { self.targets() } else { self.groups() };
        let (shown, rest) = groups.split_at(groups.len().min(most));
        let holders = shown.iter().map(|group| self.holder(group));
        answer.set_item("holders", holders.collect::<PyResult<Vec<_>>>()?)?;
        let rest_bytes: Bytes = rest.iter().map(|group| group.bytes).sum();
        answer.set_item("rest", (rest.len(), rest_bytes.0))?;
        self.dead(&answer, one_by_one)?;
        self.native(&answer, one_by_one)?;
        let memories = &self.heap.memories;
        let bytes: Bytes = memories.iter().map(|memory| memory.bytes).sum();
        answer.set_item("memory", (memories.len(), bytes.0))?;
        answer.set_item("objects", self.heap.graph.len())?;
        answer.set_item("references", self.heap.graph.edges())?;
        answer.set_item("tracked", self.heap.walked.tracked)?;
        answer.set_item("frozen", (self.heap.walked.frozen_count, self.heap.walked.frozen_seen))?;
        Ok(answer)
    }

    /// What was asked about, each on its own.
    fn targets(&self) -> Vec<Group> {
        let group = |node: &Node| {
            let retained = self.analysis.retained(*node);
            Group { node: *node, bytes: retained.bytes, pieces: 0 }
        };
        self.heap.walked.targets.iter().map(group).collect()
    }

    /// Who holds device memory, most first.
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

    /// The thing that a person would say holds this memory: the farthest that holds it alone, or most
    /// of that, as long as it is no name or frame, and no part of a whole.
    fn known_as(&self, memory: Node) -> Node {
        let chain: Vec<Node> = self
            .analysis
            .dominators(memory)
            .take_while(|node| !self.heap.kind(*node).is_scaffolding())
            .collect();
        let Some(mut at) = chain.len().checked_sub(1) else { return memory };
        while at > 0 && !self.is_whole(&chain[..=at]) {
            let [whole, part] = [at, at - 1].map(|at| self.analysis.retained(chain[at]).bytes);
            if part.0 * 100 < whole.0 * MOST_OF_IT {
                break;
            }
            at -= 1;
        }
        // Where an object keeps its attributes is not what a person calls by name.
        if let Some(above) = chain.get(at + 1)
            && self.heap.keeps_attributes(*above, chain[at])
        {
            at += 1;
        }
        chain[at]
    }

    /// Whether the last of these, which dominates the others, is a thing of its own: a tensor, or a
    /// model that has them as its parts. What hangs on a model by a hook is no part.
    fn is_whole(&self, chain: &[Node]) -> bool {
        let mut kinds = chain.iter().rev().map(|node| self.heap.kind(*node));
        match kinds.next() {
            Some(Kind::Holder) => kinds.all(|kind| kind == Kind::Holder),
            Some(Kind::Whole) => {
                kinds.all(|kind| matches!(kind, Kind::Dict | Kind::Whole | Kind::Holder))
            }
            _ => false,
        }
    }

    fn holder(&self, group: &Group) -> PyResult<Bound<'py, PyDict>> {
        let Group { node, bytes, pieces } = *group;
        let holder = PyDict::new(self.py);
        let object = self.heap.object(self.py, node).or_else(|| self.of_memory(node));
        holder.set_item("object", object)?;
        holder.set_item("bytes", bytes.0)?;
        holder.set_item("pieces", pieces)?;
        let retained = self.analysis.retained(node);
        holder.set_item("retained", (retained.nodes, retained.bytes.0))?;
        holder.set_item("reached", self.analysis.is_reached(node))?;
        holder.set_item("dead", self.is_dead(node))?;
        holder.set_item("hidden", self.heap.hidden(node))?;
        holder.set_item("frozen", self.heap.is_frozen(node))?;
        let paths = self.analysis.paths(node, PATHS_MOST);
        let paths = paths.iter().map(|path| self.path(path));
        holder.set_item("paths", paths.collect::<PyResult<Vec<_>>>()?)?;
        let cuts = match self.analysis.cuts(&[node], CUT_MOST, |edge| self.heap.cut_cost(edge)) {
            Ok(cuts) => cuts.iter().map(|cut| self.cut(cut, node)).collect::<PyResult<_>>()?,
            Err(why) => {
                holder.set_item("no_cut", why.to_string())?;
                Vec::new()
            }
        };
        holder.set_item("cuts", cuts)?;
        Ok(holder)
    }

    /// A tensor that has this memory, where no one of them has it alone.
    fn of_memory(&self, node: Node) -> Option<Bound<'py, PyAny>> {
        let memory = self.heap.memories.iter().find(|memory| memory.node == node)?;
        self.heap.object(self.py, memory.holder)
    }

    /// What kind of root, of which thread; every object from it on; references to the root that were
    /// not seen; and whether something on the way is frozen.
    pub(crate) fn path(&self, path: &Path) -> PyResult<Bound<'py, PyAny>> {
        let first = path.nodes().find(|node| self.heap.has_object(*node)).unwrap_or(path.root);
        let root = self.heap.walked.roots.get(&first);
        let root = root.map_or(("native", 0), |root| (root.kind, root.thread));
        let frozen = path.nodes().any(|node| self.heap.is_frozen(node));
        let hidden = self.heap.hidden(first);
        let objects = path.nodes().filter_map(|node| self.heap.object(self.py, node));
        let objects = PyList::new(self.py, objects.collect::<Vec<_>>())?;
        Ok((root, objects, hidden, frozen).into_pyobject(self.py)?.into_any())
    }

    fn cut(&self, cut: &Cut, target: Node) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(self.py);
        let mut ends: Vec<(Node, Node)> =
            cut.edges.iter().map(|Edge { from, to, .. }| (*from, *to)).collect();
        ends.dedup();
        let object = |node: Node| self.heap.object(self.py, node);
        let way = |node: Node| self.analysis.path(node).map(|path| self.path(&path)).transpose();
        let mut edges = Vec::with_capacity(ends.len());
        for (from, to) in ends {
            edges.push((object(from), object(to), way(from)?));
        }
        found.set_item("edges", edges)?;
        found.set_item("freed", (cut.freed.nodes, cut.freed.bytes.0))?;
        found.set_item("beside", (cut.collateral.nodes, cut.collateral.bytes.0))?;
        let (kept, keepers) = self.kept(cut, target);
        found.set_item("kept", kept.0)?;
        let keepers = keepers.into_iter().map(|(node, count)| (object(node), count));
        found.set_item("keepers", keepers.collect::<Vec<_>>())?;
        Ok(found)
    }

    /// What stays though the references are cut, because somebody has references that we do not see;
    /// and to whom, of those that lead to the target.
    fn kept(&self, cut: &Cut, target: Node) -> (Bytes, Vec<(Node, u32)>) {
        let mut lost = self.analysis.lost_by(&cut.edges);
        lost.sort_unstable();
        let is_lost = |node: Node| lost.binary_search(&node).is_ok();
        let hidden = lost.iter().filter(|node| {
            // Classes have references from everywhere, and no memory.
            self.heap.hidden(**node) > 0 && self.heap.kind(**node) != Kind::Class
        });
        let mut seen: HashSet<Node> = HashSet::new();
        let mut keepers = Vec::new();
        let mut bytes = Bytes::ZERO;
        for keeper in hidden {
            let mut next = vec![*keeper];
            let mut leads = false;
            let mut here: HashSet<Node> = HashSet::new();
            while let Some(node) = next.pop() {
                if !here.insert(node) {
                    continue;
                }
                leads |= node == target;
                if seen.insert(node) {
                    bytes += self.heap.graph.bytes(node);
                }
                let onwards = self.heap.graph.references(node).map(|edge| edge.to);
                next.extend(onwards.filter(|node| is_lost(*node)));
            }
            if leads {
                keepers.push((*keeper, self.heap.hidden(*keeper)));
            }
        }
        (bytes, keepers)
    }

    /// Islands that are the program's. What hangs together and is no cycle only we hold.
    fn islands(&self) -> impl Iterator<Item = &Island> {
        let islands = self.analysis.islands().iter();
        islands.filter(|island| island.is_cycle && self.heap.kind(island.head) != Kind::Ours)
    }

    /// Whether only dead objects lead to a node, and not this question alone.
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

    /// What nobody reaches: the collector frees it, where it is not frozen. Where one thing was asked
    /// about, the rest is nobody's business.
    fn dead(&self, answer: &Bound<'py, PyDict>, one_by_one: bool) -> PyResult<()> {
        let mut shown = Vec::new();
        let (mut objects, mut bytes, mut frozen_bytes) = (0, Bytes::ZERO, Bytes::ZERO);
        for island in self.islands().filter(|_| !one_by_one) {
            objects += island.size.nodes;
            bytes += island.size.bytes;
            let frozen = self.heap.is_frozen(island.head);
            if frozen {
                frozen_bytes += island.size.bytes;
            }
            if shown.len() < DEAD_MOST && island.size.bytes > Bytes::ZERO {
                let head = self.heap.object(self.py, island.head);
                shown.push((head, island.size.nodes, island.size.bytes.0, frozen));
            }
        }
        answer.set_item("dead", shown)?;
        answer.set_item("dead_total", (objects, bytes.0, frozen_bytes.0))
    }

    /// What native code holds: objects that nobody in the heap leads to, and memory with more holders
    /// than there are tensors.
    fn native(&self, answer: &Bound<'py, PyDict>, one_by_one: bool) -> PyResult<()> {
        let mut roots: Vec<(u64, Node)> = Vec::new();
        for node in self.heap.walked.native.iter().filter(|_| !one_by_one) {
            let bytes = self.analysis.retained(*node).bytes;
            if bytes > Bytes::ZERO {
                roots.push((bytes.0, *node));
            }
        }
        roots.sort_unstable_by(|one, other| other.cmp(one));
        let roots = roots
            .into_iter()
            .map(|(bytes, node)| (self.heap.object(self.py, node), self.heap.hidden(node), bytes));
        answer.set_item("native", roots.collect::<Vec<_>>())?;
        let held = self.heap.memories.iter().filter(|memory| memory.native.unwrap_or(0) > 0);
        let (mut pieces, mut bytes) = (0, Bytes::ZERO);
        let mut largest: Option<&memory::Memory> = None;
        for memory in held {
            pieces += 1;
            bytes += memory.bytes;
            if largest.is_none_or(|known| known.bytes < memory.bytes) {
                largest = Some(memory);
            }
        }
        let largest = largest.map(|memory| {
            (self.heap.object(self.py, memory.holder), memory.native.unwrap_or(0), memory.bytes.0)
        });
        answer.set_item("native_memory", (pieces, bytes.0, largest))
    }
}
