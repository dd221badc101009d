//! What Python reports to the walk about tensors: the memory that each holds, and the tensors that
//! it keeps alive in native code.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::held::Held;
use super::out_of_memory::reserve;
use super::question::Question;

/// What kind of object holds a piece of memory.
#[pyclass(
    frozen,
    eq,
    hash,
    from_py_object,
    rename_all = "SCREAMING_SNAKE_CASE",
    module = "lowtide._native"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum MemoryKind {
    /// A tensor.
    Tensor,
    /// A storage, which tensors share.
    Storage,
    /// A captured graph.
    Graph,
    /// A memory pool.
    Pool,
    /// An array of another library.
    Array,
}

/// Device memory that one object holds.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub(crate) struct Memory {
    /// Which memory: the same for all objects that share it.
    pub(crate) key: u64,
    /// Its size.
    pub(crate) bytes: u64,
    /// The device.
    pub(crate) device: Py<PyString>,
    /// Holders in native code beyond the objects that were asked about and beyond what these
    /// explain (a view explains its base). The same for all objects that share the memory; `None`
    /// if it is not known.
    pub(crate) native: Option<u32>,
    /// What kind of object holds it.
    pub(crate) kind: MemoryKind,
}

#[pymethods]
impl Memory {
    /// Says what one object holds.
    #[new]
    fn new(
        key: u64,
        bytes: u64,
        device: Py<PyString>,
        native: Option<u32>,
        kind: MemoryKind,
    ) -> Memory {
        Memory { key, bytes, device, native, kind }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Memory { key, bytes, device, native, kind } = self;
        let device = device.bind(py);
        format!("Memory({key:#x}, {bytes} bytes on {device}, native {native:?}, {kind:?})")
    }
}

/// The tensors that one tensor keeps alive in native code.
#[derive(FromPyObject)]
struct KeptTensors<'py> {
    /// The position of the tensor in the list that was asked about.
    position: usize,
    kept: Vec<Bound<'py, PyAny>>,
}

/// The reports about all tensors that were asked about, by their addresses.
pub(crate) struct Reports<'py> {
    pub(crate) memory: HashMap<usize, Option<Py<Memory>>>,
    /// The address of each tensor that keeps others alive, and theirs.
    pub(crate) kept: Vec<(usize, Vec<usize>)>,
    /// References to all of them, so that no address is used for another object.
    pub(crate) held: Held<'py>,
}

impl<'py> Reports<'py> {
    /// Creates an empty report.
    pub(crate) fn new(py: Python<'py>) -> PyResult<Reports<'py>> {
        Ok(Reports { memory: HashMap::new(), kept: Vec::new(), held: Held::new(py)? })
    }

    /// Asks Python about some objects.
    pub(crate) fn ask(
        &mut self,
        py: Python<'py>,
        question: &Question<'py>,
        objects: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let address = |object: &Bound<'_, PyAny>| object.as_ptr().expose_provenance();
        // Vectors of numbers and of reports, each as long as the list.
        let _room = reserve(objects.len() * 128)?;
        let addresses: Vec<usize> = objects.iter().map(address).collect();
        let asked = Held::new(py)?;
        for object in objects {
            asked.push(object.clone())?;
            self.held.push(object)?;
        }
        self.probe(question, &asked, &addresses)?;
        let edges = question.autograd.call1((asked.list(),))?;
        let unknown = Held::new(py)?;
        let mut unknown_addresses = Vec::new();
        for KeptTensors { position, kept } in edges.extract::<Vec<KeptTensors<'py>>>()? {
            let Some(from) = addresses.get(position) else { continue };
            self.kept.push((*from, kept.iter().map(address).collect()));
            for object in kept {
                if !self.memory.contains_key(&address(&object)) {
                    unknown_addresses.push(address(&object));
                    unknown.push(object)?;
                }
            }
        }
        let _room = reserve(unknown_addresses.len() * 128)?;
        self.probe(question, &unknown, &unknown_addresses)?;
        for object in unknown.list() {
            self.held.push(object)?;
        }
        Ok(())
    }

    fn probe(
        &mut self,
        question: &Question<'py>,
        objects: &Held<'py>,
        addresses: &[usize],
    ) -> PyResult<()> {
        let reported: Vec<Option<Py<Memory>>> =
            question.probe.call1((objects.list(),))?.extract()?;
        self.memory.extend(addresses.iter().copied().zip(reported));
        Ok(())
    }
}
