//! The question that Python asks (`_why/question.py`), with what Python knows of types and of
//! tensors.

use std::collections::HashSet;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::{self, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::ask::numpy::Arrays;
use crate::ask::object_kind::TypeKind;
use crate::ask::types::{Kinds, is_of_the_program, traverse};
use crate::start::collector_lists::Generations;
use crate::start::interpreter::Interpreter;

/// The question as Python makes it.
#[derive(FromPyObject)]
pub(crate) struct PythonQuestion<'py> {
    /// Types, and the kind of their objects.
    kinds: Vec<Py<TypeKind>>,
    /// A class written in Python.
    sample: Bound<'py, PyType>,
    /// The objects that are asked about; all device memory if it is `None`.
    targets: Option<Vec<Bound<'py, PyAny>>>,
    /// Whether the targets are tensors, and the question is who holds their memory.
    grouped: bool,
    /// The device whose memory counts; every device if it is `None`.
    device: Option<String>,
    /// The folder of this package: frames of its functions are not the program's.
    package: String,
    /// An immortal object. The interpreter may have it among the frozen.
    immortal: Bound<'py, PyAny>,
    /// The type of `f_locals` if it is no dict.
    view: Bound<'py, PyType>,
    /// The number of the thread that asks.
    thread: u64,
    interpreter: Interpreter<'py>,
    /// Reports the memory that tensors hold.
    probe: Bound<'py, PyAny>,
    /// Reports the tensors that others keep alive in native code.
    autograd: Bound<'py, PyAny>,
    /// Reports where items of a dtype have objects.
    layout: Bound<'py, PyAny>,
    /// How many held objects are wanted.
    most: usize,
    /// Objects that the interpreter keeps outside of modules.
    kept: Vec<Bound<'py, PyAny>>,
    /// The address of the interpreter's list of calls at exit; 0 if it has none.
    at_exit: usize,
    /// The arrays of numpy, if it is imported.
    arrays: Option<Arrays<'py>>,
    /// The type of a node of autograd, if torch is imported.
    node: Option<Bound<'py, PyType>>,
    /// Whether another examination is under way.
    nested: bool,
    /// The classes of this package, if one is.
    own_types: Vec<Bound<'py, PyType>>,
}

/// The same question with addresses instead of objects: nothing in it refers to what is asked
/// about.
pub(crate) struct Question<'py> {
    /// The Python object of the question: its own references are no holders.
    pub(crate) asked: usize,
    pub(crate) targets: Option<Vec<usize>>,
    /// The targets, sorted.
    sorted: Vec<usize>,
    pub(crate) grouped: bool,
    pub(crate) device: Option<String>,
    pub(crate) package: String,
    pub(crate) immortal: usize,
    pub(crate) view: Bound<'py, PyType>,
    pub(crate) thread: u64,
    pub(crate) interpreter: Interpreter<'py>,
    /// The collector's lists of objects, if they can be read.
    pub(crate) generations: Option<Generations>,
    pub(crate) probe: Bound<'py, PyAny>,
    pub(crate) autograd: Bound<'py, PyAny>,
    pub(crate) layout: Bound<'py, PyAny>,
    pub(crate) most: usize,
    pub(crate) kept: Vec<Bound<'py, PyAny>>,
    /// The address of the interpreter's list of calls at exit; 0 if it has none.
    pub(crate) at_exit: usize,
    pub(crate) nested: bool,
    own_types: HashSet<usize>,
}

impl<'py> Question<'py> {
    /// Reads a question that Python has made.
    pub(crate) fn new(asked: &Bound<'py, PyAny>) -> PyResult<(Question<'py>, Kinds)> {
        let address = |object: &Bound<'_, PyAny>| object.as_ptr().expose_provenance();
        let mut told: PythonQuestion<'py> = asked.extract()?;
        // SAFETY: it is alive, and this thread is attached.
        if unsafe { ffi::PyCFunction_Check(told.interpreter.get_objects.as_ptr()) } == 0 {
            // Python code in its place would let other threads run during the walk.
            let words = "gc.get_objects is not the interpreter's own function: import lowtide before it is \
                         replaced";
            return Err(PyRuntimeError::new_err(words));
        }
        let targets: Option<Vec<usize>> =
            told.targets.map(|targets| targets.iter().map(address).collect());
        let mut sorted = targets.clone().unwrap_or_default();
        sorted.sort_unstable();
        let knows_layout = told.interpreter.knows_layout;
        let readers = std::mem::take(&mut told.interpreter.readers);
        let generations = Generations::find(asked.py(), &told.interpreter)?;
        let question = Question {
            asked: address(asked),
            targets,
            sorted,
            grouped: told.grouped,
            device: told.device,
            package: told.package,
            immortal: address(&told.immortal),
            view: told.view,
            thread: told.thread,
            interpreter: told.interpreter,
            generations,
            probe: told.probe,
            autograd: told.autograd,
            layout: told.layout,
            most: told.most,
            kept: told.kept,
            at_exit: told.at_exit,
            nested: told.nested,
            own_types: told.own_types.iter().map(|class| class.as_ptr().addr()).collect(),
        };
        let mut kinds = Kinds::new(&told.kinds, &told.sample, &readers, knows_layout);
        kinds.array = told.arrays.as_ref().and_then(Arrays::class);
        kinds.row = told.arrays.as_ref().and_then(Arrays::row_class);
        kinds.layouts.flags = told.arrays.as_ref().and_then(Arrays::dtype_flags);
        let node = told.node.and_then(|node| traverse(node.as_type_ptr()));
        kinds.node = node.map_or(0, |traverse| traverse as usize);
        Ok((question, kinds))
    }

    /// Returns whether an object of this type may be what another examination works with, if one
    /// is under way: an iterator, a container, an object of this package.
    pub(crate) fn is_of_another(&self, class: *mut PyTypeObject) -> bool {
        self.nested && (!is_of_the_program(class) || self.own_types.contains(&class.addr()))
    }

    /// Returns whether the memory of this tensor is asked about.
    pub(crate) fn counts(&self, tensor: usize) -> bool {
        !self.grouped || self.targets.is_none() || self.is_target(tensor)
    }

    /// Returns the addresses of the objects that are asked about, sorted.
    pub(crate) fn sorted_targets(&self) -> &[usize] {
        &self.sorted
    }

    /// Returns whether the object at this address is asked about.
    pub(crate) fn is_target(&self, address: usize) -> bool {
        !self.sorted.is_empty() && self.sorted.binary_search(&address).is_ok()
    }
}
