//! Adds device memory to the graph: a node for each piece, however many tensors share it.

use std::collections::{HashMap, HashSet};

use lowtide_heap::Node;
use lowtide_types::Bytes;
use pyo3::ffi::PyTypeObject;
use pyo3::prelude::*;

use crate::ask::kind::Kind;
use crate::ask::object::class_of;
use crate::ask::references;
use crate::ask::types::Kinds;
use crate::memory::heap::{Heap, Known, MemoryNode, object};
use crate::memory::reported::{Memory, MemoryKind, Reports};
use crate::safety::collector_off::Resting;
use crate::safety::huge_pages::Reserve;
use crate::safety::out_of_memory::{OutOfMemory, reserve, reserve_for};
use crate::safety::own_references::Held;
use crate::start::question::Question;
use crate::walk::heap_walk::walk;
use crate::walk::listing;
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
    kinds: &mut Kinds,
) -> PyResult<Heap<'py>> {
    let mut reports = Reports::new(py)?;
    let _room = reserve(0)?;
    let Tensors { found, all: mut before, .. } = tensors(py, question, kinds)?;
    reports.ask(py, question, found, &mut kinds.reported)?;
    let dtypes = Held::new(py)?;
    let mut walks = 0;
    loop {
        walks += 1;
        let (walked, held, resting) = walk(py, question, kinds, std::mem::take(&mut before))?;
        let unknown: Vec<Bound<'py, PyAny>> =
            kinds.layouts.take_unknown().into_iter().map(|dtype| object(py, dtype)).collect();
        let unasked = |node: &&Node| !reports.memory.contains_key(&walked.addresses[node.index()]);
        let unasked: Vec<Bound<'py, PyAny>> = (walked.tensors.iter().filter(unasked))
            .map(|node| object(py, walked.addresses[node.index()]))
            .collect();
        if unasked.is_empty() && unknown.is_empty() || walks == WALKS_MOST {
            let adding = Adding::new(py, question, walked, kinds.array);
            // All of these live until the answer is made. To free one may run code, and that code
            // may free other objects whose addresses the walk has noted.
            let held = [held, reports.held, reports.asked, dtypes];
            return adding.all(&reports.memory, &reports.kept, held, resting);
        }
        drop(walked);
        drop(resting);
        for dtype in unknown {
            let address = dtype.as_ptr().addr();
            dtypes.push(dtype.clone())?;
            kinds.layouts.add(address, question.layout.call1((dtype,))?.extract()?);
        }
        drop(held);
        if !unasked.is_empty() {
            reports.ask(py, question, unasked, &mut kinds.reported)?;
        }
    }
}

/// The objects that may hold device memory.
pub(crate) struct Tensors<'py> {
    pub(crate) found: Vec<Bound<'py, PyAny>>,
    /// The addresses of all objects among which they were found, in order.
    pub(crate) all: Vec<usize>,
    /// Whether frozen objects are among them.
    pub(crate) has_frozen: bool,
}

/// Finds the objects that may hold device memory, of those that are listed.
pub(crate) fn tensors<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    kinds: &mut Kinds,
) -> PyResult<Tensors<'py>> {
    let (mut found, mut all) = (Vec::new(), Vec::new());
    let mut is_full = false;
    let has_frozen = listing::each(&question.interpreter, question.generations.as_ref(), |at| {
        is_full |= all.try_reserve(1).is_err();
        if !is_full {
            all.push(at.expose_provenance());
        }
        if kinds.of(class_of(at)).kind == Kind::Tensor {
            is_full |= found.try_reserve(1).is_err();
            if !is_full {
                found.push(object(py, at.expose_provenance()));
            }
        }
    })?;
    if is_full { Err(OutOfMemory.into()) } else { Ok(Tensors { found, all, has_frozen }) }
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

impl<'a, 'py> Adding<'a, 'py> {
    fn new(
        py: Python<'py>,
        question: &'a Question<'py>,
        walked: Walked,
        array: Option<*mut PyTypeObject>,
    ) -> Adding<'a, 'py> {
        let (by_key, memories, sharing, explained) = Default::default();
        Adding { py, question, walked, array, by_key, memories, sharing, explained }
    }

    fn all(
        mut self,
        memories: &HashMap<usize, Option<Py<Memory>>>,
        kept: &[(usize, Vec<usize>)],
        held: [Held<'py>; 4],
        resting: Resting<'py>,
    ) -> PyResult<Heap<'py>> {
        let (nodes, edges) = self.walked.builder.len();
        // Each tensor may have memory of its own, and be kept by others.
        let more = memories.len() + kept.iter().map(|(_, kept)| kept.len()).sum::<usize>();
        let room = reserve_for(nodes + 2 * more, edges + 4 * more)?;
        for node in std::mem::take(&mut self.walked.tensors) {
            let address = self.walked.addresses[node.index()];
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
                        // However many tensors keep it, native code holds its Python object once.
                        if self.explained.insert(Node(to)) {
                            self.explain(Node(to));
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
        Ok(self.done(held, resting, room))
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
        for native in &self.walked.native {
            for node in self.shown_by(self.walked.addresses[native.index()]) {
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
        let hidden = &mut self.walked.hidden;
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
        if self.question.device.as_ref().is_some_and(|wanted| device != wanted.as_str()) {
            return None;
        }
        let at = *self.by_key.entry(*key).or_insert_with(|| {
            let node = self.walked.builder.node();
            self.walked.addresses.push(0);
            self.walked.kinds.push(Kind::Memory);
            let bytes = Bytes(*bytes);
            self.walked.builder.bytes(node, bytes);
            self.memories.push(MemoryNode { node, bytes, native: *native, tensor });
            self.memories.len() - 1
        });
        let memory = self.memories[at].node;
        self.walked.builder.late_edge(tensor, memory);
        Some(memory)
    }

    fn done(self, held: [Held<'py>; 4], resting: Resting<'py>, room: Reserve) -> Heap<'py> {
        let Adding { question, mut walked, memories, explained, .. } = self;
        walked.hidden.retain(|(_, count)| *count > 0);
        let is_hidden =
            |node: &Node| walked.hidden.binary_search_by_key(node, |(node, _)| *node).is_ok();
        walked.native.retain(is_hidden);
        let targets = question.targets.iter().flatten();
        let targets = targets.filter_map(|target| walked.table.get(*target)).map(Node).collect();
        let elsewhere = std::mem::take(&mut walked.elsewhere);
        hold_from_afar(&mut walked, &elsewhere, ELSEWHERE_AWAY);
        let native = walked.native.clone();
        hold_from_afar(&mut walked, &native, NATIVE_AWAY);
        // The table is large, and not needed any more.
        drop(walked.table);
        let known = Known {
            addresses: walked.addresses,
            kinds: walked.kinds,
            hidden: walked.hidden,
            native: walked.native,
            explained,
            roots: walked.roots,
            targets,
            lists: walked.lists,
            frozen_count: walked.frozen_count,
            frozen_seen: walked.frozen_seen,
        };
        let graph = walked.builder.finish();
        Heap { graph, known, memories, _room: room, _resting: resting, _held: held }
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
    walked.addresses.resize(last.index() + 1, 0);
    walked.kinds.resize(last.index() + 1, Kind::Ours);
}
