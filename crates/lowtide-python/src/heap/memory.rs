//! Device memory in the graph: a node for each piece of it, however many tensors share it.

use std::collections::{HashMap, HashSet};

use lowtide_device::Bytes;
use lowtide_heap::{CutCost, Edge, Graph, Node};
use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::PyList;

use super::frozen;
use super::kinds::{Kind, Kinds, class_of};
use super::listing;
use super::question::Question;
use super::resting::Resting;
use super::roots::Root;
use super::walk::walk;
use super::walked::Walked;

/// So often the walk is done again because it met tensors that nobody had asked about. Other threads may
/// make new ones faster than we ask; those of the last moment are left out.
const WALKS_MOST: u32 = 4;
/// How many steps other threads are away.
const ELSEWHERE_AWAY: usize = 6;
/// And native code, which nobody can look into.
const NATIVE_AWAY: usize = 12;

/// A piece of device memory.
pub(crate) struct Memory {
    pub(crate) node: Node,
    pub(crate) bytes: Bytes,
    /// Holders in native code, beyond those that Python explains; `None` where nobody can tell.
    pub(crate) native: Option<u32>,
    /// The first object that holds it.
    pub(crate) holder: Node,
}

/// The heap with the memory that its objects hold.
pub(crate) struct Heap<'py> {
    pub(crate) graph: Graph,
    pub(crate) walked: Known,
    pub(crate) memories: Vec<Memory>,
    /// So that nobody is freed before the answer is made.
    _resting: Resting<'py>,
    /// What we hold. It is let go last: what ends with it may run the program's code, and a tensor that
    /// ends lets other threads run.
    _held: Vec<Bound<'py, PyAny>>,
}

/// What is known of nodes when the walk is over.
pub(crate) struct Known {
    pub(crate) addresses: Vec<usize>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) hidden: Vec<(Node, u32)>,
    pub(crate) native: Vec<Node>,
    pub(crate) roots: HashMap<Node, Root>,
    /// Nodes of objects that are asked about.
    pub(crate) targets: Vec<Node>,
    /// By node; empty where nothing is.
    pub(crate) frozen: Vec<bool>,
    pub(crate) frozen_count: usize,
    pub(crate) frozen_seen: bool,
    pub(crate) tracked: usize,
}

/// What a tensor holds: whose memory, how much, on which device, holders in native code, what it is.
type Told = (u64, u64, String, Option<i64>, String);

/// Walks the heap and adds the memory that its objects hold.
///
/// Who can tell what a tensor holds is Python, and while Python runs, other threads may. So tensors are
/// found and asked first, and held on to; then comes the walk, in one go. If that meets tensors which
/// were not found (the collector does not list what is frozen), they are asked, and it is done again.
pub(crate) fn take<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    kinds: &mut Kinds,
) -> PyResult<Heap<'py>> {
    let mut told = Tellings::default();
    let found = holders(py, question, kinds)?;
    told.ask(py, question, found)?;
    let mut walks = 0;
    loop {
        walks += 1;
        let mut held = std::mem::take(&mut told.held);
        let asked = held.len();
        let (walked, resting) = walk(py, question, kinds, &mut held)?;
        let unasked = |node: &&Node| !told.by_address.contains_key(&walked.addresses[node.index()]);
        let unasked: Vec<Bound<'py, PyAny>> = (walked.holders.iter().filter(unasked))
            .map(|node| object(py, walked.addresses[node.index()]))
            .collect();
        if unasked.is_empty() || walks == WALKS_MOST {
            return Ok(Adding::new(question, walked).all(&told, held, resting));
        }
        drop(walked);
        drop(resting);
        held.truncate(asked);
        told.held = held;
        told.ask(py, question, unasked)?;
    }
}

/// What may hold device memory, of what the collector lists.
fn holders<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    kinds: &mut Kinds,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut found = Vec::new();
    listing::each(question, |at| {
        if kinds.of(class_of(at)).kind == Kind::Holder {
            found.push(object(py, at.expose_provenance()));
        }
    })?;
    Ok(found)
}

/// What tensors hold and their graphs keep, by their addresses.
#[derive(Default)]
struct Tellings<'py> {
    by_address: HashMap<usize, Option<Told>>,
    /// By the address of a tensor: what its graph keeps.
    graphs: Vec<(usize, Vec<usize>)>,
    /// What we hold on to, so that an address stays what it is.
    held: Vec<Bound<'py, PyAny>>,
}

impl<'py> Tellings<'py> {
    fn ask(
        &mut self,
        py: Python<'py>,
        question: &Question<'py>,
        objects: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let address = |object: &Bound<'_, PyAny>| object.as_ptr().expose_provenance();
        self.probe(py, question, &objects)?;
        let kept = question.autograd.call1((PyList::new(py, &objects)?,))?;
        let mut unknown = Vec::new();
        for (from, kept) in kept.extract::<Vec<(usize, Vec<Bound<'py, PyAny>>)>>()? {
            let Some(from) = objects.get(from) else { continue };
            self.graphs.push((address(from), kept.iter().map(address).collect()));
            unknown.extend(kept);
        }
        unknown.retain(|object| !self.by_address.contains_key(&address(object)));
        self.probe(py, question, &unknown)?;
        self.held.extend(objects);
        self.held.extend(unknown);
        Ok(())
    }

    fn probe(
        &mut self,
        py: Python<'py>,
        question: &Question<'py>,
        objects: &[Bound<'py, PyAny>],
    ) -> PyResult<()> {
        let told: Vec<Option<Told>> =
            question.probe.call1((PyList::new(py, objects)?,))?.extract()?;
        let addresses = objects.iter().map(|object| object.as_ptr().expose_provenance());
        self.by_address.extend(addresses.zip(told));
        Ok(())
    }
}

struct Adding<'a, 'py> {
    question: &'a Question<'py>,
    walked: Walked,
    by_key: HashMap<u64, usize>,
    memories: Vec<Memory>,
}

impl<'a, 'py> Adding<'a, 'py> {
    fn new(question: &'a Question<'py>, walked: Walked) -> Adding<'a, 'py> {
        Adding { question, walked, by_key: HashMap::new(), memories: Vec::new() }
    }

    fn all(
        mut self,
        told: &Tellings<'_>,
        held: Vec<Bound<'py, PyAny>>,
        resting: Resting<'py>,
    ) -> Heap<'py> {
        for node in std::mem::take(&mut self.walked.holders) {
            let address = self.walked.addresses[node.index()];
            if let Some(Some(told)) = told.by_address.get(&address)
                && self.question.counts(address)
            {
                let memory = self.holds(node, told);
                if told.4 == "storage" {
                    self.is_own(node, memory);
                }
            }
        }
        let mut explained: HashSet<Node> = HashSet::new();
        for (from, kept) in &told.graphs {
            let Some(from) = self.walked.table.get(*from).map(Node) else { continue };
            for address in kept {
                match (self.walked.table.get(*address), told.by_address.get(address)) {
                    (Some(to), _) => {
                        self.walked.builder.late_edge(from, Node(to));
                        // However many tensors keep it in native code, that holds its object once.
                        if explained.insert(Node(to)) {
                            self.explain(Node(to));
                        }
                    }
                    // It has no object of its own in Python, or had none before we asked.
                    (None, Some(Some(told))) => {
                        self.holds(from, told);
                    }
                    (None, _) => {}
                }
            }
        }
        self.done(held, resting)
    }

    /// Memory that keeps the object by which Python knows it, once Python has no other use for it: that
    /// is one reference which nobody else has.
    fn is_own(&mut self, storage: Node, memory: Option<Node>) {
        let is_kept = self.explain(storage);
        if let Some(memory) = memory.filter(|_| is_kept) {
            self.walked.builder.late_edge(memory, storage);
        }
    }

    /// One of the references that we did not see is known now. Whether there was one.
    fn explain(&mut self, node: Node) -> bool {
        let hidden = &mut self.walked.hidden;
        let Ok(at) = hidden.binary_search_by_key(&node, |(node, _)| *node) else { return false };
        hidden[at].1 = hidden[at].1.saturating_sub(1);
        true
    }

    fn holds(&mut self, holder: Node, (key, bytes, device, native, _): &Told) -> Option<Node> {
        if self.question.device.as_ref().is_some_and(|wanted| wanted != device) {
            return None;
        }
        let at = *self.by_key.entry(*key).or_insert_with(|| {
            let node = self.walked.builder.node();
            self.walked.addresses.push(0);
            self.walked.kinds.push(Kind::Memory);
            let bytes = Bytes(*bytes);
            self.walked.builder.bytes(node, bytes);
            let native = native.map(|native| u32::try_from(native).unwrap_or(0));
            self.memories.push(Memory { node, bytes, native, holder });
            self.memories.len() - 1
        });
        let memory = self.memories[at].node;
        self.walked.builder.late_edge(holder, memory);
        Some(memory)
    }

    fn done(self, held: Vec<Bound<'py, PyAny>>, resting: Resting<'py>) -> Heap<'py> {
        let Adding { question, mut walked, memories, .. } = self;
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
        walked.listed.resize(walked.addresses.len(), false);
        // Few are looked at, but all have to be asked before the next object is made.
        let frozen = if walked.frozen_count > 0 {
            let nodes = (0..walked.addresses.len() as u32).map(Node);
            nodes.map(|node| frozen::is_frozen(&walked, node)).collect()
        } else {
            Vec::new()
        };
        // The table is the largest thing there is, and its time is over.
        drop(walked.table);
        let known = Known {
            addresses: walked.addresses,
            kinds: walked.kinds,
            hidden: walked.hidden,
            native: walked.native,
            roots: walked.roots,
            targets,
            frozen,
            frozen_count: walked.frozen_count,
            frozen_seen: walked.frozen_seen,
            tracked: walked.tracked,
        };
        let graph = walked.builder.finish();
        Heap { graph, walked: known, memories, _resting: resting, _held: held }
    }
}

/// A root that is some steps away from these, so that a way over them is shown only where no shorter
/// one leads to the same: who asks knows the names of modules and of its own functions best.
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

impl Heap<'_> {
    pub(crate) fn kind(&self, node: Node) -> Kind {
        self.walked.kinds[node.index()]
    }

    /// The object of a node; `None` for device memory.
    pub(crate) fn object<'py>(&self, py: Python<'py>, node: Node) -> Option<Bound<'py, PyAny>> {
        let address = self.walked.addresses[node.index()];
        (address != 0).then(|| object(py, address))
    }

    pub(crate) fn has_object(&self, node: Node) -> bool {
        self.walked.addresses[node.index()] != 0
    }

    /// How many references to it were not seen.
    pub(crate) fn hidden(&self, node: Node) -> u32 {
        let hidden = &self.walked.hidden;
        let found = hidden.binary_search_by_key(&node, |(node, _)| *node);
        found.map_or(0, |at| hidden[at].1)
    }

    pub(crate) fn is_frozen(&self, node: Node) -> bool {
        self.walked.frozen.get(node.index()).copied().unwrap_or(false)
    }

    /// Whether a dict is where an instance keeps its attributes: it has nothing else.
    pub(crate) fn keeps_attributes(&self, instance: Node, dict: Node) -> bool {
        let mut others = self.graph.references(instance);
        self.kind(dict) == Kind::Dict
            && matches!(self.kind(instance), Kind::Instance | Kind::Whole)
            && others.all(|edge| edge.to == dict || self.kind(edge.to) == Kind::Class)
    }

    /// Whether a person can cut a reference.
    pub(crate) fn cut_cost(&self, edge: Edge) -> CutCost {
        let can = match (self.kind(edge.from), self.kind(edge.to)) {
            (Kind::Dict | Kind::Namespace | Kind::Container, _) => true,
            (Kind::Instance | Kind::Whole, Kind::Dict) => {
                !self.keeps_attributes(edge.from, edge.to)
            }
            // What it is made of, not what it has.
            (_, Kind::Class | Kind::Module | Kind::Namespace | Kind::Memory) => false,
            (
                Kind::Instance
                | Kind::Whole
                | Kind::Cell
                | Kind::Frame
                | Kind::Generator
                | Kind::Exception
                | Kind::Defaults
                | Kind::Cache,
                _,
            ) => true,
            // Hooks and attributes; not what its graph keeps.
            (Kind::Holder, to) => to != Kind::Holder,
            _ => false,
        };
        if can { CutCost::Cost(1) } else { CutCost::Never }
    }

    /// Whether a reference leads to what belongs to its holder, rather than to what everybody uses.
    pub(crate) fn is_own(&self, edge: Edge) -> bool {
        let (from, to) = (self.kind(edge.from), self.kind(edge.to));
        let is_shared = matches!(
            to,
            Kind::Class | Kind::Module | Kind::Modules | Kind::Namespace | Kind::Frame
        );
        !(is_shared || from == Kind::Function && to == Kind::Dict)
    }
}

fn object_at(address: usize) -> *mut PyObject {
    std::ptr::with_exposed_provenance_mut(address)
}

fn object(py: Python<'_>, address: usize) -> Bound<'_, PyAny> {
    // SAFETY: it was alive when it was listed or walked, and no Python code has run since.
    unsafe { Bound::from_borrowed_ptr(py, object_at(address)) }
}
