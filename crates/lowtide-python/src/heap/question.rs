//! What Python asks, and what it brings along: what it knows of types, and who can tell what a tensor
//! holds.

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::kinds::Kinds;

/// A question about the heap, made by Python.
#[derive(FromPyObject)]
pub(crate) struct Asked<'py> {
    /// Types, the kind of their objects, and whether that holds for subclasses too.
    kinds: Vec<(Bound<'py, PyType>, String, bool)>,
    /// A class written in Python.
    sample: Bound<'py, PyType>,
    /// What is asked about; all device memory, where it is `None`.
    targets: Option<Vec<Bound<'py, PyAny>>>,
    /// Whether the targets are tensors, and who holds their memory is asked.
    grouped: bool,
    /// Whose memory counts; everybody's, where it is `None`.
    device: Option<String>,
    /// Where our own files are: frames of functions from there are not the program's.
    package: String,
    /// An immortal object. The interpreter may have it among the frozen.
    immortal: Bound<'py, PyAny>,
    /// What `f_locals` gives where it is no dict.
    view: Bound<'py, PyType>,
    /// The number of the thread that asks.
    thread: u64,
    interpreter: Interpreter<'py>,
    /// Says what tensors hold.
    probe: Bound<'py, PyAny>,
    /// Says what graphs of tensors keep.
    autograd: Bound<'py, PyAny>,
    /// How many holders are wanted.
    most: usize,
}

/// What is known of the interpreter, and functions of its own, as they were when the package was
/// imported: to import them now would run the program's `__import__`, and to look them up what it may
/// have put in their place.
#[derive(FromPyObject)]
pub(crate) struct Interpreter<'py> {
    pub(crate) get_objects: Bound<'py, PyAny>,
    pub(crate) get_freeze_count: Bound<'py, PyAny>,
    pub(crate) current_frames: Bound<'py, PyAny>,
    pub(crate) current_exceptions: Bound<'py, PyAny>,
    /// Whether frozen objects can be found in it.
    pub(crate) finds_frozen: bool,
    /// Whether it is known where its objects have what.
    pub(crate) knows_layout: bool,
    /// Whether the traverse slot of a running frame shows its variables.
    pub(crate) frames_show: bool,
}

/// The same, with addresses in the place of objects: nothing in it refers to what is asked about.
pub(crate) struct Question<'py> {
    /// The question as Python made it: its own references are no holders.
    pub(crate) asked: usize,
    pub(crate) targets: Option<Vec<usize>>,
    /// The same, in order.
    sorted: Vec<usize>,
    pub(crate) grouped: bool,
    pub(crate) device: Option<String>,
    pub(crate) package: String,
    pub(crate) immortal: usize,
    pub(crate) view: Bound<'py, PyType>,
    pub(crate) thread: u64,
    pub(crate) interpreter: Interpreter<'py>,
    pub(crate) probe: Bound<'py, PyAny>,
    pub(crate) autograd: Bound<'py, PyAny>,
    pub(crate) most: usize,
}

impl<'py> Question<'py> {
    /// From what Python made.
    pub(crate) fn new(asked: &Bound<'py, PyAny>) -> PyResult<(Question<'py>, Kinds)> {
        let address = |object: &Bound<'_, PyAny>| object.as_ptr().expose_provenance();
        let told: Asked<'py> = asked.extract()?;
        // SAFETY: it is alive, and this thread is attached.
        if unsafe { ffi::PyCFunction_Check(told.interpreter.get_objects.as_ptr()) } == 0 {
            // Python code in its place would let other threads run in the middle of a walk.
            let words =
                "gc.get_objects is not the interpreter's own: import lowtide before it is replaced";
            return Err(PyRuntimeError::new_err(words));
        }
        let targets: Option<Vec<usize>> =
            told.targets.map(|targets| targets.iter().map(address).collect());
        let mut sorted = targets.clone().unwrap_or_default();
        sorted.sort_unstable();
        let knows_layout = told.interpreter.knows_layout;
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
            probe: told.probe,
            autograd: told.autograd,
            most: told.most,
        };
        Ok((question, Kinds::new(told.kinds, &told.sample, knows_layout)?))
    }

    /// Whether the memory of this tensor is asked about.
    pub(crate) fn counts(&self, tensor: usize) -> bool {
        !self.grouped || self.targets.is_none() || self.is_target(tensor)
    }

    pub(crate) fn is_target(&self, address: usize) -> bool {
        !self.sorted.is_empty() && self.sorted.binary_search(&address).is_ok()
    }
}
