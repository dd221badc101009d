//! Adds device memory to the graph: a node for each piece, however many tensors share it.

use std::collections::{HashMap, HashSet};

use lowtide_heap::Node;
use lowtide_types::Bytes;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::PyTypeObject;
use pyo3::prelude::*;

use crate::ask::kind::Kind;
use crate::ask::object::object;
use crate::ask::references;
use crate::ask::types::Types;
use crate::memory::heap::{Heap, MemoryNode};
use crate::memory::reported::{Memory, MemoryKind, Reports};
use crate::safety::ending::call_function;
use crate::safety::own_memory::{Reserve, reserve, reserve_for};
use crate::safety::own_references::{CollectorOff, OwnReferences};
use crate::start::collector::Matching;
use crate::start::question::Question;
use crate::walk::heap_walk::{walk, walk_from};
use crate::walk::walked::Walked;

/// How often the walk is repeated because it met tensors that had not been asked about. Other
/// threads may create new ones faster than we ask; the last of those are left out.
const WALKS_MOST: u32 = 4;
/// How many objects may stand between a buffer and the tensor whose memory it shows.
const SHOWN_DEEP: usize = 5;
/// How many steps away the roots of other threads are.
const ELSEWHERE_AWAY: usize = 6;
/// The same for native code, which nobody can look into.
const NATIVE_AWAY: usize = 12;

/// Walks the heap and adds the memory that its objects hold.
///
/// Python reports what a tensor holds, and while Python runs, other threads may run. So tensors are
/// found, asked and held first. Then comes the walk, during which no Python code runs. If it meets
/// tensors that were not found before (a capsule is in no list), Python is asked about them, and the
/// walk is repeated.
pub(crate) fn take<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    types: &mut Types,
) -> PyResult<Heap<'py>> {
    let mut reports = Reports::new(py)?;
    let _room = reserve(0)?;
    let Matching { found, all: mut before, .. } = tensors(py, question, types)?;
    reports.ask(py, question, found, &mut types.reported)?;
    let taking =
        |types: &mut Types| walk(py, question, types, std::mem::take(&mut before)).map(Some);
    let heap = repeated(py, question, types, reports, taking)?;
    heap.ok_or_else(|| PyRuntimeError::new_err("the walk has not ended"))
}

/// Walks from some objects and adds the memory that is theirs. Returns `None` if that is very much.
pub(crate) fn take_from<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    types: &mut Types,
    first: &[usize],
) -> PyResult<Option<Heap<'py>>> {
    let taking = |types: &mut Types| walk_from(py, question, types, first);
    repeated(py, question, types, Reports::new(py)?, taking)
}

type Taken<'py> = (Walked, OwnReferences<'py>, CollectorOff<'py>);

/// Walks until every tensor that is met has been asked about.
fn repeated<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    types: &mut Types,
    mut reports: Reports<'py>,
    mut walk: impl FnMut(&mut Types) -> PyResult<Option<Taken<'py>>>,
) -> PyResult<Option<Heap<'py>>> {
    let dtypes = OwnReferences::new(py)?;
    let mut walks = 0;
    loop {
        walks += 1;
        let Some((walked, held, off)) = walk(types)? else { return Ok(None) };
        let unknown: Vec<Bound<'py, PyAny>> =
            types.layouts.take_unknown().into_iter().map(|dtype| object(py, dtype)).collect();
        let unasked =
            |node: &&Node| !reports.memory.contains_key(&walked.nodes.addresses[node.index()]);
        let unasked: Vec<Bound<'py, PyAny>> = (walked.tensors.iter().filter(unasked))
            .map(|node| object(py, walked.nodes.addresses[node.index()]))
            .collect();
        if unasked.is_empty() && unknown.is_empty() || walks == WALKS_MOST {
            let (by_key, memories, sharing, explained) = Default::default();
            let array = types.array;
            let adding =
                Adding { py, question, walked, array, by_key, memories, sharing, explained };
            // All of these live until the answer is made. To free one may run code, and that code
            // may free other objects whose addresses the walk has noted.
            let held = [held, reports.held, reports.asked, dtypes];
            return adding.all(&reports.memory, &reports.kept, held, off).map(Some);
        }
        drop(walked);
        drop(off);
        for dtype in unknown {
            let address = dtype.as_ptr().addr();
            dtypes.push(dtype.clone())?;
            types.layouts.add(address, call_function(&question.asked.layout, (dtype,))?.extract()?);
        }
        drop(held);
        if !unasked.is_empty() {
            reports.ask(py, question, unasked, &mut types.reported)?;
        }
    }
}

/// Finds the objects that may hold device memory, of those that are listed.
fn tensors<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    types: &mut Types,
) -> PyResult<Matching<'py>> {
    question.collector.find(py, |class| types.of(class).kind == Kind::Tensor)
}

/// Returns the bytes that the objects which the collector lists hold on the question's device, and what
/// those keep in native code. Each piece of memory counts once. Returns `None` if there are frozen objects
/// that cannot be read.
///
/// This is one pass over the objects instead of a walk, in a seventh of the time: tensors are tracked by the collector,
/// whoever holds them. Objects that it does not track, of some types of torch, are left out; who asks has to know
/// whether there are any (`_why/memory/listed.py`).
#[pyfunction]
pub fn listed_memory(question: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
    let py = question.py();
    let (question, mut types) = Question::new(question)?;
    let mut reports = Reports::new(py)?;
    let Matching { found, has_frozen, .. } = tensors(py, &question, &mut types)?;
    if !has_frozen {
        return Ok(None);
    }
    reports.ask(py, &question, found, &mut HashMap::new())?;
    let reported = reports.memory.values().flatten().map(Py::get);
    let is_asked =
        |device: &str| question.asked.device.as_ref().is_none_or(|asked| asked == device);
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    for memory in reported {
        if is_asked(memory.device.bind(py).to_str()?) {
            sizes.insert(memory.key, memory.bytes);
        }
    }
    Ok(Some(sizes.values().sum()))
}

struct Adding<'a, 'py> {
    py: Python<'py>,
    question: &'a Question<'py>,
    walked: Walked,
    /// The type of numpy's arrays.
    array: Option<*mut PyTypeObject>,
    by_key: HashMap<u64, usize>,
    memories: Vec<MemoryNode>,
    /// By a key of memory: the objects that have it.
    sharing: HashMap<u64, Vec<Sharing>>,
    /// Tensors whose Python objects native code holds, for other tensors that are known.
    explained: HashSet<Node>,
}

/// An object that has a piece of memory.
struct Sharing {
    node: Node,
    /// Through what it has the memory.
    through: u64,
    is_tensor: bool,
}

impl Sharing {
    fn new(node: Node, memory: &Memory) -> Sharing {
        Sharing { node, through: memory.through, is_tensor: memory.kind != MemoryKind::Shown }
    }
}

impl<'py> Adding<'_, 'py> {
    fn all(
        mut self,
        memories: &HashMap<usize, Option<Py<Memory>>>,
        kept: &[(usize, Vec<usize>)],
        held: [OwnReferences<'py>; 4],
        off: CollectorOff<'py>,
    ) -> PyResult<Heap<'py>> {
        let (nodes, edges) = self.walked.builder.len();
        // Each tensor may have memory of its own, and be kept by others.
        let more = memories.len() + kept.iter().map(|(_, kept)| kept.len()).sum::<usize>();
        let room = reserve_for(nodes + 2 * more, edges + 4 * more)?;
        for node in std::mem::take(&mut self.walked.tensors) {
            let address = self.walked.nodes.addresses[node.index()];
            if let Some(Some(memory)) = memories.get(&address)
                && self.question.counts(address)
            {
                let Memory { key, kind, .. } = memory.get();
                self.sharing.entry(*key).or_default().push(Sharing::new(node, memory.get()));
                let memory = self.holds(node, memory.get());
                if *kind == MemoryKind::Storage {
                    self.is_own(node, memory);
                }
            }
        }
        for (from, kept) in kept {
            let Some(from) = self.walked.table.get(*from).map(Node) else { continue };
            for address in kept {
                match (self.walked.table.get(*address), memories.get(address)) {
                    (Some(to), memory) => {
                        if let Some(Some(memory)) = memory
                            && let Some(at) = self.by_key.get(&memory.get().key)
                        {
                            // The graph holds it natively, how often is not known.
                            self.memories[*at].native = None;
                        }
                        self.walked.builder.late_edge(from, Node(to));
                        // However many tensors keep it, native code holds its Python object once; not at
                        // all if the collector sees every reference.
                        if !self.explained.contains(&Node(to)) && self.explain(Node(to)) {
                            self.explained.insert(Node(to));
                        }
                    }
                    // It has no Python object of its own, or had none before we asked.
                    (None, Some(Some(memory))) => {
                        let sharing = Sharing::new(from, memory.get());
                        self.sharing.entry(memory.get().key).or_default().push(sharing);
                        self.holds(from, memory.get());
                    }
                    (None, _) => {}
                }
            }
        }
        self.explain_shared();
        Ok(self.done(held, off, room))
    }

    /// Explains tensors that native code holds because their memory is shown through something
    /// else: another storage (`torch.from_numpy`), a capsule, a buffer. Who shows it keeps it.
    fn explain_shared(&mut self) {
        let mut sharing = std::mem::take(&mut self.sharing);
        sharing.retain(|_, all| all.iter().any(|one| one.through != all[0].through));
        if sharing.is_empty() {
            return;
        }
        // By an object with memory: the object of native code that leads to it, itself or a buffer
        // over it.
        let mut held: HashMap<Node, Node> = HashMap::new();
        for native in &self.walked.nodes.native {
            for node in self.shown_by(self.walked.nodes.addresses[native.index()]) {
                held.entry(node).or_insert(*native);
            }
        }
        for all in sharing.into_values() {
            let (below, showing): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|one| held.contains_key(&one.node));
            for Sharing { node, through, is_tensor } in below {
                let native = held[&node];
                let mut others = showing.iter().filter(|one| one.through != through).peekable();
                if others.peek().is_some() && self.explained.insert(native) {
                    // A tensor may have other holders in native code. A buffer has what shows it.
                    while self.explain(native) && !is_tensor {}
                }
                others.for_each(|one| self.walked.builder.late_edge(one.node, native));
            }
        }
    }

    /// Returns the nodes whose memory an object shows: its own, and those behind a memory view or
    /// an array.
    fn shown_by(&self, address: usize) -> Vec<Node> {
        let mut found = Vec::new();
        let mut next = vec![address];
        for _ in 0..SHOWN_DEEP {
            found.extend(next.iter().filter_map(|one| self.walked.table.get(*one)).map(Node));
            next = next
                .into_iter()
                .flat_map(|one| references::shown_behind(one, self.array))
                .collect();
        }
        found
    }

    /// A storage keeps its Python object once Python has no other use for it: that explains one
    /// reference.
    fn is_own(&mut self, storage: Node, memory: Option<Node>) {
        let is_kept = self.explain(storage);
        if let Some(memory) = memory.filter(|_| is_kept) {
            self.walked.builder.late_edge(memory, storage);
        }
    }

    /// Explains one of the references to a node that were not seen. Returns whether there was one.
    fn explain(&mut self, node: Node) -> bool {
        let hidden = &mut self.walked.nodes.hidden;
        let Ok(at) = hidden.binary_search_by_key(&node, |(node, _)| *node) else { return false };
        let was = hidden[at].1;
        hidden[at].1 = was.saturating_sub(1);
        was > 0
    }

    /// Adds the memory that a tensor holds, unless it is on another device than the question is
    /// about.
    fn holds(&mut self, tensor: Node, memory: &Memory) -> Option<Node> {
        let Memory { key, bytes, device, native, .. } = memory;
        let device = device.bind(self.py).as_borrowed();
        if self.question.asked.device.as_ref().is_some_and(|wanted| device != wanted.as_str()) {
            return None;
        }
        let at = *self.by_key.entry(*key).or_insert_with(|| {
            let node = self.walked.builder.node();
            self.walked.nodes.addresses.push(0);
            self.walked.nodes.kinds.push(Kind::Memory);
            let bytes = Bytes(*bytes);
            self.walked.builder.bytes(node, bytes);
            self.memories.push(MemoryNode { node, bytes, native: *native, tensor });
            self.memories.len() - 1
        });
        let memory = self.memories[at].node;
        self.walked.builder.late_edge(tensor, memory);
        Some(memory)
    }

    fn done(
        self,
        held: [OwnReferences<'py>; 4],
        off: CollectorOff<'py>,
        room: Reserve,
    ) -> Heap<'py> {
        let Adding { question, mut walked, memories, explained, .. } = self;
        walked.nodes.hidden.retain(|(_, count)| *count > 0);
        let is_hidden =
            |node: &Node| walked.nodes.hidden.binary_search_by_key(node, |(node, _)| *node).is_ok();
        walked.nodes.native.retain(is_hidden);
        let targets = question.targets.iter().flatten();
        let targets = targets.filter_map(|target| walked.table.get(*target)).map(Node).collect();
        let elsewhere = std::mem::take(&mut walked.elsewhere);
        hold_from_afar(&mut walked, &elsewhere, ELSEWHERE_AWAY);
        let native = walked.nodes.native.clone();
        hold_from_afar(&mut walked, &native, NATIVE_AWAY);
        // The table is large, and not needed any more.
        let Walked { builder, nodes, table, unexplained, .. } = walked;
        drop((table, unexplained));
        let graph = builder.finish();
        Heap { graph, nodes, explained, targets, memories, _room: room, _off: off, _held: held }
    }
}

/// Adds a root that is some steps away from these nodes, so that a path over them is shown only if
/// no shorter one leads to the same object: a person knows the names of modules and of his own
/// functions best.
fn hold_from_afar(walked: &mut Walked, nodes: &[Node], steps: usize) {
    if nodes.is_empty() {
        return;
    }
    let first = walked.builder.node();
    let mut last = first;
    for _ in 0..steps {
        let next = walked.builder.node();
        walked.builder.late_edge(last, next);
        last = next;
    }
    for node in nodes {
        walked.builder.late_edge(last, *node);
    }
    walked.builder.root(first);
    walked.nodes.addresses.resize(last.index() + 1, 0);
    walked.nodes.kinds.resize(last.index() + 1, Kind::Ours);
}
