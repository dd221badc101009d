//! The heap after the walk: its graph, the memory that its objects hold, and what is known of each
//! node.

use std::collections::{HashMap, HashSet};

use lowtide_heap::{CutCost, Edge, Graph, Node};
use lowtide_types::Bytes;
use pyo3::ffi::PyObject;
use pyo3::prelude::*;

use crate::ask::kind::Kind;
use crate::safety::collector_off::Resting;
use crate::safety::huge_pages::Reserve;
use crate::safety::own_references::Held;
use crate::start::roots::Root;
use crate::walk::listing::List;

/// A piece of device memory.
pub(crate) struct MemoryNode {
    pub(crate) node: Node,
    pub(crate) bytes: Bytes,
    /// Holders in native code beyond those that Python explains; `None` if they are not known.
    pub(crate) native: Option<u32>,
    /// The first tensor that holds it.
    pub(crate) tensor: Node,
}

impl MemoryNode {
    /// Returns whether native code holds the memory.
    pub(crate) fn is_held_natively(&self) -> bool {
        self.native.is_some_and(|holders| holders > 0)
    }
}

/// The heap after the walk.
pub(crate) struct Heap<'py> {
    pub(crate) graph: Graph,
    pub(crate) known: Known,
    pub(crate) memories: Vec<MemoryNode>,
    /// Memory for the analysis.
    pub(crate) _room: Reserve,
    /// No object is freed by the collector before the answer is made.
    pub(crate) _resting: Resting<'py>,
    /// References of our own. They are dropped last: freeing an object may run the program's code,
    /// and freeing a tensor lets other threads run.
    pub(crate) _held: [Held<'py>; 4],
}

/// References that a cut may have.
const CUT_MOST: u64 = 16;
/// References of caches that a cut may have.
const CACHED_MOST: u64 = 64;

/// A way to choose references to cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Only where caches are cleared: what several of them hold, and nothing else, goes with all of
    /// their entries.
    Caches,
    /// Where something was registered: no function loses a part without which it fails.
    Gentle,
    /// The same, and nothing that code holds which has begun to run. A statement for such a
    /// reference cannot always be written.
    Plain,
    /// As near to the object as possible.
    Rough,
    /// Only entries of dicts and lists, and names of modules: what else an object of another
    /// library has may have no name.
    Outer,
    /// Only elements of lists, and names of modules. To look at an instance may create the dict of
    /// its attributes; such a cut stays the same.
    Names,
}

impl Manner {
    /// All of them, in the order in which cuts are offered.
    pub(crate) const ALL: [Manner; 6] = [
        Manner::Caches,
        Manner::Gentle,
        Manner::Plain,
        Manner::Rough,
        Manner::Outer,
        Manner::Names,
    ];

    /// Returns how many references a cut may have. One statement cuts all references of a cache, and
    /// several lead to each entry.
    pub(crate) fn most(self) -> u64 {
        if self == Manner::Caches { CACHED_MOST } else { CUT_MOST }
    }
}

/// What is known of the nodes.
pub(crate) struct Known {
    pub(crate) addresses: Vec<usize>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) hidden: Vec<(Node, u32)>,
    pub(crate) native: Vec<Node>,
    /// Tensors that native code holds for other tensors: the collector does not see those
    /// references.
    pub(crate) explained: HashSet<Node>,
    pub(crate) roots: HashMap<Node, Root>,
    /// The objects that are asked about.
    pub(crate) targets: Vec<Node>,
    /// By node: where the collector has the object. The last nodes, which are no objects, are left out.
    pub(crate) lists: Vec<List>,
    pub(crate) frozen_count: usize,
    pub(crate) frozen_seen: bool,
}

impl Heap<'_> {
    /// Returns what kind of object a node is.
    pub(crate) fn kind(&self, node: Node) -> Kind {
        self.known.kinds[node.index()]
    }

    /// Returns the object of a node, or `None` for device memory.
    pub(crate) fn object<'py>(&self, py: Python<'py>, node: Node) -> Option<Bound<'py, PyAny>> {
        let address = self.known.addresses[node.index()];
        (address != 0).then(|| object(py, address))
    }

    /// Returns whether a node is an object.
    pub(crate) fn has_object(&self, node: Node) -> bool {
        self.known.addresses[node.index()] != 0
    }

    /// Returns how many references to an object were not seen.
    pub(crate) fn hidden(&self, node: Node) -> u32 {
        let hidden = &self.known.hidden;
        let found = hidden.binary_search_by_key(&node, |(node, _)| *node);
        found.map_or(0, |at| hidden[at].1)
    }

    /// Returns whether an object is frozen.
    pub(crate) fn is_frozen(&self, node: Node) -> bool {
        self.known.lists.get(node.index()) == Some(&List::Frozen)
    }

    /// Returns whether a dict is where an instance keeps its attributes: the instance has nothing
    /// else.
    pub(crate) fn keeps_attributes(&self, instance: Node, dict: Node) -> bool {
        let mut others = self.graph.references(instance);
        self.kind(dict) == Kind::Dict
            && matches!(self.kind(instance), Kind::Instance | Kind::Model)
            && others.all(|edge| edge.to == dict || self.kind(edge.to) == Kind::Class)
    }

    /// Returns whether a person can cut a reference, and does so in this way.
    pub(crate) fn cut_cost(&self, edge: Edge, manner: Manner) -> CutCost {
        let kinds = (self.kind(edge.from), self.kind(edge.to));
        let can = match kinds {
            (Kind::Cache, _) if manner == Manner::Caches => true,
            _ if manner == Manner::Caches => false,
            (Kind::ClassDict, Kind::Function) | (Kind::Cell, _) if manner != Manner::Rough => false,
            (Kind::Generator | Kind::Frame | Kind::Defaults, _) if manner == Manner::Plain => false,
            (Kind::Dict | Kind::ClassDict, _) if manner == Manner::Names => false,
            (Kind::Dict | Kind::Namespace | Kind::ClassDict | Kind::Container, _) => true,
            _ if matches!(manner, Manner::Outer | Manner::Names) => false,
            (Kind::Instance | Kind::Model, Kind::Dict) => {
                !self.keeps_attributes(edge.from, edge.to)
            }
            // What an object is made of, not what it has.
            (_, Kind::Class | Kind::Module | Kind::Namespace | Kind::Memory) => false,
            (
                Kind::Instance
                | Kind::Model
                | Kind::Cell
                | Kind::Frame
                | Kind::Generator
                | Kind::Exception
                | Kind::Defaults
                | Kind::Cache,
                _,
            ) => true,
            // Hooks and attributes of a tensor, frames of a greenlet; not what a graph keeps, and
            // not the array of an iterator.
            (Kind::Tensor, to) => !matches!(to, Kind::Tensor | Kind::Opaque),
            _ => false,
        };
        if can { CutCost::Cost(1) } else { CutCost::Never }
    }

    /// Returns whether a reference leads to what belongs to its holder, rather than to what
    /// everybody uses.
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

/// Returns the object at an address.
pub(crate) fn object(py: Python<'_>, address: usize) -> Bound<'_, PyAny> {
    // SAFETY: it was alive when it was listed or walked, and no Python code has run since.
    unsafe { Bound::from_borrowed_ptr(py, object_at(address)) }
}
