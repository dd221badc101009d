//! What the walk found, for Python: the few objects on the paths, with numbers.
//!
//! Python names them (`_why/naming/`). Each class shows its references to the collector, so that
//! another walk at the same time can explain them.

use lowtide_heap::{Analysis, Node, Path, Size};
use pyo3::PyTypeInfo;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::memory::heap::Heap;
use crate::safety::own_references::list_of;
use crate::start::roots::RootKind;

/// Shows the references of classes to the collector.
macro_rules! traversed {
    ($($class:ident: $($field:ident),+;)+) => {$(
        #[pymethods]
        impl $class {
            fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
                $(visit.call(&self.$field)?;)+
                Ok(())
            }
        }
    )+};
}

traversed! {
    HeapPath: objects;
    CutEdge: held, paths;
    HeapCut: edges;
    HeldObject: object, paths, cuts, below;
    DeadCycle: head;
    NativeObject: object;
    Examination: held, dead, native;
    DroppedReference: chain, held;
    ShutdownPlan: drops, tensors, stays, path;
}

/// The heap with its analysis, from which results for Python are made.
pub(crate) struct Analysed<'a, 'py> {
    pub(crate) py: Python<'py>,
    pub(crate) heap: &'a Heap<'py>,
    pub(crate) analysis: &'a Analysis<'a>,
}

impl Analysed<'_, '_> {
    /// Returns a list of results.
    pub(crate) fn list<T: PyTypeInfo>(&self, results: Vec<Py<T>>) -> PyResult<Py<PyList>> {
        Ok(list_of(self.py, results.into_iter().map(|one| one.into_bound(self.py)))?.unbind())
    }

    /// Returns the object of a node, or `None` for device memory.
    pub(crate) fn object(&self, node: Node) -> Option<Py<PyAny>> {
        self.heap.object(self.py, node).map(Bound::unbind)
    }

    /// Returns a list of the objects of some nodes.
    pub(crate) fn objects(&self, nodes: impl IntoIterator<Item = Node>) -> PyResult<Py<PyList>> {
        let objects = nodes.into_iter().filter_map(|node| self.heap.object(self.py, node));
        Ok(list_of(self.py, objects)?.unbind())
    }

    /// Returns paths from roots to a node, the shortest first.
    pub(crate) fn paths(&self, node: Node, most: usize) -> PyResult<Py<PyList>> {
        let paths = self.analysis.paths(node, most);
        self.list(paths.iter().map(|path| self.path(path)).collect::<PyResult<_>>()?)
    }

    /// Returns a path with its objects.
    pub(crate) fn path(&self, path: &Path) -> PyResult<Py<HeapPath>> {
        let heap = self.heap;
        let first = path.nodes().find(|node| heap.has_object(*node)).unwrap_or(path.root);
        let root = heap.nodes.roots.get(&first);
        let (root, thread) = root.map_or((RootKind::Native, 0), |root| (root.kind, root.thread));
        let frozen = path.nodes().any(|node| heap.is_frozen(node));
        let (objects, hidden) = (self.objects(path.nodes())?, heap.hidden(first));
        Py::new(self.py, HeapPath { root: root.as_str(), thread, objects, hidden, frozen })
    }
}

/// A number of objects, or of pieces of memory, and their bytes.
#[pyclass(frozen, eq, get_all, new = "from_fields", module = "lowtide._native")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedSize {
    /// The number of objects.
    pub(crate) objects: u64,
    /// The bytes that they retain together.
    pub(crate) bytes: u64,
}

impl From<Size> for RetainedSize {
    fn from(size: Size) -> RetainedSize {
        RetainedSize { objects: size.nodes, bytes: size.bytes.0 }
    }
}

#[pymethods]
impl RetainedSize {
    fn __repr__(&self) -> String {
        format!("RetainedSize({}, {})", self.objects, self.bytes)
    }
}

/// A path from a root to an object.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct HeapPath {
    /// The kind of root: `modules`, `frame`, `exception`, `interpreter` or `native`.
    pub(crate) root: &'static str,
    /// The number of the thread, for frames and exceptions.
    pub(crate) thread: u64,
    /// The objects along the path, the root first.
    pub(crate) objects: Py<PyList>,
    /// References to the root that were not seen.
    pub(crate) hidden: u32,
    /// Whether an object on the path is frozen.
    pub(crate) frozen: bool,
}

/// A reference that a cut removes.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct CutEdge {
    /// The object that is referred to.
    pub(crate) held: Option<Py<PyAny>>,
    /// Paths to the object that refers to it, shortest first.
    pub(crate) paths: Py<PyList>,
}

/// References that free an object when they are cut.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct HeapCut {
    /// The references.
    pub(crate) edges: Py<PyList>,
    /// The objects and bytes that the cut frees.
    pub(crate) freed: RetainedSize,
    /// The part of it that nobody asked for.
    pub(crate) beside: RetainedSize,
    /// The bytes that stay although the references are cut, because of references that are not
    /// seen.
    pub(crate) kept_bytes: u64,
    /// The number of such references that lead to the object.
    pub(crate) hidden: u64,
    /// Whether the collector has to run after the cut, because of a reference cycle.
    pub(crate) collects: bool,
    /// Whether what the collector has to free is frozen: it has to be unfrozen first.
    pub(crate) unfreezes: bool,
    /// The pieces of memory that the cut frees, as positions in [`Examination::sizes`].
    pub(crate) pieces: Vec<usize>,
}

/// An object that is kept alive: one that holds device memory, or one that was asked about.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct HeldObject {
    /// The object.
    pub(crate) object: Option<Py<PyAny>>,
    /// The device memory that it retains.
    pub(crate) bytes: u64,
    /// The number of pieces of memory.
    pub(crate) pieces: u64,
    /// How many objects are held alike, this one included: paths of the same kind lead to them.
    pub(crate) alike: usize,
    /// Whether the program has all of it by names and attributes, as it has a model.
    pub(crate) in_use: bool,
    /// Whether a root reaches it.
    pub(crate) reached: bool,
    /// Whether the collector frees it, if only unreachable objects refer to it.
    pub(crate) collected: Option<bool>,
    /// References to it that were not seen.
    pub(crate) hidden: u32,
    /// Whether it is frozen.
    pub(crate) frozen: bool,
    /// Paths from roots to it.
    pub(crate) paths: Py<PyList>,
    /// Cuts that free it, the one that frees the least beside it first.
    pub(crate) cuts: Py<PyList>,
    /// Cuts of entries below it that free nearly all of its memory: its own entries first.
    pub(crate) below: Py<PyList>,
    /// Why there is no cut.
    pub(crate) why_no_cut: Option<String>,
}

/// A reference cycle that no root reaches.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct DeadCycle {
    /// An object of the cycle.
    pub(crate) head: Option<Py<PyAny>>,
    /// The objects and bytes that are freed with it.
    pub(crate) size: RetainedSize,
    /// Whether it is frozen, so that the collector does not free it.
    pub(crate) frozen: bool,
    /// The bytes that the collector cannot free, because native code holds objects of the cycle.
    pub(crate) kept_bytes: u64,
}

/// An object that only native code holds.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct NativeObject {
    /// The object.
    pub(crate) object: Option<Py<PyAny>>,
    /// The references of native code.
    pub(crate) references: u32,
    /// The device memory that it retains.
    pub(crate) bytes: u64,
}

/// The result of a walk over the heap.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct Examination {
    /// The objects that hold memory, largest first; or those that were asked about.
    pub(crate) held: Py<PyList>,
    /// The objects beyond the number that was asked for.
    pub(crate) rest: RetainedSize,
    /// Reference cycles that no root reaches, as far as they hold memory.
    pub(crate) dead: Py<PyList>,
    /// The memory of all such cycles that the collector frees.
    pub(crate) collected_bytes: u64,
    /// The memory that it would free if the cycles were not frozen.
    pub(crate) unfrozen_bytes: u64,
    /// Objects that only native code holds.
    pub(crate) native: Py<PyList>,
    /// Pieces of memory with holders in native code that Python does not explain.
    pub(crate) native_memory: RetainedSize,
    /// All device memory that was found.
    pub(crate) memory: RetainedSize,
    /// The bytes of each piece of it.
    pub(crate) sizes: Vec<u64>,
    /// The number of objects that were walked.
    pub(crate) objects: usize,
    /// The number of frozen objects.
    pub(crate) frozen_objects: usize,
    /// Whether all of those were found.
    pub(crate) frozen_listed: bool,
}

/// A reference that a shutdown drops.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct DroppedReference {
    /// The objects from one that is shut down to the one that has the reference.
    pub(crate) chain: Py<PyList>,
    /// The object that the reference leads to.
    pub(crate) held: Option<Py<PyAny>>,
    /// The device memory that no reference before it leads to.
    pub(crate) bytes: u64,
}

/// What a shutdown of some objects drops, and what stays.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct ShutdownPlan {
    /// The references, wrappers first.
    pub(crate) drops: Py<PyList>,
    /// The bytes that are freed when all of them are cut.
    pub(crate) freed_bytes: u64,
    /// Every tensor that they lead to.
    pub(crate) tensors: Py<PyList>,
    /// The tensors that somebody else holds too.
    pub(crate) stays: Py<PyList>,
    /// A path to the first object.
    pub(crate) path: Option<Py<HeapPath>>,
    /// Whether reference counts have proved that nobody else holds any of it, without a walk over the heap.
    pub(crate) is_alone: bool,
}
