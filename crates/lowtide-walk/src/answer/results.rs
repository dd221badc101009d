//! What the walk found, for Python: the few objects on the paths, with numbers.
//!
//! Python names them (`_why/naming/`). Each class shows its references to the collector, so that
//! another walk at the same time can explain them.

use lowtide_heap::Size;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::start::roots::RootKind;

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
#[pyclass(frozen, module = "lowtide._native")]
pub struct HeapPath {
    pub(crate) root: RootKind,
    /// The number of the thread, for frames and exceptions.
    #[pyo3(get)]
    pub(crate) thread: u64,
    /// The objects along the path, the root first.
    #[pyo3(get)]
    pub(crate) objects: Py<PyList>,
    /// References to the root that were not seen.
    #[pyo3(get)]
    pub(crate) hidden: u32,
    /// Whether an object on the path is frozen.
    #[pyo3(get)]
    pub(crate) frozen: bool,
}

#[pymethods]
impl HeapPath {
    /// The kind of root: `modules`, `frame`, `exception`, `interpreter` or `native`.
    #[getter]
    fn root(&self) -> &'static str {
        self.root.as_str()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.objects)
    }
}

/// A reference that a cut removes.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct CutEdge {
    /// The object that is referred to.
    pub(crate) held: Option<Py<PyAny>>,
    /// Paths to the object that refers to it, shortest first.
    pub(crate) paths: Py<PyList>,
}

#[pymethods]
impl CutEdge {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.held)?;
        visit.call(&self.paths)
    }
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
}

#[pymethods]
impl HeapCut {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.edges)
    }
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
    /// Why there is no cut.
    pub(crate) why_no_cut: Option<String>,
}

#[pymethods]
impl HeldObject {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.object)?;
        visit.call(&self.paths)?;
        visit.call(&self.cuts)
    }
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

#[pymethods]
impl DeadCycle {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.head)
    }
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

#[pymethods]
impl NativeObject {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.object)
    }
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
    /// The number of objects that were walked.
    pub(crate) objects: usize,
    /// The number of frozen objects.
    pub(crate) frozen_objects: usize,
    /// Whether all of those were found.
    pub(crate) frozen_listed: bool,
}

#[pymethods]
impl Examination {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.held)?;
        visit.call(&self.dead)?;
        visit.call(&self.native)
    }
}

/// A reference that a shutdown drops.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct Lead {
    /// The objects from one that is shut down to the one that has the reference.
    pub(crate) chain: Py<PyList>,
    /// The object that the reference leads to.
    pub(crate) held: Option<Py<PyAny>>,
    /// The device memory that no reference before it leads to.
    pub(crate) bytes: u64,
}

#[pymethods]
impl Lead {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.chain)?;
        visit.call(&self.held)
    }
}

/// What a shutdown of some objects drops, and what stays.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct Leads {
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
}

#[pymethods]
impl Leads {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.drops)?;
        visit.call(&self.tensors)?;
        visit.call(&self.stays)?;
        visit.call(&self.path)
    }
}
