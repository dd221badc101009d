//! Paths of the analysis as Python gets them: with objects.

use lowtide_heap::Path;
use pyo3::prelude::*;

use crate::answer::results::HeapPath;
use crate::memory::heap::Heap;
use crate::safety::python_lists::list_of;
use crate::start::roots::RootKind;

/// Returns a path with its objects.
pub(crate) fn path_of(py: Python<'_>, heap: &Heap<'_>, path: &Path) -> PyResult<Py<HeapPath>> {
    let first = path.nodes().find(|node| heap.has_object(*node)).unwrap_or(path.root);
    let root = heap.known.roots.get(&first);
    let (root, thread) = root.map_or((RootKind::Native, 0), |root| (root.kind, root.thread));
    let frozen = path.nodes().any(|node| heap.is_frozen(node));
    let objects = path.nodes().filter_map(|node| heap.object(py, node));
    let objects = list_of(py, objects)?.unbind();
    Py::new(py, HeapPath { root, thread, objects, hidden: heap.hidden(first), frozen })
}
