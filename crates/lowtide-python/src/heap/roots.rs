//! Where the walk begins: the modules, the frames of every thread, exceptions being handled, and what
//! the interpreter and this thread keep for themselves.
//!
//! A running frame shows its variables to nobody but `f_locals`, which up to Python 3.12 leaves a
//! snapshot in the frame that holds them too. We take addresses out of it and empty it again.

use std::collections::HashMap;

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyModule as Module};

/// The code of a function: its variables are not a dict.
const OPTIMISED: i64 = 1;

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
    /// What we hold on to while we look: to empty a snapshot may end something, and while that says
    /// goodbye other threads run.
    pub(crate) held: Vec<Bound<'py, PyAny>>,
    /// By the address of a running frame: what its variables hold.
    pub(crate) locals: HashMap<usize, Vec<usize>>,
    /// Frames of this package.
    pub(crate) ours: Vec<usize>,
    /// By the address of code that is running: a frame of it.
    pub(crate) running: HashMap<usize, usize>,
}

/// Finds them. Only the interpreter's own functions are called, so that nothing else runs from here
/// to the end of the walk.
pub(crate) fn find<'py>(py: Python<'py>, package: &str) -> PyResult<Roots<'py>> {
    let here = py.import("_thread")?.call_method0("get_ident")?.extract()?;
    let mut found = Roots { here, ..Roots::default() };
    let sys = py.import("sys")?;
    let modules = sys.getattr("modules")?.cast_into::<PyDict>()?;
    found.push("modules", 0, modules.clone().into_any());
    for dict in state_dicts(py) {
        found.push("interpreter", 0, dict);
    }
    let frames = sys.call_method0("_current_frames")?.cast_into::<PyDict>()?;
    for (thread, frame) in frames.iter() {
        let thread: u64 = thread.extract()?;
        let mut frame = Some(frame);
        while let Some(running) = frame {
            found.frame(&running, thread, &modules, package)?;
            let back = running.getattr(intern!(py, "f_back"))?;
            frame = (!back.is_none()).then_some(back);
        }
    }
    let exceptions = sys.call_method0("_current_exceptions")?.cast_into::<PyDict>()?;
    for (thread, handled) in exceptions.iter() {
        // Up to Python 3.11 it is what `sys.exc_info` gives: the exception is the second of three.
        let exception = match handled.get_item(1) {
            Ok(exception) => exception,
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

    fn frame(
        &mut self,
        frame: &Bound<'py, PyAny>,
        thread: u64,
        modules: &Bound<'py, PyDict>,
        package: &str,
    ) -> PyResult<()> {
        let py = frame.py();
        let code = frame.getattr(intern!(py, "f_code"))?;
        let file = code.getattr(intern!(py, "co_filename"))?;
        let is_ours = file.extract::<&str>().is_ok_and(|file| file.starts_with(package));
        let address = frame.as_ptr().expose_provenance();
        let locals = locals(frame, &code, modules)?;
        let addresses = locals.iter().map(|held| held.as_ptr().expose_provenance());
        self.locals.insert(address, addresses.collect());
        self.held.extend(locals);
        self.running.insert(code.as_ptr().addr(), address);
        if is_ours {
            self.ours.push(address);
            self.held.push(frame.clone());
        } else {
            self.push("frame", thread, frame.clone());
        }
        Ok(())
    }
}

/// What the variables of a running frame hold.
fn locals<'py>(
    frame: &Bound<'py, PyAny>,
    code: &Bound<'py, PyAny>,
    modules: &Bound<'py, PyDict>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let py = frame.py();
    let flags: i64 = code.getattr(intern!(py, "co_flags"))?.extract()?;
    let locals = frame.getattr(intern!(py, "f_locals"))?;
    if flags & OPTIMISED == 0 {
        // The body of a module or a class: its variables are in a real dict.
        let globals = frame.getattr(intern!(py, "f_globals"))?;
        let is_known = is_namespace(&globals, modules)?;
        let mut dicts = if is_known { Vec::new() } else { vec![globals.clone()] };
        dicts.extend(Some(locals).filter(|locals| !locals.is(&globals)));
        return Ok(dicts);
    }
    match locals.cast_into::<PyDict>() {
        Ok(snapshot) => {
            let held = snapshot.values().iter().collect();
            snapshot.clear();
            Ok(held)
        }
        // From Python 3.13 on it is a view, and leaves nothing behind.
        Err(error) => {
            let view = error.into_inner();
            view.call_method0(intern!(py, "values"))?.try_iter()?.collect()
        }
    }
}

/// Whether a dict is that of a module that everybody can import.
fn is_namespace(globals: &Bound<'_, PyAny>, modules: &Bound<'_, PyDict>) -> PyResult<bool> {
    let py = globals.py();
    let Ok(globals) = globals.cast::<PyDict>() else { return Ok(false) };
    let Some(name) = globals.get_item(intern!(py, "__name__"))? else { return Ok(false) };
    let Some(module) = modules.get_item(name)? else { return Ok(false) };
    Ok(module.cast::<Module>().is_ok_and(|module| module.dict().is(globals)))
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
