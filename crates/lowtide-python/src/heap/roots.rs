//! Where the walk begins: the modules, the frames of every thread, exceptions being handled, and what
//! the interpreter and this thread keep for themselves.
//!
//! What is found here is held: an audit hook, or what ends when a frame's variables are read, may let
//! other threads run.

use std::collections::{HashMap, HashSet};

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule as Module, PyTuple};

use super::question::Question;
use super::variables;

/// What kind of root something is, and what tells it from others of its kind.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    pub(crate) kind: &'static str,
    /// Of frames and exceptions, the thread's number.
    pub(crate) thread: u64,
    /// Whether it is everybody's, or of the thread that asks.
    pub(crate) is_here: bool,
    pub(crate) address: usize,
}

/// Where the walk begins.
#[derive(Default)]
pub(crate) struct Roots<'py> {
    pub(crate) all: Vec<Root>,
    /// The number of the thread that asks.
    here: u64,
    /// What we hold on to until the answer is made.
    pub(crate) held: Vec<Bound<'py, PyAny>>,
    /// By the address of a running frame: what its variables hold.
    pub(crate) locals: HashMap<usize, Vec<usize>>,
    /// By the address of a running frame: its code.
    pub(crate) codes: HashMap<usize, usize>,
    /// Frames of this package.
    pub(crate) ours: Vec<usize>,
    /// By the address of code that is running: a frame of it.
    pub(crate) running: HashMap<usize, usize>,
    /// Dicts of modules that everybody can import.
    namespaces: HashSet<usize>,
}

/// Finds them, by the interpreter's own functions.
pub(crate) fn find<'py>(py: Python<'py>, question: &Question<'py>) -> PyResult<Roots<'py>> {
    let mut found = Roots { here: question.thread, ..Roots::default() };
    for modules in tables_of_modules(py) {
        found.namespaces.extend(namespaces(&modules));
        found.push("modules", 0, modules);
    }
    for dict in state_dicts(py) {
        found.push("interpreter", 0, dict);
    }
    let frames = question.interpreter.current_frames.call0()?.cast_into::<PyDict>()?;
    for (thread, frame) in frames.iter() {
        found.stack(frame, thread.extract()?, question)?;
    }
    let exceptions = question.interpreter.current_exceptions.call0()?.cast_into::<PyDict>()?;
    for (thread, handled) in exceptions.iter() {
        // Up to Python 3.11 it is what `sys.exc_info` gives: the exception is the second of three.
        let exception = match handled.cast::<PyTuple>() {
            Ok(triple) => triple.get_item(1)?,
            Err(_) => handled,
        };
        if !exception.is_none() {
            found.push("exception", thread.extract()?, exception);
        }
    }
    Ok(found)
}

impl<'py> Roots<'py> {
    fn push(&mut self, kind: &'static str, thread: u64, object: Bound<'py, PyAny>) {
        let address = object.as_ptr().expose_provenance();
        let is_here = thread == 0 || thread == self.here;
        self.all.push(Root { kind, thread, is_here, address });
        self.held.push(object);
    }

    /// The frames of a thread, the one that runs first.
    fn stack(
        &mut self,
        top: Bound<'py, PyAny>,
        thread: u64,
        question: &Question<'py>,
    ) -> PyResult<()> {
        // Frames that others have in their variables: those that a debugger may be looking at.
        let mut looked_at = HashSet::new();
        let mut next = Some(top);
        while let Some(frame) = next {
            let back = frame.getattr(intern!(frame.py(), "f_back"))?;
            self.frame(frame, thread, &mut looked_at, question)?;
            next = (!back.is_none()).then_some(back);
        }
        Ok(())
    }

    fn frame(
        &mut self,
        frame: Bound<'py, PyAny>,
        thread: u64,
        looked_at: &mut HashSet<usize>,
        question: &Question<'py>,
    ) -> PyResult<()> {
        let py = frame.py();
        let code = frame.getattr(intern!(py, "f_code"))?;
        let file = code.getattr(intern!(py, "co_filename"))?;
        let is_ours = file.extract::<&str>().is_ok_and(|file| file.starts_with(&question.package));
        let address = frame.as_ptr().expose_provenance();
        // Where a frame shows its variables by itself they need not be read.
        if is_ours || !question.interpreter.frames_show {
            let is_looked_at = looked_at.contains(&address);
            let variables =
                variables::read(&frame, &code, is_looked_at, &question.view, &self.namespaces)?;
            if !is_ours {
                looked_at.extend(variables::frames_in(&variables, &frame));
            }
            let addresses = variables.iter().map(|held| held.as_ptr().expose_provenance());
            self.locals.insert(address, addresses.collect());
            self.held.extend(variables);
        }
        self.running.insert(code.as_ptr().addr(), address);
        self.codes.insert(address, code.as_ptr().addr());
        if is_ours {
            self.ours.push(address);
            self.held.push(frame);
        } else {
            self.push("frame", thread, frame);
        }
        Ok(())
    }
}

/// The interpreter's own table of modules, and what stands in `sys` in its place, where that is another.
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

/// The dicts of the modules in a table; not every table is a dict, and not everything in it a module.
fn namespaces(modules: &Bound<'_, PyAny>) -> HashSet<usize> {
    let Ok(modules) = modules.cast::<PyDict>() else { return HashSet::new() };
    let modules = modules.values();
    let modules = modules.iter().filter(PyAnyMethods::is_instance_of::<Module>);
    // SAFETY: it is a module. One that was never initialised has no dict, and no namespace is at 0.
    modules.map(|module| unsafe { ffi::PyModule_GetDict(module.as_ptr()) }.addr()).collect()
}

/// Dicts in which the interpreter, and this thread, keep things of their own.
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
