//! Where the walk begins: the modules, the frames of every thread, exceptions being handled, and
//! the dicts of the interpreter and of this thread.
//!
//! What is found here is held: other threads may run while an audit hook runs, or while an object
//! is freed when a frame's variables are read.

use std::collections::{HashMap, HashSet};

use lowtide_types::words;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule as Module, PyTuple};

use crate::safety::ending::call_function;
use crate::safety::own_references::OwnReferences;
use crate::start::frames::{Frame, Stack, read_locals};
use crate::start::question::Question;

words! {
    /// A kind of root.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) enum RootKind {
        /// The table of modules.
        Modules = "modules",
        /// A dict of the interpreter or of this thread.
        Interpreter = "interpreter",
        /// A running frame.
        Frame = "frame",
        /// An exception that is being handled.
        Exception = "exception",
        /// An object that only native code holds.
        Native = "native",
    }
}

/// A root of the walk.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    pub(crate) kind: RootKind,
    /// The number of the thread, for frames and exceptions.
    pub(crate) thread: u64,
    /// Whether it belongs to no thread, or to the thread that asks.
    pub(crate) is_here: bool,
    pub(crate) address: usize,
}

/// Where an object may be a value in use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnStack {
    /// The address of the frame.
    pub(crate) frame: usize,
    /// Whether it is one for certain.
    pub(crate) is_exact: bool,
}

/// The roots, and what was found out about running code on the way.
pub(crate) struct Roots<'py> {
    pub(crate) all: Vec<Root>,
    /// The number of the thread that asks.
    here: u64,
    /// What we hold on to until the answer is made.
    pub(crate) held: OwnReferences<'py>,
    /// By the address of a running frame: what its variables hold.
    pub(crate) locals: HashMap<usize, Vec<usize>>,
    /// Variables whose references are not counted, by the address of what they hold.
    pub(crate) borrowed: Vec<usize>,
    /// By the address of a running frame: its code.
    pub(crate) codes: HashMap<usize, usize>,
    /// The frames of suspended greenlets.
    pub(crate) suspended: Vec<usize>,
    /// By the address of an object that may be on the stack of a frame.
    pub(crate) stacks: HashMap<usize, OnStack>,
    /// Frames of this package.
    pub(crate) ours: Vec<usize>,
    /// By the address of code that is running: a frame of it.
    pub(crate) running: HashMap<usize, usize>,
    /// Dicts of imported modules.
    namespaces: HashSet<usize>,
}

impl<'py> Roots<'py> {
    /// Returns no roots.
    pub(crate) fn none(py: Python<'py>, question: &Question<'py>) -> PyResult<Roots<'py>> {
        Ok(Roots {
            all: Vec::new(),
            here: question.asked.thread,
            held: OwnReferences::new(py)?,
            locals: HashMap::new(),
            borrowed: Vec::new(),
            codes: HashMap::new(),
            suspended: Vec::new(),
            stacks: HashMap::new(),
            ours: Vec::new(),
            running: HashMap::new(),
            namespaces: HashSet::new(),
        })
    }
}

/// Finds the roots with the interpreter's own functions.
///
/// `suspended` are frames that no thread runs and that do not show their variables: those of
/// greenlets.
pub(crate) fn find<'py>(
    py: Python<'py>,
    question: &Question<'py>,
    suspended: impl Iterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Roots<'py>> {
    let mut found = Roots::none(py, question)?;
    for modules in tables_of_modules(py) {
        found.namespaces.extend(namespaces(&modules));
        found.push(RootKind::Modules, 0, modules)?;
    }
    for dict in state_dicts(py) {
        found.push(RootKind::Interpreter, 0, dict)?;
    }
    for object in &question.asked.kept {
        found.push(RootKind::Interpreter, 0, object.clone())?;
    }
    let frames =
        call_function(&question.collector.interpreter.current_frames, ())?.cast_into::<PyDict>()?;
    for (thread, frame) in frames.iter() {
        found.stack(frame, thread.extract()?, question)?;
    }
    for frame in suspended {
        found.suspended.push(frame.as_ptr().expose_provenance());
        if !question.collector.interpreter.frames_show {
            let variables = found.variables(&frame, question)?;
            found.keep_variables(&frame, variables)?;
        }
    }
    let exceptions = call_function(&question.collector.interpreter.current_exceptions, ())?
        .cast_into::<PyDict>()?;
    for (thread, handled) in exceptions.iter() {
        // Up to Python 3.11 it is what `sys.exc_info` gives: the exception is the second of three.
        let exception = match handled.cast::<PyTuple>() {
            Ok(triple) => triple.get_item(1)?,
            Err(_) => handled,
        };
        if !exception.is_none() {
            found.push(RootKind::Exception, thread.extract()?, exception)?;
        }
    }
    Ok(found)
}

impl<'py> Roots<'py> {
    fn push(&mut self, kind: RootKind, thread: u64, object: Bound<'py, PyAny>) -> PyResult<()> {
        let address = object.as_ptr().expose_provenance();
        let is_here = thread == 0 || thread == self.here;
        self.all.push(Root { kind, thread, is_here, address });
        self.held.push(object)
    }

    /// Adds the frames of a thread, the running one first.
    fn stack(
        &mut self,
        top: Bound<'py, PyAny>,
        thread: u64,
        question: &Question<'py>,
    ) -> PyResult<()> {
        let mut next = Some(top);
        while let Some(frame) = next {
            let back = frame.getattr(intern!(frame.py(), "f_back"))?;
            self.frame(frame, thread, question)?;
            next = (!back.is_none()).then_some(back);
        }
        Ok(())
    }

    /// Returns what the variables of a frame hold.
    fn variables(
        &mut self,
        frame: &Bound<'py, PyAny>,
        question: &Question<'py>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let Some(read) = Frame::new(frame)? else {
            return read_locals(frame, &question.asked.view, &self.namespaces);
        };
        let mut held = Vec::new();
        for variable in read.variables()? {
            if variable.is_borrowed {
                self.borrowed.push(variable.value.as_ptr().addr());
            }
            held.push(variable.value);
        }
        let globals = frame.getattr(intern!(frame.py(), "f_globals"))?;
        held.extend(read.locals().filter(|locals| !locals.is(&globals)));
        if !read.is_of_function()? && !self.namespaces.contains(&globals.as_ptr().addr()) {
            held.push(globals);
        }
        Ok(held)
    }

    fn keep_variables(
        &mut self,
        frame: &Bound<'py, PyAny>,
        variables: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let addresses = variables.iter().map(|held| held.as_ptr().expose_provenance());
        self.locals.insert(frame.as_ptr().expose_provenance(), addresses.collect());
        variables.into_iter().try_for_each(|variable| self.held.push(variable))
    }

    fn frame(
        &mut self,
        frame: Bound<'py, PyAny>,
        thread: u64,
        question: &Question<'py>,
    ) -> PyResult<()> {
        let py = frame.py();
        let code = frame.getattr(intern!(py, "f_code"))?;
        let file = code.getattr(intern!(py, "co_filename"))?;
        let is_ours =
            file.extract::<&str>().is_ok_and(|file| file.starts_with(&question.asked.package));
        let address = frame.as_ptr().expose_provenance();
        // A frame that shows its variables to the collector need not be read.
        if is_ours || !question.collector.interpreter.frames_show {
            let variables = self.variables(&frame, question)?;
            self.keep_variables(&frame, variables)?;
        }
        if let Some(read) = Frame::new(&frame)? {
            let Stack { objects, is_exact } = read.stack()?;
            let on_stack = OnStack { frame: address, is_exact };
            self.stacks.extend(objects.into_iter().map(|object| (object, on_stack)));
        }
        self.running.insert(code.as_ptr().addr(), address);
        self.codes.insert(address, code.as_ptr().addr());
        if is_ours {
            self.ours.push(address);
            self.held.push(frame)
        } else {
            self.push(RootKind::Frame, thread, frame)
        }
    }
}

/// Returns the interpreter's own table of modules, and `sys.modules` if that is another.
fn tables_of_modules(py: Python<'_>) -> Vec<Bound<'_, PyAny>> {
    // SAFETY: this thread is attached. What it returns is the interpreter's.
    let own = unsafe { ffi::PyImport_GetModuleDict() };
    // SAFETY: the same; it looks into the dict of `sys`, and runs nothing.
    let shown = unsafe { ffi::PySys_GetObject(c"modules".as_ptr()) };
    let mut tables = vec![own];
    if shown != own {
        tables.push(shown);
    }
    // SAFETY: each is null or alive.
    let object = |table| unsafe { Bound::from_borrowed_ptr_or_opt(py, table) };
    tables.into_iter().filter_map(object).collect()
}

/// Returns the dicts of the modules in a table. It may be no dict, and contain other objects.
fn namespaces(modules: &Bound<'_, PyAny>) -> HashSet<usize> {
    let Ok(modules) = modules.cast::<PyDict>() else { return HashSet::new() };
    let modules = modules.values();
    let modules = modules.iter().filter(PyAnyMethods::is_instance_of::<Module>);
    // SAFETY: it is a module. One that was never initialised has no dict, and no namespace is at 0.
    modules.map(|module| unsafe { ffi::PyModule_GetDict(module.as_ptr()) }.addr()).collect()
}

/// Returns the dicts in which the interpreter and this thread keep objects of their own.
fn state_dicts(py: Python<'_>) -> Vec<Bound<'_, PyAny>> {
    // SAFETY: this thread is attached, so it has an interpreter.
    let interpreter = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: the interpreter is running. What it returns is its own.
    let interpreter = unsafe { ffi::PyInterpreterState_GetDict(interpreter) };
    // SAFETY: this thread is attached. What it returns is its own.
    let thread = unsafe { ffi::PyThreadState_GetDict() };
    [interpreter, thread]
        .into_iter()
        // SAFETY: each is null or a live dict that somebody else owns.
        .filter_map(|dict| unsafe { Bound::from_borrowed_ptr_or_opt(py, dict) })
        .collect()
}
