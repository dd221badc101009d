//! The question that Python asks (`_why/question.py`), with what Python knows of types and of
//! tensors.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::ffi::PyTypeObject;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::ask::kind::TypeKind;
use crate::ask::numpy::Arrays;
use crate::ask::types::{Types, is_of_the_program, traverse};
use crate::start::collector::{Collector, Interpreter};

/// The part of a question that is read once, and not kept.
#[derive(FromPyObject)]
struct Given<'py> {
    /// Types, and the kind of their objects.
    kinds: Vec<Py<TypeKind>>,
    /// A class written in Python.
    sample: Bound<'py, PyType>,
    /// The objects that are asked about; all device memory if it is `None`.
    targets: Option<Vec<Bound<'py, PyAny>>>,
    /// An immortal object. The interpreter may have it among the frozen.
    immortal: Bound<'py, PyAny>,
    interpreter: Interpreter<'py>,
    /// The arrays of numpy, if it is imported.
    arrays: Option<Arrays<'py>>,
    /// The type of a node of autograd, if torch is imported.
    node: Option<Bound<'py, PyType>>,
    /// The classes of this package, if another examination is under way.
    own_types: Vec<Bound<'py, PyType>>,
}

/// The part of a question that is kept.
#[derive(FromPyObject)]
pub(crate) struct Asked<'py> {
    /// Whether the targets are tensors, and the question is who holds their memory.
    pub(crate) grouped: bool,
    /// The device whose memory counts; every device if it is `None`.
    pub(crate) device: Option<String>,
    /// The folder of this package: frames of its functions are not the program's.
    pub(crate) package: String,
    /// The type of `f_locals` if it is no dict.
    pub(crate) view: Bound<'py, PyType>,
    /// The number of the thread that asks.
    pub(crate) thread: u64,
    /// Reports the memory that tensors hold.
    pub(crate) probe: Bound<'py, PyAny>,
    /// Reports the tensors that others keep alive in native code.
    pub(crate) autograd: Bound<'py, PyAny>,
    /// Reports where items of a dtype have objects.
    pub(crate) layout: Bound<'py, PyAny>,
    /// How many held objects are wanted.
    pub(crate) most: usize,
    /// Objects that the interpreter keeps outside of modules.
    pub(crate) kept: Vec<Bound<'py, PyAny>>,
    /// The address of the interpreter's list of calls at exit; 0 if it has none.
    pub(crate) at_exit: usize,
    /// Whether another examination is under way.
    nested: bool,
    /// The seconds after which the question is given up, if any.
    limit_s: Option<f64>,
}

/// A question with addresses instead of objects: nothing in it refers to what is asked about.
pub(crate) struct Question<'py> {
    pub(crate) asked: Asked<'py>,
    /// The address of the question's Python object: its own references are no holders.
    pub(crate) address: usize,
    pub(crate) targets: Option<Vec<usize>>,
    /// The targets, sorted.
    sorted: Vec<usize>,
    pub(crate) immortal: usize,
    pub(crate) collector: Collector<'py>,
    own_types: HashSet<usize>,
    /// The moment at which the question is given up.
    pub(crate) until: Option<Instant>,
}

impl<'py> Question<'py> {
    /// Reads a question that Python has made.
    pub(crate) fn new(question: &Bound<'py, PyAny>) -> PyResult<(Question<'py>, Types)> {
        let address = |object: &Bound<'_, PyAny>| object.as_ptr().expose_provenance();
        let mut given: Given<'py> = question.extract()?;
        if !given.interpreter.lists_itself() {
            let words = "gc.get_objects is not the interpreter's own function: import lowtide before it is \
                         replaced";
            return Err(PyRuntimeError::new_err(words));
        }
        let targets: Option<Vec<usize>> =
            given.targets.map(|targets| targets.iter().map(address).collect());
        let mut sorted = targets.clone().unwrap_or_default();
        sorted.sort_unstable();
        let readers = std::mem::take(&mut given.interpreter.readers);
        let knows_layout = given.interpreter.knows_layout;
        let mut types = Types::new(&given.kinds, &given.sample, &readers, knows_layout);
        if let Some(arrays) = &given.arrays {
            types.array = arrays.class();
            types.row = arrays.row_class();
            types.layouts.flags = arrays.dtype_flags();
        }
        let node = given.node.and_then(|node| traverse(node.as_type_ptr()));
        types.node = node.map_or(0, |traverse| traverse as usize);
        let asked: Asked<'py> = question.extract()?;
        let limit = asked.limit_s.and_then(|limit_s| Duration::try_from_secs_f64(limit_s).ok());
        let question = Question {
            until: limit.map(|limit| Instant::now() + limit),
            asked,
            address: address(question),
            targets,
            sorted,
            immortal: address(&given.immortal),
            collector: Collector::new(question.py(), given.interpreter)?,
            own_types: given.own_types.iter().map(|class| class.as_ptr().addr()).collect(),
        };
        Ok((question, types))
    }

    /// Gives the question up after its limit.
    pub(crate) fn in_time(&self) -> PyResult<()> {
        if self.until.is_some_and(|until| Instant::now() > until) {
            return Err(PyTimeoutError::new_err(
                "the walk over the heap was given up at its limit",
            ));
        }
        Ok(())
    }

    /// Returns whether an object of this type may be what another examination works with, if one
    /// is under way: an iterator, a container, an object of this package.
    pub(crate) fn is_of_another(&self, class: *mut PyTypeObject) -> bool {
        self.asked.nested && (!is_of_the_program(class) || self.own_types.contains(&class.addr()))
    }

    /// Returns whether the memory of this tensor is asked about.
    pub(crate) fn counts(&self, tensor: usize) -> bool {
        !self.asked.grouped || self.targets.is_none() || self.is_target(tensor)
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
