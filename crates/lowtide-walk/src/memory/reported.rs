//! What Python reports to the walk about tensors: the memory that each holds, and the tensors that
//! it keeps alive in native code.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::safety::ending::call_function;
use crate::safety::own_memory::reserve;
use crate::safety::own_references::OwnReferences;
use crate::start::question::Question;

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
pub enum MemoryKind {
    /// A tensor.
    Tensor,
    /// A storage, which tensors share.
    Storage,
    /// Another object that shows the memory of tensors: a capsule of `DLPack`, a buffer of Arrow.
    Shown,
    /// A captured graph.
    Graph,
    /// A memory pool.
    Pool,
    /// An array of another library.
    Array,
}

/// Device memory that one object holds.
#[pyclass(frozen, get_all, module = "lowtide._native")]
pub struct Memory {
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
    /// Through what the object has it: the same for all objects that share a storage. Two storages
    /// may show the same memory.
    pub(crate) through: u64,
}

#[pymethods]
impl Memory {
    /// Says what one object holds.
    #[new]
    #[pyo3(signature = (key, bytes, device, native, kind, through=None))]
    fn new(
        key: u64,
        bytes: u64,
        device: Py<PyString>,
        native: Option<u32>,
        kind: MemoryKind,
        through: Option<u64>,
    ) -> Memory {
        Memory { key, bytes, device, native, kind, through: through.unwrap_or(key) }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Memory { key, bytes, device, native, kind, .. } = self;
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
    /// Whether it has a reference to each as a Python object: no traverse slot shows it.
    is_counted: bool,
}

/// The reports about all tensors that were asked about, by their addresses.
pub(crate) struct Reports<'py> {
    pub(crate) memory: HashMap<usize, Option<Py<Memory>>>,
    /// The address of each tensor that keeps others alive, and theirs.
    pub(crate) kept: Vec<(usize, Vec<usize>)>,
    /// References to all of them, so that no address is used for another object.
    pub(crate) held: OwnReferences<'py>,
    /// The objects that were asked about.
    pub(crate) asked: OwnReferences<'py>,
}

impl<'py> Reports<'py> {
    /// Creates an empty report.
    pub(crate) fn new(py: Python<'py>) -> PyResult<Reports<'py>> {
        let (held, asked) = (OwnReferences::new(py)?, OwnReferences::new(py)?);
        Ok(Reports { memory: HashMap::new(), kept: Vec::new(), held, asked })
    }

    /// Asks Python about some objects, and again about those before: they may show the same memory.
    /// What objects refer to without a traverse slot is added to `references`.
    pub(crate) fn ask(
        &mut self,
        py: Python<'py>,
        question: &Question<'py>,
        objects: Vec<Bound<'py, PyAny>>,
        references: &mut HashMap<usize, Vec<usize>>,
    ) -> PyResult<()> {
        let address = |object: &Bound<'_, PyAny>| object.as_ptr().expose_provenance();
        for object in objects {
            self.asked.push(object)?;
        }
        // Vectors of numbers and of reports, each as long as the list.
        let _room = reserve(self.asked.list().len() * 128)?;
        let addresses: Vec<usize> = self.asked.list().iter().map(|one| address(&one)).collect();
        self.memory.clear();
        self.kept.clear();
        references.clear();
        let reported = probe(question, &self.asked)?;
        self.memory.extend(addresses.iter().copied().zip(reported));
        let edges = call_function(&question.asked.autograd, (self.asked.list(),))?;
        let unknown = OwnReferences::new(py)?;
        let mut unknown_addresses = Vec::new();
        for KeptTensors { position, kept, is_counted } in
            edges.extract::<Vec<KeptTensors<'py>>>()?
        {
            let Some(from) = addresses.get(position) else { continue };
            let to = kept.iter().map(address).collect();
            if is_counted {
                references.insert(*from, to);
                for object in kept {
                    self.held.push(object)?;
                }
                continue;
            }
            self.kept.push((*from, to));
            for object in kept {
                if !self.memory.contains_key(&address(&object)) {
                    unknown_addresses.push(address(&object));
                    unknown.push(object)?;
                }
            }
        }
        let _room = reserve(unknown_addresses.len() * 128)?;
        let reported = probe(question, &unknown)?;
        self.memory.extend(unknown_addresses.into_iter().zip(reported));
        for object in unknown.list() {
            self.held.push(object)?;
        }
        Ok(())
    }
}

/// Asks Python for the memory that some objects hold.
fn probe(
    question: &Question<'_>,
    objects: &OwnReferences<'_>,
) -> PyResult<Vec<Option<Py<Memory>>>> {
    call_function(&question.asked.probe, (objects.list(),))?.extract()
}
